"""Broken profiles."""

from __future__ import annotations

import json
from typing import Any

from .case import Bad, bad_of

ROW = {
    "v": 1,
    "op": "matmul",
    "attrs": {},
    "in": [[2, 3], [3, 4]],
    "dt": ["float32", "float32"],
    "out": [[2, 4]],
    "dev": "cpu",
    "phase": "fwd",
    "t_ns": {"p50": 4200},
}


def bad(name: str, text: str, *lines: str) -> Bad:
    return bad_of("profile", name, text, lines)


def row(**changes: Any) -> str:
    """A row that is valid except for the changes; None drops a key."""
    return json.dumps({key: value for key, value in (ROW | changes).items() if value is not None})


def phases(**changes: Any) -> str:
    """A header with a host's forward phase, and a valid row."""
    host = {"phases": {"forward": {"host_s": 0.001, "ops": 10} | changes}}
    return json.dumps({"v": 1, "header": {"host": host}}) + "\n" + row()


HOST_TIMES = (
    ("host_s", 1e30, "is larger than 53 days: 1E+30"),
    ("host_s", 9.3e7, "is larger than 53 days: 93000000.0"),
    ("host_s", True, "must be a number >= 0, got true"),
    ("host_s", "x", 'must be a number >= 0, got "x"'),
    ("host_s", -1, "must be a number >= 0, got -1"),
    ("ops", 1.5, "must be a whole number >= 0, got 1.5"),
    ("ops", True, "must be a whole number >= 0, got true"),
    ("ops", "x", 'must be a whole number >= 0, got "x"'),
    ("ops", -1, "must be a whole number >= 0, got -1"),
)

PROFILES = (
    *(
        bad(
            f"host_of_a_step_{field}_{value}",
            phases(**{field: value}),
            f"line 1: host.phases.forward.{field}: {reason}",
        )
        for field, value, reason in HOST_TIMES
    ),
    bad(
        "host_of_a_step_without_times",
        '{"host": {"phases": {"forward": {}, "backward": 7}}}\n' + row(),
        "line 1: host.phases.forward.host_s: missing",
        "line 1: host.phases.forward.ops: missing",
        "line 1: host.phases.backward: must be an object, got 7",
    ),
    bad(
        "launches_beyond_all_time",
        row(launches=2**53, kernel_ns=1) + "\n" + row(op="mul", launches=2**53),
        "line 1: launches: must be at most 5764607523034, 53 days of gaps; got 9007199254740992",
        "line 2: launches: must be at most 5764607523034, 53 days of gaps; got 9007199254740992",
    ),
    bad(
        "kernels_and_gaps_beyond_all_time",
        row(launches=5 * 10**12, kernel_ns=4 * 10**15),
        "line 1: kernel_ns: with a gap for each of the launches it is more than 53 days",
    ),
    bad("not_json_on_line_2", row() + "\nx\n", "line 2: column 1: not JSON: expecting value"),
    bad(
        "another_format",
        '{"version": 1,\n "rows":\n  []}',
        "one JSON value over several lines: must hold one a line",
    ),
    bad(
        "another_format_on_a_line",
        '{"version": 1, "graph": "g.json"}',
        'line 1: has "version", as scenarios and graphs have: no profile',
    ),
    bad("a_list", "[]", "line 1: must be an object, got a list"),
    bad("no_version", row(v=None), 'line 1: v: missing; write "v": 1'),
    bad(
        "version_two", row(v=2), "line 1: v: must be 1, the only one that this simdev reads; got 2"
    ),
    bad(
        "header_of_version_two",
        '{"v": 2, "device": {}}\n' + row(),
        "line 1: v: must be 1, the only one that this simdev reads; got 2",
    ),
    bad(
        "header_of_no_object",
        '{"v": 1, "header": 5}\n' + row(),
        "line 1: header: must be an object, got 5",
    ),
    bad(
        "neither_op_nor_coll",
        row() + '\n{"v": 1}',
        'line 2: holds neither an operator ("op") nor a collective ("coll")',
    ),
    bad("no_median", row(t_ns={"p10": 1}), "line 1: t_ns.p50: missing"),
    bad(
        "negative_median",
        row(t_ns={"p50": -1}),
        "line 1: t_ns.p50: must be from 0 to 53 days in nanoseconds, got -1",
    ),
    bad(
        "median_a_text",
        row(t_ns={"p50": "12 us"}),
        'line 1: t_ns.p50: must be a number of nanoseconds, got "12 us"',
    ),
    bad(
        "median_true",
        row(t_ns={"p50": True}),
        "line 1: t_ns.p50: must be a number of nanoseconds, got true",
    ),
    bad(
        "median_beyond_all",
        row(t_ns={"p50": 10**19}),
        "line 1: t_ns.p50: must be from 0 to 53 days in nanoseconds, got 10000000000000000000",
    ),
    bad(
        "median_nan", row().replace("4200", "NaN"), "line 1: t_ns.p50: NaN is not a number in JSON"
    ),
    bad(
        "kernels_that_are_no_times",
        row(kernel_ns="3 us", launches=1.5) + "\n" + row(op="mul", host_ns=-1, launches="2"),
        'line 1: kernel_ns: must be a number of nanoseconds, got "3 us"',
        "line 1: launches: must be a whole number >= 0, got 1.5",
        "line 2: host_ns: must be from 0 to 53 days in nanoseconds, got -1",
        'line 2: launches: must be a whole number >= 0, got "2"',
    ),
    bad(
        "work_that_is_no_number",
        row(flops="many", ws=-5),
        'line 1: flops: must be a number >= 0, got "many"',
        "line 1: ws: must be a whole number >= 0, got -5",
    ),
    bad(
        "negative_extent",
        row(out=[[2, -4]]),
        "line 1: out[0][1]: must be a whole number from 0 to 2^60, got -4",
    ),
    bad(
        "endless_extent",
        row(**{"in": [[2, 3], [2**60 + 1]]}),
        "line 1: in[1][0]: must be a whole number from 0 to 2^60, got 1152921504606846977",
    ),
    bad(
        "unknown_phase",
        row(phase="forward"),
        'line 1: phase: must be one of fwd, bwd, bwd_input, bwd_weight, opt, got "forward"',
    ),
    bad("no_device", row(dev=None), "line 1: dev: missing"),
    bad("misspelt_key", row(t_nss={}), 'line 1: t_nss: unknown key; did you mean "t_ns"?'),
    bad("shape_a_number", row(**{"in": [3]}), "line 1: in[0]: must be a list, got 3"),
    bad(
        "same_key_twice",
        row() + "\n\n" + row(t_ns={"p50": 1}, acc="fp32"),
        "line 3: the same operator as line 1",
    ),
    bad(
        "several_lines",
        row(op=1) + "\n" + row(src=2) + "\n" + row(rel_err=-0.5),
        "line 1: op: must be text, got 1",
        "line 2: src: must be text, got 2",
        "line 3: rel_err: must not be negative, got -0.5",
    ),
)
