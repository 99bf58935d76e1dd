"""Split strategies in files, FlexFlow's format, short forms, and what is wrong with bad ones."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import simdev
from sharded import COSTS, cluster, convolutions, leaf, linears, parameter, sent_bytes, tensor
from simdev import Oracle, load_scenario
from simdev.check import check
from simdev.cli import main
from simdev.cluster import Cluster, Device, Link
from simdev.engine import simulate
from simdev.errors import InputError
from simdev.files import (
    read_flexflow_strategy,
    read_graph,
    read_strategy,
    write_cluster,
    write_graph,
    write_strategy,
)
from simdev.graph import Graph, Op, Tensor
from simdev.lowering import Prepared, lower, partition, short_form, split
from simdev.models import build
from simdev.strategy import SHORT_FORMS, Configuration, Order, Strategy, resolve_partition

C = Configuration
GRAPH, ON = linears(), cluster()

STRATEGIES = {
    "partition": (
        {
            "partition": {
                "fc1": {
                    "split": {"sample": 2, "n": 2},
                    "devices": ["gpu:0", "gpu:1"],
                    "time": "divided",
                }
            }
        },
        Strategy(partition={"fc1": C({"sample": 2, "n": 2}, ("gpu:0", "gpu:1"), "divided")}),
    ),
    "everything": (
        {
            "version": 1,
            "placement": {"act": "gpu:3"},
            "partition": {"x": {"split": {"sample": 2}}, "fc*": {}},
            "tensors": {"fc1:0": {"0": 2, "1": 2}},
            "sync": "sharded",
            "order": {"policy": "priority", "priority": {"fc1": -1}},
        },
        Strategy(
            {"act": "gpu:3"},
            Order("priority", {"fc1": -1}),
            {"x": C({"sample": 2}), "fc*": C()},
            {"fc1:0": {0: 2, 1: 2}},
            "sharded",
        ),
    ),
    "short": ({"short": "data-parallel"}, Strategy(short="data-parallel")),
    "short on devices": (
        {"short": "owt", "devices": ["gpu:1", "gpu:2"], "sync": "parameter-server"},
        Strategy(short="owt", devices=("gpu:1", "gpu:2"), sync="parameter-server"),
    ),
    "an op called short": (
        {"short": "gpu:0", "devices": "gpu:1"},
        Strategy({"short": "gpu:0", "devices": "gpu:1"}),
    ),
    "sync alone": ({"version": 1, "sync": "all-reduce"}, Strategy()),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategies_are_read_and_written(name: str, tmp_path: Path) -> None:
    value, strategy = STRATEGIES[name]
    assert read_strategy(value) == strategy
    write_strategy(strategy, tmp_path / "s.json")
    assert read_strategy(tmp_path / "s.json") == strategy


BAD_FILES = {
    "degree a text": (
        {"partition": {"a": {"split": {"n": "2"}}}},
        'partition["a"].split["n"]: must be a whole number, got "2"',
    ),
    "unknown key": (
        {"partition": {"a": {"splits": {}}}},
        'partition["a"].splits: unknown key; did you mean "split"?',
    ),
    "unknown time": (
        {"partition": {"a": {"time": "half"}}},
        'partition["a"].time: must be "divided" or left out, got "half"',
    ),
    "dimension a name": (
        {"tensors": {"a:0": {"n": 2}}},
        'tensors["a:0"]["n"]: must be the number of a dimension',
    ),
    "unknown sync": (
        {"version": 1, "sync": "gossip"},
        "sync: must be one of all-reduce, parameter-server, sharded, bucketed, or an "
        "object with a policy, "
        'got "gossip"',
    ),
    "a policy's name": (
        {"version": 1, "sync": "p3"},
        "sync: must be one of all-reduce, parameter-server, sharded, bucketed, or an "
        "object with a policy, "
        'got "p3"; write {"policy": "p3"}',
    ),
    "unknown short form": (
        {"version": 1, "short": "pipeline"},
        'short: must be one of data-parallel, model-parallel, owt, expert, got "pipeline"',
    ),
    "devices of nothing": (
        {"version": 1, "devices": ["gpu:0"]},
        "devices: go with a short form; a configuration names its own",
    ),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_files_of_the_wrong_shape(name: str) -> None:
    value, problem = BAD_FILES[name]
    with pytest.raises(InputError) as error:
        read_strategy(value)
    assert error.value.problems == (problem,)


BAD = {
    "degree does not divide": (
        {"fc1": C({"n": 3})},
        'partition["fc1"].split: op "fc1": axis "n": degree 3 does not divide 8',
    ),
    "degree of half": (
        {"fc1": C({"n": 0.5})},
        (
            'partition["fc1"].split["n"]: op "fc1": axis "n": the degree must be a whole '
            "number >= 1, got 0.5"
        ),
    ),
    "more parts than points": (
        {"fc1": C({"m": 16}, ("gpu:0",))},
        'partition["fc1"].split: op "fc1": axis "m": 16 parts of 8 points',
    ),
    "device listed twice": (
        {"fc1": C({"n": 2}, ("gpu:0", "gpu:0"))},
        'partition["fc1"].devices[1]: op "fc1": "gpu:0" is listed twice',
    ),
    "no such axis": (
        {"fc1": C({"channels": 2})},
        (
            'partition["fc1"].split: op "fc1": axis "channels": kind "linear" has none of '
            "this name; it has m, n, k"
        ),
    ),
    "unknown op": (
        {"fc9": C({"n": 2})},
        'partition["fc9"]: no op and no colocation group is called or matched by this',
    ),
    "pattern of nothing": (
        {"fc?": C({"h": 2})},
        'partition["fc?"]: no op that this matches can be split along "h"',
    ),
    "unknown device": (
        {"fc1": C({"n": 2}, ("gpu:0", "tpu:0"))},
        'partition["fc1"].devices[1]: op "fc1": no device named "tpu:0"',
    ),
    "too few devices": (
        {"fc1": C({"n": 4}, ("gpu:0", "gpu:1", "gpu:2"))},
        (
            'partition["fc1"].devices: op "fc1" has 4 parts; 3 devices must be as many or '
            "a divisor of it"
        ),
    ),
    "not enough devices": (
        {"fc1": C({"n": 8})},
        'partition["fc1"].devices: op "fc1" has 8 parts; the cluster has 4 workers',
    ),
    "no samples": (
        {"dw1": C({"sample": 2})},
        'partition["dw1"].split["sample"]: op "dw1": axis "sample": kind "matmul" has '
        "no sample axis here; "
        "it can be split along m, n, k",
    ),
    "samples of what has no shape": (
        {"bare": C({"sample": 2})},
        (
            'partition["bare"].split: op "bare" cannot be split: op "bare": kind "relu": '
            "output 0 has no shape"
        ),
    ),
    "an empty name": (
        {"": C({"n": 2})},
        'partition[""]: no op and no colocation group is called or matched by this',
    ),
    "samples twice": (
        {"act": C({"sample": 2, "d0": 2})},
        'partition["act"].split["d0"]: op "act": its sample axis "d0" is told twice',
    ),
    "patterns that disagree": (
        {"fc*": C({"n": 2}), "*c2": C({"n": 4})},
        'partition: "fc2" matches "fc*" and "*c2", which split it in different ways',
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_splits_are_told_with_op_and_axis(name: str) -> None:
    entries, problem = BAD[name]
    graph = Graph("odd", (*GRAPH.ops, Op("bare", "relu", inputs=("x",), outputs=(Tensor(4),))))
    with pytest.raises(InputError) as error:
        partition(graph, ON, Strategy(partition=entries), COSTS)
    assert problem in error.value.problems


def test_all_problems_are_told_at_once() -> None:
    entries = {"fc1": C({"n": 3}), "fc2": C({"k": 5}), "fc9": C()}
    with pytest.raises(InputError) as error:
        resolve_partition(GRAPH, ON, entries)
    assert len(error.value.problems) == 3


def test_an_axis_that_must_stay_whole_cannot_be_split() -> None:
    graph = Graph(
        "softmax",
        (
            leaf("x", 4, 8),
            Op("y", "softmax", inputs=("x",), outputs=(tensor(4, 8),), attrs={"dim": 1}),
        ),
    )
    with pytest.raises(
        InputError, match='op "y": axis "d1": cannot be split: kind "softmax" needs all of it'
    ):
        partition(graph, ON, Strategy(partition={"y": C({"d1": 2})}), COSTS)


def test_a_switch_runs_no_part() -> None:
    on = Cluster("switched", (Device("gpu:0"), Device("sw", "switch")), (Link(("gpu:0", "sw"), 1),))
    with pytest.raises(
        InputError, match=r'partition\["fc1"\]\.devices\[1\]: op "fc1": "sw" is a switch'
    ):
        partition(GRAPH, on, Strategy(partition={"fc1": C({"n": 2}, ("gpu:0", "sw"))}), COSTS)


def test_a_kind_without_semantics_stays_whole() -> None:
    graph = Graph(
        "odd", (leaf("x", 4), Op("y", "no such kind", inputs=("x",), outputs=(tensor(4),)))
    )
    with pytest.raises(
        InputError, match=r'op "y" cannot be split: op "y": no semantics for kind "no such kind"'
    ):
        partition(graph, ON, Strategy(partition={"y": C({"d0": 2})}), COSTS)
    found = partition(
        graph, ON, Strategy(partition={"x": C({"d0": 2}), "y": C(devices=("gpu:3",))}), COSTS
    )
    assert found.graph.ops[-1].inputs == ("x#0:0", "x#1:0")


def test_what_can_follow_nothing_needs_a_device() -> None:
    with pytest.raises(InputError) as error:
        partition(GRAPH, ON, Strategy(partition={"fc3": C({"n": 2})}), COSTS)
    assert error.value.problems == (
        'placement: op "fc1" has no device, is not split, and reads nothing to follow',
    )


@pytest.mark.parametrize(
    ("name", "degrees", "problem"),
    [
        ("fc1:0", {2: 2}, 'tensors["fc1:0"]: op "fc1": the tensor has no dimension 2'),
        ("fc1:0", {0: 3}, 'tensors["fc1:0"]: op "fc1": dimension 0: degree 3 does not divide 8'),
        ("fc1:1", {0: 2}, 'tensors["fc1:1"]: op "fc1" has 1 outputs, none with index 1'),
        ("nobody", {0: 2}, 'tensors["nobody"]: no op named "nobody"'),
        ("w1", {0: 2}, 'tensors["w1"]: op "w1" reads nothing and is stored where it is read'),
    ],
)
def test_bad_tensors(name: str, degrees: dict[int, int], problem: str) -> None:
    strategy = Strategy(partition={"x": C({"sample": 2})}, tensors={name: degrees})
    with pytest.raises(InputError) as error:
        partition(GRAPH, ON, strategy, COSTS)
    assert error.value.problems[0].startswith(problem)


def test_parts_of_an_op_that_owns_parameters_would_hold_them_twice() -> None:
    y = Op("y", "relu", inputs=("x",), outputs=(tensor(4, 4),), param_bytes=64)
    graph = Graph("own", (leaf("x", 4, 4), y))
    with pytest.raises(
        InputError, match=r'op "y" owns parameters \(param_bytes\); split along "d0"'
    ):
        partition(graph, ON, Strategy(partition={"x": C({"sample": 2})}), COSTS)


# FlexFlow's format


FLEXFLOW = """3
conv1
0
4
2 1 1 2
4
0 1 2 3
relu1 0 4  1 1 1 4  4  3 2 1 0
conv2
0
4
1 1 2 1
0
"""


def test_flexflow_files_are_read(tmp_path: Path) -> None:
    """Dimensions innermost first: width, height, channel, sample; ids row-major with the sample
    slowest.
    """
    (tmp_path / "s.txt").write_text(FLEXFLOW)
    found = read_flexflow_strategy(tmp_path / "s.txt", convolutions(), ON)
    assert found.partition["conv1"] == C({"n": 2, "q": 2}, ("gpu:0", "gpu:1", "gpu:2", "gpu:3"))
    assert found.partition["relu1"] == C({"d0": 4}, ("gpu:3", "gpu:2", "gpu:1", "gpu:0"))
    assert found.partition["conv2"] == C({"k": 2})
    # left out: data parallel
    assert found.partition["pool"] == C({"n": 4}, ("gpu:0", "gpu:1", "gpu:2", "gpu:3"))
    parts = partition(convolutions(), ON, found, COSTS)
    assert [dict(parts.origins[f"conv1#{i}"].box) for i in range(3)] == [
        {"n": (0, 2), "q": (0, 4)},
        {"n": (0, 2), "q": (4, 8)},
        {"n": (2, 4), "q": (0, 4)},
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "ends where the number of ops should stand"),
        ("many", "word 1: the number of ops must be a whole number, got 'many'"),
        ("1 conv1 0 4 1 1 1", 'ends where a dimension of op "conv1" should stand'),
        ("1 conv1 0 4 1 1 1 2 2 0 7", 'op "conv1": device id 7 is not in 0..3'),
        ("1 conv1 0 4 1 1 1 2 3 0 1 2", 'op "conv1": has 2 parts and 3 device ids'),
        ("1 conv1 0 2 1 2 0", 'op "conv1": has 2 dimensions here, its output has 4'),
        ("1 conv1 2 4 1 1 1 2 0", 'op "conv1": the device type must be 0 (GPU) or 1 (CPU), got 2'),
        ("1 conv9 0 4 1 1 1 2 0", 'op "conv9": the graph has no op of this name'),
        ("1 u1 0 1 2 0", 'op "u1": makes no tensor, so it has no dimensions to cut'),
        (
            "1 conv1 0 4 1 1 1 0 0",
            'op "conv1": dimension 0 of its output (axis "n") cannot be cut into 0 parts',
        ),
        ("1 conv1 0 4 1 1 1 2 0 more", "word 10: nothing may follow the last op, got 'more'"),
        ("99999999999", "word 1: the number of ops must be a whole number, got '99999999999'"),
    ],
)
def test_bad_flexflow_files(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "s.strategy").write_text(text)
    with pytest.raises(InputError) as error:
        read_flexflow_strategy(tmp_path / "s.strategy", convolutions(), ON)
    assert error.value.problems[0] == problem
    assert error.value.file == str(tmp_path / "s.strategy")


def test_flexflow_ids_that_share_devices(tmp_path: Path) -> None:
    (tmp_path / "s.txt").write_text("1 conv1 0 4 1 1 1 4 4 2 2 3 3")
    found = read_flexflow_strategy(tmp_path / "s.txt", convolutions(), ON)
    assert found.partition["conv1"] == C({"n": 4}, ("gpu:2", "gpu:3"))
    (tmp_path / "s.txt").write_text("1 conv1 0 4 1 1 1 4 4 2 3 2 3")
    twice = read_flexflow_strategy(tmp_path / "s.txt", convolutions(), ON)
    with pytest.raises(InputError, match='op "conv1": "gpu:2" is listed twice'):
        resolve_partition(convolutions(), ON, twice.partition)


# Short forms


@pytest.mark.parametrize("short", SHORT_FORMS)
@pytest.mark.parametrize("model", ["lenet", "alexnet", "rnnlm", "transformer-base"])
def test_short_forms_fit_every_model(model: str, short: str) -> None:
    sizes: dict[str, dict[str, Any]] = {
        "rnnlm": {"length": 3, "hidden": 16, "vocabulary": 16},
        "transformer-base": {"length": 4, "layers": 1, "width": 16, "inner": 16, "vocabulary": 32},
    }
    graph = build(model, batch=8, **sizes.get(model, {}))
    on = Cluster.all_to_all(
        "two nodes", [Device(f"gpu:{i}", node=i // 2) for i in range(4)], bandwidth=10**9
    )
    task_graph = lower(graph, on, COSTS, Strategy(short=short))
    trace = simulate(task_graph)
    assert check(task_graph, trace) == ()
    assert len(set(task_graph.tasks.source.tolist())) == 4


def test_data_parallel_sends_gradients_only() -> None:
    graph = build("alexnet", batch=8)
    own, placed, origins = split(
        Prepared(graph, ON, COSTS), Strategy(short="data-parallel", sync="all-reduce")
    )
    task_graph = lower(own.graph, ON, COSTS, placed)
    assert sent_bytes(task_graph) == 0
    weights = [op.outputs[0].bytes for op in graph.ops if op.kind == "parameter"]
    rings = [op for op in own.graph.ops if op.kind == "all_reduce"]
    assert sorted(op.outputs[0].bytes for op in rings) == sorted(weights)
    assert {origin.role for origin in origins.values()} == {"shard", "copy", "sync"}


def test_model_parallel_puts_layers_one_after_the_other() -> None:
    graph = build("alexnet", batch=8)
    found = short_form("model-parallel", graph, ON, COSTS)
    assert not found.partition
    forward = [
        found.placement[op.name]
        for op in graph.ops
        if op.phase == "forward" and op.name in found.placement
    ]
    assert forward == sorted(forward)
    assert set(forward) == {f"gpu:{i}" for i in range(4)}
    back = {
        op.name: found.placement[op.name]
        for op in graph.ops
        if op.phase == "backward" and op.name in found.placement
    }
    assert back["grad/conv_2/conv/conv2d_backward_weight"] == found.placement["conv_2/conv/conv2d"]


def test_one_weird_trick_synchronises_no_weight_of_a_linear_layer() -> None:
    graph = build("alexnet", batch=8)
    found = partition(graph, ON, Strategy(short="owt"), COSTS)
    rings = {found.origins[op.name].op for op in found.graph.ops if op.kind == "all_reduce"}
    assert {name.split("/")[1] for name in rings} == {f"conv_{i}" for i in range(1, 6)}
    weights = {name: origin for name, origin in found.origins.items() if origin.role == "copy"}
    largest = max((op for op in graph.ops if op.kind == "parameter"), key=lambda op: op.param_bytes)
    sizes = [
        op.param_bytes
        for op in found.graph.ops
        if op.name in weights and weights[op.name].op == largest.name
    ]
    assert sizes == [largest.param_bytes // 4] * 4


def test_expert_is_layers_in_a_node_and_samples_across_nodes() -> None:
    graph = build("rnnlm", batch=8, length=3, hidden=16, vocabulary=16)
    on = Cluster.all_to_all(
        "two nodes", [Device(f"gpu:{i}", node=i // 2) for i in range(4)], bandwidth=10**9
    )
    found = partition(graph, on, Strategy(short="expert"), COSTS)
    cells = [name for name, origin in found.origins.items() if origin.op.endswith("@1/lstm_cell")]
    where = {found.origins[name].op: set() for name in cells}
    for name in cells:
        where[found.origins[name].op].add(found.placement[name])
    assert set(map(frozenset, where.values())) <= {
        frozenset({"gpu:0", "gpu:2"}),
        frozenset({"gpu:1", "gpu:3"}),
    }
    for op in found.graph.ops:
        if op.kind == "all_reduce":
            assert op.attrs["ranks"] in (("gpu:0", "gpu:2"), ("gpu:1", "gpu:3"))


def test_entries_of_its_own_take_precedence_over_a_short_form() -> None:
    strategy = Strategy(
        {"act": "gpu:3"},
        partition={"fc3": C({"n": 4})},
        short="data-parallel",
        devices=("gpu:0", "gpu:1"),
    )
    found = partition(linears(), ON, strategy, COSTS)
    assert found.placement["act"] == "gpu:3"
    assert dict(found.origins["fc3#3"].box) == {"n": (6, 8)}
    assert {found.placement[f"fc1#{i}"] for i in (0, 1)} == {"gpu:0", "gpu:1"}


@pytest.mark.parametrize(
    ("devices", "problem"),
    [
        (("gpu:9",), 'devices: no device that runs ops is named "gpu:9"'),
        (("gpu:0",) * 2, 'devices: "gpu:0" is listed twice'),
    ],
)
def test_bad_devices_of_a_short_form(devices: tuple[str, ...], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        short_form("owt", GRAPH, ON, COSTS, devices)


def test_a_batch_that_does_not_divide() -> None:
    with pytest.raises(InputError, match='op "x": axis "d0": degree 3 does not divide 8'):
        partition(
            GRAPH, ON, Strategy(short="data-parallel", devices=("gpu:0", "gpu:1", "gpu:2")), COSTS
        )


# Shipped

SHIPPED = Path(__file__).parents[2]


def test_optcnns_strategy_beats_data_parallelism() -> None:
    """VGG-16 on four P100 of one node (ICML 2018, Table 5): less is sent, and the step is
    shorter.
    """
    scenario = load_scenario(SHIPPED / "scenarios" / "vgg-16-4x-p100.json")
    oracle = Oracle(scenario.graph, scenario.cluster, scenario.costs)
    found, data_parallel = (simdev.run(replace(scenario, strategy=one)) for one in (
        scenario.strategy, Strategy(short="data-parallel",
        devices=tuple(f"gpu:{i}" for i in range(4)))
    ))  # fmt: skip
    assert oracle(scenario.strategy).step_ps == found.step_ps < data_parallel.step_ps
    assert found.transfer_bytes < data_parallel.transfer_bytes / 4
    rows = {one.op: one for one in found.splits}
    assert dict(rows["block_5/conv_2/conv2d"].split) == {"p": 2, "q": 2}
    assert rows["block_5/conv_2/conv2d"].bytes_in > 0
    assert dict(rows["block_1/conv_0/conv2d"].split) == {"n": 4}
    assert dict(rows["fc_7/fc/linear"].split) == {"n": 4}
    assert rows["grad/fc_7/fc/matmul_1"].sync_bytes == 0


@pytest.mark.parametrize("name", ["vgg-16-4x-p100-flexflow", "alexnet-16x-p100", "nmt-16x-k80"])
def test_shipped_scenarios_run(name: str) -> None:
    scenario = load_scenario(SHIPPED / "scenarios" / f"{name}.json")
    task_graph = lower(scenario.graph, scenario.cluster, scenario.costs, scenario.strategy)
    assert check(task_graph, simulate(task_graph)) == ()


def test_a_captured_transformer_is_cut_along_its_samples() -> None:
    """Its heads are exchanged views of the products that made them; ops on numbers alone stay
    whole.
    """
    graph = read_graph(SHIPPED / "profiles" / "graphs" / "transformer-big-b16.json")
    own, placed, origins = split(Prepared(graph, ON, COSTS), Strategy(short="data-parallel"))
    # beside the rings of 0.86 GB of gradients
    assert sent_bytes(lower(own.graph, ON, COSTS, placed)) < 10**5
    parts: dict[str, int] = {}
    for origin in origins.values():
        if origin.role == "shard":
            parts[origin.op] = parts.get(origin.op, 0) + 1
    assert sum(count == 1 for count in parts.values()) <= 4
    assert len(parts) == 964


def test_the_strategy_of_the_document_is_the_shipped_one() -> None:
    (block,) = re.findall(
        r"```json\n(.*?)```", (SHIPPED / "docs" / "strategies.md").read_text(), re.DOTALL
    )
    shipped = read_strategy(SHIPPED / "scenarios" / "strategies" / "vgg-16-optcnn.json")
    assert read_strategy(json.loads(block)) == shipped


# At the door


def write_scenario(folder: Path, strategy: Any) -> Path:
    write_graph(convolutions(), folder / "graph.json")
    write_cluster(ON, folder / "cluster.json")
    device = {
        "version": 1,
        "kind": "gpu",
        "flops": {"float32": "1 TFLOP/s"},
        "memory_bandwidth": "100 GB/s",
    }
    (folder / "gpu.json").write_text(json.dumps(device))
    parts = {
        "version": 1,
        "graph": "graph.json",
        "cluster": "cluster.json",
        "devices": "gpu.json",
        "strategy": strategy,
    }
    (folder / "scenario.json").write_text(json.dumps(parts))
    return folder / "scenario.json"


@pytest.mark.parametrize(
    "strategy",
    [
        "data-parallel",
        {"short": "owt", "devices": ["gpu:1", "gpu:2"]},
        "split.json",
        "flexflow.txt",
    ],
)
def test_simulate_takes_them_all(
    strategy: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "flexflow.txt").write_text(FLEXFLOW)
    (tmp_path / "split.json").write_text(
        json.dumps({"version": 1, "partition": {"x": {"split": {"sample": 2}}}})
    )
    path = write_scenario(tmp_path, strategy)
    outputs = [
        "--gantt",
        str(tmp_path / "g.svg"),
        "--trace",
        str(tmp_path / "t.json"),
        "--save",
        str(tmp_path / "r.json"),
    ]
    assert main(["simulate", str(path), "--json", "--check", *outputs]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"op", "parts", "split", "bytes_in", "sync_bytes", "summed_s"} <= found["splits"][
        0
    ].keys()
    drawn = (tmp_path / "g.svg").read_text()
    assert "conv1#1" in drawn
    names = {
        event["name"] for event in json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    }
    assert {"conv1#0", "dw1#sync0"} <= names
    assert main(["check", str(tmp_path / "r.json")]) == 0
    scenario = load_scenario(path)
    step_ps = Oracle(scenario.graph, scenario.cluster, scenario.costs)(scenario.strategy).step_ps
    assert step_ps == found["step_time_ps"]


def test_a_bad_split_is_told_of_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "split.json").write_text(
        json.dumps({"version": 1, "partition": {"conv1": {"split": {"k": 3}}}})
    )
    path = write_scenario(tmp_path, "split.json")
    assert main(["simulate", str(path)]) == 2
    told = capsys.readouterr().err
    assert (
        f'{tmp_path / "split.json"}: partition["conv1"].split: op "conv1": axis "k": '
        "degree 3 does not divide 4"
    ) in told


def test_the_oracle_takes_the_name_of_a_short_form() -> None:
    oracle = Oracle(GRAPH, ON, COSTS)
    assert oracle("data-parallel") == oracle(Strategy(short="data-parallel"))
    assert parameter("w", 2).param_bytes == 8
