"""Branch and bound over the configurations of layers, against plain enumeration; FlexFlow's walks
against both.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from simdev import Oracle, Scenario
from simdev.nouns.strategy import Configuration, Strategy
from simdev.search import confirm, search
from simdev.search.soap import exhaustive, flexflow
from simdev.search.soap.exhaustive import Bounds, PartTimes, Scopes, branch_and_bound, covering
from simdev.search.soap.flexflow import Space, space_of, walks
from simdev.search.soap.layers import Layers, entries
from simdev.search.trial import SpentError, Trial
from worlds.scenarios import scenario_of

P100 = {"preset": "flexflow-p100", "nodes": 1}
REDUCED = {"short": "data-parallel", "sync": "all-reduce"}
MODELS = {"lenet": {}, "rnnlm": {"length": 2}, "alexnet": {"batch": 64}}


def oracle_of(one: Scenario, **fields: str) -> Oracle:
    return Oracle(one.graph, replace(one.cluster, **fields), one.costs)


def some(space: Space, seed: int, most: int, free: int = 99) -> Space:
    """At most so many configurations of each layer, drawn at random; of all but ``free`` layers
    one.
    """
    random = np.random.default_rng(seed)
    taken = random.permutation(len(space.choices))[:free]
    counts = [most if layer in taken else 1 for layer in range(len(space.choices))]
    drawn = [
        sorted(random.permutation(len(own))[:n].tolist())
        for own, n in zip(space.choices, counts, strict=True)
    ]
    kept = (
        tuple(own[at] for at in picked) for own, picked in zip(space.choices, drawn, strict=True)
    )
    return replace(space, choices=tuple(kept))


def simulated(oracle: Oracle, space: Space, like: Strategy) -> np.ndarray:
    """The step in ps of every strategy, an axis a layer."""
    sizes = [len(own) for own in space.choices]
    steps = np.zeros(sizes, np.int64)
    for choice in product(*map(range, sizes)):
        chosen = [own[at] for own, at in zip(space.choices, choice, strict=True)]
        steps[choice] = oracle(space.strategy(chosen, like)).step_ps
    return steps


CASES = [
    ("lenet", "all-reduce", {}, 2, 6),
    ("lenet", "parameter-server", {"queues": "egress"}, 2, 5),
    ("lenet", "sharded", {"transfer": "multicast"}, 2, 3),
    ("lenet", "all-reduce", {"queues": "fair"}, 2, 4),
    ("rnnlm", "all-reduce", {}, 3, 3),
    ("rnnlm", "sharded", {"transfer": "per-consumer"}, 2, 3),
    ("alexnet", "all-reduce", {"queues": "half-duplex"}, 2, 5),
    ("lenet", {"policy": "p3", "slice_parameters": 10_000}, {"queues": "parallel"}, 2, 4),
]


@pytest.mark.parametrize(("model", "sync", "fields", "most", "free"), CASES)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_no_completion_is_faster_than_its_bound(trial_of, model, sync, fields, most, free, seed):
    """And branch and bound finds the least of all."""
    one = scenario_of({"model": model, **MODELS[model]}, P100, {**REDUCED, "sync": sync})
    oracle = oracle_of(one, **fields)
    space = some(space_of(Layers(oracle.graph, oracle.cluster)), seed, most, free)
    steps = simulated(oracle, space, one.strategy)
    parts = PartTimes(oracle, space, one.strategy)
    parts.fill()
    for count in range(len(space.choices) + 1):
        least = steps.min(axis=tuple(range(count, steps.ndim)))
        rows = np.array(list(product(*map(range, steps.shape[: max(count - 1, 0)]))), np.int64)
        bounds = Bounds(parts, count).below(rows, 2**62)
        assert (bounds.reshape(least.shape) <= least).all()
        assert (bounds > 0).all()
    trial = trial_of(oracle, one.strategy)
    branch_and_bound(trial, space)
    assert trial.best.strategy[1].step_ps == steps.min()
    assert trial.best.details["exact"]
    assert trial.best.details["bound_s"] == steps.min() / 1e12
    assert trial.budget.evaluations < steps.size + 4 * len(space.choices) ** 2


@pytest.mark.parametrize(
    "model",
    [pytest.param(model, marks=[pytest.mark.slow] if model != "lenet" else []) for model in MODELS],
)
def test_how_an_op_lies_hangs_on_its_scope_alone(model):
    """Tables filled from a few strategies hold what any other one tells."""
    one = scenario_of({"model": model, **MODELS[model]}, P100, REDUCED)
    oracle = oracle_of(one)
    space = some(space_of(Layers(oracle.graph, oracle.cluster)), 3, 3)
    parts = PartTimes(oracle, space)
    assert parts.fill() <= 3 ** max(map(len, parts.scope.values()))
    tables = [*parts.duration.values(), *parts.lag.values()]
    before = [table.copy() for table in tables]
    assert all((table >= 0).any() for table in parts.duration.values())
    random = np.random.default_rng(0)
    for _ in range(15):
        parts.learn([int(random.integers(len(own))) for own in space.choices])
    assert all(np.array_equal(*pair) for pair in zip(before, tables, strict=True))


def test_scopes_of_lenet():
    one = scenario_of({"model": "lenet"}, P100, REDUCED)
    layers = Layers(one.graph, one.cluster)
    scopes, at = Scopes(space_of(layers)), one.graph.index
    assert scopes.of_op[at["conv_2/tanh"]] == {2}
    # what comes back is cut as it was made
    assert scopes.of_op[at["grad/conv_2/tanh_backward"]] == {2, 3, 4}
    assert scopes.of_op[at["update/fc_5/weight"]] == {6}
    assert scopes.of_edge(at["block_3/tanh"], at["block_4/fc/linear"]) == {4, 5}


def test_combinations_are_covered():
    chosen = list(covering([2, 3, 4], [(0, 1), (1, 2), (2,), ()]))
    assert {(a, b) for a, b, _ in chosen} == set(product(range(2), range(3)))
    assert {(b, c) for _, b, c in chosen} == set(product(range(3), range(4)))
    assert len(chosen) == 12


@pytest.mark.parametrize("model", MODELS)
def test_the_bound_of_one_device_is_its_work(model):
    """All that it does, one op after the other; of what is there on demand (zeros, ones) some wait
    for ops that they look at, and count.
    """
    one = scenario_of({"model": model, **MODELS[model]}, P100, REDUCED)
    oracle = oracle_of(one)
    space = space_of(Layers(oracle.graph, oracle.cluster))
    space = replace(space, choices=tuple(own[:1] for own in space.choices))
    parts = PartTimes(oracle, space)
    assert parts.fill() == 1
    bound = Bounds(parts, len(space.choices)).below(
        np.zeros((1, len(space.choices) - 1), np.int64), 2**62
    )
    tasks = oracle.trace(space.strategy([own[0] for own in space.choices])).task_graph.tasks
    on_demand = {one.graph.ops[i].name for i in space.layers.dataflow.on_demand}
    durations = list(zip(tasks.name, tasks.duration.tolist(), strict=True))
    assert bound >= sum(ps for name, ps in durations if name not in on_demand)
    assert bound <= sum(ps for _, ps in durations)
    assert bound > 0.998 * simulated(oracle, space, Strategy()).min() - 3_000_010


def test_an_end_before_the_end_tells_what_was_proved(trial_of):
    one = scenario_of({"model": "lenet"}, P100, REDUCED)
    space = some(space_of(Layers(one.graph, one.cluster)), 0, 4)
    trial = trial_of(oracle_of(one))
    branch_and_bound(trial, space)
    whole = trial.best.strategy[1].step_ps
    found = search(one, "exhaustive", 30)
    assert found.provenance["ended"] == "budget"
    assert (found.provenance["evaluations"], found.details["exact"]) == (30, False)
    assert found.details["bound_s"] * 1e12 <= whole
    assert found.details["space"] == 743_496_600
    assert confirm(oracle_of(one), found) == ()


def test_a_table_too_large_only_weakens_bounds(monkeypatch):
    one = scenario_of({"model": "lenet"}, P100, REDUCED)
    oracle = oracle_of(one)
    space = some(space_of(Layers(oracle.graph, oracle.cluster)), 5, 2)
    steps = simulated(oracle, space, Strategy())
    every = PartTimes(oracle, space)
    monkeypatch.setattr(exhaustive, "MOST", 3)
    parts = PartTimes(oracle, space)
    parts.fill()
    assert len(parts.duration) < len(every.duration)
    rows = np.array(list(product(*map(range, steps.shape[:-1]))), np.int64)
    assert (Bounds(parts, steps.ndim).below(rows, 2**62).reshape(steps.shape) <= steps).all()


# Whole spaces


def halves_swapped(space: Space) -> list[list[list[int]]]:
    """By renaming of devices and layer, the choice that each choice becomes.

    Devices i and i ^ mask change names: that swaps halves of what is cut, so all of it costs the
    same.
    """
    keys = [[_key(one, 0) for one in own] for own in space.choices]
    found = []
    for mask in (1, 2, 3):
        renamed = [[_key(one, mask) for one in own] for own in space.choices]
        if all(set(own) == set(other) for own, other in zip(keys, renamed, strict=True)):
            found.append(
                [
                    [own.index(key) for key in other]
                    for own, other in zip(keys, renamed, strict=True)
                ]
            )
    return found


def _key(one: Configuration, mask: int) -> tuple[object, frozenset[int]]:
    return tuple(one.split.items()), frozenset(
        int(name.removeprefix("gpu:")) ^ mask for name in one.devices
    )


def best_of_space(oracle: Oracle, space: Space) -> tuple[int, int]:
    """The least step in ps, and how many strategies were simulated; of those alike but for names,
    the first.
    """
    layers, alike, asked, best = space.layers, halves_swapped(space), 0, 2**62
    current: tuple[int, ...] = (0,) * len(space.choices)
    session = oracle.session(space.strategy([own[0] for own in space.choices]))
    for choice in product(*(range(len(own)) for own in space.choices)):
        if any(tuple(t[v] for t, v in zip(one, choice, strict=True)) < choice for one in alike):
            continue
        change: dict[str, Configuration | None] = {}
        for number, (old, new) in enumerate(zip(current, choice, strict=True)):
            if old != new:
                layer = layers.all[number]
                change |= dict.fromkeys(
                    one for one in entries(layers, layer, space.choices[number][old])
                )
                change |= entries(layers, layer, space.choices[number][new])
        best = min(best, session.propose(change).step_ps)
        session.accept()
        current, asked = choice, asked + 1
    return best, asked


def trimmed(space: Space, devices: set[str], parts: set[int]) -> Space:
    """Only samples and parameters are cut; what is whole stands on some devices; only so many
    parts.
    """
    kinds = [
        {axis.axis for axis in layer.axes if axis.kind != "attribute"} for layer in space.layers.all
    ]
    return replace(
        space,
        choices=tuple(
            tuple(
                one
                for one in own
                if set(one.split) <= axes
                and len(one.devices) in parts
                and (one.split or set(one.devices) <= devices)
            )
            for own, axes in zip(space.choices, kinds, strict=True)
        ),
    )


def bounded(trial: Trial, space: Space) -> int:
    """The least step in ps, with proof."""
    branch_and_bound(trial, space)
    assert trial.best.details["exact"]
    return trial.best.strategy[1].step_ps


@pytest.mark.slow
@pytest.mark.parametrize("model", ["lenet", "rnnlm"])
def test_branch_and_bound_finds_what_plain_enumeration_finds(trial_of, model):
    """The whole space of RNNLM; of LeNet layers whole on one of two devices or in four parts, no
    attributes cut.
    """
    one = scenario_of({"model": model, **MODELS[model]}, P100, REDUCED)
    oracle = oracle_of(one)
    space = space_of(Layers(one.graph, one.cluster))
    if model == "lenet":
        space = trimmed(space, {"gpu:0", "gpu:1"}, {1, 4})
    assert space.size == {"lenet": 54_000, "rnnlm": 139_755}[model]
    best, asked = best_of_space(oracle, space)
    assert asked >= space.size // 4  # of those alike the first
    assert bounded(trial_of(oracle), space) == best


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "size", "budget", "temperature"),
    [("lenet", 743_496_600, 60_000, 0.03), ("rnnlm", 139_755, 6000, 0.01)],
)
def test_walks_find_the_optimum_of_the_whole_space(
    trial_of, monkeypatch, model, size, budget, temperature
):
    """FlexFlow, section 8.4: all configurations of all layers on aligned, contiguous devices of
    four.
    """
    one = scenario_of({"model": model, **MODELS[model]}, P100, REDUCED)
    oracle = oracle_of(one)
    space = space_of(Layers(one.graph, one.cluster))
    assert space.size == size
    best = bounded(trial_of(oracle), space)
    monkeypatch.setattr(flexflow, "TEMPERATURE", temperature)
    for seed in range(3):
        trial = trial_of(oracle, limit=budget, seed=seed)
        with suppress(SpentError):
            walks(trial, space, temperature)
        assert trial.best.strategy[1].step_ps == best
