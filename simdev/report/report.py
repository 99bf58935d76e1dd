"""Report: what the trace of a step means, in numbers for scripts and notebooks and as text.

It is made of sections: devices, links and the critical path of every step; ``steady`` where steps
repeat, ``pipeline`` of a schedule's stage times, ``training`` of a large model, ``footprint`` and
``splits`` where there are such. A section tells its own lines, tables, notes and JSON.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from ..costs import CostMiss
from ..execution.period import Steady, steady_state
from ..execution.scenario import Outcome, Scenario, Stage, execute, load_scenario
from ..ground.errors import OutOfMemoryError
from ..ground.units import PS_PER_SECOND, format_seconds
from ..lowering import Prepared
from ..lowering.origins import HostOrigins
from ..lowering.symmetry import Expanded, Symmetry
from ..nouns.trace import DeviceMemory, Overflow, Trace
from .assumptions import assumptions, rests_on, undescribed
from .measures.alike import all_uses, shown_of_all, symmetry_notes
from .measures.footprint import Footprint
from .measures.hosts import HostUse, host_lines, host_table, hosts_json
from .measures.path import BLAMES, Segment, critical_path, path_tables
from .measures.pipeline import PipelineUse, pipeline_use
from .measures.spans import Window, sent_mask
from .measures.splits import SplitCost, sent_bytes, split_costs, split_tables, whole_lines
from .measures.throughput import Throughput
from .measures.training import Training
from .measures.usage import (
    LIVE_SHOWN,
    DeviceUse,
    LinkUse,
    device_table,
    held_table,
    link_table,
    verdict,
)
from .table import COUNT, DETAIL, SHARE, TEXT, TIME, Table, fields_json, table_html, table_text


@dataclass(frozen=True)
class Report:
    """The analysis of one trace. Times are integer ps (``..._ps``) or seconds, sizes bytes, shares
    0 to 1.

    ``critical_path`` tiles the step (see ``path``); ``costs`` is the share of the op time that was
    given, measured, or estimated by each rung of the cost ladder (``costs.RUNGS``),
    ``cost_misses`` what had to be estimated, ``cost_rel_err`` the expected relative error of an
    op's time, weighted by time (None: not known). ``footprint`` is None where memory is counted as
    the execution contract counts it; ``splits`` is what splitting each op costs, ``whole`` the ops
    that stay whole beside these although they take time.

    Where the trace holds several steps, ``steady`` says how they repeat, and all other figures are
    those of one step: ``step_ps`` is their period, and the rest what happens in ``window``, whole
    periods that the critical path tiles, shared out among its steps. Memory is that of the whole
    trace, which ``trace_ps`` ends. ``synchronised`` counts the gradients that a policy synchronises
    (None: there is no policy). ``training`` is the section of a large model's step, ``pipeline``
    that of a schedule from the times of its stages. ``stages`` are those of a pipeline over a
    graph, ``assumptions`` sentences on how gradients are synchronised and what collectives rest on,
    ``hosts`` the threads that dispatch ops, ``host_origins`` what is known of their times. Where a
    ``symmetry`` let some devices stand for others, the trace holds those alone; devices, links and
    hosts are all of them. ``throughput`` are samples, tokens and dollars (None: of a trace alone).
    """

    trace: Trace = field(repr=False, compare=False)
    step_ps: int
    devices: tuple[DeviceUse, ...]
    links: tuple[LinkUse, ...]
    transfer_count: int
    transfer_bytes: int
    critical_path: tuple[Segment, ...] = field(repr=False)
    costs: Mapping[str, float]
    cost_misses: tuple[CostMiss, ...] = ()
    cost_rel_err: float | None = 0.0
    footprint: Footprint | None = None
    splits: tuple[SplitCost, ...] = ()
    whole: tuple[SplitCost, ...] = ()
    steady: Steady | None = None
    window: Window = field(default=Window(0, 0), repr=False)
    synchronised: int | None = None
    training: Training | None = None
    pipeline: PipelineUse | None = None
    stages: tuple[Stage, ...] = ()
    assumptions: tuple[str, ...] = ()
    hosts: tuple[HostUse, ...] = ()
    host_origins: HostOrigins | None = None
    symmetry: Symmetry | Expanded | None = None
    throughput: Throughput | None = None

    @property
    def seconds(self) -> float:
        """The step time in seconds; where steps repeat, their period."""
        return self.step_ps / PS_PER_SECOND

    @property
    def trace_ps(self) -> int:
        """When the whole trace ends, in ps."""
        return self.trace.end_ps

    @property
    def feasible(self) -> bool:
        """Whether every device stays within its memory."""
        return self.trace.feasible

    @property
    def memory_excess(self) -> int:
        """The largest excess over a capacity in bytes, 0 where everything fits."""
        return self.trace.memory_excess

    @property
    def engine(self) -> str:
        """The engine that ran the step."""
        return self.trace.engine

    @property
    def overflows(self) -> tuple[tuple[DeviceMemory, Overflow], ...]:
        """The devices that exceed their memory, each with the first moment at which it does."""
        return tuple((m, m.overflow) for m in self.memories if m.overflow is not None)

    @property
    def memories(self) -> tuple[DeviceMemory, ...]:
        """The memory of every device over the whole trace, in the order of the cluster."""
        return tuple(device.memory for device in self.devices)

    @property
    def blame(self) -> dict[str, int]:
        """The critical path of a step by what it is blamed on, in ps; the values add up to
        ``step_ps``.
        """
        totals = dict.fromkeys(BLAMES, 0)
        for segment in self.critical_path:
            totals[segment.blame] += segment.duration_ps
        # Sums are shared out, not parts: so the rounded values add up.
        sums = [self.window.a_step(ps) for ps in accumulate(totals.values(), initial=0)]
        shares = (after - before for before, after in pairwise(sums))
        return dict(zip(BLAMES, shares, strict=True))

    @property
    def held(self) -> float:
        """The share of the step that launches hold (blame ``launch``)."""
        return self.blame["launch"] / self.step_ps if self.step_ps else 0.0

    @property
    def working(self) -> tuple[DeviceUse, ...]:
        """The devices that run any op."""
        return tuple(device for device in self.devices if device.ops)

    @property
    def idle(self) -> float:
        """The share of working devices' time without computing: all three below together."""
        return self._share(sum(self.step_ps - device.busy_ps for device in self.working))

    @property
    def exposed(self) -> float:
        """The share of working devices' time of exposed communication (``usage``)."""
        return self._share(sum(device.exposed_ps for device in self.working))

    @property
    def hosted(self) -> float:
        """The share of working devices' time in which they wait for hosts alone (``usage``)."""
        return self._share(sum(device.hosted_ps for device in self.working))

    @property
    def bubble(self) -> float:
        """The share of working devices' time in which others compute for them (``usage``)."""
        return self._share(sum(device.bubble_ps for device in self.working))

    @property
    def copies(self) -> int:
        """For how many devices of a large model each of ``devices`` stands; 1 of all else."""
        large = None if self.training is None else self.training.large
        return 1 if large is None or not large.collapsed else large.copies

    @property
    def _alike(self) -> Symmetry | None:
        return self.symmetry if isinstance(self.symmetry, Symmetry) else None

    def _share(self, ps: int) -> float:
        return ps / (self.step_ps * len(self.working)) if ps else 0.0

    def require_feasible(self) -> Report:
        """The report itself. Raises OutOfMemoryError for the device that exceeds its memory
        first.
        """
        if not self.overflows:
            return self
        memory, first = min(self.overflows, key=lambda over: over[1].time_ps)
        capacity, live = memory.capacity or 0, first.live[:LIVE_SHOWN]
        needed = capacity + first.excess
        raise OutOfMemoryError(first.device, first.time_ps, first.task, needed, capacity, live)

    def to_json(self) -> dict[str, Any]:
        """What ``simdev simulate --json`` prints, ready for ``json.dumps``."""
        beside = {} if self.footprint is None else self.footprint.devices_json()
        figures: dict[str, Any] = {
            "step_time_s": self.seconds,
            "step_time_ps": self.step_ps,
            "feasible": self.feasible,
            "memory_excess_bytes": self.memory_excess,
            "engine": self.engine,
            "devices": {d.name: d.to_json() | beside.get(d.name, {}) for d in self.devices},
            "transfers": {"count": self.transfer_count, "bytes": self.transfer_bytes},
            "links": {link.name: _link_json(link) for link in self.links},
            "exposed_communication": self.exposed,
            "waiting_for_host": self.hosted,
            "bubble": self.bubble,
            "idle": self.idle,
            "blame_s": {blame: ps / PS_PER_SECOND for blame, ps in self.blame.items()},
            "critical_path": [segment.to_json(self.trace) for segment in self.critical_path],
            "costs": dict(self.costs),
            "cost_rel_err": self.cost_rel_err,
            "cost_misses": [_miss_json(miss) for miss in self.cost_misses],
        }
        # What only some steps have; where there is none, the key is left out.
        figures |= {} if self.footprint is None else {"memory": self.footprint.to_json()}
        figures |= {} if self.steady is None else self.steady.to_json()
        figures |= hosts_json(self.hosts, self.host_origins, self.held)
        if self._alike is not None:
            figures["symmetry"] = self._alike.to_json(self.trace.task_graph)
        if self.synchronised is not None:
            figures["synchronised_gradients"] = self.synchronised
        figures |= {} if self.throughput is None else {"throughput": self.throughput.to_json()}
        figures |= {} if self.training is None else {"training": self.training.to_json()}
        if self.whole:
            figures["whole"] = [_whole_json(cost, self.step_ps) for cost in self.whole]
        return figures | ({"splits": [fields_json(c) for c in self.splits]} if self.splits else {})

    def lines(self) -> Iterator[str]:
        """The step time, and what has to be known to read it."""
        for section in (self.training, self.pipeline):
            yield from () if section is None else section.lines()
        step = f"{self.step_ps:,} ps, engine {self.engine}"
        yield f"Step time {format_seconds(self.seconds)}  ({step})"
        yield from () if self.steady is None else self.steady.lines()
        yield from () if self.throughput is None else self.throughput.lines()
        yield from self.grounds()

    def grounds(self) -> Iterator[str]:
        """Notes on the costs that the step time rests on, and on what it leaves out."""
        if self.synchronised == 0:
            yield "No gradient is synchronised: the strategy makes none on several devices."
        yield from whole_lines(self.whole, self.step_ps)
        yield from host_lines(self.host_origins, self.held if self.hosts else 0.0)
        origins = self.host_origins if self.hosts else None
        memory = None if self.footprint is None else self.footprint.memory
        yield from rests_on(self.costs, self.cost_rel_err, origins, memory)
        yield from undescribed(self.cost_misses)

    def tables(self) -> Iterator[Table]:
        """The figures of the step, for a terminal, a notebook and a page."""
        if self.training is not None:
            yield from self.training.tables()
        else:
            yield device_table(self.devices, shown_of_all(self.trace.task_graph, self._alike))
            yield held_table(self.memories, in_terminal=self.footprint is not None)
        if self.pipeline is not None:
            yield self.pipeline.table()
        columns = {"device": TEXT, "first op": TEXT, "last op": TEXT, "ops": COUNT}
        yield Table("Stages of the pipeline", columns, self.stages)
        if self.footprint is not None:
            yield self.footprint.table()
        yield host_table(self.hosts)
        yield link_table(self.links, self.transfer_count, self.transfer_bytes)
        if self.critical_path:
            yield from path_tables(self.trace, self.critical_path, self.window, self.blame)
        yield from split_tables(self.splits, self.whole, self.step_ps)
        yield _miss_table(self)

    def notes(self) -> Iterator[str]:
        """What has to be known to read the figures."""
        hosted = f"waiting for hosts {self.hosted:.1%}, " if self.hosts else ""
        yield (
            f"Bubble {self.bubble:.1%}, {hosted}exposed communication {self.exposed:.1%} of the "
            f"working devices' time (idle: {self.idle:.1%})."
        )
        yield from self.assumptions
        yield from symmetry_notes(self.symmetry, self.trace.task_graph)
        for section in (self.training, self.footprint):
            yield from () if section is None else section.notes()

    def __str__(self) -> str:
        tables = (table_text(table) for table in self.tables() if table.rows and table.shown)
        fits = verdict(self.memories, self.copies)
        return "\n\n".join(["\n".join(self.lines()), "\n".join(fits), *tables, *self.notes()])

    def __repr__(self) -> str:
        fits = "feasible" if self.feasible else f"{self.memory_excess} bytes over"
        return (
            f"Report({self.seconds:.9g} s, {fits}, {len(self.devices)} devices, "
            f"engine {self.engine!r})"
        )

    def _repr_html_(self) -> str:
        # The text takes the notebook's colour, which may be light or dark.
        fits = verdict(self.memories, self.copies)
        edge = f"4px solid {'#1a7f37' if self.feasible else '#c01c28'};padding-left:8px"
        parts = [
            f"<p><b>{'<br/>'.join(map(escape, self.lines()))}</b></p>",
            f'<pre style="border-left:{edge}">{escape(chr(10).join(fits))}</pre>',
            *(table_html(table) for table in self.tables() if table.rows and table.shown),
            *(f"<p>{escape(note)}</p>" for note in self.notes()),
        ]
        return f"<div>{''.join(parts)}</div>"


