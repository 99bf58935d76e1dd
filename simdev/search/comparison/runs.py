"""Runs: one method with one seed on one question, as a value that JSON can hold; questions, and the
references that their runs are compared with.

``run_comparison`` makes runs from the records in a journal. ``record_of`` turns a Result into a
record and ``run_of`` a record into a run: a field of Result that shall be kept is in both.
``simdev/commands/search.py`` prints the references of a single search, too.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ...execution.scenario import Scenario, fingerprint
from ...files import read_strategy, strategy_object
from ...nouns.strategy import Strategy
from ...oracle import Cost, Oracle
from ...report.table import ONE_DEVICE, PRESENT
from ..result import Result, present_cost
from ..run import oracle_and_strategy, search
from ..space import Rank, rank_of
from ..trial import REFUSED, Point

WARM = "+"  # between a learner and the method whose best it imitates: post+m-sct


@dataclass(frozen=True, slots=True)
class Entrant:
    """A method as a comparison lists it: ``annealing``, or a learner with its warm start,
    ``post+m-sct``.
    """

    label: str

    @property
    def method(self) -> str:
        """The name of the method."""
        return self.label.partition(WARM)[0]

    @property
    def warm(self) -> str | None:
        """The method whose best is imitated; None where the label names none."""
        return self.label.partition(WARM)[2] or None


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """The result of a method (by its label) on a question, or the ``reason`` why there is none.

    ``rank`` orders results, the best first (``space.rank_of``).
    """

    question: Hashable
    method: str
    seed: int
    result: Result | None = None
    rank: Rank | None = None
    reason: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether the run has a result and was not interrupted."""
        return self.result is not None and self.result.provenance["ended"] != "interrupted"

    def to_json(self) -> dict[str, Any]:
        """The seed with the whole result, or with the reason why there is none."""
        result = {"reason": self.reason} if self.result is None else self.result.to_json()
        return {"seed": self.seed, **result}


@dataclass(frozen=True, slots=True)
class Reference:
    """A step that all methods of a question are compared with: the step of one device, or of the
    scenario's own strategy.
    """

    cost: Cost
    rank: Rank


@dataclass(frozen=True, slots=True)
class References:
    """The references of a question. ``single`` is None where no device can run everything,
    ``present`` where the scenario's own strategy is impossible.
    """

    single: Reference | None = None
    present: Reference | None = None

    @property
    def by_name(self) -> dict[str, Reference | None]:
        """Both references by their printed names."""
        return {ONE_DEVICE: self.single, PRESENT: self.present}


def record_of(oracle: Oracle, result: Result) -> dict[str, Any]:
    """A result as JSON, without a learner's policy."""
    cost = result.cost
    return {
        "strategy": strategy_object(result.strategy),
        "step_ps": cost.step_ps,
        "memory_excess": cost.memory_excess,
        "peaks": list(cost.peaks),
        "rank": list(rank_of(oracle, cost)),
        "objectives": dict(result.objectives),
        "points": [list(asdict(point).values()) for point in result.points],
        "provenance": dict(result.provenance),
        "details": dict(result.details),
        "obstacles": list(result.obstacles),
    }


def run_of(question: Hashable, method: str, seed: int, record: Mapping[str, Any]) -> Run:
    """The run of a record. Its result has no policy: records keep none."""
    excess, step_ps = record["memory_excess"], record["step_ps"]
    result = Result(
        read_strategy(record["strategy"]),
        Cost(step_ps / 1e12, excess == 0, excess, step_ps, tuple(record["peaks"])),
        record["objectives"],
        tuple(Point(*point) for point in record["points"]),
        record["provenance"],
        record["details"],
        tuple(record["obstacles"]),
    )
    over, total, ps = record["rank"]
    return Run(question, method, seed, result, (over, total, ps))


# Questions: prepared once for all methods of a comparison.

COUNTERS = ("_counted", "_cache_size")  # of an oracle; they change no answer


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """An oracle, the strategy that came with it, and the costs of its references. A worker computes
    these costs again: that looks up the costs of ops, for which no method shall pay.
    """

    oracle: Oracle
    given: Strategy
    references: References

    @property
    def digest(self) -> str:
        """A hash of everything that may change an answer."""
        state = self.oracle.__getstate__()
        parts = {name: value for name, value in state.items() if name not in COUNTERS}
        return fingerprint((parts, self.given))

    def __reduce__(self) -> tuple[Any, ...]:
        return _with_references, (self.oracle, self.given)


def question_of(question: Scenario | Oracle) -> Question:
    """Prepare a question. Raises InputError where it cannot be searched."""
    return _with_references(*oracle_and_strategy(question))


def _with_references(oracle: Oracle, given: Strategy) -> Question:
    return Question(oracle, given, references_of(oracle, given))


def references_of(oracle: Oracle, given: Strategy) -> References:
    """The costs of the best single device and of the own strategy. Afterwards all costs of ops have
    been looked up.
    """
    try:
        single = _reference(oracle, search(oracle, "single").cost)
    except REFUSED:
        single = None
    return References(single, _reference(oracle, present_cost(oracle, given)))


def _reference(oracle: Oracle, cost: Cost | None) -> Reference | None:
    return None if cost is None else Reference(cost, rank_of(oracle, cost))
