"""Clocks that time a call on a device, one sample at a time. Also determines a call's workspace
and, on a GPU, its kernels.

On a CPU the clock is the CPU time of the one thread that runs: wall time would include the work of
other processes. On a GPU events bracket the call, behind a filler that keeps the device busy while
the host enqueues it, so that the launch costs no measured time.

``operators``, ``steps`` and ``transfers`` call it. ``doctor`` checks that a row's quantiles
(``timing_fields``) are in order.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from ..ground.errors import InputError
from ..nouns.semantics import op_class, traits_of
from .kinds import aten_name, kind_of, named_arguments
from .record import Call, Slot, TensorSpec

# The inputs of a measured operator: random tensors made on the device, or the tensors of a real
# step where random ones would not do.

INPUT_SETS = 3
# Inputs of this size exceed the caches: one set of them is enough.
SINGLE_SET_BYTES = 64 * 2**20
# Operators whose integer inputs may be random: their range is known, or does not matter.
_KNOWN = frozenset(
    {
        "embedding",
        "embedding_dense_backward",
        "nll_loss_forward",
        "nll_loss_backward",
        "_to_copy",
        "clone",
        "copy_",
        "cat",
    }
)
_TAKES_ANY = frozenset({"elementwise", "attention", "norm", "pooling", "softmax"})
_DRAWN = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


def needs_real(call: Call) -> bool:
    """Whether a call might fail or crash on random tensors. Indices and opaque buffers (the
    workspace of a recurrent layer) need the values of a real step; so may operators that are not
    PyTorch's own, of which nothing is known.
    """
    if not hasattr(call.func, "_schema"):
        return False
    if call.func.namespace != "aten":
        return True
    whole = any(
        not (spec.dtype.is_floating_point or spec.dtype.is_complex or spec.dtype == torch.bool)
        for spec in call.specs
    )
    if not whole or _name(call) in _KNOWN:
        return False
    kind = kind_of(call.func, named_arguments(call.func, call.args, call.kwargs))
    return op_class(kind) not in _TAKES_ANY


def thunks(call: Call, device: str) -> list[Thunk]:
    """The call on each of its input sets: a single set where it is larger than the caches."""
    sets = INPUT_SETS if sum(spec.bytes for spec in call.specs) < SINGLE_SET_BYTES else 1
    return [thunk_on(call, make_inputs(call, device, seed)) for seed in range(sets)]


def thunk_on(call: Call, tensors: list[Tensor]) -> Thunk:
    """The call on these tensors."""
    args, kwargs = call.bind(tensors)
    return partial(call.func, *args, **kwargs)


def make_inputs(call: Call, device: str, seed: int) -> list[Tensor]:
    """One set of tensors for a call, on a device; the same seed makes the same values.

    Floats are random normal, integers uniform within the range that the call can take. Zeros would
    make the call too fast: random values draw more power, and a repeated index stays in the cache.
    """
    # Made on the device: one thread of the host needs seconds for what a GPU makes in milliseconds.
    generator = torch.Generator(device).manual_seed(seed)
    bound, positive = _index_bound(call), traits_of(_name(call)).positive
    tensors = [_make(spec, bound, positive, generator, device) for spec in call.specs]
    if _name(call) == "max_pool2d_with_indices_backward":
        _true_indices(call, tensors)
    return tensors


def _make(
    spec: TensorSpec, bound: int, positive: bool, generator: torch.Generator, device: str
) -> Tensor:
    extent = extent_behind(spec.shape, spec.stride)
    where: dict[str, Any] = {"generator": generator, "device": device}
    if spec.dtype == torch.bool:
        memory = torch.rand(extent, **where) < 0.5
    elif spec.dtype.is_floating_point or spec.dtype.is_complex:
        drawn = spec.dtype if spec.dtype in _DRAWN else torch.float32
        memory = torch.randn(extent, dtype=drawn, **where)
        # The root of a negative number is fifteen times slower, and no real step takes one.
        memory = (memory.abs() if positive else memory).to(spec.dtype)
    else:
        memory = torch.randint(bound, (extent,), **where).to(spec.dtype)
    return memory.as_strided(spec.shape, spec.stride)


def extent_behind(shape: Sequence[int], stride: Sequence[int]) -> int:
    """The number of elements of the memory behind a tensor: fewer than the tensor's own where a
    stride is 0, more where the strides leave gaps.
    """
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def _index_bound(call: Call) -> int:
    """The exclusive upper bound of a call's indices."""
    name = _name(call)
    if name in ("nll_loss_forward", "nll_loss_backward"):
        # The scores are the first operand with two or more extents (the backward reads the loss's
        # gradient before them); their second extent is the number of classes.
        return max(1, next(spec.shape for spec in call.specs if len(spec.shape) >= 2)[1])
    if name == "embedding_dense_backward":
        return max(1, int(named_arguments(call.func, call.args, call.kwargs)["num_weights"]))
    floats = (spec.shape for spec in call.specs if spec.dtype.is_floating_point and spec.shape)
    shape = next(floats, (1,))
    return max(1, shape[0] if name == "embedding" else min(shape))


