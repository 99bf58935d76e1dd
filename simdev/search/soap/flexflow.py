"""FlexFlow (Jia, Zaharia, Aiken, "Beyond Data and Model Parallelism for Deep Neural Networks",
MLSys 2019): random walks over the configurations of layers. The method "flexflow" of
``search.methods``.

``exhaustive.py`` searches the same space from the same starts. One walk after another (``_walk``)
and walks in chains (``Walking``, for ``search.chains``) share a step (``_step``); each has its own
rule of when a walk ends, and when it returns to its best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from ...ground.errors import InputError
from ...lowering import expanded
from ...nouns.strategy import Configuration, Strategy, resolve_partition
from ...oracle import Cost
from ..chains import Chain, run_chains
from ..space import WORST, energy, rank_of
from ..trial import SearchProblem, Trial
from .layers import PLAIN, Layer, Layers, changes, strategy_of

STARTS = ("data-parallel", "expert")
# Relative to the cost of the start: a worsening by this share is accepted with probability 1 / e.
TEMPERATURE = 0.01
PATIENCE = 0.5  # a walk ends after this share of its evaluations without an improvement
RETURNS = 10  # times that a walk goes back to its best
ROUNDING = 1e-9  # relative: keeps limits above any energy that may be accepted


@dataclass(frozen=True, slots=True)
class Space:
    """The space of a search: the configurations of every layer."""

    layers: Layers
    choices: tuple[tuple[Configuration, ...], ...]

    @property
    def size(self) -> int:
        """The number of strategies."""
        return prod(map(len, self.choices))

    def strategy(self, configurations: Sequence[Configuration], like: Strategy = PLAIN) -> Strategy:
        """The strategy of a configuration for each layer."""
        return strategy_of(self.layers, configurations, like)


def space_of(layers: Layers) -> Space:
    """All configurations of every layer on aligned, contiguous devices."""
    return Space(layers, tuple(layers.configurations(layer) for layer in layers.all))


def flexflow(trial: Trial) -> None:
    """FlexFlow (MLSys 2019): Markov chain Monte Carlo over configurations of layers, from data
    parallelism, the expert's strategy and a random one.

    A proposal gives one random layer a random configuration, and is accepted with probability
    exp(-x / TEMPERATURE) where it is worse by x, relative to the cost of the start (the paper's x
    is absolute, so it depends on the model's scale). The three walks share the budget; a walk that
    finds nothing better for half of its share ends. Now and then a walk returns to its best. A
    strategy that does not fit counts as slower by the factor 1 + its relative excess.
    """
    whole = trial.problem.whole
    space = space_of(Layers(whole.graph, whole.cluster))
    trial.best.details |= {"space": space.size, "starts_s": {}}
    for name, form in _forms(trial.problem, space.layers).items():
        trial.best.details["starts_s"][name] = trial.try_strategy(form).seconds
    walks(trial, space)


def walks(trial: Trial, space: Space) -> None:
    """A walk from each start, over a space. Raises SpentError."""
    every = starts(trial, space)
    if trial.chaining.count > 1:
        run_chains(trial, Walking(space), every, WORST, [1 / RETURNS] * RETURNS)
        return
    for number, start in enumerate(every):
        _walk(trial, space, start, (number + 1) / len(every))


def _forms(problem: SearchProblem, layers: Layers) -> dict[str, Strategy]:
    """The short forms that the graph allows, on the devices over which layers are split."""
    oracle, forms = problem.whole, dict[str, Strategy]()
    devices = tuple(oracle.cluster.devices[d].name for d in layers.devices)
    for name in STARTS:
        form = replace(oracle.under, short=name, devices=devices)
        try:
            cut = expanded(oracle.graph, oracle.cluster, form, oracle.costs)
            resolve_partition(oracle.graph, oracle.cluster, cut.partition)
        except InputError:  # no op has samples to cut, or too few
            continue
        forms[name] = form
    return forms


def starts(trial: Trial, space: Space) -> list[list[Configuration]]:
    """The starts of walks: data parallel, the expert's, and random; each has a configuration for
    every layer.
    """
    layers, oracle = space.layers, trial.problem.whole
    samples = [_samples(layers, layer) for layer in layers.all]
    form = _forms(trial.problem, layers).get("expert", PLAIN)
    form = expanded(oracle.graph, oracle.cluster, form, oracle.costs)
    expert = [_of_form(layers, *pair, form) for pair in zip(layers.all, samples, strict=True)]
    random = trial.budget.random
    drawn = [choices[int(random.integers(len(choices)))] for choices in space.choices]
    return [samples, expert, drawn]


def _samples(layers: Layers, layer: Layer) -> Configuration:
    """A layer cut along its samples into as many parts as possible."""
    names = {axis.axis for axis in layer.axes if axis.kind == "sample"}
    ways = [way for way in layers.degrees(layer) if names.issuperset(axis for axis, _ in way)]
    return layers.configuration(ways[-1])  # the most parts come last


def _of_form(
    layers: Layers, layer: Layer, otherwise: Configuration, form: Strategy
) -> Configuration:
    """The configuration of a layer's first op in a short form, ``otherwise`` where the form has
    none.
    """
    name = layers.graph.ops[layer.ops[0]].name
    device = form.placement.get(name, form.placement.get("*"))
    if device is not None:
        return Configuration(devices=(device,))
    configuration = form.partition.get(name)
    return configuration if configuration is not None and configuration.devices else otherwise


def _movable(space: Space) -> list[int]:
    """The layers with more than one configuration."""
    return [number for number, choices in enumerate(space.choices) if len(choices) > 1]


def _walk(trial: Trial, space: Space, start: Sequence[Configuration], until: float) -> None:
    """A walk up to the share ``until`` of the budget. Raises SpentError."""
    budget, oracle = trial.budget, trial.problem.whole
    budget.require()
    walk = SplitWalk(trial, space, start)
    walk.note(walk.cost, walk.state)
    movable = _movable(space)
    began = improved = returned = budget.share
    current = least = energy(oracle, walk.cost)
    kept, scale = walk.state, max(least, 1.0)
    while (
        movable and budget.share < until and budget.share - improved <= PATIENCE * (until - began)
    ):
        current = _step(walk, movable, current, scale * TEMPERATURE)
        if current < least:
            least, kept, improved = current, walk.state, budget.share
        if budget.share - returned > (until - began) / RETURNS:
            walk = SplitWalk(trial, space, kept, walk.changes)
            current, returned = energy(oracle, walk.cost), budget.share


def seconds_of(most: float) -> float:
    """The limit in seconds for an energy in ps, rounded up: no step that may be accepted takes
    longer.
    """
    return most * (1 + ROUNDING) / 1e12


def _step(walk: SplitWalk, movable: Sequence[int], current: float, hot: float) -> float:
    """The energy of a walk after a proposal; ``hot`` is the temperature, in units of energy. Raises
    SpentError.
    """
    trial = walk.trial
    state = _drawn(trial, walk, movable)
    trial.budget.require()
    # Drawn before the evaluation, as its limit: a slower step is rejected whatever memory it holds.
    worse = hot * trial.budget.random.exponential()
    cost = walk.propose(state, seconds_of(current + worse))
    if cost is None or energy(trial.problem.whole, cost) - current > worse:
        return current
    walk.accept()
    return energy(trial.problem.whole, cost)


def _drawn(trial: Trial, walk: SplitWalk, movable: Sequence[int]) -> list[Configuration]:
    """The state of a walk with another configuration of one layer."""
    random = trial.budget.random
    number = movable[int(random.integers(len(movable)))]
    others = [way for way in walk.space.choices[number] if way != walk.state[number]]
    chosen = others[int(random.integers(len(others)))]
    return [*walk.state[:number], chosen, *walk.state[number + 1 :]]


@dataclass(frozen=True, slots=True)
class Walking:
    """The walks in chains (a Walker): each round begins at the best state of its chain."""

    space: Space

    def advance(self, trial: Trial, chain: Chain) -> None:
        """Walk until the round is over; ``memory`` is the cost of the start, to which temperatures
        are relative.
        """
        oracle, movable = trial.problem.whole, _movable(self.space)
        walk = SplitWalk(trial, self.space, chain.where)
        current = least = energy(oracle, walk.cost)
        if chain.memory is None:
            trial.budget.require()
            walk.note(walk.cost, walk.state)
            chain.memory, chain.rank = max(least, 1.0), rank_of(oracle, walk.cost)
        chain.ended = not movable
        while movable:
            current = _step(walk, movable, current, chain.memory * TEMPERATURE)
            if current < least:
                least, chain.where, chain.rank = current, walk.state, rank_of(oracle, walk.cost)


class SplitWalk:
    """A current configuration of every layer, and proposals of others, all counted by the trial.

    The start itself is counted by ``note``.
    """

    def __init__(
        self,
        trial: Trial,
        space: Space,
        state: Sequence[Configuration],
        changes: dict[object, Mapping[str, Configuration | None]] | None = None,
    ) -> None:
        self.trial, self.space, self.state = trial, space, list(state)
        self.changes = {} if changes is None else changes  # by layer and configuration
        self._session = trial.problem.whole.session(space.strategy(state, trial.problem.given))
        self.cost = self._session.cost
        self._proposed = self.state, self.cost

    def note(self, cost: Cost, state: Sequence[Configuration]) -> None:
        """Count an evaluation."""
        given = self.trial.problem.given
        self.trial.note_strategy(cost, lambda: self.space.strategy(state, given))

    def propose(self, state: list[Configuration], limit: float | None = None) -> Cost | None:
        """The cost of another state; None where its step takes more than ``limit`` seconds and is
        not the best so far. Raises SpentError.
        """
        self.trial.budget.require()
        changed: dict[str, Configuration | None] = {}
        for number, (old, new) in enumerate(zip(self.state, state, strict=True)):
            if old is not new:
                changed |= self._change(number, new)
        useful = self.trial.useful(limit, self.trial.best.rank)
        cost = self._session.propose(changed, limit=useful)
        if cost is None:
            self.trial.budget.count()
            return None
        self._proposed = state, cost
        self.note(cost, state)
        return cost

    def _change(self, number: int, configuration: Configuration) -> Mapping[str, Any]:
        key = number, configuration.devices, tuple(configuration.split.items())
        if key not in self.changes:
            layers = self.space.layers
            self.changes[key] = changes(layers, layers.all[number], configuration)
        return self.changes[key]

    def accept(self) -> None:
        """Make the proposal the current state."""
        self._session.accept()
        self.state, self.cost = self._proposed
