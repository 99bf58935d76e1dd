"""An expanded collective: its messages as tasks, which contend with everything else on the links.

The op's task starts it: it waits for all inputs, takes no time and holds nothing. A rank sends and
gets one message at a time (but for those of one round): a message starts when the one that its
source sent before has arrived, and the one that its destination got before, and what it passes on.
A rank is done when all that it sends and gets has arrived: then readers of its output may start,
and its input is no longer needed. Adding up takes no time, as in closed forms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from ...costs.collectives import Phase

Send = Callable[[int, int, int, int], tuple[list[int], list[int]]]
"""Adds the tasks of a message (source, destination, bytes, round): those that begin it, those with
which it arrives."""
Wait = Callable[[int, Sequence[int]], None]
"""Lets a task wait for others."""
Arrived = list[tuple[int, list[int]]]
"""Where messages arrived, with the tasks of each."""


class _Ranks:
    """What each rank (device index) has to wait for: the tasks of the messages that it sent in its
    last round, got in its last, and holds since, which it may pass on.
    """

    def __init__(self) -> None:
        self.sent: dict[int, list[int]] = defaultdict(list)
        self.held: dict[int, list[int]] = defaultdict(list)
        self.got: dict[int, list[int]] = defaultdict(list)

    def before(self, source: int, destination: int) -> Sequence[int]:
        """The tasks after which a message from one to the other starts."""
        return [*self.sent[source], *self.held[source], *self.got[destination]]

    def advance(self, sent: Arrived, arrived: Arrived) -> None:
        """A round is over; both are told by rank."""
        # What a rank held it has sent on: later rounds wait for that alone, or edges would grow
        # with the square of the rounds.
        self.held.update((rank, []) for rank, _ in sent)
        for last, messages in ((self.sent, sent), (self.got, arrived)):
            last.update((rank, []) for rank, _ in messages)
            for rank, tasks in messages:
                last[rank] += tasks

    def receive(self, arrived: Arrived) -> None:
        """What arrived may be passed on from now."""
        for rank, tasks in arrived:
            self.held[rank] += tasks


def add_steps(steps: Iterable[Phase], start: int, send: Send, wait: Wait) -> dict[int, list[int]]:
    """Add the messages after the task ``start``, by round and by the order of the phase.

    Returns by rank (device index) the tasks that must have arrived before it is done.
    """
    ranks, number = _Ranks(), 0
    for phase in steps:
        kept: Arrived = []
        for messages in phase.rounds():
            sent, arrived = Arrived(), Arrived()
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
                # Passed on in the next phase at the earliest: nobody sends what it gets in this.
                kept += arrived
            number += 1
        ranks.receive(kept)
    everyone = dict.fromkeys([*ranks.sent, *ranks.held])
    return {rank: list(dict.fromkeys([*ranks.sent[rank], *ranks.held[rank]])) for rank in everyone}
