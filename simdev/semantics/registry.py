"""Kinds of ops by name: who describes them, what class they are of, and their vocabulary for
people.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from ..errors import InputError
from .description import Call, Describer, Description, Entry, Shape
from .index import Axis, Index, Interval, Region, axes_of, clipped_interval
from .traits import OP_CLASSES, UNKNOWN, Traits

Dims = tuple[tuple[Axis | Index | None, frozenset[str], Interval], ...]
"""One a dimension: how it is indexed (None: whole), its axes' names, and its interval when no axis
is split.
"""

_CACHED = 16_384
_UNTOLD = Traits()
_LAYOUT = frozenset({"in", "dt", "strides"})  # how the operands lie, not what is computed


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of op: describer, class, traits; operands, outputs and attributes in words, for the
    table of kinds.
    """

    name: str
    describe: Describer = field(repr=False)
    op_class: str = "other"
    traits: Traits = UNKNOWN
    operands: str = ""
    outputs: str = ""
    attributes: str = ""


@dataclass(frozen=True, eq=False)
class Semantics:
    """The description of one op with its shapes: what every question about its work, splits and
    shards starts from.

    Equal ops share one object, so it serves as a key.

    ``axes``: those of the outputs (or of what is updated in place) first, in order, then the
    others. ``read`` and ``made``: the regions of inputs and outputs that the whole op touches.
    """

    kind: str
    op_class: str
    attrs: Mapping[str, Any]
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    description: Description = field(repr=False)
    axes: tuple[Axis, ...]
    read: tuple[Region, ...] = field(repr=False)
    made: tuple[Region, ...] = field(repr=False)

    @cached_property
    def reads(self) -> tuple[Dims, ...]:
        """How the dimensions of its inputs are indexed."""
        pairs = zip(self.description.inputs, self.read, strict=True)
        return tuple(_dims(access.index, region) for access, region in pairs)

    @cached_property
    def makes(self) -> tuple[Dims, ...]:
        """How the dimensions of its outputs are indexed."""
        pairs = zip(self.description.outputs, self.made, strict=True)
        return tuple(_dims(output.index, region) for output, region in pairs)


_KINDS: dict[str, Kind] = {}
_TRAITS: dict[str, Traits] = {}  # of the kinds: asked of every op of a graph again and again


def register(
    kind: str,
    describe: Describer,
    op_class: str = "other",
    operands: str = "",
    outputs: str = "",
    attributes: str = "",
    traits: Traits = _UNTOLD,
) -> None:
    """Makes a kind known; one registered before is replaced.

    ``describe`` gets a ``Call`` (attributes and shapes) and returns its ``Description``; where the
    shapes do not fit it raises ValueError. What ``traits`` leaves open is as its class has it.
    Raises InputError for an unknown class.
    """
    if op_class not in OP_CLASSES:
        raise InputError(
            f'kind "{kind}": op_class: must be one of {", ".join(OP_CLASSES)}, got "{op_class}"'
        )
    _KINDS[kind] = Kind(
        kind, describe, op_class, traits.within(op_class), operands, outputs, attributes
    )
    _TRAITS[kind] = _KINDS[kind].traits
    _semantics_of.cache_clear()


def kinds() -> Mapping[str, Kind]:
    """All known kinds by name, sorted."""
    return {name: _KINDS[name] for name in sorted(_KINDS)}


def op_class(kind: str) -> str:
    """Class of a kind, one of OP_CLASSES; "other" where it is not known."""
    return _KINDS[kind].op_class if kind in _KINDS else "other"


def traits_of(kind: str) -> Traits:
    """Traits of a kind; those of class "other" where it is not known."""
    return _TRAITS.get(kind, UNKNOWN)


def backward_of(kind: str) -> str:
    """The forward kind that a kind is the backward of, "" where it is none: as it is registered,
    else by its name.
    """
    told, (stem, found, _) = traits_of(kind).backward_of, kind.partition("_backward")
    return told if told is not None else stem if found else ""


def adder_of(reducer: str) -> str:
    """The kind of op that combines partial results of a reduction, the first registered.

    Raises InputError.
    """
    found = next((name for name, kind in _KINDS.items() if kind.traits.combines == reducer), None)
    if found is None:
        raise InputError(
            f'reducer "{reducer}": no kind is registered to combine its partial results'
        )
    return found


def statistics_of(kind: str) -> str:
    """The forward kind of whose statistics a kind takes those of its own part of the batch, ""
    where it does not.
    """
    return backward_of(kind) if traits_of(kind).own_statistics else ""


def semantics_of(
    kind: str,
    attrs: Mapping[str, Any],
    inputs: Sequence[Shape | None],
    outputs: Sequence[Shape | None],
) -> Semantics:
    """Semantics of an op by its kind, attributes, operand shapes (as executed) and output shapes.

    Raises InputError: the kind has no semantics, a shape is unknown, or the shapes do not fit the
    kind.
    """
    read, made = _shapes(kind, inputs, outputs)
    return _semantics_of(kind, _frozen(_told(attrs)), read, made)


def passing_semantics(
    kind: str,
    attrs: Mapping[str, Any],
    inputs: Sequence[Shape | None],
    outputs: Sequence[Shape | None],
) -> Semantics:
    """As ``semantics_of``, for one question: an object that nothing keeps, and no key.

    A hundred thousand objects that are kept cost more than to make them: the garbage collector
    walks over all of them.
    """
    read, made = _shapes(kind, inputs, outputs)
    return _semantics(
        kind, {name: _listed(value) for name, value in _told(attrs).items()}, read, made
    )


