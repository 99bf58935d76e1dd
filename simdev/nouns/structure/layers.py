"""Layers of the forward pass, in the two senses that papers give the word; the backward goes with
its mates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..graph import Graph
from ..semantics import op_class, traits_of
from .names import unrolled
from .weights import TensorOf, Weights


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
