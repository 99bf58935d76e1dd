"""The door for files: what comes in is exactly what was written, and comes back after being
written.
"""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_type_hints

import numpy as np
import pytest
from hypothesis import given

from bad.profiles import ROW, row
from simdev.costs import CostModel, op_key
from simdev.execution.check import Claim
from simdev.files import (
    read_cluster,
    read_graph,
    read_profile,
    read_run,
    read_strategy,
    write_cluster,
    write_graph,
    write_profile,
    write_run,
    write_strategy,
)
from simdev.files.reading import parse_json
from simdev.files.run import Claims
from simdev.files.shape import plain
from simdev.ground.errors import InputError
from simdev.ground.units import picoseconds
from simdev.nouns.cluster import Cluster, Device, Link
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.strategy import Order, Strategy
from worlds.scenarios import World, worlds


def graph_of(*ops: str) -> Graph:
    return read_graph(parse_json(f'{{"version": 1, "ops": [{", ".join(ops)}]}}'))


@pytest.mark.parametrize(
    ("written", "ps"),
    [
        ("12e-6", 12_000_000),
        ("0.000012", 12_000_000),
        ('"12 us"', 12_000_000),
        ("0.1", 10**11),
        ("1E-12", 1),
        ("1.0000000000001e-12", 2),
        ("3", 3 * 10**12),
        ("0", 0),
        ("-0.0", 0),
    ],
)
def test_times_are_decimals_as_written(written: str, ps: int) -> None:
    op = graph_of(f'{{"name": "a", "time": {written}}}').ops[0]
    seconds = op.seconds_on("any")
    assert seconds is not None
    assert picoseconds(seconds) == ps


def test_a_thousand_tenths_make_a_hundred() -> None:
    graph = graph_of(*(f'{{"name": "a{i}", "time": 0.1}}' for i in range(1000)))
    assert sum(op.seconds_on("any") or 0 for op in graph.ops) == 100


def test_attributes_read_as_they_do_in_python() -> None:
    op = graph_of(
        '{"name": "a", "attrs": {"eps": 1e-05, "pads": [0, 1.5], "deep": {"x": 0.25}}}'
    ).ops[0]
    assert op.attrs == {"eps": 1e-05, "pads": (0, 1.5), "deep": {"x": 0.25}}
    assert isinstance(op.attrs["eps"], float)


WEIRD_GRAPHS = {
    "empty": "",
    "unicode": '{"name": "größe/層_1"}, {"name": "b", "control_inputs": ["größe/層_1"]}',
    "escaped": r'{"name": "\u5c64 \ud83d\ude80"}',
    "markup": (
        '{"name": "<script>alert(1)</script>", "kind": "=cmd()", "colocate": "../../etc/passwd"}'
    ),
    "one_op": '{"name": "a"}',
    "zero_bytes": (
        '{"name": "a", "outputs": [{"bytes": 0, "shape": [0, 4]}, {"bytes": 0, "shape": []}]}'
    ),
    "huge_bytes": (
        '{"name": "a", "outputs": [{"bytes": 1152921504606846976}], "param_bytes": "1000 PB"}'
    ),
    "units": (
        '{"name": "a", "param_bytes": "4 KiB", "outputs": [{"bytes": 4096.0}, {"bytes": 1e3}]}'
    ),
    "long_time": '{"name": "a", "time": 4611686}',
    "tiny_time": '{"name": "a", "time": 1e-50}',
    "nulls": (
        '{"name": "a", "time": null, "colocate": null, "outputs": [{"bytes": 1, "shape": '
        'null, "dtype": null}]}'
    ),
    "colons": (
        '{"name": "a:b", "outputs": [{"bytes": 1}]}, {"name": "c", "inputs": ["a:b", "a:b:0"]}'
    ),
    "longest_name": f'{{"name": "{"n" * 256}"}}',
    "names_of_the_format": (
        '{"name": "placement", "kind": "version"}, {"name": "ops"}, {"name": "None"}'
    ),
    "wildcards": '{"name": "a*[b]?"}',
    "control_with_hat": '{"name": "a"}, {"name": "b", "control_inputs": ["^a", "a"]}',
    "read_twice": '{"name": "a", "outputs": [{"bytes": 1}]}, {"name": "b", "inputs": ["a", "a"]}',
    "later_producer": '{"name": "b", "inputs": ["a"]}, {"name": "a", "outputs": [{"bytes": 1}]}',
    "deep_attributes": '{"name": "a", "attrs": {"x": ' + "[" * 60 + "]" * 60 + "}}",
    "odd_attributes": (
        '{"name": "a", "attrs": {"": null, "1": [true, {}], "big": 123456789012345678901234567890}}'
    ),
    "spaces": '{"name": "a b", "kind": " "}',
    "many": ", ".join(f'{{"name": "op{i}"}}' for i in range(5000)),
}


