"""The knobs of a scenario, and the scenario with knobs turned: bandwidth, latency, memory and speed
of its machines by a factor, microbatches by their number.

Machines are changed by ``execution/changes.py``, as for what-ifs. A new knob is a name here, its
row in ``knobs_of`` and its change in ``turned``; the page draws whatever knobs there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

from ...execution.changes import with_links, with_memories, with_microbatches
from ...execution.scenario import Scenario
from ...files.reading import shown
from ...ground.errors import refuse
from ...nouns.graph import Graph

BANDWIDTH, LATENCY, MEMORY, SPEED, MICROBATCHES = (
    "bandwidth", "latency", "memory", "speed", "microbatches",
)  # fmt: skip
NUMBERS = (int, float, Decimal)  # files and requests are read exactly
RANGE = 8  # a factor goes from 1 / RANGE to RANGE
MOST_MICROBATCHES = 256

Settings = Mapping[str, float]
"""The value of each knob that is turned, by its name."""


@dataclass(frozen=True, slots=True)
class Knob:
    """A slider from ``least`` to ``most``; ``value`` is its place for the unchanged scenario.

    A ``factor`` may be any number between and is shown as "x 2"; other knobs are whole numbers.
    """

    name: str
    label: str
    least: float
    most: float
    value: float = 1
    factor: bool = True


def knobs_of(scenario: Scenario) -> Iterator[Knob]:
    """The knobs that a scenario has."""
    cluster, pipeline = scenario.cluster, scenario.strategy.pipeline
    if cluster.links:
        yield _factor(BANDWIDTH, "Bandwidth of all links")
    if any(link.latency for link in cluster.links):
        yield _factor(LATENCY, "Latency of all links")
    if any(device.memory is not None for device in cluster.devices):
        yield _factor(MEMORY, "Memory of every device")
    # Parts of ops, and a large model's kernels, have times that no knob of whole ops changes.
    if isinstance(scenario.graph, Graph) and not scenario.strategy.splits:
        yield _factor(SPEED, "Speed of every device")
    if pipeline is not None and pipeline.table is None:
        most = max(MOST_MICROBATCHES, pipeline.microbatches)
        yield Knob(MICROBATCHES, "Microbatches", 1, most, pipeline.microbatches, factor=False)


def _factor(name: str, label: str) -> Knob:
    return Knob(name, label, 1 / RANGE, RANGE)


def checked(knobs: tuple[Knob, ...], settings: Mapping[str, Any]) -> dict[str, Fraction]:
    """The settings as exact numbers, each the name of a knob with a value within its range.

    Raises InputError.
    """
    by_name = {knob.name: knob for knob in knobs}
    problems, exact = [], dict[str, Fraction]()
    for name, value in settings.items():
        knob = by_name.get(name)
        if knob is None:
            problems.append(f"settings.{shown(name)}: there are {', '.join(by_name) or 'none'}")
        elif type(value) not in (NUMBERS if knob.factor else (int,)):
            noun = "a number" if knob.factor else "a whole number"
            problems.append(f"settings.{name}: must be {noun}, got {shown(value)}")
        elif not knob.least <= value <= knob.most:  # NaN is in no range
            problems.append(
                f"settings.{name}: must be from {knob.least:g} to {knob.most:g}, got {shown(value)}"
            )
        else:
            exact[name] = Fraction(value)
    refuse(problems)
    return exact


def turned(scenario: Scenario, settings: Mapping[str, Fraction]) -> Scenario:
    """The scenario with other machines and microbatches. ``speed`` is not applied here: Explorer
    changes the op times where they are prepared. Raises InputError.
    """
    wider, later, larger = (
        settings.get(name, Fraction(1)) for name in (BANDWIDTH, LATENCY, MEMORY)
    )
    cluster = with_memories(with_links(scenario.cluster, wider, later), larger)
    changed = scenario if cluster is scenario.cluster else replace(scenario, cluster=cluster)
    count = settings.get(MICROBATCHES)
    return changed if count is None else with_microbatches(changed, int(count))
