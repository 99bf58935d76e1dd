"""Measures the operators of a capture one by one, and how much the machine strays meanwhile.

Each distinct operator runs alone on preallocated random inputs, at least three sets in turn, after
warm-ups; its time is the median of the samples. Updates run in turns, as a step runs them: each
parameter is touched once a step, so one that is updated again and again would be found in a cache
where no step finds it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ..semantics import work
from .capture import Capture
from .inputs import make_inputs
from .record import Call
from .timers import LEAST_SAMPLE_NS, Samples, Thunk, Timer, median, quantile
from .workspace import cuda_kernels, workspace_bytes

Progress = Callable[[int, int, str], None]
"""Called as (done, total, what was measured)."""

INPUT_SETS = 3
PASSES = 2
WARM_UPS, WARM_UPS_LONG = 5, 1
LONG_S = 0.5
"""What lasts longer is warm after one call."""
MOST_REPS, LEAST_REPS = 200, 10
IDLE_REPEATS, IDLE_REPS = 20, 15
NOISE_LIMIT = 0.05
TURN_WARM_UPS, MOST_TURNS = 2, 20
ONE_SET_BYTES = 64 * 2**20
"""Inputs of this size push themselves out of the caches: one set of them is enough."""


@dataclass
class Noise:
    """The same operator again and again through the run: how far an idle repeat strays."""

    timer: Timer
    thunks: list[Thunk]
    medians: list[int]
    wall_per_cpu: list[float]

    @classmethod
    def watch(cls, timer: Timer, device: str) -> Noise:
        """Over a product of a size that all devices take at their pace."""
        generator = torch.Generator().manual_seed(0)
        x, weight = (
            torch.randn(extent, 512, generator=generator).to(device) for extent in (256, 512)
        )
        found = cls(timer, [partial(torch.nn.functional.linear, x, weight)], [], [])
        timer.sample(found.thunks, WARM_UPS, 1)
        return found

    def repeat(self) -> None:
        """One more median of the reference operator."""
        samples = self.timer.sample(self.thunks, IDLE_REPS, 1)
        self.medians.append(median(samples.device))
        self.wall_per_cpu.append(median(samples.wall) / max(1, self.medians[-1]))

    def report(self) -> dict[str, Any]:
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
class _Plan:
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

    def finish(self, what: str) -> None:
        """One unit is done."""
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, self.total, what)


def measure_operators(
    captured: Capture,
    timer: Timer,
    noise: Noise,
    device: str,
    kind: str,
    seconds: float,
    progress: Progress | None,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of all operators within about ``seconds``, and those that could not be run.

    The operators are gone through several times: a slow spell of the machine then touches a part of
    each median, and not the whole of a few.
    """
    found: dict[str, list[Samples]] = {key: [] for key in captured.calls}
    failed: dict[str, str] = {}
    updates = [key for key in captured.calls if captured.rows[key]["phase"] == "opt"]
    others = [key for key in captured.calls if captured.rows[key]["phase"] != "opt"]
    plan = _Plan(time.monotonic() + seconds, PASSES * len(captured.calls), noise, progress)
    for _ in range(PASSES):
        for key in others:
            share, row = plan.share(), captured.rows[key]
            try:
                found[key].append(measure_call(captured.calls[key], timer, device, share))
            except (RuntimeError, IndexError, ValueError) as error:
                # Values that only a real step has (an index structure, say): the header names the
                # op, nobody guesses.
                failed[key] = f"{row['op']} {row['in']}: {str(error).splitlines()[0]}"
            plan.finish(str(row["op"]))
        if updates:
            samples = measure_in_turns(
                [captured.calls[key] for key in updates], timer, device, plan.share(len(updates))
            )
            for key, of_one in zip(updates, samples, strict=True):
                found[key].append(of_one)
                plan.finish(str(captured.rows[key]["op"]))
    rows = [
        _row(captured, key, joined(parts), kind, timer, device)
        for key, parts in found.items()
        if key not in failed
    ]
    return rows, list(failed.values())


