"""Co-adjust placement: ops are placed freely, then each colocation group is moved to one device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...errors import InputError
from ...graph import Graph
from ...structure import declared, regrouped
from ...taskgraph import Ints
from .grouped import Grouped

Weights = Sequence[float] | Ints


@dataclass(frozen=True)
class Adjusted(Grouped):
    """A graph without colocation groups, whose way back restores them.

    A group goes to the device that ``rule`` chooses: that of its first op (``first``), on which most of its ops stand
    (``most``), or where the ops of the largest sum of ``weights`` stand (``largest``: of the single heaviest op).
    Ties go to the smaller device.
    """

    rule: str = "sum"
    weights: tuple[float, ...] = ()

    def back(self, placement: Sequence[int] | Ints) -> Ints:
        """The placement of ``original``, its groups each on one device."""
        found = super().back(placement)
        for members in self.original.groups.values():
            devices = found[list(members)]
            found[list(members)] = RULES[self.rule](devices, np.array([self.weights[i] for i in members], float))
        return found


def _most(devices: Ints, weights: object) -> int:
    return int(np.bincount(devices).argmax())


RULES: Mapping[str, Callable[[Ints, np.ndarray], int]] = {
    "first": lambda devices, weights: int(devices[0]),
    "most": _most,
    "largest": lambda devices, weights: int(devices[weights.argmax()]),
    "sum": lambda devices, weights: int(np.bincount(devices, weights).argmax()),
}


def adjust(graph: Graph, rule: str = "sum", weights: Weights | None = None) -> Adjusted:
    """Place freely, adjust afterwards. ``weights`` by op; by default the bytes that each op holds.

    Raises InputError for a rule that is not there.
    """
    if rule not in RULES:
        raise InputError(f'rule: must be one of {", ".join(RULES)}, got "{rule}"')
    original = regrouped(graph, declared(graph))
    free = Graph(graph.name, tuple(replace(op, colocate=None) for op in original.ops))
    if weights is None:
        weights = [
            op.param_bytes + op.grad_bytes + op.state_bytes + op.workspace_bytes + sum(t.bytes for t in op.made)
            for op in graph.ops
        ]
    told = tuple(float(one) for one in weights)
    return Adjusted(free, original, tuple((i,) for i in range(len(graph.ops))), (), rule, told)
