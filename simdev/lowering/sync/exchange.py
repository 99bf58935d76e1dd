"""What happens to one parcel: an all-reduce of its workers, or push, adding up and answer by its
server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from ...ground.errors import InputError
from ...ground.units import MAX_PS, transmission_ps
from ...nouns.strategy import Sync
from ...nouns.structure import TensorOf
from ...nouns.taskgraph import COLLECTIVE, PERSISTENT, SYNC
from ..collective import ALL_REDUCE
from ..columns import NONE, Columns
from ..prepare import Prepared
from ..steps import Push
from .messages import NOTE, Message, MessageWriter
from .parcels import Parcel
from .weights import Weight

ANY = 1  # priority of parcels where there is none: behind other transfers, as they come
FIRST = 2  # priority of the first parcel where there is one


class Exchange:
    """Writes the tasks of parcels into columns.

    ``ready`` tells by worker what a parcel waits for beside its gradients; ``buffer_of`` the buffer
    of the base graph that holds a gradient. ``pushed`` collects the pushes, for the credit of their
    senders.
    """

    def __init__(
        self,
        columns: Columns,
        prepared: Prepared,
        sync: Sync,
        weights: Sequence[Weight],
        ready: Mapping[int, Sequence[int]],
        buffer_of: Mapping[TensorOf, int],
    ) -> None:
        self.columns, self.prepared, self.sync, self.weights = columns, prepared, sync, weights
        self.ready, self.buffer_of = ready, buffer_of
        self.pushed: list[Push] = []
        self._messages = MessageWriter(columns, prepared, sync)
        self._names = [device.name for device in prepared.cluster.devices]
        self._adders: dict[int, int] = {}  # the queue in which a server adds up
        self._served: Counter[int] = Counter()  # bytes of the sums that a server holds

    def add(self, together: Sequence[Parcel]) -> None:
        """The tasks of parcels of one weight, at most one a server.

        Rows are numbered by step: worker r first sends to r + 1, server r first answers r + 1.
        Where all send at once they do not all send to the same one.
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
        """What servers hold throughout: the sums that they serve."""
        for device, size in sorted(self._served.items()):
            name = f"sums on {self._names[device]}"
            self.columns.buffer(name, device, size, "gradients", PERSISTENT)

    def _rank(self, parcel: Parcel) -> int:
        return FIRST + parcel.rank if self.sync.priority != "none" else ANY

    def _sent_rank(self, parcel: Parcel) -> int:
        """In a worker's send queue.

        Under a credit the priority decides who gets one; then they stand as they came.
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
        # The queue stands where the first parcel of its server does, before the tasks that use it.
        adder = None if self.sync.aggregation is None else self._adder(server)
        message: Message | None = None
        if worker != server:
            message = self._send_share(parcel, worker, name)
        reader = total
        if adder is not None and self.sync.aggregation is not None:
            duration = transmission_ps(parcel.size, Fraction(self.sync.aggregation))
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
                held=(adder,),
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
        # Only ranks that are an order rise from step to step, each by the whole order.
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
