"""Profiles made by hand: rows on the roofline of their device, and their header."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from simdev.measure.doctor import examine

Row = dict[str, Any]
SPEEDS = {"epyc-1core": (100e9, 47e9), "h100-sxm": (67e12, 3.35e12)}
"""FLOP/s in float32 and bytes/s of the datasheets."""


def row(
    op: str,
    inputs: Sequence[Sequence[int]],
    out: Sequence[Sequence[int]],
    p50: float,
    phase: str = "fwd",
    dev: str = "epyc-1core",
    attrs: dict[str, Any] | None = None,
    spread: float = 0.05,
    reps: int | None = 50,
    **more: Any,
) -> Row:
    p10, p90 = round(p50 * (1 - spread / 2)), round(p50 * (1 + spread / 2))
    times = {"p10": p10, "p50": round(p50), "p90": p90, "min": p10, "n": reps}
    return {
        "v": 1,
        "op": op,
        "attrs": attrs or {},
        "in": inputs,
        "dt": ["float32"] * len(inputs),
        "out": out,
        "dev": dev,
        "phase": phase,
        "t_ns": {name: value for name, value in times.items() if value is not None},
        "src": "measured",
        "meth": "thread-cpu-time+rotate",
        **more,
    }


def matmul(
    m: int, k: int, n: int, slowdown: float = 1.5, dev: str = "epyc-1core", **more: Any
) -> Row:
    """A row of a product that takes ``slowdown`` times the datasheet's bound, plus a launch."""
    peak, bandwidth = SPEEDS[dev]
    ideal = max(2 * m * n * k / peak, 4 * (m * k + k * n + m * n) / bandwidth)
    return row("matmul", [[m, k], [k, n]], [[m, n]], 2000 + 1e9 * ideal * slowdown, dev=dev, **more)


def sound(dev: str = "epyc-1core", **more: Any) -> list[Row]:
    """Rows without any fault."""
    return [
        matmul(m, k, 512, dev=dev, **more) for m in (16, 64, 256, 1024) for k in (64, 512, 2048)
    ]


def header(rows: Iterable[Row], **more: Any) -> dict[str, Any]:
    text = "".join(json.dumps(one) + "\n" for one in rows)
    return {"sha256_of_rows": hashlib.sha256(text.encode()).hexdigest(), **more}


Writer = Callable[..., Path]


def checks(*files: Path) -> list[str]:
    return [warning.check for warning in examine(files)]


# Units.


def scaled(rows: Iterable[Row], factor: float) -> list[Row]:
    return [
        one | {"t_ns": {k: v if k == "n" else round(v * factor) for k, v in one["t_ns"].items()}}
        for one in rows
    ]