def _true_indices(call: Call, tensors: list[Tensor]) -> None:
    """Replaces the random indices of a max-pooling backward by those of the true maxima: random
    ones would scatter writes as no real pooling does.
    """
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


Thunk = Callable[[], Any]
# Calls shorter than this are timed several at once: reading a thread's clock costs a system call.
LEAST_SAMPLE_NS = 50_000
# Bytes written to empty the caches: more than the L2 of any GPU, or than a core's share of an L3.
FLUSH_BYTES = {"cuda": 256 * 2**20, "cpu": 64 * 2**20}
# The time that the host is assumed to need for a call: at first, at least (100 us of filler), and
# at most.
FIRST_HOST_NS, LEAST_HOST_NS, MOST_HOST_NS = 250_000, 50_000, 20_000_000
CUDA_WARM_S = 1.0
QUANTILES = (0.1, 0.5, 0.9)
# The number of calls whose kernels are counted and timed.
KERNEL_CALLS = 9


@dataclass(frozen=True, slots=True)
class Samples:
    """Times of one call in ns: on the device, by wall clock, and on the host alone (empty where the
    host is the device). A sample is the mean of ``batch`` calls.
    """

    device: list[int]
    wall: list[int]
    host: list[int]
    batch: int


class Timer(Protocol):
    """Times the calls of ``thunks``, taken in turn, on a ``device`` ("cpu" or "cuda")."""

    device: str
    method: str

    def sample(self, thunks: Sequence[Thunk], reps: int, batch: int) -> Samples:
        """``reps`` samples of ``batch`` calls each."""
        ...


