"""Moves of split ops: changed, kept or taken back, they answer as a full rebuild does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings

from simdev import Oracle
from simdev.ground.errors import InputError
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.memory import MemoryModel
from simdev.nouns.models import build
from simdev.nouns.strategy import Collectives, Configuration, Order, Strategy
from simdev.oracle import Cost, cost_of
from simdev.oracle.session import SplitSession
from simdev.oracle.splits.evaluator import SplitEvaluator
from split_walks import make_walk
from worlds.clusters import limited
from worlds.costs import COSTS
from worlds.graphs import leaf, tensor
from worlds.sharded import Case
from worlds.split_graphs import cluster, convolutions, linears
from worlds.tape import drawn

# The compiled path knows no buckets.
PARALLEL = Strategy(short="data-parallel", sync="all-reduce")


def rebuilt(simulate: Callable[[Strategy], Cost], strategy: Strategy) -> Any:
    """The cost of a strategy by a full rebuild; the problems where there is none."""
    try:
        return simulate(strategy)
    except InputError as error:
        return error.problems


def full(session: SplitSession, changes: dict[str, Any]) -> Any:
    """The same of a session's strategy with changes."""
    partition = {
        name: one for name, one in session.strategy.partition.items() if name not in changes
    }
    partition |= {name: one for name, one in changes.items() if one is not None}
    placement = {
        name: one for name, one in session.strategy.placement.items() if name not in changes
    }
    return rebuilt(
        session.simulate, replace(session.strategy, partition=partition, placement=placement)
    )


@settings(max_examples=30)
@given(drawn(make_walk))
def test_moves_equal_full_rebuilds(walk: tuple[Case, list[tuple[dict[str, Any], int]]]) -> None:
    case, moves = walk
    session = Oracle(case.graph, case.cluster, COSTS).session(case.strategy)
    for changes, fate in moves:
        expected = full(session, changes)
        if isinstance(expected, tuple):
            with pytest.raises(InputError) as error:
                session.propose(changes)
            assert error.value.problems == expected
            continue
        found = session.propose(changes)
        assert replace(expected, peaks=()) == found
        if fate == 0:
            assert session.accept() == found
        elif fate == 1:
            session.reject()
    assert replace(session.simulate(session.strategy), peaks=()) == session.cost


@settings(max_examples=12)
@given(drawn(make_walk))
def test_memory_is_told_where_there_is_a_limit(
    walk: tuple[Case, list[tuple[dict[str, Any], int]]],
) -> None:
    case, moves = walk
    model = MemoryModel(rounding="pytorch", optimizer="adam", context=10_000)
    session = Oracle(case.graph, limited(case.cluster, 40_000), COSTS, memory=model).session(
        case.strategy
    )
    for changes, fate in moves:
        expected = full(session, changes)
        if not isinstance(expected, tuple):
            assert session.propose(changes) == expected
            if fate == 0:
                session.accept()


@pytest.fixture(scope="module")
def inception() -> Graph:
    return build("inception-v3", batch=8, size=75)


@pytest.mark.parametrize(
    ("sync", "checked"),
    [
        ("all-reduce", {"concat", "linear"}),
        pytest.param("all-reduce", {"conv2d", "max_pool2d"}, marks=pytest.mark.slow),
        pytest.param("parameter-server", {"linear"}, marks=pytest.mark.slow),
        pytest.param("sharded", {"linear"}, marks=pytest.mark.slow),
    ],
)
def test_a_whole_model(inception: Graph, sync: str, checked: set[str]) -> None:
    """Branches, concatenations, batch normalisation; moves of pinned ops take the short way, and
    few tasks change. A rebuild in full takes two seconds: so many moves are ``checked`` by it.
    """
    oracle = Oracle(inception, cluster("link"), COSTS)
    session = oracle.session(Strategy(short="data-parallel", sync=sync))
    pinned = session.pinned()
    assert pinned.cost == session.cost
    assert len(pinned.strategy.partition) > 250
    kinds = {op.kind: op.name for op in inception.ops if op.phase == "forward"}
    for kind, one in (
        ("conv2d", Configuration({"k": 2, "sample": 2})),
        ("max_pool2d", Configuration({"c": 2}, ("gpu:0", "gpu:3"))),
        ("concat", Configuration({"sample": 2}, ("gpu:2", "gpu:3"))),
        ("linear", Configuration({"n": 4})),
    ):
        cost = pinned.propose(kinds[kind], one)
        assert pinned.tasks is not None
        pinned.accept()
        if kind in checked:
            assert replace(oracle.in_full(pinned.strategy), peaks=()) == cost
        assert cost == pinned.cost


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"queues": "fair"}, {}),
        ({"transfer": "per-consumer"}, {}),
        ({"transfer": "multicast"}, {}),
        ({}, {"tensors": {"relu1": {1: 2}}}),
        ({}, {"order": Order("priority", {"conv2": 1})}),
        ({}, {"sync": "bucketed"}),
        ({}, {"collectives": Collectives(cost="expanded")}),
        ({}, {"collectives": Collectives(slowdown=Fraction(13, 10))}),
    ],
)
def test_what_the_short_way_does_not_know_goes_the_long_one(other: Any, told: Any) -> None:
    oracle = Oracle(convolutions(), replace(cluster(), **other), COSTS)
    strategy = Strategy(partition={"x": Configuration({"sample": 4})}, **told)
    assert SplitEvaluator(oracle.prepared).start(strategy) is None
    session = oracle.session(strategy)
    assert session.tasks is None
    assert session.propose("conv2", Configuration({"sample": 2})) == replace(oracle.in_full(
        replace(strategy, partition={**strategy.partition, "conv2": Configuration({"sample": 2})})
    ), peaks=())  # fmt: skip
    session.accept()
    assert session.strategy.partition["conv2"].split == {"sample": 2}


