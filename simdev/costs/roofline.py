"""The peaks of a kind of device, the work of an op, and the time that follows from both.

The model of all rungs below the measured one is time = overhead + max(F / (e1 x peak), B / (e2 x
bandwidth)), with F floating-point operations and B bytes read and written (Williams, Waterman,
Patterson, "Roofline", CACM 2009; the overhead is the cost of a launch). The three scalars e1, e2
and overhead belong to a kind of device and an op class.

A new field of a datasheet is a field of DeviceSpec and a key of its shape in ``files/device.py``; a
dtype and its substitutes are in ``nouns/semantics/dtype.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from ..ground.errors import InputError, refuse
from ..ground.frozen import FrozenDict, freeze
from ..ground.units import name_problems
from ..nouns.semantics import OP_CLASSES
from ..nouns.semantics.dtype import ALIASES, PEAKS, STAND_INS, canonical
from ..nouns.semantics.keys import Load

LAUNCH = Fraction(3, 10**6)
LAUNCH_GAP = Fraction(8, 10**7)
"""Seconds between two kernels of a stream where no datasheet gives them. With them, the rows of
seven steps on an H100 add up to the times of the steps replayed as CUDA graphs, within 2 %.
"""
# A share of the peak in bfloat16: the power cap slows products that compute at least as fast.
HOT = Fraction(6, 10)
# FLOP/s or bytes/s: no device is slower, so a smaller rate has lost its unit.
LEAST_RATE = 10**6
# Dtypes whose efficiencies are alike: both run on vector units, or both on tensor cores of 16 bits.
KIN = {"float64": "float32", "float16": "bfloat16", "bfloat16": "float16"}
ANY = "any"
"""An efficiency for all dtypes, in place of a dtype's name."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """The three scalars of time = overhead + max(F / (compute x peak), B / (memory x bandwidth)).

    ``compute`` and ``memory`` are fractions of the peaks, in (0, 4]: above 1 where a method needs
    fewer operations than were counted (Winograd). ``overhead`` is in seconds. They are stored as
    exact fractions; ``None`` for ``compute`` or ``memory`` means unknown: then the class default
    counts. Raises InputError.
    """

    compute: Fraction | None = None
    memory: Fraction | None = None
    overhead: Fraction | None = None

    def __post_init__(self) -> None:
        problems = [
            f"{name}: must be a fraction of the peak in (0, 4], got {float(value):g}"
            for name, value in (("compute", self.compute), ("memory", self.memory))
            if value is not None and not 0 < value <= 4
        ]
        if self.overhead is not None and not 0 <= self.overhead <= 1:
            problems.append(f"overhead: must be from 0 to 1 second, got {float(self.overhead):g}")
        refuse(problems)


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """The datasheet of a kind of device, as far as it is known. Raises InputError.

    ``flops`` are peak FLOP/s by dtype (names of PEAKS; dense, no sparsity), ``memory_bandwidth``
    bytes/s, ``memory`` bytes, ``launch`` the seconds of the launch of one op, ``blas_workspace``
    the bytes of each workspace that PyTorch gives to cuBLAS there. ``efficiency`` is the share of
    the peaks that is reached, by op class ("gemm", "conv", ...; "default" for all others) and then
    by dtype (ANY, or a bare Efficiency: all dtypes). ``launch_gap`` is the seconds between two
    kernels of a stream, ``dispatch`` the seconds in which a host dispatches a small op (None:
    unknown). ``sustained`` and ``burst`` are the measured FLOP/s of products by dtype, over seconds
    under the power cap, and in a single call; ``sustained_clock`` is the share of the rate of a
    single call that kernels near the peak keep (None: unknown). ``family`` ("hbm", "cpu", ...)
    groups similar kinds. ``measured_as`` is the kind whose measured rows large models use here,
    scaled by the ratio of both datasheets ("": its own). ``provenance`` is carried along.
    """

    kind: str
    flops: Mapping[str, Fraction]
    memory_bandwidth: Fraction
    name: str = ""
    memory: int | None = None
    launch: Fraction = LAUNCH
    blas_workspace: int | None = None
    efficiency: Mapping[str, Efficiency | Mapping[str, Efficiency]] = FrozenDict()
    provenance: Mapping[str, Any] = field(default=FrozenDict(), repr=False)
    launch_gap: Fraction | None = None
    dispatch: Fraction | None = None
    sustained: Mapping[str, Fraction] = FrozenDict()
    burst: Mapping[str, Fraction] = FrozenDict()
    family: str = ""
    sustained_clock: Fraction | None = None
    measured_as: str = ""

    def __post_init__(self) -> None:
        freeze(self, "flops", "efficiency", "provenance", "sustained", "burst")
        refuse(self._problems())

    def _problems(self) -> Iterator[str]:
        yield from name_problems("kind", self.kind)
        if not self.flops:
            yield "flops: must name the peak of one dtype at least"
        for name in ("flops", "sustained", "burst"):
            yield from _rate_problems(name, getattr(self, name))
        if not LEAST_RATE <= self.memory_bandwidth <= 10**18:
            yield (
                "memory_bandwidth: must be from 10^6 to 10^18 bytes/s, got "
                f"{float(self.memory_bandwidth):g}"
            )
        for name, known in self.efficiency.items():
            if name not in ("default", *OP_CLASSES):
                yield (
                    f'efficiency: no op class "{name}"; there are default, {", ".join(OP_CLASSES)}'
                )
            if not isinstance(known, Efficiency):
                yield from _dtype_problems(f"efficiency.{name}", known)
        yield from self._time_problems()

    def _time_problems(self) -> Iterator[str]:
        for name in ("launch", "launch_gap", "dispatch"):
            seconds = getattr(self, name)
            if seconds is not None and not 0 <= seconds <= 1:
                yield f"{name}: must be from 0 to 1 second, got {float(seconds):g}"
        clock = self.sustained_clock
        if clock is not None and not 0 < clock <= 1:
            yield f"sustained_clock: must be a share in (0, 1], got {float(clock):g}"

    def efficiency_of(self, op_class: str, dtype: str) -> Efficiency | None:
        """The efficiency of a class (or "default") in a dtype, in the dtype that computes it here,
        or in a dtype of the same units (KIN). None where only efficiencies of unrelated dtypes are
        known.
        """
        known = self.efficiency.get(op_class)
        if known is None or isinstance(known, Efficiency):
            return known
        name = canonical(dtype)
        names = (name, peak_name(self, dtype) or ANY, ANY, KIN.get(name, ANY))
        return next((known[name] for name in names if name in known), None)

    def other_dtypes(self, op_class: str, dtype: str) -> tuple[str, ...]:
        """The dtypes with a known efficiency of a class, where none of them serves for this dtype
        (``efficiency_of``); () else.
        """
        known = self.efficiency.get(op_class)
        if not isinstance(known, Mapping) or self.efficiency_of(op_class, dtype) is not None:
            return ()
        return tuple(known)


class Pace(NamedTuple):
    """The pace of successive kernels: ``gap`` seconds between two; kernels of ``hot`` FLOP/s or
    more (None: none) run at ``clock`` of the rate of a single call.
    """

    gap: Fraction = LAUNCH_GAP
    hot: Fraction | None = None
    clock: Fraction = Fraction(1)


# The shortest kernels of an H100 (profiles/h100): the time of a launch that moves almost nothing.
KERNEL = Fraction(115, 10**8)
PACE = Pace()
"""The pace of kernels on a device without a datasheet."""


def least_seconds(spec: DeviceSpec | None) -> Fraction:
    """The least time of an op that computes or moves something: a kernel and the gap after it,
    where the datasheet gives the gap; else 0.
    """
    return Fraction(0) if spec is None or spec.launch_gap is None else KERNEL + spec.launch_gap


def pace_of(spec: DeviceSpec | None) -> Pace:
    """The pace of kernels on a device, with or without a datasheet."""
    if spec is None:
        return PACE
    gap = LAUNCH_GAP if spec.launch_gap is None else spec.launch_gap
    peak = spec.flops.get("bfloat16")
    if spec.sustained_clock is None or peak is None:
        return Pace(gap)
    return Pace(gap, HOT * peak, spec.sustained_clock)


def _rate_problems(path: str, rates: Mapping[str, Fraction]) -> Iterator[str]:
    yield from _dtype_problems(path, rates, ())
    for dtype, rate in rates.items():
        if not LEAST_RATE <= rate <= 10**21:
            yield f"{path}.{dtype}: must be from 10^6 to 10^21 FLOP/s, got {float(rate):g}"


def _dtype_problems(
    path: str, by_dtype: Mapping[str, Any], others: tuple[str, ...] = (ANY,)
) -> Iterator[str]:
    for dtype in by_dtype:
        if dtype in ALIASES:
            yield f'{path}.{dtype}: write it "{ALIASES[dtype]}"'
        elif dtype not in (*PEAKS, *others):
            yield f'{path}: no dtype "{dtype}"; there are {", ".join((*PEAKS, *others))}'


# The efficiency where nothing else is known (between the fits of 7 GPUs); the overhead is then the
# launch of the datasheet.
CLASS_DEFAULT = Efficiency(Fraction(70, 100), Fraction(75, 100))

# Expected error of the datasheet rung without measured rows: 0.37 to 0.57 over 35,742 GEMMs on 7
# GPUs.
ROOFLINE_ERROR = 0.5
DATASHEET_ERRORS = {
    "gemm": 0.10, "attention": 0.25, "elementwise": 0.16, "data_movement": 0.23, "norm": 0.70,
    "softmax": 0.36, "reduction": 0.21, "optimizer": 0.24, "conv": 0.47,
}  # fmt: skip
"""The expected error of a datasheet's answer by op class, weighted by time, for the long kernels of
large models. From the rows of an H100's grids by ``python -m benchmarks.grids``
(docs/reference/errors.md, column ``roofline``).
"""


@dataclass(frozen=True, slots=True)
class Scalars:
    """The three scalars: the compute and memory rates that are reached, and the overhead in
    seconds.

    With a datasheet the rates are fractions of its peaks, without one absolute FLOP/s and bytes/s.
    """

    compute: float
    memory: float
    overhead: float

    def seconds(self, ideal: tuple[float, float]) -> float:
        """The time of an op that needs ``ideal`` = (compute, memory) seconds at the peaks."""
        return self.overhead + max(ideal[0] / self.compute, ideal[1] / self.memory)


def ideal_seconds(load: Load, spec: DeviceSpec | None) -> tuple[float, float]:
    """Seconds at the peak FLOP/s and at the peak bandwidth; without a datasheet, at 1 FLOP/s and 1
    byte/s.

    Raises InputError where the datasheet has no peak for the dtype (``is_covered``).
    """
    size = load.read + load.written
    if spec is None:
        return float(load.flops), float(size)
    compute = load.flops / float(peak_flops(spec, load.dtype)) if load.flops else 0.0
    return compute, size / float(spec.memory_bandwidth)


def is_covered(load: Load, spec: DeviceSpec | None) -> bool:
    """Whether the datasheet has a peak for the op's dtype; an op without FLOPs needs none."""
    return spec is None or not load.flops or peak_name(spec, load.dtype) is not None


