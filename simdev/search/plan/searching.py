"""Best first: the plans of a space by their bounds, simulated until no bound is below the best.

Setups that exchange the same for a microbatch stand together by a bound of their own. Where they
come up, those that fit take their place, and then the plans of a setup take its, each with a bound,
and once more with that of its actions. What comes up next has the least bound of all that is left:
where that is above the last of the best, so is everything behind it. The best are those of
different degrees, unless plans that are alike in these are asked for, too.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...ground.errors import InputError
from .bounds import Bounds
from .folding import TIE_PERCENT, Scored, answers_of
from .outcome import Counts
from .scoring import Record, Scores
from .space import Layout, Plan, Setup, Space

GROUP, SETUP, WAITED, PATH = range(4)  # what a bound was worked out of
ROUND = 8  # plans simulated before the best is looked at again, however many work at it


def degrees(setup: Setup) -> Layout:
    """The layout but for how attention gets the keys of others."""
    return setup.layout._replace(context="")


class Group(NamedTuple):
    """Setups that are alike, each with the place of its first plan."""

    members: list[tuple[int, Setup]]


@dataclass
class Search:
    """A search under way; ``keep`` is called with every plan that was simulated, ``kept`` knows the
    figures of plans that need not be.
    """

    space: Space
    bounds: Bounds
    scores: Scores
    top: int
    front: bool
    alike: bool
    folds: bool
    kept: Callable[[Plan], Record | None]
    keep: Callable[[Plan, Record], None]
    scored: list[Scored] = field(default_factory=list)
    fitting: list[Scored] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    unfit: int = 0
    slower: int = 0
    least_bytes: int | None = None
    _least: dict[Layout, int] = field(default_factory=dict)
    _heap: list[tuple[int, int, int, Any, int]] = field(default_factory=list)
    _too_large: list[tuple[int, int, Setup]] = field(default_factory=list)
    _has_bounds: bool = False
    _last: float = float("inf")  # the step of the last of the best

    def run(self, setups: Iterable[Setup], progress: Callable[[int], object]) -> None:
        """All of it; ``progress`` hears how many plans are done with. Raises InputError where none
        can be simulated.
        """
        groups: dict[Hashable, Group] = {}
        place = 0
        for setup in setups:
            groups.setdefault(self.bounds.alike(setup), Group([])).members.append((place, setup))
            place += self.space.count(setup)
        for group in groups.values():
            entry = self._group_ps(group), group.members[0][0], GROUP, group, 0
            heapq.heappush(self._heap, entry)
        done = 0
        while batch := self._next():
            records = self._simulated({place: plan for place, plan in batch})
            for place, plan in batch:
                self._take(Scored(place, plan, records[place]))
            now = self.unfit + self.slower + len(self.scored) + self.refused.total()
            progress(now - done)
            done = now
        if not self._has_bounds and self.refused:
            raise InputError(self.refused)
        self.slower += sum(self._size(node) for _, _, _, node, _ in self._heap)
        if not self.fitting:
            self._tell_least()

    def _group_ps(self, group: Group) -> int:
        try:
            return self.bounds.exchanged_ps(group.members[0][1])
        except InputError:  # its setups are refused, each by itself
            return 0

    def _size(self, node: Group | Setup | Plan) -> int:
        """How many plans there are of it."""
        if isinstance(node, Group):
            return sum(self.space.count(setup) for _, setup in node.members)
        return self.space.count(node) if isinstance(node, Setup) else 1

    def _next(self) -> list[tuple[int, Plan]]:
        """The plans of the next round: of those of equal degrees the first, which shows that the
        others are slower where its bound was close.
        """
        batch: dict[Layout | int, tuple[int, Plan]] = {}
        aside: list[tuple[int, int, int, Any, int]] = []
        while self._heap and self._heap[0][0] <= self._limit and len(batch) + len(aside) < ROUND:
            bound, place, level, node, peak = heapq.heappop(self._heap)
            if isinstance(node, Group):
                for place, setup in node.members:
                    self._open(bound, place, setup)
            elif isinstance(node, Setup):
                if self.front or self._may_be_best(bound, node):
                    self._expand(node, place)
                else:
                    self.slower += self.space.count(node)
            elif not self._is_needed(bound, peak, node):
                self.slower += 1
            elif level == WAITED:
                self._follow(node, place)
            elif (key := place if self.front else self._key(place, node)) in batch:
                aside.append((bound, place, level, node, peak))
            else:
                batch[key] = place, node
        for entry in aside:
            heapq.heappush(self._heap, entry)
        return list(batch.values())

    def _key(self, place: int, plan: Plan) -> Layout | int:
        """Equal for plans of which one is among the best at most."""
        return place if self.alike else degrees(plan.setup)

    @property
    def best(self) -> list[Scored]:
        """The best so far in their order, of each layout the first unless ``alike``: so many, or
        all of so many answers where plans are folded.
        """
        first: dict[Layout | int, Scored] = {}
        for scored in self.fitting:
            first.setdefault(self._key(scored.place, scored.plan), scored)
        ranked = list(first.values())
        if not self.folds:
            return ranked[: self.top]
        answers = answers_of(ranked, self.space.devices)[: self.top]
        return sorted((s for each in answers for s in each.members), key=lambda s: s.order)

    @property
    def _limit(self) -> float:
        """Bounds above it need not be looked at: none where the front is looked for, too."""
        return float("inf") if self.front else self._last

    def _may_be_best(self, step: int, setup: Setup) -> bool:
        """Whether a step of a setup would be among the best."""
        least = float("inf") if self.alike else self._least.get(degrees(setup), float("inf"))
        return step <= min(least, self._last)

    def _open(self, bound: int, place: int, setup: Setup) -> None:
        """A setup by its own bounds, in place of those that it shares."""
        count = self.space.count(setup)
        if not (self.front or self._may_be_best(bound, setup)):
            self.slower += count
            return
        try:
            held, fits = self.bounds.held(setup, self.space.zeros(setup.layout))
            if not fits:
                self.unfit += count
                self._too_large.append((held, place, setup))
                return
            heapq.heappush(self._heap, (self.bounds.setup_ps(setup), place, SETUP, setup, 0))
            self._has_bounds = True
        except InputError as error:
            self._refuse(error, count)

    def _tell_least(self) -> None:
        """The least bytes that any plan holds, where none fits: of setups, too, that were left out
        whole.
        """
        heapq.heapify(self._too_large)
        while self._too_large and self._too_large[0][0] < (self.least_bytes or float("inf")):
            for plan in self.space.plans(heapq.heappop(self._too_large)[2]):
                with suppress(InputError):
                    self._count_bytes(self.bounds.plan(plan).peak_bytes)

    def _count_bytes(self, peak: int) -> None:
        self.least_bytes = peak if self.least_bytes is None else min(self.least_bytes, peak)

    def _expand(self, setup: Setup, place: int) -> None:
        for number, plan in enumerate(self.space.plans(setup)):
            entry = self.bounds.waited_ps(plan), place + number, WAITED, plan, 0
            heapq.heappush(self._heap, entry)

    def _follow(self, plan: Plan, place: int) -> None:
        """A plan by its memory and the path of its actions."""
        try:
            bound = self.bounds.plan(plan)
        except InputError as error:
            self._refuse(error, 1)
            return
        self._count_bytes(bound.peak_bytes)
        if bound.fits:
            heapq.heappush(self._heap, (bound.step_ps, place, PATH, plan, bound.peak_bytes))
        else:
            self.unfit += 1

    def _is_needed(self, step: int, peak: int, plan: Plan) -> bool:
        """Whether a plan may be among the best, or on the front where that is looked for."""
        may_be = self._may_be_best(step, plan.setup)
        return may_be or (self.front and not self._is_beaten(step, peak, plan))

    def _refuse(self, error: InputError, count: int) -> None:
        self.refused["; ".join(error.problems)] += count

    def _is_beaten(self, step: int, peak: int, plan: Plan) -> bool:
        """Whether a plan that was simulated is as good in all."""
        devices = self.space.devices
        most = devices[plan.setup.layout.cluster]
        return any(
            other.row["peak_bytes"] <= peak
            and other.row["step_ps"] <= step
            and devices[other.plan.setup.layout.cluster] <= most
            for other in self.fitting
        )

    def _simulated(self, plans: Mapping[int, Plan]) -> dict[int, Record]:
        records = {n: row for n, plan in plans.items() if (row := self.kept(plan)) is not None}
        missing = {n: plan for n, plan in plans.items() if n not in records}
        for number, record in self.scores.of(missing) if missing else ():
            records[number] = record
            self.keep(plans[number], record)
        return records

    def _take(self, scored: Scored) -> None:
        if "reason" in scored.row:
            self.refused[scored.row["reason"]] += 1
            return
        self.scored.append(scored)
        if scored.row["fits"]:
            insort(self.fitting, scored, key=lambda each: each.order)
            layout, step = degrees(scored.plan.setup), scored.row["step_ps"]
            self._least[layout] = min(step, self._least.get(layout, step))
            self._last = self._last_of(self.best)

    def _last_of(self, best: list[Scored]) -> float:
        """The longest step that may still be among the best: of the last answer's plans up to 1 %
        more than its fastest takes.
        """
        if not self.folds:
            return best[-1].row["step_ps"] if len(best) == self.top else float("inf")
        answers = answers_of(best, self.space.devices)
        if len(answers) < self.top:
            return float("inf")
        least: int = answers[-1].members[0].row["step_ps"]
        return least * (100 + TIE_PERCENT) // 100

    def counts(self, illegal: Mapping[str, int], legal: int) -> Counts:
        """What became of the plans."""
        return Counts(
            illegal, legal, self.unfit, self.slower, len(self.scored),
            len(self.scored) - len(self.fitting), self.refused, self.least_bytes,
        )  # fmt: skip
