"""Short forms of strategies, and split strategies that ship."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import simdev
from short_cases import FLEXFLOW, GRAPH, ON, C
from simdev import Oracle, load_scenario
from simdev.commands import main
from simdev.execution.check import check
from simdev.execution.engine import simulate
from simdev.files import read_graph, read_strategy, write_cluster, write_graph
from simdev.ground.errors import InputError
from simdev.lowering import Prepared, lower, partition, short_form, split
from simdev.nouns.cluster import Cluster, Device
from simdev.nouns.models import build
from simdev.nouns.strategy import SHORT_FORMS, Strategy
from worlds.costs import COSTS
from worlds.graphs import parameter
from worlds.sharded import sent_bytes
from worlds.split_graphs import convolutions, linears

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


@pytest.mark.parametrize(
    "name",
    [
        "vgg-16-4x-p100-flexflow",
        "alexnet-16x-p100",
        pytest.param("nmt-16x-k80", marks=pytest.mark.slow),
    ],
)
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
        r"```json\n(.*?)```",
        (SHIPPED / "docs" / "reference" / "strategies.md").read_text(),
        re.DOTALL,
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
