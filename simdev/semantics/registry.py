"""Kinds of ops by name: who describes them, what class they are of, and their vocabulary for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from ..errors import InputError
from .description import Call, Describer, Description, Entry, Shape
from .index import Axis, Index, Interval, axes_of, clipped_interval

OP_CLASSES = (
    "gemm",
    "conv",
    "attention",
    "norm",
    "softmax",
    "elementwise",
    "reduction",
    "pooling",
    "embedding",
    "recurrent",
    "data_movement",
    "optimizer",
    "other",
)
Dims = tuple[tuple[Index | None, frozenset[str], Interval], ...]
"""One a dimension: the expression (None: whole), its axes' names, and its interval when no axis is split."""

_CACHED = 16_384
_LAYOUT = frozenset({"in", "dt", "strides"})  # how the operands lie, not what is computed


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of op: its describer and class; operands, outputs and attributes in words, for the table of kinds."""

    name: str
    describe: Describer = field(repr=False)
    op_class: str = "other"
    operands: str = ""
    outputs: str = ""
    attributes: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Semantics:
    """The description of one op with its shapes: what every question about its work, splits and shards starts from.

    Equal ops share one object, so it serves as a key.

    ``axes``: those of the outputs (or of what is updated in place) first, in order, then the others.
    ``reads`` and ``makes`` are how its dimensions of inputs and outputs are indexed, ready for questions.
    """

    kind: str
    op_class: str
    attrs: Mapping[str, Any]
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    description: Description = field(repr=False)
    axes: tuple[Axis, ...]
    reads: tuple[Dims, ...] = field(repr=False)
    makes: tuple[Dims, ...] = field(repr=False)


_KINDS: dict[str, Kind] = {}


def register(
    kind: str,
    describe: Describer,
    op_class: str = "other",
    *,
    operands: str = "",
    outputs: str = "",
    attributes: str = "",
) -> None:
    """Makes a kind known; one registered before is replaced.

    ``describe`` gets a ``Call`` (attributes and shapes) and returns its ``Description``; where the shapes do not fit
    it raises ValueError. Raises InputError for an unknown class.
    """
    if op_class not in OP_CLASSES:
        raise InputError(f'kind "{kind}": op_class: must be one of {", ".join(OP_CLASSES)}, got "{op_class}"')
    _KINDS[kind] = Kind(kind, describe, op_class, operands, outputs, attributes)
    _semantics_of.cache_clear()


def kinds() -> Mapping[str, Kind]:
    """All known kinds by name, sorted."""
    return {name: _KINDS[name] for name in sorted(_KINDS)}


def op_class(kind: str) -> str:
    """Class of a kind, one of OP_CLASSES; "other" where it is not known."""
    return _KINDS[kind].op_class if kind in _KINDS else "other"


def semantics_of(
    kind: str, attrs: Mapping[str, Any], inputs: Sequence[Shape | None], outputs: Sequence[Shape | None]
) -> Semantics:
    """Semantics of an op by its kind, attributes, operand shapes (as executed) and output shapes.

    Raises InputError: the kind has no semantics, a shape is unknown, or the shapes do not fit the kind.
    """
    if kind not in _KINDS:
        raise InputError(f'no semantics for kind "{kind}"')
    found = []
    for what, shapes in (("operand", inputs), ("output", outputs)):
        for i, shape in enumerate(shapes):
            if shape is None:
                raise InputError(f'kind "{kind}": {what} {i} has no shape')
        found.append(tuple(tuple(shape) for shape in shapes if shape is not None))
    plain = {name: value for name, value in attrs.items() if name not in _LAYOUT}
    return _semantics_of(kind, _frozen(plain), *found)


@lru_cache(_CACHED)
def _semantics_of(kind: str, frozen: Any, inputs: tuple[Shape, ...], outputs: tuple[Shape, ...]) -> Semantics:
    entry = _KINDS[kind]
    attrs = {name: _thawed(value) for name, value in frozen}
    try:
        description = entry.describe(Call(attrs, inputs, outputs))
        reads = tuple(_dims(access.index, shape) for access, shape in _paired(description.inputs, inputs, "operand"))
        makes = tuple(_dims(output.index, shape) for output, shape in _paired(description.outputs, outputs, "output"))
        axes = tuple(_axes(description))
    except (ValueError, IndexError, KeyError, TypeError, ZeroDivisionError, AttributeError) as error:
        raise InputError(_misfit(kind, attrs, inputs, outputs, error)) from None
    return Semantics(kind, entry.op_class, attrs, inputs, outputs, description, axes, reads, makes)


def _paired(entries: Sequence[Any], shapes: Sequence[Shape], what: str) -> Iterator[tuple[Any, Shape]]:
    if len(entries) != len(shapes):
        raise ValueError(f"needs {len(entries)} {what}s, got {len(shapes)}")
    for i, (entry, shape) in enumerate(zip(entries, shapes, strict=True)):
        if len(entry.index) != len(shape):
            raise ValueError(f"{what} {i} must have {len(entry.index)} dimensions, got {list(shape)}")
        for axis, extent in zip(entry.index, shape, strict=True):
            if isinstance(axis, Axis) and axis.size != extent:
                raise ValueError(f'{what} {i} has {extent} along "{axis.name}", which is {axis.size} elsewhere')
        yield entry, shape


def _dims(entries: Sequence[Entry], shape: Shape) -> Dims:
    found: list[tuple[Index | None, frozenset[str], Interval]] = []
    for entry, extent in zip(entries, shape, strict=True):
        if entry is None:
            found.append((None, frozenset(), (0, extent)))
            continue
        index = Index((), entry) if isinstance(entry, int) else entry.as_index()
        names = frozenset(axis.name for axis in axes_of(index))
        found.append((index, names, clipped_interval(index, extent, {})))
    return tuple(found)


def _axes(description: Description) -> Iterator[Axis]:
    """Axes of the outputs, then what they are reduced over, then the others, each once; one name is one axis."""
    seen: dict[str, Axis] = {}
    for axis in _mentioned(description):
        known = seen.get(axis.name)
        if known is None:
            seen[axis.name] = axis
            yield axis
        elif known != axis:
            raise ValueError(f'axis "{axis.name}" is {known.size} and {axis.size}')


def _mentioned(description: Description) -> Iterator[Axis]:
    made = [output.index for output in description.outputs]
    made += [description.inputs[i].index for i in description.updated]
    for entries in made:
        yield from _entry_axes(entries)
    for output in description.outputs:
        yield from output.over
    for access in description.inputs:
        yield from _entry_axes(access.index)
        yield from access.at_most or ()
        yield from axes_of(access.when) if access.when is not None else ()
    for _, points in description.flops:
        yield from points


def _entry_axes(entries: Sequence[Entry]) -> Iterator[Axis]:
    for entry in entries:
        if isinstance(entry, Axis):
            yield entry
        elif isinstance(entry, Index):
            yield from axes_of(entry)


def _misfit(kind: str, attrs: Any, inputs: Sequence[Shape], outputs: Sequence[Shape], error: Exception) -> str:
    reason = f"no attribute {error}" if isinstance(error, KeyError) else str(error)
    shapes = f"{[list(shape) for shape in inputs]} -> {[list(shape) for shape in outputs]}"
    return f'kind "{kind}": {shapes} with attributes {dict(attrs)} does not fit: {reason}'


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return tuple(sorted((str(name), _frozen(item)) for name, item in value.items()))
    if isinstance(value, list | tuple):
        return (list, *(_frozen(item) for item in value))
    # True and 1 (and 1.0) are equal and would share an entry, but an attribute is handed on as it was written.
    return (type(value), value)


def _thawed(value: Any) -> Any:
    if value and value[0] is list:
        return [_thawed(item) for item in value[1:]]
    if len(value) == 2 and isinstance(value[0], type):
        return value[1]
    return {name: _thawed(item) for name, item in value}
