"""Why one large model's step takes longer than another: the terms of the time of a rank.

Each rank of the pipeline is tiled by TERMS (see ``training``), so for any rank of A and any of B
the terms' differences add up to that of the steps, to the picosecond. Compared are the critical
ranks, those that wait least for others (bubble and pipeline; ours): on any other rank more of the
difference would be waiting for work that is done elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...nouns.models.large.roles import PIPELINE, ROLES
from ..table import BYTES, CHANGE, TEXT, TIME, Table, change
from .training import BUBBLE, TERMS, StageUse, Training

WAITING = (BUBBLE, ROLES[PIPELINE])
REST = "rest"


def critical_rank(terms: Sequence[Mapping[str, int]]) -> int:
    """The rank (the first of several) that waits least for others, by the terms of each in ps."""
    return min(range(len(terms)), key=lambda rank: sum(terms[rank][name] for name in WAITING))


@dataclass(frozen=True, slots=True)
class Difference:
    """Step B beside step A, by the terms of their critical ranks in ps; each adds up to its
    step.
    """

    ranks: tuple[int, int]
    first: Mapping[str, int]
    second: Mapping[str, int]

    @classmethod
    def of(
        cls, first: Sequence[Mapping[str, int]], second: Sequence[Mapping[str, int]]
    ) -> Difference:
        """From the terms (ps) of every rank of A and of B, as ``StageUse.terms`` has them."""
        ranks = critical_rank(first), critical_rank(second)
        return cls(ranks, first[ranks[0]], second[ranks[1]])

    @property
    def steps_ps(self) -> tuple[int, int]:
        """Both step times."""
        return sum(self.first.values()), sum(self.second.values())

    @property
    def added_ps(self) -> dict[str, int]:
        """What each term takes more in B (below 0: less); they add up to the steps' difference."""
        return {name: self.second[name] - self.first[name] for name in TERMS}

    def parts(self) -> list[tuple[str, int]]:
        """What each term adds in thousandths of A's step, the largest first.

        Their sum is the difference of the steps, rounded: what rounding leaves over is ``rest``.
        """
        before, after = self.steps_ps
        rounded = {name: _thousandths(ps, before) for name, ps in self.added_ps.items()}
        parts = sorted(
            (part for part in rounded.items() if part[1]), key=lambda part: -abs(part[1])
        )
        rest = _thousandths(after - before, before) - sum(rounded.values())
        return [*parts, (REST, rest)] if rest else parts

    def line(self, most: int) -> str:
        """``+8.2%: bubble +6.1%, tensor +2.4%``, of B with at most so many terms, in A's step."""
        before, after = self.steps_ps
        share = _thousandths(after - before, before)
        if not share:
            return "+0.0%" if after >= before else "-0.0%"
        parts = ", ".join(f"{name} {part / 10:+.1f}%" for name, part in self.parts()[:most])
        return f"{share / 10:+.1f}%" + (f": {parts}" if parts else "")

    def sentence(self, first: str = "A", second: str = "B") -> str:
        """``B is 8.2% slower than A: bubble +6.1%, tensor +2.4%, ...``, and of which ranks."""
        before, after = self.steps_ps
        if not before:
            return f"{first} takes no time"
        share = _thousandths(after - before, before)
        how = f"{abs(share) / 10:.1f}% {'slower than' if share > 0 else 'faster than'}"
        parts = ", ".join(f"{name} {part / 10:+.1f}%" for name, part in self.parts())
        verdict = f"{second} is {how if share else 'as fast as'} {first}"
        if not parts:
            return verdict
        ranks = f"rank {self.ranks[0]} of {first}, rank {self.ranks[1]} of {second}"
        return f"{verdict}: {parts} (of {first}'s step, on {ranks}, which wait least)"

    def table(self) -> Table:
        """The terms of both ranks."""
        before = self.steps_ps[0]
        rows = [
            (name, self.first[name], self.second[name], ps, ps / before if before else None)
            for name, ps in self.added_ps.items()
            if self.first[name] or self.second[name]
        ]
        columns = {"goes to": TEXT, "A": TIME, "B": TIME, "added": TIME, "of A's step": CHANGE}
        a, b = self.ranks
        title = f"Time of the rank that waits least (A: rank {a}, B: rank {b})"
        return Table(title, columns, tuple(rows))


def difference(first: Training, second: Training) -> Difference:
    """Of two large models' steps, A and B."""
    return Difference.of(*([stage.terms for stage in step.stages] for step in (first, second)))


def difference_tables(first: Training, second: Training) -> Iterator[Table]:
    """Time by term and memory by kind, of A beside B."""
    yield difference(first, second).table()
    a, b = (max(step.stages, key=lambda stage: stage.memory.peak) for step in (first, second))
    yield _memory_table(a, b)


def _memory_table(first: StageUse, second: StageUse) -> Table:
    a, b = first.memory.at_peak, second.memory.at_peak
    rows = [(kind, a.get(kind, 0), b.get(kind, 0)) for kind in {**a, **b}]
    rows.append(("all", first.memory.peak, second.memory.peak))
    shown = tuple((kind, x, y, change(x, y)) for kind, x, y in rows if x or y)
    title = f"Memory of the fullest rank at its peak (A: {first.device}, B: {second.device})"
    return Table(title, {"holds": TEXT, "A": BYTES, "B": BYTES, "change": CHANGE}, shown)


def _thousandths(part_ps: int, whole_ps: int) -> int:
    """Rounded half away from 0, so that A beside B and B beside A round alike."""
    if not whole_ps:
        return 0
    size = (2000 * abs(part_ps) + whole_ps) // (2 * whole_ps)
    return size if part_ps >= 0 else -size
