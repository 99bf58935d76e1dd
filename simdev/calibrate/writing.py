"""A calibrated scenario, or its cluster alone, as files: what was fitted in its place, all else as
it was.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from ..cluster import Cluster
from ..files.cluster import cluster_text
from ..files.reading import PathLike, read_json
from ..files.shape import VERSION, plain
from ..files.writing import time_text, write_text
from ..graph import Op
from ..scenario import graph_of
from ..version import __version__
from .calibration import Calibration
from .parameter import Parameter

PATHS = ("graph", "strategy", "profile", "devices")


def fitted_cluster(calibration: Calibration) -> Cluster:
    """The fitted cluster with the provenance of what was fitted."""
    cluster = calibration.scenario.cluster
    fitted = {(one.on_links, one.quantity) for one in calibration.parameters if one.fitted}
    # What stood for all links, or all devices, stands no more.
    stale = {
        f"links{every}.{quantity}"
        for on_links, quantity in fitted
        for every in ("", ".all_to_all")
        if on_links
    }
    stale |= {"devices.gap"} if (False, "gap") in fitted else set()
    kept = {name: entry for name, entry in cluster.provenance.items() if name not in stale}
    return replace(cluster, provenance={**kept, **_provenance(calibration, False)})


def write_fitted_cluster(calibration: Calibration, path: PathLike) -> None:
    """Write the fitted cluster, whole or not at all. Raises OSError."""
    write_text(path, cluster_text(fitted_cluster(calibration)))


def write_fitted(
    calibration: Calibration, source: PathLike, path: PathLike, place: PathLike | None = None
) -> None:
    """Write the scenario of the file ``source`` with what was fitted, whole or not at all.

    Its cluster stands in it as an object, and so does its graph where efficiencies were fitted: the
    ops of their classes carry times. Other parts stay the files that they were, told from the
    folder of ``place`` (``path`` where that is None: it may be a temporary file). Raises
    InputError, OSError.
    """
    value = read_json(source)
    folder = "" if os.fspath(source) == "-" else os.path.dirname(os.fspath(source))
    target = os.path.dirname(os.fspath(path if place is None else place))
    found: dict[str, Any] = {"version": VERSION} | {key: plain(part) for key, part in value.items()}
    found |= {key: _moved(found[key], folder, target) for key in PATHS if key in found}
    found["cluster"] = json.loads(cluster_text(fitted_cluster(calibration)))
    timed = _timed_ops(calibration)
    if timed:
        found["graph"] = _with_times(value["graph"], folder, timed)
    told = _provenance(calibration, True)
    if told:
        found["provenance"] = found.get("provenance", {}) | told
    lines = ",\n".join(
        f"{json.dumps(key)}: {json.dumps(part, ensure_ascii=False)}" for key, part in found.items()
    )
    write_text(path, f"{{{lines}}}\n")


def _moved(part: Any, folder: str, target: str) -> Any:
    """Paths relative to another folder; names of presets and objects as they are."""
    if isinstance(part, list):
        return [_moved(one, folder, target) for one in part]
    if (
        not isinstance(part, str)
        or os.path.isabs(part)
        or not os.path.exists(os.path.join(folder, part))
    ):
        return part
    return os.path.relpath(os.path.join(folder, part), target or ".")


def _timed_ops(calibration: Calibration) -> dict[str, Op]:
    """The ops that carry fitted times, by name."""
    classes = {
        one.of for one in calibration.parameters if one.fitted and one.quantity == "efficiency"
    }
    ops = (op for op in graph_of(calibration.scenario).ops if isinstance(op.time, Mapping))
    return {op.name: op for op in ops if any(f"{kind}/{op.kind}" in classes for kind in op.time)}  # type: ignore[union-attr]


def _with_times(part: Any, folder: str, timed: Mapping[str, Op]) -> Any:
    graph = plain(part if isinstance(part, dict) else read_json(os.path.join(folder, part)))
    for op in graph["ops"]:
        times = timed[op["name"]].time if op["name"] in timed else None
        if isinstance(times, Mapping):
            op["time"] = {kind: time_text(Fraction(seconds)) for kind, seconds in times.items()}
    return graph


def _provenance(calibration: Calibration, efficiencies: bool) -> dict[str, Any]:
    """Where the fitted numbers come from: those of the cluster, or the efficiencies."""
    return {
        f"{'links' if one.on_links else 'devices'}.{one.of}.{one.quantity}": _told(
            one, calibration.source
        )
        for one in calibration.parameters
        if one.fitted and (one.quantity == "efficiency") is efficiencies
    }


def _told(one: Parameter, source: str) -> dict[str, Any]:
    found = {"value": float(one.value), "kind": "fitted", "spans": one.count}
    return found | {
        "standard_error": one.error,
        "source": f"simdev calibrate {__version__} on {source}",
    }