@pytest.mark.parametrize("name", WEIRD_GRAPHS)
def test_a_weird_graph_is_accepted_and_comes_back(name: str, tmp_path: Path) -> None:
    graph = graph_of(*filter(None, [WEIRD_GRAPHS[name]]))
    write_graph(graph, tmp_path / "g.json")
    assert read_graph(tmp_path / "g.json") == graph


def test_a_byte_order_mark_and_any_line_ends_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "g.json").write_bytes(b"\xef\xbb\xbf" + b'{"version": 1,\r\n"ops": []}\r\n')
    assert read_graph(tmp_path / "g.json").ops == ()
    (tmp_path / "p.jsonl").write_bytes(b"\xef\xbb\xbf" + row().encode() + b"\r\n\r\n")
    assert len(read_profile(tmp_path / "p.jsonl").rows) == 1


def test_gzip_is_known_by_its_name_or_its_content(tmp_path: Path) -> None:
    content = gzip.compress(b'{"version": 1, "name": "zipped", "ops": []}')
    for name in ("g.json.gz", "g.json"):
        (tmp_path / name).write_bytes(content)
        assert read_graph(tmp_path / name).name == "zipped"


def random_graph(rng: random.Random) -> Graph:
    ops: list[Op] = []
    for i in range(rng.randint(1, 12)):
        outputs = tuple(
            Tensor(
                rng.choice([0, 1, 2**60]),
                rng.choice([None, (), (2, 3)]),
                rng.choice([None, "bf16"]),
            )
            for _ in range(rng.randint(0, 2))
        )
        reads = [f"{op.name}:{k}" for op in ops for k in range(len(op.outputs))]
        time = rng.choice(
            [None, Fraction(rng.randint(0, 10**9), 10**15), {"gpu": "12 us", "cpu 0": 1}]
        )
        ops.append(
            Op(
                f"op {i}/ü",
                rng.choice(["matmul", "add"]),
                rng.choice(["forward", "backward", "update"]),
                tuple(rng.sample(reads, min(len(reads), rng.randint(0, 2)))),
                (ops[0].name,) if ops and rng.random() < 0.3 else (),
                outputs,
                rng.choice([{}, {"eps": 1e-05, "in": [[1, 2], None]}]),
                *(rng.choice([0, 7]) for _ in range(4)),
                colocate=rng.choice([None, "g"]),
                time=time,
            )
        )
    return Graph("random", tuple(ops))


@pytest.mark.parametrize("seed", range(20))
def test_graphs_come_back_as_they_went(seed: int, tmp_path: Path) -> None:
    graph = random_graph(random.Random(seed))
    write_graph(graph, tmp_path / "g.json.gz")
    assert read_graph(tmp_path / "g.json.gz") == graph


def test_an_attribute_that_is_no_json_is_refused(tmp_path: Path) -> None:
    for value in (object(), float("nan"), {1, 2}):
        with pytest.raises(InputError, match=r"ops\[0\]\.attrs: cannot be written as JSON"):
            write_graph(Graph("g", (Op("a", attrs={"x": value}),)), tmp_path / "g.json")
    assert list(tmp_path.iterdir()) == []


