"""Parameter: one number of a scenario that a trace may tell, with its standard error."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ..units import PS_PER_SECOND
from .observe import Waits
from .solve import middle, shortest

CARE = Fraction(1, 20)  # of a standard error, by which a number may be off for having fewer digits


@dataclass(frozen=True, slots=True)
class Parameter:
    """One number of a scenario: ``before`` and ``value`` in SI units (an efficiency: a share).

    ``quantity`` is gap, latency, bandwidth or efficiency; ``of`` names the devices, links or ops,
    ``rows`` are those of the cluster (none for an efficiency). ``error`` is its standard error
    (None: no data to spare), ``count`` how many spans tell of it. A parameter that was left alone
    has ``note`` telling why, and the value that it had.
    """

    quantity: str
    of: str
    before: Fraction
    value: Fraction
    error: float | None
    count: int
    rows: tuple[int, ...] = ()
    on_links: bool = False
    note: str = ""

    @property
    def fitted(self) -> bool:
        """Whether the trace told its value."""
        return not self.note


def gap_parameter(
    name: str, before: Fraction, found: Waits, rows: tuple[int, ...], on_links: bool
) -> Parameter:
    """A gap from the waits that are one, in seconds."""
    count = len(found.before)
    if not count:
        note = "left alone: in the trace nothing there starts right after another"
        return Parameter("gap", name, before, before, None, 0, rows, on_links, note)
    solution = middle(found.length, found.scale)
    value, error = float(solution.values[0]), float(solution.errors[0])
    seconds = significant(max(value, 0.0), error, Fraction(1, 2)) / PS_PER_SECOND
    # After transfers whose ends are only believed, the error is that of their durations, which this
    # one does not tell.
    known = None if on_links and found.believed else error_of(error / PS_PER_SECOND)
    return Parameter("gap", name, before, seconds, known, count, rows, on_links)


def significant(value: float, error: float, least: Fraction | float) -> Fraction:
    """A value with as few digits as its standard error (NaN: not known) allows; it may be off by
    ``least`` anyway.
    """
    doubt = min(CARE * Fraction(error), abs(Fraction(value)) / 100) if error > 0 else Fraction(0)
    return shortest(value, max(Fraction(least), doubt))


def error_of(error: float) -> float | None:
    """A standard error, None where there was no data to spare."""
    return None if np.isnan(error) else error
