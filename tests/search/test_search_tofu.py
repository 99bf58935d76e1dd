"""Tofu: the bytes of a step, the recursion, its baselines, and the strategy that it becomes."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings

from simdev import Oracle
from simdev.ground.errors import InputError
from simdev.nouns.cluster import Cluster, Device
from simdev.nouns.graph import Graph, Op
from simdev.nouns.models.backward import training_graph
from simdev.nouns.models.builder import StepBuilder
from simdev.nouns.models.ops import concat, cross_entropy, einsum, linear, relu
from simdev.nouns.semantics import semantics_of
from simdev.nouns.strategy import Strategy
from simdev.search import confirm, search
from simdev.search.elimination import minimise
from simdev.search.tofu.coarse import Coarse
from simdev.search.tofu.plan import (
    BASELINES,
    Level,
    Side,
    communication,
    cuts,
    read_step,
    recursive,
    strategy_of,
    write_step,
)
from worlds.clusters import joined
from worlds.costs import COSTS
from worlds.graphs import tensor
from worlds.scenarios import scenario_of
from worlds.tape import Tape, drawn

K80 = {"preset": "tofu-8x-k80"}
ALONE = {"placement": {"*": "gpu:0"}}


WINDOW = {"kernel_size": [3, 3], "stride": [1, 1], "padding": [0, 0]}


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


# One step


def test_a_product_sends_what_the_model_says():
    product_of = semantics_of("matmul", {}, [(8, 4), (4, 16)], [(8, 16)])
    ways = {one.axis: one for one in cuts(product_of, 2)}
    assert set(ways) == {"m", "n", "k"}
    a, b, c = (
        Side(0, (8, 4), None, 32, 0),
        Side(1, (4, 16), None, 64, 0),
        Side(0, (8, 16), None, 128, 0),
    )

    def sent(axis: str, stored: tuple[int, int, int]) -> float:
        way = ways[axis]
        read = (
            read_step(product_of, way, a, stored[0], 2).sent
            + read_step(product_of, way, b, stored[1], 2).sent
        )
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
    # a row each, of 10 x 8 points
    assert read_step(window, way, side, 2, 2).sent == pytest.approx(2 * 2 * 4 * 10)
    assert read_step(window, way, side, 0, 2).sent == pytest.approx(
        2 * 4 * 10 * 6
    )  # six of ten rows, half of them there


def test_what_was_fetched_before_is_not_fetched_again():
    """A weight that all of P workers need whole, stored in P parts: P - 1 copies of it move,
    however many steps.
    """
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


def dag(tape: Tape, train: bool) -> Graph:
    """Up to three products, sums of what was there and a product of it, joins and concatenations;
    extents 4, 8 and 12.

    With ``train`` the whole step: forward, backward and updates.
    """
    step = StepBuilder("dag", "float32", "sgd")
    made = [step.input("x", 4 * (1 + tape.number(3)), 4 * (1 + tape.number(3)))]
    for i in range(1 + tape.number(2 if train else 3)):
        # the loss depends on every parameter
        a = made[-1] if train else made[tape.number(len(made))]
        b = made[tape.number(len(made))]
        way = tape.number(5)
        with step.scope(f"op_{i}"):
            if way == 1 and a.shape == b.shape and a is not b:
                made.append(a + b)
            elif way == 2:
                made.append(a + linear(a, a.shape[1], "fc", bias=False))
            elif way == 3 and a.shape[1] == b.shape[0]:
                made.append(einsum("ab,bc->ac", a, b))
            elif way == 4 and a.shape[0] == b.shape[0] and a is not b:
                made.append(concat([a, b], 1))
            else:
                made.append(
                    linear(
                        relu(a) if tape.number(2) else a, 4 * (1 + tape.number(3)), "fc", bias=False
                    )
                )
    if not train:
        return Graph("dag", tuple(step.ops))
    labels = step.input("labels", made[-1].shape[0], dtype="int64")
    return training_graph(cross_entropy(made[-1], labels))


def every_choice(level: Level) -> np.ndarray:
    """The bytes of every choice of dimensions and axes, an axis of the array each."""
    found = np.zeros(level.sizes)
    for term in level.terms:
        table = term.table if term.variables[0] < term.variables[1] else term.table.T
        shape = [size if v in term.variables else 1 for v, size in enumerate(level.sizes)]
        found = found + table.reshape(shape)
    return found


def least_of_all(level: Level) -> float:
    """The least bytes over all dimensions of all tensors; each op takes the axis that is best
    then.
    """
    around: dict[int, list[tuple[int, np.ndarray]]] = {}
    for term in level.terms:
        around.setdefault(term.variables[1], []).append((term.variables[0], term.table))
    sizes, best = level.sizes[: len(level.dimensions)], np.inf
    for at in range(0, prod(sizes), 2**17):
        dims = np.unravel_index(np.arange(at, min(at + 2**17, prod(sizes))), sizes)
        sent = sum(sum(table[dims[t]] for t, table in own).min(axis=1) for own in around.values())
        best = min(best, float(np.min(sent)))
    return best


def best_of_both_steps(coarse: Coarse) -> float:
    """The least bytes of two two-way steps: all choices of the first, cheapest first, with the best
    second of each.
    """
    level, best = Level(coarse), np.inf
    level.open(2)
    first = every_choice(level)
    for at in np.argsort(first, axis=None, kind="stable").tolist():
        if first.flat[at] >= best:
            break
        second = Level(coarse)
        second.open(2)
        second.advance(np.unravel_index(at, first.shape))
        second.open(2)
        best = min(best, float(first.flat[at]) + 2 * minimise(second.sizes, second.terms).cost)
    return best


def require_exact_steps(coarse: Coarse, parts: tuple[int, ...]) -> None:
    level, plan, groups = Level(coarse), recursive(coarse, prod(parts)), 1
    assert plan.parts == parts
    assert plan.exact
    for count, sent in zip(parts, plan.bytes, strict=True):
        level.open(count)
        assert sent == pytest.approx(groups * least_of_all(level), rel=1e-12)
        level.advance(minimise(level.sizes, level.terms).values)
        groups *= count


@pytest.mark.parametrize("parts", [(2,), (2, 2), (3,), (3, 2)])
@given(drawn(dag, True))
@settings(max_examples=30, deadline=None)
def test_each_step_is_the_best_of_all(parts, graph):
    """Of graphs with branches, joins and residuals, with their backward and updates: over all
    tensors and ops.
    """
    require_exact_steps(Coarse(graph, joined(12)), parts)


@given(drawn(dag, False))
@settings(max_examples=50, deadline=None)
def test_the_bytes_of_every_single_choice_are_looked_at(graph):
    """That each op takes its best axis on its own loses nothing."""
    level = Level(Coarse(graph, joined(2)))
    level.open(2)
    assert least_of_all(level) == every_choice(level).min()


@pytest.mark.slow
def test_each_step_of_lenet_is_the_best_of_all():
    """The whole step, 3,145,728 ways to cut its tensors in the first of two steps."""
    one = scenario_of({"model": "lenet"}, K80, ALONE)
    coarse = Coarse(one.graph, one.cluster)
    level = Level(coarse)
    level.open(2)
    assert prod(level.sizes[: len(level.dimensions)]) == 3_145_728
    require_exact_steps(coarse, (2, 2))


def test_the_recursion_finds_the_best_of_both_steps_of_one_product():
    for m, k, n in ((8, 4, 12), (4, 8, 4), (12, 8, 4), (8, 8, 8)):
        ops = (
            Op("x", "input", outputs=(tensor(m, k),)),
            Op("w", "parameter", outputs=(tensor(k, n),)),
            Op("y", "matmul", inputs=("x", "w"), outputs=(tensor(m, n),)),
        )
        coarse = Coarse(Graph("one", ops), joined(4))
        assert recursive(coarse, 4).communication == best_of_both_steps(coarse)


def test_the_recursion_is_seldom_far_from_the_best_of_both_steps():
    """It takes the best first step, of several the first; a second one may be cheaper after another
    first.
    """
    random, ratios = np.random.default_rng(0), []
    for _ in range(30):
        coarse = Coarse(dag(Tape(random.bytes(60)), False), joined(4))
        found, best = recursive(coarse, 4).communication, best_of_both_steps(coarse)
        assert found >= best
        ratios.append(found / best if best else 1.0 + found)
    assert np.mean(np.array(ratios) == 1.0) > 0.9
    assert max(ratios) < 1.25


def test_a_cheapest_first_step_may_lead_to_a_dearer_second_one():
    """Two products in a row: six first steps send 512 bytes; after two of them the second sends 640
    more, else 576.
    """
    step = StepBuilder("two", "float32", "sgd")
    hidden = relu(linear(step.input("x", 8, 4), 12, "a", bias=False))
    linear(hidden, 12, "b", bias=False)
    coarse = Coarse(Graph("two", tuple(step.ops)), joined(4))
    assert recursive(coarse, 4).bytes == (512.0, 640.0)
    assert best_of_both_steps(coarse) == 1088.0


def test_three_and_six_workers():
    sizes = {"length": 2, "hidden": 240, "vocabulary": 960, "batch": 24}
    one = scenario_of({"model": "rnnlm", **sizes}, K80, ALONE)
    coarse = Coarse(one.graph, one.cluster)
    assert recursive(coarse, 3).parts == (3,)
    assert recursive(coarse, 6).parts == (3, 2)
    assert recursive(coarse, 6).communication > recursive(coarse, 3).communication


# Against others


SMALL = {"layers": 3, "length": 4, "hidden": 512, "vocabulary": 1000}


@pytest.mark.parametrize(("model", "dims"), [("alexnet", {}), ("rnnlm", SMALL)])
def test_no_baseline_sends_less(model, dims):
    one = scenario_of({"model": model, **dims}, K80, ALONE)
    found = communication(Coarse(one.graph, one.cluster), 8)
    assert list(found) == [*BASELINES, "tofu"]
    assert all(found["tofu"] <= sent for sent in found.values())
    assert found["allrow-greedy"] >= found["spartan"] >= found["equal-chop"] > found["tofu"]


# The strategy


def test_a_plan_runs_and_sends_no_more_than_the_model_says():
    one = scenario_of({"model": "alexnet"}, K80, ALONE)
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
    """Exactly, where every reader fetches for itself and devices are not asked to hold tensors in
    another order.
    """
    cluster = joined(2)
    coarse = Coarse(graph, cluster)
    plan = recursive(coarse, 2)
    strategy = strategy_of(coarse, plan, Strategy())
    trace = Oracle(graph, cluster, COSTS).trace(strategy)
    sent = sum(int(n) for n, kind in zip(*columns(trace), strict=True) if kind == "transfer")
    assert sent <= plan.communication


def test_one_device_is_refused():
    one = scenario_of({"model": "lenet"}, K80, ALONE)
    with pytest.raises(InputError, match="two devices of one kind"):
        search(Oracle(one.graph, Cluster("one", (Device("g0", "k80"),), ()), one.costs), "tofu")
