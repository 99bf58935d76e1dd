"""What the hosts of a step do: how long each thread dispatches, and what is known of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...ground.units import PS_PER_SECOND, format_seconds
from ...lowering.origins import HostOrigins
from ...nouns.trace import Trace
from ..table import BAR, COUNT, SHARE, TEXT, TIME, Table
from .spans import Window, group, is_thread

SHORT_PS = 20 * 10**6
"""Ops that take less on average are likely to wait for an eager host: PyTorch's spends 5 to 10 us
on each on a good machine, 20 to 100 with modules and autograd on a slow one.
"""
HELD = 0.05  # share of the step that launches hold, from which on it is told on the first screen


@dataclass(frozen=True, slots=True)
class HostUse:
    """A host's thread over a step: so many ``dispatches``, busy for ``busy_ps``, which is the share
    ``utilization`` of the step.
    """

    name: str
    dispatches: int
    busy_ps: int
    utilization: float


def host_use(trace: Trace, window: Window) -> tuple[HostUse, ...]:
    """Every thread that dispatches, in the order of its first device."""
    task_graph = trace.task_graph
    held = task_graph.tasks.resources
    queued = group(held.ids, held.owners(), len(task_graph.resources))
    uses = []
    for resource, tasks in zip(task_graph.resources, queued, strict=True):
        if is_thread(resource):
            busy = window.covered_ps(trace.start[tasks], trace.finish[tasks])
            count = len(tasks) // task_graph.steps
            uses.append(HostUse(resource.name, count, window.a_step(busy), window.share(busy)))
    return tuple(uses)


def host_table(uses: Sequence[HostUse]) -> Table:
    """A row a thread."""
    rows = tuple(
        (use.name, use.dispatches, use.busy_ps, use.utilization, use.utilization) for use in uses
    )
    columns = {
        "thread": TEXT, "dispatches": COUNT, "dispatching": TIME, "of step": SHARE, "": BAR,
    }  # fmt: skip
    note = "The rest of the step it waits for its device (ahead, ops that block), or is done."
    return Table("Hosts", columns, rows, note)


def host_lines(origins: HostOrigins | None, held: float) -> Iterator[str]:
    """What a person should know of hosts before reading on; ``held`` is the share of the step that
    launches hold.
    """
    if held >= HELD:
        yield (
            f"LAUNCHES HOLD {held:.0%} of the step: hosts dispatch more slowly than devices run."
        )
    if origins is None:
        return
    if origins.unknown:
        yield (
            f"HOST TIMES UNKNOWN of {origins.unknown:,} of {origins.dispatches:,} dispatches: they "
            "count 0."
        )
    if 0 < origins.short_ps < SHORT_PS:
        mean = format_seconds(origins.short_ps / PS_PER_SECOND)
        yield (
            f"NO HOST IS MODELLED: ops take {mean} on average, and an eager host may need longer "
            'to dispatch one;\nwrite "host": {"mode": "eager"} in the cluster.'
        )


def hosts_json(uses: Sequence[HostUse], origins: HostOrigins | None, held: float) -> dict[str, Any]:
    """The entry ``host``: empty where no host dispatches anything."""
    if not uses or origins is None:
        return {}
    threads = {
        use.name: {
            "dispatches": use.dispatches,
            "busy_s": use.busy_ps / PS_PER_SECOND,
            "utilization": use.utilization,
        }
        for use in uses
    }
    return {
        "host": {
            "held": held,
            "dispatches": origins.dispatches,
            "unknown": origins.unknown,
            "times": dict(origins.rungs),
            "threads": threads,
        }
    }
