"""Measures the operators of a captured step one by one, and the step as a whole in the same run.

Each distinct operator runs alone on preallocated random inputs, at least three sets in turn, after warm-ups; its time
is the median of the samples. The sum over the step against the step itself is the check of the method, kept in the
header. Limit: an operator alone finds warmer caches than one inside a step.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ..graph import PHASES
from ..profile import PHASE_CODES
from .capture import Capture, Loss
from .flops import flops_of
from .inputs import make_inputs
from .record import Call
from .timers import LEAST_SAMPLE_NS, Samples, Timer, keep_freed_memory, make_timer, median, quantile
from .updates import optimizer as optimizer_named

Progress = Callable[[int, int, str], None]
"""Called as (done, total, what was measured)."""

INPUT_SETS = 3
PASSES = 2
WARM_UPS = 5
MOST_REPS, LEAST_REPS, LEAST_REPS_LONG = 200, 10, 5
LONG_S = 0.5
STEP_WARM_UPS, STEP_REPS = 2, 6
IDLE_REPEATS, IDLE_REPS = 20, 15
NOISE_LIMIT = 0.05


@dataclass(frozen=True)
class Measured:
    """Rows of a profile in the order of the step, and what the header tells of how they came about."""

    rows: list[dict[str, Any]]
    noise: dict[str, Any]
    step: dict[str, Any]
    method: dict[str, Any]
    unmeasured: list[str]


@dataclass
class _Noise:
    """The same operator again and again through the run: how far an idle repeat strays."""

    timer: Timer
    thunks: list[Callable[[], Any]]
    medians: list[int]
    wall_per_cpu: list[float]

    def repeat(self) -> None:
        """One more median of the reference operator."""
        samples = self.timer.sample(self.thunks, IDLE_REPS, 1)
        self.medians.append(median(samples.device))
        self.wall_per_cpu.append(median(samples.wall) / max(1, self.medians[-1]))

    def report(self) -> dict[str, Any]:
        """The coefficient of variation of the medians, and whether it is too large to trust the profile."""
        cv = statistics.pstdev(self.medians) / statistics.fmean(self.medians)
        return {
            "idle_repeat_cv": round(cv, 4),
            "limit": NOISE_LIMIT,
            "too_noisy": cv > NOISE_LIMIT,
            "repeats": len(self.medians),
            "wall_per_cpu": round(statistics.median(self.wall_per_cpu), 3),
        }


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

    ``device`` is "cpu" or "cuda", ``kind`` the device kind of the rows. The least number of repetitions (10, or 5 of
    what lasts over half a second, and 5 warm-ups) is kept even where the time does not suffice. Uses one thread on a
    CPU. Raises InputError where the device is missing.
    """
    start = time.monotonic()
    timer = make_timer(device, flush)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        kept = keep_freed_memory() if device == "cpu" else True
        steps = _Steps(module, inputs, loss, optimizer, device)
        steps.run(STEP_WARM_UPS, keep=False)
        steps.run(STEP_REPS // 2)
        left = max(0.0, seconds - (time.monotonic() - start) - 1.5 * STEP_REPS / 2 * steps.seconds)
        noise = _reference(timer, device)
        rows, unmeasured = _operators(captured, timer, noise, device, kind, left, progress)
        steps.run(STEP_REPS - STEP_REPS // 2)
    finally:
        torch.set_num_threads(threads)
    method = {
        "timer": timer.method,
        "statistic": timer.statistic,
        "warm_ups": WARM_UPS,
        "passes": PASSES,
        "input_sets": INPUT_SETS,
        "inputs": "random normal",
        "reps": [LEAST_REPS_LONG, MOST_REPS],
        "flush": flush,
        "freed_memory_kept": kept,
        "seconds": seconds,
    }
    return Measured(rows, {**noise.report(), **_floor(timer, device)}, steps.report(captured, rows), method, unmeasured)


def _operators(
    captured: Capture, timer: Timer, noise: _Noise, device: str, kind: str, seconds: float, progress: Progress | None
) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of all operators, and those that could not be run.

    The operators are gone through several times: a slow spell of the machine then touches a part of each median, and
    not the whole of a few.
    """
    found: dict[str, list[Samples]] = {key: [] for key in captured.calls}
    failed: dict[str, str] = {}
    rounds = [key for _ in range(PASSES) for key in captured.calls]
    end = time.monotonic() + seconds
    for done, key in enumerate(rounds):
        if done * IDLE_REPEATS // len(rounds) >= len(noise.medians):
            noise.repeat()
        share = max(0.0, end - time.monotonic()) / (len(rounds) - done)
        row = captured.rows[key]
        try:
            found[key].append(measure_call(captured.calls[key], timer, device, share))
        except (RuntimeError, IndexError, ValueError) as error:
            # Values that only a real step has (an index structure, say): the header names the op, nothing is guessed.
            failed[key] = f"{row['op']} {row['in']}: {str(error).splitlines()[0]}"
        if progress is not None:
            progress(done + 1, len(rounds), str(row["op"]))
    rows = [
        _row(captured.rows[key], captured.calls[key], joined(parts), kind, timer, device)
        for key, parts in found.items()
        if key not in failed
    ]
    return rows, list(failed.values())


def measure_call(call: Call, timer: Timer, device: str, seconds: float) -> Samples:
    """Samples of one call in one pass, within about ``seconds``; warm-ups and the least repetitions in any case."""
    thunks = [_thunk(call, make_inputs(call, device, seed)) for seed in range(INPUT_SETS)]
    with torch.no_grad():
        warm = timer.sample(thunks, WARM_UPS, 1)
        each = max(1, min(warm.device))
        batch = max(1, min(64, LEAST_SAMPLE_NS // each)) if device == "cpu" else 1
        least = LEAST_REPS_LONG if each > LONG_S * 1e9 else LEAST_REPS
        cost = max(1, min(warm.wall)) * batch / 1e9
        reps = max(-(-least // PASSES), min(MOST_REPS // PASSES, int(seconds / cost)))
        return timer.sample(thunks, reps, batch)


def joined(parts: Sequence[Samples]) -> Samples:
    """The samples of several passes as one."""
    device, wall, host = (
        [time for part in parts for time in getattr(part, name)] for name in ("device", "wall", "host")
    )
    return Samples(device, wall, host, parts[0].batch)


def _thunk(call: Call, tensors: Sequence[torch.Tensor]) -> Callable[[], Any]:
    args, kwargs = call.bind(tensors)
    return partial(call.func, *args, **kwargs)


def _row(row: Mapping[str, Any], call: Call, samples: Samples, kind: str, timer: Timer, device: str) -> dict[str, Any]:
    """A profile row of schema v1; "saved" is 0, for what the backward keeps is told by the graph."""
    p10, p50, p90 = quantile(samples.device, 0.1), median(samples.device), quantile(samples.device, 0.9)
    written = sum(spec.bytes for spec in call.made) or call.specs[0].bytes * (len(call.specs) - 1)
    return {
        "v": 1,
        **row,
        "dev": kind,
        "t_ns": {
            "p10": p10,
            "p50": p50,
            "p90": p90,
            "min": min(samples.device),
            "n": len(samples.device),
            "wall": median(samples.wall),
        },
        "host_ns": median(samples.host) if samples.host else median(samples.wall),
        "batch": samples.batch,
        "flops": flops_of(row),
        "br": sum(spec.bytes for spec in call.specs),
        "bw": written,
        "out_bytes": sum(spec.bytes for spec in call.made),
        "saved": 0,
        "ws": _workspace(call) if device == "cuda" else 0,
        "launches": 1,
        "src": "measured",
        "meth": timer.method,
        "rel_err": round((p90 - p10) / (2 * max(1, p50)), 4),
    }


def _workspace(call: Call) -> int:
    """Bytes that a call holds at its peak beyond its outputs. Needs a CUDA device."""
    thunk = _thunk(call, make_inputs(call, "cuda", 0))
    with torch.no_grad():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = thunk()
        torch.cuda.synchronize()
        held = torch.cuda.memory_allocated()
        del result
    return max(0, torch.cuda.max_memory_allocated() - max(before, held))


def _reference(timer: Timer, device: str) -> _Noise:
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(extent, 512, generator=generator).to(device) for extent in (256, 512))
    return _Noise(timer, [partial(torch.nn.functional.linear, x, weight)], [], [])


def _floor(timer: Timer, device: str) -> dict[str, int]:
    """What the clock alone takes, and what the smallest operator takes."""
    small = torch.ones(1, device=device)
    with torch.no_grad():
        add = partial(torch.ops.aten.add.Tensor, small, small)
        timer.sample([add], 20, 10)
        return {
            "timer_ns": median(timer.sample([lambda: None], 100, 1).device),
            "dispatch_ns": median(timer.sample([add], 100, 20).device),
        }


class _Steps:
    """Runs whole training steps and keeps the time of their phases."""

    def __init__(
        self, module: torch.nn.Module, inputs: Sequence[torch.Tensor], loss: Loss, optimizer: str, device: str
    ) -> None:
        self.module = module.to(device).train()
        self.inputs = [tensor.to(device) for tensor in inputs]
        self.loss = loss
        self.device = device
        self.optimizer = optimizer_named(optimizer).make([p for p in module.parameters() if p.requires_grad])
        self.times: dict[str, list[int]] = {phase: [] for phase in PHASES}
        self.seconds = 0.0

    def run(self, count: int, keep: bool = True) -> None:
        """``count`` steps, kept or only to warm up; ``seconds`` becomes the wall time of the last."""
        for _ in range(count):
            begin = time.monotonic()
            marks = [self._now(), *(self._now() for _ in self._phases())]
            self.seconds = time.monotonic() - begin
            for phase, start, end in zip(PHASES, marks, marks[1:], strict=False):
                self.times[phase].extend([end - start] * keep)
        self.optimizer.zero_grad(set_to_none=True)

    def _phases(self) -> Iterator[None]:
        self.optimizer.zero_grad(set_to_none=True)
        value = self.loss(self.module, *self.inputs)
        yield
        value.backward()
        yield
        self.optimizer.step()
        yield

    def _now(self) -> int:
        if self.device == "cuda":
            torch.cuda.synchronize()
            return time.perf_counter_ns()
        return time.thread_time_ns()

    def report(self, captured: Capture, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Sum of operators against the step, whole and by phase, in seconds."""
        sums = {
            phase: sum(captured.count_of(row) * row["t_ns"]["p50"] for row in rows if row["phase"] == code)
            for phase, code in PHASE_CODES.items()
        }
        steps = [sum(times) for times in zip(*self.times.values(), strict=True)]
        phases = {phase: _ratio(sums[phase], median(self.times[phase])) for phase in PHASES}
        return {
            **_ratio(sum(sums.values()), median(steps)),
            "phases": phases,
            "steps": len(steps),
            "ops": sum(captured.counts.values()),
            "keys": len(captured.calls),
        }


def _ratio(of_ops: int, of_step: int) -> dict[str, float]:
    return {"sum_of_ops_s": of_ops / 1e9, "measured_step_s": of_step / 1e9, "ratio": round(of_ops / max(1, of_step), 4)}
