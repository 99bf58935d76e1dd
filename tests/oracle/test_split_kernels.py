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
from simdev.oracle.splits.columns import (
    FIRST,
    LATEST,
    LIMIT,
    LONG,
    WORK_CELLS,
    Arena,
    rules_of,
)
from simdev.oracle.splits.columns import WORSE as EXCEEDS
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
        assert fault_at(start, 0, NEVER) == fault


def test_a_run_ends_where_a_queue_has_more_left_than_the_limit() -> None:
    for left, fault in ((3, 0), (4, EXCEEDS)):
        assert fault_at(FIRST + 7, left, 10) == fault


def fault_at(start: int, left: int, limit: int) -> int:
    """The fault of a queue that goes on at an instant, with ``left`` ps, under a limit in ps."""
    work: Any = SimpleNamespace(cell=[0] * WORK_CELLS, first=FIRST, bits=0)
    work.cell[LIMIT] = limit
    run.check(work, start, left)
    return int(work.cell[FAULT])


def test_tensors_may_have_any_number_of_dimensions() -> None:
    shape = (2,) * 12
    ops = leaf("x", *shape), Op("y", "relu", inputs=("x",), outputs=(tensor(*shape),))
    oracle = Oracle(Graph("deep", ops), cluster(), COSTS)
    for split in ({"x": {"d11": 2}, "y": {"d0": 2, "d11": 2}}, {"y": {"d3": 2}}):
        partition = {name: Configuration(degrees) for name, degrees in split.items()}
        require_same(oracle, SplitEvaluator(oracle.prepared), Strategy(partition=partition))


def on(*devices: int, **split: int) -> Configuration:
    """A split over the GPUs of these numbers, whose parts share the op's time."""
    return Configuration(split, tuple(f"gpu:{d}" for d in devices), "divided")


def test_many_rounds_of_one_instant_take_no_time() -> None:
    """More than 5 bits count: a chain of ops of no length, after some time."""
    ops = [Op("o0", "relu", inputs=("x",), outputs=(tensor(4, 4),), time="1 ps")]
    for i in range(1, 40):
        ops.append(replace(ops[0], name=f"o{i}", inputs=(f"o{i - 1}",), time="0 ps"))
    oracle = Oracle(Graph("still", (leaf("x", 4, 4), *ops)), cluster(), COSTS)
    strategy = Strategy(partition={one.name: on(0, 1, d0=2) for one in ops})
    require_same(oracle, SplitEvaluator(oracle.prepared), strategy)


def test_tensors_may_be_empty() -> None:
    ops = leaf("x", 0, 4), Op("y", "relu", inputs=("x",), outputs=(tensor(0, 4),), time="5 ps")
    far = replace(ops[1], name="z", inputs=("y",))
    oracle = Oracle(Graph("empty", (*ops, far)), cluster(), COSTS)
    for split in (on(0, 1, d1=2), on(0)):
        strategy = Strategy(partition={"y": split, "z": on(2, 3, d1=2)})
        require_same(oracle, SplitEvaluator(oracle.prepared), strategy)


def test_whoever_needs_any_part_of_a_leaf_is_sent_what_a_copy_holds() -> None:
    """The shape of "x" is read where no copy of it lies: half of it comes from gpu:0."""
    made = tensor(8, 4), tensor(4)
    ops = [
        Op("y", "relu", inputs=("x",), outputs=made[:1], time="2 us"),
        Op("z", "zeros", inputs=("x",), outputs=made[1:], time="1 us"),
    ]
    oracle = Oracle(Graph("any", (leaf("x", 8, 4), *ops)), cluster(), COSTS)
    strategy = Strategy(partition={"y": on(0, 1, d0=2), "z": on(2)})
    require_same(oracle, SplitEvaluator(oracle.prepared), strategy)


