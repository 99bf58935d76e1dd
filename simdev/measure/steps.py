"""Measures the operators of a captured step, and the step as a whole in the same run.

The check of the method is the sum of a step's operators against the measured step; the header
keeps both. Limit: an operator alone finds warmer caches than inside a step.

``profiles`` calls it. ``compare`` reads the header entries written here (``step``, ``noise``), and
``doctor`` judges them.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..costs import PHASE_CODES
from ..nouns.graph import PHASES
from .capture import Capture, row_key
from .host import HostTimes, StepParts, measure_host, ops_of_phase
from .kinds import Fields
from .operators import LEAST_REPS, MOST_REPS, PASSES, WARM_UPS, Conditions, Noise, OperatorRun
from .timers import INPUT_SETS, KERNEL_CALLS, Timer, first_line, make_timer, median, quiet
from .tracing import Loss, optimizer_named, refusing

# Runs whole training steps in three ways: phase by phase, in a row without waiting for the device,
# and with only the host timed.

# Numbers of steps: to warm up, measured at least, measured at most, and in a row without waiting.
STEP_WARM_UPS, LEAST_STEPS, MOST_STEPS, ROW_STEPS = 2, 3, 25, 20


@dataclass(frozen=True)
class Step:
    """A training step to be measured: its capture, and the module, inputs, loss and optimizer that
    run it.
    """

    captured: Capture
    module: nn.Module
    inputs: Sequence[Tensor]
    loss: Loss
    optimizer: str


class StepTimer:
    """Runs whole training steps and keeps the times of their phases.

    On a CPU these are CPU times of the one thread. On a GPU they are times between CUDA events,
    which are recorded without waiting for the device inside a step.
    """

    def __init__(self, step: Step, device: str) -> None:
        self.step, self.device = step, device
        self.module = step.module.to(device).train()
        self.inputs = [tensor.to(device) for tensor in step.inputs]
        parameters = [p for p in step.module.parameters() if p.requires_grad]
        self.update = optimizer_named(step.optimizer)
        self.optimizer = self.update.make(parameters)
        self.times: dict[str, list[int]] = {phase: [] for phase in PHASES}
        self.seconds = 0.0
        self.row: Fields = {}

    def warm_up(self, seconds: float) -> int:
        """Runs steps that do not count; returns how many more steps take about ``seconds``."""
        self.run(STEP_WARM_UPS, keep=False)
        return max(LEAST_STEPS, min(MOST_STEPS, int(seconds / self.seconds)))

    def measure_row(self, count: int = ROW_STEPS) -> None:
        """Measures the wall time of a step in a row of steps without waits between them, as in
        training, and the peaks of memory that PyTorch counts meanwhile; keeps both in ``row``.
        """
        self._steps(STEP_WARM_UPS)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before, begin = torch.cuda.memory_allocated(), time.perf_counter()
        self._steps(count)
        torch.cuda.synchronize()
        wall = (time.perf_counter() - begin) / count
        self.row = {
            "wall_s": wall,
            "steps_in_row": count,
            "memory": {
                "allocated_before": before,
                "peak_allocated": torch.cuda.max_memory_allocated(),
                "peak_reserved": torch.cuda.max_memory_reserved(),
            },
        }
        self.optimizer.zero_grad(set_to_none=True)

    def _steps(self, count: int) -> None:
        for _ in range(count):
            for _ in self._phases():
                pass

    def host(self) -> HostTimes:
        """The host's times of the step."""

        def loss() -> Tensor:
            return self.step.loss(self.module, *self.inputs)

        clear = partial(self.optimizer.zero_grad, set_to_none=True)
        parts = StepParts(self.module, loss, self.update, clear)
        return measure_host(parts, self.step.captured, torch.cuda.synchronize)

    def run(self, count: int, keep: bool = True) -> None:
        """Runs ``count`` steps, and keeps their times where ``keep``. Sets ``seconds``, the wall
        time of the last step.
        """
        for _ in range(count):
            begin = time.monotonic()
            marks = [self._mark(), *(self._mark() for _ in self._phases())]
            if self.device == "cuda":
                torch.cuda.synchronize()
            self.seconds = time.monotonic() - begin
            for phase, start, end in zip(PHASES, marks, marks[1:], strict=False):
                self.times[phase].extend([_between(start, end)] * keep)
        self.optimizer.zero_grad(set_to_none=True)

    def _phases(self) -> Iterator[None]:
        # Gradients are cleared first: as in the captured backward, none is added to an old one.
        self.optimizer.zero_grad(set_to_none=True)
        value = self.step.loss(self.module, *self.inputs)
        yield
        value.backward()
        yield
        self.optimizer.step()
        yield

    def _mark(self) -> Any:
        if self.device != "cuda":
            return time.thread_time_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def report(self, rows: Sequence[Mapping[str, Any]]) -> Fields:
        """The sum of operator times against the measured step, whole and by phase, in seconds."""
        captured = self.step.captured
        sums = {
            phase: sum(
                captured.count_of(row) * row["t_ns"]["p50"] for row in rows if row["phase"] == code
            )
            for phase, code in PHASE_CODES.items()
        }
        steps = [sum(times) for times in zip(*self.times.values(), strict=True)]
        return {
            **_ratio(sum(sums.values()), steps),
            "phases": {phase: _ratio(sums[phase], self.times[phase]) for phase in PHASES},
            "steps": len(steps),
            "min_s": min(steps) / 1e9,
            "max_s": max(steps) / 1e9,
            "ops": sum(captured.counts.values()),
            "keys": len(captured.calls),
            **self.row,
        }


