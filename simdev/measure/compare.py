"""Compares a measured step with its simulation on the one device that was measured.

``simdev profile`` calls it when a profile is done. ``profiles``, ``steps`` and ``host`` write the
header's fields that it reads. It needs no PyTorch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import log
from pathlib import Path
from typing import Any

from ..costs import CostModel, Profile
from ..costs.dispatch import phase_share
from ..execution.scenario import Scenario
from ..files.graph import read_graph
from ..files.profile import read_profile
from ..files.writing import write_text
from ..ground.errors import InputError
from ..ground.units import PS_PER_SECOND
from ..nouns.cluster import Cluster, Device, Host
from ..nouns.graph import PHASES, Graph
from ..nouns.semantics import traits_of
from ..nouns.strategy import Order, Strategy
from ..report import Report, run


@dataclass(frozen=True, slots=True)
class Comparison:
    """A training step as simulated from its operators and as measured in the same run, in seconds.

    ``simulated_s`` and its signed ``error`` (simulated / measured - 1) come from the operators
    alone. ``with_host_s`` is the step simulated with the host's times in the profile; ``host``
    holds these, in seconds by phase (None: the profile has none, and both simulations agree). They
    were measured in this very step, so ``with_host_s`` agrees with it whatever the operators take.
    ``held_out_s`` is the step simulated with the host's times of another batch of the same run,
    ``tried`` (both None: there is no other batch). ``device`` is the kind that was measured,
    ``clock`` the timer ("cpu" or "cuda"), ``known`` the share of the simulated time that comes from
    rows of the profile, ``too_noisy`` the profile's mark.
    """

    model: str
    batch: int | None
    device: str
    clock: str
    simulated_s: float
    measured_s: float
    known: float
    too_noisy: bool
    with_host_s: float
    host: Mapping[str, float] | None = None
    held_out_s: float | None = None
    tried: int | None = None

    @property
    def error(self) -> float:
        """The signed relative error of the simulation from the operators alone."""
        return self.simulated_s / self.measured_s - 1

    @property
    def host_error(self) -> float | None:
        """The signed relative error of the simulation with another batch's host times (None: no
        other batch). Where the profile has no host times, the error of the operators alone.
        """
        if self.host is None:
            return self.error
        return None if self.held_out_s is None else self.held_out_s / self.measured_s - 1


SMALL, LARGE, WHOLE = 0.05, 0.15, 0.99
"""Thresholds (our choice): the error that asks for advice, the error that counts as large, and the
share of the op time from which a step counts as wholly measured.
"""


def advice(comparison: Comparison) -> Iterator[str]:
    """Advice on the error of a comparison, by its size and cause, the surest cause first."""
    if comparison.too_noisy:
        yield "noisy: the machine was busy; measure again with nothing else running"
    if comparison.known < WHOLE:
        yield (
            f"unmeasured: {1 - comparison.known:.0%} of the op time is estimated; a greater "
            "--seconds measures the rest"
        )
    if comparison.error < -LARGE:
        share = f"operators fill {1 + comparison.error:.0%} of the step"
        if comparison.host is None:
            yield f"host-bound: {share}, and nothing is known of its host; profile it anew"
        else:
            faster = ", CUDA graphs or torch.compile" if comparison.clock == "cuda" else ""
            yield (
                f"host-bound: {share}; keep the host in scenarios of it, and make the step faster "
                f"by a greater --batch{faster}"
            )
    left = comparison.host_error
    if comparison.too_noisy or comparison.known < WHOLE or left is None or abs(left) <= SMALL:
        return
    if left > 0:
        yield (
            "slower than measured: operators alone are colder than in the step, or overlap there; "
            "try a greater --batch, or fit the scenario to a trace (simdev calibrate)"
        )
    elif comparison.host is not None or comparison.error >= -LARGE:
        yield (
            "faster than measured: the step waits for what is no operator, as copies or .item(); "
            "look at its trace (simdev import TRACE)"
        )


def compare(
    profile: str | os.PathLike[str], graph: str | os.PathLike[str] | None = None
) -> Comparison:
    """Simulates the step of a profile's model on one device of its kind, with ops in program order.

    ``graph`` is the file of the model's graph (None: the profile's header names it). Raises
    InputError for a profile without a measured step, or without its graph.
    """
    rows, file = read_profile(profile), os.fspath(profile)
    header = rows.header.get("header", {})
    if not has_step(header):
        raise InputError(
            "header: tells no measured step of a device (step.measured_step_s, device.kind)", file
        )
    path, whole = _run_of(header, Path(profile), graph)
    phases = _phases(header)
    read = read_graph(path)
    alone = _simulated(rows, read, header, None)
    host = Host(**_host_fields(header)) if phases else None
    with_host = alone if host is None else _simulated(rows, read, header, host)
    other = _other_run(header, path, whole) if phases else None
    held_out = None if other is None else _simulated(rows, _hosted(read, other), header, host)
    return Comparison(
        model=str(header.get("model", Path(profile).name)),
        batch=whole.get("batch"),
        device=header["device"]["kind"],
        clock="cuda" if "cuda" in header["device"] else "cpu",
        simulated_s=alone.step_ps / PS_PER_SECOND,
        measured_s=float(whole["step"]["measured_step_s"]),
        known=alone.costs.get("given", 0.0) + alone.costs.get("measured", 0.0),
        too_noisy=bool(header.get("noise", {}).get("too_noisy")),
        with_host_s=with_host.step_ps / PS_PER_SECOND,
        host=phases,
        held_out_s=None if held_out is None else held_out.step_ps / PS_PER_SECOND,
        tried=None if other is None else other.get("batch"),
    )


def _other_run(header: Any, graph: Path, whole: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Another run of the profile that has host times: the one whose batch is nearest to that of
    this graph. With its own host times the graph's step would agree in any case.
    """
    others = [
        run
        for run in header.get("runs", ())
        if Path(run["graph"]).name != graph.name and _phases(run) is not None
    ]
    batch = whole.get("batch") or 1
    return min(others, key=lambda run: abs(log((run.get("batch") or 1) / batch)), default=None)


