"""Closed forms: what the messages of a collective take together, as the sum of their rounds.

A round takes latency + bytes / bandwidth of its slowest message, with the links that its own
messages share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..fabric import Fabric
from .phases import Phase
from .rounds import Ints, Rounds, rounds_of

Messages = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Closed:
    """A closed form in ps, of which latency, over so many rounds."""

    ps: int
    latency: int
    rounds: int


@dataclass(slots=True)
class Forms:
    """Closed forms on a fabric; keeps the ways of messages once walked, whatever their size."""

    fabric: Fabric
    _rounds: dict[tuple[Messages, bool], Rounds] = field(default_factory=dict)

    def closed(self, phases: Sequence[Phase]) -> Closed:
        """The sum over the rounds of all phases.

        What a link's gap adds to the last round is left out: nothing waits for it. Raises
        InputError where a route is missing or a time absurd.
        """
        total = latency = rounds = trailing = 0
        for phase in phases:
            again = _repeated(phase)[1]
            steps, _ = self._of(phase).at(phase.size)
            # The last step comes again as the phase repeats it: counted, there may be millions.
            last = steps[-1]
            total += sum(step.next for step in steps) + again * last.next
            latency += sum(step.latency for step in steps) + again * last.latency
            rounds += len(steps) + again
            trailing = last.next - last.arrival
        return Closed(total - trailing, latency, rounds)

    def crossed(self, phases: Sequence[Phase]) -> Mapping[int, int]:
        """The bytes that cross each carrier, in the order in which these are first crossed."""
        found = Counter[int]()
        for phase in phases:
            together = _repeated(phase)[0]
            for carrier, messages in self._of(phase).crossed().items():
                found[carrier] += messages // (1 + together) * phase.size * phase.repeats
        return found

    def busy(self, phases: Sequence[Phase]) -> Ints:
        """For how long (ps) the messages hold each carrier, in all; latencies apart."""
        found = np.zeros(self.fabric.carrier_count, np.int64)
        for phase in phases:
            together = _repeated(phase)[0]
            rounds = self._of(phase)
            _, busy = rounds.at(phase.size)
            np.add.at(found, rounds.held[:, 1], busy // (1 + together) * phase.repeats)
        return found

    def _of(self, phase: Phase) -> Rounds:
        together = _repeated(phase)[0]
        key = phase.messages, together
        if key not in self._rounds:
            firsts = phase.by_first()
            steps = [*firsts, [pair for flows in firsts for pair in flows]] if together else firsts
            self._rounds[key] = rounds_of(self.fabric, steps)
        return self._rounds[key]


def _repeated(phase: Phase) -> tuple[bool, int]:
    """Whether several first rounds come together in the end, and how often the last comes again."""
    together = phase.repeats > 1 and any(first for _, _, first in phase.messages)
    return together, phase.repeats - together - 1 if phase.repeats > 1 else 0
