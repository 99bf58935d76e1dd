"""What a call holds beyond its outputs while it runs, and on a GPU the kernels that it launches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

Thunk = Callable[[], Any]


def workspace_bytes(thunk: Thunk, device: str) -> int:
    """Bytes that a call holds at its peak beyond what it returns ("cpu" or "cuda").

    As PyTorch's allocator counts them: scratch memory that a library takes from the system itself
    is not seen.
    """
    return _cuda_workspace(thunk) if device == "cuda" else peak_beyond(_cpu_allocations(thunk))


def peak_beyond(changes: Sequence[int]) -> int:
    """The most that was held beyond what is held in the end, of allocations (positive) and frees
    (negative) in turn.
    """
    held = most = 0
    for change in changes:
        held += change
        most = max(most, held)
    return most - max(0, held)


def _cpu_allocations(thunk: Thunk) -> list[int]:
    """Bytes taken (positive) and given back (negative) during a call, in turn."""
    from torch.profiler import ProfilerActivity, profile

    # The tracer tells on stderr when it starts and stops, once a call.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        result = thunk()
    roots = trace.profiler.kineto_results.experimental_event_tree()
    found = sorted(_allocations(roots))
    del result
    return [size for _, size in found]


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


def cuda_kernels(thunk: Thunk) -> tuple[int, int]:
    """Kernels and copies that a call launches, and their time in ns together, as CUPTI saw them.

    One call with whatever the caches hold: a cross-check of the events, not a measurement. Needs a
    CUDA device.
    """
    from torch.profiler import ProfilerActivity, profile

    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    torch.cuda.synchronize()
    with (
        torch.no_grad(),
        profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace,
    ):
        thunk()
        torch.cuda.synchronize()
    ran = [event for event in trace.events() or () if event.device_type.name == "CUDA"]
    return len(ran), round(sum(event.time_range.elapsed_us() for event in ran) * 1000)
