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

from ...execution.scenario import graph_of
from ...files.cluster import cluster_text
from ...files.reading import PathLike, read_json
from ...files.scenario import moved
from ...files.shape import VERSION, plain
from ...files.writing import write_text
from ...ground.units import time_text
from ...ground.version import __version__
from ...nouns.cluster import Cluster
from .calibration import Calibration
from .hosts import HostCalibration
from .steps import StepFit


def fitted_cluster(calibration: Calibration) -> Cluster:
    """The fitted cluster with the provenance of what was fitted."""
    cluster = calibration.scenario.cluster
    # What stood for all links, or all devices, stands no more.
    stale = set()
    for parameter in calibration.parameters:
        if parameter.fitted and parameter.on_links:
            stale |= {f"links{every}.{parameter.quantity}" for every in ("", ".all_to_all")}
        elif parameter.fitted and parameter.quantity == "gap":
            stale.add("devices.gap")
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
    written = {"version": VERSION} | moved(plain(value), folder, target)
    # By the writer of clusters, so that both outputs say the same.
    written["cluster"] = json.loads(cluster_text(fitted_cluster(calibration)))
    timed = _timed_ops(calibration)
    if timed:
        written["graph"] = _with_times(value["graph"], folder, timed)
    provenance = _provenance(calibration, True)
    if provenance:
        written["provenance"] = written.get("provenance", {}) | provenance
    _write(path, written)


def write_fitted_steps(
    fit: StepFit, source: PathLike, path: PathLike, place: PathLike | None = None
) -> None:
    """Write the scenario of the file ``source`` with the host times fitted, whole or not at all.

    Paths are told as by ``write_fitted``. Raises InputError, OSError.
    """
    target = os.path.dirname(os.fspath(path if place is None else place))
    folder = os.path.dirname(os.fspath(source))
    written = {"version": VERSION} | moved(plain(read_json(source)), folder, target)
    times = {phase: time_text(time) for phase, time in fit.host_time.items()}
    written["graph"] = {**written["graph"], "host_time": times}
    written["provenance"] = written.get("provenance", {}) | {
        "graph.host_time": {
            "value": times,
            "kind": "fitted",
            "steps": len(fit.names),
            "mean_error": fit.mean_error("fitted"),
            "mean_error_left_out": fit.mean_error("left_out"),
            "source": f"simdev calibrate {__version__} on {fit.source}",
        }
    }
    _write(path, written)


def write_hosted(
    calibration: HostCalibration, source: PathLike, path: PathLike, place: PathLike | None = None
) -> None:
    """Write the scenario of the file ``source`` with a graph whose ops tell their host's times,
    whole or not at all. Raises InputError, OSError.
    """
    value, folder = read_json(source), os.path.dirname(os.fspath(source))
    target = os.path.dirname(os.fspath(path if place is None else place))
    written = {"version": VERSION} | moved(plain(value), folder, target)
    times = {
        op.name: time_text(Fraction(op.host_time))
        for op in graph_of(calibration.scenario).ops
        if isinstance(op.host_time, (int, Fraction))
    }
    written["graph"] = _with_times(value["graph"], folder, times, "host_time")
    _write(path, written)


def _write(path: PathLike, written: Mapping[str, Any]) -> None:
    # A part a line: what people may want to see beside the graph stays legible.
    lines = ",\n".join(
        f"{json.dumps(key)}: {json.dumps(part, ensure_ascii=False)}"
        for key, part in written.items()
    )
    write_text(path, f"{{{lines}}}\n")


def _timed_ops(calibration: Calibration) -> dict[str, dict[str, str]]:
    """The fitted times of ops by kind of device, by the name of the op."""
    fitted = (parameter for parameter in calibration.parameters if parameter.fitted)
    classes = {parameter.of for parameter in fitted if parameter.quantity == "efficiency"}
    return {
        op.name: {kind: time_text(Fraction(seconds)) for kind, seconds in op.time.items()}
        for op in graph_of(calibration.scenario).ops
        if isinstance(op.time, Mapping) and any(f"{kind}/{op.kind}" in classes for kind in op.time)
    }


def _with_times(
    part: Any, folder: str, timed: Mapping[str, str | Mapping[str, str]], field: str = "time"
) -> Any:
    graph = plain(part if isinstance(part, dict) else read_json(os.path.join(folder, part)))
    for op in graph["ops"]:
        op |= {field: timed[op["name"]]} if op["name"] in timed else {}
    return graph


def _provenance(calibration: Calibration, efficiencies: bool) -> dict[str, Any]:
    """Where the fitted numbers come from: those of the cluster, or the efficiencies."""
    return {
        f"{'links' if parameter.on_links else 'devices'}.{parameter.of}.{parameter.quantity}": {
            "value": float(parameter.value),
            "kind": "fitted",
            "spans": parameter.count,
            "standard_error": parameter.error,
            "source": f"simdev calibrate {__version__} on {calibration.source}",
        }
        for parameter in calibration.parameters
        if parameter.fitted and (parameter.quantity == "efficiency") is efficiencies
    }
