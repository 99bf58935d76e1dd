"""The answer of a search, in words.

``search`` prints it, ``train`` takes ENDS from it. The keys of ``details`` are written by the
methods of ``simdev/search`` and ``simdev/learn``; a new key is shown only if a line here reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..ground.units import PS_PER_SECOND, format_bytes, format_seconds

if TYPE_CHECKING:
    from ..oracle import Cost
    from ..search import Result
    from ..search.comparison.runs import References
    from ..search.space import Rank

DIGITS = 6  # digits of times, since the gain of a search is often in the last of them
SHORT = 4  # digits of times that only explain others
ENDS = {
    "done": "ended by itself",
    "budget": "budget spent",
    "time": "time is up",
    "interrupted": "interrupted",
}
PIPELINE = ("period_s", "executed_period_s")  # objectives with lines of their own


@dataclass(frozen=True, slots=True)
class Marks:
    """The figures that a result is compared with: ``references`` (one device, and the scenario's
    own strategy; None: not known), ``least_ps``, a lower bound of all placements (None: none is
    proved), and the result's own ``rank``.
    """

    references: References | None = None
    least_ps: int | None = None
    rank: Rank | None = None

    def to_json(self) -> dict[str, float | None]:
        """Seconds by name."""
        known = self.references
        single, present = (known.single, known.present) if known else (None, None)
        return {
            "present_step_time_s": None if present is None else present.cost.seconds,
            "single_step_time_s": None if single is None else single.cost.seconds,
            "bound_step_time_s": None if self.least_ps is None else self.least_ps / PS_PER_SECOND,
        }


def text_of(result: Result, ops: int, marks: Marks, confirmed: bool) -> str:
    """The lines that a search prints about its result on a graph of ``ops`` ops."""
    from ..report.table import PRESENT

    run, details = result.provenance, result.details
    piped = "placed_stages" in details and details.get("planned", True)
    step = format_seconds(result.objectives["step_time_s"], DIGITS)
    lines = [f"{run['method']}: step time {step}{_of_pipeline(details) if piped else ''}"]
    known = marks.references
    if known is not None and known.present is not None:
        lines.append(f"{PRESENT}: {_seconds(known.present.cost)}")
    if "warm" in details:
        lines += _beginning(result)
    lines += _beside(result, marks)
    if run["groups"] is not None:
        lines.append(_placed(run["groups"], ops, run["prepare"]))
    shown = {"step_time_s", *PIPELINE}
    lines += [
        f"{name}: {value:.6g}" for name, value in result.objectives.items() if name not in shown
    ]
    lines.append(("the placed pipeline " if piped else "") + _fit(result.cost))
    if "stages" in details:
        lines.append(_plan(result.objectives["period_s"], details))
    lines += [
        f"first placement tried: {format_seconds(result.points[0].step_ps / 1e12, DIGITS)}",
        _used(run),
    ]
    if "bound_s" in details:
        lines.append(_proof(details))
    if confirmed:
        lines.append("confirmed by the reference engine and the checker")
    return "\n".join(lines)


def _seconds(cost: Cost) -> str:
    return format_seconds(cost.seconds, DIGITS) + ", which does not fit" * (not cost.feasible)


def _beside(result: Result, marks: Marks) -> Iterator[str]:
    """Lines on one device and the bound, and advice where the result is worse than a reference."""
    from ..report.table import ONE_DEVICE, PRESENT

    known, parts = marks.references, []
    if known is not None and known.single is not None:
        parts.append(f"{ONE_DEVICE}: {_seconds(known.single.cost)}")
    if marks.least_ps is not None:
        least = format_seconds(marks.least_ps / PS_PER_SECOND, DIGITS)
        at_it = result.cost.feasible and result.cost.step_ps <= marks.least_ps
        parts.append(f"no placement is under {least}" + ": this is the best" * at_it)
    if parts:
        yield "; ".join(parts)
    # A pipeline is planned for its period; its single step may well be longer.
    if known is not None and marks.rank is not None and "period_s" not in result.objectives:
        pairs = {ONE_DEVICE: known.single, PRESENT: known.present}
        better = [name for name, mark in pairs.items() if mark and mark.rank < marks.rank]
        if better:
            yield f"worse than {' and '.join(better)}: {_remedy(result.provenance)}"


def _remedy(run: Mapping[str, Any]) -> str:
    """The advice after a search that was beaten."""
    from ..search import METHODS

    method = METHODS.get(run["method"])
    if method is not None and method.learner is not None and run.get("warm") != "annealing":
        return "try --warm annealing, or a greater --budget"
    begins_there = run["method"] in ("annealing", "greedy", "adaptive")
    more = "a greater --budget" if run["ended"] == "budget" else "--prepare none"
    return (
        f"try {more if begins_there else '--method annealing, which begins at the better of them'}"
    )


def _used(run: Mapping[str, Any]) -> str:
    count = run["evaluations"]
    return (
        f"{count:,} evaluation{'s' * (count != 1)}, {run['cpu_seconds']:.2f} CPU seconds; "
        f"{ENDS[run['ended']]}; seed {run['seed']}"
    )


def _placed(groups: int, ops: int, prepare: Sequence[str]) -> str:
    """The number of groups that were placed instead of single ops, and their preparations."""
    how = f"prepared by {', '.join(prepare)}" if prepare else "without preparation"
    return f"placed {groups:,} group{'s' * (groups != 1)} of {ops:,} ops, {how}"


def _of_pipeline(details: Mapping[str, Any]) -> str:
    """The placed pipeline that the step time belongs to; the method's plan may be another."""
    stages, moved = len(details["placed_stages"]), details.get("moved", 0)
    return (
        f" of a minibatch through the placed pipeline: {stages} stage{'s' * (stages != 1)}, one "
        "device each" + (f", {moved:,} ops moved to fit" if moved else "")
    )


