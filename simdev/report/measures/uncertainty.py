"""The uncertainty of the answer: step times and peaks under draws from the expected errors of
costs.

The draws come with the outcome, if there are any (``oracle/draws.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...costs.drawn import SHARED
from ...ground.units import PS_PER_SECOND, format_seconds
from ...nouns.draws import PERCENTS, TIE, TIE_MEANING, Draws, is_tie, percentiles
from ..table import BYTES, LIMIT, TEXT, Table
from .section import Facts, Places, Section, Step


def how_sure(beats: Sequence[float], first: float, kendall: float) -> str:
    """A line on the certainty of the order of several answers; ``beats``, ``first`` (the best
    answer's) and ``kendall`` are fields of ``Stability``.
    """
    ties = sum(map(is_tie, beats[1:]))
    tied = f"{ties:,} {'tie' if ties != 1 else 'ties'} with it ({TIE_MEANING})"
    faster = sum(share >= TIE for share in beats[1:])
    more = f", {faster:,} of the others {'is' if faster == 1 else 'are'} faster by draws"
    stays = f"the best stays first in {first:.0%} of the draws"
    order = f"mean Kendall tau of the order {kendall:.2f} (1: kept)"
    return f"How sure: {stays}, {tied}{more if faster else ''}; {order}."


@dataclass(frozen=True, eq=False)
class Uncertainty(Section):
    """The draws of a step: the spread of its step time and peaks under the errors of costs."""

    name = "draws"
    places = Places(lines=95, asides=95, facts=12, tables=95, notes=95, entries=65)

    draws: Draws

    @classmethod
    def of_step(cls, step: Step) -> Uncertainty | None:
        """The section; None where nothing was drawn."""
        return None if step.outcome.draws is None else cls(step.outcome.draws)

    @property
    def range_text(self) -> str:
        """``0.84 s to 1.06 s``: the 10th to the 90th percentile of the step time."""
        low, _, high = percentiles(self.draws.step_ps)
        return f"{_time(low)} to {_time(high)}"

    def lines(self) -> Iterator[str]:
        """The percentiles of the step time, and their distance from the answer."""
        draws, (low, middle, high) = self.draws, percentiles(self.draws.step_ps)
        head = f"{len(draws):,} draws (seed {draws.seed})"
        if not draws.erring:
            yield f"{head}: no cost tells an error, so every draw is the answer."
            return
        part = draws.answer_ps or 1
        yield (
            f"How sure: of {head} 8 in 10 take {self.range_text} "
            f"({low / part - 1:+.1%} to {high / part - 1:+.1%}), p50 {_time(middle)}."
        )
        if draws.fitting < 1 and (draws.capacity >= 0).any():
            yield f"It fits in {draws.fitting:.0%} of the draws."

    def facts(self) -> Facts:
        """The range of the step time."""
        if self.draws.erring:
            yield "10% to 90% of draws", self.range_text

    def tables(self) -> Iterator[Table]:
        """The peaks of devices, where they differ between draws."""
        draws = self.draws
        if (draws.peaks == draws.answer_peaks).all():
            return
        rows = tuple(
            (name, size, limit, *percentiles(peaks))
            for name, size, limit, peaks in zip(
                draws.devices, draws.answer_peaks.tolist(), self._limits, draws.peaks.T, strict=True
            )
        )
        parts = dict.fromkeys((f"p{part}" for part in PERCENTS), BYTES)
        columns = {"device": TEXT, "peak": BYTES, "memory": LIMIT, **parts}
        yield Table("Peaks over the draws", columns, rows, _MEMORY, shown=8)

    def notes(self) -> Iterator[str]:
        """How to read draws."""
        if self.draws.erring:
            yield (
                "Draws take every cost for the median of a lognormal with the expected error of "
                f"its rung; costs of one op class share {SHARED:.0%} of its variance. What "
                "the model itself gets wrong or leaves out is in no draw."
            )

    def to_json(self) -> Any:
        """Percentiles of step time (s) and of peaks (bytes), and the step time of every draw."""
        draws = self.draws
        return {
            "count": len(draws),
            "seed": draws.seed,
            "erring_costs": draws.erring,
            "step_s": _by_percent([ps / PS_PER_SECOND for ps in percentiles(draws.step_ps)]),
            "peak_bytes": {
                name: _by_percent(percentiles(peaks))
                for name, peaks in zip(draws.devices, draws.peaks.T, strict=True)
            },
            "fits": draws.fitting,
            "steps_s": draws.seconds.tolist(),
        }

    @property
    def _limits(self) -> list[int | None]:
        return [None if size < 0 else size for size in self.draws.capacity.tolist()]


_MEMORY = (
    "Peaks move with the order of events alone: the bytes of tensors are counted, not estimated."
)


def _by_percent(values: Any) -> dict[str, Any]:
    return {f"p{part}": value for part, value in zip(PERCENTS, values, strict=True)}


def _time(ps: int) -> str:
    return format_seconds(ps / PS_PER_SECOND)
