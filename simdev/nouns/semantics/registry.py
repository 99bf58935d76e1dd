"""The registry of kinds of ops by name: describer, class, traits (true of every op of a kind,
whatever its shapes), and words for people. ``semantics_of`` makes the semantics of one op with its
shapes, which the other modules of the package start from.

A trait that a whole class shares is a name in ``_OF_CLASSES`` and in the rows of ``_BY_CLASS``.
Efficiencies of datasheets are given by class (``simdev/costs/roofline.py`` reads ``OP_CLASSES``),
and the extents of a class are counted in ``keys``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Literal

from ...ground.errors import InputError
from ...ground.frozen import FrozenDict
from .description import (
    Axis,
    Call,
    Describer,
    Description,
    Entry,
    Index,
    Interval,
    Region,
    Shape,
    axes_of,
    indexed,
)

Leaf = Literal["constant", "input", "parameter"]
LEAF_ROLES: tuple[Leaf, ...] = ("constant", "input", "parameter")
Linear = Literal["sum", "scale"]


@dataclass(frozen=True, slots=True)
class Traits:
    """Traits of every op of a kind. A field of None means the trait of the kind's class.

    - ``leaf``: it computes nothing; its output is a tensor that already exists: a weight
      (``parameter``), an input of the step (``input``) or a tensor that never changes
      (``constant``).
    - ``view``: its outputs are its operand's memory under other indices.
    - ``linear``: partial results may pass through it, since the sum of its results is its result on
      the sum: ``sum``, linear in all operands together, where no number is added; ``scale``, its
      one operand times a number. Views are linear.
    - ``linear_in``: for a kind that makes a weight's gradient, the only operand in which it is
      linear: partial results of that operand become partial gradients, which are added up once.
    - ``backward_of``: the forward kind whose backward it is; if empty, the part of its name before
      "_backward".
    - ``own_statistics``: a backward that uses the statistics of the same part of the batch, which
      the forward op took, as in data-parallel training.
    - ``drawn``: it draws random numbers: drawing them again elsewhere costs less than sending them.
    - ``combines``: the reduction whose partial results it combines (``sum``, ``max``, ``min`` or
      ``prod``).
    - ``transposes``: for each operand, the attribute that says that it is read transposed.
    - ``positive``: its operands are positive in practice: with other values it takes slower or
      faster paths.
    - ``pointwise``: each element of its outputs depends only on the elements at the same place
      (Tofu merges chains of such ops).
    - ``layer``: SOAP gives it a configuration; other kinds follow their operands.
    - ``weighted``: a layer with weights: its backward follows the incoming gradient.
    - ``whole_samples``: under one weird trick it is cut along its samples only: it needs whole
      channels, or splitting channels would move more than it saves.
    - ``bare``: PyTorch's C++ code issues it outside of modules and autograd, as where
      DistributedDataParallel copies gradients out of its buckets.
    - ``packs``: it copies tensors into one before a message, or apart after it.
    - ``computes``: small extents slow its arithmetic; in other kinds they slow the pass over
      memory.
    - ``defaults``: the default values of attributes, which keys of profiles leave out.
    """

    leaf: Leaf | None = None
    view: bool = False
    linear: Linear | None = None
    linear_in: int | None = None
    backward_of: str | None = None
    own_statistics: bool = False
    drawn: bool = False
    combines: str | None = None
    transposes: tuple[str, ...] = ()
    positive: bool = False
    bare: bool = False
    packs: bool = False
    # None: the class's trait, so that a kind registered in a class needs no traits.
    pointwise: bool | None = None
    layer: bool | None = None
    weighted: bool | None = None
    whole_samples: bool | None = None
    computes: bool | None = None
    defaults: Mapping[str, Any] = FrozenDict()

    def within(self, op_class: str) -> Traits:
        """These traits, with the traits of a class where a field is None."""
        of_class = _BY_CLASS[op_class]
        named: dict[str, Any] = {name: name in of_class for name in _OF_CLASSES}
        return replace(self, **{k: v for k, v in named.items() if getattr(self, k) is None})


_OF_CLASSES = ("pointwise", "layer", "weighted", "whole_samples", "computes")
_BY_CLASS: Mapping[str, tuple[str, ...]] = {
    "gemm": ("layer", "weighted", "computes"),
    "conv": ("layer", "weighted", "whole_samples", "computes"),
    "attention": ("layer", "whole_samples", "computes"),
    "norm": ("whole_samples",),
    "softmax": ("layer", "whole_samples"),
    "elementwise": ("pointwise",),
    "reduction": ("whole_samples",),
    "pooling": ("layer", "whole_samples"),
    "embedding": ("layer", "weighted", "whole_samples"),
    "recurrent": ("layer", "whole_samples", "computes"),
    "data_movement": (),
    "optimizer": ("pointwise",),
    "other": (),
}
OP_CLASSES = tuple(_BY_CLASS)
OPEN = Traits()
"""Traits that are all left to the class of the kind."""
UNKNOWN = OPEN.within("other")
"""The traits of an unregistered kind."""


Dim = tuple[Axis | Index | None, frozenset[str], Interval]
"""A dimension of a tensor: its index (None: whole), the names of the axes in it, and its interval
where no axis is split.
"""
Dims = tuple[Dim, ...]

# The largest graphs of the papers have some thousand different ops, and shards multiply these.
_CACHED = 16_384
_LAYOUT = frozenset({"in", "dt", "strides"})  # the layout of operands, not the computation
_ENCODER = json.JSONEncoder(sort_keys=True, default=dict)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of op: its describer, class and traits, and words on its operands, outputs and
    attributes for the table of kinds.
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
    """The description of one op with its shapes, from which its work, splits and shards follow.

    Equal ops share one object, so it serves as a key.

    ``axes``: axes of the outputs (or of operands updated in place) first, in order, then the
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
        """The dimensions of each input."""
        pairs = zip(self.description.inputs, self.read, strict=True)
        return tuple(_dims(access.index, region) for access, region in pairs)

    @cached_property
    def makes(self) -> tuple[Dims, ...]:
        """The dimensions of each output."""
        pairs = zip(self.description.outputs, self.made, strict=True)
        return tuple(_dims(output.index, region) for output, region in pairs)


