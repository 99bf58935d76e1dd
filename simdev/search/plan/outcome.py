"""The result of a search for plans: the best plans in their order, the Pareto front, and counts of
all other plans.

Plans whose steps are within 1 % of one another, on equally many devices, are folded into one
answer. Each answer shows its simplest plan: the plan with the fewest kinds of parallelism (degrees
above 1, and experts on a grid of their own), then the smallest degrees (except dp, which takes the
devices that are left), the fewest chunks, the least ZeRO, the least recomputation; on a tie the
fastest (ours).

searching.py makes the result. ``plan`` returns its ``frame``, from which
``simdev/commands/plan.py`` prints a table of its own. ``score`` in searching.py has the figures of
a simulated plan, FIGURES here their columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...ground.units import PS_PER_SECOND
from ...nouns.draws import PERCENTS, Draws, Stability, is_tie, percentiles, stability
from ...nouns.strategy.parallelism import DEGREES, RECOMPUTES
from ...report.measures.published import (
    LayoutError,
    PublishedError,
    kinds_of,
    layout_error,
    published_error,
)
from ...report.measures.throughput import Throughput
from ...report.measures.training import Difference
from ..sweep.journal import Row
from .space import DEFAULTS, Plan, Question

if TYPE_CHECKING:
    import pandas as pd

TIE_PERCENT = 1


@dataclass(frozen=True, slots=True)
class Scored:
    """A plan that was simulated, its place in the space, and its figures."""

    place: int
    plan: Plan
    row: Row

    @property
    def order(self) -> tuple[int, int, int]:
        """A key that sorts the shortest step first, then the least memory, then the first place in
        the space.
        """
        return self.row["step_ps"], self.row["peak_bytes"], self.place


ORDER = attrgetter("order")


class Folded(NamedTuple):
    """An answer: the plan that is shown, and all plans folded into it, the fastest first."""

    shown: Scored
    members: tuple[Scored, ...]


def answers_of(
    ranked: Sequence[Scored],
    devices: Sequence[int],
    front: Set[int] = frozenset(),
    folds: bool = True,
) -> list[Folded]:
    """The answers of plans that are sorted by their steps; ``devices`` has the number of devices by
    cluster. Unless ``folds``, every plan is an answer by itself.

    Plans whose places are in ``front`` were also chosen by memory: a plan that takes less memory by
    more than 1 % is an answer of its own, and an answer shows a plan of the front if it has one.
    """
    groups: list[list[Scored]] = []
    for scored in ranked:
        others = reversed(groups) if folds else ()
        group = next((g for g in others if _is_one(g, scored, devices, front)), None)
        if group is None:
            groups.append([scored])
        else:
            group.append(scored)
    return [
        Folded(min(group, key=lambda each: (each.place not in front, *simplicity(each))),
               tuple(group))
        for group in groups
    ]  # fmt: skip


def _is_one(
    group: Sequence[Scored], scored: Scored, devices: Sequence[int], front: Set[int]
) -> bool:
    counts = [devices[each.plan.setup.layout.cluster] for each in (group[0], scored)]
    least = min(each.row["peak_bytes"] for each in group)
    return (
        counts[0] == counts[1]
        and is_tied(scored.row["step_ps"], group[0].row["step_ps"])
        and (scored.place not in front or not less(scored.row["peak_bytes"], least))
    )


def is_tied(step: int, least: int) -> bool:
    """Whether a step is no more than 1 % longer than the least."""
    return step * 100 <= least * (100 + TIE_PERCENT)


def less(size: int, other: int) -> bool:
    """Whether a size is less than another by more than 1 %."""
    return size * (100 + TIE_PERCENT) < other * 100


def simplicity(scored: Scored) -> tuple[Any, ...]:
    """A key that sorts the simplest plan first, in the order that the module's docstring gives."""
    plan, fields = scored.plan, scored.plan.fields
    degrees = [fields[name] for name in DEGREES]
    kinds = sum(degree > 1 for degree in (*degrees, fields["dp_replicate"]))
    kinds += fields["etp"] is not None
    smallest = prod(fields[name] for name in DEGREES if name != "dp")
    recompute = RECOMPUTES.index(fields["recompute"])
    return kinds, smallest, plan.chunks, plan.zero, recompute, *scored.order


