"""Forms of a placement, what is malformed, and what an oracle remembers and counts."""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import product, takewhile
from typing import Any

import numpy as np
import pytest

from benchmarks import common
from simdev import Oracle
from simdev.execution.check import check
from simdev.ground.errors import DeadlockError, InputError, MissingCostError
from simdev.nouns.cluster import Cluster, Device, Link
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.strategy import Order, Strategy
from simdev.oracle import Cost
from worlds.clusters import joined
from worlds.graphs import op
from worlds.scenarios import World, expected, oracle_of

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", ">i4")


# Forms of a placement


@cache
def grouped() -> World:
    """Ops a0 and a2 in one group, b1 and b3 in another, c alone; infeasible on one device."""
    ops = [
        op("a0", 1, size=2, colocate="a"),
        op("b1", 2, "a0", size=1, colocate="b"),
        op("a2", 3, "b1", size=2, colocate="a"),
        op("b3", 1, "a2", size=2, colocate="b"),
        op("c", 2, "a2", "b1"),
    ]
    return World.of(ops, joined(3, "device", memory=3), [0, 1, 0, 1, 2])


def test_groups_are_in_the_order_of_their_first_op():
    assert oracle_of(grouped()).groups == ((0, 2), (1, 3), (4,))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_arrays_of_any_type_over_ops_and_groups(dtype):
    oracle, cost = oracle_of(grouped()), expected(grouped())
    by_op, by_group = np.array([0, 1, 0, 1, 2], dtype), np.array([0, 1, 2], dtype)
    frozen, strided = by_op.copy(), np.repeat(by_op, 2)[::2]
    frozen.setflags(write=False)
    for form in (by_op, by_group, frozen, strided, by_op[::-1][::-1]):
        oracle = oracle_of(grouped())
        assert oracle(form) == cost
        assert oracle.step_ps(form) == cost.step_ps


@pytest.mark.parametrize(
    "form",
    [
        [0, 1, 0, 1, 2],
        (0, 1, 2),
        [np.int32(0), 1, np.uint8(2)],
        {"a0": "g0", "a2": "g0", "b1": "g1", "b3": "g1", "c": "g2"},
        {"a": "g0", "b*": "g1", "c": "g2"},
        Strategy({"*": "g1", "a": "g0", "c": "g2"}),
    ],
)
def test_other_forms(form):
    assert oracle_of(grouped())(form) == expected(grouped())


def test_an_array_is_not_kept():
    oracle, form = oracle_of(grouped()), np.array([0, 1, 2])
    before = oracle(form)
    form[:] = 0
    assert oracle(form) != before
    assert oracle([0, 1, 2]) == before


def test_names_and_traces_of_a_placement():
    oracle = oracle_of(grouped())
    assert oracle.named([0, 1, 2]) == grouped().strategy.placement
    trace = oracle.trace([0, 1, 2])
    assert (
        trace.start.tolist()
        == grouped().trace.start.tolist()
        == oracle.trace(grouped().strategy).start.tolist()
    )
    assert check(trace.task_graph, trace) == ()


def test_an_empty_graph():
    world = World.of([], Cluster("one", (Device("g0", memory=0),)), [])
    for form in ([], {}, np.zeros(0, int), np.zeros(0)):
        assert oracle_of(world)(form) == Cost(0.0, True, 0, 0, (0,))


def test_what_does_not_fit_is_an_answer():
    for order in (Order(), Order("program"), Order("priority", {"c": -1})):
        cost = oracle_of(grouped().ordered(order))([0, 0, 0])
        assert not cost.feasible
        assert cost.memory_excess == max(cost.peaks) - 3 > 0
        assert cost.step_ps == 9


# What is malformed


def unreachable() -> World:
    """g1 reaches g0 but not the other way; the switch runs no op; nobody knows how long c takes on
    a tpu.
    """
    devices = (Device("g0"), Device("g1"), Device("t0", "tpu"), Device("hub", "switch"))
    links = (Link(("g1", "g0"), 1, duplex="simplex"), Link(("g0", "t0"), 1))
    ops = [
        op("a", 1, size=1, colocate="x"),
        op("b", 1, "a"),
        Op("c", time={"gpu": 1}),
        op("d", 1, colocate="x"),
    ]
    return World.of(ops, Cluster("odd", devices, links, "device"), [0, 0, 0, 0])


