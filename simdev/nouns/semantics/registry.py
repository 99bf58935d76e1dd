"""Kinds of ops by name: who describes them, their class, their traits (true of every op of a kind,
whatever its shapes), and their vocabulary for people. ``semantics_of`` makes the semantics of one
op with its shapes; the other modules of the package start from it.

A trait that many kinds share by their class is a name in ``_OF_CLASSES`` and in the rows of
``_BY_CLASS``. Efficiencies of datasheets are given by class (``simdev/costs/roofline.py`` reads
``OP_CLASSES``), and the extents of a class are counted in ``keys``.
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
    """Traits of every op of a kind. Where a field is None, the trait of the kind's class counts.

    - ``leaf``: it computes nothing; its output is a tensor that is there: a weight (``parameter``),
      an input of the step (``input``) or a tensor that never changes (``constant``).
    - ``view``: its outputs are its operand's memory under other indices.
    - ``linear``: partial results may pass through it, for a sum of its results is the result of the
      sum: ``sum``, in all operands at once, where no number is added; ``scale``, in its one
      operand, times a number. Views are linear.
    - ``linear_in``: the operand in which alone it is linear, of a kind that makes a weight's
      gradient: partial results of that operand become partial gradients, which are added up once.
    - ``backward_of``: the forward kind through which it goes back; where none is told, the part of
      its name before "_backward".
    - ``own_statistics``: it goes back by the statistics that the forward op took of the same part
      of the batch, as data-parallel training does.
    - ``drawn``: it draws random numbers: drawing them again elsewhere costs less than sending them.
    - ``combines``: the reduction whose partial results it combines (``sum``, ``max``, ``min`` or
      ``prod``).
    - ``transposes``: by operand the attribute that tells it to be read as transposed.
    - ``positive``: its operands are positive where it is used: on others it takes paths of its own.
    - ``pointwise``: each element of its outputs is made of the elements at its place (Tofu folds
      runs of these).
    - ``layer``: it computes by itself, so that SOAP configures it; other kinds follow what they
      read.
    - ``weighted``: a layer with weights: its backward follows the gradient that comes to it.
    - ``whole_samples``: cut along its samples only, under one weird trick: it needs whole channels,
      or would move more than it saves.
    - ``bare``: PyTorch's compiled code issues it by itself, in no module and without autograd, as
      DistributedDataParallel copies gradients out of its buckets.
    - ``packs``: it copies tensors together before a message, or apart behind one.
    - ``computes``: what slows it down slows its arithmetic; other kinds pass over memory.
    - ``defaults``: attributes that mean the same where they are not told; keys of profiles leave
      them out.
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
    # None: as the class of the kind has it, so that a kind registered in a class needs no traits.
    pointwise: bool | None = None
    layer: bool | None = None
    weighted: bool | None = None
    whole_samples: bool | None = None
    computes: bool | None = None
    defaults: Mapping[str, Any] = FrozenDict()

    def within(self, op_class: str) -> Traits:
        """These traits, with those of a class where they are left open."""
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
"""Nothing is told: all as the class of the kind has it."""
UNKNOWN = OPEN.within("other")
"""Traits of a kind that nobody registered."""


Dim = tuple[Axis | Index | None, frozenset[str], Interval]
"""A dimension of a tensor: how it is indexed (None: whole), its axes' names, and its interval when
no axis is split.
"""
Dims = tuple[Dim, ...]

# The largest graphs of the papers have some thousand different ops; shards multiply these.
_CACHED = 16_384
_LAYOUT = frozenset({"in", "dt", "strides"})  # how the operands lie, not what is computed
_ENCODER = json.JSONEncoder(sort_keys=True, default=dict)


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
    """The description of one op with its shapes, from which its work, splits and shards follow.

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
# Traits of the kinds: searches ask for them millions of times, so one look-up has to do.
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
    # What the kind's former describer said is forgotten.
    _semantics_of.cache_clear()


def kinds() -> Mapping[str, Kind]:
    """All known kinds by name, sorted."""
    return {name: _KINDS[name] for name in sorted(_KINDS)}


def is_described(kind: str) -> bool:
    """Whether a kind is known: then shapes tell its work and its splits."""
    return kind in _KINDS


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
    forward = traits_of(kind).backward_of
    if forward is None:
        stem, suffix, _ = kind.partition("_backward")
        return stem if suffix else ""
    return forward


def adder_of(reducer: str) -> str:
    """The kind of op that combines partial results of a reduction, the first registered.

    Raises InputError.
    """
    # In the order of registration: a kind of one's own adds to the shipped ones, and does not
    # change the graphs of strategies that were there before.
    for name, kind in _KINDS.items():
        if kind.traits.combines == reducer:
            return name
    raise InputError(f'reducer "{reducer}": no kind is registered to combine its partial results')


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

    Raises InputError: the kind has no semantics, a shape is unknown, an attribute is no JSON, or
    the shapes do not fit the kind.
    """
    shapes = _shapes(kind, inputs, outputs)
    try:
        # As text, so that true, 1 and 1.0 are three attributes: to a dict they are one key.
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
    """Semantics of an op (``semantics_of``) in an object of its own that nothing keeps: no key.

    A hundred thousand objects that are kept cost more than to make them: the garbage collector
    walks over all of them.
    """
    computing = {name: _listed(value) for name, value in _computing(attrs).items()}
    return _semantics(kind, computing, *_shapes(kind, inputs, outputs))


def _computing(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes that say what is computed."""
    return {name: value for name, value in attrs.items() if name not in _LAYOUT}


def _shapes(
    kind: str, inputs: Sequence[Shape | None], outputs: Sequence[Shape | None]
) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
    """Shapes of the operands and of the outputs. Raises InputError."""
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
    # A describer takes shapes and attributes as they should be: whatever it stumbles over means
    # that they do not fit its kind.
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
    """The semantics of an op under another description, in an object that nothing keeps.

    Raises ValueError where the shapes do not fit it.
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
        # An axis is as long as the dimension: nothing is to be worked out.
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
    """Axes of the outputs, then what they are reduced over, then the others, each once; one name is
    one axis.
    """
    named: dict[str, Axis] = {}
    for axis in _mentioned(description):
        first = named.setdefault(axis.name, axis)
        # Equal axes are mostly one object, and to compare their fields takes ten times longer.
        if first is not axis and first != axis:
            raise ValueError(f'axis "{axis.name}" is {first.size} and {axis.size}')
    return tuple(named.values())


def _mentioned(description: Description) -> list[Axis]:
    # The order is that of strategies' files and of the row-major order of parts: outputs first, so
    # that neighbours in it are neighbours in the tensor.
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
    # What Python itself says where a describer names its operands, extents or attributes.
    if isinstance(error, IndexError) or "to unpack" in reason or "zip()" in reason:
        reason = "another number of operands, or of dimensions, is needed"
    elif not isinstance(error, (KeyError, ValueError)):
        reason = "an attribute of another type or size is needed"
    shapes = f"{[list(shape) for shape in inputs]} -> {[list(shape) for shape in outputs]}"
    return f'kind "{kind}": {shapes} with attributes {dict(attrs)} does not fit: {reason}'


def _listed(value: Any) -> Any:
    """An attribute of lists and dicts, as JSON has them, without tuples and other mappings."""
    if isinstance(value, list | tuple):
        return [_listed(item) for item in value]
    # Most attributes are numbers and texts, and to ask for a Mapping takes a microsecond.
    if not isinstance(value, int | float | str) and isinstance(value, Mapping):
        return {str(name): _listed(item) for name, item in value.items()}
    return value
