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
    moved: dict[TensorOf, list[int]] = {}
    for i, op in enumerate(graph.ops):
        if len(op.inputs) == 1 and op_class(op.kind) == "data_movement":
            moved.setdefault(graph.resolve(op.inputs[0]), []).append(i)
    parameters: set[TensorOf] = set()
    sources = [i for i, op in enumerate(graph.ops) if traits_of(op.kind).leaf == "parameter"]
    while sources:
        i = sources.pop()
        made = {(i, k) for k in range(len(graph.ops[i].outputs))} - parameters
        parameters |= made
        sources += [reader for tensor in made for reader in moved.get(tensor, ())]
    gradients: set[TensorOf] = set()
    read = (graph.resolve(text) for op in graph.ops if op.phase == "update" for text in op.inputs)
    waiting = [tensor for tensor in read if tensor not in parameters]
    while waiting:
        tensor = waiting.pop()
        if tensor not in gradients:
            gradients.add(tensor)
            op = graph.ops[tensor[0]]
            waiting += map(graph.resolve, op.inputs) if is_linear(op) else ()
    return Weights(frozenset(parameters), frozenset(gradients))


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
    parameters_of = {}
    for i, op in enumerate(graph.ops):
        if op.phase == "update" and op.inputs:
            read = dict.fromkeys(producer for producer, _ in graph.reads[i])
            parameters_of[i] = tuple(
                p for p in read if traits_of(graph.ops[p].kind).leaf == "parameter"
            )
    return parameters_of


def owns_outputs(op: Op) -> bool:
    """Whether what an op hands to its readers are the parameters that it owns, so that they count
    once.
    """
    return traits_of(op.kind).leaf == "parameter" and op.param_bytes > 0


def addends_of(graph: Graph, weights: Weights, gradient: TensorOf) -> tuple[TensorOf, ...]:
    """The gradients that a gradient is the sum of (or a copy, a view, ..); none where it is first
    made.
    """
    if not is_linear(graph.ops[gradient[0]]):
        return ()
    read = (graph.resolve(text) for text in graph.ops[gradient[0]].inputs)
    return tuple(tensor for tensor in read if tensor in weights.gradients)


def first_made(graph: Graph, weights: Weights, gradient: TensorOf) -> list[TensorOf]:
    """The gradients that add up to one, where they are first made; itself where it is no sum."""
    parts, waiting = list[TensorOf](), [gradient]
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
        read = (graph.resolve(text) for text in graph.ops[update.op].inputs)
        weight = next((tensor for tensor in read if tensor in weights.parameters), None)
        waiting = [] if weight is None else list(update.gradients)
        while waiting and weight is not None:
            tensor = waiting.pop()
            if weight_of.get(tensor) != weight:
                weight_of[tensor] = weight
                waiting += addends_of(graph, weights, tensor)
    return weight_of


def op_splits(graph: Graph, position: int, weights: Weights) -> tuple[Split, ...]:
    """The axes along which one op of a graph may be split, in SOAP's words.

    Raises InputError that names the op.
    """
    read = [graph.resolve(text) for text in graph.ops[position].inputs]
    parameters = [
        i
        for i, tensor in enumerate(read)
        if tensor in weights.parameters or tensor in weights.gradients
    ]
    gradients = [
        i
        for i in range(len(graph.ops[position].outputs))
        if (position, i) in weights.gradients | weights.parameters
    ]
    return splits(op_semantics(graph, position), parameters, gradients)
