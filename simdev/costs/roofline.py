"""What an op asks of a device, and how long a device with known peaks takes for it.

The model of all rungs below the measured one is time = overhead + max(F / (e1 x peak), B / (e2 x
bandwidth)), with F floating-point operations and B bytes read and written (Williams, Waterman,
Patterson, "Roofline", CACM 2009; the overhead is what a launch costs). The three scalars e1, e2 and
overhead belong to a kind of device and an op class.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from ..errors import InputError
from ..semantics import op_class, semantics_of, work
from ..semantics.dtype import STAND_INS, canonical
from .spec import DeviceSpec, Efficiency

CLASS_DEFAULT = Efficiency(Fraction(70, 100), Fraction(75, 100))
"""What is reached of a datasheet's peaks where nothing else is known; between the fits of seven
GPUs.

The overhead is the launch of the datasheet then.
"""

ROOFLINE_ERROR = 0.5
"""Expected error of the datasheet rung where no measured row can tell it: 0.37 to 0.57 over 35,742
GEMMs on 7 GPUs.
"""

DIGITS = 6
_VARIANT = json.JSONEncoder(sort_keys=True)


@dataclass(frozen=True, slots=True)
class Load:
    """What an op asks of a device: FLOPs, bytes read and written, and what tells it from its like.

    ``dtype`` is that of the arithmetic; ``variant`` holds its attributes and ranks, so that equal
    sizes of different variants (a stride, a transposition) are told apart.
    """

    kind: str
    op_class: str
    dtype: str
    flops: int
    read: int
    written: int
    variant: str

    @property
    def is_free(self) -> bool:
        """Whether it computes nothing and moves no byte, as a view."""
        return not (self.flops or self.read or self.written)


@dataclass(frozen=True, slots=True)
class Scalars:
    """The three scalars: what is reached of the peak compute and memory rates, and the overhead in
    seconds.

    Relative to a datasheet they are fractions of its peaks; where there is none, absolute FLOP/s
    and bytes/s.
    """

    compute: float
    memory: float
    overhead: float

    def seconds(self, ideal: tuple[float, float]) -> float:
        """Time of an op that needs ``ideal`` = (compute, memory) seconds at the peaks."""
        return self.overhead + max(ideal[0] / self.compute, ideal[1] / self.memory)


def load_of(key: str) -> Load | None:
    """What the op of a profile key asks; None where its work is not known.

    Only the key counts, so that a row of a profile and an op of a graph are told in the same way.
    """
    _, kind, _, attrs, shapes, dtypes, outputs = json.loads(key)
    found = work(kind, attrs, shapes, outputs, dtypes)
    if found is None:
        return None
    ranks = [len(shape) if shape is not None else None for shape in shapes]
    # Strides tell that an operand is not contiguous; their values belong to the sizes.
    told = {name: "strides" if name == "strides" else value for name, value in attrs.items()}
    variant = _VARIANT.encode([told, ranks])
    dtype = arithmetic_dtype(dtypes)
    return Load(
        kind,
        op_class(kind),
        dtype,
        int(found.flops),
        int(found.bytes_read),
        int(found.bytes_written),
        variant,
    )


def work_problem(key: str) -> str:
    """Why the work of an op is not known; "" where it is."""
    _, kind, _, attrs, shapes, _, outputs = json.loads(key)
    try:
        semantics_of(kind, attrs, shapes, outputs)
    except InputError as error:
        return error.problems[0]
    return ""


def arithmetic_dtype(dtypes: Sequence[str | None]) -> str:
    """The first dtype that is a float's, else the first, else float32; by its canonical name.

    Raises InputError.
    """
    names = [canonical(name) for name in dtypes if name]
    return next((name for name in names if "float" in name), names[0] if names else "float32")


def ideal_seconds(load: Load, spec: DeviceSpec | None) -> tuple[float, float]:
    """Seconds at the peak FLOP/s and at the peak bandwidth; without a datasheet, at 1 FLOP/s and 1
    byte/s.

    Raises InputError where the datasheet tells no peak for the dtype (``is_covered``).
    """
    size = load.read + load.written
    if spec is None:
        return float(load.flops), float(size)
    compute = load.flops / float(peak_flops(spec, load.dtype)) if load.flops else 0.0
    return compute, size / float(spec.memory_bandwidth)


def is_covered(load: Load, spec: DeviceSpec | None) -> bool:
    """Whether a datasheet tells how fast an op of this dtype computes; one that computes nothing
    needs no peak.
    """
    return spec is None or not load.flops or peak_name(spec, load.dtype) is not None


def peak_name(spec: DeviceSpec, dtype: str) -> str | None:
    """Which of the datasheet's peaks counts for a dtype: its own, else that of its first stand-in;
    None: none.
    """
    name = canonical(dtype)
    return next((one for one in (name, *STAND_INS.get(name, ())) if one in spec.flops), None)


def peak_flops(spec: DeviceSpec, dtype: str) -> Fraction:
    """Peak FLOP/s for a dtype, perhaps of what stands in for it.

    Raises InputError where there is none.
    """
    name = peak_name(spec, dtype)
    if name is None:
        raise InputError(no_peak(spec, dtype))
    return spec.flops[name]


def no_peak(spec: DeviceSpec, dtype: str) -> str:
    """What is wrong with a datasheet that does not tell how fast a dtype is computed."""
    return (
        f'the datasheet of "{spec.kind}" names no peak for {dtype}; it has {", ".join(spec.flops)}'
    )


def datasheet_scalars(spec: DeviceSpec, op_class: str) -> Scalars:
    """The scalars that the spec knows for an op class, each else the class default."""
    own, default = (
        spec.efficiency.get(op_class, Efficiency()),
        spec.efficiency.get("default", Efficiency()),
    )
    overheads = (own.overhead, default.overhead, spec.launch)
    return Scalars(
        float(own.compute or default.compute or CLASS_DEFAULT.compute or 1),
        float(own.memory or default.memory or CLASS_DEFAULT.memory or 1),
        float(next(value for value in overheads if value is not None)),
    )


def rounded(seconds: float) -> Fraction:
    """An estimate as an exact decimal of six significant digits.

    Logarithms and sums may differ in their last bits from one machine to another; an estimate's
    sixth digit does not.
    """
    # read as a Decimal, which is faster than as a Fraction
    return Fraction(Decimal(f"{seconds:.{DIGITS - 1}e}"))
