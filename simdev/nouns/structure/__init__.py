"""What a training step is made of, told once: order, groups, layers, mates, weights with their
gradients and updates.

It reads a graph and the traits of its kinds, and knows no cluster, no strategy and no cost.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ..graph import Graph
from ..semantics import op_class, traits_of
from .mates import mates
from .names import unrolled
from .order import before_of, components, longest_behind, order_of, readers_of, topological
from .weights import (
    TensorOf,
    Weights,
    first_made,
    hands_out_parameters,
    op_splits,
    updated,
    updates_of,
    weight_of_gradients,
    weights_of,
)

# Colocation: ops that stand on one device, as a graph says it, as TensorFlow declares it, and as
# sets united.

# attributes in which graphs exported from TensorFlow declare it
DECLARED = ("_class", "colocation")
PREFIX = "loc:@"


class Groups:
    """Disjoint sets of numbers, each represented by its smallest."""

    def __init__(self, count: int) -> None:
        self._above = list(range(count))

    def find(self, number: int) -> int:
        """The smallest of its set."""
        above = self._above
        while above[number] != number:
            # Halving the path keeps the next search short (Tarjan, van Leeuwen, JACM 1984).
            above[number] = above[above[number]]
            number = above[number]
        return number

    def unite(self, pairs: Iterable[tuple[int, int]]) -> bool:
        """Unite the sets of each pair; whether anything changed."""
        changed = False
        for a, b in pairs:
            low, high = sorted((self.find(a), self.find(b)))
            changed |= low != high
            self._above[high] = low
        return changed

    def roots(self) -> list[int]:
        """The set of each number."""
        return [self.find(number) for number in range(len(self._above))]


def units(graph: Graph) -> tuple[tuple[int, ...], ...]:
    """The units of placement: positions of the ops of each colocation group, and of each op without
    one.

    In the order of their first op.
    """
    groups = graph.groups
    sets = ((i,) if op.colocate is None else groups[op.colocate] for i, op in enumerate(graph.ops))
    return tuple(dict.fromkeys(sets))


def unit_of(graph: Graph) -> list[int]:
    """The number of each op's unit (``units``)."""
    numbers = [0] * len(graph.ops)
    for number, members in enumerate(units(graph)):
        for i in members:
            numbers[i] = number
    return numbers


def declared(graph: Graph) -> Groups:
    """The sets that the graph demands: equal ``colocate``, and TensorFlow's classes in attributes
    (``_class``).

    An op may declare several classes, which are then one set; ``loc:@name`` also means the op of
    that name.
    """
    first: dict[str, int] = {}
    groups = Groups(len(graph.ops))
    for i, op in enumerate(graph.ops):
        names = [] if op.colocate is None else [op.colocate]
        for key in DECLARED:
            classes = op.attrs.get(key, ())
            texts = [classes] if isinstance(classes, str) else classes
            names += (text for text in texts if isinstance(text, str))
        groups.unite((i, first.setdefault(name, i)) for name in names)
        meant = (name[len(PREFIX) :] for name in names if name.startswith(PREFIX))
        groups.unite((i, graph.index[name]) for name in meant if name in graph.index)
    return groups


def regrouped(graph: Graph, groups: Groups) -> Graph:
    """The graph with these sets as colocation groups.

    A set of several ops is named by the shortest, then alphabetically first of its groups' names,
    else by its first op.
    """
    roots, names = groups.roots(), defaultdict[int, set[str]](set)
    sizes = Counter(roots)
    for root, op in zip(roots, graph.ops, strict=True):
        if op.colocate is not None:
            names[root].add(op.colocate)
    ops = []
    for root, op in zip(roots, graph.ops, strict=True):
        # Not the first name met: the order of ops would decide where several groups become one.
        group = min(names[root], key=lambda name: (len(name), name), default=None)
        if group is None and sizes[root] > 1:
            group = graph.ops[root].name
        ops.append(op if op.colocate == group else replace(op, colocate=group))
    return Graph(graph.name, tuple(ops))


# Layers of the forward pass, in the two senses that papers give the word; the backward goes with
# its mates.


def layers_by_weight(graph: Graph, weights: Weights, ops: Iterable[int]) -> list[list[int]]:
    """Runs of ops, in program order, as model parallelism cuts them over devices.

    A layer begins with an op that reads a weight; what reads none belongs to the layer before it.
    The steps of an unrolled op are one.
    """
    # All steps of an unrolled op read one weight: apart, each would begin a layer.
    steps: dict[str, list[int]] = {}
    for i in ops:
        steps.setdefault(unrolled(graph.ops[i].name), []).append(i)
    layers: list[list[int]] = []
    for members in steps.values():
        if not layers or any(key in weights.parameters for i in members for key in graph.reads[i]):
            layers.append([])
        layers[-1] += members
    return layers


def layers_by_kind(
    graph: Graph,
    ops: Iterable[int],
    touched: Sequence[Sequence[TensorOf]],
    alone: Callable[[int], bool],
) -> list[int]:
    """The number of each op's layer (-1: not among ``ops``), as OptCNN and FlexFlow configure them.

    A layer is an op of a kind that computes by itself (trait ``layer``), that joins several layers
    or that stands ``alone``, at all of its steps; any other op belongs to the layer that it reads
    first. ``ops`` come producers first; ``touched`` are the tensors that each op needs more than
    the shape of.
    """
    layer_of, names = [-1] * len(graph.ops), dict[str, int]()
    for i in ops:
        before = layers_read(touched[i], layer_of)
        if before and not (alone(i) or is_layer(graph, i, before)):
            layer_of[i] = before[0]
        else:
            # By name: the steps of an unrolled layer are configured together.
            layer_of[i] = names.setdefault(unrolled(graph.ops[i].name), len(names))
    return layer_of


def layers_read(touched: Iterable[TensorOf], layer_of: Sequence[int]) -> list[int]:
    """The layers of which an op reads something, each once, in the order of its operands."""
    read = (layer_of[producer] for producer, _ in touched)
    return list(dict.fromkeys(layer for layer in read if layer >= 0))


def is_layer(graph: Graph, i: int, before: Sequence[int]) -> bool:
    """Whether an op that reads these layers is one by itself, or joins them."""
    kind = graph.ops[i].kind
    joins = op_class(kind) == "data_movement" and len(before) > 1
    return bool(traits_of(kind).layer) or joins


__all__ = [
    "Groups",
    "TensorOf",
    "Weights",
    "before_of",
    "components",
    "declared",
    "first_made",
    "hands_out_parameters",
    "is_layer",
    "layers_by_kind",
    "layers_by_weight",
    "layers_read",
    "longest_behind",
    "mates",
    "op_splits",
    "order_of",
    "readers_of",
    "regrouped",
    "topological",
    "unit_of",
    "units",
    "unrolled",
    "updated",
    "updates_of",
    "weight_of_gradients",
    "weights_of",
]
