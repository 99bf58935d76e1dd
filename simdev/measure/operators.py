"""Measures the operators of a capture one by one, and how much the machine strays meanwhile.

Each distinct operator runs alone on preallocated random inputs, at least three sets in turn, after
warm-ups; its time is the median of the samples. Updates run in turns, as a step runs them: each
parameter is touched once a step, so an update that is repeated alone would meet it in a cache where
no step meets it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..semantics import traits_of, work
from .capture import Capture
from .kinds import Fields, aten_name, named_arguments
from .record import Call, Slot, TensorSpec
from .timers import (
    LEAST_SAMPLE_NS,
    Samples,
    Thunk,
    Timer,
    cuda_kernels,
    median,
    timing_fields,
    workspace_bytes,
)

Progress = Callable[[int, int, str], None]
"""Called as (done, total, kind of the op that was measured)."""

INPUT_SETS = 3
PASSES = 2
WARM_UPS, WARM_UPS_LONG = 5, 1
LONG_S = 0.5  # what lasts longer is warm after one call
MOST_REPS, LEAST_REPS = 200, 10
IDLE_REPEATS, IDLE_REPS = 20, 15
NOISE_LIMIT = 0.05
TURN_WARM_UPS, MOST_TURNS = 2, 20
# Inputs of this size push themselves out of the caches: one set of them is enough.
SINGLE_SET_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Conditions:
    """How a capture is measured.

    On ``device`` ("cpu" or "cuda"), whose kind the rows bear; within about ``seconds``; with the
    caches emptied before each sample where ``flush``; telling ``progress``.
    """

    device: str
    kind: str
    seconds: float
    flush: bool = False
    progress: Progress | None = None


class Noise:
    """A reference operator, repeated through the run: how far its medians stray."""

    def __init__(self, timer: Timer) -> None:
        generator = torch.Generator().manual_seed(0)
        # A product of a size that all devices take at their pace.
        x, weight = (
            torch.randn(extent, 512, generator=generator).to(timer.device) for extent in (256, 512)
        )
        self.timer = timer
        self.thunks = [partial(torch.nn.functional.linear, x, weight)]
        self.medians: list[int] = []
        self.wall_per_cpu: list[float] = []
        timer.sample(self.thunks, WARM_UPS, 1)

    def repeat(self) -> None:
        """One more median of the reference operator."""
        samples = self.timer.sample(self.thunks, IDLE_REPS, 1)
        self.medians.append(median(samples.device))
        self.wall_per_cpu.append(median(samples.wall) / max(1, self.medians[-1]))

    def report(self) -> Fields:
        """The coefficient of variation of the medians, and whether it is too large to trust the
        profile.
        """
        cv = statistics.pstdev(self.medians) / statistics.fmean(self.medians)
        return {
            "idle_repeat_cv": round(cv, 4),
            "limit": NOISE_LIMIT,
            "too_noisy": cv > NOISE_LIMIT,
            "repeats": len(self.medians),
            "wall_per_cpu": round(statistics.median(self.wall_per_cpu), 3),
        }


@dataclass
class _Budget:
    """How the time is spent: units done and to do, each of equal right to what is left."""

    end: float
    total: int
    noise: Noise
    progress: Progress | None
    done: int = 0

    def share(self, units: int = 1) -> float:
        """Seconds for the next units; a due repeat of the reference operator comes first."""
        if self.done * IDLE_REPEATS // self.total >= len(self.noise.medians):
            self.noise.repeat()
        return max(0.0, self.end - time.monotonic()) * units / (self.total - self.done)

    def finish(self, kind: str) -> None:
        """A unit is done."""
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, self.total, kind)


def measure_operators(
    captured: Capture, timer: Timer, noise: Noise, conditions: Conditions, seconds: float
) -> tuple[list[Fields], list[str]]:
    """Rows of all operators within about ``seconds``, and those that could not be run.

    The operators are gone through several times: a slow spell of the machine then touches a part of
    each median, and not the whole of a few.
    """
    calls, rows = captured.calls, captured.rows
    samples: dict[str, list[Samples]] = {key: [] for key in calls}
    failed: dict[str, str] = {}
    updates = [key for key in calls if rows[key]["phase"] == "opt"]
    end = time.monotonic() + seconds
    budget = _Budget(end, PASSES * len(calls), noise, conditions.progress)
    for _ in range(PASSES):
        for key in calls:
            if rows[key]["phase"] == "opt":
                continue
            share, row = budget.share(), rows[key]
            try:
                samples[key].append(measure_call(calls[key], timer, share))
            except (RuntimeError, IndexError, ValueError) as error:
                # Values that only a real step has (an index structure, say): the header names the
                # op, nobody guesses.
                failed[key] = f"{row['op']} {row['in']}: {str(error).splitlines()[0]}"
            budget.finish(row["op"])
        if updates:
            share = budget.share(len(updates))
            turns = measure_in_turns([calls[key] for key in updates], timer, share)
            for key, of_update in zip(updates, turns, strict=True):
                samples[key].append(of_update)
                budget.finish(rows[key]["op"])
    measured = [key for key in calls if key not in failed]
    made = [_row(captured, key, joined(samples[key]), conditions.kind, timer) for key in measured]
    return made, list(failed.values())


def measure_call(call: Call, timer: Timer, seconds: float) -> Samples:
    """Samples of one call in one pass, within about ``seconds``; warm-ups and the least repetitions
    in any case.
    """
    thunks = _thunks(call, timer.device)
    with torch.no_grad():
        warm = timer.sample(thunks, WARM_UPS_LONG, 1)
        if min(warm.device) < LONG_S * 1e9:
            warm = timer.sample(thunks, WARM_UPS - WARM_UPS_LONG, 1)
        each = max(1, min(warm.device))
        # Only on a CPU: a GPU's events cost no system call, and its filler hides one launch.
        batch = max(1, min(64, LEAST_SAMPLE_NS // each)) if timer.device == "cpu" else 1
        cost = max(1, min(warm.wall)) * batch / 1e9
        reps = max(LEAST_REPS // PASSES, min(MOST_REPS // PASSES, int(seconds / cost)))
        return timer.sample(thunks, reps, batch)


def measure_in_turns(calls: Sequence[Call], timer: Timer, seconds: float) -> list[Samples]:
    """Samples of each of the calls, a turn running each of them once, within about ``seconds``."""
    thunks = [_thunks(call, timer.device) for call in calls]
    turns: list[list[Samples]] = []
    reps, begin = LEAST_REPS // PASSES, time.monotonic()
    with torch.no_grad():
        while len(turns) < TURN_WARM_UPS + reps:
            turn = len(turns)
            turns.append([timer.sample([sets[turn % len(sets)]], 1, 1) for sets in thunks])
            if turn + 1 == TURN_WARM_UPS:
                each = max(1e-9, (time.monotonic() - begin) / TURN_WARM_UPS)
                reps = max(reps, min(MOST_TURNS, int(seconds / each) - TURN_WARM_UPS))
    return [joined(of_call) for of_call in zip(*turns[TURN_WARM_UPS:], strict=True)]


def joined(passes: Sequence[Samples]) -> Samples:
    """The samples of several passes together."""
    device, wall, host = (
        [sample for part in passes for sample in getattr(part, name)]
        for name in ("device", "wall", "host")
    )
    return Samples(device, wall, host, passes[0].batch)


def _thunks(call: Call, device: str) -> list[Thunk]:
    sets = INPUT_SETS if sum(spec.bytes for spec in call.specs) < SINGLE_SET_BYTES else 1
    return [_thunk(call, device, seed) for seed in range(sets)]


def _thunk(call: Call, device: str, seed: int) -> Thunk:
    args, kwargs = call.bind(make_inputs(call, device, seed))
    return partial(call.func, *args, **kwargs)


def _row(captured: Capture, key: str, samples: Samples, kind: str, timer: Timer) -> Fields:
    """A profile row of schema v1."""
    row, call = captured.rows[key], captured.calls[key]
    made = sum(spec.bytes for spec in call.made)
    amount = work(row["op"], row["attrs"], row["in"], row["out"], row["dt"])
    timing = timing_fields(samples.device)
    timing["t_ns"]["wall"] = median(samples.wall)
    # What running the call once more shows.
    thunk = _thunk(call, timer.device, 0)
    shown = {"ws": workspace_bytes(thunk, timer.device), "launches": 1}
    if timer.device == "cuda":
        shown["launches"], shown["kernel_ns"] = cuda_kernels(thunk)
    return {
        "v": 1,
        **row,
        "dev": kind,
        **timing,
        "host_ns": median(samples.host or samples.wall),
        "batch": samples.batch,
        "flops": 0 if amount is None else amount.flops,
        "br": sum(spec.bytes for spec in call.specs) if amount is None else amount.bytes_read,
        # An update makes nothing: it writes all that it reads but the gradient.
        "bw": (made or call.specs[0].bytes * (len(call.specs) - 1))
        if amount is None
        else amount.bytes_written,
        "out_bytes": made,
        "saved": captured.saved.get(key, 0),
        **shown,
        "src": "measured",
        "meth": timer.method + ("+in-turns" if row["phase"] == "opt" else ""),
    }


def make_inputs(call: Call, device: str, seed: int) -> list[Tensor]:
    """One set of tensors for a call, on a device; the same seed makes the same values.

    Random normal floats, and whole numbers within the range that the call can take. Zeros would
    flatter: random values draw more power, and an index that repeats stays in the cache.
    """
    generator = torch.Generator().manual_seed(seed)
    bound, positive = _index_bound(call), traits_of(_name(call)).positive
    tensors = [_make(spec, bound, positive, generator, device) for spec in call.specs]
    if _name(call) == "max_pool2d_with_indices_backward":
        _true_indices(call, tensors)
    return tensors


def _make(
    spec: TensorSpec, bound: int, positive: bool, generator: torch.Generator, device: str
) -> Tensor:
    # The memory behind the tensor: with stride 0 smaller than the tensor, with gaps larger.
    extent = 1 + sum((size - 1) * step for size, step in zip(spec.shape, spec.stride, strict=True))
    extent = extent if 0 not in spec.shape else 0
    if spec.dtype == torch.bool:
        memory = torch.rand(extent, generator=generator) < 0.5
    elif spec.dtype.is_floating_point or spec.dtype.is_complex:
        memory = torch.randn(extent, generator=generator)
        # A root of a negative number takes a path of its own, fifteen times slower, that no real
        # step takes.
        memory = (memory.abs() if positive else memory).to(spec.dtype)
    else:
        memory = torch.randint(bound, (extent,), generator=generator).to(spec.dtype)
    # The move comes first: it would pack a tensor with gaps.
    return memory.to(device).as_strided(spec.shape, spec.stride)


def _index_bound(call: Call) -> int:
    """Indices run from 0 to this, exclusive."""
    name = _name(call)
    if name in ("nll_loss_forward", "nll_loss_backward"):
        # The scores are the operand of two extents, the classes its last; the backward reads the
        # loss's gradient first.
        return max(1, next(spec.shape for spec in call.specs if len(spec.shape) >= 2)[1])
    if name == "embedding_dense_backward":
        return max(1, int(named_arguments(call.func, call.args, call.kwargs)["num_weights"]))
    floats = (spec.shape for spec in call.specs if spec.dtype.is_floating_point and spec.shape)
    shape = next(floats, (1,))
    return max(1, shape[0] if name == "embedding" else min(shape))


def _true_indices(call: Call, tensors: list[Tensor]) -> None:
    """Where the maxima really are: random places would be scattered as no pooling scatters them."""
    arguments = named_arguments(call.func, call.args, call.kwargs)
    pooled = arguments["self"]
    _, indices = torch.ops.aten.max_pool2d_with_indices(
        tensors[pooled.index] if isinstance(pooled, Slot) else pooled,
        *(arguments[n] for n in ("kernel_size", "stride", "padding", "dilation", "ceil_mode")),
    )
    tensors[arguments["indices"].index] = indices


def _name(call: Call) -> str:
    if hasattr(call.func, "_schema"):
        return aten_name(call.func)
    return str(getattr(call.func, "__name__", ""))
