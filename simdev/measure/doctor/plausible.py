"""Whether the times of one profile can be true, row by row, and whether they were measured well."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .sheet import Sample, Sheet, examples, number

SCHEMA = 1
TOO_FAST = 0.95  # boost clocks exceed a datasheet by a few percent
FLOOR_NS = 15_000  # a launch takes 3 to 10 us, the smallest kernel 1 to 3 us
FLOOR_OVER_IDEAL = 3.0
FEWEST = 10
SPREAD = 0.2
LEAST_RATIO, MOST_RATIO = 0.8, 1.25
# What a last-level cache may hold: only beyond it a warm profile must keep to the memory's
# bandwidth.
CACHED_BYTES = 256 * 2**20
WIDEST = 4096  # padding is counted tap by tap; images wider than this have next to none
# F(4x4, 3x3) multiplies a quarter of what is counted (Lavin and Gray, CVPR 2016).
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
    # A host that dispatches more slowly than its GPU works holds the step up, and rows are right.
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
    """A warning of some rows, with how many they are and some examples; none where there are
    none.
    """
    if samples:
        count = f"{len(samples)} of {len(sheet.samples)} rows"
        yield f"{text} {count}: {examples(samples if shown is None else shown)}"


def repetitions(sheet: Sheet) -> Iterator[str]:
    """Fewer than ten repetitions, or none told."""
    counts = [(sample, sample.time("n")) for sample in sheet.samples if sample.measured]
    few = {sample: n for sample, n in counts if n is not None and n < FEWEST}
    least = min(few.values(), default=0)
    text = f"fewer than {FEWEST} repetitions (least {least:g}) in"
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
    """The nanoseconds that a row cannot be below by its datasheet; 0 where that is not known."""
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
    """The share of a convolution's multiplications that do not meet its padding; 1 for any other
    op.
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
    """A dense convolution of 3 or more points at stride 1: Winograd or FFT save multiplications."""
    plain = all(set(sample.extents(name)) <= {1} for name in ("stride", "dilation"))
    return (
        sample.kind.startswith("conv")
        and plain
        and sample.attrs.get("groups", 1) == 1
        and _kernel(sample) >= 3
    )


def _kernel(sample: Sample) -> int:
    # The filters are the smallest tensor of four axes or so; their last axes are the window.
    windows = [min(shape[2:]) for shape in sample.shapes if len(shape) > 2 and max(shape[2:]) <= 11]
    return max(windows, default=1)


def _may_use_tf32(sheet: Sheet, sample: Sample) -> bool:
    """Products and convolutions in float32 may run in TF32 unless the header says that they must
    not.
    """
    if sample.spec is None or not {"float32", "tfloat32"} <= set(sample.spec.flops):
        return False
    flag = "cudnn_tf32" if sample.kind.startswith("conv") else "tf32"
    return sheet.field(f"flags.{flag}") is not False


def dispatch(sheet: Sheet) -> Iterator[str]:
    """No op takes less than 15 us, whatever little the shortest do: the launch was measured."""
    by_device: dict[str, list[Sample]] = {}
    for sample in sheet.samples:
        if sample.measured:
            by_device.setdefault(sample.device, []).append(sample)
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
        str(sample.details["meth"]).split("+")[0]
        for sample in sheet.samples
        if "meth" in sample.details
    }
    timer = sheet.field("method.timer")
    if isinstance(timer, str):
        methods.add(timer.split("+")[0])
    if len(methods) > 1:
        yield f"mixed clocks: {', '.join(sorted(methods))}"
    devices = {sample.device for sample in sheet.samples}
    kind = sheet.field("device.kind")
    if isinstance(kind, str):
        devices.add(kind)
    if len(devices) > 1:
        yield f"mixed devices: {', '.join(sorted(devices))}"
