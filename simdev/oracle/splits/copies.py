"""What is there on demand under a strategy that changes: copies remembered by the parts of those
who read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...lowering.partition.cuts import regions_read
from ...lowering.partition.demand import Demand
from ...lowering.partition.geometry import Part, made_part
from ...lowering.partition.problem import Placed, SplitProblem
from .states import Log, Logged, SplitOp


class Copies(Demand):
    """Copies of what is there on demand, remembered by the parts of their readers."""

    def __init__(self, problem: SplitProblem, planned: Mapping[int, SplitOp], log: Log) -> None:
        super().__init__(problem, {})
        self.planned = planned
        self.copies: Logged[int, list[Placed]] = Logged(log)
        self.unread: set[int] = set()
        self._readers: dict[int, list[int]] = {}
        self._known: dict[Any, tuple[list[Placed], Any]] = {}

    def of(self, i: int) -> list[Placed]:
        """The copies of one op."""
        if i in self.copies:
            return self.copies[i]
        planned, updates = self.planned, self.problem.updates
        if i in updates:
            lists: list[Any] = [self.of(updates[i][1])]
        else:
            lists = [planned.get(reader) or self.of(reader) for reader in self._calling(i)]
            if not lists:
                self.unread.add(i)
                return super().of(i)
        key = i, tuple(map(id, lists))
        if key not in self._known:
            self._known[key] = super().of(i), lists  # what is known by its id must live
        self.copies[i] = self._known[key][0]
        return self.copies[i]

    def _calling(self, i: int) -> list[int]:
        """The readers that call for copies of an op: not the update of it, which follows them."""
        if i not in self._readers:
            readers = dict.fromkeys(reader for reader, _ in self.readers.get(i, ()))
            updates = self.problem.updates
            self._readers[i] = [r for r in readers if updates.get(r, (-1, -1))[1] != i]
        return self._readers[i]

    def wanted(self, reader: int, operand: int) -> Iterable[tuple[Part, int]]:
        """By part of a reader the copy of an operand that it calls for, and the device."""
        split = self.planned.get(reader)
        if split is not None and split.cut is not None:
            producer, output = self.problem.read[reader][operand]
            regions, numbers = regions_read(split.cut, operand)
            op = self.problem.readings[producer]
            copies = [made_part(op, output, region) for region in regions]
            return zip([copies[number] for number in numbers], split.devices, strict=True)
        return super().wanted(reader, operand)

    def placed_of(self, i: int) -> list[Placed]:
        """The parts of an op, or its copies."""
        return self.planned[i].placed if i in self.planned else self.of(i)

    def used(self) -> Iterable[int]:
        """The devices of parts that are not there on demand."""
        return (device for split in self.planned.values() for device in split.devices)
