"""Measures the operators of a captured step, and the step as a whole in the same run.

The sum of the operators over the step against the step itself is the check of the method, kept in
the header. Limit: an operator alone meets warmer caches than inside a step.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..costs import PHASE_CODES
from ..graph import PHASES
from .capture import Capture
from .inputs import INPUT_SETS
from .kinds import Fields
from .operators import (
    LEAST_REPS,
    MOST_REPS,
    PASSES,
    WARM_UPS,
    Conditions,
    Noise,
    measure_operators,
)
from .optimizers import optimizer_named
from .timers import Timer, make_timer, median, quiet
from .tracing import Loss

# Whole steps before and again after the operators: at least, at most, and the share of the time
# that they may take.
STEP_WARM_UPS, LEAST_STEPS, MOST_STEPS, STEP_SHARE = 2, 3, 25, 0.05


@dataclass(frozen=True)
class Measured:
    """Rows of a profile in the order of the step, and what the header tells of how they came about.

    ``step`` is empty where no whole step was measured.
    """

    rows: list[Fields]
    noise: Fields
    step: Fields
    method: Fields
    unmeasured: list[str]


def profile_text(measured: Measured, about: Mapping[str, Any]) -> str:
    """Canonical JSON lines: the header, then a row a line."""
    rows = "".join(_canonical(row) for row in measured.rows)
    header = {
        "schema": 1,
        **about,
        "method": measured.method,
        "noise": measured.noise,
        **({"step": measured.step} if measured.step else {}),
        "unmeasured": measured.unmeasured,
        "sha256_of_rows": hashlib.sha256(rows.encode()).hexdigest(),
    }
    return _canonical({"v": 1, "header": header}) + rows


def _canonical(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False) + "\n"


def measure(
    captured: Capture,
    module: nn.Module,
    inputs: Sequence[Tensor],
    loss: Loss,
    optimizer: str,
    conditions: Conditions,
) -> Measured:
    """Times every distinct operator of a captured step, and the step.

    The least number of repetitions (10, after 5 warm-ups, or 1 of what lasts over half a second) is
    kept even where the time does not suffice. Uses one thread on a CPU.
    """
    start = time.monotonic()
    with quiet(conditions.device) as kept:
        steps = StepTimer(module, inputs, loss, optimizer, conditions.device)
        steps.run(STEP_WARM_UPS, keep=False)
        most = int(STEP_SHARE * conditions.seconds / steps.seconds)
        reps = max(LEAST_STEPS, min(MOST_STEPS, most))
        steps.run(reps)
        spent = time.monotonic() - start + 1.5 * reps * steps.seconds
        left = max(0.0, conditions.seconds - spent)
        measured = _measured(captured, conditions, left, kept, partial(steps.run, 1, keep=False))
        # Again behind the operators: a machine that slows down over the run shows in the step too.
        steps.run(reps)
    return replace(measured, step=steps.report(captured, measured.rows))


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
    rows, unmeasured = measure_operators(captured, timer, noise, conditions, seconds, step)
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
    }
    return Measured(rows, noise.report() | _floor(timer), {}, method, unmeasured)


def _floor(timer: Timer) -> dict[str, int]:
    """What the clock alone takes, and what the smallest operator takes, on the device and, on a
    GPU, on the host.
    """
    small = torch.ones(1, device=timer.device)
    with torch.no_grad():
        add = partial(torch.ops.aten.add.Tensor, small, small)
        timer.sample([add], 20, 10)
        smallest = timer.sample([add], 100, 20)
        nothing = timer.sample([lambda: None], 100, 1)
    floor = {"timer_ns": median(nothing.device), "dispatch_ns": median(smallest.device)}
    return floor | ({"host_dispatch_ns": median(smallest.host)} if smallest.host else {})


class StepTimer:
    """Runs whole training steps and keeps the time of their phases.

    On a CPU it is the CPU time of the one thread. On a GPU events stand between the phases, so that
    nothing waits for the device inside a step.
    """

    def __init__(
        self,
        module: nn.Module,
        inputs: Sequence[Tensor],
        loss: Loss,
        optimizer: str,
        device: str,
    ) -> None:
        self.module = module.to(device).train()
        self.inputs = [tensor.to(device) for tensor in inputs]
        self.loss = loss
        self.device = device
        parameters = [p for p in module.parameters() if p.requires_grad]
        self.optimizer = optimizer_named(optimizer).make(parameters)
        self.times: dict[str, list[int]] = {phase: [] for phase in PHASES}
        self.seconds = 0.0

    def run(self, count: int, keep: bool = True) -> None:
        """``count`` steps, kept or only to warm up; sets ``seconds``, the wall time of the last."""
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
        # Gradients are made anew, as in the captured backward: none is added to an old one.
        self.optimizer.zero_grad(set_to_none=True)
        value = self.loss(self.module, *self.inputs)
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

    def report(self, captured: Capture, rows: Sequence[Mapping[str, Any]]) -> Fields:
        """Sum of operators against the step, whole and by phase, in seconds."""
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
