"""Graphs from and to JSON.

Fields and their limits are in ``nouns/graph.py``. Kinds of ops are not checked, for a kind without
a description is allowed (``nouns/semantics``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Required

from typing_extensions import TypedDict

from ..ground.errors import refuse
from ..nouns.graph import Graph, Op, Tensor
from ..nouns.semantics.dtype import known, no_dtype
from .reading import PathLike
from .shape import Bytes, Dtype, Fields, Format, GivenTime, keys_of, plain
from .writing import changed_fields, entries_text, write_text


@keys_of(Tensor)
class _TensorShape(TypedDict, total=False):
    """An output of an op.

    - ``bytes``: its size.
    - ``shape``: its extents.
    - ``dtype``: a name like ``float32``; unknown ones are refused.
    - ``view_of``: another output of the same op, of which this one is a view without memory of its
      own.
    """

    bytes: Required[Bytes]
    dtype: Dtype


@keys_of(Op)
class _OpShape(TypedDict, total=False):
    """An op.

    - ``name``: unique, 1 to 256 printable characters, no colon and digits at its end, no ``^``
      at its start.
    - ``kind``: what it computes; default ``op``.
    - ``phase``: ``forward`` (default), ``backward`` or ``update``.
    - ``inputs``: tensors that it reads, ``op`` (output 0) or ``op:output``.
    - ``control_inputs``: ops that it waits for; from another device by a transfer of 0 bytes.
    - ``outputs``: the tensors that it makes.
    - ``attrs``: attributes that matter for its time; ``in`` and ``dt`` are operand shapes and
      dtypes as executed; a collective has ``ranks``.
    - ``param_bytes``, ``grad_bytes``, ``state_bytes``: memory that is held for the whole step.
    - ``workspace_bytes``: memory that is held while it runs.
    - ``colocate``: a group whose ops share a device.
    - ``time``: how long it takes, overriding any profile; seconds, a text with a unit, or either
      by kind of device.
    - ``host_time``: how long the host needs to dispatch it.
    - ``launches``: how many kernels its dispatch launches; default 1.
    - ``blocks_host``: whether the host then waits for its end; default false.
    - ``releases``: tensors that the program keeps a reference to until this op ends; they count
      where memory is counted as PyTorch counts it.
    - ``stream``: the queue of its device in which it runs, as a CUDA stream, in program order;
      default the compute queue. A collective runs in that stream of each of its ranks.
    """

    outputs: list[_TensorShape]
    param_bytes: Bytes
    grad_bytes: Bytes
    state_bytes: Bytes
    workspace_bytes: Bytes
    host_time: GivenTime
    launches: int


class _GraphShape(TypedDict, total=False):
    """Ops in program order, which breaks ties.

    - ``ops``: the ops in program order.
    - ``name``: what it is called.
    - ``provenance``: where it comes from, in any form.
    """

    name: str
    ops: Required[list[_OpShape]]
    provenance: dict[str, Any]


FORMAT = Format(_GraphShape, "a graph")


def read_graph(source: PathLike | Mapping[str, Any]) -> Graph:
    """The graph of a file, or of an object already parsed (which may leave out the version).

    Raises InputError with every problem at once.
    """
    with FORMAT.opened(source) as fields:
        ops = fields["ops"]
        refuse(problem for i, op in enumerate(ops) for problem in _dtype_problems(i, op))
        graph = Graph(fields.get("name", "graph"), tuple(map(_op, ops)))
        rows = range(len(graph.ops))
        refuse(problem for i in rows for problem in graph.unresolved(i, "releases"))
        return graph


def _dtype_problems(i: int, fields: Mapping[str, Any]) -> Iterator[str]:
    """Problems of entries of the attribute "dt" (dtypes as executed) that are not dtypes."""
    dtypes = fields.get("attrs", {}).get("dt")
    for k, name in enumerate(dtypes if isinstance(dtypes, list) else ()):
        if isinstance(name, str) and known(name) is None:
            yield f"ops[{i}].attrs.dt[{k}]: {no_dtype(name)}"


def _op(fields: Fields) -> Op:
    outputs = tuple(Tensor(**tensor) for tensor in fields.get("outputs", ()))
    # Attributes are compared with those of profile rows, where 0.5 is a float: no Decimals here.
    return Op(**{**fields, "outputs": outputs, "attrs": plain(fields.get("attrs", {}))})


def write_graph(graph: Graph, path: PathLike) -> None:
    """Write a graph with one op a line.

    Raises InputError where an attribute is no JSON, OSError where it cannot write.
    """
    write_text(path, graph_text(graph) + "\n")


def graph_text(graph: Graph) -> str:
    """The graph as JSON, one op a line. Raises InputError where an attribute is no JSON."""
    # All ops are tried, so that all attributes that are no JSON are reported at once.
    problems, lines = [], []
    for i, op in enumerate(graph.ops):
        fields = changed_fields(op, "kind", "phase")
        try:
            lines.append(json.dumps(fields, ensure_ascii=False, allow_nan=False))
        except (TypeError, ValueError):
            problems.append(f"ops[{i}].attrs: cannot be written as JSON")
    refuse(problems)
    head = json.dumps(graph.name, ensure_ascii=False)
    return f'{{"version": 1, "name": {head}, {entries_text("ops", lines)}}}'