def test_clusters_come_back_as_they_went(tmp_path: Path) -> None:
    devices = (
        Device("gpu:0", "h100", "80 GiB", "3 us"),
        Device("host", "cpu", staging=True, chunk="4 MiB"),
        Device("nvswitch", "switch"),
    )
    links = (
        Link(("gpu:0", "host"), "64 GB/s", "5 us", "1 ns", "half", False),
        Link(("host", "nvswitch"), Fraction(10**10, 8), "134 us", duplex="simplex"),
    )
    cluster = Cluster("c", devices, links, "link", "multicast")
    write_cluster(cluster, tmp_path / "c.json")
    assert read_cluster(tmp_path / "c.json") == cluster
    write_cluster(Cluster("bare", (Device("d"),)), tmp_path / "d.json")
    assert read_cluster(tmp_path / "d.json") == Cluster("bare", (Device("d"),))


def test_the_short_form_joins_every_two_devices() -> None:
    link = {"bandwidth": "5.7 GB/s", "latency": "134 us", "duplex": "half", "hold_latency": False}
    devices = [{"name": "a"}, {"name": "s", "kind": "switch"}, {"name": "b"}, {"name": "c"}]
    cluster = read_cluster({"devices": devices, "queues": "fair", "links": {"all_to_all": link}})
    assert [link.ends for link in cluster.links] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert {
        (link.bandwidth, link.latency, link.duplex, link.hold_latency) for link in cluster.links
    } == {(5_700_000_000, Fraction(134, 10**6), "half", False)}


@pytest.mark.parametrize(
    ("value", "strategy"),
    [
        ({"matmul_1": "gpu:0"}, Strategy({"matmul_1": "gpu:0"})),
        ({}, Strategy()),
        (
            {"version": 1, "placement": {"a": "x"}, "order": "program"},
            Strategy({"a": "x"}, Order("program")),
        ),
        ({"placement": {"a": "x"}}, Strategy({"a": "x"})),
        ({"placement": "gpu:0"}, Strategy({"placement": "gpu:0"})),
        ({"order": "gpu:0", "version": "gpu:1"}, None),
        ({"order": "program"}, Strategy({}, Order("program"))),
        ({"order": "gpu:0", "sync": "gpu:1"}, Strategy({"order": "gpu:0", "sync": "gpu:1"})),
        ({"placement": {}, "partition": {}, "sync": None}, Strategy()),
        (
            {"placement": {}, "order": {"policy": "priority", "priority": {"a": -3}}},
            Strategy({}, Order("priority", {"a": -3})),
        ),
        (
            {
                "placement": {},
                "order": {"policy": "fixed", "sequence": {"send gpu:0": ["a:0>gpu:1"]}},
            },
            Strategy({}, Order("fixed", {}, {"send gpu:0": ("a:0>gpu:1",)})),
        ),
    ],
)
def test_strategies_in_all_their_forms(
    value: dict[str, Any], strategy: Strategy | None, tmp_path: Path
) -> None:
    if strategy is None:
        with pytest.raises(InputError, match="version: must be 1"):
            read_strategy(value)
        return
    assert read_strategy(value) == strategy
    (tmp_path / "s.json").write_text(json.dumps(value))
    assert read_strategy(tmp_path / "s.json") == strategy
    write_strategy(strategy, tmp_path / "t.json")
    assert read_strategy(tmp_path / "t.json") == strategy


def test_a_row_of_a_profile_meets_the_op_of_a_graph() -> None:
    """Once by the tensors that the op reads, once by the operands as executed, where a view was
    folded away.
    """

    def tensor(*shape: int) -> dict[str, Any]:
        return {"bytes": 4, "shape": list(shape), "dtype": "float32"}

    matmul = {"kind": "matmul", "outputs": [tensor(2, 4)]}
    executed = {"eps": 0.00001, "in": [[2, 3], [3, 4]], "dt": ["float32", "float32"]}
    ops = [
        {"name": "x", "outputs": [tensor(2, 3)]},
        {"name": "w", "outputs": [tensor(3, 4)]},
        matmul | {"name": "y", "inputs": ["x", "w:0"], "attrs": {"eps": 1e-5}},
        matmul | {"name": "z", "inputs": ["y"], "attrs": executed},
    ]
    graph = graph_of(*map(json.dumps, ops))
    profile = read_profile(
        {"rows": [ROW | {"attrs": {"eps": 1e-05}, "acc": "float32", "rel_err": 0.25}]}
    )
    costs = CostModel((profile,))
    for position in (2, 3):
        cost = costs.cost(graph, position, "cpu")
        assert cost is not None
        assert (cost.seconds, cost.rung, cost.rel_err) == (Fraction(4200, 10**9), "measured", 0.25)
    assert costs.cost(graph, 2, "gpu") is None
    assert op_key(graph, 2, "cpu") == op_key(graph, 3, "cpu") == next(iter(profile.rows))