_KINDS: dict[str, Kind] = {}
# The traits by kind: searches read them millions of times, so one look-up has to do.
_TRAITS: dict[str, Traits] = {}


def register(
    kind: str,
    describe: Describer,
    op_class: str = "other",
    operands: str = "",
    outputs: str = "",
    attributes: str = "",
    traits: Traits = OPEN,
) -> None:
    """Register a kind; an earlier registration is replaced.

    ``describe`` gets a ``Call`` (attributes and shapes) and returns its ``Description``; where the
    shapes do not fit it raises ValueError. Fields that ``traits`` leaves None are the class's.
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
    # The answers of an earlier describer of this kind are dropped.
    _semantics_of.cache_clear()


def kinds() -> Mapping[str, Kind]:
    """All known kinds by name, sorted."""
    return {name: _KINDS[name] for name in sorted(_KINDS)}


def is_described(kind: str) -> bool:
    """Whether a kind is known, so that shapes give its work and its splits."""
    return kind in _KINDS


def op_class(kind: str) -> str:
    """The class of a kind, one of OP_CLASSES; "other" for an unknown kind."""
    return _KINDS[kind].op_class if kind in _KINDS else "other"


def traits_of(kind: str) -> Traits:
    """The traits of a kind; the traits of class "other" for an unknown kind."""
    return _TRAITS.get(kind, UNKNOWN)


def backward_of(kind: str) -> str:
    """The forward kind of a backward kind, "" for others: as registered, else by its name."""
    forward = traits_of(kind).backward_of
    if forward is None:
        stem, suffix, _ = kind.partition("_backward")
        return stem if suffix else ""
    return forward


def adder_of(reducer: str) -> str:
    """The kind of op that combines partial results of a reduction, the first registered.

    Raises InputError.
    """
    # The first registered: a user's kind does not change the graphs of existing strategies.
    for name, kind in _KINDS.items():
        if kind.traits.combines == reducer:
            return name
    raise InputError(f'reducer "{reducer}": no kind is registered to combine its partial results')


def statistics_of(kind: str) -> str:
    """The forward kind whose statistics, of the same part of the batch, a backward kind uses; ""
    for others.
    """
    return backward_of(kind) if traits_of(kind).own_statistics else ""


def semantics_of(
    kind: str,
    attrs: Mapping[str, Any],
    inputs: Sequence[Shape | None],
    outputs: Sequence[Shape | None],
) -> Semantics:
    """The semantics of an op from its kind, attributes, operand shapes (as executed) and output
    shapes.

    Raises InputError: the kind has no semantics, a shape is unknown, an attribute is not JSON, or
    the shapes do not fit the kind.
    """
    shapes = _shapes(kind, inputs, outputs)
    try:
        # A text tells true, 1 and 1.0 apart, which are equal keys of a dict.
        key = _ENCODER.encode(_computing(attrs))
    except (TypeError, ValueError) as error:
        raise InputError(f'kind "{kind}": attributes: {error}') from None
    return _semantics_of(kind, key, *shapes)


@lru_cache(_CACHED)
def _semantics_of(
    kind: str, attrs: str, inputs: tuple[Shape, ...], outputs: tuple[Shape, ...]
) -> Semantics:
    return _semantics(kind, json.loads(attrs), inputs, outputs)


def passing_semantics(
    kind: str,
    attrs: Mapping[str, Any],
    inputs: Sequence[Shape | None],
    outputs: Sequence[Shape | None],
) -> Semantics:
    """The semantics of an op (``semantics_of``) as a new object that is not cached; it is no key.

    Keeping a hundred thousand objects costs more than making them: the garbage collector walks over
    all of them.
    """
    computing = {name: _listed(value) for name, value in _computing(attrs).items()}
    return _semantics(kind, computing, *_shapes(kind, inputs, outputs))


def _computing(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes that determine the computation."""
    return {name: value for name, value in attrs.items() if name not in _LAYOUT}


