"""The tasks of a parcel: one all-reduce of its workers, or a push by each worker to a server,
which adds the pushes up and answers.

A *parcel* (``parcels.py``) is what a policy sends at once: the gradient of one weight, a slice of
it, or a bucket of several gradients (its *parts*). Where parameters are averaged (``sync.every``,
local SGD) it is of parameters instead. A *gate* (``weights.py``) is a leaf of the graph that waits
for a synchronised gradient on one worker, and which the update there reads. So the tasks here lead
from the ops that make gradients to the gates.

``synchronised`` (``lowering/sync/__init__.py``) makes an ``Exchange`` for each step, which is the
only caller of ``MessageWriter``. A message costs by the routes of ``nouns/fabric.py``, an
all-reduce by ``Communicators`` of ``lowering/collective.py``.

What else has to know the messages: ``require_few`` (``parcels.py``) counts them before they are
written, so another message of a parcel is to be counted there. ``ranks_of`` in
``report/figures/charts.py`` reads priorities from FIRST on and the names of segments ("w 1/3").
The order of messages is made by ``priorities`` (``parcels.py``); ``later`` in ``__init__.py``
lifts it by ``len(weights)`` from step to step, so ranks must stay below that. Under a credit
``Sender`` (``credit.py``) says which push goes next; the reference engine
(``execution/engine/simpy_engine.py``) asks it while it runs, and ``credit.py`` replays it. The
compiled engine and the checker know ordinary tasks only. What an optimizer keeps is no matter of
messages: see ``nouns/memory.py``.

Guarded by ``tests/lowering/test_sync.py`` (closed forms), and there ``test_sync_laws.py``,
``test_sync_bytes.py``, ``test_sync_limits.py``, ``test_sync_p3.py`` and ``test_local_sgd.py``.
``docs/reference/sync.md`` tells the policies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

from ...ground.errors import InputError
from ...ground.units import MAX_PS, picoseconds, transmission_ps
from ...nouns.fabric import Segment
from ...nouns.strategy import Sync
from ...nouns.structure import TensorOf
from ...nouns.taskgraph import COLLECTIVE, PERSISTENT, SYNC, TRANSFER
from ..collective import ALL_REDUCE
from ..columns import NONE, Columns
from ..prepare import Prepared
from ..steps import Push
from ..transfer import chunks_of, in_pieces
from .parcels import Parcel
from .weights import Weight

# Messages between workers and servers. They differ from the transfers of a graph (transfer.py).
# A transfer holds all queues of its route at once, the sender's and the receiver's, so that a
# receiver with a backlog blocks its senders. A message passes the queues of its route one after
# another. So that it can be in several of them at one time, it is cut into segments, which follow
# each other through the queues. A queue serves segments in the order in which they come, but a
# sender finishes the message that it has begun: its next segment goes before all that waits. Where
# a route leads through staging devices, a message goes piece by piece from one to the next, in
# their chunks, as a transfer does.

# Of the tasks in a queue the one of the lowest priority number goes first.
GOING_ON = -1  # priority of the further segments of a message that a sender has begun
ARRIVING = 0  # priority of segments that have left their sender, and of transfers of the graph
NOTE = 100  # bytes (ours) of a message without a tensor: "ready" and "ask" where workers pull


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
    """The tasks of one message, by their ids: ``first`` is sent first, ``reads`` are all that read
    the tensor at the sender, ``fills`` is the first that brings bytes to the receiver, and with the
    end of ``last`` the message has arrived.
    """

    first: int
    reads: tuple[int, ...]
    last: int
    fills: int


@dataclass(frozen=True, slots=True)
class _Crossing:
    """One message on one piece of its route: the stages, and as ``ranks`` the priorities of its
    first segment and of the others.

    ``cost_ps`` is added to the first segment, ``tasks`` are the tasks of the first stage that have
    been written so far, one a segment; ``op`` and ``output`` name the tensor.
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
        """One message of ``size`` bytes. ``op`` is the op that its tasks are booked on: the gate of
        the worker that sends or gets it. Without ``tensor`` it is a note.
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
            priority, output = crossing.ranks[1 if crossing.tasks else 0], crossing.output
            before = 0 if j else crossing.stages[0].before_ps
            before += 0 if crossing.tasks else crossing.cost_ps
            rows = []
            for stage in crossing.stages:
                held_ps = 0 if stage.links else transmission_ps(size, stage.bandwidth)
                if before + held_ps > MAX_PS:
                    raise InputError(f"sync: a message of {size} bytes takes more than 53 days")
                row = self.columns.task(
                    name,
                    TRANSFER,
                    stage.ends,
                    op=crossing.op,
                    output=output,
                    duration=before + held_ps,
                    lag=stage.lag_ps,
                    gap=stage.gap_ps if j == len(segments) - 1 else 0,
                    priority=priority,
                    size=size,
                    held=stage.held,
                    links=stage.links,
                    flow=bool(stage.links),
                )
                rows.append(row)
                # What a worker sends is told by its first stage; the others only pass it on.
                priority, output, before = ARRIVING, NONE, 0
            self.columns.wait(rows[0], crossing.tasks[-1:])
            self.columns.chain(rows)
            crossing.tasks.append(rows[0])
        return rows[-1]

    def _segments(self, size: int, pieces: tuple[tuple[Stage, ...], ...]) -> tuple[int, ...]:
        """The sizes in bytes of the segments of a message, which is cut where it passes several
        queues, so that it can be in all of them at once.
        """
        whole = max(map(len, pieces)) < 2 or size <= self._segment
        return (size,) if whole else in_pieces(size, self._segment)


ANY = 1  # under a policy without priorities, of all parcels: behind transfers, as they come
FIRST = 2  # under a policy with priorities, of the parcel that goes first; the others follow


class Exchange:
    """Writes the tasks of parcels into columns.

    ``ready`` tells by worker what a parcel waits for beside its gradients: the end of the backward,
    where a policy does not overlap. ``buffer_of`` tells the buffer of the step without its
    synchronisation that holds a gradient. ``pushed`` collects the pushes, for a *credit*: a limit
    of the bytes that a worker has on their way (``credit.py``). Where parameters are averaged,
    ``updates`` tells by gate the updates that a parcel waits for, and ``averaged`` collects pairs
    of an update and the task that averages.
    """

    def __init__(
        self,
        columns: Columns,
        prepared: Prepared,
        sync: Sync,
        weights: Sequence[Weight],
        ready: Mapping[int, Sequence[int]],
        buffer_of: Mapping[TensorOf, int],
        updates: Mapping[int, Sequence[int]],
    ) -> None:
        self.columns, self.prepared, self.sync, self.weights = columns, prepared, sync, weights
        self.ready, self.buffer_of, self.updates = ready, buffer_of, updates
        self.pushed: list[Push] = []
        self.averaged: list[tuple[int, int]] = []
        self._messages = MessageWriter(columns, prepared, sync)
        self._names = [device.name for device in prepared.cluster.devices]
        self._adders: dict[int, int] = {}  # the queue in which a server adds up
        self._served: Counter[int] = Counter()  # bytes of the sums that a server holds

    def add(self, together: Sequence[Parcel]) -> None:
        """The tasks of parcels that have the same parts and servers of their own: the slices of one
        weight, or a single parcel.

        The order in which tasks are written decides between messages that are ready at one instant.
        In the first turn worker r sends to server r + 1 and server r answers worker r + 1, in the
        second to r + 2, and so on. So workers that begin together send to different servers.
        """
        if together[0].server < 0:
            for parcel in together:
                self._all_reduce(parcel)
            return
        workers = self.weights[together[0].parts[0]].ranks
        count, totals = len(workers), [self._total(parcel) for parcel in together]
        places = [
            workers.index(p.server) if p.server in workers else k for k, p in enumerate(together)
        ]
        turns = [
            ((place - at) % count, at, k) for k, place in enumerate(places) for at in range(count)
        ]
        # By turn, then by worker: the order of rows is the order in which ties are broken.
        for _, at, k in sorted(turns):
            self._push(together[k], workers[at], totals[k])
        for step in range(1, count + 1):
            for parcel, place, total in zip(together, places, totals, strict=True):
                self._answer(parcel, workers[(place + step) % count], total)

    def finish(self) -> None:
        """Add the buffers that servers hold throughout: the sums that they serve. They keep no
        state of an optimizer, for updates run on the workers.
        """
        for device, size in sorted(self._served.items()):
            name = f"sums on {self._names[device]}"
            self.columns.buffer(name, device, size, "gradients", PERSISTENT)

    def _rank(self, parcel: Parcel) -> int:
        return FIRST + parcel.rank if self.sync.priority != "none" else ANY

    def _sent_rank(self, parcel: Parcel) -> int:
        """The priority in a worker's send queue.

        Under a credit the priority decides which parcel is let into the queue (``credit.py``); in
        the queue itself parcels then go in the order in which they came.
        """
        return ANY if self.sync.credit is not None else self._rank(parcel)

    def _server_rank(self, parcel: Parcel) -> int:
        return self._rank(parcel) if self.sync.server_order == "priority" else ANY

    def _shares(self, parcel: Parcel, worker: int) -> Iterator[tuple[TensorOf, int]]:
        """The gradients of a parcel that a worker makes, each with its gate."""
        for row in parcel.parts:
            weight = self.weights[row]
            for rank, gradient, gate in zip(
                weight.ranks, weight.gradients, weight.gates, strict=True
            ):
                if rank == worker:
                    yield gradient, gate

    def _wait(self, parcel: Parcel, worker: int, task: int) -> None:
        """Let a task wait for what has to be done on a worker before its share goes."""
        made = [op for (op, _), _ in self._shares(parcel, worker)]
        if self.sync.every is not None:
            made = [op for gate in self._gates(parcel, worker) for op in self.updates[gate]]
            self.averaged += [(op, task) for op in made]
        self.columns.wait(task, [*made, *self.ready.get(worker, ())])

    def _gates(self, parcel: Parcel, worker: int) -> list[int]:
        return [gate for _, gate in self._shares(parcel, worker)]

    def _read(self, parcel: Parcel, worker: int, readers: Sequence[int]) -> None:
        """Let these tasks read the gradients of a worker."""
        for gradient, _ in self._shares(parcel, worker):
            self.columns.read(self.buffer_of.get(gradient, NONE), readers)

    def _all_reduce(self, parcel: Parcel) -> None:
        if self.prepared.collectives.cost == "expanded":
            raise InputError(
                'collectives.cost: a synchronisation policy has no use for "expanded" all-reduces; '
                '"closed" or "table"'
            )
        workers, columns = self.weights[parcel.parts[0]].ranks, self.columns
        ring = self.prepared.communicators.ring(ALL_REDUCE, workers, parcel.size)
        row = columns.task(
            parcel.name,
            COLLECTIVE,
            (ring.ranks[0], ring.ranks[-1]),
            op=self._gates(parcel, workers[0])[0],
            # What a message costs its sender a collective costs once: its ranks start together.
            duration=ring.duration_ps + self._messages.message_ps,
            priority=self._rank(parcel),
            size=ring.bytes,
            held=ring.resources,
            links=ring.half_links,
            flow=self.prepared.fabric.shares_rates,
        )
        for worker in workers:
            gates, name = self._gates(parcel, worker), f"{parcel.name} on {self._names[worker]}"
            self._wait(parcel, worker, row)
            if self.sync.every is not None:
                # Parameters are averaged in a flat copy, which ends with the all-reduce.
                columns.buffer(name, worker, parcel.size, "activations", row)
                continue
            columns.release(row, gates)
            self._read(parcel, worker, [row])
            columns.buffer(name, worker, parcel.size, "activations", row, gates)

    def _total(self, parcel: Parcel) -> int:
        """The point at which a server has the sum of all workers."""
        self._served[parcel.server] += parcel.size
        return self.columns.task(f"{parcel.name} sum", SYNC, (parcel.server, parcel.server))

    def _adder(self, server: int) -> int:
        """The queue in which a server adds up."""
        if server not in self._adders:
            name = f"sum {self._names[server]}"
            self._adders[server] = self.columns.queue(name, "priority", server)
        return self._adders[server]

    def _push(self, parcel: Parcel, worker: int, total: int) -> None:
        """The share of one worker, sent and added up."""
        server, columns, name = parcel.server, self.columns, f"{parcel.name} {self._names[worker]}"
        rate = self.sync.aggregation
        # The queue is added with the first parcel of its server, before the tasks that use it.
        adders = () if rate is None else (self._adder(server),)
        message: Message | None = None
        if worker != server:
            message = self._send_share(parcel, worker, name)
        reader = total
        if rate is not None:
            duration = transmission_ps(parcel.size, Fraction(rate))
            if duration > MAX_PS:
                raise InputError(
                    f"sync.aggregation: to add {parcel.size} bytes takes more than 53 days"
                )
            reader = columns.task(
                f"{name} +",
                SYNC,
                (server, server),
                duration=duration,
                priority=self._server_rank(parcel),
                held=adders,
            )
            columns.release(reader, [total])
        if message is None:
            self._wait(parcel, worker, reader)
            self._read(parcel, worker, [reader])
            return
        columns.release(message.last, [reader])
        received = f"{name} received"
        columns.buffer(received, server, parcel.size, "received copies", message.fills, [reader])
        self._read(parcel, worker, message.reads)

    def _send_share(self, parcel: Parcel, worker: int, name: str) -> Message:
        server, rank, op = parcel.server, self._rank(parcel), self._gates(parcel, worker)[0]
        message = self._messages.send(
            f"{name}>{self._names[server]}",
            worker,
            server,
            parcel.size,
            self._sent_rank(parcel),
            op,
        )
        # What an earlier step still has to send goes first, so priorities rise from step to step by
        # the number of weights. Under a policy without priorities all parcels stay at ANY.
        later = len(self.weights) if rank >= FIRST else 0
        self.pushed.append(Push(message.first, parcel.size, message.last, rank, later))
        self._wait(parcel, worker, message.first)
        return message

    def _answer(self, parcel: Parcel, worker: int, total: int) -> None:
        server, columns, gates = parcel.server, self.columns, self._gates(parcel, worker)
        before = total
        if worker != server:
            rank, op, send = self._server_rank(parcel), gates[0], self._messages.send
            name = f"{parcel.name}>{self._names[worker]}"
            if self.sync.reply == "pull":
                note = send(f"{name} ready", server, worker, NOTE, rank, op, False)
                rank_back = self._sent_rank(parcel)
                ask = send(f"{name} ask", worker, server, NOTE, rank_back, op, False)
                columns.release(before, [note.first])
                columns.release(note.last, [ask.first])
                before = ask.last
            message = send(name, server, worker, parcel.size, rank, op)
            columns.release(before, [message.first])
            columns.buffer(name, worker, parcel.size, "received copies", message.fills, gates)
            before = message.last
        columns.release(before, gates)