def test_profiles_come_back_as_they_went(tmp_path: Path) -> None:
    times = {"p10": 1, "p50": 4200.5, "p90": 9.25, "n": 3}
    lines = [
        '{"v": 1, "header": {"device": {"kind": "cpu"}}}',
        row(t_ns=times, src="model:mine", rel_err=0.1, flops=48),
        '{"v": 1, "coll": "all_reduce", "t_ns": {"p50": 1}}',
        "",
        row(phase="bwd_input", t_ns={"p50": 0}),
    ]
    (tmp_path / "p.jsonl").write_text("\n".join(lines))
    profile = read_profile(tmp_path / "p.jsonl")
    assert [row.seconds for row in profile.rows.values()] == [Fraction(42005, 10**10), 0]
    write_profile(profile, tmp_path / "q.jsonl.gz")
    again = read_profile(tmp_path / "q.jsonl.gz")
    assert again.header == profile.header == {"v": 1, "header": {"device": {"kind": "cpu"}}}
    assert [(row.key, row.seconds, row.source, row.rel_err) for row in again.rows.values()] == [
        (row.key, row.seconds, row.source, row.rel_err) for row in profile.rows.values()
    ]
    assert [plain(row.details) for row in again.rows.values()] == [
        plain(row.details) | {"src": row.source} for row in profile.rows.values()
    ]


@given(worlds())
def test_runs_come_back_as_they_went(world: World) -> None:
    trace = world.trace
    with TemporaryDirectory() as folder:
        write_run(trace, f"{folder}/run.json.gz")
        saved = read_run(f"{folder}/run.json.gz")
    assert same(saved.trace, trace)
    claims = saved.claims
    assert (claims["trace_ps"], claims["feasible"]) == (trace.end_ps, trace.feasible)
    assert claims["peaks"] == {memory.device: memory.peak for memory in trace.memory}


def same(first: Any, other: Any) -> bool:
    """Equality that looks into arrays and the values that hold them."""
    if isinstance(first, np.ndarray):
        return first.dtype == other.dtype and np.array_equal(first, other)
    if hasattr(first, "__dataclass_fields__"):
        return all(
            same(getattr(first, name), getattr(other, name)) for name in first.__dataclass_fields__
        )
    return bool(first == other)


def test_the_spans_of_a_run_may_stand_in_any_order(tmp_path: Path, two_gpus: World) -> None:
    write_run(two_gpus.trace, tmp_path / "r.json")
    run = json.loads((tmp_path / "r.json").read_text())
    run["spans"] = {name: column[::-1] for name, column in run["spans"].items()}
    assert same(read_run(run).trace, two_gpus.trace)


def test_claims_of_a_file_are_those_that_are_checked() -> None:
    assert set(get_type_hints(Claims)) == {field.name for field in fields(Claim)}


def test_a_run_may_claim_nothing(tmp_path: Path, two_gpus: World) -> None:
    write_run(two_gpus.trace, tmp_path / "r.json")
    run = json.loads((tmp_path / "r.json").read_text())
    for claim in ("memory", "feasible", "step_time_ps"):
        del run[claim]
    saved = read_run(run)
    assert saved.claims == {"trace_ps": None, "feasible": None}


def test_a_profile_that_ships_is_read_again_only_where_it_was_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simdev.files.profile.examples_folder", lambda: tmp_path)
    ships, other = tmp_path / "profiles" / "p.jsonl", tmp_path / "p.jsonl"
    ships.parent.mkdir()
    for path in (ships, other):
        path.write_text(json.dumps(ROW) + "\n")
    before = read_profile(ships)
    assert read_profile(ships) is before
    assert read_profile(other) == before
    assert read_profile(other) is not read_profile(other)
    ships.write_text('{"v": 1, "header": {}}\n')
    assert not read_profile(ships).rows
