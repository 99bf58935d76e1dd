"""Process groups of which only some ranks are simulated, beside all of them and by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from collective_ops import ALPHA, RATE, SIZE, mesh, operands, seconds, two_nodes
from simdev.costs import CostModel
from simdev.execution.check import check
from simdev.execution.engine import simulate
from simdev.execution.scenario import Outcome
from simdev.files.run import read_run, write_run
from simdev.files.strategy import read_strategy, strategy_object
from simdev.ground.errors import InputError
from simdev.lowering import lower
from simdev.nouns.cluster import Cluster
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.strategy import Collectives, Strategy
from simdev.nouns.taskgraph import TaskGraph
from simdev.report import analyze
from simdev.report.measures.spans import timeline_rows
from worlds.task_graphs import judged

GROUPED = ["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast"]


def partly(
    cluster: Cluster, kind: str, size: int, members: int, ranks: Sequence[int], **choice: Any
) -> TaskGraph:
    """A collective of ``members`` devices of which only some ranks are simulated."""
    names = [device.name for device in cluster.devices if device.runs_ops][:members]
    read, made = operands(kind, members, size)
    if kind == "broadcast":
        read, made = [size] * (0 in ranks), [size] * sum(rank > 0 for rank in ranks)
    sources = [
        Op(f"in{rank}", outputs=(Tensor(each),), time=0)
        for rank, each in zip(ranks, read, strict=False)
    ]
    here = [names[rank] for rank in ranks]
    whole = Op(
        "c",
        kind,
        inputs=tuple(op.name for op in sources),
        outputs=tuple(Tensor(each) for each in made[: len(ranks)]),
        attrs={"ranks": here, "group": "dp 0"},
        time="1 us" if choice.get("cost") == "given" else None,
    )
    placement = dict(zip(whole.inputs, here, strict=False)) | {"c": here[0]}
    collectives = Collectives(**choice, groups={"dp 0": names})
    strategy = Strategy(placement, collectives=collectives)
    return lower(Graph("one", (*sources, whole)), cluster, CostModel(), strategy)


def test_a_gather_of_four_simulated_as_one_takes_as_long_as_four() -> None:
    task_graph = partly(mesh(4, "device"), "all_gather", SIZE, 4, [0])
    # Three rounds of a quarter each.
    assert Fraction(judged(task_graph).end_ps, 10**12) == 3 * (ALPHA + Fraction(SIZE, 4 * RATE))
    names = [task_graph.resources[row].name for row in task_graph.tasks.resources[1].tolist()]
    # What it sends to the next, and gets from the last.
    assert names == ["send g0", "send g3", "recv g0", "recv g1"]


@pytest.mark.parametrize("queues", ["parallel", "device", "egress", "half-duplex", "link"])
@pytest.mark.parametrize("kind", GROUPED)
@pytest.mark.parametrize("ranks", [[0], [2], [0, 1], [1, 5, 6], list(range(8))])
def test_some_ranks_of_a_group_take_as_long_as_all(
    ranks: list[int], kind: str, queues: str
) -> None:
    for cluster in (mesh(8, queues), two_nodes(4, queues)):
        task_graph = partly(cluster, kind, SIZE, 8, ranks)
        assert Fraction(judged(task_graph).end_ps, 10**12) == seconds(cluster, kind, SIZE)
        assert bool(task_graph.groups) == (len(ranks) < 8)


@pytest.mark.parametrize("members", [2, 3, 5])
@pytest.mark.parametrize("kind", ["all_reduce", "all_to_all", "broadcast"])
def test_a_collective_of_given_time_sends_whole_bytes(kind: str, members: int) -> None:
    ranks = range(members if kind == "broadcast" else 2)
    task_graph = partly(mesh(8, "device"), kind, 4099, members, ranks, cost="given")
    assert judged(task_graph).end_ps == 10**6


def test_ranks_hold_every_link_on_the_way_of_their_messages() -> None:
    task_graph = partly(two_nodes(2, "link"), "all_gather", SIZE, 4, [1], algorithm="ring")
    held = {task_graph.resources[row].name for row in task_graph.tasks.resources[1].tolist()}
    # 0 sends to 1 through the switch of their node, 1 to 2 over the core.
    assert held == {
        f"link {way}" for way in ("g0>s0", "s0>g1", "g1>s0", "s0>core", "core>s1", "s1>g2")
    }


def test_two_groups_of_one_rank_share_its_queue() -> None:
    cluster, names = mesh(4, "device"), ["g0", "g1", "g2", "g3"]
    ops = [Op("x", outputs=(Tensor(SIZE // 2), Tensor(SIZE // 2)), time=0)]
    for k, group in enumerate(("dp", "tp")):
        attrs = {"ranks": ["g0"], "group": group}
        made = (Tensor(SIZE),)
        ops.append(Op(group, "all_gather", inputs=(f"x:{k}",), outputs=made, attrs=attrs))
    groups = {"dp": names[:2], "tp": names[::3]}
    strategy = Strategy({op.name: "g0" for op in ops}, collectives=Collectives(groups=groups))
    trace = judged(lower(Graph("two", tuple(ops)), cluster, CostModel(), strategy))
    assert Fraction(trace.end_ps, 10**12) == 2 * (ALPHA + Fraction(SIZE, 2 * RATE))


def test_the_checker_knows_the_bytes_of_the_whole_group(tmp_path: Path) -> None:
    task_graph = partly(mesh(4, "device"), "all_reduce", SIZE, 4, [0, 1])
    trace = simulate(task_graph)
    write_run(trace, tmp_path / "run.json")
    again = read_run(tmp_path / "run.json").trace
    assert again.task_graph.groups == {2: 4}
    assert check(again.task_graph, again) == ()
    wrong = replace(task_graph, groups={2: 3})
    assert [fault.rule for fault in check(wrong, replace(trace, task_graph=wrong))] == ["bytes"]


def test_reports_show_the_devices_that_are_simulated() -> None:
    outcome = Outcome(simulate(partly(mesh(8, "device"), "all_gather", SIZE, 8, [0, 1])))
    assert {row.device for row in timeline_rows(outcome.trace) if row.computes} == {0, 1}
    note = "2 devices are simulated for groups of up to 8 ranks: collectives take as long as among"
    assert note in str(analyze(outcome))


def test_groups_are_kept_in_files() -> None:
    groups = {"dp 0": ("g0", "g2"), "dp 1": ("g1", "g3")}
    strategy = Strategy({"a": "g0"}, collectives=Collectives(groups=groups))
    assert read_strategy(json.loads(json.dumps(strategy_object(strategy)))) == strategy


def test_a_group_names_devices_that_differ() -> None:
    for members in ([], ["g0"], ["g0", "g0"]):
        with pytest.raises(InputError, match=r'collectives.groups\["dp"\]: must name two'):
            Collectives(groups={"dp": members})


def attempt(ranks: list[str], kind: str = "all_gather", **more: Any) -> str:
    """Why a graph with such a collective is refused, on four devices and a group of the first
    three.
    """
    attrs = {"ranks": ranks, "group": "dp"} | more.pop("attrs", {})
    read, made = more.pop("sizes", (4, 12))
    groups = more.pop("groups", {"dp": ["g0", "g1", "g2"]})
    queues = more.pop("queues", "device")
    sources = [Op(f"x{i}", outputs=(Tensor(read),), time=0) for i in range(len(ranks))]
    inputs, outputs = tuple(op.name for op in sources), (Tensor(made),) * len(ranks)
    whole = Op("c", kind, inputs=inputs, outputs=outputs, attrs=attrs)
    placement = dict(zip(inputs, ranks, strict=True)) | {"c": "g0"}
    strategy = Strategy(placement, collectives=Collectives(groups=groups, **more))
    with pytest.raises(InputError) as error:
        lower(Graph("one", (*sources, whole)), mesh(4, queues), CostModel(), strategy)
    return str(error.value)


def test_wrong_groups_are_refused() -> None:
    assert 'no group of strategy.collectives.groups is named "tp"' in attempt(
        ["g0"], attrs={"group": "tp"}
    )
    assert 'groups["dp"][1]: no device that runs ops is named "h"' in attempt(
        ["g0"], groups={"dp": ["g0", "h"]}
    )
    order = 'attrs.ranks: must be ranks of the group "dp", in its order'
    assert order in attempt(["g1", "g0"])
    assert order in attempt(["g3"])
    assert "a reduce needs all ranks of its group" in attempt(["g0"], "reduce", sizes=(4, 4))
    assert "outputs: each must have the 12 bytes of all inputs" in attempt(["g0"], sizes=(4, 8))
    for wrong in ({"cost": "expanded"}, {"queues": "fair"}):
        assert "name all ranks of the group" in attempt(["g0"], **wrong)


@pytest.mark.parametrize(
    ("kind", "inputs", "outputs", "problem"),
    [
        ("p2p", ["x0"], [9], "outputs[0]: 9 bytes are more than a rank has and gets, 8"),
        ("p2p", ["x0"], [8, 8], "outputs: must be at most 1, one a rank, got 2"),
        ("all_gather", ["x0"], [8, 8], "inputs: must be as many of each of the 2 ranks, got 1"),
        ("all_gather", ["x0", "x1"], [8, 7], "outputs[0]: 8 bytes are more than a rank has"),
        ("reduce_scatter", ["x0", "x1"], [6, 4], "outputs[0]: 6 bytes are more than a rank has"),
    ],
)
def test_collectives_that_tell_their_bytes_leave_no_more(
    kind: str, inputs: list[str], outputs: list[int], problem: str
) -> None:
    """Of 8 bytes a rank of two gets 4 by all_gather and reduce_scatter, and 8 by p2p; each of them
    reads 1.
    """
    sources = [Op(f"x{i}", outputs=(Tensor(1),), time=0) for i in range(2)]
    made = tuple(map(Tensor, outputs))
    whole = Op("c", kind, inputs=inputs, outputs=made, attrs={"ranks": ["g0", "g1"], "bytes": 8})
    placement = Strategy({"x0": "g0", "x1": "g1", "c": "g0"})
    with pytest.raises(InputError) as error:
        lower(Graph("one", (*sources, whole)), mesh(2, "device"), CostModel(), placement)
    assert problem in str(error.value)


@pytest.mark.parametrize("inputs", [[], ["x"], ["x", "x"]])
def test_a_message_gives_any_number_of_tensors(inputs: list[str]) -> None:
    source = Op("x", outputs=(Tensor(4),), time=0)
    attrs = {"ranks": ["g0", "g1"], "bytes": 8}
    sent = Op("c", "p2p", inputs=inputs, outputs=(Tensor(8),), attrs=attrs)
    strategy = Strategy({"x": "g0", "c": "g0"})
    task_graph = lower(Graph("one", (source, sent)), mesh(2, "device"), CostModel(), strategy)
    assert check(task_graph, simulate(task_graph, "simpy")) == ()
