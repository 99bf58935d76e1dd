"""Cost, the oracle's answer."""

from __future__ import annotations

from dataclasses import dataclass

# What a kernel answers in place of a step time: it does not fit the kernel's keys; the placement
# cannot be.
TOO_LONG, FAULT = -1, -2


@dataclass(frozen=True, slots=True)
class Cost:
    """The step time in seconds (finite even where the step does not fit) and whether it fits.

    Where steps follow one another, their period is the step time. ``memory_excess`` is the
    largest excess of a device over its capacity in bytes, 0 where all fit; ``step_ps`` is the exact
    step time in ps; ``peaks`` are bytes by device.
    """

    seconds: float
    feasible: bool
    memory_excess: int
    step_ps: int
    peaks: tuple[int, ...]
