"""Leaves, and what is computed from them alone: stored on each device in the regions that its
shards read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from .geometry import Box, Part, made_part, part, updated_part
from .layout import inside
from .problem import Placed, SplitProblem


class Demand:
    """The copies of ops on demand: what such an op makes follows from where it is read itself."""

    def __init__(self, problem: SplitProblem, parts: Mapping[int, list[Placed]]) -> None:
        self.problem, self.parts = problem, parts
        self.readers: dict[int, list[tuple[int, int]]] = {}  # op -> (reader, operand)
        # Every reader, of the plan or not: a leaf that only a leaf reads is copied with it.
        for reader, (op, read) in enumerate(zip(problem.readings, problem.read, strict=True)):
            for operand, (producer, _) in enumerate(read):
                # Whom any part serves takes what others call for.
                if not op.any_part(operand):
                    self.readers.setdefault(producer, []).append((reader, operand))
        self.copies: dict[int, list[Placed]] = {}

    def run(self) -> dict[int, list[Placed]]:
        """The copies of every op that is there on demand, and the parts of the updates, which
        follow their parameters.
        """
        for i in self.problem.order:
            if i in self.problem.on_demand or i in self.problem.updates:
                self.of(i)
        return self.copies

    def of(self, i: int) -> list[Placed]:
        """The copies of one op."""
        if i not in self.copies:
            if i in self.problem.updates:
                self.copies[i] = self._updates(i)
            else:
                self.copies[i] = self._read_copies(i) or [self._unread(i)]
        return self.copies[i]

    def _updates(self, i: int) -> list[Placed]:
        """One update for each copy of the parameter."""
        operand, parameter = self.problem.updates[i]
        output, op = self.problem.read[i][operand][1], self.problem.readings[i]
        regions = ((copy.part.makes[output], copy.device) for copy in self.of(parameter))
        return [
            Placed(updated_part(op, operand, region), device)
            for region, device in regions
            if region is not None
        ]

    def _read_copies(self, i: int) -> list[Placed]:
        """One copy for each region read on a device; a region inside another is dropped."""
        wanted: defaultdict[int, dict[Box, Part]] = defaultdict(dict)
        for reader, operand in self.readers.get(i, ()):
            # The update of a parameter follows its copies, so it cannot call for one.
            if self.problem.updates.get(reader, (-1, -1))[1] == i:
                continue
            for copy, device in self.wanted(reader, operand):
                wanted[device][copy.box] = copy
        return [
            Placed(copy, device)
            for device in sorted(wanted)
            for copy in _largest(list(wanted[device].values()))
        ]

    def wanted(self, reader: int, operand: int) -> Iterable[tuple[Part, int]]:
        """By part of a reader the copy of an operand that it calls for, and the device."""
        producer, output = self.problem.read[reader][operand]
        op = self.problem.readings[producer]
        for placed in self.placed_of(reader):
            region = placed.part.needs[operand]
            if region is not None:
                yield made_part(op, output, region), placed.device

    def placed_of(self, i: int) -> list[Placed]:
        """The parts of an op, or its copies."""
        return self.parts.get(i) or self.of(i)

    def _unread(self, i: int) -> Placed:
        """What nothing reads lies whole on the first device in use."""
        return Placed(part(self.problem.readings[i], ()), min(self.used(), default=0))

    def used(self) -> Iterable[int]:
        """The devices of parts that are not there on demand."""
        return (placed.device for parts in self.parts.values() for placed in parts)


def _largest(parts: Sequence[Part]) -> list[Part]:
    """The parts that are not inside another one, in the order of their regions."""
    if len(parts) == 1:
        return [*parts]
    ordered = sorted(parts, key=lambda each: [region or () for region in each.makes])
    return [
        each
        for at, each in enumerate(ordered)
        if not any(
            # Of two that cover each other the first stays.
            _covers(other, each) and (not _covers(each, other) or k < at)
            for k, other in enumerate(ordered)
            if k != at
        )
    ]


def _covers(outer: Part, inner: Part) -> bool:
    return all(
        region is None or (around is not None and inside(region, around))
        for around, region in zip(outer.makes, inner.makes, strict=True)
    )