@pytest.mark.parametrize("algorithm", ["tree", "direct", "hierarchical"])
def test_collectives_of_a_strategy(algorithm: str) -> None:
    oracle = Oracle(convolutions(), cluster("link"), COSTS)
    strategy = Strategy(
        short="data-parallel", sync="all-reduce", collectives=Collectives(algorithm)
    )
    session = oracle.session(strategy)
    assert session.tasks is not None
    assert session.cost == replace(oracle.in_full(strategy), peaks=())
    assert oracle("data-parallel") == oracle.in_full(Strategy(short="data-parallel"))


def test_mistakes_leave_a_session_as_it_was() -> None:
    session = Oracle(linears(), cluster(), COSTS).session("data-parallel")
    before = session.cost
    for name, one, reason in (
        ("nowhere", Configuration(), 'no op named "nowhere"'),
        ("fc1", Configuration({"sample": 3}), 'partition\\["fc1"\\].*degree'),
        ("fc1", Configuration({"n": 2}, ("gpu:0", "gpu:0")), "listed twice"),
        ("fc1", Configuration({"z": 2}), "z"),
    ):
        with pytest.raises(InputError, match=reason):
            session.propose(name, one)
        with pytest.raises(InputError, match="nothing is proposed"):
            session.accept()
    assert session.cost == before
    session.propose("fc1", Configuration({"n": 2}))
    session.reject()
    assert session.propose("fc1", None) == before


def test_sessions_share_what_they_know() -> None:
    oracle = Oracle(linears(), cluster(), COSTS)
    first, second = oracle.session("data-parallel"), oracle.session("data-parallel")
    move = Configuration({"n": 4})
    assert first.propose("fc2", move) == second.propose("fc2", move)
    first.accept()
    second.reject()
    assert second.propose("fc3", move) != first.cost


def full_of(session: SplitSession) -> Any:
    return replace(session.simulate(session.strategy), peaks=())


@pytest.mark.parametrize("queues", ["link", "fair"])
@pytest.mark.parametrize(
    ("short", "devices"),
    [("model-parallel", ()), ("expert", ("gpu:1", "gpu:3")), ("data-parallel", ("gpu:2",))],
)
def test_short_forms_that_only_place_ops(queues: str, short: str, devices: tuple[str, ...]) -> None:
    """What they say nothing of follows, also where the long way answers, and from the strategy that
    a session tells.
    """
    graph = build("rnnlm", batch=4, length=2, hidden=4, layers=1, vocabulary=8)
    oracle = Oracle(graph, limited(cluster(queues), 10**6), COSTS)
    strategy = Strategy(short=short, devices=devices)
    session = oracle.session(strategy)
    assert (
        oracle(strategy)
        == session.cost
        == oracle.in_full(strategy)
        == oracle.in_full(session.strategy)
    )
    move = {"classifier/linear": Configuration({"sample": 2}, ("gpu:0", "gpu:1"))}
    assert session.propose(move) == full(session, move)


def test_a_session_may_end_where_nothing_is_split() -> None:
    """Then every op has to be placed, as in any other strategy."""
    graph = linears()
    strategy = Strategy(partition={"x": Configuration()}, placement={"fc1": "gpu:1"})
    session = Oracle(graph, cluster(), COSTS).session(strategy)
    before = session.cost
    with pytest.raises(InputError, match="has no device") as error:
        session.propose("x", None)
    assert error.value.problems == full(session, {"x": None})
    assert session.cost == before == full_of(session)


