"""FlexFlow (Jia, Zaharia, Aiken, "Beyond Data and Model Parallelism for Deep Neural Networks",
MLSys 2019).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from ...errors import InputError
from ...lowering import expanded
from ...oracle import Cost
from ...strategy import Configuration, Strategy, resolve_partition
from ..space import energy
from ..trial import Trial
from .layers import Layer, Layers
from .strategies import PLAIN, changes, strategy_of

STARTS = ("data-parallel", "expert")
# relative to the cost of the start: a worsening by so much is accepted with probability 1 / e
TEMPERATURE = 0.01
PATIENCE = 0.5  # a walk ends after so much of its evaluations without a better one
RETURNS = 10  # times that a walk goes back to its best


@dataclass(frozen=True, slots=True)
class Space:
    """What is chosen among: the configurations of every layer."""

    layers: Layers
    choices: tuple[tuple[Configuration, ...], ...]

    @property
    def size(self) -> int:
        """How many strategies there are."""
        return prod(map(len, self.choices))

    def strategy(self, configurations: Sequence[Configuration], like: Strategy = PLAIN) -> Strategy:
        """The strategy of one configuration a layer."""
        return strategy_of(self.layers, configurations, like)


def space_of(layers: Layers) -> Space:
    """Every layer in all its ways on aligned, contiguous devices."""
    return Space(layers, tuple(layers.configurations(layer) for layer in layers.all))


def flexflow(trial: Trial) -> None:
    """Markov chain Monte Carlo over SOAP: from data parallel, from the expert's strategy and from a
    random one.

    A proposal gives one random layer a random configuration, and is accepted with probability
    exp(-x / TEMPERATURE) where it is worse by x, relative to the cost of the start (the paper's is
    absolute, so it depends on the model's scale). The three walks share the budget; one that finds
    nothing better for half of its share ends. Now and then a walk returns to its best. What does
    not fit counts as slower by the factor 1 + its relative excess.
    """
    space = space_of(Layers(trial.asked.graph, trial.asked.cluster))
    trial.details |= {"space": space.size, "starts_s": {}}
    for name, form in _forms(trial, space.layers).items():
        trial.details["starts_s"][name] = trial.try_strategy(form).seconds
    walks(trial, space)


def walks(trial: Trial, space: Space, temperature: float = TEMPERATURE) -> None:
    """A walk from each start, over some space. Raises SpentError."""
    every = starts(trial, space)
    for number, start in enumerate(every):
        walk(trial, space, start, (number + 1) / len(every), temperature)


def _forms(trial: Trial, layers: Layers) -> dict[str, Strategy]:
    """The short forms on the devices over which layers are split; those that the graph allows."""
    oracle, found = trial.asked, dict[str, Strategy]()
    devices = tuple(oracle.cluster.devices[d].name for d in layers.devices)
    for name in STARTS:
        form = replace(oracle.under, short=name, devices=devices)
        try:
            cut = expanded(oracle.graph, oracle.cluster, form, oracle.costs)
            resolve_partition(oracle.graph, oracle.cluster, cut.partition)
        except InputError:  # nothing has samples to cut, or not so many
            continue
        found[name] = form
    return found


def starts(trial: Trial, space: Space) -> list[list[Configuration]]:
    """Where walks begin: data parallel, as the expert, at random; a configuration for every
    layer.
    """
    layers, oracle = space.layers, trial.asked
    samples = [_samples(layers, layer) for layer in layers.all]
    form = expanded(
        oracle.graph, oracle.cluster, _forms(trial, layers).get("expert", PLAIN), oracle.costs
    )
    expert = [
        _of_form(layers, layer, form, one) for layer, one in zip(layers.all, samples, strict=True)
    ]
    return [samples, expert, [own[int(trial.random.integers(len(own)))] for own in space.choices]]


def _samples(layers: Layers, layer: Layer) -> Configuration:
    """A layer cut along its samples into as many parts as can be."""
    own = {one.axis for one in layer.axes if one.kind == "sample"}
    return layers.configuration(
        [one for one in layers.degrees(layer) if all(axis in own for axis, _ in one)][-1]
    )


def _of_form(
    layers: Layers, layer: Layer, form: Strategy, otherwise: Configuration
) -> Configuration:
    """How a short form treats the first op of a layer, where it says."""
    name = layers.graph.ops[layer.ops[0]].name
    device = form.placement.get(name, form.placement.get("*"))
    if device is not None:
        return Configuration(devices=(device,))
    found = form.partition.get(name)
    return otherwise if found is None or not found.devices else found


def walk(
    trial: Trial,
    space: Space,
    start: Sequence[Configuration],
    until: float,
    temperature: float = TEMPERATURE,
) -> None:
    """One chain, to the share ``until`` of the budget. Raises SpentError."""
    trial.require_budget()
    chain = _Chain(trial, space, list(start))
    began = improved = returned = trial.share
    best, kept = chain.energy, list(start)
    scale = max(best, 1.0)
    while (
        chain.movable
        and trial.share < until
        and trial.share - improved <= PATIENCE * (until - began)
    ):
        proposed = chain.propose()
        if proposed - chain.energy <= scale * temperature * trial.random.exponential():
            chain.accept()
        if chain.energy < best:
            best, kept, improved = chain.energy, list(chain.state), trial.share
        if trial.share - returned > (until - began) / RETURNS:
            chain.go_to(kept)
            returned = trial.share


class _Chain:
    """A current configuration of every layer, and proposals to change one of them."""

    def __init__(self, trial: Trial, space: Space, state: list[Configuration]) -> None:
        self.trial, self.space, self.state = trial, space, state
        self.movable = [number for number, own in enumerate(space.choices) if len(own) > 1]
        self._proposed = 0, state[0], 0.0
        self._changes: dict[object, Mapping[str, Configuration | None]] = {}
        self._session = trial.asked.session(space.strategy(state, trial.given))
        self.energy = self._noted(self._session.cost, state)

    def _noted(self, cost: Cost, state: Sequence[Configuration]) -> float:
        """Count an answer; ps, more where it does not fit."""
        state = list(state)
        self.trial.note_strategy(cost, lambda: self.space.strategy(state, self.trial.given))
        return energy(self.trial.asked, cost)

    def propose(self) -> float:
        """One layer in another configuration, both drawn uniformly."""
        random = self.trial.random
        number = self.movable[int(random.integers(len(self.movable)))]
        own = [one for one in self.space.choices[number] if one != self.state[number]]
        return self._ask(number, own[int(random.integers(len(own)))])

    def _ask(self, number: int, one: Configuration) -> float:
        self.trial.require_budget()
        cost = self._session.propose(self._change(number, one))
        state = [*self.state[:number], one, *self.state[number + 1 :]]
        self._proposed = number, one, self._noted(cost, state)
        return self._proposed[2]

    def _change(self, number: int, one: Configuration) -> Mapping[str, Configuration | None]:
        key = number, one.devices, tuple(one.split.items())
        if key not in self._changes:
            self._changes[key] = changes(self.space.layers, self.space.layers.all[number], one)
        return self._changes[key]

    def accept(self) -> None:
        """Make the proposal the current state."""
        self._session.accept()
        number, one, self.energy = self._proposed
        self.state[number] = one

    def go_to(self, state: Sequence[Configuration]) -> None:
        """Make a state that was visited before the current one."""
        self.state = list(state)
        self._session = self.trial.asked.session(self.space.strategy(state, self.trial.given))
        self.energy = energy(self.trial.asked, self._session.cost)