def _shapes(
    kind: str, inputs: Sequence[Shape | None], outputs: Sequence[Shape | None]
) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
    """The shapes of the operands and of the outputs. Raises InputError."""
    if not is_described(kind):
        raise InputError(f'no semantics for kind "{kind}"')
    if None in inputs or None in outputs:
        role, shapes = ("operand", inputs) if None in inputs else ("output", outputs)
        raise InputError(f'kind "{kind}": {role} {list(shapes).index(None)} has no shape')
    read, made = (tuple([tuple(shape or ()) for shape in shapes]) for shapes in (inputs, outputs))
    return read, made


def _semantics(
    kind: str, attrs: dict[str, Any], inputs: tuple[Shape, ...], outputs: tuple[Shape, ...]
) -> Semantics:
    entry = _KINDS[kind]
    try:
        description = entry.describe(Call(attrs, inputs, outputs))
        of_description = _described(description, inputs, outputs)
        return Semantics(kind, entry.op_class, attrs, inputs, outputs, **of_description)
    # A describer does not check shapes and attributes: any error means that they do not fit its
    # kind.
    except (
        ValueError,
        IndexError,
        KeyError,
        TypeError,
        ZeroDivisionError,
        AttributeError,
    ) as error:
        raise InputError(_misfit(kind, attrs, inputs, outputs, error)) from None


def redescribed(semantics: Semantics, description: Description) -> Semantics:
    """The semantics of an op with another description, as an object that is not cached.

    Raises ValueError where the shapes do not fit the description.
    """
    return replace(semantics, **_described(description, semantics.inputs, semantics.outputs))


def _described(
    description: Description, inputs: tuple[Shape, ...], outputs: tuple[Shape, ...]
) -> dict[str, Any]:
    """The fields of Semantics that follow from a description. Raises ValueError."""
    read = _touched([access.index for access in description.inputs], inputs, "operand")
    made = _touched([output.index for output in description.outputs], outputs, "output")
    return {"description": description, "axes": _axes(description), "read": read, "made": made}