# The answer as a value.

FIGURES = (
    *("step_time_s", "tokens_per_s", "mfu", "peak_dtype", "peak_bytes", "bubble"),
    *("exposed_communication", "op_times"),
)
DRAWN = (
    *(f"step_p{part}_s" for part in PERCENTS), *(f"peak_p{part}_bytes" for part in PERCENTS),
    *("beats_best", "first_in_draws"),
)  # fmt: skip
"""The columns that follow from draws; a sweep has the same columns of step and order."""
COST = "cost_per_million_tokens"
TERMS_SHOWN = 3
OPTIONS = "microbatch", "microbatches", "schedule", "chunks", "zero", "recompute", "context"


@dataclass
class Counts:
    """Numbers of plans: ``illegal`` by reason, ``refused`` by the message of their simulation,
    ``unfit`` (excluded by a bound of memory), ``slower`` (excluded by a bound of time), and
    ``simulated``, of which ``overflowing`` do not fit. ``least_bytes`` is the smallest bound of
    memory among the plans.
    """

    illegal: Counter[str] = field(default_factory=Counter)
    legal: int = 0
    unfit: int = 0
    slower: int = 0
    simulated: int = 0
    overflowing: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    least_bytes: int | None = None

    @property
    def decided(self) -> int:
        """The number of legal plans that are finished."""
        return self.unfit + self.slower + self.simulated + self.refused.total()

    def hold(self, peak: int) -> None:
        """Counts a plan that holds at least ``peak`` bytes."""
        self.least_bytes = min(peak, self.least_bytes or peak)


