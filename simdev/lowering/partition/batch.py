"""Where the samples of a step lie in each of its tensors, followed from its inputs through merged
dimensions and slices.

Inputs have them along their first dimension. An op hands them on along one of its axes: that along
which its first operand that has them is indexed by them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

from ...nouns.semantics import (
    Axis,
    BatchView,
    Index,
    Samples,
    Semantics,
    parted_strides,
    redescribed,
    row_strides,
    samples_seen,
)
from ...nouns.semantics.description import Entry
from ...nouns.semantics.index import axes_of
from ...nouns.structure import TensorOf
from .geometry import Reading, with_batch

_CACHED = 65_536
Held = tuple[Samples, tuple[int, ...]]
"""Samples of a stored tensor, and the order of its dimensions in the memory ((): row by row)."""


def followed(
    order: Sequence[int],
    read: Sequence[Sequence[TensorOf]],
    readings: Sequence[Reading],
    leaves: Sequence[int],
) -> tuple[Reading, ...]:
    """The readings of all ops (``order``: producers first), where samples are followed from these
    leaves.
    """
    samples = dict[TensorOf, Held]()
    layouts, batched = _layouts(read, readings), list(readings)
    for i in leaves:
        shape = readings[i].made[0] if readings[i].made else ()
        if shape[:1] > (1,):
            samples[i, 0] = Samples(0, 1, shape[0], 1), ()
    for i in order:
        held = tuple([samples.get(tensor) for tensor in read[i]])
        if not any(held):
            continue
        batched[i], made = _followed(readings[i], held)
        for k, at in enumerate(made):
            if at is not None:
                samples[i, k] = at, layouts.get((i, k), ())
    return tuple(batched)


def _layouts(
    read: Sequence[Sequence[TensorOf]], readings: Sequence[Reading]
) -> Mapping[TensorOf, tuple[int, ...]]:
    """The order in the memory of the dimensions of tensors that their ops stored otherwise than row
    by row: a reader that sees one under its own shape, or its dimensions merged, tells it.
    """
    layouts = dict[TensorOf, tuple[int, ...]]()
    for tensors, op in zip(read, readings, strict=True):
        seen = op.semantics.inputs if op.semantics is not None else ()
        for tensor, shape, stored, given in zip(tensors, seen, op.stored, op.strides, strict=False):
            strides = None if given is None else parted_strides(shape, given, stored)
            if strides is not None:
                order = tuple(sorted(range(len(stored)), key=lambda d: (-strides[d], d)))
                dense = row_strides(tuple(stored[d] for d in order))
                exchanged = any(after < before for before, after in pairwise(order))
                if exchanged and dense == tuple(strides[d] for d in order):
                    layouts[tensor] = order
    return layouts


@lru_cache(_CACHED)
def _followed(
    op: Reading, held: tuple[Held | None, ...]
) -> tuple[Reading, tuple[Samples | None, ...]]:
    """The reading of an op whose operands hold samples so, and where these are in its outputs."""
    if op.semantics is None:
        return op, (None,) * len(op.made)
    seen = tuple(
        None
        if of is None
        else samples_seen(of[0], op.semantics.inputs[i], op.stored[i], op.strides[i], of[1])
        for i, of in enumerate(held)
    )
    semantics, axis, at = _along(op.semantics, seen)
    inputs = semantics.description.inputs
    views = tuple(
        None if of is None else _view(access.index, axis, at, seen[i], of)
        for i, (access, of) in enumerate(zip(inputs, held, strict=True))
    )
    outputs = semantics.description.outputs
    made = tuple(None if at is None else _placed(output.index, axis, at) for output in outputs)
    return with_batch(op, semantics, views), made


def _along(
    semantics: Semantics, seen: Sequence[Samples | None]
) -> tuple[Semantics, str, Samples | None]:
    """The axis of an op that the samples of its operands are along, and how they are merged there:
    that of the first operand whose samples come out again, else of the first; None where its parts
    are no parts of the batch.

    What reads slices of the batch side by side (a concatenation) reads its part of each.
    """
    description = semantics.description
    first: tuple[Axis, Samples] | None = None
    made = {name for dims in semantics.makes[:1] for _, names, _ in dims for name in names}
    for access, at in zip(description.inputs, seen, strict=True):
        axis = None if at is None else _axis_of(access.index[at.dimension])
        if axis is None or at is None:
            continue
        first = first or (axis, at)
        if axis.name in made:
            first = axis, at
            break
    if first is None:
        return semantics, "", None
    axis, at = first
    indices = [access.index for access in description.inputs]
    indices += [output.index for output in description.outputs]
    if all(entry == axis for index in indices for entry in _entries(index, axis)):
        return semantics, axis.name, at
    pairs = zip(description.inputs, seen, strict=True)
    reads = [replace(access, index=_part(access.index, axis, other)) for access, other in pairs]
    indices = [read.index for read in reads]
    parts = all(
        _axis_of(e) is None or e == axis for index in indices for e in _entries(index, axis)
    )
    if not parts or at.outer > 1 or axis.size % at.inner:
        return semantics, "", None
    at = at._replace(number=axis.size // at.inner)
    return redescribed(semantics, replace(description, inputs=tuple(reads))), axis.name, at


def _entries(index: Sequence[Entry], axis: Axis) -> list[Axis | Index]:
    """The entries of an index in which an axis occurs."""
    expressions = (entry for entry in index if isinstance(entry, Axis | Index))
    return [entry for entry in expressions if axis in axes_of(entry)]


def _axis_of(entry: Entry) -> Axis | None:
    """The axis by which a dimension is indexed, perhaps shifted."""
    if isinstance(entry, Axis | Index) and [factor for _, factor in entry.terms] == [1]:
        part = entry.terms[0][0]
        return part if isinstance(part, Axis) else None
    return None


def _part(index: tuple[Entry, ...], axis: Axis, at: Samples | None) -> tuple[Entry, ...]:
    """The index of a slice of a batch, where that is shifted: of each part of the axis its part."""
    if at is None or at.outer > 1 or _axis_of(index[at.dimension]) != axis:
        return index
    here = axis * (at.number * at.inner) // axis.size
    return (*index[: at.dimension], here, *index[at.dimension + 1 :])


def _placed(index: Sequence[Entry], axis: str, at: Samples) -> Samples | None:
    """Where samples along an axis are in a tensor of this index."""
    for d, entry in enumerate(index):
        if isinstance(entry, Axis) and entry.name == axis:
            return at._replace(dimension=d)
    return None


def _view(
    index: Sequence[Entry], axis: str, at: Samples | None, seen: Samples | None, held: Held
) -> BatchView | None:
    """How an operand is seen; None where samples lie outermost on both sides."""
    here = None if at is None else _placed(index, axis, at)
    if here is None and at is not None and seen is not None and seen.outer == 1:
        here = seen
    sliced = here is not None and here == seen and here.number < held[0].number
    if not (sliced or held[1] or held[0].outer > 1 or (here is not None and here.outer > 1)):
        return None
    return BatchView(here, held[0], sliced, held[1])
