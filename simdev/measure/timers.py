"""Clocks that time a call on a device, one sample at a time.

On a CPU the reference is the CPU time of the one thread that runs: wall time measures the
neighbours too. On a GPU events bracket the call behind a filler that keeps the device busy while
the host catches up, so that launches hide.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import InputError

Thunk = Callable[[], Any]
LEAST_SAMPLE_NS = 50_000
"""Calls shorter than this are timed several at once: reading a thread's clock costs a system call.
"""
FLUSH_BYTES = 256 * 2**20
CPU_FLUSH_BYTES = 64 * 2**20
FIRST_HOST_NS, LEAST_HOST_NS, MOST_HOST_NS = 250_000, 50_000, 20_000_000
"""What the host is taken to need for a call: before it was seen, at least (100 us of filler), and
at most.
"""


@dataclass(frozen=True, slots=True)
class Samples:
    """Times of one call in ns: of the device, by the wall, of the host alone; ``batch`` calls make
    a sample.
    """

    device: list[int]
    wall: list[int]
    host: list[int]
    batch: int


class Timer(Protocol):
    """Times the calls of ``thunks``, taken in turn."""

    method: str
    statistic: str

    def sample(self, thunks: Sequence[Thunk], reps: int, batch: int) -> Samples:
        """``reps`` samples of ``batch`` calls each."""
        ...


class CpuTimer:
    """CPU time of the calling thread; ``flush`` empties the caches before each sample."""

    statistic = "median"

    def __init__(self, flush: bool = False) -> None:
        import torch

        self.method = "thread-cpu-time+rotate" + ("+flush" if flush else "")
        self._buffer = torch.zeros(CPU_FLUSH_BYTES // 4) if flush else None

    def sample(self, thunks: Sequence[Thunk], reps: int, batch: int) -> Samples:
        """``reps`` samples of ``batch`` calls each; the host is the device, so ``host`` stays
        empty.
        """
        device, wall = [], []
        count = len(thunks)
        for rep in range(reps):
            if self._buffer is not None:
                self._buffer.add_(1)
            chosen = [thunks[(rep * batch + i) % count] for i in range(batch)]
            wall_start, start = time.perf_counter_ns(), time.thread_time_ns()
            for thunk in chosen:
                thunk()
            end, wall_end = time.thread_time_ns(), time.perf_counter_ns()
            device.append((end - start) // batch)
            wall.append((wall_end - wall_start) // batch)
        return Samples(device, wall, [], batch)


class CudaTimer:
    """Events around each call, behind a filler that hides the launch: a write that empties the L2,
    then a spin.

    The spin lasts twice as long as the host took for the calls before, so that the device never
    waits for the host inside the bracket. Without ``flush`` the filler is the spin alone, and the
    L2 stays warm. What a call returns goes back to the caching allocator at once, so from the
    second call on its outputs are preallocated. Needs a CUDA device.
    """

    statistic = "median"

    def __init__(self, flush: bool = True) -> None:
        import torch

        require_cuda()
        self.method = "events+filler+rotate" + ("+flush" if flush else "")
        self._buffer = torch.empty(FLUSH_BYTES // 4, device="cuda") if flush else None

    def sample(self, thunks: Sequence[Thunk], reps: int, batch: int) -> Samples:
        """``reps`` samples of ``batch`` calls each; ``host`` is the time to enqueue a call."""
        import torch

        marks = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            for _ in range(reps)
        ]
        host: list[int] = []
        count, longest = len(thunks), FIRST_HOST_NS
        torch.cuda.synchronize()
        begin = time.perf_counter_ns()
        for rep, (start, end) in enumerate(marks):
            if self._buffer is not None:
                self._buffer.zero_()
            torch.cuda._sleep(spin_cycles(longest))
            start.record()
            enqueue = time.perf_counter_ns()
            for i in range(batch):
                thunks[(rep * batch + i) % count]()
            took = time.perf_counter_ns() - enqueue
            end.record()
            host.append(took // batch)
            longest = max(LEAST_HOST_NS, min(took, MOST_HOST_NS))
            # A queue of bounded length: beyond about a thousand launches the host would block
            # inside the bracket.
            if rep % 16 == 15:
                torch.cuda.synchronize()
        torch.cuda.synchronize()
        wall = [(time.perf_counter_ns() - begin) // (reps * batch)] * reps
        device = [round(start.elapsed_time(end) * 1e6 / batch) for start, end in marks]
        return Samples(device, wall, host, batch)


def spin_cycles(host_ns: int) -> int:
    """Cycles of a spin that outlasts the host's work: twice ``host_ns`` at 2.1 GHz, more on slower
    clocks.
    """
    return host_ns * 42 // 10


def make_timer(device: str, flush: bool) -> Timer:
    """The clock of a device, "cpu" or "cuda". Raises InputError."""
    if device == "cuda":
        return CudaTimer(flush)
    if device != "cpu":
        raise InputError(f'device: must be cpu or cuda, got "{device}"')
    return CpuTimer(flush)


def require_cuda() -> None:
    """Raises InputError where there is no CUDA device."""
    import torch

    if not torch.cuda.is_available():
        raise InputError(
            'device: "cuda" was asked for, but this machine has no CUDA device that PyTorch can use'
        )


def keep_freed_memory() -> bool:
    """Lets the allocator keep what is freed, as caching allocators do; False where it cannot be
    told so.

    Otherwise every large output costs page faults, more in a whole step than in a loop over one
    call.
    """
    trim_threshold, mmap_max = -1, -4  # M_TRIM_THRESHOLD and M_MMAP_MAX of glibc's malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
        return bool(mallopt(mmap_max, 0)) and bool(mallopt(trim_threshold, 2**31 - 1))
    except (AttributeError, OSError):
        return False


def quantile(values: Sequence[int], share: float) -> int:
    """The value below which this share of the values lies (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median(values: Sequence[int]) -> int:
    """The median, as a whole number."""
    return round(statistics.median(values))
