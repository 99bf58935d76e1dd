"""Semantics of an op of a graph: its operands as executed, its work, whether sums pass through
it.
"""

from __future__ import annotations

import json

from ..errors import InputError
from ..graph import Graph, Op
from .description import Shape
from .dtype import canonical
from .registry import Semantics, semantics_of, traits_of
from .work import Work, layouts, shard_work


def op_semantics(graph: Graph, position: int) -> Semantics:
    """Semantics of one op of a graph; the attribute "in" replaces the shapes of the tensors read.

    Raises InputError that names the op.
    """
    op, read = graph.ops[position], operand_shapes(graph, position)
    try:
        return semantics_of(op.kind, op.attrs, read, [t.shape for t in op.made])
    except InputError as error:
        raise InputError([f'op "{op.name}": {problem}' for problem in error.problems]) from None


def operand_shapes(graph: Graph, position: int) -> tuple[Shape | None, ...]:
    """Shapes of an op's operands as executed.

    Raises InputError where the attribute "in" is no list of shapes.
    """
    told = graph.ops[position].attrs.get("in")
    if told is None:
        return tuple(tensor.shape for tensor in graph.operands[position])
    if not isinstance(told, list | tuple) or not all(
        shape is None or _is_shape(shape) for shape in told
    ):
        raise _no_list(graph.ops[position], "in", "shapes")
    return tuple([None if shape is None else tuple(shape) for shape in told])


def _is_shape(value: object) -> bool:
    return isinstance(value, list | tuple) and all(
        isinstance(extent, int) and extent >= 0 for extent in value
    )


def operand_dtypes(graph: Graph, position: int) -> tuple[str | None, ...]:
    """Dtypes of an op's operands as executed, by their canonical names.

    Raises InputError where the attribute "dt" is no list of names, or a name is that of no dtype.
    """
    told = graph.ops[position].attrs.get("dt")
    if told is None:
        told = [tensor.dtype for tensor in graph.operands[position]]
    elif not isinstance(told, list | tuple) or not all(
        name is None or isinstance(name, str) for name in told
    ):
        raise _no_list(graph.ops[position], "dt", "dtypes")
    try:
        return tuple([canonical(name) if name is not None else None for name in told])
    except InputError as error:
        raise InputError(f'op "{graph.ops[position].name}": {error.problems[0]}') from None


def _no_list(op: Op, attribute: str, of: str) -> InputError:
    value = json.dumps(op.attrs[attribute], default=repr)
    return InputError(f'op "{op.name}": attrs.{attribute}: must be a list of {of}, got {value}')


def op_work(graph: Graph, position: int) -> Work:
    """Work of one op of a graph. Raises InputError that names the op."""
    op = graph.ops[position]
    dtypes = operand_dtypes(graph, position)
    made = [tensor.dtype for tensor in op.made]
    return shard_work(
        op_semantics(graph, position), {}, dtypes, made, layouts(op.attrs.get("strides"))
    )


def is_linear(op: Op) -> bool:
    """Whether partial results may pass through the op: a sum of its results is the result of the
    sum.
    """
    traits = traits_of(op.kind)
    if traits.linear == "scale":
        return len(op.inputs) == 1
    return traits.view or (traits.linear == "sum" and "other" not in op.attrs)
