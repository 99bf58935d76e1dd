"""Result, what a search found and how, and the independent confirmation of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..check import Violation, check
from ..oracle import Cost, Oracle, cost_of
from ..steps import simulate_strategy
from ..strategy import Strategy
from .space import capacities, unavoidable

if TYPE_CHECKING:
    import pandas as pd

    from .trial import Point


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """The best strategy that a search found, its cost, and how it came there.

    - ``objectives``: ``step_time_s``, and what else the method minimises (``max_load_ms``).
    - ``points``: when the best so far got better; ``curve`` is the same as a DataFrame.
    - ``provenance``: method, seed, budget, prepare, versions, evaluations, cpu_seconds, seconds,
      and why it ended.
    - ``details``: what else the method tells, by name.
    - ``obstacles``: where nothing fits, one line for each thing that does not.
    """

    strategy: Strategy
    cost: Cost
    objectives: Mapping[str, float]
    points: tuple[Point, ...]
    provenance: Mapping[str, Any]
    details: Mapping[str, Any]
    obstacles: tuple[str, ...] = ()

    @property
    def curve(self) -> pd.DataFrame:
        """The best so far: evaluation, cpu_seconds, step_time_s, memory_excess_bytes, a row for
        each improvement.

        The last row is the end of the search.
        """
        import pandas as pd

        rows = [
            (one.evaluation, one.cpu_seconds, one.step_ps / 1e12, one.memory_excess)
            for one in self.points
        ]
        last = (self.provenance["evaluations"], self.provenance["cpu_seconds"], *rows[-1][2:])
        names = ["evaluation", "cpu_seconds", "step_time_s", "memory_excess_bytes"]
        return pd.DataFrame([*rows, last] if last[0] > rows[-1][0] else rows, columns=names)

    def to_json(self) -> dict[str, Any]:
        """Plain numbers and texts."""
        curve = self.curve.to_dict("list")
        return {
            **self.objectives,
            "feasible": self.cost.feasible,
            "memory_excess_bytes": self.cost.memory_excess,
            "peak_bytes": list(self.cost.peaks),
            **self.provenance,
            "details": dict(self.details),
            "obstacles": list(self.obstacles),
            "curve": {str(name): column for name, column in curve.items()},
        }

    def __repr__(self) -> str:
        told = ", ".join(f"{name} {value:.6g}" for name, value in self.objectives.items())
        fits = "" if self.cost.feasible else f", {self.cost.memory_excess} bytes over"
        return (
            f"Result({self.provenance['method']}: {told}{fits}, "
            f"{self.provenance['evaluations']} evaluations)"
        )


def confirm(oracle: Oracle, result: Result) -> tuple[Violation, ...]:
    """What the checker finds in the reference engine's trace, and where that is not the cost told.

    Where steps follow one another the trace is of several, and the step time their period.
    """
    trace, _ = simulate_strategy(oracle.prepared, result.strategy, "simpy", oracle.steps)
    found, cost, told = list(check(trace.task_graph, trace)), cost_of(trace), result.cost
    if cost.step_ps != told.step_ps:
        message = f"the step takes {cost.step_ps} ps, the search says {told.step_ps}"
        found.append(Violation("step", ("step",), message))
    if cost.peaks != told.peaks:
        message = f"the peaks are {cost.peaks}, the search says {told.peaks}"
        found.append(Violation("peak", ("peaks",), message))
    return tuple(found)


def obstacles(oracle: Oracle, cost: Cost) -> tuple[str, ...]:
    """What does not fit in a step of this cost, and what could not, however it was placed."""
    if cost.feasible:
        return ()
    found = [
        f"{device.name}: needs {peak} bytes at its peak, has {limit}"
        for device, peak, limit in zip(
            oracle.cluster.devices, cost.peaks, capacities(oracle), strict=True
        )
        if 0 <= limit < peak
    ]
    return (*found, *unavoidable(oracle))
