"""Report: what a trace means, in numbers for people, scripts and notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from ..costs import CostMiss
from ..errors import OutOfMemoryError
from ..trace import DeviceMemory, Trace
from .footprint import Footprint, footprint, footprint_json
from .outcome import Outcome
from .path import BLAMES, NOBODY, Segment, critical_path
from .spans import Window, sent_mask
from .splits import SplitCost, sent_bytes, split_json, whole_json
from .steady import Steady, steady_state
from .text import report_html, report_text
from .training import Training, training_of
from .usage import DeviceUse, LinkUse, device_use, link_use

LIVE_SHOWN = 10


@dataclass(frozen=True)
class Report:
    """The analysis of one trace.

    Times are integer ps (``..._ps``) or seconds, sizes bytes, shares 0 to 1.

    ``critical_path`` tiles the step (see ``path``); ``costs`` tells which share of the op time was
    given, measured, interpolated, fitted, scaled from another device or taken from a roofline,
    ``cost_misses`` what had to be estimated, ``cost_rel_err`` the expected relative error of an
    op's time, weighted by time (None: not known). ``footprint`` is None where memory is counted as
    the execution contract counts it; ``splits`` tells what splitting each op costs, ``whole`` which
    ops stay whole beside these although they take time. Where the trace holds several steps,
    ``steady`` tells how they repeat, and all is told of one step: ``step_ps`` is their period, and
    the rest what happens in ``window``, whole periods that the critical path tiles, shared out
    among its steps. Memory is that of the whole trace, which ``trace_ps`` ends. ``synchronised``
    counts the gradients that a policy synchronises (None: there is no policy). ``training`` is the
    section of a large model's step.
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

    @property
    def seconds(self) -> float:
        """The step time in seconds; where steps repeat, their period."""
        return self.step_ps / 1e12

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
    def blame(self) -> dict[str, int]:
        """The critical path of a step by what it is blamed on, in ps; the values add up to
        ``step_ps``.
        """
        totals = dict.fromkeys(BLAMES, 0)
        for blame, _, start_ps, finish_ps, _ in self.critical_path:
            totals[blame] += finish_ps - start_ps
        # Sums are shared out, not parts: so what is rounded adds up.
        sums = [self.window.a_step(ps) for ps in accumulate(totals.values(), initial=0)]
        return {
            blame: after - before
            for blame, (before, after) in zip(BLAMES, pairwise(sums), strict=True)
        }

    @property
    def working(self) -> tuple[DeviceUse, ...]:
        """The devices that run any op."""
        return tuple(device for device in self.devices if device.ops)

    @property
    def idle(self) -> float:
        """The share of the working devices' time in which they compute nothing: ``bubble`` +
        ``exposed``.
        """
        return self._share(sum(self.step_ps - device.busy_ps for device in self.working))

    @property
    def exposed(self) -> float:
        """The share of the working devices' time that goes to exposed communication (see
        ``usage``).
        """
        return self._share(sum(device.exposed_ps for device in self.working))

    @property
    def bubble(self) -> float:
        """The share of the working devices' time in which they neither compute nor communicate (see
        ``usage``).
        """
        return self._share(sum(device.bubble_ps for device in self.working))

    def _share(self, ps: int) -> float:
        return ps / (self.step_ps * len(self.working)) if ps else 0.0

    def require_feasible(self) -> Report:
        """The report itself.

        Raises OutOfMemoryError for the device that exceeds its memory first.
        """
        overflows = [
            device.memory.overflow for device in self.devices if device.memory.overflow is not None
        ]
        if not overflows:
            return self
        first = min(overflows, key=lambda overflow: overflow.time_ps)
        memory = next(device.memory for device in self.devices if device.name == first.device)
        capacity = memory.capacity or 0
        live = first.live[:LIVE_SHOWN]
        raise OutOfMemoryError(
            first.device, first.time_ps, first.task, capacity + first.excess, capacity, live
        )

    def to_json(self) -> dict[str, Any]:
        """What ``simdev simulate --json`` prints, ready for ``json.dumps``."""
        return {
            "step_time_s": self.seconds,
            "step_time_ps": self.step_ps,
            "feasible": self.feasible,
            "memory_excess_bytes": self.memory_excess,
            "engine": self.engine,
            "devices": {device.name: _device_json(device) for device in self.devices},
            "transfers": {"count": self.transfer_count, "bytes": self.transfer_bytes},
            "links": {link.name: _link_json(link) for link in self.links},
            "exposed_communication": self.exposed,
            "bubble": self.bubble,
            "idle": self.idle,
            "blame_s": {blame: ps / 1e12 for blame, ps in self.blame.items()},
            "critical_path": [_segment_json(self.trace, segment) for segment in self.critical_path],
            "costs": dict(self.costs),
            "cost_rel_err": self.cost_rel_err,
            "cost_misses": [_miss_json(miss) for miss in self.cost_misses],
        } | self._more_json()

    def _more_json(self) -> dict[str, Any]:
        """What only some steps have."""
        found: dict[str, Any] = (
            {} if self.footprint is None else {"memory": footprint_json(self.footprint)}
        )
        found |= {} if self.steady is None else self.steady.to_json()
        found |= {} if self.synchronised is None else {"synchronised_gradients": self.synchronised}
        found |= {} if self.training is None else {"training": self.training.to_json()}
        if self.whole:
            found["whole"] = [whole_json(one, self.step_ps) for one in self.whole]
        return found | ({"splits": [split_json(one) for one in self.splits]} if self.splits else {})

    def __str__(self) -> str:
        return report_text(self)

    def __repr__(self) -> str:
        fits = "feasible" if self.feasible else f"{self.memory_excess} bytes over"
        return (
            f"Report({self.seconds:.9g} s, {fits}, {len(self.devices)} devices, engine "
            f"{self.engine!r})"
        )

    def _repr_html_(self) -> str:
        return report_html(self)


