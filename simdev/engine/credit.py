"""The reference engine with senders that have a credit: which message goes next is decided while
the graph runs.

Rule and meaning are told in ``lowering.sync.credit``, which writes the decisions as edges that any
engine follows.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Any, NamedTuple

from ..taskgraph import TaskGraph
from .simpy_engine import _Run


class Sent(NamedTuple):
    """A message under credit: its first task, the one that arrives last, bytes, priority, and its
    sender.
    """

    first: int
    last: int
    size: int
    rank: int
    sender: int


def decisions(
    task_graph: TaskGraph, messages: Iterable[Sent], limit: int, skip: bool
) -> frozenset[tuple[int, int]]:
    """The arrival that let each message go that had to wait for credit: pairs (last task of that,
    first task).
    """
    run = _Credited(task_graph, list(messages), limit, skip)
    run.arrive([task for task, count in enumerate(run.missing) if count == 0])
    run.env.run()
    return frozenset(run.let_go)


class _Credited(_Run):
    """An execution in which a message that is ready waits until its sender has credit for it."""

    def __init__(self, task_graph: TaskGraph, messages: list[Sent], limit: int, skip: bool) -> None:
        super().__init__(task_graph)
        self.skip, self.messages = skip, messages
        self.by_first = {one.first: k for k, one in enumerate(messages)}
        self.by_last = {one.last: k for k, one in enumerate(messages)}
        self.credit = {one.sender: limit for one in messages}
        self.under_way = dict.fromkeys(self.credit, 0)
        self.waiting: dict[int, list[tuple[int, int, int]]] = {sender: [] for sender in self.credit}
        self.returned: list[int] = []
        self.let_go: list[tuple[int, int]] = []

    def release(self, task: int) -> None:
        """A message that arrives gives its credit back."""
        super().release(task)
        if task in self.by_last:
            self.returned.append(self.by_last[task])

    def settle(self, event: Any) -> None:
        """Before starts are decided: who may go of those that are ready."""
        now = int(self.env.now)
        last: dict[int, int] = {}
        for k in sorted(self.returned, key=lambda k: self.messages[k].first):
            one = self.messages[k]
            self.credit[one.sender] += one.size
            self.under_way[one.sender] -= 1
            last[one.sender] = one.last
        arrived, self.arrived = self.arrived, []
        changed = dict.fromkeys(last)
        for task in arrived:
            message = self.by_first.get(task)
            if message is None:
                self.arrived.append(task)
                continue
            one = self.messages[message]
            heappush(self.waiting[one.sender], (one.rank, now, task))
            changed[one.sender] = None
        self.returned = []
        for sender in changed:
            self._admit(sender, now, last.get(sender, -1))
        super().settle(event)

    def _admit(self, sender: int, now: int, last: int) -> None:
        waiting, passed = self.waiting[sender], []
        while waiting and (self.skip or self.credit[sender] > 0):
            entry = heappop(waiting)
            one = self.messages[self.by_first[entry[2]]]
            if self.skip and one.size > self.credit[sender] and self.under_way[sender]:
                passed.append(entry)
                continue
            self.credit[sender] -= one.size
            self.under_way[sender] += 1
            self.arrived.append(one.first)
            if now > entry[1]:
                self.let_go.append((last, one.first))
        for entry in passed:
            heappush(waiting, entry)
