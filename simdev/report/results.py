"""The results of a sweep as data: a table of all rows, and what can be drawn against what."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..sweep.answer import COLUMNS
from .sheet import BYTES, NUMBER, RATE, SHARE, TEXT, TIME

if TYPE_CHECKING:
    import pandas as pd

FIRST = (
    "status",
    "reason",
    "step_time_s",
    "memory_excess_bytes",
    "peak_bytes",
    "utilization",
    "exposed_communication",
)
LAST = ("engine", "key", "simdev")
SHARES = ("utilization", "bubble", "exposed_communication", "cost_estimated", "cost_rel_err")
# simdev.sweep writes a ' before a text in CSV that begins so
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def results_data(results: pd.DataFrame, title: str) -> dict[str, Any]:
    """All that the page of a sweep shows; columns without any value are left out."""
    names = [str(name) for name in results if results[name].notna().any()]
    names.sort(key=_rank)
    columns = {name: _values(results[name], name) for name in names}
    kinds = {name: _kind(name, values) for name, values in columns.items()}
    statuses = results["status"].value_counts(sort=False).items()
    told = ", ".join(f"{count:,} {status}" for status, count in statuses)
    return {
        "page": "results",
        "title": title,
        "fits": True,
        "headline": f"{len(results):,} scenarios: {told}" if len(results) else "No scenarios",
        "facts": [],
        "notes": [],
        "columns": [{"title": name, "as": kinds[name], "values": columns[name]} for name in names],
        "axes": _axes(results, kinds, columns),
    }


def _rank(name: str) -> int:
    """The scenario and what was set, then what is asked for most, then the rest."""
    if name in FIRST:
        return 1 + FIRST.index(name)
    return 99 if name in LAST else 50 if name in COLUMNS else 0


def _values(column: pd.Series[Any], name: str) -> list[Any]:
    """JSON's own values; times in ps, so that they are shown like all others."""
    values = [_plain(value) for value in column.tolist()]
    is_time = name.endswith("_s") and not name.endswith("_per_s") and _numeric(values)
    return [None if value is None else value * 1e12 for value in values] if is_time else values


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value[1:] if value.startswith("'") and value[1:].startswith(FORMULA) else value
    if isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return None if value is None or type(value).__name__ in ("NAType", "NaTType") else str(value)


def _numeric(values: list[Any]) -> bool:
    return all(
        isinstance(value, (int, float)) and not isinstance(value, bool)
        for value in values
        if value is not None
    )


def _kind(name: str, values: list[Any]) -> str:
    if not _numeric(values):
        return TEXT
    if name.endswith("_bytes_per_s"):
        return RATE
    if name.endswith("_s") and not name.endswith("_per_s"):
        return TIME
    return BYTES if name.endswith("_bytes") else SHARE if name in SHARES else NUMBER


def _axes(
    results: pd.DataFrame, kinds: dict[str, str], columns: dict[str, list[Any]]
) -> dict[str, str]:
    """What the scatter plot shows first: the step time over the first number that was set, coloured
    by another.
    """
    names = [str(name) for name in results]
    was_set = (
        names[names.index("scenario") + 1 : names.index("status")] if names.index("status") else []
    )
    varied = [name for name in was_set if name in columns and len(set(map(str, columns[name]))) > 1]
    x = next((name for name in varied if kinds[name] != TEXT), None)
    if x is None:
        x = "ops" if len(set(map(str, columns.get("ops", [])))) > 1 else "scenario"
    others = [name for name in varied if not x.startswith(name)]
    return {"x": x, "y": "step_time_s", "colour": others[0] if others else "status"}