@pytest.mark.parametrize("back", [(1, 0), (0, 1), (1, 2), (1,)])
def test_a_backward_part_waits_for_the_statistics_of_its_box_or_else_of_the_first(
    back: tuple[int, ...],
) -> None:
    """The last two parts of the forward are on gpu:1; what the last one reads comes late."""
    rows, number = tensor(8, 4), tensor()
    loss = Op("loss", "nll_loss", inputs=("y", "t"), outputs=(number, number), time="4 us")
    y = Op("y", "relu", inputs=("x",), outputs=(rows,), time="4 us")
    dy = Op("dy", "nll_loss_backward", "backward", ("d", "y", "t", "loss:1"), (), (rows,))
    leaves = leaf("x", 8, 4), leaf("t", 8), leaf("d")
    graph = Graph("loss", (*leaves, y, loss, replace(dy, time="60 us")))
    links = [
        replace(link, latency="1 us" if "gpu:3" not in link.ends else "9 us")
        for link in cluster().links
    ]
    oracle = Oracle(graph, replace(cluster(), links=tuple(links)), COSTS)
    places = {"y": (2, 0, 1, 3), "loss": (0, 1), "dy": back}
    partition = {name: on(*there, d0=4) for name, there in places.items()}
    strategy = Strategy(partition=partition)
    require_same(oracle, SplitEvaluator(oracle.prepared), strategy)


def test_what_kernels_do_not_know_is_left_to_lowering() -> None:
    """An op that waits for another one, reserved names, outputs that are not made."""
    y = Op("y", "relu", inputs=("x",), outputs=(tensor(4, 4),), time="2 us")
    last = replace(y, name="last", inputs=("x",))
    view = replace(tensor(4, 4), view_of=0)
    forms = {
        "plain": last,
        "waits": replace(last, control_inputs=("y",)),
        "named": replace(last, name="a#b"),
        "views": replace(last, outputs=(tensor(4, 4), view)),
    }
    for form, one in forms.items():
        strategy = Strategy(partition={"y": on(0, 1, d0=2), one.name: on(2)})
        oracle = Oracle(Graph(form, (leaf("x", 4, 4), y, one)), cluster(), COSTS)
        assert (SplitEvaluator(oracle.prepared).start(strategy) is None) == (form != "plain")


def test_the_last_strategy_is_changed_only_where_configurations_alone_differ() -> None:
    oracle = Oracle(convolutions(), cluster(), COSTS)
    splits, parts = SplitEvaluator(oracle.prepared), {"x": Configuration({"sample": 4})}
    strategies = [Strategy(partition=parts, sync=sync) for sync in ("all-reduce", "sharded")]
    costs = [splits.cost(strategy) for strategy in strategies]
    assert costs == [oracle.in_full(strategy) for strategy in strategies]
    assert costs[0] != costs[1]
    wrong = parts | {"conv1": Configuration({"n": 3})}
    assert splits.cost(replace(strategies[1], partition=wrong)) is None


def test_a_transfer_without_a_route_has_no_limit() -> None:
    """A limit that the work before it exceeds does not hide that it cannot be."""
    whole = cluster()
    links = tuple(link for link in whole.links if "gpu:3" not in link.ends)
    oracle = Oracle(convolutions(), replace(whole, links=links), COSTS)
    session = oracle.session(Strategy({"*": "gpu:0"}, partition={"x": on(0)}))
    for limit in (None, 0.0):
        with pytest.raises(InputError, match="no route"):
            session.propose({"relu1": Configuration({}, ("gpu:3",))}, limit=limit)


@pytest.mark.parametrize("bandwidth", [10**9, 10**12 - 11, 4_398_046_511_093, 3 * 10**11 + 1])
def test_transfers_fit_their_integers(bandwidth: int) -> None:
    """The most bytes of a transfer, times what a byte takes, as whole ps and as a fraction."""
    rules = rules_of(Oracle(convolutions(), cluster(bandwidth=bandwidth), COSTS).prepared)
    assert int(rules.most_bytes) > 0
    for whole, rest, parts in zip(rules.whole, rules.rest, rules.parts, strict=True):
        assert int(rules.most_bytes) * int(whole) < 2**63
        assert int(rules.most_bytes) * int(rest) + int(parts) < 2**63
