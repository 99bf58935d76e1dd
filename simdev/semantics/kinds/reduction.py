"""Reductions along dimensions, and what needs whole dimensions: softmax, cumulative sums,
statistics.
"""

from __future__ import annotations

from typing import Literal

from ..description import Access, Call, Describer, Description, Entry, Output, per
from ..registry import register
from .common import dimensions, numbered

Reducer = Literal["sum", "max", "min", "prod"]

REDUCTIONS: dict[str, tuple[int, Reducer]] = {
    "sum": (1, "sum"),
    "mean": (1, "sum"),
    "amax": (1, "max"),
    "amin": (1, "min"),
    "prod": (1, "prod"),
    "all": (1, "min"),
    "any": (1, "max"),
}
"""Operations an element of x, and how partial results are put together."""

WHOLE = {
    "var": 4,
    "std": 4,
    "logsumexp": 4,
    "argmax": 1,
    "argmin": 1,
    "max": 1,
    "min": 1,
    "norm": 2,
}
"""Reductions whose partial results do not simply add up: their dimensions stay whole."""

ALONG = {"softmax": 5, "log_softmax": 5, "cumsum": 1, "sort": 8, "flip": 0}
"""One slice makes one slice; softmax: maximum, difference, exp, sum, quotient."""


_DTYPES = {"all": "bool", "any": "bool", "argmax": "int64", "argmin": "int64"}


def _reduction(operations: int, reducer: Reducer | None, dtype: str | None = None) -> Describer:
    def describe(call: Call) -> Description:
        x = call.inputs[0]
        dims = dimensions(call.attrs.get("dim"), len(x))
        points = numbered(x, () if reducer else dims)
        kept = [
            (i, axis) for i, axis in enumerate(points) if call.attrs.get("keepdim") or i not in dims
        ]
        index: tuple[Entry, ...] = tuple(0 if i in dims else axis for i, axis in kept)
        over = tuple(points[i] for i in dims) if reducer else ()
        dtypes = [dtype, *["int64"] * (len(call.outputs) - 1)]
        outputs = tuple(Output(index, over, reducer or "sum", told) for told in dtypes)
        return Description(outputs, (Access(points),), (per(operations, *points),))

    return describe


def _along(operations: int) -> Describer:
    def describe(call: Call) -> Description:
        x = call.inputs[0]
        points = numbered(x, dimensions(call.attrs.get("dim"), len(x)))
        outputs = tuple(
            Output(points, dtype="int64" if i else None) for i in range(len(call.outputs))
        )
        return Description(
            outputs, tuple(Access(points) for _ in call.inputs), (per(operations, *points),)
        )

    return describe


for _name, (_count, _reducer) in REDUCTIONS.items():
    register(
        _name,
        _reduction(_count, _reducer, _DTYPES.get(_name)),
        "reduction",
        operands="x",
        outputs="y",
        attributes="dim (all), keepdim",
    )
for _name, _count in WHOLE.items():
    register(
        _name,
        _reduction(_count, None, _DTYPES.get(_name)),
        "reduction",
        operands="x",
        outputs="y, index (int64) or none",
        attributes="dim (all), keepdim",
    )
for _name, _count in ALONG.items():
    _class = (
        "softmax" if "softmax" in _name else "data_movement" if _name == "flip" else "reduction"
    )
    register(_name, _along(_count), _class, operands="x", outputs="y", attributes="dim")
for _name in ("softmax_backward", "log_softmax_backward"):
    register(
        _name, _along(4), "softmax", operands="dy, y", outputs="dx", attributes="dim, input_dtype"
    )
