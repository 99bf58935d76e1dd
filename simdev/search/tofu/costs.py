"""Bytes that one step of Tofu's recursion sends: an axis for each op, a dimension for each tensor
(EuroSys 2019, 5).

A step divides every group of workers into k. An op on one part reads a region of each operand; of
this region the group holds a share by itself (``held``) and has fetched the rest in earlier steps
(``fetched``). What is sent now is what the parts need and do not hold of the former, and what they
need more than once of the latter. So the sum over all steps is the volume that each worker reads
less what it holds: T/2, T and 2 x halo of a two-way step follow. Outputs are alike the other way
round, and partial results are sent to where they are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple

from ...ground.errors import InputError
from ...nouns.semantics import (
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

    ``shape`` is that of the region, as the tensor is stored; ``held`` and ``fetched`` are elements.
    """

    at: int
    shape: Shape
    strides: tuple[int, ...] | None
    held: float
    fetched: float


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
    ways = []
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
        ways.append(
            Cut(
                split.axis,
                tuple(shard.needs for shard in shards),
                tuple(shard.makes for shard in shards),
                effects_of(semantics, split.axis),
                following,
                tuple(place.get(operand, -1) for operand in range(len(semantics.inputs))),
            )
        )
    return tuple(ways)


class Sent(NamedTuple):
    """Elements sent over all parts, and how the side lies on the first of them."""

    sent: float
    side: Side


@lru_cache(_CACHED)
def read_step(
    semantics: Semantics, cut: Cut | None, side: Side, dimension: int, groups: int
) -> Sent:
    """An operand; ``cut`` None: every part runs the whole op; ``dimension`` -1: every part holds
    the whole tensor.
    """
    if side.at < 0:
        return Sent(0.0, side)
    whole = tuple((0, extent) for extent in side.shape)
    sent, first = -side.fetched, side
    for g in range(groups):
        region = whole if cut is None else _region(semantics, side, cut.needs[g][side.at])
        share, there = _shares(side, region, dimension, g, groups)
        sent += side.held * (share - there) + side.fetched * share
        if g == 0:
            at = side.at if cut is None else cut.places[side.at]
            first = _first(side, region, share, there)._replace(at=-1 if region is None else at)
    return Sent(max(sent, 0.0), first)


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


def _shares(
    side: Side, region: Region | None, dimension: int, part: int, groups: int
) -> tuple[float, float]:
    """The share of a side that a region is, and the share of this that lies in one part of a
    dimension (-1: every part holds the whole).
    """
    if region is None:
        return 0.0, 0.0
    share = prod(b - a for a, b in region) / max(prod(side.shape), 1)
    if dimension < 0:
        return share, share
    (low, high), (first, last) = parts_of(side.shape[dimension], groups)[part], region[dimension]
    return share, share * (max(min(high, last) - max(low, first), 0) / max(last - first, 1))


def _first(side: Side, region: Region | None, share: float, there: float) -> Side:
    """The side on the first part, which needs a region of it."""
    shape = side.shape if region is None else tuple(b - a for a, b in region)
    fetched = side.fetched * share + side.held * (share - there)
    return Side(side.at, shape, side.strides, side.held * there, fetched)


@lru_cache(_CACHED)
def write_step(cut: Cut | None, side: Side, dimension: int, groups: int) -> Sent:
    """An output; partial results of a region are added up where it is stored."""
    keep = 1.0 if dimension < 0 else 1.0 / groups
    if cut is None or cut.effects[side.at] == "replicate":
        return Sent(0.0, side._replace(held=side.held * keep, fetched=side.fetched * keep))
    if cut.effects[side.at] == "reduce":
        # The sums go back to where partial results were, if every part holds the whole.
        gathered = groups - 1 if dimension < 0 else 0
        sent = (groups - 1) * (side.held + side.fetched) + gathered * side.held
        fetched = side.fetched + side.held * (1 - keep)
        return Sent(sent, side._replace(held=side.held * keep, fetched=fetched))
    sent, first = 0.0, side
    for g in range(groups):
        region = cut.makes[g][side.at]
        share, there = _shares(side, region, dimension, g, groups)
        sent += side.held * ((1.0 if dimension < 0 else share) - there)
        if g == 0 and region is not None:
            first = _first(side, region, share, there)
    return Sent(sent, first)
