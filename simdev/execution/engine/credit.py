"""The reference engine with senders that have a credit: which message goes next is decided while
the graph runs.

``lowering.sync.credit`` has the rule, and writes the decisions as edges that any engine follows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from ...lowering.sync.credit import Sender
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
        self.by_first = {message.first: message for message in messages}
        self.by_last = {message.last: message for message in messages}
        self.senders = {message.sender: Sender(limit, skip) for message in messages}
        self.returned: list[Sent] = []
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
        for message in sorted(self.returned):
            self.senders[message.sender].arrived(message.size)
            last[message.sender] = message.last
        arrived, self.arrived, self.returned = self.arrived, [], []
        changed = dict.fromkeys(last)
        for task in arrived:
            if task in self.by_first:
                message = self.by_first[task]
                self.senders[message.sender].ready(message.rank, now, task, message.size)
                changed[message.sender] = None
            else:
                self.arrived.append(task)
        for sender in changed:
            for first, since in self.senders[sender].admitted():
                self.arrived.append(first)
                if now > since:
                    self.let_go.append((last.get(sender, -1), first))
        super().settle(event)
