"""The reference engine with senders that have a credit: which message goes next is decided while
the graph runs.

Rule and meaning are told in ``lowering.sync.credit``, which writes the decisions as edges that any
engine follows.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Any, NamedTuple

from ...nouns.taskgraph import TaskGraph
from .simpy_engine import Execution


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
    execution = _Credited(task_graph, list(messages), limit, skip)
    execution.run()
    return frozenset(execution.let_go)


class _Credited(Execution):
    """An execution in which a message that is ready waits until its sender has credit for it."""

    def __init__(self, task_graph: TaskGraph, messages: list[Sent], limit: int, skip: bool) -> None:
        super().__init__(task_graph)
        self.skip, self.messages = skip, messages
        self.by_first = {message.first: k for k, message in enumerate(messages)}
        self.by_last = {message.last: k for k, message in enumerate(messages)}
        self.credit = {message.sender: limit for message in messages}
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
            message = self.messages[k]
            self.credit[message.sender] += message.size
            self.under_way[message.sender] -= 1
            last[message.sender] = message.last
        arrived, self.arrived = self.arrived, []
        changed = dict.fromkeys(last)
        for task in arrived:
            if task in self.by_first:
                message = self.messages[self.by_first[task]]
                heappush(self.waiting[message.sender], (message.rank, now, task))
                changed[message.sender] = None
            else:
                self.arrived.append(task)
        self.returned = []
        for sender in changed:
            self._admit(sender, now, last.get(sender, -1))
        super().settle(event)

    def _admit(self, sender: int, now: int, last: int) -> None:
        waiting, passed = self.waiting[sender], []
        while waiting and (self.skip or self.credit[sender] > 0):
            entry = heappop(waiting)
            message = self.messages[self.by_first[entry[2]]]
            # A sender with nothing under way may send what exceeds its whole credit.
            if self.skip and message.size > self.credit[sender] and self.under_way[sender]:
                passed.append(entry)
                continue
            self.credit[sender] -= message.size
            self.under_way[sender] += 1
            self.arrived.append(message.first)
            if now > entry[1]:
                self.let_go.append((last, message.first))
        for entry in passed:
            heappush(waiting, entry)
