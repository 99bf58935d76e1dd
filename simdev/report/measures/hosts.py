"""The hosts of a step: the time that each thread dispatches, and the origin of these times; and the
idle time of devices, which includes waiting for hosts.

Dispatches are tasks that ``lowering/hosts.py`` wrote, on threads named with THREAD_PREFIX.
``usage`` measures the waiting time of each device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ...ground.units import format_ps
from ...lowering.origins import HostOrigins
from ...lowering.symmetry import Symmetry
from ...nouns.taskgraph import THREAD_PREFIX, TaskGraph
from ...nouns.trace import Trace
from ..table import BAR, COUNT, SHARE, TEXT, TIME, Json, Table, fields_json
from .path import CriticalPath
from .section import Facts, Places, Section, Step
from .spans import Window, holders, is_thread
from .usage import Devices

SHORT_PS = 20 * 10**6
"""Ops that take less on average are likely to wait for an eager host: PyTorch's spends 5 to 10 us
on each on a good machine, 20 to 100 with modules and autograd on a slow one.
"""
HELD = 0.05  # from this share of the step held by launches on, the first screen warns


@dataclass(frozen=True, slots=True)
class HostUse:
    """A host's thread over a step: its number of ``dispatches``, its ``busy_ps``, and these as a
    share of the step (``utilization``).
    """

    name: str
    dispatches: int
    busy_ps: int
    utilization: float


def host_use(trace: Trace, window: Window) -> tuple[HostUse, ...]:
    """Every thread that dispatches, in the order of its first device."""
    task_graph = trace.task_graph
    uses = []
    for resource, tasks in zip(task_graph.resources, holders(task_graph), strict=True):
        if is_thread(resource):
            busy = window.covered_ps(trace.start[tasks], trace.finish[tasks])
            count = len(tasks) // task_graph.steps
            uses.append(HostUse(resource.name, count, window.a_step(busy), window.share(busy)))
    return tuple(uses)


def every_thread(
    uses: Sequence[HostUse], symmetry: Symmetry, task_graph: TaskGraph
) -> tuple[HostUse, ...]:
    """The threads of all hosted devices, each with the use of the thread that was simulated in its
    place.
    """
    by_name = {use.name: use for use in uses}
    threads = [by_name.get(THREAD_PREFIX + name) for name in task_graph.devices]
    return tuple(
        replace(use, name=THREAD_PREFIX + name)
        for name, use in symmetry.spread(threads)
        if use is not None
    )


@dataclass(frozen=True, slots=True)
class Hosts(Section):
    """The threads that dispatch ops, the origin of their times (``origins``, None: unknown), and
    the share of the step that launches hold (``held``).
    """

    name = "host"
    places = Places(entries=90, lines=80, asides=80, tables=50)

    uses: tuple[HostUse, ...]
    origins: HostOrigins | None
    held: float

    @classmethod
    def of_step(cls, step: Step) -> Hosts:
        """The hosts of any step."""
        uses = host_use(step.paced, step.window)
        if step.alike is not None:
            uses = every_thread(uses, step.alike, step.trace.task_graph)
        return cls(uses, step.outcome.hosts, step[CriticalPath].held)

    def lines(self) -> Iterator[str]:
        """Warnings about hosts, for the first screen."""
        if self.uses and self.held >= HELD:
            yield (
                f"LAUNCHES HOLD {self.held:.0%} of the step: hosts dispatch more slowly than "
                "devices run."
            )
        origins = self.origins
        if origins is None:
            return
        if origins.unknown:
            yield (
                f"HOST TIMES UNKNOWN of {origins.unknown:,} of {origins.dispatches:,} dispatches: "
                "they count 0."
            )
        if 0 < origins.short_ps < SHORT_PS:
            mean = format_ps(origins.short_ps)
            yield (
                f"NO HOST IS MODELLED: ops take {mean} on average, and an eager host may need "
                'longer to dispatch one;\nwrite "host": {"mode": "eager"} in the cluster.'
            )

    def tables(self) -> Iterator[Table]:
        """The threads, a row each."""
        rows = tuple(
            (use.name, use.dispatches, use.busy_ps, use.utilization, use.utilization)
            for use in self.uses
        )
        columns = {
            "thread": TEXT, "dispatches": COUNT, "dispatching": TIME, "of step": SHARE, "": BAR,
        }  # fmt: skip
        note = "The rest of the step it waits for its device (ahead, ops that block), or is done."
        yield Table("Hosts", columns, rows, note)

    def to_json(self) -> Json | None:
        """The threads by name, None where no host dispatches anything."""
        origins = self.origins
        if not self.uses or origins is None:
            return None
        return {
            "held": self.held,
            "dispatches": origins.dispatches,
            "unknown": origins.unknown,
            "times": dict(origins.rungs),
            "threads": {use.name: fields_json(use, "name") for use in self.uses},
        }


@dataclass(frozen=True, slots=True)
class Idle(Section):
    """The idle time of working devices, as shares of their time: ``exposed`` communication, waiting
    only for hosts (``hosted``), waiting for others' computing (``bubble``), and all three together
    (``idle``); see ``usage``. ``dispatched``: whether any host dispatches.
    """

    name = "idle"
    places = Places(entries=50, facts=50, notes=10)

    exposed: float
    hosted: float
    bubble: float
    idle: float
    dispatched: bool

    @classmethod
    def of_step(cls, step: Step) -> Idle:
        """The idle time of any step."""
        working = step[Devices].working
        exposed, hosted, bubble, idle = (
            sum(times) / (step.step_ps * len(working) or 1)
            for times in (
                [device.exposed_ps for device in working],
                [device.hosted_ps for device in working],
                [device.bubble_ps for device in working],
                [step.step_ps - device.busy_ps for device in working],
            )
        )
        return cls(exposed, hosted, bubble, idle, bool(step[Hosts].uses))

    def facts(self) -> Facts:
        """The three shares, the hosts' only where a host dispatches."""
        yield "bubble", f"{self.bubble:.1%}"
        if self.dispatched:
            yield "waiting for hosts", f"{self.hosted:.1%}"
        yield "exposed communication", f"{self.exposed:.1%}"

    def notes(self) -> Iterator[str]:
        """All shares in a sentence."""
        hosted = f"waiting for hosts {self.hosted:.1%}, " if self.dispatched else ""
        yield (
            f"Bubble {self.bubble:.1%}, {hosted}exposed communication {self.exposed:.1%} of the "
            f"working devices' time (idle: {self.idle:.1%})."
        )

    def entries(self) -> dict[str, float]:
        """The shares, 0 to 1."""
        return {
            "exposed_communication": self.exposed,
            "waiting_for_host": self.hosted,
            "bubble": self.bubble,
            "idle": self.idle,
        }
