"""The sources of a step's times: the rungs of the cost ladder that gave them, the estimates among
them, the origin of host times, and the way memory was counted.

All of these come with the outcome (``outcome_of`` in ``execution/scenario.py``, from
``lowering/origins.py``); a saved run has none of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...costs import MEMORY_PASS, MEMORY_PASS_ERROR, CostMiss
from ...ground.units import PS_PER_SECOND
from ...lowering.origins import HostOrigins
from ...nouns.memory import MemoryModel
from ..table import COUNT, DETAIL, SHARE, TEXT, TIME, Json, Table, fields_json
from .hosts import Hosts
from .section import Places, Section, Step
from .usage import Devices

LEAST = 0.0005  # a smaller share of a time is not shown


@dataclass(frozen=True, slots=True)
class Costs(Section):
    """The sources of op times: ``rungs`` has the share of the op time by rung, ``misses`` the
    estimates, ``rel_err`` the expected relative error (None: not known).

    ``hosts`` is the origin of host times (None: there is no host), ``memory`` how memory was
    counted; ``busy_ps`` is the time of all ops of a step.
    """

    name = "costs"
    places = Places(entries=60, lines=90, asides=90, tables=90)

    rungs: Mapping[str, float]
    misses: tuple[CostMiss, ...]
    rel_err: float | None
    hosts: HostOrigins | None
    memory: MemoryModel
    busy_ps: int

    @classmethod
    def of_step(cls, step: Step) -> Costs:
        """The costs of any step."""
        outcome, busy = step.outcome, sum(d.busy_ps for d in step[Devices].uses)
        origins = outcome.hosts if step[Hosts].uses else None
        return cls(
            dict(outcome.rungs), outcome.misses, outcome.rel_err, origins, outcome.memory, busy
        )

    def lines(self) -> Iterator[str]:
        """The sources of the times, which a trace alone does not have; and the kinds of ops that
        are known only by the bytes of their tensors.
        """
        if self.rungs:
            parts = ["op times " + shares(self.rungs) + _error(self.rel_err)]
            parts.append("no host" if self.hosts is None else _hosts(self.hosts))
            counted = "its options say" if self.memory.changes else "tensors ask"
            if self.memory.changes and self.memory.is_pytorch:
                counted = "PyTorch counts"
            yield f"Rests on: {'; '.join(parts)}; memory as {counted}."
        counts = Counter[str]()
        for miss in self.misses:
            counts[miss.kind] += miss.count if miss.rung == MEMORY_PASS else 0
        kinds = ", ".join(f"{kind} ({count:,})" for kind, count in counts.items() if count)
        if kinds:
            error = f"expected error {MEMORY_PASS_ERROR:.0%}"
            yield f"No description of {kinds}: each such op is one pass over memory, {error}."

    def tables(self) -> Iterator[Table]:
        """The estimates, a row each."""
        busy = self.busy_ps / PS_PER_SECOND
        rows = tuple(
            (
                miss.op, miss.kind, miss.device_kind, miss.count,
                round(miss.seconds * PS_PER_SECOND), miss.seconds / busy if busy else 0.0,
                miss.rung, miss.rel_err, miss.basis,
            )
            for miss in self.misses
        )  # fmt: skip
        columns = {
            "first op": TEXT, "kind": TEXT, "on": TEXT, "ops": COUNT, "time": TIME,
            "of busy": SHARE, "rung": TEXT, "error": SHARE, "basis": DETAIL,
        }  # fmt: skip
        yield Table("Op times that were not measured", columns, rows, shown=8)

    def entries(self) -> Json:
        """The rungs, the error, and every estimate."""
        misses = [fields_json(miss, seconds="time_s") for miss in self.misses]
        return {"costs": self.rungs, "cost_rel_err": self.rel_err, "cost_misses": misses}


def shares(rungs: Mapping[str, float]) -> str:
    """The share of a time from each rung of the cost ladder, without shares that round to 0."""
    return ", ".join(f"{100 * part:.3g}% {rung}" for rung, part in rungs.items() if part >= LEAST)


def _error(rel_err: float | None) -> str:
    known = "not known" if rel_err is None else f"{rel_err:.1%}"
    return "" if rel_err == 0 else f" (expected error {known})"


def _hosts(origins: HostOrigins) -> str:
    if not origins.rungs:
        return "host times unknown"
    unknown = f", {origins.unknown:,} unknown" if origins.unknown else ""
    return f"host times {shares(origins.rungs)}{unknown}{_error(origins.rel_err)}"
