"""The section on stragglers, noise and pauses: by how much they lengthen a step, and the devices
that it waits for (``Disturbed``).

It applies where a scenario has ``disturbances``, or its cluster has slowed devices or links. Noise
is drawn in ``execution/disturbances.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ...execution.period import step_time_ps
from ...execution.scenario import Scenario, execute
from ...ground.units import PS_PER_SECOND, format_ps, format_seconds
from ...nouns.taskgraph import COLLECTIVE, DISPATCH, SYNC, TRANSFER, Ints
from ...nouns.trace import Trace
from ..table import COUNT, SHARE, TEXT, TIME, Json, Table
from .section import Facts, Places, Section, Step
from .spans import covered_ps

WAITS_NOTE = (
    "A collective waits for its last device alone from the moment at which the others are there. "
    "Held up is the time in which any waits so, once where several do."
)


@dataclass(frozen=True, slots=True)
class Disturbed(Section):
    """The step, compared with the step without stragglers, noise and pauses."""

    name = "disturbed"
    places = Places(entries=15, lines=35, asides=None, facts=15, tables=15)

    scenario: Scenario
    trace: Trace
    step_ps: int

    @classmethod
    def of_step(cls, step: Step) -> Disturbed | None:
        """The section of a step that something disturbs."""
        scenario = step.outcome.scenario
        if scenario is None:
            return None
        cluster = scenario.cluster
        if scenario.disturbances is None and cluster.without_stragglers is cluster:
            return None
        return cls(scenario, step.trace, step.step_ps)

    @cached_property
    def undisturbed_ps(self) -> int:
        """The step time in ps with devices and links at full speed, without noise and pauses."""
        cluster = self.scenario.cluster.without_stragglers
        even = replace(self.scenario, cluster=cluster, disturbances=None)
        return step_time_ps(execute(even).trace)

    @property
    def longer(self) -> float:
        """The share of the undisturbed step by which the step is longer."""
        return self.step_ps / self.undisturbed_ps - 1 if self.undisturbed_ps else 0.0

    @cached_property
    def waits(self) -> tuple[tuple[str, int, int], ...]:
        """(device, number of collectives where it arrives last, ps in which others wait only for
        it), the longest wait first.
        """
        # For a trace of several steps the mean of a step.
        last_at, held = (-(-c // self.trace.task_graph.steps) for c in waits_for(self.trace))
        devices = self.trace.task_graph.devices
        rows = [(devices[d], int(last_at[d]), int(held[d])) for d in np.flatnonzero(last_at)]
        return tuple(sorted(rows, key=lambda row: -row[2]))

    def to_json(self) -> Json:
        """Both step times, and the devices that are waited for."""
        return {
            "undisturbed_step_time_s": self.undisturbed_ps / PS_PER_SECOND,
            "longer": self.longer,
            "waits_for": [
                {"device": device, "last_at": count, "held_up_s": held / PS_PER_SECOND}
                for device, count, held in self.waits
            ],
        }

    def facts(self) -> Facts:
        """The step without disturbances."""
        seconds = self.undisturbed_ps / PS_PER_SECOND
        yield "undisturbed", f"{format_seconds(seconds)} ({self.longer:+.1%} by disturbances)"

    def lines(self) -> Iterator[str]:
        """By how much the step is longer, and the device that it waits for most."""
        seconds = format_ps(self.undisturbed_ps)
        waits = f"; waits most for {self.waits[0][0]}" if self.waits else ""
        yield f"Disturbed: {self.longer:+.1%} beside {seconds} without{waits}"

    def tables(self) -> Iterator[Table]:
        """The devices that are waited for."""
        rows = tuple((*row, row[2] / self.step_ps if self.step_ps else 0.0) for row in self.waits)
        columns = {"device": TEXT, "last at": COUNT, "held up": TIME, "of step": SHARE}
        yield Table("Waits for", columns, rows, WAITS_NOTE)

    def notes(self) -> Iterator[str]:
        """The seed of the disturbances, which other seeds would change."""
        disturbances = self.scenario.disturbances
        if disturbances is not None:
            yield (
                f"Noise and pauses are those of seed {disturbances.seed}: another seed gives "
                "another step. What-ifs are of the step without them."
            )


def waits_for(trace: Trace) -> tuple[Ints, Ints]:
    """By device the number of collectives at which it arrives last, and the ps for which these wait
    only for it.

    A device arrives when the last of its tasks that a collective waits for ends.
    """
    graph, count = trace.task_graph, len(trace.task_graph.devices)
    tasks, before = graph.tasks, graph.predecessors
    computes = ~graph.of_kind(COLLECTIVE, TRANSFER, SYNC, DISPATCH)
    joins = graph.of_kind(COLLECTIVE, SYNC)[before.owners()] & computes[before.ids]
    task, there = before.owners()[joins], before.ids[joins]
    key, place = np.unique(task * count + tasks.source[there], return_inverse=True)
    arrives = np.zeros(len(key), np.int64)
    np.maximum.at(arrives, place.ravel(), trace.finish[there] + tasks.lag[there])
    joined, device = np.divmod(key, count)
    order = np.lexsort((arrives, joined))
    joined, device, arrives = joined[order], device[order], arrives[order]
    # The last of each collective of several devices, and the one before it.
    ends = np.flatnonzero(np.append(joined[1:] != joined[:-1], True)) if len(joined) else place[:0]
    ends = ends[(ends > 0) & (joined[ends - 1] == joined[ends])]
    ends = ends[arrives[ends] > arrives[ends - 1]]
    last, spans = device[ends], (arrives[ends - 1], arrives[ends])
    held = [covered_ps(*(ps[last == d] for ps in spans)) for d in range(count)]
    return np.bincount(last, minlength=count), np.array(held, np.int64)
