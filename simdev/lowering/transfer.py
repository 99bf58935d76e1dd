"""Which transfers a placement causes, in the order of their ids: producer, output, destination,
consumer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import InputError
from ..fabric import Segment, merged
from .place import destinations
from .prepare import Prepared

MAX_CHUNKS = 100_000


@dataclass(frozen=True, slots=True)
class Transfer:
    """One tensor on its way to one device (to several under multicast), for some of its consumers
    there.

    ``tensor`` is a row of Reads, ``destinations`` device indices, ``consumers`` op positions,
    ``segments`` the pieces of the route in series, ``chunks`` the sizes in bytes into which it is
    cut on each of them.
    """

    tensor: int
    destinations: tuple[int, ...]
    consumers: tuple[int, ...]
    segments: tuple[Segment, ...]
    chunks: tuple[int, ...]


def transfers(prepared: Prepared, placement: list[int]) -> Iterator[Transfer]:
    """Every transfer that the placement causes, under the cluster's ``transfer`` mode."""
    reads, mode = prepared.reads, prepared.cluster.transfer
    ptr, consumers, producer_of = (
        reads.consumers.ptr.tolist(),
        reads.consumers.ids.tolist(),
        reads.producer.tolist(),
    )
    found, rings, output_of = (
        [0] * len(prepared.cluster.devices),
        prepared.rings,
        reads.output.tolist(),
    )
    for tensor, producer in enumerate(producer_of):
        readers = consumers[ptr[tensor] : ptr[tensor + 1]]
        if rings:
            # A collective op reads each input where it lies.
            readers = [consumer for consumer in readers if consumer not in rings]
        source = prepared.home(producer, output_of[tensor], placement)
        count = destinations(readers, 0, len(readers), placement, source, found)
        if not count:
            continue
        remote = tuple(found[:count])
        if mode == "multicast":
            away = tuple(consumer for consumer in readers if placement[consumer] != source)
            yield _transfer(prepared, tensor, source, remote, away)
            continue
        for destination in remote:
            there = tuple(consumer for consumer in readers if placement[consumer] == destination)
            for served in [there] if mode == "once-per-device" else [(one,) for one in there]:
                yield _transfer(prepared, tensor, source, (destination,), served)


def _transfer(
    prepared: Prepared,
    tensor: int,
    source: int,
    targets: tuple[int, ...],
    consumers: tuple[int, ...],
) -> Transfer:
    routes = [prepared.segments(source, destination) for destination in targets]
    segments = routes[0] if len(routes) == 1 else (merged([pieces[0] for pieces in routes]),)
    if len(routes) > 1 and any(len(pieces) > 1 for pieces in routes):
        name = prepared.graph.ops[int(prepared.reads.producer[tensor])].name
        raise InputError(
            f'placement: the multicast of "{name}" would pass a staging device; use '
            "another transfer mode"
        )
    size = int(prepared.reads.bytes[tensor])
    return Transfer(tensor, targets, consumers, segments, chunks_of(prepared, size, segments))


def chunks_of(prepared: Prepared, size: int, segments: tuple[Segment, ...]) -> tuple[int, ...]:
    """Sizes of the chunks: full ones and a rest, by the smallest chunk of the staging devices
    passed.
    """
    stages = [prepared.cluster.devices[segment.route.devices[-1]] for segment in segments[:-1]]
    limits = [int(device.chunk) for device in stages if device.chunk is not None]
    if not limits or size <= min(limits):
        return (size,)
    chunk = min(limits)
    if size // chunk > MAX_CHUNKS:
        raise InputError(
            f"a tensor of {size} bytes makes more than {MAX_CHUNKS} chunks of {chunk} "
            "bytes at a staging device"
        )
    rest = size % chunk
    return (chunk,) * (size // chunk) + ((rest,) if rest else ())
