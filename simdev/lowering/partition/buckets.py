"""Gradients that are reduced together: buckets filled in the order in which gradients are made, as
PyTorch's DDP does.

A bucket is closed once it holds its limit, the first a smaller one, so that sending begins early
(Li et al., "PyTorch Distributed", VLDB 2020, section 3.2.3; the sizes are those of
DistributedDataParallel). One collective reduces it once the last of its gradients is there, and
leaves one buffer on every rank, of which the sums are views.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ...graph import Tensor
from ...semantics import Region, volume
from ...strategy.sync import BUCKET, FIRST_BUCKET, gathered
from ...structure import TensorOf
from ..collective import ALL_REDUCE
from .layout import Copy, Draft, Grid, Place, part_of
from .sums import holders, region_at

if TYPE_CHECKING:
    from .sharding import Sharding


class Member(NamedTuple):
    """A region of a gradient in partial results, one a device."""

    tensor: TensorOf
    place: Place
    region: Region
    partial: list[Copy]


def buckets_of(sharding: Sharding) -> dict[tuple[TensorOf, Place], list[Copy]]:
    """Where the sums of gradients lie that updates alone read: on each device that held a partial
    result.

    Buckets hold gradients of one dtype that lie on the same devices.
    """
    sums: dict[tuple[TensorOf, Place], list[Copy]] = {}
    groups: dict[object, list[Member]] = {}
    for member in _members(sharding):
        devices = tuple(copy.device for copy in member.partial)
        if len(devices) == 1:
            sums[member.tensor, member.place] = member.partial
        else:
            groups.setdefault((devices, sharding.tensor(member.tensor).dtype), []).append(member)
    for members in groups.values():
        sizes = [_part(sharding, member).bytes for member in members]
        for rows in gathered(sizes, FIRST_BUCKET, BUCKET):
            sums |= _reduced(sharding, [members[row] for row in rows])
    return sums


def _members(sharding: Sharding) -> Iterator[Member]:
    """The gradients that lie in partial results and are read by updates alone, in program order: as
    they are made.
    """
    question = sharding.question
    others = {t for i, read in enumerate(question.read) if i not in question.updates for t in read}
    for i in range(len(sharding.graph.ops)):
        for k in range(len(sharding.graph.ops[i].outputs)):
            grid = sharding.layouts.get((i, k))
            partial = (
                isinstance(grid, Grid) and grid.addends > 1 and (i, k) in question.weights.gradients
            )
            if partial and isinstance(grid, Grid) and (i, k) not in others:
                for place in sorted(grid.cells):
                    held = holders(sharding, (i, k), grid, place)
                    yield Member((i, k), place, region_at(grid, place), held)


def _part(sharding: Sharding, member: Member) -> Tensor:
    return part_of(sharding.tensor(member.tensor), member.region)


def _reduced(
    sharding: Sharding, members: Sequence[Member]
) -> dict[tuple[TensorOf, Place], list[Copy]]:
    """The sums of one bucket: views of the buffers that its collective leaves, one a rank."""
    ranks = [copy.device for copy in members[0].partial]
    parts = [_part(sharding, member) for member in members]
    whole = Tensor(sum(part.bytes for part in parts), None, parts[0].dtype)
    names = [sharding.question.cluster.devices[device].name for device in ranks]
    last = members[-1]  # the collective bears the name of the gradient that it waits for last

    def fill(draft: Draft) -> None:
        held = ((member, member.partial[rank]) for rank in range(len(ranks)) for member in members)
        draft.inputs = [
            sharding.hand_out(copy, member.tensor, member.region) for member, copy in held
        ]

    draft = sharding.draft(last.tensor, "sync", ranks[0], ALL_REDUCE, [], attrs={"ranks": names})
    draft.tensors = [whole] * len(ranks)
    draft.regions = [(last.tensor[1], ((0, sum(volume(m.region) for m in members)),))] * len(ranks)
    sums: dict[tuple[TensorOf, Place], list[Copy]] = {}
    for rank, device in enumerate(ranks):
        for member, part in zip(members, parts, strict=True):
            copies = sums.setdefault((member.tensor, member.place), [])
            copies.append(Copy(draft, len(draft.tensors), device))
            draft.tensors.append(Tensor(part.bytes, part.shape, part.dtype, rank))
            draft.regions.append((member.tensor[1], member.region))
    draft.addend = [(0, 1)] * len(draft.tensors)
    draft.fill = fill
    return sums
