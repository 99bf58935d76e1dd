"""Rows and profiles against one another: the backward against its forward, the larger against the
smaller, copies under two names, clocks that were mixed.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from math import prod
from statistics import median
from typing import Any

import numpy as np

from ...nouns.semantics import op_class
from .sheet import Sample, Sheet, examples

LEAST, MOST, USUAL = 0.5, 8.0, 2.0
"""Backward over forward: at least, at most where it has the usual work, and how much that is."""
SLOWER, SMALLER = 0.8, 0.5
"""The larger op is too fast below this share of the time of one that has at most this share of its
size.
"""
MOST_ROWS = 3000  # every row is compared with every other of its group
GEMM = {"linear": "matmul", "addmm": "matmul", "mm": "matmul"}
SUFFIXES = ("_backward_input", "_backward_weight", "_backward")
WINDOW = ("stride", "padding", "dilation", "groups")
FEWEST = 3  # equal times of fewer ops may be chance
SAME = 0.95  # of the times: a copy may have been touched up
EXACT = 1e-9  # relative: a factor leaves rounding errors, a measurement more
CONDITIONS = (
    "method.timer",
    "method.statistic",
    "method.flush",
    "device.torch",
    "device.driver",
    "device.cuda",
    "device.max_sm_mhz",
    "device.power_cap_w",
    "device.threads",
    "host.cpu_model",
    "flags.tf32",
)
"""What two profiles of one kind of device must have in common before their times may be mixed."""


def backward(sheet: Sheet) -> Iterator[str]:
    """The backward of an op takes less than half or more than 8 times its forward, where it is
    plain which rows belong together.

    The upper end rises with the work: the backward of a lookup writes the whole table. The lower
    end does not bind elementwise ops, whose forward may be a costly function and whose backward is
    a product.
    """
    forward: defaultdict[str, list[Sample]] = defaultdict(list)
    back: defaultdict[str, list[Sample]] = defaultdict(list)
    for sample in sheet.samples:
        mark = _mark(sample)
        if mark is not None and sample.device_ns > 0:
            (forward if sample.phase == "fwd" else back)[mark].append(sample)
    strange = []
    for mark, samples in back.items():
        ahead = forward.get(mark, [])
        parts = {
            (sample.kind, sample.phase, json.dumps(sample.attrs, sort_keys=True))
            for sample in samples
        }
        # Two layers of one shape: nothing tells whose backward it is.
        if len(ahead) == 1 and len(parts) == len(samples):
            ratio = sum(sample.device_ns for sample in samples) / ahead[0].device_ns
            least = 0.0 if op_class(ahead[0].kind) == "elementwise" else LEAST
            if not least <= ratio <= MOST * max(1.0, _work(samples) / _work(ahead) / USUAL):
                strange.append((-abs(np.log(ratio / 2)), f"{ahead[0]} ({ratio:.3g} times)"))
    if strange:
        worst = [text for _, text in sorted(strange, key=lambda pair: pair[0])]
        yield (
            f"the backward takes less than {LEAST:g} or more than {MOST:g} times its forward: "
            f"{examples(worst)}"
        )


def _work(samples: Sequence[Sample]) -> float:
    """Bytes that ops touch, or a tenth of their FLOPs where that is more: where a device turns to
    compute.
    """
    loads = [sample.load for sample in samples]
    return (
        sum(max(load.read + load.written, load.flops // 10) for load in loads if load is not None)
        or 1.0
    )


def _mark(sample: Sample) -> str | None:
    """What an op and its backward have in common; None for an op of which that cannot be told.

    A forward and its backward see the same tensors or their gradients, so the set of shapes is the
    same.
    """
    shapes = sorted({shape for shape in sample.shapes if len(shape) >= 2})
    kind, suffix = sample.kind, ""
    for ending in SUFFIXES:
        if kind.endswith(ending):
            kind, suffix = kind.removesuffix(ending), ending
            break
    plain = sample.phase in ("bwd_input", "bwd_weight") or GEMM.get(kind, kind) == "matmul"
    if not shapes or sample.phase == "opt" or (sample.phase == "bwd" and not suffix and not plain):
        return None
    window = {name: sample.attrs[name] for name in WINDOW if name in sample.attrs}
    return json.dumps(
        [sample.device, GEMM.get(kind, kind), sorted(set(sample.dtypes[:1])), shapes, window]
    )


def monotone(sheet: Sheet) -> Iterator[str]:
    """An op of twice the size or more, smaller in no extent, takes less than 0.8 of the time,
    beyond both spreads.
    """
    groups: defaultdict[str, list[Sample]] = defaultdict(list)
    for sample in sheet.samples:
        if sample.measured and sample.shapes:
            ranks = [len(shape) for shape in sample.shapes]
            names = [sample.device, sample.kind, sample.phase, sample.attrs, sample.dtypes, ranks]
            groups[json.dumps(names)].append(sample)
    texts = [
        text
        for samples in groups.values()
        if len(samples) > 1
        for text in _reversed(samples[:MOST_ROWS])
    ]
    if texts:
        yield f"larger ops that are faster than smaller ones: {examples(texts)}"


def _reversed(samples: Sequence[Sample]) -> Iterator[str]:
    extents = np.array(
        [[extent for shape in sample.shapes for extent in shape] for sample in samples], np.float64
    )
    size = np.array([sum(prod(shape) for shape in sample.shapes) for sample in samples], np.float64)
    # Only what lies beyond both spreads: a time of which a row tells no spread stands for itself.
    low, high = (
        np.array([_beyond(sample, name, pick) for sample in samples])
        for name, pick in (("p10", min), ("p90", max))
    )
    for i, sample in enumerate(samples):
        larger = (extents >= extents[i]).all(axis=1) & (size * SMALLER >= size[i])
        for j in map(int, np.flatnonzero(larger & (high < SLOWER * low[i]))):
            yield (
                f"{samples[j]} ({samples[j].device_ns / 1000:.4g} us) against {sample} "
                f"({sample.device_ns / 1000:.4g} us)"
            )
            break


def _beyond(sample: Sample, name: str, pick: Callable[[float, float], float]) -> float:
    """The time of an op at the edge of its spread, which is that of the calls."""
    edge = sample.time(name)
    share = 1.0 if edge is None or not sample.p50 else edge / sample.p50
    return sample.device_ns * pick(1.0, share)


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
    """The times of one kind of device under the name of another (``copies``: of another file)."""
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
            for name in CONDITIONS:
                a, b = first.field(name), second.field(name)
                if a is not None and b is not None and _plain(a) != _plain(b):
                    yield f"{device} was measured with {name} {b}, in {first.file} with {a}"
            return


def _plain(value: Any) -> Any:
    # How a timer rotates its inputs does not make it another clock.
    return value.split("+")[0] if isinstance(value, str) else value


def _devices(sheet: Sheet) -> Sequence[str]:
    return list(dict.fromkeys(sample.device for sample in sheet.samples))


def _of(sheet: Sheet, device: str) -> dict[str, Sample]:
    return {op: sample for (kind, op), sample in sheet.by_op.items() if kind == device}