MALFORMED = {
    "negative": ([0, -1, 0, 0], r"device -1 of \"b\" is not in 0\.\.3"),
    "too large": ([0, 4, 0, 0], r"device 4 of \"b\" is not in 0\.\.3"),
    "larger than int64": (np.array([0, 2**64 - 1, 0, 0], np.uint64), "is not in 0..3"),
    "larger than any integer": ([0, 2**70, 0, 0], "whole numbers"),
    "group too large": ([9, 0, 0], "is not in 0..3"),
    "float": ([0.0, 0.0, 0.0, 0.0], "whole numbers, got float64"),
    "nan": ([0, float("nan"), 0, 0], "whole numbers"),
    "bool": ([True] * 4, "whole numbers, got bool"),
    "text": (["g0"] * 4, "whole numbers"),
    "one text": ("g0", "whole numbers"),
    "nothing": (None, "whole numbers"),
    "a number": (0, "whole numbers"),
    "a set": ({0, 1}, "whole numbers"),
    "a table": ([[0, 0, 0, 0]], r"whole numbers, got int64 of shape \(1, 4\)"),
    "ragged": ([[0], [0, 0]], "whole numbers"),
    "too short": ([0, 0], r"must have 4 devices \(ops\) or 3 \(groups\)"),
    "too long": ([0] * 5, "must have 4 devices"),
    "empty": ([], "must have 4 devices"),
    "split group": ([0, 0, 0, 2], 'group "x" is split over g0, t0'),
    "switch": ([3, 0, 0, 3], '"hub" is a switch and runs no op'),
    "no route": ([0, 1, 0, 0], 'from "g0" to "g1", but no route joins them'),
    "unknown device": ({"*": "g9"}, 'no device named "g9"'),
    "unknown op": ({"*": "g0", "z": "g0"}, r'placement\["z"\]: no op'),
    "op without a device": ({"a": "g0", "d": "g0"}, 'op "b" has no device'),
    "number as a name": ({"*": 0}, "must map a name to a name"),
    "number as a key": ({0: "g0"}, "must map a name to a name"),
    "list as a device": ({"*": ["g0"]}, "must map a name to a name"),
    "strategy with an unknown device": (Strategy({"*": "g9"}), 'no device named "g9"'),
}


@pytest.mark.parametrize("order", [Order(), Order("program")], ids=["short", "lowered"])
@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_malformed_raises(name, order):
    form, message = MALFORMED[name]
    oracle = oracle_of(unreachable().ordered(order))
    for ask in (oracle, lambda form: oracle.batch([form, form], 2)):
        with pytest.raises(InputError, match=message) as found:
            ask(form)
        assert not isinstance(found.value, MissingCostError)
    if not isinstance(form, Strategy):
        with pytest.raises(InputError, match=message):
            oracle.step_ps(form)
    assert oracle.evaluations == 0


def test_a_missing_cost_raises_where_it_is_needed():
    for order in (Order(), Order("program")):
        oracle = oracle_of(unreachable().ordered(order))
        assert oracle([0, 0, 0, 0]).feasible
        for form in ([0, 0, 2, 0], {"*": "g0", "c": "t0"}, Strategy({"*": "g0", "c": "t0"})):
            with pytest.raises(MissingCostError, match='no time for "c" on a device of kind "tpu"'):
                oracle(form)


def test_contradictory_sequences_raise():
    world = World.of([op("a", 1), op("b", 1, "a")], Cluster("one", (Device("g0"),)), [0, 0])
    with pytest.raises(DeadlockError):
        oracle_of(world)(Strategy({"*": "g0"}, Order("fixed", sequence={"g0": ("b", "a")})))


# Cache, counts, threads, processes


def random_placements(count: int, seed: int = 0) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).integers(0, 3, (count, 3)))


def test_the_cache_knows_contents(monkeypatch):
    oracle = oracle_of(grouped())
    first = oracle([0, 1, 2])
    monkeypatch.setattr(oracle.evaluator("fifo"), "cost", None)  # whoever is asked again would fail
    by_name = {"a": "g0", "b": "g1", "c": "g2"}
    for form in (np.array([0, 1, 0, 1, 2], "int8"), by_name, Strategy(by_name)):
        assert oracle(form) is first
    assert oracle.evaluations == 4


def remembered(oracle: Oracle, placements: Sequence[Any]) -> int:
    """How many of the last answers to different placements the oracle gives again."""
    answers = list(map(oracle, placements))
    pairs = zip(reversed(placements), reversed(answers), strict=True)
    return sum(1 for _ in takewhile(lambda pair: oracle(pair[0]) is pair[1], pairs))


def test_the_cache_forgets_the_oldest():
    oracle = oracle_of(grouped(), cache=2)
    first = oracle([0, 1, 2])
    oracle([0, 0, 0])
    assert oracle([0, 1, 2]) is first
    assert remembered(oracle, [[1, 1, 1], [2, 2, 2]]) == 2
    assert oracle([0, 1, 2]) is not first
    assert oracle([0, 1, 2]) == first