class CpuTimer:
    """CPU time of the calling thread; ``flush`` empties the caches before each sample."""

    device = "cpu"

    def __init__(self, flush: bool = False) -> None:
        self.method = "thread-cpu-time+rotate" + ("+flush" if flush else "")
        self._buffer = torch.zeros(FLUSH_BYTES["cpu"] // 4) if flush else None

    def sample(self, thunks: Sequence[Thunk], reps: int, batch: int) -> Samples:
        """``reps`` samples of ``batch`` calls each."""
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


class WallTimer:
    """Wall time until the GPU is done. Used for copies of pageable memory: they keep the host busy
    too, so their launch cannot be hidden behind a filler.
    """

    device = "cuda"
    method = "wall+synchronize+rotate"

    def sample(self, thunks: Sequence[Thunk], reps: int, batch: int) -> Samples:
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


class CudaTimer:
    """CUDA events around each call, behind a filler that hides the launch: a write that empties the
    L2, then a spin.

    The spin lasts twice as long as the host took for the previous calls, so that the device never
    waits for the host between the two events. Without ``flush`` the filler is the spin alone, and
    the L2 stays warm. A call's outputs go back to the caching allocator at once, so from the
    second call on they are preallocated. Needs a CUDA device.
    """

    device = "cuda"

    def __init__(self, flush: bool = True) -> None:
        self.method = "events+filler+rotate" + ("+flush" if flush else "")
        self._buffer = torch.empty(FLUSH_BYTES["cuda"] // 4, device="cuda") if flush else None

    def sample(self, thunks: Sequence[Thunk], reps: int, batch: int) -> Samples:
        """``reps`` samples of ``batch`` calls each; ``host`` is the time to enqueue a call."""
        marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(reps)]
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
            # Bounds the queue: beyond about a thousand launches the host would block between the
            # two events.
            if rep % 16 == 15:
                torch.cuda.synchronize()
        torch.cuda.synchronize()
        wall = [(time.perf_counter_ns() - begin) // (reps * batch)] * reps
        device = [round(start.elapsed_time(end) * 1e6 / batch) for start, end in marks]
        return Samples(device, wall, host, batch)


def spin_cycles(host_ns: int) -> int:
    """The cycles of a spin that outlasts the host's work: twice ``host_ns`` at 2.1 GHz, longer at
    slower clocks.
    """
    return host_ns * 42 // 10


def make_timer(device: str, flush: bool) -> Timer:
    """The clock of a device, "cpu" or "cuda"."""
    return CudaTimer(flush) if device == "cuda" else CpuTimer(flush)


def first_line(error: Exception) -> str:
    """The first line of an error's message, or the error's type where it has no message."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def require_device(device: str) -> None:
    """Raises InputError for anything but "cpu" and "cuda", and for a GPU that is not there."""
    if device not in ("cpu", "cuda"):
        raise InputError(f'device: must be cpu or cuda, got "{device}"')
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError(
            'device: "cuda" was asked for, but this machine has no CUDA device that PyTorch can use'
        )


@contextmanager
def quiet(device: str) -> Iterator[bool]:
    """Sets up a quiet measurement: one thread, freed memory kept by the allocator (yields whether
    it is), and on a GPU the clocks brought up first.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        if device == "cuda":
            _warm_up()
        yield device == "cuda" or keep_freed_memory()
    finally:
        torch.set_num_threads(threads)


def _warm_up() -> None:
    x = torch.randn(2048, 2048, device="cuda")
    end = time.monotonic() + CUDA_WARM_S
    while time.monotonic() < end:
        x @ x
        torch.cuda.synchronize()


def keep_freed_memory() -> bool:
    """Lets the allocator keep freed memory, as caching allocators do; False where it cannot.

    Otherwise every large output costs page faults, more of them in a whole step than in a loop over
    one call.
    """
    trim_threshold, mmap_max = -1, -4  # M_TRIM_THRESHOLD and M_MMAP_MAX of glibc's malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
        return bool(mallopt(mmap_max, 0)) and bool(mallopt(trim_threshold, 2**31 - 1))
    except (AttributeError, OSError):
        return False


def median(values: Sequence[int]) -> int:
    """The median, as a whole number."""
    return round(statistics.median(values))


def timing_fields(times: Sequence[int]) -> dict[str, Any]:
    """The fields ``t_ns`` and ``rel_err`` of a profile row, from samples in ns."""
    p10, p50, p90 = map(round, np.quantile(times, QUANTILES))
    quantiles = {"p10": p10, "p50": p50, "p90": p90, "min": min(times), "n": len(times)}
    return {"t_ns": quantiles, "rel_err": round((p90 - p10) / (2 * max(1, p50)), 4)}


def profiler(*activities: ProfilerActivity, **options: Any) -> profile:
    """PyTorch's profiler of these activities, without its log messages."""
    # Otherwise the tracer writes to stderr whenever it starts and stops.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    return profile(activities=activities, **options)


def workspace_bytes(thunk: Thunk, device: str) -> int:
    """Bytes that a call holds at its peak beyond its outputs; ``device`` is "cpu" or "cuda".

    PyTorch's allocator counts them: scratch memory that a library takes directly from the system is
    not included.
    """
    return _cuda_workspace(thunk) if device == "cuda" else peak_beyond(_cpu_allocations(thunk))


def peak_beyond(changes: Sequence[int]) -> int:
    """The peak of the bytes held, beyond those still held in the end; ``changes`` are allocations
    (positive) and frees (negative) in their order.
    """
    held = [0, *accumulate(changes)]
    return max(held) - max(0, held[-1])


def _cpu_allocations(thunk: Thunk) -> list[int]:
    """Bytes allocated (positive) and freed (negative) during a call, in their order."""
    with torch.no_grad(), profiler(ProfilerActivity.CPU, profile_memory=True) as trace:
        result = thunk()
    roots = trace.profiler.kineto_results.experimental_event_tree()
    changes = [size for _, size in sorted(_allocations(roots))]
    del result  # held until here, so that the call's outputs are not counted as workspace
    return changes


def _allocations(events: Iterable[Any]) -> Iterable[tuple[int, int]]:
    for event in events:
        if event.name == "[memory]":
            yield event.start_time_ns, event.extra_fields.alloc_size
        yield from _allocations(event.children)


def _cuda_workspace(thunk: Thunk) -> int:
    with torch.no_grad():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = thunk()
        torch.cuda.synchronize()
        held = torch.cuda.memory_allocated()
        del result
    return max(0, torch.cuda.max_memory_allocated() - max(before, held))


def cuda_kernels(thunks: Sequence[Thunk], calls: int = KERNEL_CALLS) -> tuple[int, int]:
    """The number of kernels and copies that a call launches, and their total time in ns, as seen by
    CUPTI: the median over ``calls`` calls, of the ``thunks`` in turn.

    The caches are not emptied between the calls. Needs a CUDA device.
    """
    torch.cuda.synchronize()
    with torch.no_grad(), profiler(ProfilerActivity.CPU, ProfilerActivity.CUDA) as trace:
        for i in range(calls):
            thunks[i % len(thunks)]()
        torch.cuda.synchronize()
    return of_one_call(
        [
            (event.time_range.start, round(event.time_range.elapsed_us() * 1000))
            for event in trace.events() or ()
            if event.device_type.name == "CUDA"
        ],
        calls,
    )


def of_one_call(events: Sequence[tuple[float, int]], calls: int) -> tuple[int, int]:
    """The launches and the ns of one call; ``events`` holds (start, ns) of everything that a device
    ran for several equal calls.

    Where the calls launched different numbers of kernels (a library may try algorithms in its
    first call), both figures are means.
    """
    times = [time for _, time in sorted(events)]
    launches, odd = divmod(len(times), calls)
    if odd:
        return round(len(times) / calls), round(sum(times) / calls)
    sums = [sum(times[i * launches : (i + 1) * launches]) for i in range(calls)]
    return launches, median(sums)
