"""An expanded collective: its messages as tasks, which contend with everything else on the links.

The op's own task starts it: it waits for all inputs, takes no time and holds nothing. A rank sends
and gets one message at a time (but for those of one round): a message starts when the one that its
source sent before has arrived, and the one that its destination got before, and what it passes on.
A rank is done when all that it sends and gets has arrived: then readers of its output may start,
and its input is no longer needed. Adding up takes no time, as in closed forms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ...collectives import Phase

Send = Callable[[int, int, int, int], tuple[list[int], list[int]]]
"""Adds the tasks of a message (source, destination, bytes, round): those that begin it, those with
which it arrives.
"""
Wait = Callable[[int, Sequence[int]], None]
"""Lets a task wait for others."""


Arrived = list[tuple[int, list[int]]]
"""Where messages arrived, with the tasks of each."""


def _lists() -> defaultdict[int, list[int]]:
    return defaultdict(list)


@dataclass(slots=True)
class _Ranks:
    """What each rank (device index) has to wait for: the tasks of the messages that it sent and got
    last.
    """

    sent: defaultdict[int, list[int]] = field(default_factory=_lists)  # in its last round
    # arrived since: what it may pass on
    held: defaultdict[int, list[int]] = field(default_factory=_lists)
    # in the last round in which anything arrived
    got: defaultdict[int, list[int]] = field(default_factory=_lists)

    def before(self, source: int, destination: int) -> Sequence[int]:
        """The tasks after which a message from one to the other starts."""
        return tuple(
            dict.fromkeys([*self.sent[source], *self.held[source], *self.got[destination]])
        )

    def advance(self, sent: Arrived, arrived: Arrived) -> None:
        """A round is over; both are told by rank."""
        for rank, _ in sent:
            self.sent[rank], self.held[rank] = [], []
        for rank, _ in arrived:
            self.got[rank] = []
        for rank, tasks in sent:
            self.sent[rank] += tasks
        for rank, tasks in arrived:
            self.got[rank] += tasks

    def receive(self, arrived: Arrived) -> None:
        """What arrived may be passed on from now."""
        for rank, tasks in arrived:
            self.held[rank] += tasks


def add_steps(steps: Iterable[Phase], start: int, send: Send, wait: Wait) -> dict[int, list[int]]:
    """Add the messages after the task ``start``, by round and by the order of the phase.

    Returns when ranks are done.

    That is, for each rank (device index) the tasks that must have arrived.
    """
    ranks, number = _Ranks(), 0
    for phase in steps:
        kept: Arrived = []
        for messages in phase.rounds():
            sent: Arrived = []
            arrived: Arrived = []
            for source, destination in messages:
                first, last = send(source, destination, phase.size, number)
                for task in first:
                    wait(task, ranks.before(source, destination) or (start,))
                sent.append((source, last))
                arrived.append((destination, last))
            ranks.advance(sent, arrived)
            if phase.relays:
                ranks.receive(arrived)
            else:
                kept += arrived
            number += 1
        ranks.receive(kept)
    everyone = dict.fromkeys([*ranks.sent, *ranks.held])
    return {rank: list(dict.fromkeys([*ranks.sent[rank], *ranks.held[rank]])) for rank in everyone}