def run(
    scenario: Scenario | str | os.PathLike[str] | Mapping[str, Any],
    prepared: Prepared | None = None,
) -> Report:
    """The answer to a scenario, or to the file or object of one: lower, simulate, analyze; see
    ``load_scenario`` and ``execute``. Raises InputError, MissingCostError, DeadlockError.

    A step that does not fit is an answer and no error (``Report.feasible``).
    """
    question = scenario if isinstance(scenario, Scenario) else load_scenario(scenario)
    return analyze(execute(question, prepared))


def analyze(outcome: Outcome, replays: bool = True) -> Report:
    """The report of what running a scenario showed.

    A trace alone can be analyzed too: ``analyze(Outcome(trace))``. Without ``replays`` PyTorch's
    allocator is not replayed, which takes longer than all else: what it reserves is left out.
    """
    trace, large, schedule = outcome.trace, outcome.large, outcome.schedule
    steady = steady_state(trace)
    window = Window.of(trace, steady)
    symmetry = outcome.symmetry if isinstance(outcome.symmetry, Symmetry) else None
    devices, links, hosts = all_uses(trace, steady, window, symmetry)
    splits = split_costs(*outcome.splitting) if outcome.splitting is not None else ()
    step_ps, scenario = window.a_step(window.length_ps), outcome.scenario
    return Report(
        trace=trace,
        step_ps=step_ps,
        devices=devices,
        links=links,
        # Counts are those of the whole trace, in which rounds have the same tasks, mostly steps.
        transfer_count=window.mean(int(np.count_nonzero(sent_mask(trace.task_graph)))),
        transfer_bytes=window.mean(sent_bytes(trace.task_graph, symmetry)),
        critical_path=critical_path(trace, window),
        costs=dict(outcome.rungs),
        cost_misses=outcome.misses,
        cost_rel_err=outcome.rel_err,
        footprint=Footprint.of(trace, outcome.memory, symmetry, replays),
        splits=tuple(cost for cost in splits if not cost.stays_whole),
        whole=tuple(cost for cost in splits if cost.stays_whole),
        steady=steady,
        window=window,
        synchronised=outcome.synchronised,
        training=None if large is None else Training.of(trace, large),
        pipeline=None if schedule is None else pipeline_use(schedule, trace),
        stages=outcome.stages,
        assumptions=tuple(assumptions(outcome)),
        hosts=hosts,
        host_origins=outcome.hosts,
        symmetry=outcome.symmetry,
        throughput=None if scenario is None else Throughput.of(scenario, step_ps),
    )


