"""Where a step's batch comes from: a loader on a host, and the copy to the devices."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from ...ground.errors import refuse
from ...ground.units import Seconds, name_problems, unread


@dataclass(frozen=True, slots=True)
class Loader:
    """Batches are made on ``device`` (a host), each in ``time`` seconds, and copied from there.

    All worker processes together make a batch in that time. Where steps follow one another the next
    batch is made and copied while a step runs: it begins when the first ops of that step have read
    theirs. Raises InputError.
    """

    device: str
    time: Seconds = Fraction(0)

    def __post_init__(self) -> None:
        problems = [*name_problems("device", self.device), *unread(self)]
        refuse(f"loader.{problem}" for problem in problems)