def test_the_cache_holds_so_many_bytes(monkeypatch):
    """What is counted for an answer is what Python says that it takes, and a little more."""
    monkeypatch.setattr("simdev.oracle.CACHE_BYTES", 20_000)
    ops = tuple(Op(f"o{i}", time=1, param_bytes=2**40) for i in range(50))
    machine = joined(20, bandwidth=1)
    oracle = Oracle(Graph("long", ops), machine)
    rows = [[device] * 50 for device in range(20)]
    kept = remembered(oracle, rows)
    sizes = (
        sys.getsizeof(key) + sum(map(sys.getsizeof, (cost, cost.seconds, cost.peaks, *cost.peaks)))
        for key, cost in oracle._cache.items()
    )
    assert 10_000 < sum(sizes) + 150 * kept < 20_000
    assert remembered(Oracle(Graph("long", ops), machine, cache=3), rows) == 3


@pytest.mark.parametrize("size", [0, -1])
def test_no_cache(size):
    oracle = oracle_of(grouped(), cache=size)
    assert oracle([0, 1, 2]) is not oracle([0, 1, 2])
    assert oracle([0, 1, 2]) == oracle([0, 1, 2])


def test_orders_do_not_mix_in_the_cache():
    """b is urgent: under fifo it runs after a."""
    ops = [op("a", 3), op("b", 1), op("c", 2, "b")]
    cluster = joined(2)
    world, place = World.of(ops, cluster, [0, 0, 1]), {"a": "g0", "b": "g0", "c": "g1"}
    urgent, late = Order("priority", {"b": -1}), Order("priority", {"a": -1})
    oracle = Oracle(world.graph, cluster, order=urgent)
    for _ in range(2):
        assert oracle([0, 0, 1]).step_ps == 4
        assert oracle(Strategy(place, urgent)).step_ps == 4
        assert oracle(Strategy(place, late)).step_ps == 6
        assert oracle(Strategy(place)).step_ps == 6


@pytest.mark.parametrize("n_jobs", [-1, 0, 1, 2, 3, 16])
def test_a_batch_equals_serial_calls(n_jobs):
    placements = random_placements(50)
    oracle = oracle_of(grouped())
    found = oracle.batch(iter(placements), n_jobs)
    assert found == [oracle_of(grouped())(one) for one in placements]
    assert oracle.evaluations == 50
    assert oracle.batch([], n_jobs) == []
    assert oracle.batch(placements[:1], n_jobs) == found[:1]
    assert oracle.batch(np.array(placements), n_jobs) == found


def test_evaluations_and_seconds_are_counted():
    oracle = oracle_of(grouped())
    assert (oracle.evaluations, oracle.cpu_seconds) == (0, 0.0)
    for one in random_placements(20):
        oracle(one)
    assert oracle.evaluations == 20
    assert oracle.cpu_seconds > 0
    assert "20 evaluations" in repr(oracle)


def test_pickling_keeps_the_question_and_the_counts():
    oracle = Oracle(grouped().graph, grouped().cluster, order=Order("priority", {"c": -1}), cache=7)
    placements = random_placements(20)
    found = [oracle(one) for one in placements]
    copy = pickle.loads(pickle.dumps(oracle))
    assert (copy.evaluations, copy.cpu_seconds) == (20, oracle.cpu_seconds)
    assert copy.order == oracle.order
    assert [copy(one) for one in placements] == found
    assert remembered(copy, list(map(list, product(range(3), repeat=3)))) == 7
    assert copy.groups == oracle.groups


def test_eight_threads_at_once_equal_serial_calls():
    prepared = common.layered(300, 8, "half-duplex")
    placements = list(np.random.default_rng(6).integers(0, 8, (200, 300)))
    serial = Oracle(prepared.graph, prepared.cluster)
    expected = [serial(one) for one in placements]
    oracle, together = Oracle(prepared.graph, prepared.cluster, cache=20), threading.Barrier(8)

    def all_of_them(shift: int) -> list[Cost]:
        together.wait()
        order = [*range(shift, len(placements)), *range(shift)]
        found = {i: oracle(placements[i]) for i in order}
        return [found[i] for i in range(len(placements))]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(all_of_them, range(0, 200, 25))) == [expected] * 8
    assert oracle.evaluations == 1600


def test_without_numba_everything_is_simulated(monkeypatch):
    monkeypatch.setattr("simdev.oracle.find_spec", lambda name: None)
    oracle = oracle_of(grouped())
    assert oracle.evaluator("fifo") is None
    assert oracle([0, 1, 2]) == expected(grouped())
    assert oracle.trace([0, 1, 2]).engine == "simpy"


def test_a_shared_parameter_weighs_once_at_home_and_as_a_copy_elsewhere():
    ops = [
        Op("w", "parameter", outputs=(Tensor(8),), param_bytes=8, time=0),
        op("a", 1, "w"),
        op("b", 1, "w"),
    ]
    cluster = joined(2)
    world = World.of(ops, cluster, [0, 0, 1])
    assert oracle_of(world)([0, 0, 1]).peaks == expected(world).peaks == (8, 8)