def _touched(
    indices: Sequence[Sequence[Entry]], shapes: Sequence[Shape], role: str
) -> tuple[Region, ...]:
    if len(indices) != len(shapes):
        raise ValueError(f"needs {len(indices)} {role}s, got {len(shapes)}")
    pairs = zip(indices, shapes, strict=True)
    return tuple([_region(index, shape, f"{role} {i}") for i, (index, shape) in enumerate(pairs)])


def _region(entries: Sequence[Entry], shape: Shape, tensor: str) -> Region:
    if len(entries) != len(shape):
        raise ValueError(f"{tensor} must have {len(entries)} dimensions, got {list(shape)}")
    region: list[Interval] = []
    for entry, extent in zip(entries, shape, strict=True):
        if isinstance(entry, Axis) and entry.size != extent:
            raise ValueError(
                f'{tensor} has {extent} along "{entry.name}", which is {entry.size} elsewhere'
            )
        # The interval of a plain axis is the dimension itself.
        known = isinstance(entry, Axis)
        region.append((0, extent) if known else indexed(entry, extent, {}))
    return tuple(region)


def _dims(entries: Sequence[Entry], region: Region) -> Dims:
    return tuple(
        (
            Index((), entry) if isinstance(entry, int) else entry,
            frozenset(axis.name for axis in _entry_axes((entry,))),
            interval,
        )
        for entry, interval in zip(entries, region, strict=True)
    )


def _axes(description: Description) -> tuple[Axis, ...]:
    """The axes of the outputs, then the axes that they are reduced over, then all others, each
    once; axes with equal names are one axis.
    """
    named: dict[str, Axis] = {}
    for axis in _mentioned(description):
        first = named.setdefault(axis.name, axis)
        # Equal axes are mostly one object; comparing fields takes ten times longer.
        if first is not axis and first != axis:
            raise ValueError(f'axis "{axis.name}" is {first.size} and {axis.size}')
    return tuple(named.values())


def _mentioned(description: Description) -> list[Axis]:
    # Strategies' files and the row-major order of parts use this order: outputs first, so that
    # neighbouring parts are neighbours in the tensor.
    mentioned: list[Axis] = []
    for output in description.outputs:
        mentioned += _entry_axes(output.index)
    for i in description.updated:
        mentioned += _entry_axes(description.inputs[i].index)
    for output in description.outputs:
        mentioned += output.over
    for access in description.inputs:
        mentioned += _entry_axes(access.index)
        mentioned += access.at_most or ()
        mentioned += _entry_axes((access.when,))
    for _, points in description.flops:
        mentioned += points
    return mentioned


def _entry_axes(entries: Sequence[Entry]) -> list[Axis]:
    axes: list[Axis] = []
    for entry in entries:
        if isinstance(entry, Axis):
            axes.append(entry)
        elif isinstance(entry, Index):
            axes += axes_of(entry)
    return axes


def _misfit(
    kind: str, attrs: Any, inputs: Sequence[Shape], outputs: Sequence[Shape], error: Exception
) -> str:
    reason = f"no attribute {error}" if isinstance(error, KeyError) else str(error)
    # Python's own message, raised where a describer unpacks operands, extents or attributes.
    if isinstance(error, IndexError) or "to unpack" in reason or "zip()" in reason:
        reason = "another number of operands, or of dimensions, is needed"
    elif not isinstance(error, (KeyError, ValueError)):
        reason = "an attribute of another type or size is needed"
    shapes = f"{[list(shape) for shape in inputs]} -> {[list(shape) for shape in outputs]}"
    return f'kind "{kind}": {shapes} with attributes {dict(attrs)} does not fit: {reason}'


def _listed(value: Any) -> Any:
    """An attribute with lists and dicts, as in JSON, in place of tuples and other mappings."""
    if isinstance(value, list | tuple):
        return [_listed(item) for item in value]
    # Most attributes are numbers and texts, and the test for a Mapping takes a microsecond.
    if not isinstance(value, int | float | str) and isinstance(value, Mapping):
        return {str(name): _listed(item) for name, item in value.items()}
    return value
