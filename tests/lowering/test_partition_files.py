"""Split strategies in files, and those that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from short_cases import FLEXFLOW, GRAPH, ON, C
from simdev.files import read_flexflow_strategy, read_strategy, write_strategy
from simdev.ground.errors import InputError
from simdev.lowering import partition
from simdev.nouns.cluster import Cluster, Device, Link
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.strategy import Order, Strategy, resolve_partition
from worlds.costs import COSTS
from worlds.graphs import leaf, tensor
from worlds.split_graphs import convolutions

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
    "a policy's name misspelt": (
        {"version": 1, "sync": "p-3"},
        "sync: must be one of all-reduce, parameter-server, sharded, bucketed, or an "
        "object with a policy, "
        'got "p-3"',
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
