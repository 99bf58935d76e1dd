"""A profile as the doctor sees it: its header, and each row with its times and the work of its op.

``checks`` reads it. ``simdev.files.profile`` reads the file like any profile.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import Any

from ...costs import DeviceSpec, Row
from ...costs.roofline import ideal_seconds, is_covered, pace_of
from ...files.device import device_names, read_device
from ...files.profile import read_profile
from ...files.reading import read_text
from ...ground.errors import InputError
from ...nouns.semantics.keys import Load, load_of

Shapes = tuple[tuple[int, ...], ...]
SHOWN = 3


@dataclass(frozen=True, eq=False)
class Sample:
    """One row of a profile: its key, the median time in ns, and the other fields of the file.

    ``p50``, the median of the calls, shows how well the row was measured; ``device_ns`` shows
    whether it can be true.
    """

    key: str
    p50: float
    details: Mapping[str, Any] = field(repr=False)
    spec: DeviceSpec | None = field(default=None, repr=False)

    @cached_property
    def _parts(self) -> list[Any]:
        return json.loads(self.key)  # type: ignore[no-any-return]

    @property
    def device(self) -> str:
        """The kind of device."""
        return str(self._parts[0])

    @property
    def kind(self) -> str:
        """The kind of op."""
        return str(self._parts[1])

    @property
    def phase(self) -> str:
        """The phase: fwd, bwd, bwd_input, bwd_weight or opt."""
        return str(self._parts[2])

    @property
    def attrs(self) -> dict[str, Any]:
        """The op's attributes."""
        return dict(self._parts[3])

    def extents(self, name: str) -> tuple[int, ...]:
        """An attribute that is a list of whole numbers; empty where it is anything else."""
        value = self.attrs.get(name)
        plain = isinstance(value, list) and all(type(item) is int for item in value)
        return tuple(value) if plain and isinstance(value, list) else ()

    @cached_property
    def shapes(self) -> Shapes:
        """Shapes of operands and outputs, one after another; unknown ones are left out."""
        return tuple(
            tuple(shape) for shape in (*self._parts[4], *self._parts[6]) if shape is not None
        )

    @property
    def outputs(self) -> int:
        """The number of shapes that belong to outputs."""
        return sum(shape is not None for shape in self._parts[6])

    @cached_property
    def dtypes(self) -> tuple[str, ...]:
        """Dtypes of the operands."""
        return tuple(map(str, self._parts[5]))

    @property
    def op(self) -> str:
        """The key without the kind of device, as text."""
        return json.dumps(self._parts[1:])

    @property
    def size(self) -> float:
        """The bytes that the op touches, or a tenth of its FLOPs where that is more (devices become
        compute-bound at about ten FLOPs a byte). 0 where the op's kind is not known.
        """
        if self.load is None:
            return 0.0
        return float(max(self.load.read + self.load.written, self.load.flops // 10))

    @property
    def measured(self) -> bool:
        """Whether the row says that it was measured."""
        return bool(self.details.get("src", "measured") == "measured")

    @cached_property
    def device_ns(self) -> float:
        """The op's time on its device in ns: its kernels and their launch gaps where the row has
        them, else the median of the calls.
        """
        return float(self._row.device_seconds(pace_of(self.spec)) * 10**9)

    @cached_property
    def _row(self) -> Row:
        return Row(self.key, Fraction(self.p50) / 10**9, details=self.details)

    @property
    def tells_kernels(self) -> bool:
        """Whether the row has the time of its kernels, which were run with warm caches."""
        return self._row.tells_kernels

    def time(self, name: str) -> float | None:
        """Another number of ``t_ns``, by name; None where it is missing or not a number."""
        return number(self.details["t_ns"].get(name))

    @cached_property
    def load(self) -> Load | None:
        """The load of the op; None where its kind is not known."""
        return load_of(self.key)

    @cached_property
    def ideal(self) -> tuple[float, float] | None:
        """Nanoseconds at the peak FLOP/s and at the peak bandwidth of the datasheet; None where the
        op's load or the datasheet is not known.
        """
        if self.load is None or self.spec is None or not is_covered(self.load, self.spec):
            return None
        compute, memory = ideal_seconds(self.load, self.spec)
        return compute * 1e9, memory * 1e9

    def __str__(self) -> str:
        operands = [str(shape) for shape in self._parts[4] if shape is not None]
        more = f"x({len(operands) - SHOWN} more)" if len(operands) > SHOWN + 1 else ""
        shown = operands[:SHOWN] if more else operands
        return " ".join(part for part in (self.kind, "x".join(shown) + more, self.phase) if part)


@dataclass(frozen=True, eq=False)
class Sheet:
    """A profile's file, the fields of its header, its rows, and the hash of the lines of its
    rows.
    """

    file: str
    header: Mapping[str, Any]
    samples: Sequence[Sample]
    sha256: str

    def field(self, path: str) -> Any:
        """A field of the header by its path ("step.ratio"); None where it is missing."""
        value: Any = self.header
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    @cached_property
    def by_op(self) -> dict[tuple[str, str], Sample]:
        """Rows by (kind of device, op)."""
        return {(sample.device, sample.op): sample for sample in self.samples}


def read_sheet(file: str | os.PathLike[str]) -> Sheet:
    """The sheet of a profile's file. Raises InputError."""
    profile = read_profile(file)
    specs = {kind: read_device(kind) for kind in profile.device_kinds if kind in device_names()}
    samples = [
        Sample(row.key, float(row.seconds * 10**9), row.details, specs.get(json.loads(row.key)[0]))
        for row in profile.rows.values()
    ]
    header = profile.header.get("header", profile.header)
    if not isinstance(header, Mapping):
        raise InputError("header: must be an object", os.fspath(file))
    return Sheet(os.fspath(file), header, samples, _hash_of_rows(file, bool(profile.header)))


def _hash_of_rows(file: str | os.PathLike[str], has_header: bool) -> str:
    if os.fspath(file) == "-":
        return ""  # stdin cannot be read a second time
    lines = read_text(file).splitlines(keepends=True)
    return hashlib.sha256("".join(lines[1 if has_header else 0 :]).encode()).hexdigest()


def number(value: Any) -> float | None:
    """A number as a float; None for anything else."""
    is_number = isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)
    return float(value) if is_number else None


def examples(samples: Iterable[Any]) -> str:
    """The first few samples as text, and the number of the others."""
    shown = list(samples)
    more = f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else ""
    return "; ".join(map(str, shown[:SHOWN])) + more