def _plan(planned_s: float, details: Mapping[str, Any]) -> str:
    """The plan of a pipeline with replicas, which is executed and not placed."""
    replicas = "-".join(str(stage["replicas"]) for stage in details["stages"])
    head = f"the plan (stages of {replicas} replicas; executed, not placed): "
    if "execution" in details:
        return head + _executed(planned_s, details["execution"])
    why = f": {details['not_executed']}" if "not_executed" in details else ""
    return f"{head}planned {format_seconds(planned_s, DIGITS)} a minibatch, not executed{why}"


def _executed(planned_s: float, execution: Mapping[str, Any]) -> str:
    """The period of a pipeline as planned and as executed, and where the difference comes from."""
    period_s, steps = execution["period_s"], ("alone_s", "in_turn_s", "together_s")
    alone, in_turn, together = (format_seconds(execution[name], SHORT) for name in steps)
    share = f" ({period_s / planned_s - 1:+.1%})" if planned_s else ""
    steady = "" if execution["steady"] else ", not steady yet"
    over = execution["memory_excess_bytes"]
    return (
        f"planned {format_seconds(planned_s, DIGITS)}, executed {format_seconds(period_s, DIGITS)} "
        f"a minibatch{share}{steady}: its slowest stage alone takes {alone}, all stages in turn "
        f"{in_turn}, with replicas that synchronise {together}, and transfers make the rest"
        + (f"; the plan does not fit: {format_bytes(over)} over" if over else "; the plan fits")
    )


def _fit(cost: Cost) -> str:
    if cost.feasible:
        peak = format_bytes(max(cost.peaks, default=0))
        return f"fits; the fullest device holds {peak} at its peak"
    over = cost.memory_excess
    return f"does not fit: {over:,} bytes ({format_bytes(over)}) over; nothing that fits was found"


def _beginning(result: Result) -> Iterator[str]:
    """Lines on the start that a learner was given, and whether it found a better answer."""
    warm = result.details["warm"]
    seconds, imitated = (
        "-" if warm[name] is None else format_seconds(warm[name], DIGITS)
        for name in ("step_time_s", "imitated_s")
    )
    ended_there = result.points[-1].evaluation <= warm["evaluations"]
    if warm["name"] == "auto" and warm["imitated_s"] is None:
        count = warm["evaluations"]
        yield f"began at random; the best of the first {count:,} evaluations: {seconds}"
        if ended_there:
            yield "no later sample was better"
        return
    method = warm["name"]
    if warm["prepare"]:
        method += f" ({','.join(warm['prepare'])})"
    if warm["name"] == "auto":
        yield f"began at the best start: {imitated}"
    elif warm["imitated_s"] is None:
        yield f"{method}: {seconds}; groups that cannot stand so, so it was not imitated"
    else:
        together = f"; {imitated} with its groups together" if warm["split"] else ""
        yield f"began at {method}: {seconds}{together}"
    if ended_there:
        yield "no sample was better than that start"


def _proof(details: Mapping[str, Any]) -> str:
    """The proof of branch and bound."""
    if details["exact"]:
        return f"proved to be the best of {details['space']:,} strategies"
    if not details["bound_s"]:
        return "nothing is proved yet"
    bound = format_seconds(details["bound_s"], DIGITS)
    return f"not proved to be the best: no strategy is under {bound}"
