"""The same questions asked of an op of a graph: operands as executed, and which tensors are weights."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InputError
from ..graph import Graph
from .description import Shape
from .registry import Semantics, op_class, semantics_of
from .splits import Split, splits
from .work import Work, layouts, shard_work

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
    """Shapes of an op's operands as executed. Raises InputError where the attribute "in" is no list of shapes."""
    told = graph.ops[position].attrs.get("in")
    if told is None:
        return tuple(tensor.shape for tensor in graph.operands[position])
    try:
        return tuple(tuple(shape) if shape is not None else None for shape in told)
    except TypeError:
        raise InputError(f'op "{graph.ops[position].name}": attrs.in: must be a list of shapes, got {told!r}') from None


def operand_dtypes(graph: Graph, position: int) -> tuple[str | None, ...]:
    """Dtypes of an op's operands as executed. Raises InputError where the attribute "dt" is no list of names."""
    told = graph.ops[position].attrs.get("dt")
    if told is None:
        return tuple(tensor.dtype for tensor in graph.operands[position])
    if not isinstance(told, list | tuple) or not all(name is None or isinstance(name, str) for name in told):
        raise InputError(f'op "{graph.ops[position].name}": attrs.dt: must be a list of dtypes, got {told!r}')
    return tuple(told)


def op_work(graph: Graph, position: int) -> Work:
    """Work of one op of a graph. Raises InputError that names the op."""
    op = graph.ops[position]
    dtypes = operand_dtypes(graph, position)
    made = [tensor.dtype for tensor in op.made]
    return shard_work(op_semantics(graph, position), {}, dtypes, made, layouts(op.attrs.get("strides")))


def op_splits(graph: Graph, position: int, weights: Weights) -> tuple[Split, ...]:
    """The axes along which one op of a graph may be split, in SOAP's words. Raises InputError that names the op."""
    read = [graph.resolve(text) for text in graph.ops[position].inputs]
    parameters = [i for i, tensor in enumerate(read) if tensor in weights.parameters or tensor in weights.gradients]
    gradients = [
        i for i in range(len(graph.ops[position].outputs)) if (position, i) in weights.gradients | weights.parameters
    ]
    return splits(op_semantics(graph, position), parameters, gradients)


def weights_of(graph: Graph) -> Weights:
    """Which tensors of a graph are weights and gradients of weights, in whatever order its ops are listed.

    Weights are what ops of kind ``parameter`` make, also moved or cast. Gradients are what an update reads beside
    its parameter, and what is added up to one.
    """
    reads = [[graph.resolve(text) for text in op.inputs] for op in graph.ops]
    moved: dict[TensorOf, list[int]] = {}
    for i, op in enumerate(graph.ops):
        if op_class(op.kind) == "data_movement" and len(reads[i]) == 1:
            moved.setdefault(reads[i][0], []).append(i)
    parameters: set[TensorOf] = set()
    sources = [i for i, op in enumerate(graph.ops) if op.kind == "parameter"]
    while sources:
        i = sources.pop()
        made = {(i, k) for k in range(len(graph.ops[i].outputs))} - parameters
        parameters |= made
        sources += [reader for tensor in made for reader in moved.get(tensor, ())]
    gradients: set[TensorOf] = set()
    found = [t for i, op in enumerate(graph.ops) if op.phase == "update" for t in reads[i] if t not in parameters]
    while found:
        tensor = found.pop()
        if tensor not in gradients:
            gradients.add(tensor)
            found += _addends(graph, tensor, reads[tensor[0]])
    return Weights(frozenset(parameters), frozenset(gradients))


def _addends(graph: Graph, tensor: TensorOf, read: list[TensorOf]) -> list[TensorOf]:
    """What a gradient is the sum or a copy of."""
    op = graph.ops[tensor[0]]
    if tensor[1] or op.kind not in ("add", "cast", "clone", "contiguous"):
        return []
    shape = op.outputs[0].shape
    return [(i, k) for i, k in read if graph.ops[i].outputs[k].shape == shape]
