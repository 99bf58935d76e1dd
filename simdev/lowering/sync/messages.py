"""Messages between workers and servers: one after another the queues that a transfer would hold at
once.

A transfer holds the sender's queue and the receiver's together, so that a receiver with a backlog
blocks its senders. A message does not: it goes through the queues of its route in turn, a segment
apart. A message over several queues is cut into segments for that; a queue takes them up in the
order in which they come, and a sender finishes the message it has begun: its next segment goes
before all that waits. Through staging devices a message goes piece by piece, in their chunks, as a
transfer does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

from ...errors import InputError
from ...fabric import Segment
from ...strategy import Sync
from ...taskgraph import TRANSFER
from ...units import MAX_PS, picoseconds, transmission_ps
from ..prepare import Prepared
from ..transfer import chunks_of
from .draft import Draft

GOING_ON = -1  # priority of a message that has begun
ARRIVING = 0  # priority of what is on its way, and of all other transfers
NOTE = 100  # bytes of a message without a tensor


@dataclass(frozen=True, slots=True)
class Hop:
    """One stage of a message: the queues held, or for a flow the half-links crossed.

    ``before_ps`` is the latency held when the message begins, ``lag_ps`` that at its end,
    ``gap_ps`` the pause after.
    """

    held: tuple[int, ...]
    links: tuple[int, ...]
    bandwidth: Fraction
    ends: tuple[int, int]
    before_ps: int
    lag_ps: int
    gap_ps: int


@dataclass(frozen=True, slots=True)
class Message:
    """The rows of one message: the first task, those that read what is sent, and the last to
    arrive.

    ``fills`` is the first that brings anything to the destination.
    """

    first: int
    reads: tuple[int, ...]
    last: int
    fills: int


@dataclass(frozen=True, slots=True)
class _Crossing:
    """One message on one piece of its route: the stages, the priorities of its first segment and of
    the others.

    ``cost_ps`` is what the message costs when it enters, ``tasks`` those with which its segments
    have entered.
    """

    hops: tuple[Hop, ...]
    ranks: tuple[int, int]
    cost_ps: int
    op: int
    output: int
    tasks: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Post:
    """Writes messages into a draft, as the policy sends them over the cluster."""

    draft: Draft
    prepared: Prepared
    sync: Sync

    @cached_property
    def _known(self) -> dict[tuple[int, int], tuple[tuple[Hop, ...], ...]]:
        return {}

    def pieces(self, source: int, destination: int) -> tuple[tuple[Hop, ...], ...]:
        """The stages of a message between two devices, by piece of its route: from one staging
        device to the next.

        Raises InputError where no route joins them.
        """
        key = source, destination
        if key not in self._known:
            try:
                pieces = self.prepared.segments(source, destination)
            except InputError:
                names = [self.prepared.cluster.devices[d].name for d in key]
                raise InputError(f'sync: no route joins "{names[0]}" to "{names[1]}"') from None
            self._known[key] = tuple(tuple(self._stages(piece)) for piece in pieces)
        return self._known[key]

    def _stages(self, piece: Segment) -> list[Hop]:
        route = piece.route
        stages = [(piece.resources, route.bandwidth)]
        if self.sync.hold != "together" and len(piece.resources) > 1:
            stages = [((queue,), rate) for queue, rate in self.prepared.fabric.in_turn(piece)]
        hops, ends = [], (route.source, route.destination)
        for k, (queues, rate) in enumerate(stages, 1):
            before, lag = piece.held_ps if k == 1 else 0, piece.lag_ps if k == len(stages) else 0
            hops.append(Hop(queues, piece.flow_links, rate, ends, before, lag, piece.gap_ps))
        return hops

    def send(
        self,
        name: str,
        source: int,
        destination: int,
        size: int,
        priority: int,
        op: int,
        tensor: bool = True,
    ) -> Message:
        """One message of ``size`` bytes; ``op`` is the gate of the worker that it comes from or
        goes to.
        """
        pieces, output = self.pieces(source, destination), 0 if tensor else -1
        chunks = chunks_of(self.prepared, size, self.prepared.segments(source, destination))
        cut = [self._segments(chunk, pieces) for chunk in chunks]
        count = sum(map(len, cut))
        names = iter([name] if count == 1 else [f"{name} {j + 1}/{count}" for j in range(count)])
        ways = [_Crossing(pieces[0], (priority, GOING_ON), self.message_ps, op, output)]
        ways += [_Crossing(hops, (ARRIVING, ARRIVING), 0, op, output) for hops in pieces[1:]]
        arrived = -1
        for chunk, sizes in zip(chunks, cut, strict=True):
            parts = [(next(names), part) for part in sizes]
            arrived = self._cross(ways[0], parts)
            for before, way in pairwise(ways):
                filler, after, entered = before.tasks[-len(parts)], arrived, len(way.tasks)
                arrived = self._cross(way, parts)
                self.draft.edges.append((after, way.tasks[entered]))
                if tensor:
                    stage, readers = way.hops[0].ends[0], way.tasks[entered:]
                    self.draft.buffer(f"{name} staged", stage, chunk, "staging", filler, readers)
        return Message(ways[0].tasks[0], tuple(ways[0].tasks), arrived, ways[-1].tasks[0])

    def _cross(self, way: _Crossing, parts: list[tuple[str, int]]) -> int:
        """The segments (name, bytes) of one chunk, one after another.

        Returns the task that arrives last.
        """
        arrived = -1
        for j, (name, part) in enumerate(parts):
            rank = way.ranks[1 if way.tasks else 0]
            fixed = (way.hops[0].before_ps if j == 0 else 0) + (0 if way.tasks else way.cost_ps)
            rows = []
            for h, hop in enumerate(way.hops):
                costs = 0 if h else fixed, hop.gap_ps if j == len(parts) - 1 else 0
                rank, output = (rank, way.output) if h == 0 else (ARRIVING, -1)
                rows.append(self._task(name, hop, part, costs, rank, way.op, output))
            self.draft.edges += [*pairwise(rows), *[(before, rows[0]) for before in way.tasks[-1:]]]
            way.tasks.append(rows[0])
            arrived = rows[-1]
        return arrived

    def _task(
        self,
        name: str,
        hop: Hop,
        size: int,
        fixed: tuple[int, int],
        rank: int,
        op: int,
        output: int,
    ) -> int:
        """One segment in one stage; ``fixed`` are the ps that it costs beside its bytes, before and
        after.
        """
        duration = fixed[0] + (0 if hop.links else transmission_ps(size, hop.bandwidth))
        if duration > MAX_PS:
            raise InputError(f"sync: a message of {size} bytes takes more than 53 days")
        return self.draft.task(
            name,
            TRANSFER,
            hop.ends,
            op=op,
            output=output,
            duration=duration,
            lag=hop.lag_ps,
            gap=fixed[1],
            priority=rank,
            size=size,
            held=hop.held,
            links=hop.links,
            flow=bool(hop.links),
        )

    @cached_property
    def message_ps(self) -> int:
        """What a message costs in the queue that sends it, in ps."""
        return picoseconds(self.sync.message)  # type: ignore[arg-type]

    def _segments(self, size: int, pieces: tuple[tuple[Hop, ...], ...]) -> list[int]:
        """What passes queue after queue is cut, so that it can be in all of them."""
        limit = int(self.sync.segment)
        if max(map(len, pieces)) < 2 or size <= limit:
            return [size]
        return [limit] * (size // limit) + ([size % limit] if size % limit else [])
