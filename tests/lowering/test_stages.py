"""Pipelines over the ops of a graph: closed forms, stages given and by balance, memory."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simdev import Scenario, load_scenario, run
from simdev.commands import main
from simdev.costs import CostModel
from simdev.execution.check import check
from simdev.execution.period import step_time_ps
from simdev.execution.scenario import execute
from simdev.files import read_strategy, write_strategy
from simdev.ground.errors import InputError
from simdev.lowering.stages import even_cut, stages_of
from simdev.nouns.cluster import QUEUES
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.models import build
from simdev.nouns.strategy import Parallelism, Strategy
from simdev.oracle import oracle_of
from worlds.clusters import machines
from worlds.runs import executed
from worlds.scenarios import lenet, pipelined

PS = 10**12


def chain(
    times: list[tuple[int, int, int]],
    size: int = 0,
    update: int = 0,
    kept: int = 0,
    late: bool = False,
) -> Graph:
    """Layers with a weight each: seconds forward, of the input's gradient and of the weight's.

    ``size`` are the bytes of what goes from layer to layer, ``kept`` those that a layer keeps for
    the gradient of its weight. ``late``: the gradient of the input is made last, so that a whole
    backward is over when the next stage may begin, as the closed forms have it.
    """
    ops, back = [Op("batch", "input", outputs=(Tensor(size),), time=0)], list[Op]()
    below, count = "batch", len(times)
    for k, (forward, backward, weight) in enumerate(times):
        outputs = (Tensor(size), Tensor(kept))
        ops.append(Op(f"w{k}", "parameter", outputs=(Tensor(4),), param_bytes=4, time=0))
        ops.append(Op(f"f{k}", inputs=(below, f"w{k}"), outputs=outputs, time=forward))
        below = f"f{k}"
        above = f"b{k + 1}" if k + 1 < count else below
        about = {"phase": "backward", "outputs": (Tensor(size),)}
        own = Op(
            f"b{k}", inputs=(above, f"w{k}"), attrs={"forward": f"f{k}"}, time=backward, **about
        )  # type: ignore[arg-type]
        made = {"phase": "backward", "outputs": (Tensor(4),), "attrs": {"forward": f"f{k}"}}
        grad = Op(f"g{k}", inputs=(above, f"f{k}:1"), time=weight, **made)  # type: ignore[arg-type]
        back = [grad, own, *back] if late else [own, grad, *back]
    updates = [
        Op(f"u{k}", phase="update", inputs=(f"w{k}", f"g{k}"), time=update) for k in range(count)
    ]
    return Graph("chain", (*ops, *back, *updates))


def piped(graph: Graph, count: int, microbatches: int, **more: Any) -> Scenario:
    """A pipeline on as many devices, and more of the scenario."""
    told = {name: more.pop(name) for name in list(more) if hasattr(Parallelism, name)}
    pipeline = Parallelism(pp=count, microbatches=microbatches, **told)
    cluster = more.pop("cluster", None) or machines(count)
    return Scenario(graph, cluster, CostModel(), Strategy(pipeline=pipeline), **more)


SECONDS = st.integers(1, 4)


@settings(max_examples=40, deadline=None)
@given(SECONDS, SECONDS, SECONDS, st.integers(1, 4), st.integers(1, 6), st.integers(0, 3))
def test_equal_stages_give_the_closed_forms(
    f: int, b: int, w: int, ranks: int, microbatches: int, update: int
) -> None:
    """GPipe, 1F1B: (m + p - 1) (f + b + w); with the weights' gradients late ZB-H1's form."""
    graph = chain([(f, b, w)] * ranks, update=update, late=True)
    for schedule in ("GPipe", "1F1B"):
        report = run(piped(graph, ranks, microbatches, schedule=schedule))
        whole = (microbatches + ranks - 1) * (f + b + w)
        assert report.step_ps == (whole + update) * PS
        alone = replace(piped(graph, 1, microbatches), cluster=machines(1))
        work = run(alone).step_ps - ranks * update * PS
        assert work == microbatches * ranks * (f + b + w) * PS
    if w <= min(f, b) and microbatches >= 2 * ranks:
        early = chain([(f, b, w)] * ranks, update=update)
        report = run(piped(early, ranks, microbatches, schedule="ZB-H1"))
        form = microbatches * (f + b + w) + (ranks - 1) * (f + b - w)
        assert report.step_ps == (form + update) * PS
        assert check(report.trace.task_graph, report.trace) == ()


def test_interleaved_stages_give_their_closed_form() -> None:
    """m (f + b + w) + (p - 1) (f + b + w) / v, of a rank with v chunks."""
    graph = chain([(1, 1, 1)] * 8, late=True)
    report = run(piped(graph, 4, 8, chunks=2))
    assert report.step_ps == (8 * 6 + 3 * 6 // 2) * PS


@pytest.mark.parametrize("model", ["lenet", "bert-base"])
@pytest.mark.parametrize("schedule", ["GPipe", "1F1B", "ZB-H1"])
def test_one_microbatch_is_the_plain_placement(model: str, schedule: str) -> None:
    told = {"version": 1, "graph": {"model": model, "batch": 2}, "cluster": "c4140-4x-v100"}
    pipe = {"pp": 3, "microbatches": 1, "schedule": schedule}
    scenario = load_scenario(told | {"strategy": {"version": 1, "pipeline": pipe}})
    trace = execute(scenario).trace
    graph = scenario.graph
    assert isinstance(graph, Graph)
    source = trace.task_graph.tasks.source[: len(graph.ops)].tolist()
    names = [scenario.cluster.devices[d].name for d in source]
    placement = dict(zip((op.name for op in graph.ops), names, strict=True))
    sequence = {
        resource.name: [trace.task_graph.tasks.name[row] for row in resource.sequence]
        for resource in trace.task_graph.resources
        if resource.policy == "fixed"
    }
    order = {"policy": "fixed", "sequence": sequence}
    strategy = {"version": 1, "placement": placement, "order": order}
    plain = execute(load_scenario(told | {"strategy": strategy})).trace
    assert (plain.start == trace.start).all()
    assert (plain.finish == trace.finish).all()
    assert [one.peak for one in plain.memory] == [one.peak for one in trace.memory]


def test_memory_follows_the_schedule() -> None:
    """A rank keeps for GPipe the activations of all microbatches, for 1F1B those of p - r."""
    graph, peaks = chain([(2, 1, 1)] * 4, kept=100), {}
    for schedule in ("GPipe", "1F1B"):
        report = run(piped(graph, 4, 8, schedule=schedule))
        peaks[schedule] = [device.memory.peak for device in report.devices]
    # The weight, its gradient, and what is kept.
    assert peaks["GPipe"] == [808] * 4
    assert peaks["1F1B"] == [408, 308, 208, 108]


def test_stages_are_cut_where_the_longest_is_shortest() -> None:
    graph = chain([(1, 1, 1), (1, 1, 1), (4, 4, 4), (1, 1, 1), (2, 2, 2), (1, 1, 1)])
    found = stages_of(
        graph, (), np.array([[int(op.seconds_on("gpu") or 0)] * 3 for op in graph.ops])
    )
    assert [found[graph.index[f"f{k}"]] for k in range(6)] == [0, 0, 1, 2, 2, 2]
    for k in range(6):
        assert len({found[graph.index[f"{op}{k}"]] for op in "wfbgu"}) == 1


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=8),
    st.integers(1, 4),
    st.lists(st.integers(1, 3), min_size=4, max_size=4),
)
def test_even_cuts_are_optimal(pieces: list[int], stages: int, rates: list[int]) -> None:
    """Beside every cut of so many pieces, on devices of unequal speed."""
    stages = min(stages, len(pieces))
    lengths = [[rate * piece for piece in pieces] for rate in rates[:stages]]

    def longest(borders: tuple[int, ...]) -> int:
        ends = pairwise(borders)
        return max(sum(own[a:b]) for own, (a, b) in zip(lengths, ends, strict=True))

    found = tuple(even_cut(lengths))
    count = len(pieces)
    every = ((0, *cut, count) for cut in combinations(range(1, count), stages - 1))
    assert all(a < b for a, b in pairwise(found))
    assert longest(found) == min(map(longest, every))


def test_stages_by_patterns_and_by_their_first_ops() -> None:
    graph = chain([(1, 1, 1)] * 4)
    for stages in ([["f0"], ["f[123]"]], ["f1"]):
        scenario = piped(graph, 2, 2, stages=stages)
        tasks = execute(scenario).trace.task_graph.tasks
        placed = dict(zip(tasks.name, tasks.source.tolist(), strict=True))
        assert [placed[f"{op}{k}"] for k in range(4) for op in "fbgu"] == [0] * 4 + [1] * 12
        assert (placed["batch"], placed["w0"], placed["w3"]) == (0, 0, 1)
    # What is left out goes with what it reads.
    open_ended = Parallelism(microbatches=2, stages=(("f0",), ("f2",)))
    found = stages_of(graph, open_ended.stages, np.zeros((len(graph.ops), open_ended.pp), np.int64))
    assert [found[graph.index[f"f{k}"]] for k in range(4)] == [0, 0, 1, 1]


def test_ranks_stand_where_they_are_told() -> None:
    graph, devices = chain([(1, 1, 1)] * 3), ("gpu:2", "gpu:0", "gpu:1")
    scenario = piped(graph, 3, 2, ranks=devices)
    tasks = execute(scenario).trace.task_graph.tasks
    placed = dict(zip(tasks.name, tasks.source.tolist(), strict=True))
    assert [placed[f"f{k}"] for k in range(3)] == [2, 0, 1]


def test_a_table_of_ones_own_may_go_back_in_any_order(tmp_path: Path) -> None:
    """Gradients are added up in the order of the table, one microbatch before the other."""
    table = "0F0,0F1,,,0B1,,0B0\n,1F0,1F1,1B1,,1B0\n"
    graph = chain([(1, 1, 1)] * 2)
    report = run(piped(graph, 1, 2, table=table, ranks=("gpu:0", "gpu:1"), cluster=machines(2)))
    start = dict(zip(report.trace.task_graph.tasks.name, report.trace.start.tolist(), strict=True))
    assert start["g0@1"] < start["g0"]
    assert check(report.trace.task_graph, report.trace) == ()
    gradients = [i for i, name in enumerate(report.trace.task_graph.buffers.name) if name == "g0:0"]
    names = report.trace.task_graph.tasks.name
    assert [names[report.trace.task_graph.buffers.filler[i]] for i in gradients] == ["g0@1"]


def test_tied_weights_are_sent_and_their_gradients_come_back() -> None:
    """The last stage reads the first one's weight: it is sent once, its gradient too."""
    graph = chain([(1, 1, 1)] * 2)
    ties = {"f1", "b1"}
    read = [(*op.inputs, "w0") if op.name in ties else op.inputs for op in graph.ops]
    kinds = ["tied" if op.name in ties else op.kind for op in graph.ops]
    told = zip(graph.ops, read, kinds, strict=True)
    ops = [replace(op, inputs=inputs, kind=kind) for op, inputs, kind in told]
    more = Op("g0'", phase="backward", inputs=("b1", "f1:1"), outputs=(Tensor(4),), time=1,
              attrs={"forward": "f1"})  # fmt: skip
    at = next(i for i, op in enumerate(ops) if op.name == "u0")
    ops[at] = replace(ops[at], inputs=("w0", "g0", "g0'"))
    tied = Graph("tied", (*ops[:at], more, *ops[at:]))
    report = run(piped(tied, 2, 4))
    names = list(report.trace.task_graph.tasks.name)
    assert sum(name.startswith("w0:0>") for name in names) == 1
    assert sum(name.startswith("g0':0>") for name in names) == 1
    assert check(report.trace.task_graph, report.trace) == ()


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(SECONDS, SECONDS, SECONDS), min_size=3, max_size=6),
    st.integers(1, 3),
    st.integers(1, 5),
    st.sampled_from(["GPipe", "1F1B", "ZB-H1", "ZB-H2"]),
    st.sampled_from(QUEUES),
    st.sampled_from(["once", "repeated"]),
)
def test_engines_oracle_and_checker_agree(
    times: list[tuple[int, int, int]], ranks: int, m: int, schedule: str, queues: str, steps: str
) -> None:
    graph, cluster = chain(times, size=7, update=1), machines(ranks, queues)
    scenario = piped(graph, ranks, m, schedule=schedule, cluster=cluster, steps=steps)
    trace = executed(replace(scenario, engine="simpy")).trace
    cost = oracle_of(scenario)(scenario.strategy)
    assert cost.step_ps == step_time_ps(trace)


