"""Tofu: the bytes of a step, the recursion, its baselines, and the strategy that it becomes."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings

from simdev import Oracle, Scenario, load_scenario
from simdev.cluster import Cluster, Device
from simdev.errors import InputError
from simdev.graph import Graph, Op, Tensor
from simdev.search import confirm, search
from simdev.search.elimination import total
from simdev.search.tofu import BASELINES, Coarse, communication, recursive, strategy_of
from simdev.search.tofu.costs import Side, cuts, read_step, write_step
from simdev.search.tofu.plan import Level
from simdev.semantics import semantics_of
from simdev.strategy import Strategy
from strategies import UNIT, Tape, drawn

K80 = {"preset": "tofu-8x-k80"}


WINDOW = {"kernel_size": [3, 3], "stride": [1, 1], "padding": [0, 0]}


def scenario(model: str, **dims: int) -> Scenario:
    graph = {"model": model, **dims}
    return load_scenario({"version": 1, "graph": graph, "cluster": K80, "strategy": {"placement": {"*": "gpu:0"}}})


def alike(count: int) -> Cluster:
    return Cluster.all_to_all("alike", [Device(f"g{i}") for i in range(count)], bandwidth=UNIT)


def chain(tape: Tape) -> Graph:
    """Products of extents 4, 8 and 12; one may read what another made."""
    made: list[tuple[str, int, int]] = [("x", 4 * (1 + tape.number(3)), 4 * (1 + tape.number(3)))]
    ops = [Op("x", "input", outputs=(tensor(*made[0][1:]),))]
    for i in range(1 + tape.number(2)):
        source, m, k = made[tape.number(len(made))]
        n = 4 * (1 + tape.number(3))
        ops.append(Op(f"w{i}", "parameter", outputs=(tensor(k, n),)))
        ops.append(Op(f"y{i}", "matmul", inputs=(source, f"w{i}"), outputs=(tensor(m, n),)))
        made.append((f"y{i}", m, n))
    return Graph("chain", tuple(ops))


def tensor(*shape: int) -> Tensor:
    return Tensor(4 * shape[0] * shape[1], shape, "float32")


# One step


def test_a_product_sends_what_the_model_says():
    product_of = semantics_of("matmul", {}, [(8, 4), (4, 16)], [(8, 16)])
    ways = {one.axis: one for one in cuts(product_of, 2)}
    assert set(ways) == {"m", "n", "k"}
    a, b, c = Side(0, (8, 4), None, 32, 0), Side(1, (4, 16), None, 64, 0), Side(0, (8, 16), None, 128, 0)

    def sent(axis: str, stored: tuple[int, int, int]) -> float:
        way = ways[axis]
        read = read_step(product_of, way, a, stored[0], 2).sent + read_step(product_of, way, b, stored[1], 2).sent
        return read + write_step(way, c, stored[2], 2).sent

    assert sent("m", (0, 0, 0)) == 64  # B whole
    assert sent("m", (1, 0, 1)) == 64 + 32 / 2 + 128 / 2  # A stored by k, C by n
    assert sent("n", (0, 1, 1)) == 32  # A whole
    assert sent("k", (1, 0, 0)) == 128  # partial results of C
    assert sent("k", (1, 0, 1)) == 128


def test_windows_send_their_halos():
    window = semantics_of("max_pool2d", WINDOW, [(2, 4, 10, 10)], [(2, 4, 8, 8)] * 2)
    way = next(one for one in cuts(window, 2) if one.axis == "p")
    side = Side(0, (2, 4, 10, 10), None, 800, 0)
    assert read_step(window, way, side, 2, 2).sent == pytest.approx(2 * 2 * 4 * 10)  # a row each, of 10 x 8 points
    assert read_step(window, way, side, 0, 2).sent == pytest.approx(
        2 * 4 * 10 * 6
    )  # six of ten rows, half of them there


def test_what_was_fetched_before_is_not_fetched_again():
    """A weight that all of P workers need whole, stored in P parts: P - 1 copies of it move, however many steps."""
    product_of = semantics_of("matmul", {}, [(64, 4), (4, 16)], [(64, 16)])
    for parts in ([8], [4, 2], [2, 4], [2, 2, 2]):
        semantics, side, sent, groups = product_of, Side(1, (4, 16), None, 64, 0), 0.0, 1
        for count in parts:
            way = next(one for one in cuts(semantics, count) if one.axis == "m")
            step = read_step(semantics, way, side, 1, count)
            sent += groups * step.sent
            semantics, side, groups = way.following, step.side, groups * count
        assert sent == pytest.approx(7 * 64)


# The recursion


def brute(coarse: Coarse, parts: tuple[int, ...], before: tuple[tuple[int, ...], ...] = ()) -> float:
    """The least bytes over all choices in all steps."""
    level = Level(coarse)
    for at, values in enumerate(before):
        level.open(parts[at])
        level.advance(values)
    level.open(parts[len(before)])
    groups = 1
    for count in parts[: len(before)]:
        groups *= count
    best = float("inf")
    for values in product(*map(range, level.sizes)):
        sent = groups * total(level.terms, values)
        rest = brute(coarse, parts, (*before, values)) if len(before) + 1 < len(parts) else 0.0
        best = min(best, sent + rest)
    return best


@given(drawn(chain))
@settings(max_examples=6, deadline=None)
def test_a_step_is_the_best_of_all(graph):
    coarse = Coarse(graph, alike(2))
    assert recursive(coarse, 2).communication == pytest.approx(brute(coarse, (2,)))


def test_the_recursion_finds_the_best_of_all_steps_together():
    for m, k, n in ((8, 4, 12), (4, 8, 4), (12, 8, 4), (8, 8, 8)):
        ops = (
            Op("x", "input", outputs=(tensor(m, k),)),
            Op("w", "parameter", outputs=(tensor(k, n),)),
            Op("y", "matmul", inputs=("x", "w"), outputs=(tensor(m, n),)),
        )
        coarse = Coarse(Graph("one", ops), alike(4))
        assert recursive(coarse, 4).communication == pytest.approx(brute(coarse, (2, 2)))


def test_three_and_six_workers():
    one = scenario("rnnlm", length=2, hidden=240, vocabulary=960, batch=24)
    coarse = Coarse(one.graph, one.cluster)
    assert recursive(coarse, 3).parts == (3,)
    assert recursive(coarse, 6).parts == (3, 2)
    assert recursive(coarse, 6).communication > recursive(coarse, 3).communication


# Against others


SMALL = {"layers": 3, "length": 4, "hidden": 512, "vocabulary": 1000}


@pytest.mark.parametrize(("model", "dims"), [("alexnet", {}), ("rnnlm", SMALL)])
def test_no_baseline_sends_less(model, dims):
    one = scenario(model, **dims)
    found = communication(Coarse(one.graph, one.cluster), 8)
    assert list(found) == [*BASELINES, "tofu"]
    assert all(found["tofu"] <= sent for sent in found.values())
    assert found["allrow-greedy"] >= found["spartan"] >= found["equal-chop"] > found["tofu"]


# The strategy


def test_a_plan_runs_and_sends_no_more_than_the_model_says():
    one = scenario("alexnet")
    oracle = Oracle(one.graph, one.cluster, one.costs)
    found = search(oracle, "tofu")
    assert confirm(oracle, found) == ()
    trace = oracle.trace(found.strategy)
    sent = sum(int(n) for n, kind in zip(*columns(trace), strict=True) if kind == "transfer")
    assert 0 < sent <= found.objectives["communication_bytes"]
    own = {name: found.strategy.partition[name] for name in ("fc_8/weight", "images")}
    assert all(len(one.devices) == 8 for one in own.values())  # the host runs nothing
    gpus = tuple(f"gpu:{i}" for i in range(8))
    assert found.cost.step_ps < oracle(Strategy(short="data-parallel", devices=gpus)).step_ps


def columns(trace):
    frame = trace.to_frame()
    return frame.nbytes.tolist(), frame.kind.tolist()


@given(drawn(chain))
@settings(max_examples=20, deadline=None)
def test_a_simulated_step_sends_what_the_model_says(graph):
    """Exactly, where every reader fetches for itself and devices are not asked to hold tensors in another order."""
    cluster = alike(2)
    coarse = Coarse(graph, cluster)
    plan = recursive(coarse, 2)
    strategy = strategy_of(coarse, plan)
    trace = Oracle(graph, cluster, free(graph)).trace(strategy)
    sent = sum(int(n) for n, kind in zip(*columns(trace), strict=True) if kind == "transfer")
    assert sent <= plan.communication


def free(graph: Graph):
    from fractions import Fraction

    from simdev.profile import CostModel, DeviceSpec

    rates = {"float32": Fraction(10**12)}
    return CostModel(specs=(DeviceSpec("gpu", rates, Fraction(10**12)),))


def test_one_device_is_refused():
    one = scenario("lenet")
    with pytest.raises(InputError, match="two devices of one kind"):
        search(Oracle(one.graph, Cluster("one", (Device("g0", "k80"),), ()), one.costs), "tofu")