def _hosted(graph: Graph, run: Mapping[str, Any]) -> Graph:
    """The graph with host times for its ops: the mean of another run's ops of the same phase."""
    shares = {phase: phase_share(run["host"], phase) or Fraction(0) for phase in PHASES}
    ops = tuple(
        op
        if op.host_time is not None or traits_of(op.kind).leaf is not None
        else replace(op, host_time=shares[op.phase])
        for op in graph.ops
    )
    return replace(graph, ops=ops)


def write_scenario(
    profile: str | os.PathLike[str], graph: str | os.PathLike[str] | None = None
) -> Path:
    """Writes the scenario of the step that ``compare`` simulates, beside the profile; returns its
    path. Raises InputError as ``compare`` does, OSError where it cannot write.
    """
    rows, folder = read_profile(profile), Path(profile).parent
    header = rows.header.get("header", {})
    path, _ = _run_of(header, Path(profile), graph)
    device: dict[str, Any] = {"name": "device:0", "kind": header["device"]["kind"]}
    if _phases(header):
        device["host"] = _host_fields(header)
    scenario = {
        "version": 1,
        "graph": os.path.relpath(path, folder),
        "cluster": {"version": 1, "name": f"1x-{device['kind']}", "devices": [device], "links": []},
        "profile": [Path(profile).name],
        "strategy": {"placement": {"*": "device:0"}, "order": "program"},
    }
    name = path.name.removesuffix(".gz").removesuffix(".json")
    target = folder / f"{name}.scenario.json"
    write_text(target, json.dumps(scenario, indent=1) + "\n")
    return target


def _run_of(
    header: Any, profile: Path, graph: str | os.PathLike[str] | None
) -> tuple[Path, Mapping[str, Any]]:
    """The file of a graph that a profile was measured with, and the header's entries about its
    step. Without a ``graph`` these are of the first batch.
    """
    if graph is None:
        if not isinstance(header.get("graph"), str):
            raise InputError(
                "header.graph: missing, the file of the graph whose step was measured",
                os.fspath(profile),
            )
        return profile.parent / header["graph"], header
    runs = {Path(run["graph"]).name: run for run in header.get("runs", ())}
    return Path(graph), runs.get(Path(graph).name, header)


def _phases(header: Any) -> Mapping[str, float] | None:
    """The host's seconds by phase; None where the header lacks them."""
    try:
        return {phase: float(header["host"]["phases"][phase]["host_s"]) for phase in PHASES}
    except (KeyError, TypeError, ValueError):
        return None


def _host_fields(header: Any) -> dict[str, Any]:
    """The fields, in a cluster's format, of the host of the measured device. ``ahead`` is set for a
    CPU, which is its own host and cannot run ahead.
    """
    ahead = header["host"].get("ahead")
    return {"mode": "eager"} | ({} if ahead is None else {"ahead": ahead})


def _simulated(rows: Profile, graph: Graph, header: Any, host: Host | None) -> Report:
    kind = header["device"]["kind"]
    cluster = Cluster(f"1x-{kind}", (Device("device:0", kind, host=host),))
    # Program order, as the step ran when it was measured.
    strategy = Strategy({"*": "device:0"}, Order("program"))
    return run(Scenario(graph, cluster, CostModel(rows), strategy))


def has_step(header: Any) -> bool:
    """Whether the header of a profile has a measured step."""
    try:
        measured, kind = header["step"]["measured_step_s"], header["device"]["kind"]
    except (TypeError, KeyError):
        return False
    return isinstance(measured, (int, float)) and measured > 0 and isinstance(kind, str)