def analyze(outcome: Outcome) -> Report:
    """The report of what running a scenario showed; of a trace alone:
    ``analyze(Outcome(trace))``.
    """
    trace, plan = outcome.trace, outcome.plan
    steady, steps = steady_state(trace), trace.task_graph.steps
    window = Window(0, trace.end_ps, steps, steps) if steady is None else steady.window
    return Report(
        trace=trace,
        step_ps=window.a_step(window.length_ps),
        devices=device_use(trace, window),
        links=link_use(trace, window),
        transfer_count=int(np.count_nonzero(sent_mask(trace.task_graph))) // steps,
        transfer_bytes=sent_bytes(trace.task_graph) // steps,
        critical_path=critical_path(trace, window),
        costs=dict(outcome.rungs),
        cost_misses=outcome.misses,
        cost_rel_err=outcome.rel_err,
        footprint=footprint(trace, outcome.memory),
        splits=tuple(one for one in outcome.splits if not one.stays_whole),
        whole=tuple(one for one in outcome.splits if one.stays_whole),
        steady=steady,
        window=window,
        synchronised=outcome.synchronised,
        training=None if plan is None else training_of(trace, plan),
    )


def _miss_json(miss: CostMiss) -> dict[str, Any]:
    return {
        "op": miss.op,
        "kind": miss.kind,
        "device_kind": miss.device_kind,
        "count": miss.count,
        "time_s": miss.seconds,
        "rung": miss.rung,
        "rel_err": miss.rel_err,
        "basis": miss.basis,
    }


def _device_json(device: DeviceUse) -> dict[str, Any]:
    memory = device.memory
    return {
        "ops": device.ops,
        "busy_s": device.busy_ps / 1e12,
        "utilization": device.utilization,
        "exposed_communication_s": device.exposed_ps / 1e12,
        "bubble_s": device.bubble_ps / 1e12,
        "peak_bytes": memory.peak,
        "peak_time_s": memory.peak_ps / 1e12,
        "capacity_bytes": memory.capacity,
        "peak_by_kind": dict(memory.at_peak),
        "overflow": _overflow_json(memory),
    }


def _overflow_json(memory: DeviceMemory) -> dict[str, Any] | None:
    overflow = memory.overflow
    if overflow is None:
        return None
    return {
        "time_s": overflow.time_ps / 1e12,
        "task": overflow.task,
        "excess_bytes": overflow.excess,
        "live": [{"buffer": name, "bytes": size} for name, size in overflow.live[:LIVE_SHOWN]],
    }


def _link_json(link: LinkUse) -> dict[str, Any]:
    return {
        "transfers": link.transfers,
        "bytes": link.bytes,
        "busy_s": link.busy_ps / 1e12,
        "utilization": link.utilization,
    }


def _segment_json(trace: Trace, segment: Segment) -> dict[str, Any]:
    tasks, devices = trace.task_graph.tasks, trace.task_graph.devices
    found: dict[str, Any] = {
        "task": tasks.name[segment.task],
        "blame": segment.blame,
        "start_s": segment.start_ps / 1e12,
        "finish_s": segment.finish_ps / 1e12,
        "start_ps": segment.start_ps,
        "finish_ps": segment.finish_ps,
        "device": devices[tasks.source[segment.task]],
    }
    if segment.waiter != NOBODY:
        found["waiter"] = tasks.name[segment.waiter]
    return found
