"""Measures the operators of a captured step, and the step as a whole in the same run.

The sum of the operators over the step against the step itself is the check of the method, kept in
the header. Limit: an operator alone finds warmer caches than one inside a step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from .capture import Capture, Loss
from .operators import (
    INPUT_SETS,
    LEAST_REPS,
    MOST_REPS,
    PASSES,
    WARM_UPS,
    Noise,
    Progress,
    measure_operators,
)
from .steps import Steps
from .timers import Timer, keep_freed_memory, make_timer, median

STEP_WARM_UPS, LEAST_STEPS, MOST_STEPS, STEP_SHARE = 2, 3, 25, 0.05
"""Whole steps before and again after the operators: at least, at most, and the share of the time
that they may take.
"""
CUDA_WARM_S = 1.0


@dataclass(frozen=True)
class Measured:
    """Rows of a profile in the order of the step, and what the header tells of how they came about.

    ``step`` is empty where no whole step was measured.
    """

    rows: list[dict[str, Any]]
    noise: dict[str, Any]
    step: dict[str, Any]
    method: dict[str, Any]
    unmeasured: list[str]


def measure(
    captured: Capture,
    module: torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    loss: Loss,
    optimizer: str,
    device: str,
    kind: str,
    seconds: float,
    flush: bool = False,
    progress: Progress | None = None,
) -> Measured:
    """Times every distinct operator of a captured step, and the step, within about ``seconds``.

    ``device`` is "cpu" or "cuda", ``kind`` the device kind of the rows. The least number of
    repetitions (10, after 5 warm-ups, or 1 of what lasts over half a second) is kept even where the
    time does not suffice. Uses one thread on a CPU. Raises InputError where the device is missing.
    """
    start = time.monotonic()
    with quiet(device) as kept:
        steps = Steps(module, inputs, loss, optimizer, device)
        steps.run(STEP_WARM_UPS, keep=False)
        reps = max(LEAST_STEPS, min(MOST_STEPS, int(STEP_SHARE * seconds / steps.seconds)))
        steps.run(reps)
        left = max(0.0, seconds - (time.monotonic() - start) - 1.5 * reps * steps.seconds)
        found = _measured(captured, device, kind, left, flush, progress, kept)
        steps.run(reps)
    return Measured(
        found.rows,
        found.noise,
        steps.report(captured, found.rows),
        found.method | {"seconds": seconds},
        found.unmeasured,
    )


def measure_alone(
    captured: Capture,
    device: str,
    kind: str,
    seconds: float,
    flush: bool,
    progress: Progress | None = None,
) -> Measured:
    """Times every distinct operator of a capture that belongs to no step.

    Raises as ``measure`` does.
    """
    with quiet(device) as kept:
        return _measured(captured, device, kind, seconds, flush, progress, kept)


@contextmanager
def quiet(device: str) -> Iterator[bool]:
    """One thread, and freed memory kept (yields whether it is); on a GPU the clocks are brought up
    first.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        kept = keep_freed_memory() if device == "cpu" else True
        if device == "cuda":
            _warm_up()
        yield kept
    finally:
        torch.set_num_threads(threads)


def _warm_up() -> None:
    x = torch.randn(2048, 2048, device="cuda")
    end = time.monotonic() + CUDA_WARM_S
    while time.monotonic() < end:
        x @ x
        torch.cuda.synchronize()


def _measured(
    captured: Capture,
    device: str,
    kind: str,
    seconds: float,
    flush: bool,
    progress: Progress | None,
    kept: bool,
) -> Measured:
    timer = make_timer(device, flush)
    noise = Noise.watch(timer, device)
    rows, unmeasured = measure_operators(captured, timer, noise, device, kind, seconds, progress)
    method = {
        "timer": timer.method,
        "statistic": timer.statistic,
        "warm_ups": WARM_UPS,
        "passes": PASSES,
        "input_sets": INPUT_SETS,
        "inputs": "random normal",
        "updates": "in turns, each parameter once a turn",
        "reps": [LEAST_REPS, MOST_REPS],
        "flush": flush,
        "freed_memory_kept": kept,
        "seconds": seconds,
    }
    return Measured(rows, {**noise.report(), **_floor(timer, device)}, {}, method, unmeasured)


def _floor(timer: Timer, device: str) -> dict[str, int]:
    """What the clock alone takes, and what the smallest operator takes, on the device and, on a
    GPU, on the host.
    """
    small = torch.ones(1, device=device)
    nothing: Callable[[], Any] = lambda: None  # noqa: E731
    with torch.no_grad():
        add = partial(torch.ops.aten.add.Tensor, small, small)
        timer.sample([add], 20, 10)
        smallest = timer.sample([add], 100, 20)
        found = {
            "timer_ns": median(timer.sample([nothing], 100, 1).device),
            "dispatch_ns": median(smallest.device),
        }
    if smallest.host:
        found["host_dispatch_ns"] = median(smallest.host)
    return found
