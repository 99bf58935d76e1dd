"""A model of hosts by the text of the execution contract alone (rule 9), without simdev's lowering
or engines.

Every constraint is an edge, and times are longest paths. Transfers use ``parallel`` queues, where
nothing waits for a link, so that edges suffice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any

from simdev.nouns.cluster import Cluster, Host

Node = tuple[Any, ...]  # ("op", step, op) or ("dispatch", step, op or "graph", device)


@dataclass(frozen=True)
class Piece:
    """An op, a piece of an op, or a collective: its ``place`` in the file, the ``devices`` that it
    runs on.

    ``reads`` lists other pieces, by index, with the bytes read from them. Times are ps.
    """

    place: int
    devices: tuple[int, ...]
    duration: int
    host: int = 0
    launches: int = 1
    blocks: bool = False
    priority: int = 0
    reads: tuple[tuple[int, int], ...] = ()
    collective: bool = False
    stream: str | None = None


@dataclass
class HostModel:
    """A question with hosts. ``order`` is fifo, program or priority, or the sequence of each
    device. ``across`` are pairs of pieces: the second waits for the first of the previous step.
    ``sending`` maps bytes to the ps of their transfer.
    """

    pieces: Sequence[Piece]
    cluster: Cluster
    order: str | dict[int, list[int]]
    sending: Callable[[int], int]
    steps: int = 1
    across: Sequence[tuple[int, int]] = ()
    length: dict[Node, int] = field(default_factory=dict)
    edges: list[tuple[Node, Node, int]] = field(default_factory=list)

    def finishes(self) -> dict[Node, int]:
        """The end of every op and every dispatch, in ps."""
        order = list(self._order())
        for step in range(self.steps):
            for i, piece in enumerate(self.pieces):
                self.length["op", step, i] = piece.duration
                for j, size in piece.reads:
                    for device in piece.devices:
                        far = not self.pieces[j].collective and device not in self.pieces[j].devices
                        wait = self.sending(size) if far and not piece.collective else 0
                        self.edges.append((("op", step, j), ("op", step, i), wait))
            if step:
                self.edges += [(("op", step - 1, i), ("op", step, j), 0) for i, j in self.across]
        for device in range(len(self.cluster.devices)):
            host = self.cluster.host_of(device)
            ran = [
                (step, i)
                for step in range(self.steps)
                for i in self._run_on(device, order)
                if not self.pieces[i].collective and self.pieces[i].stream is None
            ]
            self._chain([("op", step, i) for step, i in ran])
            self._chain_streams(device)
            if host is not None and host.mode == "eager":
                self._hold_back(device, host.ahead, order)
        for thread in sorted({self._thread(d) for d in range(len(self.cluster.devices))} - {None}):
            self._dispatch(thread, order)
        return self._longest()

    # Orders

    def _run_on(self, device: int, order: Sequence[tuple[int, int]]) -> list[int]:
        """The pieces of a device in the order in which they run or are dispatched."""
        if isinstance(self.order, dict) and self.cluster.host_of(device) is None:
            return self.order[device]
        return [i for i, d in order if d == device]

    def _order(self) -> Iterator[tuple[int, int]]:
        """The pairs (piece, device) in the order of a step."""
        if isinstance(self.order, dict):
            heads = {device: 0 for device in self.order}
            while True:
                left = [
                    (self.pieces[queue[heads[device]]].place, device)
                    for device, queue in self.order.items()
                    if heads[device] < len(queue)
                ]
                if not left:
                    return
                device = min(left)[1]
                yield self.order[device][heads[device]], device
                heads[device] += 1
        places: Sequence[Any] = [piece.place for piece in self.pieces]
        if self.order == "priority":
            places = self._topological()
        # Pieces of an op have the same place: then the device decides.
        yield from sorted(
            ((i, d) for i, piece in enumerate(self.pieces) for d in piece.devices),
            key=lambda entry: (places[entry[0]], entry[1]),
        )

    def _topological(self) -> list[int]:
        done: set[int] = set()
        number = [0] * len(self.pieces)
        for count in range(len(self.pieces)):
            able = [
                (piece.priority, piece.place, i)
                for i, piece in enumerate(self.pieces)
                if i not in done and done.issuperset(j for j, _ in piece.reads)
            ]
            number[min(able)[2]] = count
            done.add(min(able)[2])
        return number

    # Hosts

    def _thread(self, device: int) -> str | None:
        host = self.cluster.host_of(device)
        if host is None:
            return None
        return f"d{device}" if host.threads == "device" else f"n{self.cluster.devices[device].node}"

    def _host(self, device: int) -> Host:
        host = self.cluster.host_of(device)
        assert host is not None
        return host

    def _dispatch(self, thread: str, order: Sequence[tuple[int, int]]) -> None:
        """Adds the dispatches of a thread, one after the other."""
        given: list[tuple[Node, int]] = []
        for step in range(self.steps):
            replayed: set[int] = set()
            for i, device in order:
                if self._thread(device) != thread:
                    continue
                if self._host(device).mode == "graph":
                    node = ("dispatch", step, "graph", device)
                    self.edges.append((node, ("op", step, i), 0))
                    if device not in replayed:
                        replayed.add(device)
                        self.length[node] = int(self._host(device).launch * 10**12)
                        given.append((node, -1))
                    continue
                node = ("dispatch", step, i, device)
                self.length[node] = self.pieces[i].host
                self.edges.append((node, ("op", step, i), 0))
                given.append((node, i))
        self._chain([node for node, _ in given])
        for k, (node, i) in enumerate(given):
            if i >= 0 and self.pieces[i].blocks:
                then = (other for other, _ in given[k:] if other[:3] != node[:3])
                after = next(then, None)
                if after is not None:
                    self.edges.append((("op", node[1], i), after, 0))

    def _hold_back(self, device: int, ahead: int, order: Sequence[tuple[int, int]]) -> None:
        """Lets each dispatch wait for the latest earlier op from which on the launches, including
        its own, exceed ``ahead``.
        """
        each = [i for i, d in order if d == device]
        ran = [(step, i) for step in range(self.steps) for i in each]
        for k, (step, i) in enumerate(ran):
            through = self.pieces[i].launches
            for earlier in reversed(range(k)):
                through += self.pieces[ran[earlier][1]].launches
                if through > ahead:
                    before = ("op", *ran[earlier])
                    self.edges.append((before, ("dispatch", step, i, device), 0))
                    break

    def _chain_streams(self, device: int) -> None:
        """Lets the ops of each stream of a device run in the order of the file."""
        for stream in {piece.stream for piece in self.pieces} - {None}:
            in_it = [
                i
                for i, piece in enumerate(self.pieces)
                if piece.stream == stream and device in piece.devices
            ]
            self._chain([("op", step, i) for step in range(self.steps) for i in in_it])

    # Times

    def _chain(self, nodes: Sequence[Node]) -> None:
        self.edges += [(a, b, 0) for a, b in pairwise(nodes)]

    def _longest(self) -> dict[Node, int]:
        begin = dict.fromkeys(self.length, 0)
        missing = dict.fromkeys(self.length, 0)
        after: dict[Node, list[tuple[Node, int]]] = {node: [] for node in self.length}
        for a, b, wait in self.edges:
            after[a].append((b, wait))
            missing[b] += 1
        ready: list[tuple[int, str, Node]] = []
        for node, count in missing.items():
            if not count:
                heappush(ready, (0, str(node), node))
        finish: dict[Node, int] = {}
        while ready:
            _, _, node = heappop(ready)
            finish[node] = begin[node] + self.length[node]
            for then, wait in after[node]:
                begin[then] = max(begin[then], finish[node] + wait)
                missing[then] -= 1
                if not missing[then]:
                    heappush(ready, (0, str(then), then))
        assert len(finish) == len(self.length), "the constraints contradict each other"
        return finish
