"""Result: the best strategy of a search and how the search ended; its independent confirmation.

run.py makes it. ``record_of`` in ``comparison/runs.py`` writes it to a journal and ``run_of`` reads
it back, so a new field belongs there, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..execution.check import Violation, check
from ..execution.period import simulate_strategy
from ..nouns.strategy import Strategy
from ..oracle import Cost, Oracle, cost_of
from .policy import SavedPolicy
from .trial import REFUSED, Point

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """The best strategy of a search, its cost, and how the search got there.

    - ``objectives``: ``step_time_s``, and whatever else the method minimises (``max_load_ms``).
    - ``points``: the improvements of the best so far; ``curve`` has them as a DataFrame.
    - ``provenance``: method, seed, budget, prepare, groups (the number that are placed after the
      preparations; None where ops are split), versions, evaluations, cpu_seconds, seconds, and why
      the search ended.
    - ``details``: further figures of the method, by name.
    - ``obstacles``: where nothing fits, a line for each thing that does not.
    - ``policy``: the policy that a learner had at the end.
    """

    strategy: Strategy
    cost: Cost
    objectives: Mapping[str, float]
    points: tuple[Point, ...]
    provenance: Mapping[str, Any]
    details: Mapping[str, Any]
    obstacles: tuple[str, ...] = ()
    policy: SavedPolicy | None = None

    @property
    def curve(self) -> pd.DataFrame:
        """The best so far, a row for each improvement: evaluation, cpu_seconds, step_time_s,
        memory_excess_bytes.

        The last row is the end of the search.
        """
        import pandas as pd

        rows = [
            (point.evaluation, point.cpu_seconds, point.step_ps / 1e12, point.memory_excess)
            for point in self.points
        ]
        last = (self.provenance["evaluations"], self.provenance["cpu_seconds"], *rows[-1][2:])
        names = ["evaluation", "cpu_seconds", "step_time_s", "memory_excess_bytes"]
        return pd.DataFrame([*rows, last] if last[0] > rows[-1][0] else rows, columns=names)

    def to_json(self) -> dict[str, Any]:
        """The result as plain numbers and texts."""
        return {
            **self.objectives,
            "feasible": self.cost.feasible,
            "memory_excess_bytes": self.cost.memory_excess,
            "peak_bytes": list(self.cost.peaks),
            **self.provenance,
            "details": dict(self.details),
            "obstacles": list(self.obstacles),
            "curve": self.curve.to_dict("list"),
        }

    def __repr__(self) -> str:
        values = ", ".join(f"{name} {value:.6g}" for name, value in self.objectives.items())
        fits = "" if self.cost.feasible else f", {self.cost.memory_excess} bytes over"
        method, evaluations = self.provenance["method"], self.provenance["evaluations"]
        return f"Result({method}: {values}{fits}, {evaluations} evaluations)"


def present_cost(oracle: Oracle, strategy: Strategy) -> Cost | None:
    """The cost of the strategy that a scenario already has; None where that strategy is
    impossible.
    """
    try:
        return oracle(strategy)
    except REFUSED:
        return None


def confirm(oracle: Oracle, result: Result) -> tuple[Violation, ...]:
    """The checker's objections to the reference engine's trace, and where this trace's cost differs
    from the result's.

    Where steps follow one another, the trace has several steps, and the step time is their period.
    """
    trace, _ = simulate_strategy(oracle.prepared, result.strategy, "simpy", oracle.steps)
    violations, cost = list(check(trace.task_graph, trace)), cost_of(trace)
    if cost.step_ps != result.cost.step_ps:
        message = f"the step takes {cost.step_ps} ps, the search says {result.cost.step_ps}"
        violations.append(Violation("step", ("step",), message))
    if cost.peaks != result.cost.peaks:
        message = f"the peaks are {cost.peaks}, the search says {result.cost.peaks}"
        violations.append(Violation("peak", ("peaks",), message))
    return tuple(violations)