def test_an_op_may_have_the_name_of_a_group() -> None:
    graph = linears()
    ops = tuple(replace(op, colocate="fc1") if op.name in ("fc2", "dy") else op for op in graph.ops)
    session = Oracle(Graph("groups", ops), cluster(), COSTS).session(PARALLEL)
    assert session.tasks is not None
    for one in (Configuration(devices=("gpu:3",)), Configuration(devices=("gpu:2",)), None):
        expected = full(session, {"fc1": one})
        assert session.propose("fc1", one) == replace(expected, peaks=())
        session.accept()
        assert session.cost == full_of(session)


def test_degrees_that_equal_whole_numbers_are_none() -> None:
    session = Oracle(linears(), cluster(), COSTS).session(PARALLEL)
    for known, degree in ((2, 2.0), (1, True)):
        session.propose("fc1", Configuration({"n": known}))
        with pytest.raises(InputError, match="degree must be a whole number"):
            session.propose("fc1", Configuration({"n": degree}))  # type: ignore[dict-item]


def test_a_mistake_drops_the_proposal_before_it() -> None:
    session = Oracle(linears(), cluster(), COSTS).session("data-parallel")
    for mistake in ("nowhere", "fc1"):
        session.propose("fc1", Configuration({"n": 2}))
        with pytest.raises(InputError):
            session.propose(mistake, Configuration({"n": 3}))
        with pytest.raises(InputError, match="nothing is proposed"):
            session.accept()
        assert session.cost == full_of(session)


def test_ops_with_views_among_their_outputs_stay_whole() -> None:
    half = Tensor(32, (2, 4), "float32", view_of=0)
    ops = (
        leaf("x", 4, 4),
        Op("a", "relu", inputs=("x",), outputs=(tensor(4, 4), half)),
        Op("b", "relu", inputs=("a:1",), outputs=(tensor(2, 4),)),
        Op("c", "relu", inputs=("a",), outputs=(tensor(4, 4),)),
    )
    oracle = Oracle(Graph("views", ops), cluster(), COSTS)
    with pytest.raises(
        InputError, match=r'partition\["a"\]\.split: op "a" cannot be split: output 1 is a view'
    ):
        oracle.in_full(Strategy(partition={"a": Configuration({"sample": 2})}))
    session = oracle.session(Strategy(partition={"x": Configuration(devices=("gpu:0",))}))
    move = {"b": Configuration({"sample": 2}), "c": Configuration({"d0": 2})}
    assert session.propose(move) == replace(full(session, move), peaks=())
    found = oracle.in_full(Strategy(partition={"x": Configuration(devices=("gpu:0",)), **move}))
    assert found == oracle(Strategy(partition={"x": Configuration(devices=("gpu:0",)), **move}))
    # "x" and "a", without its view; half of what "c" reads and makes
    assert found.peaks[:2] == (64 + 64, 32 + 32)
    with pytest.raises(InputError, match='op "a" cannot be split'):
        session.propose("a", Configuration({"sample": 2}))
    assert session.cost == full_of(session)


def test_sums_are_cut_anew_where_their_first_reader_follows_them() -> None:
    """The pool made its own cut of the sums of conv2; once it follows, they are cut as for one that
    wants none.
    """
    partition = {
        "x": Configuration({"d2": 2}, ("gpu:1",)),
        "pool": Configuration({"p": 2}, ("gpu:3", "gpu:1"), "divided"),
        "conv2": Configuration({"c": 2}, ("gpu:3",)),
    }
    session = Oracle(convolutions(), cluster("link"), COSTS).session(Strategy(partition=partition))
    found = session.propose("pool", None)
    assert session.tasks is not None
    assert found == replace(full(session, {"pool": None}), peaks=())


@pytest.mark.parametrize("size", [7, 63, 65])
def test_bytes_of_parts_are_rounded_up(size: int) -> None:
    """Tensors of 16 elements whose bytes are no multiple of them."""
    odd = Tensor(size, (4, 4), "float32")
    ops = (
        replace(leaf("x", 4, 4), outputs=(odd,)),
        Op("a", "relu", inputs=("x",), outputs=(odd,)),
        Op("b", "relu", inputs=("a",), outputs=(odd,)),
    )
    oracle = Oracle(Graph("odd", ops), cluster(bandwidth=1000), COSTS)
    for first, second in (("sample", "d1"), ("d1", "sample")):
        cut = Strategy(partition={"a": Configuration({first: 2}), "b": Configuration({second: 4})})
        split = SplitEvaluator(oracle.prepared).start(cut)
        assert split is not None
        assert split.cost() == cost_of(oracle.trace(cut))