def _between(start: Any, end: Any) -> int:
    """Nanoseconds between two marks."""
    return int(end - start) if isinstance(start, int) else round(start.elapsed_time(end) * 1e6)


def _ratio(of_ops: int, times: Sequence[int]) -> dict[str, float]:
    of_step = median(times)
    return {
        "sum_of_ops_s": of_ops / 1e9,
        "measured_step_s": of_step / 1e9,
        "ratio": round(of_ops / max(1, of_step), 4),
    }


# The share of the time for whole steps, which run before and again after the operators.
STEP_SHARE = 0.05


@dataclass(frozen=True)
class Measured:
    """The rows of a profile in the order of the step, and the header's entries about measuring.

    ``step`` is empty where no whole step was measured, ``host`` where the host's times are not
    known; ``wholes`` holds both for every step of a run that measured several.
    """

    rows: list[Fields]
    noise: Fields
    step: Fields
    method: Fields
    unmeasured: list[str]
    host: Fields = field(default_factory=dict)
    wholes: tuple[tuple[Fields, Fields], ...] = ()


def profile_text(measured: Measured, about: Mapping[str, Any]) -> str:
    """The text of a profile as canonical JSON lines: the header, then the rows."""
    rows = "".join(_canonical(row) for row in measured.rows)
    header = {
        "schema": 1,
        **about,
        **({"host": {**about.get("host", {}), **measured.host}} if measured.host else {}),
        "method": measured.method,
        "noise": measured.noise,
        **({"step": measured.step} if measured.step else {}),
        "unmeasured": measured.unmeasured,
        "sha256_of_rows": hashlib.sha256(rows.encode()).hexdigest(),
    }
    return _canonical({"v": 1, "header": header}) + rows


def _canonical(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False) + "\n"


def measure_together(steps: Sequence[Step], conditions: Conditions) -> Measured:
    """Times every distinct operator of captured steps once, and each of the steps.

    Each operator is repeated at least 10 times after 5 warm-ups (1 where it lasts over half a
    second), even where the time does not suffice. Uses one thread on a CPU. After an interrupt the
    operators measured until then are kept.
    """
    start = time.monotonic()
    captured = joint([step.captured for step in steps])
    with quiet(conditions.device) as kept:
        conditions.tell("whole step")
        share = STEP_SHARE * conditions.seconds / len(steps)
        # Errors that depend on values (a label beyond the classes) appear in the first real step.
        with refusing("run"):
            timers = [StepTimer(step, conditions.device) for step in steps]
            reps = [timer.warm_up(share) for timer in timers]
        _in_turns(timers, reps)
        hosts, reasons = _hosts(timers, conditions)
        again = 1.5 * sum(n * timer.seconds for n, timer in zip(reps, timers, strict=True))
        left = max(0.0, conditions.seconds - (time.monotonic() - start) - again)

        def real_steps() -> None:
            for timer in timers:
                timer.run(1, keep=False)

        measured = _measured(captured, conditions, left, kept, real_steps)
        # Steps run again after the operators, so that a machine that slows down over the run slows
        # the measured step too.
        if not measured.method.get("interrupted"):
            _in_turns(timers, reps)
    measured.unmeasured.extend(reasons)
    return _whole(measured, timers, hosts)


def joint(captures: Sequence[Capture]) -> Capture:
    """Several captures as one without a graph, with each distinct operator once."""
    if len(captures) == 1:
        return captures[0]
    # Of calls with equal keys the first is kept.
    calls, rows, counts, saved = (
        {key: value for c in reversed(captures) for key, value in getattr(c, name).items()}
        for name in ("calls", "rows", "counts", "saved")
    )
    # In the order of the steps: the first step's operators come first.
    order = dict.fromkeys(key for capture in captures for key in capture.calls)
    return Capture({}, {key: calls[key] for key in order}, rows, counts, saved)


def _in_turns(timers: Sequence[StepTimer], reps: Sequence[int]) -> None:
    """Runs each step as often as ``reps`` says, in turns: a slow spell of the machine then affects
    all steps equally.
    """
    for i in range(max(reps)):
        for timer, count in zip(timers, reps, strict=True):
            if i < count:
                timer.run(1)


