"""The short path: columns, room for each thread, and the calls into the kernels."""

from __future__ import annotations

import threading

import numpy as np

from ..errors import InputError
from ..jit import Table
from ..lowering import Prepared
from ..lowering.transfer import transfers
from ..strategy import resolve_placement
from ..taskgraph import Ints
from .cost import FAULT, TOO_LONG, Cost
from .kernel import is_faulty, step, step_recorded
from .memory import cost, events_for, sizes_of
from .question import Question, applies, in_file_order, question_of, record_for, work_for

__all__ = ["Short", "applies", "in_file_order"]


class _Room:
    """What one thread's evaluations write to."""

    def __init__(self, question: Question) -> None:
        self.work, self.record = Table.of(work_for(question)), Table.of(record_for(question))
        self.events, self.peaks = (
            Table.of(events_for(question)),
            np.zeros(question.devices, np.int64),
        )
        self.words = self.work.words, self.record.words, self.events.words


class Short:
    """Evaluates placements of one prepared question, in ``program`` order or fifo; several threads
    at once.
    """

    def __init__(self, prepared: Prepared, program: bool = False) -> None:
        self.prepared = prepared
        self.question, self.sizes = (
            Table.of(question_of(prepared, program)),
            Table.of(sizes_of(prepared)),
        )
        limits = enumerate(device.memory for device in prepared.cluster.devices)
        self.capacity = [(device, int(limit)) for device, limit in limits if limit is not None]
        self._local = threading.local()

    def _room(self) -> _Room:
        room: _Room | None = getattr(self._local, "room", None)
        if room is None:
            room = self._local.room = _Room(self.question.columns)
        return room

    def require_valid(self, placement: Ints) -> None:
        """Raise the error that lowering raises for a placement that cannot be."""
        if is_faulty(self.question.words, placement):
            explain(self.prepared, placement.tolist())

    def _known(self, step_ps: int, placement: Ints) -> bool:
        """Whether a kernel's answer is a step time; not where that is too long.

        Raises what is wrong.
        """
        if step_ps == FAULT:
            explain(self.prepared, placement.tolist())
        return step_ps != TOO_LONG

    def step_ps(self, placement: Ints) -> int | None:
        """The step time in ps; None where it is too long for the short path."""
        found = step(self.question.words, self._room().work.words, placement)
        return found if self._known(found, placement) else None

    def cost(self, placement: Ints) -> Cost | None:
        """Step time and memory; None where the step is too long for the short path."""
        room = self._room()
        step_ps = cost(self.question.words, self.sizes.words, *room.words, placement, room.peaks)
        if not self._known(step_ps, placement):
            return None
        peaks = tuple(room.peaks.tolist())
        excess = 0
        for device, capacity in self.capacity:
            excess = max(excess, peaks[device] - capacity)
        return Cost(step_ps / 1e12, excess == 0, excess, step_ps, peaks)

    def starts(self, placement: Ints) -> tuple[Ints, Ints] | None:
        """Start and finish of every op in ps; None where the step is too long for the short
        path.
        """
        room = self._room()
        if not self._known(
            step_recorded(self.question.words, *room.words[:2], placement), placement
        ):
            return None
        return room.record.columns.start.copy(), room.record.columns.finish.copy()


def explain(prepared: Prepared, placement: list[int]) -> None:
    """Raise what is wrong with a placement by device indices, as for one by names."""
    names, count = prepared.cluster.devices, len(prepared.cluster.devices)
    problems = [
        (
            f'placement[{i}]: device {device} of "{prepared.graph.ops[i].name}" is not in '
            f"0..{count - 1}"
        )
        for i, device in enumerate(placement)
        if not 0 <= device < count
    ]
    if problems:
        raise InputError(problems)
    by_name = {
        op.name: names[device].name
        for op, device in zip(prepared.graph.ops, placement, strict=True)
    }
    resolve_placement(prepared.graph, prepared.cluster, by_name)
    prepared.require_costs(placement)
    list(transfers(prepared, placement))
    raise InputError("placement: cannot be lowered")  # pragma: no cover
