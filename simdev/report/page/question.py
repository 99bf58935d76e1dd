"""What a page answers, in a line: which model on which devices, spread how."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePath
from typing import Any

from ...execution.scenario import Scenario
from ...ground.units import format_seconds
from ...nouns.graph import Graph
from ...nouns.strategy import Parallelism, degrees_over_one
from ..report import Report

MAKERS = ("NVIDIA ", "AMD ", "Intel ", "GeForce ", "Tesla ")
"""Words of datasheets that nobody needs to know a device by."""


def question_of(scenario: Scenario, report: Report, strategy: Any = None) -> str:
    """The question of a scenario; ``strategy`` is what its file says of it (a path names it)."""
    name = scenario.graph.name or "a graph"
    return f"{name} on {_devices(scenario, report)}, {_spread(scenario, report, strategy)}"


def answered(question: str, report: Report) -> str:
    """The title of a page: the question, how long the step takes, and whether it fits."""
    verdict = "fits" if report.feasible else "does not fit"
    return f"{question}: {format_seconds(report.seconds)}, {verdict}"


def _devices(scenario: Scenario, report: Report) -> str:
    """How many of which; those of hosts only where nothing else computes."""
    names = {spec.kind: _short(spec.name or spec.kind) for spec in scenario.costs.specs}
    devices = [device for device in scenario.cluster.devices if device.runs_ops]
    chosen = [device for device in devices if not device.is_host] or devices
    kinds = Counter(device.kind for device in chosen)
    pipeline = scenario.strategy.pipeline
    if pipeline is not None and len(kinds) == 1:
        kinds = Counter({kind: min(count, pipeline.devices) for kind, count in kinds.items()})
    return " and ".join(f"{count:,} {names.get(kind, kind)}" for kind, count in kinds.items())


def _short(name: str) -> str:
    name = name.partition(",")[0]  # behind it stands how it was measured
    for word in MAKERS:
        name = name.removeprefix(word)
    return name


def _spread(scenario: Scenario, report: Report, written: Any) -> str:
    """How the step is spread: by the name of its strategy, its degrees, or where its ops are."""
    strategy = scenario.strategy
    if strategy.pipeline is not None:
        return _degrees(strategy.pipeline, isinstance(scenario.graph, Graph))
    if isinstance(written, str) and written != strategy.short:
        name = PurePath(written).name.partition(".")[0]
        return f"{'placement' if strategy.placement else 'strategy'} {name}"
    if strategy.short is not None:
        return strategy.short
    split = "split and " if strategy.partition else ""
    count = len(report.working)
    where = "all of them" if count == len(report.devices) else f"{count:,} of them"
    return f"{split}placed on {'one device' if count == 1 else where}"


def _degrees(pipeline: Parallelism, of_graph: bool) -> str:
    parts = [*degrees_over_one(pipeline.degrees), f"{pipeline.microbatches} microbatches"]
    if pipeline.pp > 1 or of_graph:
        parts.append("own schedule" if pipeline.table else pipeline.schedule)
    return ", ".join(parts)