def peak_name(spec: DeviceSpec, dtype: str) -> str | None:
    """The dtype whose peak in the datasheet is used for a dtype: the dtype itself, else the first
    of its substitutes (STAND_INS) that has a peak, else None.
    """
    name = canonical(dtype)
    return next((peak for peak in (name, *STAND_INS.get(name, ())) if peak in spec.flops), None)


def peak_flops(spec: DeviceSpec, dtype: str) -> Fraction:
    """The peak FLOP/s for a dtype, perhaps of a substitute (``peak_name``).

    Raises InputError where there is none.
    """
    name = peak_name(spec, dtype)
    if name is None:
        raise InputError(no_peak(spec, dtype))
    return spec.flops[name]


def no_peak(spec: DeviceSpec, dtype: str) -> str:
    """The message about a datasheet without a peak for a dtype."""
    return (
        f'the datasheet of "{spec.kind}" names no peak for {dtype}; it has {", ".join(spec.flops)}'
    )


def datasheet_scalars(
    spec: DeviceSpec, op_class: str, dtype: str, chip: DeviceSpec | None = None
) -> Scalars:
    """The scalars of an op class in a dtype by a datasheet; the class default for each that is
    missing.

    ``chip`` is the datasheet of the same chip under another power cap, if there is one
    (``measured_as``): its efficiencies are used, at the clock of ``spec``, except for products
    whose sustained rate ``spec`` itself gives.
    """
    special, default = (
        spec.efficiency_of(name, dtype) or Efficiency() for name in (op_class, "default")
    )
    overheads = (special.overhead, default.overhead, spec.launch)
    compute = special.compute or default.compute
    sustains = op_class == "gemm" and peak_name(spec, dtype) in spec.sustained
    if compute is None and chip is not None and not sustains:
        compute = rounded(
            datasheet_scalars(chip, op_class, dtype).compute * clock_share(spec, chip)
        )
    return Scalars(
        float(compute or _default_compute(spec, dtype)),
        float(special.memory or default.memory or CLASS_DEFAULT.memory or 1),
        # ``or`` would skip an overhead of zero.
        float(next(value for value in overheads if value is not None)),
    )


def clock_share(spec: DeviceSpec, chip: DeviceSpec | None) -> float:
    """The clock of a device as a share of the clock of the same chip under another power cap.

    A cap holds the mean power over many kernels, so all of them share one clock.
    """
    if chip is None or not spec.sustained_clock or not chip.sustained_clock:
        return 1.0
    return min(float(spec.sustained_clock / chip.sustained_clock), 1.0)


def _default_compute(spec: DeviceSpec, dtype: str) -> Fraction:
    """The class default, but no more than the share of the peak that products sustain."""
    share = CLASS_DEFAULT.compute or Fraction(1)
    name = peak_name(spec, dtype)
    if name is None or name not in spec.sustained:
        return share
    return min(share, spec.sustained[name] / spec.flops[name])


def rounded(seconds: float) -> Fraction:
    """An estimate as an exact decimal of six significant digits.

    Logarithms and sums may differ in their last bits from one machine to another; an estimate's
    sixth digit does not.
    """
    # Parsing as a Decimal is faster than as a Fraction.
    return Fraction(Decimal(f"{seconds:.5e}"))
