"""Bytes that one step of Tofu's recursion sends: an axis for each op, a dimension for each tensor
(EuroSys 2019, 5).

A step divides every group of workers into k. An op on one part reads a region of each operand; of
this region the group holds a share by itself (``own``) and has fetched the rest in earlier steps
(``other``). What is fetched now is what the parts need and do not hold of the former, and what they
need more than once of the latter. So the sum over all steps is the volume that each worker reads
less what it holds: T/2, T and 2 x halo of a two-way step follow. Outputs are the same the other way
round, and partial results are sent to where they are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple

from ...errors import InputError
from ...semantics import (
    Region,
    Semantics,
    effects_of,
    parts_of,
    semantics_of,
    shard_of,
    splits,
    stored_region,
)

Shape = tuple[int, ...]
_CACHED = 65_536


class Side(NamedTuple):
    """An operand or output of an op on one group.

    ``at`` is its place in the op on this group, -1: not touched there.

    ``shape`` is that of the region, as the tensor is stored; ``own`` and ``other`` are elements.
    """

    at: int
    shape: Shape
    strides: tuple[int, ...] | None
    own: float
    other: float


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """An op along one axis, in k parts: what each reads and makes, and the op that the first one
    runs.

    ``places`` are the operands of this op in the next one, -1 where it does not touch them.
    """

    axis: str
    needs: tuple[tuple[Region | None, ...], ...]
    makes: tuple[tuple[Region | None, ...], ...]
    effects: tuple[str, ...]
    following: Semantics
    places: tuple[int, ...]


@lru_cache(_CACHED)
def cuts(semantics: Semantics, groups: int, even: bool = True) -> tuple[Cut, ...]:
    """The ways to cut an op into so many parts along one axis; only where the parts are equal, if
    ``even``.
    """
    found = []
    for split in splits(semantics):
        if split.size < groups or (even and split.size % groups):
            continue
        shards = [shard_of(semantics, {split.axis: part}) for part in parts_of(split.size, groups)]
        first = shards[0]
        try:
            following = semantics_of(first.kind, first.attrs, first.inputs, first.outputs)
        except InputError:
            continue
        if len(first.outputs) != len(semantics.outputs):
            continue
        place = {operand: at for at, operand in enumerate(first.operands)}
        found.append(
            Cut(
                split.axis,
                tuple(one.needs for one in shards),
                tuple(one.makes for one in shards),
                effects_of(semantics, split.axis),
                following,
                tuple(place.get(operand, -1) for operand in range(len(semantics.inputs))),
            )
        )
    return tuple(found)


class Step(NamedTuple):
    """Elements sent over all parts, and how the side lies on the first of them."""

    sent: float
    side: Side


@lru_cache(_CACHED)
def read_step(
    semantics: Semantics, cut: Cut | None, side: Side, dimension: int, groups: int
) -> Step:
    """An operand; ``cut`` None: every part runs the whole op; ``dimension`` -1: every part holds
    the whole tensor.
    """
    if side.at < 0:
        return Step(0.0, side)
    whole = tuple((0, extent) for extent in side.shape)
    regions = [
        whole if cut is None else _region(semantics, side, cut.needs[g][side.at])
        for g in range(groups)
    ]
    volume = max(prod(side.shape), 1)
    sent, first = -side.other, side
    for g, region in enumerate(regions):
        share = 0.0 if region is None else prod(b - a for a, b in region) / volume
        held = (
            share
            if dimension < 0 or region is None
            else share * _held(region, side.shape, dimension, g, groups)
        )
        sent += side.own * (share - held) + side.other * share
        if g == 0:
            at = side.at if cut is None else cut.places[side.at]
            shape = side.shape if region is None else tuple(b - a for a, b in region)
            other = side.other * share + side.own * (share - held)
            first = Side(
                at if region is not None else -1, shape, side.strides, side.own * held, other
            )
    return Step(max(sent, 0.0), first)


def _region(semantics: Semantics, side: Side, region: Region | None) -> Region | None:
    """A region of an operand as it is stored; None where nothing of it is read."""
    if region is None:
        return None
    executed = semantics.inputs[side.at]
    return (
        region
        if executed == side.shape
        else stored_region(region, executed, side.shape, side.strides)
    )


def _held(region: Region, shape: Shape, dimension: int, part: int, groups: int) -> float:
    """The share of a region that lies in one part of a dimension."""
    own, needed = parts_of(shape[dimension], groups)[part], region[dimension]
    return max(min(own[1], needed[1]) - max(own[0], needed[0]), 0) / max(needed[1] - needed[0], 1)


@lru_cache(_CACHED)
def write_step(cut: Cut | None, side: Side, dimension: int, groups: int) -> Step:
    """An output; partial results of a region are added up where it is stored."""
    keep = 1.0 if dimension < 0 else 1.0 / groups
    effect = "replicate" if cut is None else cut.effects[side.at]
    if effect == "replicate":
        return Step(0.0, side._replace(own=side.own * keep, other=side.other * keep))
    if effect == "reduce":
        # the sums go back to where partial results were
        gathered = groups - 1 if dimension < 0 else 0
        sent = (groups - 1) * (side.own + side.other) + gathered * side.own
        return Step(
            sent, side._replace(own=side.own * keep, other=side.other + side.own * (1 - keep))
        )
    assert cut is not None
    volume, sent, first = max(prod(side.shape), 1), 0.0, side
    for g in range(groups):
        region = cut.makes[g][side.at]
        share = 0.0 if region is None else prod(b - a for a, b in region) / volume
        if region is None:
            held = 0.0
            sent += side.own if dimension < 0 else 0.0
        elif dimension < 0:
            sent += side.own * (1 - share)
            held = share
        else:
            held = share * _held(region, side.shape, dimension, g, groups)
            sent += side.own * (share - held)
        if g == 0 and region is not None:
            shape = tuple(b - a for a, b in region)
            first = Side(
                side.at,
                shape,
                None,
                side.own * held,
                side.other * share + side.own * (share - held),
            )
    return Step(sent, first)
