"""Copies by size: between host and device (pinned and pageable memory) and within a device.

Rows are those of a collective named ``copy``: ``from`` and ``to`` are ``host`` or the kind of
device; ``span`` says which memory of the host it is (pinned or pageable), else where both ends are
(device, core).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from .measure import quiet
from .operators import WARM_UPS, Noise, Progress
from .timers import Samples, Timer, make_timer, median, quantile

SIZES = tuple(2048 * 4**i for i in range(10))
"""2 KiB to 512 MiB."""
REPS = 20
SETS = 3


def measure_copies(
    device: str, kind: str, sizes: Sequence[int] = SIZES, progress: Progress | None = None
) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]:
    """Rows of all copies of a device ("cpu" or "cuda"), the method, and the noise figure."""
    timer, wall = make_timer(device, flush=False), WallTimer()
    noise = Noise.watch(timer, device)
    plan = list(_copies(device, kind, sizes))
    rows = []
    with quiet(device), torch.no_grad():
        for done, (source, target, span, size, make) in enumerate(plan):
            noise.repeat()
            clock: Timer = wall if span == "pageable" else timer
            thunks = [make() for _ in range(SETS if size < 2**26 else 1)]
            clock.sample(thunks, WARM_UPS, 1)
            rows.append(
                _row(source, target, span, size, clock.sample(thunks, REPS, 1), clock.method)
            )
            if progress is not None:
                progress(done + 1, len(plan), f"{source} to {target}")
    method = {
        "timer": timer.method,
        "pageable": wall.method,
        "statistic": timer.statistic,
        "warm_ups": WARM_UPS,
    }
    return (
        rows,
        method | {"reps": [REPS, REPS], "input_sets": SETS, "inputs": "random bytes"},
        noise.report(),
    )


class WallTimer:
    """Wall time until the device is done: a copy of pageable memory keeps the host busy too, so
    nothing hides it.
    """

    method = "wall+synchronize+rotate"
    statistic = "median"

    def sample(self, thunks: Sequence[Callable[[], Any]], reps: int, batch: int) -> Samples:
        """``reps`` samples of ``batch`` calls each."""
        times = []
        for rep in range(reps):
            torch.cuda.synchronize()
            start = time.perf_counter_ns()
            for i in range(batch):
                thunks[(rep * batch + i) % len(thunks)]()
            torch.cuda.synchronize()
            times.append((time.perf_counter_ns() - start) // batch)
        return Samples(times, times, [], batch)


def _copies(
    device: str, kind: str, sizes: Sequence[int]
) -> Iterator[tuple[str, str, str, int, Callable[[], Callable[[], Any]]]]:
    """(from, to, span, bytes, maker of a call that copies) of every copy to be measured."""
    if device == "cpu":
        for size in sizes:
            yield "host", "host", "core", size, partial(_copy, size, "cpu", "cpu", False)
        return
    for span, pinned in (("pinned", True), ("pageable", False)):
        for size in sizes:
            yield "host", kind, span, size, partial(_copy, size, "cpu", "cuda", pinned)
            yield kind, "host", span, size, partial(_copy, size, "cuda", "cpu", pinned)
    for size in sizes:
        yield kind, kind, "device", size, partial(_copy, size, "cuda", "cuda", False)


def _copy(size: int, source: str, target: str, pinned: bool) -> Callable[[], Any]:
    filled = torch.randint(256, (size,), dtype=torch.uint8)
    ends = [_placed(filled, source, pinned), _placed(torch.zeros_like(filled), target, pinned)]
    return partial(ends[1].copy_, ends[0], non_blocking=pinned)


def _placed(memory: torch.Tensor, device: str, pinned: bool) -> torch.Tensor:
    if device == "cuda":
        return memory.cuda()
    return memory.pin_memory() if pinned else memory


def _row(
    source: str, target: str, span: str, size: int, samples: Samples, method: str
) -> dict[str, Any]:
    p10, p50, p90 = (
        quantile(samples.device, 0.1),
        median(samples.device),
        quantile(samples.device, 0.9),
    )
    return {
        "v": 1,
        "coll": "copy",
        "from": source,
        "to": target,
        "span": span,
        "ranks": 1,
        "bytes": size,
        "dt": "uint8",
        "conc": 1,
        "t_ns": {
            "p10": p10,
            "p50": p50,
            "p90": p90,
            "min": min(samples.device),
            "n": len(samples.device),
        },
        "src": "measured",
        "meth": method,
        "rel_err": round((p90 - p10) / (2 * max(1, p50)), 4),
    }
