"""Weight - gradient - update: which tensors of a step are weights and gradients of weights, and who
updates what.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..graph import Graph, Op
from ..semantics import Split, is_linear, op_class, op_semantics, splits, traits_of

TensorOf = tuple[int, int]
"""A tensor of a graph: position of its op, index of the output."""


@dataclass(frozen=True, slots=True)
class Update:
    """An op of phase ``update`` that reads tensors: the parameters that it writes, the gradients
    that it reads.

    ``op`` and ``parameters`` are positions in the graph, the latter of leaves.
    """

    op: int
    parameters: tuple[int, ...]
    gradients: tuple[TensorOf, ...]


@dataclass(frozen=True, slots=True)
class Weights:
    """Tensors of a graph that are weights (as stored, seen or copied), and those that are gradients
    of weights.
    """

    parameters: frozenset[TensorOf]
    gradients: frozenset[TensorOf]


def weights_of(graph: Graph) -> Weights:
    """Which tensors of a graph are weights and gradients of weights, in whatever order its ops are
    listed.

    Weights are what leaves that are parameters make, also moved or cast. Gradients are what an
    update reads beside its parameter, and what one is made of by ops that are linear: sums, copies,
    views, products with a number.
    """
    # A cast of a weight is a weight: mixed precision computes with such copies.
    moved: dict[TensorOf, list[int]] = {}
    for i, op in enumerate(graph.ops):
        if len(op.inputs) == 1 and op_class(op.kind) == "data_movement":
            moved.setdefault(graph.resolve(op.inputs[0]), []).append(i)
    parameters, gradients = set[TensorOf](), set[TensorOf]()
    sources = [i for i, op in enumerate(graph.ops) if _is_parameter(op)]
    while sources:
        i = sources.pop()
        made = {(i, k) for k in range(len(graph.ops[i].outputs))} - parameters
        parameters |= made
        sources += [reader for tensor in made for reader in moved.get(tensor, ())]
    read = {tensor for i in updated(graph) for tensor in _read(graph, i)}
    waiting = list(read - parameters)
    while waiting:
        tensor = waiting.pop()
        if tensor not in gradients:
            gradients.add(tensor)
            waiting += _read(graph, tensor[0]) if is_linear(graph.ops[tensor[0]]) else ()
    return Weights(frozenset(parameters), frozenset(gradients))


def _is_parameter(op: Op) -> bool:
    return traits_of(op.kind).leaf == "parameter"


def _read(graph: Graph, position: int) -> list[TensorOf]:
    return list(map(graph.resolve, graph.ops[position].inputs))


def updates_of(graph: Graph, weights: Weights) -> tuple[Update, ...]:
    """The updates that read tensors, in program order."""
    return tuple(
        Update(i, parameters, tuple(t for t in graph.reads[i] if t in weights.gradients))
        for i, parameters in updated(graph).items()
    )


def updated(graph: Graph) -> dict[int, tuple[int, ...]]:
    """For each update that reads tensors the parameters that it writes: the leaves among its
    operands.
    """
    return {
        i: tuple(dict.fromkeys(p for p, _ in graph.reads[i] if _is_parameter(graph.ops[p])))
        for i, op in enumerate(graph.ops)
        if op.phase == "update" and op.inputs
    }


def hands_out_parameters(op: Op) -> bool:
    """Whether what an op hands to its readers are the parameters that it owns, so that they count
    once.
    """
    return _is_parameter(op) and op.param_bytes > 0


def addends_of(graph: Graph, weights: Weights, gradient: TensorOf) -> tuple[TensorOf, ...]:
    """The gradients that a gradient is the sum of (or a copy, a view, ..); none where it is first
    made.
    """
    if not is_linear(graph.ops[gradient[0]]):
        return ()
    return tuple(tensor for tensor in _read(graph, gradient[0]) if tensor in weights.gradients)


def first_made(graph: Graph, weights: Weights, gradient: TensorOf) -> list[TensorOf]:
    """The gradients that add up to one, where they are first made; itself where it is no sum."""
    parts, waiting = list[TensorOf](), [gradient]
    # No recursion: over a thousand steps of an unrolled layer sums are a thousand deep.
    while waiting:
        tensor = waiting.pop()
        addends = addends_of(graph, weights, tensor)
        waiting += reversed(addends)
        if not addends:
            parts.append(tensor)
    return parts


def weight_of_gradients(graph: Graph, weights: Weights) -> Mapping[TensorOf, TensorOf]:
    """By gradient the weight that it belongs to: what an update reads with its parameter, and what
    adds up to it.
    """
    weight_of: dict[TensorOf, TensorOf] = {}
    for update in updates_of(graph, weights):
        read = (tensor for tensor in _read(graph, update.op) if tensor in weights.parameters)
        for weight in list(read)[:1]:
            waiting = list(update.gradients)
            while waiting:
                tensor = waiting.pop()
                # The weight of the last update stays, where several share a gradient.
                if weight_of.get(tensor) != weight:
                    weight_of[tensor] = weight
                    waiting += addends_of(graph, weights, tensor)
    return weight_of


def op_splits(graph: Graph, position: int, weights: Weights) -> tuple[Split, ...]:
    """The axes along which one op of a graph may be split, in SOAP's words.

    Raises InputError that names the op.
    """

    def trained(tensor: TensorOf) -> bool:
        return tensor in weights.parameters or tensor in weights.gradients

    read = [i for i, tensor in enumerate(_read(graph, position)) if trained(tensor)]
    outputs = range(len(graph.ops[position].outputs))
    made = [i for i in outputs if trained((position, i))]
    return splits(op_semantics(graph, position), read, made)
