"""The short path: columns, room for each thread, and the calls into the kernels."""

from __future__ import annotations

import threading

import numpy as np

from ..errors import InputError
from ..lowering import Prepared
from ..lowering.transfer import transfers
from ..strategy import resolve_placement
from ..taskgraph import Ints
from .cost import TOO_LONG, Cost
from .kernel import first_fault, step
from .memory import Events, events_for, peaks, sizes_of
from .question import Record, Work, applies, question_of, record_for, work_for

__all__ = ["Short", "applies"]


class Short:
    """Evaluates placements of one prepared question; several threads at once."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared, self.question, self.sizes = prepared, question_of(prepared), sizes_of(prepared)
        limits = [device.memory for device in prepared.cluster.devices]
        self.capacity = [None if limit is None else int(limit) for limit in limits]
        self._local = threading.local()

    def _room(self) -> tuple[Work, Record, Events, Ints]:
        room = getattr(self._local, "room", None)
        if room is None:
            q = self.question
            room = self._local.room = (work_for(q), record_for(q), events_for(q), np.zeros(q.devices, np.int64))
        return room

    def require_valid(self, placement: Ints) -> None:
        """Raise the error that lowering raises for a placement that cannot be."""
        if first_fault(self.question, placement) >= 0:
            explain(self.prepared, placement.tolist())

    def step_ps(self, placement: Ints) -> int | None:
        """The step time in ps; None where it is too long for the short path."""
        self.require_valid(placement)
        step_ps = int(step(self.question, self._room()[0], None, placement))
        return None if step_ps == TOO_LONG else step_ps

    def cost(self, placement: Ints) -> Cost | None:
        """Step time and memory; None where the step is too long for the short path."""
        self.require_valid(placement)
        work, record, events, peak = self._room()
        step_ps = int(step(self.question, work, record, placement))
        if step_ps == TOO_LONG:
            return None
        peaks(self.question, work, record, self.sizes, events, placement, step_ps, peak)
        found = tuple(peak.tolist())
        over = [top - limit for top, limit in zip(found, self.capacity, strict=True) if limit is not None]
        excess = max(0, max(over, default=0))
        return Cost(step_ps / 1e12, excess == 0, excess, step_ps, found)

    def starts(self, placement: Ints) -> tuple[Ints, Ints] | None:
        """Start and finish of every op in ps; None where the step is too long for the short path."""
        self.require_valid(placement)
        work, record, _, _ = self._room()
        if int(step(self.question, work, record, placement)) == TOO_LONG:
            return None
        return record.start.copy(), record.finish.copy()


def explain(prepared: Prepared, placement: list[int]) -> None:
    """Raise what is wrong with a placement by device indices, as for one by names."""
    names, count = prepared.cluster.devices, len(prepared.cluster.devices)
    problems = [
        f'placement[{i}]: device {device} of "{prepared.graph.ops[i].name}" is not in 0..{count - 1}'
        for i, device in enumerate(placement)
        if not 0 <= device < count
    ]
    if problems:
        raise InputError(problems)
    by_name = {op.name: names[device].name for op, device in zip(prepared.graph.ops, placement, strict=True)}
    resolve_placement(prepared.graph, prepared.cluster, by_name)
    prepared.require_costs(placement)
    list(transfers(prepared, placement))
    raise InputError("placement: cannot be lowered")  # pragma: no cover
