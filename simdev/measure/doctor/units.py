"""Numbers in the wrong unit: off by 1,000 or 1,024, bits for bytes, multiply-adds for
operations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import log10, prod
from statistics import median

from ...nouns.semantics.dtype import bits_of
from .sheet import Sample, Sheet, examples, number

SLOWEST_OVER_IDEAL = 500.0  # further below a datasheet is no kernel, half of a profile even less
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
"""How near to a power of 1,000 a time must be off, in decimal digits."""


def times(sheet: Sheet) -> Iterator[str]:
    """Times that are about 1,000 times off: all against the datasheet or the step, one against its
    like.
    """
    yield from _against_step(sheet)
    yield from _against_datasheet(sheet)
    groups: defaultdict[tuple[str, str], list[tuple[float, Sample]]] = defaultdict(list)
    for sample in sheet.samples:
        work = _work(sample)
        if work and sample.device_ns > 0:
            groups[sample.device, sample.kind].append((log10(sample.device_ns / work), sample))
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


def _work(sample: Sample) -> float:
    """Bytes, or FLOPs where they are the most of the work; 0 where too little to be told from a
    launch.
    """
    if sample.load is None:
        return 0.0
    size = float(max(sample.load.read + sample.load.written, sample.load.flops / 10))
    return size if size > 1e6 else 0.0


def _strangers(members: list[tuple[float, Sample]]) -> Iterator[str]:
    middle = median(value for value, _ in members)
    off = [(value - middle, sample) for value, sample in members]
    strange = [(by, sample) for by, sample in off if abs(abs(by) - 3) < WIDE]
    # Where most of a kind are off, it is not the few that are strange.
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
    """How a number is off; None where it is right, or wrong in no way that a unit explains."""
    if name == "flops" and abs(ratio - 0.5) < CLOSE / 2:
        return "off by 2 (multiply-adds for operations)"
    for factor, text in FACTORS.items():
        if name == "out_bytes" and factor == BITS:
            # a row does not tell the dtypes of outputs: they may be bool where the operands are
            # int64
            continue
        for value, way in ((ratio / factor, "too large"), (ratio * factor, "too small")):
            if abs(value - 1) < CLOSE:
                return f"off by {text}, {way}"
    return None
