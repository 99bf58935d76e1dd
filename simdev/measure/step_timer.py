"""Runs whole training steps: their phases one by one, in a row without waiting, on the host."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..costs import PHASE_CODES
from ..nouns.graph import PHASES
from .capture import Capture
from .host import HostTimes, StepParts, measure_host
from .kinds import Fields
from .optimizers import optimizer_named
from .timers import median
from .tracing import Loss

# Steps before those that count, at least and at most as many of these, and those in a row.
STEP_WARM_UPS, LEAST_STEPS, MOST_STEPS, ROW_STEPS = 2, 3, 25, 20


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
        self.update = optimizer_named(optimizer)
        self.optimizer = self.update.make(parameters)
        self.times: dict[str, list[int]] = {phase: [] for phase in PHASES}
        self.seconds = 0.0
        self.row: Fields = {}

    def warm_up(self, seconds: float) -> int:
        """Steps that do not count; returns how many more take about so long."""
        self.run(STEP_WARM_UPS, keep=False)
        return max(LEAST_STEPS, min(MOST_STEPS, int(seconds / self.seconds)))

    def measure_row(self, count: int = ROW_STEPS) -> None:
        """The wall time of a step in a row of steps that nobody waits for, which is what training
        takes, and the peaks of memory that PyTorch counts meanwhile.
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

    def host(self, captured: Capture) -> HostTimes:
        """The host's times of the step."""

        def loss() -> Tensor:
            return self.loss(self.module, *self.inputs)

        clear = partial(self.optimizer.zero_grad, set_to_none=True)
        parts = StepParts(self.module, loss, self.update, clear)
        return measure_host(parts, captured, torch.cuda.synchronize)

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
