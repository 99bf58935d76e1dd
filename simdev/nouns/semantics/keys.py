"""The key of an op (all that tells one measured operator from another), and the load that it asks
of a device: FLOPs and bytes. A row of a profile and an op of a graph with equal keys have equal
loads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from ...ground.errors import InputError
from ..graph import Graph
from . import backward_of, op_class, operand_dtypes, operand_shapes, semantics_of, traits_of, work
from .dtype import bits_of, canonical
from .lengths import Extents, Operands, extents_of

PHASE_CODES = {"forward": "fwd", "backward": "bwd", "update": "opt"}
_KEY = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str)
_VARIANT = json.JSONEncoder(sort_keys=True)
_TELLING = ("stride", "dilation", "dim")  # attributes whose numbers choose a kernel


def profile_key(
    kind: str,
    attrs: Mapping[str, Any],
    operands: Sequence[Sequence[int] | None],
    dtypes: Sequence[str | None],
    outputs: Sequence[Sequence[int] | None],
    phase: str,
    device: str,
) -> str:
    """Canonical JSON of everything that tells one measured operator from another.

    Operands and outputs without elements and attributes at their defaults are left out: cuDNN's
    batch norm has an empty reserve beside what every backend computes. Raises InputError for the
    name of an unknown dtype.
    """
    names = [canonical(name) if name else name for name in dtypes]
    attributes, defaults = dict(attrs), traits_of(kind).defaults
    if defaults:
        attributes = {
            name: value for name, value in attributes.items() if defaults.get(name) != value
        }
    if any(map(_is_empty, operands)):
        # An operator without operands by shape may still tell dtypes; those in step are dropped.
        names = [
            name
            for name, shape in zip_longest(names, operands[: len(names)])
            if not _is_empty(shape)
        ]
        operands = [shape for shape in operands if not _is_empty(shape)]
    outputs = [shape for shape in outputs if not _is_empty(shape)]
    return _KEY.encode([device, kind, phase, attributes, [*operands], names, outputs])


def _is_empty(shape: Sequence[int] | None) -> bool:
    return shape is not None and 0 in shape


def op_key(graph: Graph, position: int, device_kind: str) -> str:
    """Key of an op of a graph on a kind of device.

    The attributes "in" and "dt" (operand shapes and dtypes as executed) replace those of the
    tensors read, where views were folded away.
    """
    op = graph.ops[position]
    attrs = {name: value for name, value in op.attrs.items() if name not in ("in", "dt")}
    shapes, dtypes = operand_shapes(graph, position), operand_dtypes(graph, position)
    outputs = [tensor.shape for tensor in op.made]
    return profile_key(op.kind, attrs, shapes, dtypes, outputs, PHASE_CODES[op.phase], device_kind)


@dataclass(frozen=True, slots=True)
class Load:
    """What an op asks of a device: FLOPs, bytes read and written, and what tells it from its like.

    ``dtype`` is that of the arithmetic; ``variant`` holds its attributes and ranks, so that equal
    sizes of different variants (a stride, a transposition) are told apart. ``extents``, ``aligned``
    and ``mark`` are those of ``extents_of``.
    """

    kind: str
    op_class: str
    dtype: str
    flops: int
    read: int
    written: int
    variant: str
    extents: tuple[float, ...] = ()
    aligned: float = 1.0
    mark: str = ""

    @property
    def family(self) -> str:
        """Its kind, with its mark: what has kernels of its own."""
        return f"{self.kind} {self.mark}" if self.mark else self.kind

    @property
    def forward(self) -> str:
        """The family of its forward: an op and its gradients have grids of blocks alike."""
        kind = backward_of(self.kind) or self.kind
        return f"{kind} {self.mark}" if self.mark else kind

    @property
    def is_free(self) -> bool:
        """Whether it computes nothing and moves no byte, as a view."""
        return not (self.flops or self.read or self.written)


def load_of(key: str) -> Load | None:
    """What the op of a profile key asks of a device; None where its work is not known.

    ``dtype`` is the first operand's that is a float's, else the first, else float32. Only the key
    counts, so that a row of a profile and an op of a graph have the same load. Raises InputError
    for the name of an unknown dtype.
    """
    _, kind, _, attrs, shapes, dtypes, outputs = json.loads(key)
    amount = work(kind, attrs, shapes, outputs, dtypes)
    if amount is None:
        return None
    ranks = [len(shape) if shape is not None else None for shape in shapes]
    # That an operand has strides tells that it is not contiguous; their values are sizes, as those
    # of most attributes.
    marks = {
        name: value if isinstance(value, bool | str) or name in _TELLING else name
        for name, value in attrs.items()
    }
    names = [canonical(name) for name in dtypes if name]
    # An index or a mask beside floats (a lookup, a dropout) does not set the arithmetic's dtype.
    dtype = next((name for name in names if "float" in name), names[0] if names else "float32")
    flops, read, written = map(int, (amount.flops, amount.bytes_read, amount.bytes_written))
    variant = _VARIANT.encode([marks, ranks])
    called, extents = op_class(kind), Extents()
    if None not in (*shapes[:3], *outputs[:1]):
        element = max(1, bits_of(dtype) // 8)
        extents = extents_of(called, Operands(kind, attrs, shapes, outputs, flops), element)
    return Load(kind, called, dtype, flops, read, written, variant, *extents)


def work_problem(key: str) -> str:
    """Why the work of an op is not known; "" where it is."""
    _, kind, _, attrs, shapes, _, outputs = json.loads(key)
    try:
        semantics_of(kind, attrs, shapes, outputs)
    except InputError as error:
        return error.problems[0]
    return ""
