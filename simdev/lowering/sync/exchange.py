"""What happens to one parcel: an all-reduce of its workers, or push, adding up and answer by its
server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from ...errors import InputError
from ...strategy import Sync
from ...taskgraph import COLLECTIVE, SYNC
from ...units import transmission_ps
from ..collective import ALL_REDUCE, Ring
from ..iterations import Push
from ..prepare import Prepared
from .draft import Draft
from .messages import NOTE, Message, Post
from .parcels import Parcel
from .weights import Weight

# priority of parcels where there is none: behind other transfers, in the order in which they come
ANY = 1
FIRST = 2  # priority of the first parcel where there is one


@dataclass(frozen=True)
class Exchange:
    """Writes the tasks of parcels into a draft.

    ``made`` tells by worker what a parcel waits for beside its gradients; ``buffers`` the buffer of
    the base graph that holds a gradient. ``pushed`` collects the pushes, for the credit of their
    senders.
    """

    draft: Draft
    prepared: Prepared
    sync: Sync
    weights: Sequence[Weight]
    made: Mapping[int, Sequence[int]]
    buffers: Mapping[tuple[int, int], int]
    pushed: list[Push] = field(default_factory=list)

    @cached_property
    def post(self) -> Post:
        """What writes messages."""
        return Post(self.draft, self.prepared, self.sync)

    @cached_property
    def _names(self) -> list[str]:
        return [device.name for device in self.prepared.cluster.devices]

    @cached_property
    def _adders(self) -> dict[int, int]:
        return {}

    @cached_property
    def _served(self) -> dict[int, int]:
        return {}

    def add(self, together: Sequence[Parcel]) -> None:
        """The tasks of parcels of one weight, at most one a server.

        Rows are numbered by step: worker r first sends to r + 1, server r first answers r + 1.
        Where all send at once they do not all send to the same one.
        """
        if together[0].server < 0:
            for parcel in together:
                self._all_reduce(parcel)
            return
        workers = self._workers(together[0])
        count, totals = len(workers), [self._total(parcel) for parcel in together]
        places = [
            workers.index(p.server) if p.server in workers else k for k, p in enumerate(together)
        ]
        pairs = [
            ((places[k] - at) % count, at, k) for k in range(len(together)) for at in range(count)
        ]
        for _, at, k in sorted(pairs):
            self._push(together[k], workers[at], totals[k])
        for step, k in ((step, k) for step in range(1, count + 1) for k in range(len(together))):
            self._answer(together[k], workers[(places[k] + step) % count], totals[k])

    def finish(self) -> None:
        """What servers hold throughout: the sums that they serve."""
        for device, size in sorted(self._served.items()):
            self.draft.buffer(f"sums on {self._names[device]}", device, size, "gradients", -1, [])

    def _rank(self, parcel: Parcel) -> int:
        return FIRST + parcel.rank if self.sync.priority != "none" else ANY

    def _sent_rank(self, parcel: Parcel) -> int:
        """In a worker's send queue.

        Under a credit the priority decides who gets one; then they stand as they came.
        """
        return ANY if self.sync.credit is not None else self._rank(parcel)

    def _server_rank(self, parcel: Parcel) -> int:
        return self._rank(parcel) if self.sync.server_order == "priority" else ANY

    def _waits(self, parcel: Parcel, worker: int) -> list[int]:
        """What has to be done on a worker before its share goes: the gradients, and what ``made``
        says.
        """
        own = []
        for row in parcel.parts:
            weight = self.weights[row]
            own += [weight.gradients[k][0] for k, rank in enumerate(weight.ranks) if rank == worker]
        return [*dict.fromkeys([*own, *self.made.get(worker, ())])]

    def _gates(self, parcel: Parcel, worker: int) -> list[int]:
        found = []
        for row in parcel.parts:
            weight = self.weights[row]
            found += [weight.gates[k] for k, rank in enumerate(weight.ranks) if rank == worker]
        return found

    def _read(self, parcel: Parcel, worker: int, readers: Sequence[int]) -> None:
        """These tasks read the gradients of a worker."""
        for row in parcel.parts:
            weight = self.weights[row]
            for k, rank in enumerate(weight.ranks):
                buffer = self.buffers.get(weight.gradients[k])
                if rank == worker and buffer is not None:
                    self.draft.reads += [(buffer, reader) for reader in readers]

    def _workers(self, parcel: Parcel) -> tuple[int, ...]:
        return self.weights[parcel.parts[0]].ranks

    def _all_reduce(self, parcel: Parcel) -> None:
        workers, draft = self._workers(parcel), self.draft
        ring = self._ring(workers, parcel.size)
        row = draft.task(
            parcel.name,
            COLLECTIVE,
            (ring.ranks[0], ring.ranks[-1]),
            op=self._gates(parcel, workers[0])[0],
            duration=ring.duration_ps + self.post.message_ps,
            priority=self._rank(parcel),
            size=ring.bytes,
            held=ring.resources,
            links=ring.half_links,
            flow=self.prepared.fabric.shares_rates,
        )
        for worker in workers:
            gates = self._gates(parcel, worker)
            draft.edges += [(one, row) for one in self._waits(parcel, worker)]
            draft.edges += [(row, gate) for gate in gates]
            self._read(parcel, worker, [row])
            draft.buffer(
                f"{parcel.name} on {self._names[worker]}",
                worker,
                parcel.size,
                "activations",
                row,
                gates,
            )

    def _ring(self, ranks: tuple[int, ...], size: int) -> Ring:
        if self.prepared.collectives.cost == "expanded":
            raise InputError(
                'collectives.cost: a synchronisation policy has no use for "expanded" '
                'all-reduces; "closed" or "table"'
            )
        return self.prepared.collective(ALL_REDUCE, ranks, size)

    def _total(self, parcel: Parcel) -> int:
        """The point at which a server has the sum of all workers."""
        self._served[parcel.server] = self._served.get(parcel.server, 0) + parcel.size
        return self.draft.task(f"{parcel.name} sum", SYNC, (parcel.server, parcel.server))

    def _adding(self, parcel: Parcel) -> tuple[int, int] | None:
        """(queue, ps) of adding one push up; None where it takes no time."""
        if self.sync.aggregation is None:
            return None
        if parcel.server not in self._adders:
            self._adders[parcel.server] = self.draft.queue(
                f"sum {self._names[parcel.server]}", parcel.server
            )
        rate = Fraction(self.sync.aggregation)
        return self._adders[parcel.server], transmission_ps(parcel.size, rate)

    def _push(self, parcel: Parcel, worker: int, total: int) -> None:
        """The share of one worker, sent and added up."""
        server, draft, arrived = parcel.server, self.draft, self._waits(parcel, worker)
        name, adding = f"{parcel.name} {self._names[worker]}", self._adding(parcel)
        message: Message | None = None
        if worker != server:
            told, op = f"{name}>{self._names[server]}", self._gates(parcel, worker)[0]
            rank = self._rank(parcel)
            message = self.post.send(told, worker, server, parcel.size, self._sent_rank(parcel), op)
            later = len(self.weights) if rank >= FIRST else 0
            self.pushed.append(Push(message.first, parcel.size, message.last, rank, later))
            draft.edges += [(one, message.first) for one in arrived]
            arrived = [message.last]
        reader = total
        if adding is not None:
            queue, length = adding
            rank = self._server_rank(parcel)
            reader = draft.task(
                f"{name} +", SYNC, (server, server), duration=length, priority=rank, held=(queue,)
            )
            draft.edges.append((reader, total))
        draft.edges += [(one, reader) for one in arrived]
        if message is not None:
            draft.buffer(
                f"{name} received", server, parcel.size, "received copies", message.fills, [reader]
            )
        self._read(parcel, worker, [reader] if message is None else message.reads)

    def _answer(self, parcel: Parcel, worker: int, total: int) -> None:
        server, draft, gates = parcel.server, self.draft, self._gates(parcel, worker)
        before = total
        if worker != server:
            rank, op, post = self._server_rank(parcel), gates[0], self.post
            name = f"{parcel.name}>{self._names[worker]}"
            if self.sync.reply == "pull":
                note = post.send(f"{name} ready", server, worker, NOTE, rank, op, tensor=False)
                ask = post.send(
                    f"{name} ask", worker, server, NOTE, self._sent_rank(parcel), op, tensor=False
                )
                draft.edges += [(before, note.first), (note.last, ask.first)]
                before = ask.last
            message = post.send(name, server, worker, parcel.size, rank, op)
            draft.edges.append((before, message.first))
            draft.buffer(name, worker, parcel.size, "received copies", message.fills, gates)
            before = message.last
        draft.edges += [(before, gate) for gate in gates]