def test_placements_are_scored_for_as_many_microbatches() -> None:
    scenario = piped(chain([(1, 1, 1)] * 2), 2, 4)
    oracle = oracle_of(scenario)
    assert oracle([0] * len(oracle.graph.ops)).step_ps == 4 * 6 * PS


def test_repeated_steps_of_a_pipeline_overlap() -> None:
    """Stage 0 goes forward again while others update; nothing but queues and weights joins."""
    graph = chain([(1, 1, 1)] * 4, update=2)
    once, repeated = (run(piped(graph, 4, 4, steps=steps)) for steps in ("once", "repeated"))
    assert repeated.steady is not None
    assert repeated.steady.cycle == 1
    assert repeated.step_ps <= once.step_ps
    assert repeated.steady.first_ps == once.step_ps


def test_every_step_of_the_models_is_cut() -> None:
    """GNMT's unrolled layers stay whole, with their weights."""
    graph = build("gnmt-2", batch=2)
    found = stages_of(graph, (), np.ones((len(graph.ops), 3), np.int64))
    home: dict[str, set[int]] = {}
    for op, stage in zip(graph.ops, found, strict=True):
        if op.phase == "forward" and "/cell" in op.name:
            home.setdefault(op.name.split("@")[0].split("/cell")[0], set()).add(stage)
    assert all(len(stages) == 1 for stages in home.values())
    assert set(found) == {0, 1, 2}


