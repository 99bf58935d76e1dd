"""Broken scenarios: some cannot be read, others only fail when they run."""

from __future__ import annotations

import json
from typing import Any

from .case import Bad

GRAPH = {
    "ops": [
        {"name": "a", "time": "1 us", "outputs": [{"bytes": 8}]},
        {"name": "b", "time": "1 us", "inputs": ["a"]},
    ]
}
CLUSTER = {
    "devices": [{"name": "gpu:0"}, {"name": "gpu:1"}],
    "links": {"all_to_all": {"bandwidth": "1 GB/s"}},
}
ROW = {
    "v": 1,
    "op": "matmul",
    "in": [],
    "dt": [],
    "out": [],
    "dev": "cpu",
    "phase": "fwd",
    "t_ns": {"p50": 1},
}
DROP = object()


def bad(name: str, text: str, *lines: str) -> Bad:
    return Bad("scenario", name, text, "\n".join(lines))


def late(name: str, text: str, *lines: str) -> Bad:
    return Bad("simulate", name, text, "\n".join(lines))


def scenario(**changes: Any) -> str:
    """A scenario of two ops on one of two devices, valid except for the changes."""
    parts = {"version": 1, "graph": GRAPH, "cluster": CLUSTER, "strategy": {"*": "gpu:0"}} | changes
    return json.dumps({key: value for key, value in parts.items() if value is not DROP})


