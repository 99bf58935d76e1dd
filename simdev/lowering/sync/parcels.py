"""The slice function and the servers: from weights to the parcels that are sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...ground.errors import InputError
from ...nouns.strategy import Sync
from .weights import Weight

MAX_SENT = 1_000_000  # segments a step: four steps of so many have some ten million tasks
HASH = 9973  # MXNet's: key k whole on server 9973 k mod servers (src/kvstore/kvstore_dist.h)


@dataclass(frozen=True, slots=True)
class Parcel:
    """A message of a policy: ``size`` bytes of the gradients ``parts`` (rows of the weights), which
    are all made by the same workers.

    ``server`` is the device that adds it up (-1: an all-reduce does), ``rank`` its place in the
    order of priority.
    """

    name: str
    parts: tuple[int, ...]
    size: int
    server: int
    rank: int


def parcels(
    weights: Sequence[Weight], sync: Sync, machines: tuple[int, ...] | None, ranks: Sequence[int]
) -> list[Parcel]:
    """The parcels in the order in which gradients are made.

    ``machines`` are the devices that serve (None: workers do), ``ranks`` the priorities of the
    weights.
    """
    made = sorted(range(len(weights)), key=lambda row: weights[row].made)
    if sync.bucket is not None:
        return list(_buckets(weights, made, sync, machines, ranks))
    return [
        parcel for row in made for parcel in _slices(weights[row], row, sync, machines, ranks[row])
    ]


def require_few(weights: Sequence[Weight], sync: Sync, several: bool) -> None:
    """Raises InputError where a step sends more than a million slices and segments.

    They are counted before they are written. ``several``: messages may pass several queues, one
    after another; only these go in segments.
    """
    if sync.transport != "server":
        return
    in_segments, total = several and sync.hold == "in-turn", 0
    for weight in weights:
        slices = 1
        if sync.slice_parameters is not None:
            slices = -(-weight.parameters // sync.slice_parameters)
        segments = -(-weight.size // int(sync.segment)) if in_segments else 1
        # Each goes to its server and comes back, but for the worker that serves itself.
        total += 2 * max(slices, segments) * max(1, len(weight.ranks) - 1)
    if total > MAX_SENT:
        raise InputError(
            "sync: slice_parameters and segment cut what a step sends into "
            f"{total} parts; at most {MAX_SENT} are simulated"
        )


def _servers(weight: Weight, sync: Sync, machines: tuple[int, ...] | None) -> tuple[int, ...]:
    """The devices among which the parcels of a weight are spread."""
    if sync.transport != "server":
        return (-1,)
    if machines is not None:
        return machines
    return weight.ranks if sync.servers == "sharded" else weight.ranks[:1]


def _slices(
    weight: Weight, row: int, sync: Sync, machines: tuple[int, ...] | None, rank: int
) -> Iterator[Parcel]:
    servers, count = _servers(weight, sync, machines), weight.parameters
    even = sync.even_parameters is not None and count >= sync.even_parameters
    borders = [0, count]
    if sync.slice_parameters is not None and count > sync.slice_parameters:
        borders = [*range(0, count, sync.slice_parameters), count]
    elif even:
        borders = [count * i // len(servers) for i in range(len(servers) + 1)]
    several = len(borders) > 2
    # A whole gradient goes by its key in any case, as in MXNet.
    begin = 0 if (several or even) and sync.spread == "first" else weight.order * HASH
    for i, (first, last) in enumerate(pairwise(borders)):
        # By the difference of rounded ends, so that the slices add up to the whole.
        size = weight.size * last // count - weight.size * first // count if count else weight.size
        name = f"{weight.name}[{i}]" if several else weight.name
        yield Parcel(name, (row,), size, servers[(begin + i) % len(servers)], rank)


def _buckets(
    weights: Sequence[Weight],
    made: Sequence[int],
    sync: Sync,
    machines: tuple[int, ...] | None,
    ranks: Sequence[int],
) -> Iterator[Parcel]:
    """A bucket is closed once it holds ``sync.bucket`` bytes; each group of workers fills its
    buckets alone.
    """
    limit = int(sync.bucket or 0)
    filled: dict[tuple[int, ...], list[int]] = {}
    closed: list[list[int]] = []
    for row in made:
        workers = weights[row].ranks
        bucket = filled.setdefault(workers, [])
        bucket.append(row)
        if sum(weights[part].size for part in bucket) >= limit:
            closed.append(filled.pop(workers))
    for number, parts in enumerate([*closed, *filled.values()]):
        servers = _servers(weights[parts[0]], sync, machines)
        size, rank = sum(weights[row].size for row in parts), min(ranks[row] for row in parts)
        yield Parcel(f"bucket {number}", tuple(parts), size, servers[number % len(servers)], rank)


def rounds(parcels: Sequence[Parcel]) -> Iterator[list[Parcel]]:
    """Groups of parcels of one weight, with no server twice in a group."""
    group: list[Parcel] = []
    for parcel in parcels:
        servers = {other.server for other in group}
        if group and (parcel.parts != group[0].parts or parcel.server in servers):
            yield group
            group = []
        group.append(parcel)
    if group:
        yield group
