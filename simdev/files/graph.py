"""Graphs from and to JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import cache
from typing import Any, Required

from pydantic import TypeAdapter, with_config
from typing_extensions import TypedDict

from ..errors import InputError
from ..graph import Graph, Op, Tensor
from ..semantics.dtype import known, no_dtype
from .reading import PathLike
from .shape import STRICT, Bytes, Dtype, Time, plain, read_shape
from .source import opened
from .writing import time_text, write_text


@with_config(STRICT)
class _TensorShape(TypedDict, total=False):
    bytes: Required[Bytes]
    shape: list[int] | None
    dtype: Dtype
    view_of: int | None


@with_config(STRICT)
class _OpShape(TypedDict, total=False):
    name: Required[str]
    kind: str
    phase: str
    inputs: list[str]
    control_inputs: list[str]
    outputs: list[_TensorShape]
    attrs: dict[str, Any]
    param_bytes: Bytes
    grad_bytes: Bytes
    state_bytes: Bytes
    workspace_bytes: Bytes
    colocate: str | None
    time: Time


@with_config(STRICT)
class _GraphShape(TypedDict, total=False):
    name: str
    ops: Required[list[_OpShape]]
    provenance: dict[str, Any]


_KEYS = frozenset(
    {
        *_GraphShape.__annotations__,
        *_OpShape.__annotations__,
        *_TensorShape.__annotations__,
        "version",
    }
)


@cache
def _adapter() -> TypeAdapter[Any]:
    return TypeAdapter(_GraphShape)


def read_graph(source: PathLike | Mapping[str, Any]) -> Graph:
    """The graph of a file, or of an object already parsed (which may leave out the version).

    Raises InputError with every problem at once.
    """
    with opened(source) as (value, is_file):
        shaped = read_shape(_adapter(), value, _KEYS, is_file, "a graph")
        problems = [
            problem
            for i, fields in enumerate(shaped["ops"])
            for problem in _dtype_problems(i, fields)
        ]
        if problems:
            raise InputError(problems)
        return Graph(shaped.get("name", "graph"), tuple(map(_op, shaped["ops"])))


def _dtype_problems(i: int, fields: Mapping[str, Any]) -> Iterator[str]:
    """Names in the attribute "dt" (dtypes as executed) that are those of no dtype."""
    dtypes = fields.get("attrs", {}).get("dt")
    for k, name in enumerate(dtypes if isinstance(dtypes, list) else ()):
        if isinstance(name, str) and known(name) is None:
            yield f"ops[{i}].attrs.dt[{k}]: {no_dtype(name)}"


def _op(fields: dict[str, Any]) -> Op:
    outputs = tuple(
        Tensor(
            one["bytes"],
            None if one.get("shape") is None else tuple(one["shape"]),
            one.get("dtype"),
            one.get("view_of"),
        )
        for one in fields.get("outputs", ())
    )
    lists: dict[str, Any] = {
        str(name): tuple(fields[name]) for name in ("inputs", "control_inputs") if name in fields
    }
    changed: dict[str, Any] = {**lists, "outputs": outputs, "attrs": plain(fields.get("attrs", {}))}
    return Op(**(fields | changed))


def write_graph(graph: Graph, path: PathLike) -> None:
    """Write a graph, an op a line.

    Raises InputError where an attribute is no JSON, OSError where it cannot write.
    """
    write_text(path, graph_text(graph) + "\n")


def graph_text(graph: Graph) -> str:
    """The graph as JSON, an op a line. Raises InputError where an attribute is no JSON."""
    problems, lines = [], []
    for i, op in enumerate(graph.ops):
        try:
            lines.append(json.dumps(_op_object(op), ensure_ascii=False, allow_nan=False))
        except (TypeError, ValueError):
            problems.append(f"ops[{i}].attrs: cannot be written as JSON")
    if problems:
        raise InputError(problems)
    head = json.dumps(graph.name, ensure_ascii=False)
    body = "[\n  " + ",\n  ".join(lines) + "\n]" if lines else "[]"
    return f'{{"version": 1, "name": {head}, "ops": {body}}}'


def _op_object(op: Op) -> dict[str, Any]:
    """The fields of an op that differ from their defaults."""
    found: dict[str, Any] = {"name": op.name, "kind": op.kind, "phase": op.phase}
    found |= {
        name: list(getattr(op, name)) for name in ("inputs", "control_inputs") if getattr(op, name)
    }
    if op.outputs:
        found["outputs"] = [_tensor_object(tensor) for tensor in op.outputs]
    if op.attrs:
        found["attrs"] = dict(op.attrs)
    sizes = ("param_bytes", "grad_bytes", "state_bytes", "workspace_bytes")
    found |= {name: getattr(op, name) for name in sizes if getattr(op, name)}
    if op.colocate is not None:
        found["colocate"] = op.colocate
    if isinstance(op.time, Mapping):
        found["time"] = {kind: time_text(Fraction(seconds)) for kind, seconds in op.time.items()}
    elif op.time is not None:
        found["time"] = time_text(Fraction(op.time))
    return found


def _tensor_object(tensor: Tensor) -> dict[str, Any]:
    found: dict[str, Any] = {"bytes": tensor.bytes}
    if tensor.shape is not None:
        found["shape"] = list(tensor.shape)
    if tensor.dtype is not None:
        found["dtype"] = tensor.dtype
    if tensor.view_of is not None:
        found["view_of"] = tensor.view_of
    return found