SCENARIOS = (
    bad("a_list", "[]", "f.json: must be an object (a scenario), got a list"),
    bad("no_version", scenario(version=DROP), 'f.json: version: missing; write "version": 1'),
    bad(
        "version_three",
        scenario(version=3),
        "f.json: version: must be 1, the only one that this simdev reads; got 3",
    ),
    bad(
        "no_parts",
        '{"version": 1}',
        "f.json: graph: missing",
        "f.json: cluster: missing",
        "f.json: strategy: missing",
    ),
    bad(
        "misspelt_key",
        scenario(stategy={}),
        'f.json: stategy: unknown key; did you mean "strategy"?',
    ),
    bad(
        "accumulate_beside_the_strategy",
        scenario(accumulate=2, options={"accumulate": 2}),
        'f.json: options.accumulate: unknown key; did you mean "strategy.accumulate"?',
        'f.json: accumulate: unknown key; did you mean "strategy.accumulate"?',
    ),
    bad("missing_file", scenario(graph="nowhere.json"), "nowhere.json: no such file"),
    bad("graph_a_folder", scenario(graph="."), ".: is a directory"),
    bad("empty_path", scenario(graph=""), 'f.json: graph: must be a path, got ""'),
    bad(
        "path_with_a_zero", scenario(graph="a\0b"), 'f.json: graph: must be a path, got "a\\u0000b"'
    ),
    bad("graph_a_number", scenario(graph=7), "f.json: graph: must be a path or an object, got 7"),
    bad("graph_null", scenario(graph=None), "f.json: graph: must be a path or an object, got null"),
    bad(
        "unknown_preset",
        scenario(cluster="5x-rtx-2080"),
        'f.json: cluster: neither a file nor a preset: "5x-rtx-2080"; did you mean "4x-rtx-2080"?',
    ),
    bad("preset_of_another_part", scenario(graph="4x-rtx-2080"), "4x-rtx-2080: no such file"),
    bad(
        "path_out_of_presets",
        scenario(cluster="../clusters/4x-rtx-2080"),
        (
            'f.json: cluster: neither a file nor a preset: "../clusters/4x-rtx-2080"; did '
            'you mean "4x-rtx-2080"?'
        ),
    ),
    bad("missing_cluster_file", scenario(cluster="nowhere.json"), "nowhere.json: no such file"),
    bad(
        "profiles_of_both_sorts",
        scenario(profile=["nowhere.jsonl", 7]),
        "nowhere.jsonl: no such file",
        "f.json: profile[1]: must be a path or an object, got 7",
    ),
    bad(
        "profile_a_number",
        scenario(profile=7),
        "f.json: profile: must be a path or an object, got 7",
    ),
    bad(
        "inline_profile_without_rows",
        scenario(profile={"header": {}}),
        "f.json: profile.rows: must be a list of rows, beside an optional header",
    ),
    bad(
        "inline_profile_with_a_bad_row",
        scenario(profile={"rows": [{"v": 1, "op": "x"}]}),
        "f.json: profile.rows[0]: out: missing",
        "f.json: profile.rows[0]: dev: missing",
        "f.json: profile.rows[0]: phase: missing",
        "f.json: profile.rows[0]: t_ns: missing",
        "f.json: profile.rows[0]: in: missing",
    ),
    bad(
        "unknown_option",
        scenario(options={"engines": "simpy"}),
        'f.json: options.engines: unknown key; did you mean "engine"?',
    ),
    bad(
        "unknown_engine",
        scenario(options={"engine": "warp"}),
        'f.json: options.engine: must be one of auto, simpy, compiled, got "warp"',
    ),
    bad(
        "engine_a_number",
        scenario(options={"engine": 1}),
        "f.json: options.engine: must be text, got 1",
    ),
    bad(
        "inline_graph_broken",
        scenario(graph={"ops": [{"name": "a", "inputs": ["z"]}]}),
        'f.json: graph.ops[0].inputs[0]: no op named "z"',
    ),
    bad(
        "inline_cluster_broken",
        scenario(cluster={"devices": []}),
        "f.json: cluster.devices: at least one is needed",
    ),
    bad(
        "unknown_device",
        scenario(strategy={"a": "gpu:0", "b": "gpu:9"}),
        'f.json: strategy.placement["b"]: no device named "gpu:9"',
    ),
    bad(
        "op_without_device",
        scenario(strategy={"a": "gpu:0"}),
        'f.json: strategy.placement: op "b" has no device',
    ),
    bad(
        "unknown_op",
        scenario(strategy={"*": "gpu:0", "z": "gpu:1"}),
        (
            'f.json: strategy.placement["z"]: no op and no colocation group is called or '
            "matched by this"
        ),
    ),
    bad(
        "pattern_without_match",
        scenario(strategy={"a": "gpu:0", "b": "gpu:0", "conv*": "gpu:1"}),
        (
            'f.json: strategy.placement["conv*"]: no op and no colocation group is called '
            "or matched by this"
        ),
    ),
    bad(
        "patterns_that_disagree",
        scenario(strategy={"*": "gpu:0", "?": "gpu:1", "a*": "gpu:0", "*a": "gpu:1"}),
        'f.json: strategy.placement: "a" matches "a*" and "*a", which name different devices',
        'f.json: strategy.placement: "b" matches "*" and "?", which name different devices',
    ),
    bad(
        "placed_on_a_switch",
        scenario(
            cluster={"devices": [{"name": "gpu:0"}, {"name": "sw", "kind": "switch"}]},
            strategy={"a": "gpu:0", "b": "sw"},
        ),
        'f.json: strategy.placement["b"]: "sw" is a switch and runs no op',
    ),
    bad(
        "group_split",
        scenario(
            graph={"ops": [{"name": "a", "colocate": "g"}, {"name": "b", "colocate": "g"}]},
            strategy={"a": "gpu:0", "b": "gpu:1"},
        ),
        'f.json: strategy.placement: colocation group "g" is split over gpu:0, gpu:1: "a" on '
        'gpu:0; "b" on gpu:1; write {"g": "gpu:0"} and no entry for its single ops',
    ),
    bad(
        "all_parts_broken",
        scenario(
            graph={"ops": {}},
            cluster="nowhere.json",
            strategy={"order": {}},
            profile="nowhere.jsonl",
            options={"engine": "x"},
        ),
        'f.json: options.engine: must be one of auto, simpy, compiled, got "x"',
        "f.json: graph.ops: must be a list, got an object",
        "nowhere.json: no such file",
        "nowhere.jsonl: no such file",
        "f.json: strategy.order.policy: missing",
    ),
    late(
        "no_time",
        scenario(graph={"ops": [{"name": "a", "kind": "matmul"}]}),
        'f.json: ops[0]: no time for "a" on a device of kind "gpu" '
        '(no profile and no datasheet tells of this kind; key ["gpu","matmul","fwd",{},[],[],[]])',
    ),
    late(
        "no_time_but_on_another_kind",
        scenario(graph={"ops": [{"name": "a", "kind": "matmul"}]}, profile={"rows": [ROW]}),
        'f.json: ops[0]: no time for "a" on a device of kind "gpu" '
        '(the profiles know cpu; key ["gpu","matmul","fwd",{},[],[],[]])',
    ),
    late(
        "no_time_on_this_kind",
        scenario(graph={"ops": [{"name": "a", "time": {"cpu": 1}}]}),
        'f.json: ops[0]: no time for "a" on a device of kind "gpu" '
        '(no profile and no datasheet tells of this kind; key ["gpu","op","fwd",{},[],[],[]])',
    ),
    late(
        "no_route",
        scenario(
            cluster={"devices": [{"name": "gpu:0"}, {"name": "gpu:1"}]},
            strategy={"a": "gpu:0", "b": "gpu:1"},
        ),
        'f.json: placement: tensors must go from "gpu:0" to "gpu:1", but no route joins them',
    ),
    late(
        "priority_of_no_op",
        scenario(
            strategy={
                "placement": {"*": "gpu:0"},
                "order": {"policy": "priority", "priority": {"z": 1}},
            }
        ),
        'f.json: order.priority["z"]: no op of this name',
    ),
    late(
        "sequence_of_no_queue",
        scenario(
            strategy={
                "placement": {"*": "gpu:0"},
                "order": {"policy": "fixed", "sequence": {"gpu:7": []}},
            }
        ),
        (
            'f.json: order.sequence["gpu:7"]: no such queue here; there are gpu:0, gpu:1, '
            "channel gpu:0, channel gpu:1"
        ),
    ),
    late(
        "sequence_leaves_out",
        scenario(
            strategy={
                "placement": {"*": "gpu:0"},
                "order": {"policy": "fixed", "sequence": {"gpu:0": ["a"]}},
            }
        ),
        'f.json: order.sequence["gpu:0"]: leaves out "b"',
    ),
    late(
        "sequence_of_a_stranger",
        scenario(
            strategy={
                "placement": {"*": "gpu:0"},
                "order": {"policy": "fixed", "sequence": {"gpu:0": ["a", "b", "z"]}},
            }
        ),
        'f.json: order.sequence["gpu:0"][2]: "z" does not run in this queue',
    ),
    late(
        "sequence_twice",
        scenario(
            strategy={
                "placement": {"*": "gpu:0"},
                "order": {"policy": "fixed", "sequence": {"gpu:0": ["a", "b", "a"]}},
            }
        ),
        'f.json: order.sequence["gpu:0"][2]: "a" stands there twice',
    ),
    late(
        "deadlock",
        scenario(
            strategy={
                "placement": {"*": "gpu:0"},
                "order": {"policy": "fixed", "sequence": {"gpu:0": ["b", "a"]}},
            }
        ),
        "f.json: deadlock: 2 tasks can never start:",
        '  "a" waits for "b", next in "gpu:0"',
        '  "b" waits for "a"',
    ),
    late(
        "two_policies_in_one_queue",
        scenario(
            strategy={
                "placement": {"a": "gpu:0", "b": "gpu:1"},
                "order": {"policy": "fixed", "sequence": {"channel gpu:0": ["a:0>gpu:1"]}},
            }
        ),
        'f.json: order.sequence: "a:0>gpu:1" stands in "channel gpu:0", which has a sequence, '
        'and in "channel gpu:1", which has none; give both or neither',
    ),
    late(
        "two_transfers_of_one_name",
        scenario(
            graph={
                "ops": [
                    GRAPH["ops"][0],
                    *({"name": name, "inputs": ["a"], "time": 1} for name in ("x/y", "y")),
                ]
            },
            cluster={
                "queues": "egress",
                "transfer": "per-consumer",
                "devices": [{"name": name} for name in ("s", "d", "d/x")],
                "links": {"all_to_all": {"bandwidth": 1}},
            },
            strategy={
                "placement": {"a": "s", "x/y": "d", "y": "d/x"},
                "order": {"policy": "fixed", "sequence": {"send s": ["a:0>d/x/y"]}},
            },
        ),
        (
            'f.json: order.sequence["send s"]: several of its transfers have the same '
            "name; rename an op or a device"
        ),
    ),
    late(
        "two_queues_of_one_name",
        scenario(
            cluster={
                "queues": "link",
                "devices": [{"name": name} for name in ("s", "d", "s>d", "d>d")],
                "links": [{"ends": ends, "bandwidth": 1} for ends in (["s", "d>d"], ["s>d", "d"])],
            },
            strategy={
                "placement": {"a": "s", "b": "d>d"},
                "order": {"policy": "fixed", "sequence": {"link s>d>d": ["a:0>d>d"]}},
            },
        ),
        (
            'f.json: order.sequence["link s>d>d"]: 2 queues have the same name; rename an '
            "op or a device"
        ),
    ),
    late(
        "transfer_of_weeks",
        scenario(
            graph={
                "ops": [
                    {"name": "a", "time": 0, "outputs": [{"bytes": "1 PiB"}]},
                    {"name": "b", "time": 0, "inputs": ["a"]},
                ]
            },
            cluster={"devices": CLUSTER["devices"], "links": {"all_to_all": {"bandwidth": 1}}},
            strategy={"a": "gpu:0", "b": "gpu:1"},
        ),
        "f.json: a transfer of 1125899906842624 bytes at 1 bytes/s takes more than 53 days",
    ),
    late(
        "ops_of_weeks",
        scenario(graph={"ops": [{"name": "a", "time": "4e6 s"}, {"name": "b", "time": "4e6 s"}]}),
        "f.json: tasks: all times together exceed 53 days",
    ),
)
