"""A measured step beside the simulated one, on the one device that was measured."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ..cluster import Cluster, Device
from ..costs import CostModel
from ..errors import InputError
from ..files.graph import read_graph
from ..files.profile import read_profile
from ..report import run
from ..scenario import Scenario
from ..strategy import Order, Strategy
from ..units import PS_PER_SECOND


@dataclass(frozen=True, slots=True)
class Comparison:
    """A training step as simulated from its operators and as measured in the same run, in seconds.

    ``error`` is signed: simulated / measured - 1. ``device`` is the kind that was measured,
    ``clock`` how ("cpu" or "cuda"), ``known`` the share of the simulated time that the profile's
    rows told, ``too_noisy`` the profile's mark.
    """

    model: str
    batch: int | None
    device: str
    clock: str
    simulated_s: float
    measured_s: float
    known: float
    too_noisy: bool

    @property
    def error(self) -> float:
        """Signed relative error of the simulated step."""
        return self.simulated_s / self.measured_s - 1


def compare(
    profile: str | os.PathLike[str], graph: str | os.PathLike[str] | None = None
) -> Comparison:
    """Simulates the step of a profile's model on one device of its kind, ops in program order.

    ``graph`` is the file of the model's graph (None: the profile's header names it). Raises
    InputError: a profile without a measured step, or without its graph.
    """
    rows, file = read_profile(profile), os.fspath(profile)
    header = rows.header.get("header", {})
    if not _has_step(header):
        raise InputError(
            "header: tells no measured step of a device (step.measured_step_s, device.kind)", file
        )
    if graph is None:
        if not isinstance(header.get("graph"), str):
            raise InputError(
                "header.graph: missing, the file of the graph whose step was measured", file
            )
        graph = Path(profile).parent / header["graph"]
    kind = header["device"]["kind"]
    cluster = Cluster(f"1x-{kind}", (Device("device:0", kind),))
    # Program order, as the step ran when it was measured.
    strategy = Strategy({"*": "device:0"}, Order("program"))
    report = run(Scenario(read_graph(graph), cluster, CostModel((rows,)), strategy))
    return Comparison(
        model=str(header.get("model", Path(profile).name)),
        batch=header.get("batch"),
        device=kind,
        clock="cuda" if "cuda" in header["device"] else "cpu",
        simulated_s=report.step_ps / PS_PER_SECOND,
        measured_s=float(header["step"]["measured_step_s"]),
        known=report.costs.get("given", 0.0) + report.costs.get("measured", 0.0),
        too_noisy=bool(header.get("noise", {}).get("too_noisy")),
    )


def has_step(profile: str | os.PathLike[str]) -> bool:
    """Whether a profile tells a measured step. Raises InputError for a file that is no profile."""
    return _has_step(read_profile(profile).header.get("header", {}))


def _has_step(header: Any) -> bool:
    try:
        measured, kind = header["step"]["measured_step_s"], header["device"]["kind"]
    except (TypeError, KeyError):
        return False
    return isinstance(measured, (int, float)) and measured > 0 and isinstance(kind, str)


def median_error(comparisons: Iterable[Comparison]) -> float:
    """Median of the unsigned errors. Raises statistics.StatisticsError where there is none."""
    return median(abs(comparison.error) for comparison in comparisons)
