"""The same questions asked of an op of a graph: operands as executed, and which tensors are weights."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InputError
from ..graph import Graph
from .description import Shape
from .registry import Semantics, op_class, semantics_of
from .splits import Split, splits
from .work import Work, shard_work

TensorOf = tuple[int, int]
"""A tensor of a graph: position of its op, index of the output."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Tensors of a graph that are weights (as stored, seen or copied), and those that are gradients of weights."""

    parameters: frozenset[TensorOf]
    gradients: frozenset[TensorOf]


def op_semantics(graph: Graph, position: int) -> Semantics:
    """Semantics of one op of a graph; the attribute "in" replaces the shapes of the tensors read.

    Raises InputError that names the op.
    """
    op = graph.ops[position]
    try:
        return semantics_of(op.kind, op.attrs, operand_shapes(graph, position), [t.shape for t in op.made])
    except InputError as error:
        raise InputError([f'op "{op.name}": {problem}' for problem in error.problems]) from None


def operand_shapes(graph: Graph, position: int) -> tuple[Shape | None, ...]:
    """Shapes of an op's operands as executed."""
    told = graph.ops[position].attrs.get("in")
    if told is not None:
        return tuple(tuple(shape) if shape is not None else None for shape in told)
    return tuple(tensor.shape for tensor in graph.operands[position])


def operand_dtypes(graph: Graph, position: int) -> tuple[str | None, ...]:
    """Dtypes of an op's operands as executed."""
    told = graph.ops[position].attrs.get("dt")
    return tuple(told) if told is not None else tuple(tensor.dtype for tensor in graph.operands[position])


def op_work(graph: Graph, position: int) -> Work:
    """Work of one op of a graph. Raises InputError that names the op."""
    op = graph.ops[position]
    dtypes = operand_dtypes(graph, position)
    made = [tensor.dtype for tensor in op.made]
    return shard_work(op_semantics(graph, position), {}, dtypes, made, op.attrs.get("strides"))


def op_splits(graph: Graph, position: int, weights: Weights) -> tuple[Split, ...]:
    """The axes along which one op of a graph may be split, in SOAP's words. Raises InputError that names the op."""
    read = [graph.resolve(text) for text in graph.ops[position].inputs]
    parameters = [i for i, tensor in enumerate(read) if tensor in weights.parameters or tensor in weights.gradients]
    gradients = [
        i for i in range(len(graph.ops[position].outputs)) if (position, i) in weights.gradients | weights.parameters
    ]
    return splits(op_semantics(graph, position), parameters, gradients)


def weights_of(graph: Graph) -> Weights:
    """Which tensors of a graph are weights and gradients of weights.

    Weights are what ops of kind ``parameter`` make, also moved or cast. Gradients are what an update reads beside
    its parameter, and what is added up to one.
    """
    reads = [[graph.resolve(text) for text in op.inputs] for op in graph.ops]
    parameters: set[TensorOf] = set()
    for i, op in enumerate(graph.ops):
        copied = op_class(op.kind) == "data_movement" and len(reads[i]) == 1 and reads[i][0] in parameters
        if op.kind == "parameter" or copied:
            parameters.update((i, k) for k in range(len(op.outputs)))
    gradients: set[TensorOf] = set()
    for i in reversed(range(len(graph.ops))):
        op = graph.ops[i]
        if op.phase == "update":
            gradients.update(tensor for tensor in reads[i] if tensor not in parameters)
        elif op.kind in ("add", "cast", "clone", "contiguous") and (i, 0) in gradients:
            shape = op.outputs[0].shape
            gradients.update(t for t in reads[i] if graph.ops[t[0]].outputs[t[1]].shape == shape)
    return Weights(frozenset(parameters), frozenset(gradients))
