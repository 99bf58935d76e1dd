"""Checks of a profile: whether its times can be true, row by row and against one another, whether
their units are right, and whether they were measured well.

The table CHECKS of this package runs them. Bounds come from a datasheet
(``simdev.costs.roofline``), the work of an op from ``simdev.nouns.semantics``.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import log10, prod
from statistics import median
from typing import Any

import numpy as np

from ...nouns.semantics import op_class
from ...nouns.semantics.dtype import bits_of
from .sheet import Sample, Sheet, examples, number

# Rows and profiles against one another: the backward against its forward, the larger against the
# smaller, copies under two names, clocks that were mixed.

LEAST, MOST, USUAL = 0.5, 8.0, 2.0
"""The ratio of backward to forward time: its least value, its greatest value for a backward with
the usual ratio of work, and that usual ratio of work.
"""
SLOWER, SMALLER = 0.8, 0.5
"""A larger op is too fast if it takes less than the share SLOWER of a smaller op's time, where the
smaller op has at most the share SMALLER of its size.
"""
MOST_ROWS = 3000  # of a group: every row is compared with every other
GEMM = {"linear": "matmul", "addmm": "matmul", "mm": "matmul"}
SUFFIXES = ("_backward_input", "_backward_weight", "_backward")
WINDOW = ("stride", "padding", "dilation", "groups")
FEWEST_ALIKE = 3  # equal times of fewer ops may be chance
SAME = 0.95  # share of equal times: a copy may have been edited
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
"""Header fields in which two profiles of a kind of device must agree before their times are mixed.
"""


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
        # With several layers of one shape a backward cannot be assigned to its forward.
        if len(ahead) == 1 and len(parts) == len(samples):
            ratio = sum(sample.device_ns for sample in samples) / ahead[0].device_ns
            least = 0.0 if op_class(ahead[0].kind) == "elementwise" else LEAST
            if not least <= ratio <= MOST * max(1.0, _size(samples) / _size(ahead) / USUAL):
                strange.append((-abs(np.log(ratio / 2)), f"{ahead[0]} ({ratio:.3g} times)"))
    if strange:
        worst = [text for _, text in sorted(strange, key=lambda pair: pair[0])]
        yield (
            f"the backward takes less than {LEAST:g} or more than {MOST:g} times its forward: "
            f"{examples(worst)}"
        )


def _size(samples: Sequence[Sample]) -> float:
    return sum(sample.size for sample in samples) or 1.0


def _mark(sample: Sample) -> str | None:
    """A mark that an op shares with its backward; None for an op without one.

    A forward and its backward see the same tensors or their gradients, so the set of shapes is the
    same.
    """
    shapes = sorted({shape for shape in sample.shapes if len(shape) >= 2})
    suffix = next(filter(sample.kind.endswith, SUFFIXES), "")
    kind = sample.kind.removesuffix(suffix)
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
    # Only differences beyond both spreads count; a time without a spread is exact.
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
    """The time of an op at the edge of its spread. The spread is relative, and is that of the
    calls' times.
    """
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
    return len(shared) >= FEWEST_ALIKE and sum(a == b for a, b in shared) >= SAME * len(shared)


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
    if len(ratios) < FEWEST_ALIKE or not (middle := median(ratios)):
        return
    if sum(abs(ratio / middle - 1) < EXACT for ratio in ratios) >= SAME * len(ratios):
        times = "" if middle == 1 else f" times {middle:g}"
        yield f"the times of {device} are those of {other}{times}, in {len(ratios)} ops"


def clocks_between(first: Sheet, second: Sheet) -> Iterator[str]:
    """Two profiles of one kind of device that were not measured alike."""
    for device in _devices(second):
        if device in _devices(first):
            for name in CONDITIONS:
                a, b = first.field(name), second.field(name)
                if a is not None and b is not None and _plain(a) != _plain(b):
                    yield f"{device} was measured with {name} {b}, in {first.file} with {a}"
            return


def _plain(value: Any) -> Any:
    # A timer's suffixes (rotated inputs, flushed caches) do not make it another clock.
    return value.split("+")[0] if isinstance(value, str) else value


def _devices(sheet: Sheet) -> Sequence[str]:
    return list(dict.fromkeys(sample.device for sample in sheet.samples))


def _of(sheet: Sheet, device: str) -> dict[str, Sample]:
    return {op: sample for (kind, op), sample in sheet.by_op.items() if kind == device}


# Numbers in the wrong unit: off by 1,000 or 1,024, bits instead of bytes, multiply-adds instead of
# operations.

SLOWEST_OVER_IDEAL = 500.0  # no kernel is further below a datasheet, let alone half of a profile
LONG_NS = 20_000.0  # shorter ops are mostly launch, which no datasheet bounds
FEWEST_PEERS = 4
BITS = 8.0
FACTORS = {
    1e3: "1,000",
    1e6: "1,000,000",
    1e9: "1,000,000,000",
    1024.0: "1,024",
    1024.0**2: "1,048,576",
    BITS: "8 (bits for bytes)",
}
CLOSE = 0.01
WIDE = 0.35
"""The tolerance, in decimal digits, within which an error counts as a factor of 1,000."""


def times(sheet: Sheet) -> Iterator[str]:
    """Times that are about 1,000 times off: all against the datasheet or the step, one against its
    like.
    """
    yield from _against_step(sheet)
    yield from _against_datasheet(sheet)
    groups: defaultdict[tuple[str, str], list[tuple[float, Sample]]] = defaultdict(list)
    for sample in sheet.samples:
        # The time of a smaller op may be mostly its launch.
        if sample.size > 1e6 and sample.device_ns > 0:
            pace = log10(sample.device_ns / sample.size)
            groups[sample.device, sample.kind].append((pace, sample))
    for members in groups.values():
        if len(members) >= FEWEST_PEERS:
            yield from _strangers(members)


def _against_step(sheet: Sheet) -> Iterator[str]:
    ratio = number(sheet.field("step.ratio"))
    if ratio is not None and ratio > 0 and abs(abs(log10(ratio)) - 3) < WIDE:
        yield f"the operators add up to {ratio:g} of the step: one of them is in another unit"


def _against_datasheet(sheet: Sheet) -> Iterator[str]:
    known = [
        (sample.device_ns, max(sample.ideal))
        for sample in sheet.samples
        if sample.ideal is not None and sample.measured
    ]
    fast = [time / ideal for time, ideal in known if ideal > 0 and time > 0]
    slow = [time / ideal for time, ideal in known if ideal > LONG_NS]
    if fast and median(fast) < 1 / 20:
        yield (
            f"half of the ops take less than {median(fast):.2g} of what the datasheet "
            "allows: not nanoseconds?"
        )
    if len(slow) >= FEWEST_PEERS and median(slow) > SLOWEST_OVER_IDEAL:
        yield (
            f"half of the long ops take over {median(slow):.3g} times what the datasheet "
            "allows: not nanoseconds?"
        )


def _strangers(members: list[tuple[float, Sample]]) -> Iterator[str]:
    middle = median(value for value, _ in members)
    off = [(value - middle, sample) for value, sample in members]
    strange = [(by, sample) for by, sample in off if abs(abs(by) - 3) < WIDE]
    # Where most times of a kind are off, they are not outliers.
    if strange and len(strange) * 2 < len(members):
        texts = [
            f"{sample} (by {10 ** abs(by):,.0f}, too {'long' if by > 0 else 'short'})"
            for by, sample in strange
        ]
        yield f"about 1,000 times off their like: {examples(texts)}"


def counts(sheet: Sheet) -> Iterator[str]:
    """FLOPs or bytes of a row off by 1,000, 1,024, 8 or 2 against what its shapes say."""
    wrong: defaultdict[str, list[Sample]] = defaultdict(list)
    for sample in sheet.samples:
        for name, expected in _expected(sample).items():
            written = number(sample.details.get(name))
            verdict = _verdict(written / expected, name) if written and expected else None
            if verdict:
                wrong[f"{name} {verdict}"].append(sample)
    for text, samples in wrong.items():
        yield (
            f"{text}, against the shapes, in {len(samples)} of {len(sheet.samples)} rows: "
            f"{examples(samples)}"
        )


def _expected(sample: Sample) -> Mapping[str, float]:
    load = sample.load
    if load is None:
        return {}
    width = bits_of(load.dtype) / BITS
    outputs = sample.shapes[len(sample.shapes) - sample.outputs :]
    return {
        "flops": float(load.flops),
        "out_bytes": sum(map(prod, outputs)) * width,
        "br": float(load.read),
    }


def _verdict(ratio: float, name: str) -> str | None:
    """The wrong unit that explains a ratio of written to expected; None where the number is right,
    or no unit explains it.
    """
    if name == "flops" and abs(ratio - 0.5) < CLOSE / 2:
        return "off by 2 (multiply-adds for operations)"
    for factor, text in FACTORS.items():
        if name == "out_bytes" and factor == BITS:
            # A row does not hold the dtypes of outputs: they may be bool where operands are int64.
            continue
        for value, way in ((ratio / factor, "too large"), (ratio * factor, "too small")):
            if abs(value - 1) < CLOSE:
                return f"off by {text}, {way}"
    return None


SCHEMA = 1
TOO_FAST = 0.95  # boost clocks exceed a datasheet by a few percent
FLOOR_NS = 15_000  # a launch takes 3 to 10 us, the smallest kernel 1 to 3 us
FLOOR_OVER_IDEAL = 3.0
FEWEST_REPS = 10
SPREAD = 0.2
LEAST_RATIO, MOST_RATIO = 0.8, 1.25
# The capacity of a last-level cache: in a warm profile only larger ops are bound by the bandwidth
# of the memory.
CACHED_BYTES = 256 * 2**20
WIDEST = 4096  # padding is counted tap by tap; in wider images it is negligible
# F(4x4, 3x3) needs a quarter of the counted multiplications (Lavin and Gray, CVPR 2016).
WINOGRAD = 4.0


def noise(sheet: Sheet) -> Iterator[str]:
    """Who measured the profile marked it too noisy."""
    if sheet.field("noise.too_noisy"):
        strays = sheet.field("noise.idle_repeat_cv")
        yield f"marked too noisy when it was measured (an idle repeat strays by {strays})"


def header(sheet: Sheet) -> Iterator[str]:
    """The operators add up to less than 0.8 or more than 1.25 of the step; the rows are not those
    that were hashed; an unknown schema.
    """
    schema = sheet.field("schema")
    if schema is not None and schema != SCHEMA:
        yield f"schema {schema} is not known here, only {SCHEMA}: fields may mean something else"
    sha256 = sheet.field("sha256_of_rows")
    if sha256 is not None and sheet.sha256 and sha256 != sheet.sha256:
        yield "the rows are not those that the header's sha256_of_rows was taken of"
    ratio = number(sheet.field("step.ratio"))
    # A host that dispatches more slowly than its GPU works lengthens the step; the rows are right.
    least = 0.0 if any(sample.tells_kernels for sample in sheet.samples) else LEAST_RATIO
    if ratio is not None and not least <= ratio <= MOST_RATIO:
        yield f"the operators add up to {ratio:g} of the step that was measured with them"


def quantiles(sheet: Sheet) -> Iterator[str]:
    """min, p10, p50 and p90 are out of order, negative or no numbers; a measured time is zero."""
    mixed = [sample for sample in sheet.samples if not _ordered(sample)]
    yield from _warning(sheet, mixed, "min, p10, p50 and p90 are out of order or no numbers in")
    zeros = [sample for sample in sheet.samples if sample.p50 == 0 and sample.measured]
    yield from _warning(sheet, zeros, "measured as taking no time:")


def _ordered(sample: Sample) -> bool:
    names = [name for name in ("min", "p10", "p50", "p90") if name in sample.details["t_ns"]]
    times = [sample.time(name) for name in names]
    known = [time for time in times if time is not None]
    return len(known) == len(times) and known == sorted(known) and min(known, default=0.0) >= 0


def _warning(
    sheet: Sheet, samples: Sequence[Sample], text: str, shown: Sequence[object] | None = None
) -> Iterator[str]:
    """A warning about some rows, with their number and some examples; none without rows."""
    if samples:
        count = f"{len(samples)} of {len(sheet.samples)} rows"
        yield f"{text} {count}: {examples(samples if shown is None else shown)}"


def repetitions(sheet: Sheet) -> Iterator[str]:
    """Fewer than ten repetitions, or none told."""
    counts = [(sample, sample.time("n")) for sample in sheet.samples if sample.measured]
    few = {sample: n for sample, n in counts if n is not None and n < FEWEST_REPS}
    least = min(few.values(), default=0)
    text = f"fewer than {FEWEST_REPS} repetitions (least {least:g}) in"
    yield from _warning(sheet, list(few), text)
    silent = [sample for sample, n in counts if n is None]
    yield from _warning(sheet, silent, "repetitions not told in")


def spread(sheet: Sheet) -> Iterator[str]:
    """p90 - p10, or ``cv`` where a row tells it, above a fifth of the median."""
    wide = {}
    for sample in sheet.samples:
        cv, p10, p90 = sample.time("cv"), sample.time("p10"), sample.time("p90")
        if cv is None and p10 is not None and p90 is not None and sample.p50 > 0:
            cv = (p90 - p10) / sample.p50
        if cv is not None and cv > SPREAD:
            wide[sample] = cv
    if wide:
        total = sum(sample.p50 for sample in sheet.samples) or 1.0
        share = sum(sample.p50 for sample in wide) / total
        worst = sorted(wide, key=lambda sample: -wide[sample])
        count = f"{len(wide)} of {len(sheet.samples)} rows"
        yield (
            f"p90 - p10 is more than {SPREAD:.0%} of the median in {count}, "
            f"{share:.0%} of the time of all "
            f"rows: {examples(worst)}"
        )


def roofline(sheet: Sheet) -> Iterator[str]:
    """A time below 0.95 of max(F / peak, B / bandwidth) of the datasheet (Williams et al. 2009).

    A convolution need not multiply with its padding, and where Winograd's method may serve it needs
    a quarter of its FLOPs. In a profile with warm caches the bandwidth binds only what no cache
    holds.
    """
    ratios = {}
    for sample in sheet.samples:
        bound = _bound(sheet, sample)
        if sample.measured and sample.device_ns and sample.device_ns < TOO_FAST * bound:
            ratios[sample] = sample.device_ns / bound
    worst = sorted(ratios, key=lambda sample: ratios[sample])
    shown = [f"{sample} ({ratios[sample]:.2g} of the bound)" for sample in worst]
    yield from _warning(sheet, worst, "faster than the datasheet allows in", shown)


def _bound(sheet: Sheet, sample: Sample) -> float:
    """The least nanoseconds of a row by its datasheet; 0 where no bound is known."""
    if sample.ideal is None or sample.load is None:
        return 0.0
    compute, memory = sample.ideal
    compute *= inside(sample) / (WINOGRAD if _may_be_winograd(sample) else 1.0)
    if sample.spec is not None and sample.load.dtype == "float32" and _may_use_tf32(sheet, sample):
        compute *= float(sample.spec.flops["float32"] / sample.spec.flops["tfloat32"])
    flushed = sheet.field("method.flush") is True and not sample.tells_kernels
    cold = flushed or sample.load.read + sample.load.written > CACHED_BYTES
    return max(compute, memory if cold else 0.0)


def inside(sample: Sample) -> float:
    """The share of a convolution's multiplications that fall on data rather than padding; 1 for any
    other op.
    """
    places = {"": (0, 1, 2), "backward_input": (2, 1, 0), "backward_weight": (1, 2, 0)}
    name, _, part = sample.kind.partition("_")
    padding = sample.extents("padding")
    operands = [shape for shape in sample.shapes if len(shape) > 2][:3]
    if not (name.startswith("conv") and part in places and padding and len(operands) == 3):
        return 1.0
    data, weight, made = (operands[i] for i in places[part])
    if (
        not len(data) == len(weight) == len(made) == len(padding) + 2
        or max(*data, *weight, *made) > WIDEST
    ):
        return 1.0
    share = 1.0
    for axis, before in enumerate(padding):
        stride, dilation = (_at(sample.extents(name), axis) for name in ("stride", "dilation"))
        extent, points = data[axis + 2], range(made[axis + 2])
        taps = [o * stride + r * dilation - before for o in points for r in range(weight[axis + 2])]
        share *= sum(0 <= tap < extent for tap in taps) / max(1, len(taps))
    return share


def _at(values: Sequence[int], axis: int) -> int:
    return values[axis] if axis < len(values) else 1


def _may_be_winograd(sample: Sample) -> bool:
    """Whether Winograd or FFT may save multiplications: in a dense convolution with a kernel of 3
    or more points at stride 1.
    """
    plain = all(set(sample.extents(name)) <= {1} for name in ("stride", "dilation"))
    return (
        sample.kind.startswith("conv")
        and plain
        and sample.attrs.get("groups", 1) == 1
        and _kernel(sample) >= 3
    )


def _kernel(sample: Sample) -> int:
    # Of the tensors with more than two axes the filters have the smallest last axes: the window.
    windows = [min(shape[2:]) for shape in sample.shapes if len(shape) > 2 and max(shape[2:]) <= 11]
    return max(windows, default=1)


def _may_use_tf32(sheet: Sheet, sample: Sample) -> bool:
    """Whether a float32 product or convolution may run in TF32: unless the header forbids it."""
    if sample.spec is None or not {"float32", "tfloat32"} <= set(sample.spec.flops):
        return False
    flag = "cudnn_tf32" if sample.kind.startswith("conv") else "tf32"
    return sheet.field(f"flags.{flag}") is not False


def dispatch(sheet: Sheet) -> Iterator[str]:
    """No op takes less than 15 us, whatever little the shortest do: the launch was measured."""
    by_device: defaultdict[str, list[Sample]] = defaultdict(list)
    for sample in sheet.samples:
        if sample.measured:
            by_device[sample.device].append(sample)
    for device, samples in by_device.items():
        shortest = min(samples, key=lambda sample: sample.device_ns)
        taken, ideal = shortest.device_ns, shortest.ideal
        busy = ideal is not None and taken < FLOOR_OVER_IDEAL * max(ideal)
        if taken > FLOOR_NS and not busy:
            yield (
                f"no op of {device} takes less than {taken / 1000:.3g} us "
                f"({shortest}): the launch may have "
                "been measured, not the op"
            )


def clocks(sheet: Sheet) -> Iterator[str]:
    """Rows of several clocks, or of a clock or device that the header does not name."""
    methods = {
        _plain(str(sample.details["meth"])) for sample in sheet.samples if "meth" in sample.details
    }
    timer = sheet.field("method.timer")
    if isinstance(timer, str):
        methods.add(_plain(timer))
    if len(methods) > 1:
        yield f"mixed clocks: {', '.join(sorted(methods))}"
    devices = {sample.device for sample in sheet.samples}
    kind = sheet.field("device.kind")
    if isinstance(kind, str):
        devices.add(kind)
    if len(devices) > 1:
        yield f"mixed devices: {', '.join(sorted(devices))}"