def _told(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes that tell what is computed."""
    return {name: value for name, value in attrs.items() if name not in _LAYOUT}


def _shapes(
    kind: str, inputs: Sequence[Shape | None], outputs: Sequence[Shape | None]
) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
    """Those of the operands and of the outputs. Raises InputError."""
    if kind not in _KINDS:
        raise InputError(f'no semantics for kind "{kind}"')
    found = []
    for what, shapes in (("operand", inputs), ("output", outputs)):
        for i, shape in enumerate(shapes):
            if shape is None:
                raise InputError(f'kind "{kind}": {what} {i} has no shape')
        found.append(tuple([tuple(shape) for shape in shapes if shape is not None]))
    return found[0], found[1]


def _semantics(
    kind: str, attrs: dict[str, Any], inputs: tuple[Shape, ...], outputs: tuple[Shape, ...]
) -> Semantics:
    entry = _KINDS[kind]
    try:
        description = entry.describe(Call(attrs, inputs, outputs))
        read = _touched([access.index for access in description.inputs], inputs, "operand")
        made = _touched([output.index for output in description.outputs], outputs, "output")
        axes = _axes(description)
    except (
        ValueError,
        IndexError,
        KeyError,
        TypeError,
        ZeroDivisionError,
        AttributeError,
    ) as error:
        raise InputError(_misfit(kind, attrs, inputs, outputs, error)) from None
    return Semantics(kind, entry.op_class, attrs, inputs, outputs, description, axes, read, made)


@lru_cache(_CACHED)
def _semantics_of(
    kind: str, frozen: Any, inputs: tuple[Shape, ...], outputs: tuple[Shape, ...]
) -> Semantics:
    return _semantics(kind, {name: _thawed(value) for name, value in frozen}, inputs, outputs)


def _touched(
    entries: Sequence[Sequence[Entry]], shapes: Sequence[Shape], what: str
) -> tuple[Region, ...]:
    if len(entries) != len(shapes):
        raise ValueError(f"needs {len(entries)} {what}s, got {len(shapes)}")
    return tuple(
        [
            _region(own, shape, what, i)
            for i, (own, shape) in enumerate(zip(entries, shapes, strict=True))
        ]
    )


def _region(entries: Sequence[Entry], shape: Shape, what: str, number: int) -> Region:
    if len(entries) != len(shape):
        raise ValueError(f"{what} {number} must have {len(entries)} dimensions, got {list(shape)}")
    found: list[Interval] = []
    for entry, extent in zip(entries, shape, strict=True):
        if entry is None or isinstance(entry, Axis):
            if entry is not None and entry.size != extent:
                raise ValueError(
                    f'{what} {number} has {extent} along "{entry.name}", which is '
                    f"{entry.size} elsewhere"
                )
            found.append((0, extent))
        else:
            found.append(
                clipped_interval(Index((), entry) if isinstance(entry, int) else entry, extent, {})
            )
    return tuple(found)


def _dims(entries: Sequence[Entry], region: Region) -> Dims:
    found: list[tuple[Axis | Index | None, frozenset[str], Interval]] = []
    for entry, interval in zip(entries, region, strict=True):
        index = Index((), entry) if isinstance(entry, int) else entry
        names = (
            frozenset(axis.name for axis in axes_of(index.as_index()))
            if index is not None
            else frozenset()
        )
        found.append((index, names, interval))
    return tuple(found)


def _axes(description: Description) -> tuple[Axis, ...]:
    """Axes of the outputs, then what they are reduced over, then the others, each once; one name is
    one axis.
    """
    found: dict[str, Axis] = {}
    for axis in _mentioned(description):
        known = found.setdefault(axis.name, axis)
        if known is not axis and known != axis:
            raise ValueError(f'axis "{axis.name}" is {known.size} and {axis.size}')
    return tuple(found.values())


def _mentioned(description: Description) -> list[Axis]:
    found: list[Axis] = []
    for output in description.outputs:
        found += _entry_axes(output.index)
    for i in description.updated:
        found += _entry_axes(description.inputs[i].index)
    for output in description.outputs:
        found += output.over
    for access in description.inputs:
        found += _entry_axes(access.index)
        found += access.at_most or ()
        found += axes_of(access.when) if access.when is not None else ()
    for _, points in description.flops:
        found += points
    return found


def _entry_axes(entries: Sequence[Entry]) -> list[Axis]:
    found: list[Axis] = []
    for entry in entries:
        if isinstance(entry, Axis):
            found.append(entry)
        elif isinstance(entry, Index):
            found += axes_of(entry)
    return found


def _misfit(
    kind: str, attrs: Any, inputs: Sequence[Shape], outputs: Sequence[Shape], error: Exception
) -> str:
    reason = f"no attribute {error}" if isinstance(error, KeyError) else str(error)
    shapes = f"{[list(shape) for shape in inputs]} -> {[list(shape) for shape in outputs]}"
    return f'kind "{kind}": {shapes} with attributes {dict(attrs)} does not fit: {reason}'


def _frozen(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return (list, *map(_frozen, value))
    # the latter takes its time
    if not isinstance(value, int | float | str) and isinstance(value, Mapping):
        return tuple(sorted([(str(name), _frozen(item)) for name, item in value.items()]))
    # True and 1 (and 1.0) are equal and would share an entry, but an attribute is handed on as it
    # was written.
    return (type(value), value)


def _listed(value: Any) -> Any:
    """As an attribute is handed on: what was a tuple or a mapping of another type is a list or a
    dict.
    """
    if isinstance(value, list | tuple):
        return [_listed(item) for item in value]
    if not isinstance(value, int | float | str) and isinstance(value, Mapping):
        return {str(name): _listed(item) for name, item in value.items()}
    return value


def _thawed(value: Any) -> Any:
    if value and value[0] is list:
        return [_thawed(item) for item in value[1:]]
    if len(value) == 2 and isinstance(value[0], type):
        return value[1]
    return {name: _thawed(item) for name, item in value}
