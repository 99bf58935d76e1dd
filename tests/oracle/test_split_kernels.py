"""Split ops, however they are cut, placed, dispatched and limited: the kernels answer what lowering
and SimPy do, and the checker finds no fault with that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from simdev import Oracle
from simdev.execution.check import check
from simdev.execution.period import simulate_strategy
from simdev.ground.errors import InputError
from simdev.nouns.graph import Graph, Op
from simdev.nouns.memory import MemoryModel
from simdev.nouns.strategy import Configuration, Strategy
from simdev.nouns.taskgraph import TRANSFER
from simdev.nouns.trace import Trace
from simdev.oracle import cost_of
from simdev.oracle.cost import NEVER, WORSE
from simdev.oracle.heap import FAULT
from simdev.oracle.peaks import events_for
from simdev.oracle.splits import blocks, evaluator, run
from simdev.oracle.splits.columns import FIRST, LATEST, LIMIT, LONG, WORK_CELLS, Arena
from simdev.oracle.splits.evaluator import SplitEvaluator
from split_walks import change, make_split, turned
from worlds.costs import COSTS
from worlds.graphs import leaf, tensor
from worlds.sharded import Case
from worlds.split_graphs import cluster, convolutions
from worlds.tape import Tape

MODELS = MemoryModel(), MemoryModel(rounding="pytorch", optimizer="adam", context=10_000)
LIMITS = -1, 0, 1


@contextmanager
def little_room() -> Iterator[None]:
    """Room for one row and for a few words: all has to grow, whatever is asked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluator, "ROWS_AT_FIRST", 1)
        patch.setattr(evaluator, "BY_ROW", 1)
        patch.setattr(evaluator, "WORDS", 2)
        patch.setattr(blocks, "Arena", partial(Arena, 2))
        yield


def loads_of(trace: Trace, queues: int) -> list[int]:
    """For how many ps tasks hold each of the first queues, and how many transfers there are."""
    graph = trace.task_graph
    held = graph.tasks.resources
    loads = np.zeros(len(graph.resources), np.int64)
    np.add.at(loads, held.ids, graph.tasks.duration[held.owners()])
    return [*loads[:queues].tolist(), int(graph.of_kind(TRANSFER).sum())]


def require_same(oracle: Oracle, splits: SplitEvaluator, strategy: Strategy) -> None:
    """Time, memory, number of tasks, loads and limits of a strategy."""
    try:
        trace, _ = simulate_strategy(oracle.prepared, strategy, "simpy")
    except InputError:
        assert splits.start(strategy) is splits.cost(strategy) is None
        return
    assert check(trace.task_graph, trace) == ()
    split = splits.start(strategy)
    assert split is not None
    cost, expected = split.cost(), cost_of(trace)
    if cost is None:  # captured steps beside dispatches that wait: lowering answers
        assert oracle.cluster.hosted
        return
    assert cost == expected == splits.cost(strategy)
    assert split.step_ps() == trace.end_ps
    assert split.tasks == len(trace.start)
    changed = splits._last
    assert changed is not None
    assert split._loads.tolist() == changed._loads.tolist()
    assert split._loads.tolist() == loads_of(trace, len(split._loads) - 1)
    for more in LIMITS:
        limited = split.step_ps(trace.end_ps + more)
        assert limited == trace.end_ps or (more < 0 and limited == WORSE)


def question(tape: Tape) -> tuple[Case, MemoryModel, Strategy]:
    """A case, and another strategy for it, in which an op or two are split otherwise."""
    model, case = tape.pick(*MODELS), make_split(tape)
    divided = any(one.time for one in case.strategy.partition.values())
    partition = {**case.strategy.partition, **change(tape, case, divided)}
    return case, model, replace(case.strategy, partition=partition)


@pytest.mark.parametrize("seed", range(20))
def test_kernels_answer_as_lowering_and_simpy(seed: int) -> None:
    """Also what is known already, on other devices, and with little room."""
    rng = np.random.default_rng(seed)
    for by in (0, 1, 3):
        case, model, other = question(Tape(rng.bytes(900)))
        oracle = Oracle(case.graph, case.cluster, COSTS, memory=model)
        with little_room() if seed % 2 else pytest.MonkeyPatch.context():
            splits = SplitEvaluator(oracle.prepared)
            for strategy in (case.strategy, other, turned(case.strategy, by), case.strategy):
                require_same(oracle, splits, strategy)


def test_peaks_that_are_too_long_for_the_kernels_are_left_to_lowering(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where entries take all bits of a key, none are left for instants."""
    oracle = Oracle(convolutions(), cluster(), COSTS)
    strategy = Strategy(partition={"x": Configuration({"sample": 4})})
    splits = SplitEvaluator(oracle.prepared)
    assert splits.cost(strategy) == oracle.in_full(strategy)
    monkeypatch.setattr(
        evaluator, "events_for", lambda *sizes: events_for(*sizes)._replace(id_bits=62)
    )
    assert SplitEvaluator(oracle.prepared).cost(strategy) is None


def test_a_run_is_given_up_after_its_latest_instant() -> None:
    for start, fault in ((LATEST - 1, 0), (LATEST, LONG)):
        work: Any = SimpleNamespace(cell=[0] * WORK_CELLS, first=FIRST, bits=0)
        work.cell[LIMIT] = NEVER
        run.check(work, start, 0)
        assert work.cell[FAULT] == fault


def test_tensors_may_have_any_number_of_dimensions() -> None:
    shape = (2,) * 12
    ops = leaf("x", *shape), Op("y", "relu", inputs=("x",), outputs=(tensor(*shape),))
    oracle = Oracle(Graph("deep", ops), cluster(), COSTS)
    for split in ({"x": {"d11": 2}, "y": {"d0": 2, "d11": 2}}, {"y": {"d3": 2}}):
        partition = {name: Configuration(degrees) for name, degrees in split.items()}
        require_same(oracle, SplitEvaluator(oracle.prepared), Strategy(partition=partition))
