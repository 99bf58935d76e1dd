"""Which transfers a placement causes, in the order of their ids: producer, output, destination,
consumer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..ground.errors import InputError
from ..nouns.fabric import Segment, merged
from ..nouns.taskgraph import Ints
from .prepare import Prepared

# A chunk is a task: a tensor of gigabytes in chunks of a few bytes would have no end.
MAX_CHUNKS = 100_000
Column = list[int] | Ints


# The compiled oracle runs this very source, so it is written in plain loops over indexed columns.
def destinations(
    consumers: Column, begin: int, end: int, placement: Column, source: int, targets: Column
) -> int:
    """Write the devices other than ``source`` that hold some of ``consumers[begin:end]`` to
    ``targets``, ascending.

    Returns how many there are. ``targets`` has room for every device.
    """
    count = 0
    for e in range(begin, end):
        device = placement[consumers[e]]
        if device == source:
            continue
        at = count
        while at > 0 and targets[at - 1] > device:
            at -= 1
        if at > 0 and targets[at - 1] == device:
            continue
        for k in range(count, at, -1):
            targets[k] = targets[k - 1]
        targets[at] = device
        count += 1
    return count


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
    """Every transfer that the placement causes, under the cluster's ``transfer`` mode.

    Raises InputError.
    """
    reads, mode, rings = prepared.reads, prepared.cluster.transfer, prepared.rings
    # One list for all tensors, written again for each: most of them go nowhere.
    targets = [0] * len(prepared.cluster.devices)
    numbers = (column.tolist() for column in (reads.producer, reads.output, reads.bytes))
    tensors = zip(*numbers, reads.consumers.each(), strict=True)
    for tensor, (producer, output, size, readers) in enumerate(tensors):
        if rings:
            # A collective op reads each input where it lies.
            readers = [consumer for consumer in readers if consumer not in rings]
        source = prepared.home(producer, output, placement)
        count = destinations(readers, 0, len(readers), placement, source, targets)
        if not count:
            continue
        remote = tuple(targets[:count])
        if mode == "multicast":
            away = tuple(consumer for consumer in readers if placement[consumer] != source)
            yield _transfer(prepared, tensor, size, source, remote, away)
            continue
        for destination in remote:
            there = tuple(consumer for consumer in readers if placement[consumer] == destination)
            for served in [there] if mode == "once-per-device" else zip(there, strict=True):
                yield _transfer(prepared, tensor, size, source, (destination,), served)


def _transfer(
    prepared: Prepared,
    tensor: int,
    size: int,
    source: int,
    targets: tuple[int, ...],
    consumers: tuple[int, ...],
) -> Transfer:
    routes = [prepared.segments(source, destination) for destination in targets]
    segments = routes[0]
    if len(routes) > 1:
        if any(len(pieces) > 1 for pieces in routes):
            name = prepared.graph.ops[int(prepared.reads.producer[tensor])].name
            raise InputError(
                f'placement: the multicast of "{name}" would pass a staging device; use another '
                "transfer mode"
            )
        segments = (merged([pieces[0] for pieces in routes]),)
    return Transfer(tensor, targets, consumers, segments, chunks_of(prepared, size, segments))


def chunks_of(prepared: Prepared, size: int, segments: Sequence[Segment]) -> tuple[int, ...]:
    """Sizes of the chunks: full ones and a rest, by the smallest chunk of the staging devices
    passed.
    """
    if len(segments) == 1:
        return (size,)
    stages = (prepared.cluster.devices[segment.route.destination] for segment in segments[:-1])
    chunk = min((int(stage.chunk) for stage in stages if stage.chunk is not None), default=size)
    if size <= chunk:
        return (size,)
    count, rest = divmod(size, chunk)
    if count > MAX_CHUNKS:
        raise InputError(
            f"a tensor of {size} bytes makes more than {MAX_CHUNKS} chunks of {chunk} bytes at a "
            "staging device"
        )
    return (chunk,) * count + ((rest,) if rest else ())