def _hosts(
    timers: Sequence[StepTimer], conditions: Conditions
) -> tuple[list[HostTimes | None], list[str]]:
    """The host's times of each step (None where the device is its own host, or where they could not
    be measured), and the reasons why some could not be measured.
    """
    hosts: list[HostTimes | None] = [None] * len(timers)
    reasons: list[str] = []
    if not has_host(conditions.device):
        return hosts, reasons
    conditions.tell("host")
    for i, timer in enumerate(timers):
        try:
            timer.measure_row()
            hosts[i] = timer.host()
        except (RuntimeError, StopIteration) as error:
            # A profiler may be forbidden, or memory too small for steps in a row: the rows of the
            # operators are kept all the same.
            reasons.append(f"host of {timer.step.captured.graph['name']}: {first_line(error)}")
    return hosts, reasons


def has_host(device: str) -> bool:
    """Whether the device has a separate host, whose times are measured: a CPU is its own host."""
    return device == "cuda"


def _whole(
    measured: Measured, timers: Sequence[StepTimer], hosts: Sequence[HostTimes | None]
) -> Measured:
    """The measured rows together with the figures of the steps and of their hosts."""
    rows = [{**row, **_host_of(row_key(row), hosts)} for row in measured.rows]
    wholes = []
    for timer, host in zip(timers, hosts, strict=True):
        captured, report = timer.step.captured, timer.report(rows)
        if host is not None:
            wholes.append((report, host.header(captured)))
        else:
            known = not (measured.unmeasured or measured.method.get("interrupted"))
            wholes.append((report, _between_ops(captured, report) if known else {}))
    return replace(measured, rows=rows, step=wholes[0][0], host=wholes[0][1], wholes=tuple(wholes))


def _host_of(key: str, hosts: Sequence[HostTimes | None]) -> Fields:
    """The host's time of a row: the median over the steps that have the row."""
    times = [host.of_call[key] for host in hosts if host is not None and key in host.of_call]
    return {"host_step_ns": round(statistics.median(times))} if times else {}


def _between_ops(captured: Capture, report: Mapping[str, Any]) -> Fields:
    """The time that Python and PyTorch spend between the operators of a CPU, which is host and
    device in one: the measured step minus its operators. It is shared among the phases in
    proportion to the same difference of each phase.
    """
    left = {
        phase: max(0.0, part["measured_step_s"] - part["sum_of_ops_s"])
        for phase, part in report["phases"].items()
    }
    # Medians of phases do not sum to the median of the step.
    whole = max(0.0, report["measured_step_s"] - report["sum_of_ops_s"])
    scale = whole / sum(left.values()) if any(left.values()) else 0.0
    phases = {
        phase: {"host_s": round(seconds * scale, 9), "ops": ops_of_phase(captured, phase)}
        for phase, seconds in left.items()
    }
    method = "what is left of the measured step beside its operators, by phase"
    return {"phases": phases, "ahead": 1, "method": method}


def measure_alone(captured: Capture, conditions: Conditions) -> Measured:
    """Times every distinct operator of a capture that belongs to no step."""
    with quiet(conditions.device) as kept:
        return _measured(captured, conditions, conditions.seconds, kept)


def _measured(
    captured: Capture,
    conditions: Conditions,
    seconds: float,
    kept: bool,
    step: Callable[[], object] | None = None,
) -> Measured:
    timer = make_timer(conditions.device, conditions.flush)
    noise = Noise(timer)
    run = OperatorRun(captured, timer, noise, conditions, seconds, step)
    run.measure()
    rows, unmeasured = run.rows()
    method = {
        "timer": timer.method,
        "statistic": "median",
        "warm_ups": WARM_UPS,
        "passes": PASSES,
        "input_sets": INPUT_SETS,
        "inputs": "random normal",
        "updates": "in turns, each parameter once a turn",
        "reps": [LEAST_REPS, MOST_REPS],
        "flush": conditions.flush,
        "freed_memory_kept": kept,
        "seconds": conditions.seconds,
        **({"kernel_calls": KERNEL_CALLS} if conditions.device == "cuda" else {}),
        **({"interrupted": True} if run.interrupted else {}),
    }
    return Measured(rows, noise.report() | _floor(timer), {}, method, unmeasured)


def _floor(timer: Timer) -> dict[str, int]:
    """The times, in ns, of an empty measurement and of the smallest operator; the latter on the
    device and, on a GPU, also on the host.
    """
    small = torch.ones(1, device=timer.device)
    with torch.no_grad():
        add = partial(torch.ops.aten.add.Tensor, small, small)
        timer.sample([add], 20, 10)
        smallest = timer.sample([add], 100, 20)
        nothing = timer.sample([lambda: None], 100, 1)
    floor = {"timer_ns": median(nothing.device), "dispatch_ns": median(smallest.device)}
    return floor | ({"host_dispatch_ns": median(smallest.host)} if smallest.host else {})
