"""Profiles against one another, and devices within one: copies under two names, clocks that were
mixed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from .sheet import Sample, Sheet

FEWEST = 3  # equal times of fewer ops may be chance
SAME = 0.95  # of the times: a copy may have been touched up
EXACT = 1e-9  # relative: a factor leaves rounding errors, a measurement more
CONDITIONS = (
    ("method", "timer"),
    ("method", "statistic"),
    ("method", "flush"),
    ("device", "torch"),
    ("device", "driver"),
    ("device", "cuda"),
    ("device", "max_sm_mhz"),
    ("device", "power_cap_w"),
    ("device", "threads"),
    ("host", "cpu_model"),
    ("flags", "tf32"),
)
"""What two profiles of one kind of device must have in common before their times may be mixed."""


def copies(first: Sheet, second: Sheet) -> Iterator[str]:
    """The rows of one file under another name, or its times under another kind of device."""
    if first.samples and first.sha256 and first.sha256 == second.sha256:
        yield f"its rows are those of {first.file}, byte for byte"
    elif _equal(first, second):
        yield f"its times are those of {first.file}"
    else:
        for device in _devices(second):
            for other in _devices(first):
                if device != other:
                    yield from _copied(
                        _of(first, other), _of(second, device), f"{other} in {first.file}", device
                    )


def _equal(first: Sheet, second: Sheet) -> bool:
    shared = [
        (first.by_op[op].p50, sample.p50)
        for op, sample in second.by_op.items()
        if op in first.by_op
    ]
    return len(shared) >= FEWEST and sum(a == b for a, b in shared) >= SAME * len(shared)


def copies_within(sheet: Sheet) -> Iterator[str]:
    """The times of one kind of device under the name of another in the same file."""
    devices = _devices(sheet)
    for i, device in enumerate(devices):
        for other in devices[:i]:
            yield from _copied(_of(sheet, other), _of(sheet, device), other, device)


def _copied(
    first: dict[str, Sample], second: dict[str, Sample], other: str, device: str
) -> Iterator[str]:
    """Equal times, or times that are all the same multiple: no two devices are that alike."""
    ratios = [second[op].p50 / first[op].p50 for op in second if op in first and first[op].p50 > 0]
    if len(ratios) < FEWEST or not (middle := median(ratios)):
        return
    if sum(abs(ratio / middle - 1) < EXACT for ratio in ratios) >= SAME * len(ratios):
        times = "" if middle == 1 else f" times {middle:g}"
        yield f"the times of {device} are those of {other}{times}, in {len(ratios)} ops"


def clocks(first: Sheet, second: Sheet) -> Iterator[str]:
    """Two profiles of one kind of device that were not measured alike."""
    for device in _devices(second):
        if device in _devices(first):
            for path in CONDITIONS:
                a, b = first.field(*path), second.field(*path)
                if a is not None and b is not None and _plain(a) != _plain(b):
                    name = ".".join(path)
                    yield f"{device} was measured with {name} {b}, in {first.file} with {a}"
            return


def _plain(value: Any) -> Any:
    # How a timer rotates its inputs does not make it another clock.
    return value.split("+")[0] if isinstance(value, str) else value


def _devices(sheet: Sheet) -> Sequence[str]:
    return list(dict.fromkeys(sample.device for sample in sheet.samples))


def _of(sheet: Sheet, device: str) -> dict[str, Sample]:
    return {op: sample for (kind, op), sample in sheet.by_op.items() if kind == device}