# Files and bad input.


@pytest.mark.parametrize("stages", [(), (("a*", "b"), ("c",)), ("c",)])
def test_strategies_are_written_and_read(tmp_path: Path, stages: Any) -> None:
    strategy = Strategy(pipeline=Parallelism(pp=2, microbatches=8, stages=stages, ranks=("x", "y")))
    write_strategy(strategy, tmp_path / "s.json")
    assert read_strategy(tmp_path / "s.json") == strategy
    assert json.loads((tmp_path / "s.json").read_text())["pipeline"]["microbatches"] == 8


BAD = {
    "of a large model": ({"pp": 2, "tp": 2}, "strategy.pipeline.tp: goes with a large model"),
    "too many ranks": (
        {"pp": 9},
        'strategy.pipeline.pp: pp is 9, but "c4140-4x-v100" has 4 workers',
    ),
    "no such device": (
        {"ranks": ["gpu:7", "gpu:0"]},
        'strategy.pipeline.ranks[0]: no device named "gpu:7"',
    ),
    "twice": (
        {"ranks": ["gpu:0", "gpu:0"]},
        'strategy.pipeline.ranks[1]: "gpu:0" is rank 0 already',
    ),
    "two counts": ({"pp": 3, "ranks": ["gpu:0", "gpu:1"]}, "ranks: names 2 devices, pp is 3"),
    "wrong number": ({"pp": 3, "stages": [["conv*"], ["*"]]}, "stages: are 2, the schedule has 3"),
    "both ways": ({"stages": [["conv*"], "loss"]}, "stages: are lists of patterns, or all names"),
    "no match": ({"stages": [["nothing*"], ["*"]]}, "stages[0]: no op and no group is called"),
    "backwards": ({"stages": [["block*", "fc*", "loss*"], ["conv*"]]}, "needs what stage 1 makes"),
    "no op": ({"stages": ["nothing"]}, 'stages[0]: "nothing" is no forward op that computes'),
    "a leaf": ({"stages": ["images"]}, 'stages[0]: "images" is no forward op that computes'),
    "in no order": ({"stages": ["fc_5/linear", "conv_2/conv/conv2d"]}, "comes no later than the"),
    "too many": ({"pp": 4, "chunks": 9}, "stages: 36 are wanted, but what shares weights"),
    "asynchronous": ({"pp": 2, "schedule": "PipeDream"}, "schedule: PipeDream has no step"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_pipelines_say_what_is_wrong(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline, message = BAD[name]
    (tmp_path / "s.json").write_text(json.dumps(lenet(pipeline={"microbatches": 4} | pipeline)))
    assert main(["simulate", str(tmp_path / "s.json")]) == 2
    told = capsys.readouterr()
    assert message in told.err
    assert not told.out


def test_a_large_model_is_not_cut_by_its_ops(tmp_path: Path) -> None:
    told = pipelined(
        {"model": "llama3-8b"}, "c4140-4x-v100", microbatches=4, pp=4, ranks=["gpu:0"] * 4
    )
    with pytest.raises(InputError, match="ranks: goes with a graph of ops; llama3-8b is a large"):
        load_scenario(told)


def test_every_microbatch_counts() -> None:
    report = run(load_scenario(lenet(pipeline={"microbatches": 4, "pp": 2})))
    ops = build("lenet", batch=8).ops
    once = [op for op in ops if op.phase == "update" or op.kind == "parameter"]
    runs = sum(device.ops for device in report.devices)
    assert runs == 4 * (len(ops) - len(once)) + len(once)
    assert report.costs == {"roofline": 1.0}
