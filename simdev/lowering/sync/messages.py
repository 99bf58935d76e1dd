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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

from ...ground.errors import InputError
from ...ground.units import MAX_PS, picoseconds, transmission_ps
from ...nouns.fabric import Segment
from ...nouns.strategy import Sync
from ...nouns.taskgraph import TRANSFER
from ..columns import NONE, Columns
from ..prepare import Prepared
from ..transfer import chunks_of

GOING_ON = -1  # priority of a message that has begun
ARRIVING = 0  # priority of what is on its way, and of all other transfers
NOTE = 100  # bytes of a message without a tensor


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a message: the queues held, or for a flow the half-links crossed.

    ``ends`` are the devices (indices) that its piece of the route joins, ``before_ps`` is the
    latency held when the message begins, ``lag_ps`` that at its end, ``gap_ps`` the pause after.
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
    have entered; ``op`` and ``output`` are what is sent.
    """

    stages: tuple[Stage, ...]
    ranks: tuple[int, int]
    cost_ps: int
    op: int
    output: int
    tasks: list[int] = field(default_factory=list)


class MessageWriter:
    """Writes messages into columns, as the policy sends them over the cluster."""

    def __init__(self, columns: Columns, prepared: Prepared, sync: Sync) -> None:
        self.columns, self.prepared, self.sync = columns, prepared, sync
        self.message_ps = picoseconds(sync.message)  # type: ignore[arg-type]
        self._segment = int(sync.segment)
        self._stages: dict[tuple[int, int], tuple[tuple[Stage, ...], ...]] = {}

    def stages(self, source: int, destination: int) -> tuple[tuple[Stage, ...], ...]:
        """The stages of a message between two devices, by piece of its route: from one staging
        device to the next.

        Raises InputError where no route joins them.
        """
        ends = source, destination
        if ends not in self._stages:
            try:
                pieces = self.prepared.segments(source, destination)
            except InputError:
                first, last = (self.prepared.cluster.devices[device].name for device in ends)
                raise InputError(f'sync: no route joins "{first}" to "{last}"') from None
            self._stages[ends] = tuple(tuple(self._stages_of(piece)) for piece in pieces)
        return self._stages[ends]

    def _stages_of(self, piece: Segment) -> Iterator[Stage]:
        route = piece.route
        passed = [(piece.resources, route.bandwidth)]
        if self.sync.hold != "together" and len(piece.resources) > 1:
            passed = [((queue,), rate) for queue, rate in self.prepared.fabric.in_turn(piece)]
        ends = route.source, route.destination
        for k, (queues, rate) in enumerate(passed, 1):
            before, lag = piece.held_ps if k == 1 else 0, piece.lag_ps if k == len(passed) else 0
            yield Stage(queues, piece.flow_links, rate, ends, before, lag, piece.gap_ps)

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
        pieces, output = self.stages(source, destination), 0 if tensor else NONE
        chunks = chunks_of(self.prepared, size, self.prepared.segments(source, destination))
        cut = [self._segments(chunk, pieces) for chunk in chunks]
        count = sum(map(len, cut))
        # Numbered over all chunks, so that a Gantt chart tells the segments of a message apart.
        names = iter([name] if count == 1 else [f"{name} {j + 1}/{count}" for j in range(count)])
        first = _Crossing(pieces[0], (priority, GOING_ON), self.message_ps, op, output)
        further = (_Crossing(piece, (ARRIVING, ARRIVING), 0, op, output) for piece in pieces[1:])
        crossings = [first, *further]
        arrived = NONE
        for chunk, sizes in zip(chunks, cut, strict=True):
            segments = [(next(names), size) for size in sizes]
            arrived = self._cross(first, segments)
            for before, crossing in pairwise(crossings):
                filler, after = before.tasks[-len(segments)], arrived
                arrived = self._cross(crossing, segments)
                entering = crossing.tasks[-len(segments) :]
                self.columns.release(after, entering[:1])
                if tensor:
                    stage = crossing.stages[0].ends[0]
                    name_of_copy = f"{name} staged"
                    self.columns.buffer(name_of_copy, stage, chunk, "staging", filler, entering)
        return Message(first.tasks[0], tuple(first.tasks), arrived, crossings[-1].tasks[0])

    def _cross(self, crossing: _Crossing, segments: Sequence[tuple[str, int]]) -> int:
        """The segments (name, bytes) of one chunk, one after another. Returns the task that arrives
        last.
        """
        rows: list[int] = []
        for j, (name, size) in enumerate(segments):
            rank, before = crossing.ranks[1 if crossing.tasks else 0], 0
            if j == 0:
                before = crossing.stages[0].before_ps
            if not crossing.tasks:
                before += crossing.cost_ps
            rows = []
            for stage in crossing.stages:
                after = stage.gap_ps if j == len(segments) - 1 else 0
                # What a worker sends is told by its first stage; the others only pass it on.
                sent = (ARRIVING, NONE, 0) if rows else (rank, crossing.output, before)
                rows.append(self._task(name, stage, size, crossing.op, sent, after))
            self.columns.wait(rows[0], crossing.tasks[-1:])
            self.columns.chain(rows)
            crossing.tasks.append(rows[0])
        return rows[-1]

    def _task(
        self,
        name: str,
        stage: Stage,
        size: int,
        op: int,
        sent: tuple[int, int, int],
        gap: int,
    ) -> int:
        """One segment in one stage; ``sent`` are its priority, the output, and the ps that it costs
        beside its bytes.
        """
        priority, output, before = sent
        duration = before + (0 if stage.links else transmission_ps(size, stage.bandwidth))
        if duration > MAX_PS:
            raise InputError(f"sync: a message of {size} bytes takes more than 53 days")
        return self.columns.task(
            name,
            TRANSFER,
            stage.ends,
            op=op,
            output=output,
            duration=duration,
            lag=stage.lag_ps,
            gap=gap,
            priority=priority,
            size=size,
            held=stage.held,
            links=stage.links,
            flow=bool(stage.links),
        )

    def _segments(self, size: int, pieces: tuple[tuple[Stage, ...], ...]) -> list[int]:
        """What passes queue after queue is cut, so that it can be in all of them."""
        limit = self._segment
        if max(map(len, pieces)) < 2 or size <= limit:
            return [size]
        return [limit] * (size // limit) + ([size % limit] if size % limit else [])