def _miss_table(report: Report) -> Table:
    busy = sum(device.busy_ps for device in report.devices) / PS_PER_SECOND
    rows = tuple(
        (
            miss.op, miss.kind, miss.device_kind, miss.count, round(miss.seconds * PS_PER_SECOND),
            miss.seconds / busy if busy else 0.0, miss.rung, miss.rel_err, miss.basis,
        )
        for miss in report.cost_misses
    )  # fmt: skip
    columns = {
        "first op": TEXT, "kind": TEXT, "on": TEXT, "ops": COUNT, "time": TIME, "of busy": SHARE,
        "rung": TEXT, "error": SHARE, "basis": DETAIL,
    }  # fmt: skip
    return Table("Op times that were not measured", columns, rows, shown=8)


def _link_json(link: LinkUse) -> dict[str, Any]:
    entry = fields_json(link)
    del entry["name"]  # the key of the entry
    return entry


def _miss_json(miss: CostMiss) -> dict[str, Any]:
    return {{"seconds": "time_s"}.get(name, name): v for name, v in fields_json(miss).items()}


def _whole_json(cost: SplitCost, step_ps: int) -> dict[str, Any]:
    share = cost.summed_ps / step_ps if step_ps else 0.0
    time_s = cost.summed_ps / PS_PER_SECOND
    return {"op": cost.op, "kind": cost.kind, "time_s": time_s, "share": share}
