"""Whole training steps, timed phase by phase in the same run as their operators: the check of the
method.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ..costs import PHASE_CODES
from ..graph import PHASES
from .capture import Capture, Loss
from .timers import median
from .updates import optimizer as optimizer_named


class Steps:
    """Runs whole training steps and keeps the time of their phases.

    On a CPU it is the CPU time of the one thread. On a GPU events stand between the phases, so that
    nothing waits for the device inside a step.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        inputs: Sequence[torch.Tensor],
        loss: Loss,
        optimizer: str,
        device: str,
    ) -> None:
        self.module = module.to(device).train()
        self.inputs = [tensor.to(device) for tensor in inputs]
        self.loss = loss
        self.device = device
        self.optimizer = optimizer_named(optimizer).make(
            [p for p in module.parameters() if p.requires_grad]
        )
        self.times: dict[str, list[int]] = {phase: [] for phase in PHASES}
        self.seconds = 0.0

    def run(self, count: int, keep: bool = True) -> None:
        """``count`` steps, kept or only to warm up; ``seconds`` becomes the wall time of the
        last.
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

    def report(self, captured: Capture, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Sum of operators against the step, whole and by phase, in seconds."""
        sums = {
            phase: sum(
                captured.count_of(row) * row["t_ns"]["p50"] for row in rows if row["phase"] == code
            )
            for phase, code in PHASE_CODES.items()
        }
        steps = [sum(times) for times in zip(*self.times.values(), strict=True)]
        phases = {phase: _ratio(sums[phase], median(self.times[phase])) for phase in PHASES}
        return {
            **_ratio(sum(sums.values()), median(steps)),
            "phases": phases,
            "steps": len(steps),
            "min_s": min(steps) / 1e9,
            "max_s": max(steps) / 1e9,
            "ops": sum(captured.counts.values()),
            "keys": len(captured.calls),
        }


def _between(start: Any, end: Any) -> int:
    """Nanoseconds between two marks."""
    return int(end - start) if isinstance(start, int) else round(start.elapsed_time(end) * 1e6)


def _ratio(of_ops: int, of_step: int) -> dict[str, float]:
    return {
        "sum_of_ops_s": of_ops / 1e9,
        "measured_step_s": of_step / 1e9,
        "ratio": round(of_ops / max(1, of_step), 4),
    }
