"""Leaves, and what is computed from them alone: stored on each device in the regions that its
shards read.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...semantics import Region
from .geometry import Box, Part, box_of, part, updated_box
from .layout import inside
from .plan import Placed, Question

Held = list[tuple[int, Part]]
"""Device and part of every copy of an op."""


def copies_of(question: Question, parts: Mapping[int, list[Placed]]) -> dict[int, list[Placed]]:
    """The copies of every op that is there on demand, and the parts of the updates, which follow
    their parameters.
    """
    return Demand(question, parts).run()


class Demand:
    """Asks readers first: what an op on demand reads follows from where it is read itself."""

    def __init__(self, question: Question, parts: Mapping[int, list[Placed]]) -> None:
        self.question, self.parts = question, parts
        self.readers: dict[int, list[tuple[int, int]]] = {}  # op -> (reader, operand)
        for reader, read in enumerate(question.read):
            for operand, (producer, _) in enumerate(read):
                self.readers.setdefault(producer, []).append((reader, operand))
        self.found: dict[int, list[Placed]] = {}

    def run(self) -> dict[int, list[Placed]]:
        """The copies of all that is there on demand, and the parts of their updates."""
        for i in self.question.order:
            if i in self.question.on_demand or i in self.question.updates:
                self.of(i)
        return self.found

    def of(self, i: int) -> list[Placed]:
        """The copies of one op."""
        if i not in self.found:
            if i in self.question.updates:
                self.found[i] = self._updates(i)
            else:
                self.found[i] = self._copies(i) or [
                    Placed(part(self.question.readings[i], ()), self._anywhere())
                ]
        return self.found[i]

    def _updates(self, i: int) -> list[Placed]:
        """One update for each copy of the parameter."""
        operand, parameter = self.question.updates[i]
        output = self.question.read[i][operand][1]
        op, found = self.question.readings[i], []
        for copy in self.of(parameter):
            region = copy.part.makes[output]
            if region is not None:
                found.append(Placed(part(op, updated_box(op, operand, region)), copy.device))
        return found

    def _copies(self, i: int) -> list[Placed]:
        """One copy for each region read on a device; a region inside another is dropped."""
        op = self.question.readings[i]
        asked: dict[int, dict[Box, Part]] = {}
        for reader, operand in self.readers.get(i, ()):
            if self.question.updates.get(reader, (-1, -1))[1] == i:
                continue
            output = self.question.read[reader][operand][1]
            readers = self.parts.get(reader)
            for one in self.of(reader) if readers is None else readers:
                region = one.part.needs[operand]
                if region is not None:
                    box = box_of(op, output, region)
                    asked.setdefault(one.device, {})[box] = part(op, box)
        return [
            Placed(one, device)
            for device in sorted(asked)
            for one in _largest(list(asked[device].values()))
        ]

    def _anywhere(self) -> int:
        """For what nobody reads: the first device in use."""
        return min((one.device for parts in self.parts.values() for one in parts), default=0)


def _largest(parts: list[Part]) -> list[Part]:
    """The parts that are not inside another one, in the order of their regions."""
    ordered = sorted(parts, key=lambda one: [region or () for region in one.makes])
    return [
        one
        for at, one in enumerate(ordered)
        if not any(
            _covers(other, one) and (not _covers(one, other) or k < at)
            for k, other in enumerate(ordered)
            if k != at
        )
    ]


def _covers(one: Part, other: Part) -> bool:
    pairs: list[tuple[Region | None, Region | None]] = list(
        zip(one.makes, other.makes, strict=True)
    )
    return all(b is None or (a is not None and inside(b, a)) for a, b in pairs)