def measure_call(call: Call, timer: Timer, device: str, seconds: float) -> Samples:
    """Samples of one call in one pass, within about ``seconds``; warm-ups and the least repetitions
    in any case.
    """
    thunks = _thunks(call, device)
    with torch.no_grad():
        warm = timer.sample(thunks, WARM_UPS_LONG, 1)
        if min(warm.device) < LONG_S * 1e9:
            warm = timer.sample(thunks, WARM_UPS - WARM_UPS_LONG, 1)
        each = max(1, min(warm.device))
        batch = max(1, min(64, LEAST_SAMPLE_NS // each)) if device == "cpu" else 1
        cost = max(1, min(warm.wall)) * batch / 1e9
        reps = max(LEAST_REPS // PASSES, min(MOST_REPS // PASSES, int(seconds / cost)))
        return timer.sample(thunks, reps, batch)


def measure_in_turns(
    calls: Sequence[Call], timer: Timer, device: str, seconds: float
) -> list[Samples]:
    """Samples of each of the calls, a turn running each of them once, within about ``seconds``."""
    thunks = [_thunks(call, device) for call in calls]
    turns: list[list[Samples]] = []
    reps, begin = LEAST_REPS // PASSES, time.monotonic()
    with torch.no_grad():
        while len(turns) < TURN_WARM_UPS + reps:
            turn = len(turns)
            turns.append([timer.sample([sets[turn % len(sets)]], 1, 1) for sets in thunks])
            if turn + 1 == TURN_WARM_UPS:
                each = max(1e-9, (time.monotonic() - begin) / TURN_WARM_UPS)
                reps = max(reps, min(MOST_TURNS, int(seconds / each) - TURN_WARM_UPS))
    return [joined(of_one) for of_one in zip(*turns[TURN_WARM_UPS:], strict=True)]


def joined(parts: Sequence[Samples]) -> Samples:
    """The samples of several passes as one."""
    device, wall, host = (
        [time for part in parts for time in getattr(part, name)]
        for name in ("device", "wall", "host")
    )
    return Samples(device, wall, host, parts[0].batch)


def _thunks(call: Call, device: str) -> list[Thunk]:
    sets = INPUT_SETS if sum(spec.bytes for spec in call.specs) < ONE_SET_BYTES else 1
    return [_thunk(call, make_inputs(call, device, seed)) for seed in range(sets)]


def _thunk(call: Call, tensors: Sequence[torch.Tensor]) -> Thunk:
    args, kwargs = call.bind(tensors)
    return partial(call.func, *args, **kwargs)


def _row(
    captured: Capture, key: str, samples: Samples, kind: str, timer: Timer, device: str
) -> dict[str, Any]:
    """A profile row of schema v1."""
    row, call = captured.rows[key], captured.calls[key]
    p10, p50, p90 = (
        quantile(samples.device, 0.1),
        median(samples.device),
        quantile(samples.device, 0.9),
    )
    written = sum(spec.bytes for spec in call.made) or call.specs[0].bytes * (len(call.specs) - 1)
    done = work(row["op"], row["attrs"], row["in"], row["out"], row["dt"])
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
        "flops": 0 if done is None else done.flops,
        "br": sum(spec.bytes for spec in call.specs) if done is None else done.bytes_read,
        "bw": written if done is None else done.bytes_written,
        "out_bytes": sum(spec.bytes for spec in call.made),
        "saved": captured.saved.get(key, 0),
        **_seen(call, device),
        "src": "measured",
        "meth": timer.method + ("+in-turns" if row["phase"] == "opt" else ""),
        "rel_err": round((p90 - p10) / (2 * max(1, p50)), 4),
    }


def _seen(call: Call, device: str) -> dict[str, int]:
    """What running the call once more shows: its workspace and, on a GPU, its kernels."""
    thunk = _thunk(call, make_inputs(call, device, 0))
    found = {"ws": workspace_bytes(thunk, device), "launches": 1}
    if device == "cuda":
        found["launches"], found["kernel_ns"] = cuda_kernels(thunk)
    return found