@dataclass(frozen=True, eq=False)
class Plans:
    """The ``best`` plans in their order, and the Pareto ``front``. ``answers`` are the choices for
    a person, a row each in ``frame``; unless ``folds``, every plan is an answer. ``draws`` has the
    draws of each answer, and is empty where nothing was drawn.
    """

    question: Question
    best: tuple[Scored, ...]
    front: tuple[Scored, ...]
    counts: Counts
    seconds: float
    folds: bool = True
    draws: tuple[Draws, ...] = ()

    @cached_property
    def answers(self) -> list[Folded]:
        """The answers of the best plans and of the front together, by their steps."""
        every = {scored.place: scored for scored in (*self.best, *self.front)}
        ranked = sorted(every.values(), key=ORDER)
        return answers_of(ranked, self.question.devices, self.on_front, self.folds)

    @property
    def on_front(self) -> frozenset[int]:
        """The places of the front."""
        return frozenset(scored.place for scored in self.front)

    @property
    def frame(self) -> pd.DataFrame:
        """A row for each answer, about the plan that it shows.

        ``folded`` counts the other plans within 1 % of its step; ``tied`` marks plans that the
        error between layouts (``layouts``) does not separate from the first; ``scenario`` is an
        object for ``load_scenario``; ``why`` names the terms of its critical rank that make a plan
        slower than the first (``report.measures.difference``). Where errors were drawn, there are
        percentiles of the step and of the largest peak, and ``tied`` follows from the draws.
        """
        import pandas as pd

        rows = [
            self._line(shown, self.answers[0].shown, shown.place in self.on_front)
            | {"folded": len(members) - 1}
            for shown, members in self.answers
        ]
        rows = [row | drawn for row, drawn in zip(rows, self._drawn(rows), strict=True)]
        frame = pd.DataFrame(rows, columns=self._columns([each.shown for each in self.answers]))
        if self.question.price is None:
            frame[COST] = pd.array([None] * len(frame), dtype="Float64")
        frame.attrs["counts"] = self.summary
        return frame

    def _drawn(self, rows: Sequence[Any]) -> Iterator[dict[str, Any]]:
        """The columns that follow from draws, for each answer."""
        if not self.draws:
            yield from ({} for _ in rows)
            return
        order = self.stability
        for draws, beats, first in zip(self.draws, order.beats, order.first, strict=True):
            seconds = (ps / PS_PER_SECOND for ps in percentiles(draws.step_ps))
            values = *seconds, *percentiles(draws.largest), float(beats), float(first)
            yield dict(zip(DRAWN, values, strict=True)) | {"tied": is_tie(beats)}

    @cached_property
    def stability(self) -> Stability:
        """The certainty of the answers' order under the errors that were drawn."""
        return stability(np.stack([draws.seconds for draws in self.draws]))

    @property
    def proved(self) -> bool:
        """Whether the first plan is proved to be the fastest of the space: every other plan was
        simulated or excluded by a bound. A plan that simulation refused might be faster.
        """
        return bool(self.best) and not self.counts.refused

    @property
    def least_s(self) -> float | None:
        """Seconds of the shortest step; the first answer shows a plan up to 1 % slower."""
        return self.best[0].row["step_ps"] / PS_PER_SECOND if self.best else None

    @property
    def published(self) -> PublishedError:
        """The error of simulated steps beside published runs of similar steps."""
        return published_error(self.question.model, self._device)

    @property
    def layouts(self) -> LayoutError:
        """The error of simulated layouts of one model relative to each other."""
        return layout_error(self.question.model, self._device)

    @property
    def _device(self) -> str:
        # Clusters of several sizes have the same kinds of devices.
        return kinds_of(self.question.clusters[0])

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
            "refused": dict(counts.refused),
            "least_bytes": counts.least_bytes,
            "proved_best": self.proved,
            "least_step_time_s": self.least_s,
            "published": self.published.to_json(),
            "layouts": self.layouts.to_json(),
            "seconds": self.seconds,
            **self._summary_of_draws,
        }

    @property
    def _summary_of_draws(self) -> dict[str, Any]:
        if not self.draws:
            return {}
        first = self.draws[0]
        tau = self.stability.kendall
        return {"draws": {"count": len(first), "seed": first.seed, "kendall_tau": tau}}

    def _columns(self, ranked: Sequence[Scored]) -> list[str]:
        others = dict.fromkeys(name for scored in ranked for name, _ in scored.plan.setup.others)
        ends = COST, "front", "folded", "tied", "why", "step_time_ps", "scenario"
        # Columns only where some plan has experts on a grid of their own, or groups of replicas.
        layouts = [scored.plan.setup.layout for scored in ranked]
        some = ["etp"] * any(layout.etp is not None for layout in layouts)
        some += ["dp_replicate"] * any(layout.dp_replicate > 1 for layout in layouts)
        drawn = DRAWN if self.draws else ()
        return ["devices", *DEGREES, *some, *OPTIONS, *others, *FIGURES, *drawn, *ends]

    def _line(self, scored: Scored, first: Scored, on_front: bool) -> dict[str, Any]:
        row, plan = scored.row, scored.plan
        devices = self.question.devices[plan.setup.layout.cluster]
        return (
            {"devices": devices}
            | {name: plan.fields.get(name, DEFAULTS[name]) for name in (*DEGREES, *OPTIONS)}
            | {"etp": plan.parallelism.expert_tp, "dp_replicate": plan.parallelism.dp_replicate}
            | dict(plan.setup.others)
            | {"step_time_s": row["step_ps"] / PS_PER_SECOND}
            | {name: row[name] for name in FIGURES[1:]}
            | {COST: self._cost(scored), "front": on_front if self.front else None}
            | {"tied": self.layouts.ties(row["step_ps"], first.row["step_ps"])}
            | {"why": why(scored, first), "step_time_ps": row["step_ps"]}
            | {"scenario": self.question.scenario(plan)}
        )

    def _cost(self, scored: Scored) -> float | None:
        """Dollars per million tokens; None without a price."""
        question, setup = self.question, scored.plan.setup
        samples, devices = question.global_batch, question.devices[setup.layout.cluster]
        sizes = samples, samples * question.model.length, setup.microbatches
        throughput = Throughput(scored.row["step_ps"], *sizes, devices, question.price, True)
        return throughput.to_json().get(COST)


def why(scored: Scored, first: Scored) -> str:
    """The reason why a plan is slower than the first, in a line; "" for the first itself."""
    if scored.place == first.place:
        return ""
    if scored.row["step_ps"] == first.row["step_ps"]:
        has_more = scored.row["peak_bytes"] > first.row["peak_bytes"]
        return "as fast, with more memory" if has_more else "as fast"
    ranks = [row["critical_rank"] for row in (first.row, scored.row)]
    terms = [row["critical_ps"] for row in (first.row, scored.row)]
    return Difference((ranks[0], ranks[1]), terms[0], terms[1]).line(TERMS_SHOWN)
