"""Datasheets of devices of the kind ``gpu``, the cost model of one, and rows of profiles."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from simdev.costs import CostModel, DeviceSpec, Efficiency

SPEC = DeviceSpec(
    "gpu", {"bfloat16": Fraction(10**14)}, Fraction(10**12), launch=Fraction(1, 10**6),
    efficiency={"default": Efficiency(Fraction(1, 2), Fraction(3, 4))},
)  # fmt: skip
"""A device that reaches half of 100 TFLOP/s and three quarters of 1 TB/s, with launches of 1 us."""

COSTS = CostModel(specs=(DeviceSpec("gpu", {"float32": Fraction(10**12)}, Fraction(10**11)),))
"""The costs of a device that reaches all of 1 TFLOP/s and 100 GB/s, with launches of no time."""


def row_of(
    kind: str,
    reads: Sequence[Sequence[int]] = (),
    makes: Sequence[Sequence[int]] = (),
    p50: int = 1000,
    dtype: str = "float32",
    **fields: Any,
) -> dict[str, Any]:
    """A row of a profile in the format of files: a forward op that reads and makes tensors of these
    shapes took ``p50`` ns on a ``gpu``.
    """
    shapes = {"in": [*reads], "dt": [dtype] * len(reads), "out": [*makes]}
    measured = {"dev": "gpu", "phase": "fwd", "t_ns": {"p50": p50}, "src": "measured"}
    return {"v": 1, "op": kind, "attrs": {}, **shapes, **measured, **fields}
