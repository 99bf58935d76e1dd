"""The answer: the best plans in their order, the front, and what became of all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...report.measures.difference import Difference
from ...report.measures.throughput import Throughput
from ...strategy import DEGREES
from ...units import PS_PER_SECOND
from .question import DEFAULTS, Question
from .space import Plan

if TYPE_CHECKING:
    import pandas as pd

FIGURES = (
    *("step_time_s", "tokens_per_s", "mfu", "peak_dtype", "peak_bytes", "bubble"),
    *("exposed_communication", "op_times"),
)
COST = "cost_per_million_tokens"
TERMS_SHOWN = 3
OPTIONS = "microbatch", "microbatches", "schedule", "chunks", "zero", "recompute", "context"


@dataclass(frozen=True, slots=True)
class Scored:
    """A plan that was simulated: its place in the space, its figures."""

    place: int
    plan: Plan
    row: Mapping[str, Any]

    @property
    def order(self) -> tuple[int, int, int]:
        """The shortest step first; of equal ones the least memory, then the first of the space."""
        return self.row["step_ps"], self.row["peak_bytes"], self.place


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of the plans: ``illegal`` by reason, ``refused`` by what simulating them said,
    ``unfit`` by a bound of their memory, ``slower`` by a bound of their time, ``simulated`` of
    which ``overflowing`` do not fit.
    """

    illegal: Mapping[str, int]
    legal: int = 0
    unfit: int = 0
    slower: int = 0
    simulated: int = 0
    overflowing: int = 0
    refused: Mapping[str, int] | None = None
    least_bytes: int | None = None


@dataclass(frozen=True, eq=False)
class Plans:
    """The best plans, ``best`` in their order and ``front`` besides; a row each in ``frame``."""

    question: Question
    best: tuple[Scored, ...]
    front: tuple[Scored, ...]
    counts: Counts
    seconds: float

    @property
    def frame(self) -> pd.DataFrame:
        """A line for each plan, the best first, then those of the front that are not among them.

        ``scenario`` is an object for ``load_scenario``; ``why`` tells by which terms of its
        critical rank a plan is slower than the first (``report.measures.difference``).
        """
        import pandas as pd

        ranked = sorted({s.place: s for s in (*self.best, *self.front)}.values(), key=_by_order)
        on_front = {scored.place for scored in self.front}
        rows = [self._line(scored, ranked[0], scored.place in on_front) for scored in ranked]
        frame = pd.DataFrame(rows, columns=self._columns(ranked))
        if self.question.price is None:
            frame[COST] = pd.array([None] * len(frame), dtype="Float64")
        frame.attrs["counts"] = self.summary
        return frame

    @property
    def proved(self) -> bool:
        """Whether no plan of the space is faster than the first: every other one was simulated, or
        left out by a bound; what simulating refused could be.
        """
        return bool(self.best) and not self.counts.refused

    @property
    def summary(self) -> dict[str, Any]:
        """The counts as one object, ready for JSON."""
        counts = self.counts
        return {
            "plans": counts.legal,
            "illegal": dict(counts.illegal),
            "does_not_fit": counts.unfit,
            "slower": counts.slower,
            "simulated": counts.simulated,
            "simulated_does_not_fit": counts.overflowing,
            "refused": dict(counts.refused or {}),
            "least_bytes": counts.least_bytes,
            "proved_best": self.proved,
            "seconds": self.seconds,
        }

    def _columns(self, ranked: Sequence[Scored]) -> list[str]:
        others = dict.fromkeys(name for scored in ranked for name, _ in scored.plan.setup.others)
        ends = COST, "front", "why", "step_time_ps", "scenario"
        return ["devices", *DEGREES, *OPTIONS, *others, *FIGURES, *ends]

    def _line(self, scored: Scored, first: Scored, on_front: bool) -> dict[str, Any]:
        row, plan = scored.row, scored.plan
        devices = self.question.devices[plan.setup.layout.cluster]
        figures = {
            "step_time_s": row["step_ps"] / PS_PER_SECOND,
            **{n: row[n] for n in FIGURES[1:]},
        }
        cost = self._throughput(scored).to_json().get(COST)
        return (
            {"devices": devices}
            | {name: plan.fields.get(name, DEFAULTS[name]) for name in (*DEGREES, *OPTIONS)}
            | dict(plan.setup.others)
            | figures
            | {COST: cost, "front": on_front if self.front else None, "why": why(scored, first)}
            | {"step_time_ps": row["step_ps"], "scenario": self.question.scenario(plan)}
        )

    def _throughput(self, scored: Scored) -> Throughput:
        question, setup = self.question, scored.plan.setup
        samples = question.global_batch
        sizes = samples, samples * question.model.length, setup.microbatches
        devices = question.devices[setup.layout.cluster]
        return Throughput(scored.row["step_ps"], *sizes, devices, question.price)


def _by_order(scored: Scored) -> tuple[int, int, int]:
    return scored.order


def why(scored: Scored, first: Scored) -> str:
    """Why a plan is slower than the first, in a line; "" of the first itself."""
    if scored.place == first.place:
        return ""
    if scored.row["step_ps"] == first.row["step_ps"]:
        has_more = scored.row["peak_bytes"] > first.row["peak_bytes"]
        return "as fast, with more memory" if has_more else "as fast"
    ranks = [row["critical_rank"] for row in (first.row, scored.row)]
    terms = [row["critical_ps"] for row in (first.row, scored.row)]
    return Difference((ranks[0], ranks[1]), terms[0], terms[1]).line(TERMS_SHOWN)
