"""DeviceSpec: what a datasheet tells of a kind of device, in SI units as exact fractions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from ..errors import InputError
from ..frozen import FrozenDict, freeze
from ..semantics import OP_CLASSES
from ..semantics.dtype import ALIASES, PEAKS
from ..units import name_problems

LAUNCH = Fraction(3, 10**6)
LEAST_RATE = 10**6
"""FLOP/s or bytes/s: no device is slower, so a smaller rate is one whose unit was forgotten."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """The three scalars of time = overhead + max(F / (compute x peak), B / (memory x bandwidth)).

    ``compute`` and ``memory`` are fractions of the peaks, in (0, 4]: above 1 where a method needs
    fewer operations than were counted (Winograd). ``overhead`` is in seconds. They are stored as
    exact fractions; ``None`` for ``compute`` or ``memory`` means not known (the class default
    stands in). Raises InputError.
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
        if problems:
            raise InputError(problems)


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """The datasheet of a kind of device, as far as it is known. Raises InputError.

    ``flops`` are peak FLOP/s by dtype (names of PEAKS; dense, no sparsity), ``memory_bandwidth``
    bytes/s, ``memory`` bytes, ``launch`` the seconds that the launch of one op costs,
    ``efficiency`` what is reached of the peaks by op class ("gemm", "conv", ...; "default" for all
    others). ``provenance`` is carried along.
    """

    kind: str
    flops: Mapping[str, Fraction]
    memory_bandwidth: Fraction
    name: str = ""
    memory: int | None = None
    launch: Fraction = LAUNCH
    efficiency: Mapping[str, Efficiency] = FrozenDict()
    provenance: Mapping[str, Any] = field(default=FrozenDict(), repr=False)

    def __post_init__(self) -> None:
        freeze(self, "flops", "efficiency", "provenance")
        problems = list(self._problems())
        if problems:
            raise InputError(problems)

    def _problems(self) -> Iterator[str]:
        yield from name_problems("kind", self.kind)
        if not self.flops:
            yield "flops: must name the peak of one dtype at least"
        for dtype, peak in self.flops.items():
            if dtype in ALIASES:
                yield f'flops.{dtype}: write it "{ALIASES[dtype]}"'
            elif dtype not in PEAKS:
                yield f'flops: no dtype "{dtype}"; there are {", ".join(PEAKS)}'
            if not LEAST_RATE <= peak <= 10**21:
                yield f"flops.{dtype}: must be from 10^6 to 10^21 FLOP/s, got {float(peak):g}"
        if not LEAST_RATE <= self.memory_bandwidth <= 10**18:
            yield (
                "memory_bandwidth: must be from 10^6 to 10^18 bytes/s, got "
                f"{float(self.memory_bandwidth):g}"
            )
        for op_class in self.efficiency:
            if op_class not in ("default", *OP_CLASSES):
                yield (
                    f'efficiency: no op class "{op_class}"; there are default, '
                    f"{', '.join(OP_CLASSES)}"
                )
        if not 0 <= self.launch <= 1:
            yield f"launch: must be from 0 to 1 second, got {float(self.launch):g}"
