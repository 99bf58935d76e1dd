"""Co-adjust placement: ops are placed freely, then each colocation group is moved to one device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...graph import Graph
from ...structure import declared, regrouped
from ...taskgraph import Ints
from .grouped import Grouped

Choice = Callable[[Ints, NDArray[np.float64]], int]
"""The device of a group, from the device and the weight of each of its ops."""


def _first(devices: Ints, weights: object) -> int:
    return int(devices[0])


def _frequent(devices: Ints, weights: object) -> int:
    return int(np.bincount(devices).argmax())


def _largest(devices: Ints, weights: NDArray[np.float64]) -> int:
    return int(devices[weights.argmax()])


def _sum(devices: Ints, weights: NDArray[np.float64]) -> int:
    return int(np.bincount(devices, weights).argmax())


RULES: Mapping[str, Choice] = {
    "first": _first,
    "frequent": _frequent,
    "memory": _largest,
    "memory-sum": _sum,
    "time": _largest,
    "time-sum": _sum,
}
"""The rules of Baechi's adjusters by name; of two devices alike the smaller."""


@dataclass(frozen=True)
class Adjusted(Grouped):
    """A graph without colocation groups, whose way back restores them.

    A group goes to the device that ``rule`` chooses: that of its first op (``first``), on which
    most of its ops stand (``frequent``), of its op with most memory or time (``memory``, ``time``),
    or on which the ops have most of either together (``memory-sum``, ``time-sum``). ``weights`` by
    op.
    """

    rule: str = "memory-sum"
    weights: tuple[float, ...] = ()

    def back(self, placement: Sequence[int] | Ints) -> Ints:
        """The placement of ``original``, its groups each on one device."""
        found, weights = super().back(placement), np.array(self.weights, float)
        for group in self.original.groups.values():
            members = list(group)
            found[members] = RULES[self.rule](found[members], weights[members])
        return found


def adjust(
    graph: Graph, rule: str = "memory-sum", times: Sequence[float] | None = None
) -> Adjusted:
    """Place freely, adjust afterwards (Jeon et al., SoCC 2020, section 3.1, by the rules of its
    code).

    Memory is what an op keeps and what it works with, ``times`` is by op, in any unit. Raises
    InputError for a rule that is not there, and for one by time without ``times``.
    """
    if rule not in RULES:
        raise InputError(f'prepare: adjust: must be one of {", ".join(RULES)}, got "{rule}"')
    if times is None and rule.startswith("time"):
        raise InputError(f'prepare: adjust: "{rule}" needs the times of the ops')
    memory = [
        op.param_bytes + op.grad_bytes + op.state_bytes + op.workspace_bytes for op in graph.ops
    ]
    weights = times if times is not None and rule.startswith("time") else memory
    original = regrouped(graph, declared(graph))
    free = Graph(graph.name, tuple(replace(op, colocate=None) for op in original.ops))
    runs = tuple((i,) for i in range(len(graph.ops)))
    return Adjusted(free, original, runs, (), rule, tuple(map(float, weights)))
