"""The settings of the genetic algorithm."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Self

SHARE = {"most": 1}


@dataclass(frozen=True, slots=True)
class Settings:
    """Sizes of the population. Goncalves and Resende (2011, section 2) recommend the ranges that
    are told here (recalled); what is chosen within them is ours.

    - ``population``: individuals (recommended: a multiple of the number of keys).
    - ``elite``: the share that survives as it is and of which one parent is (0.1 to 0.25).
    - ``mutants``: the share that is new at random in each generation (0.1 to 0.3).
    - ``inherit``: with which probability a key comes from the parent of the elite (0.5 to 0.8).
    - ``decoder``: what keys mean: "share", where the one key of a group cuts [0, 1) into a part for
      each of its devices, or "affinity", with a key for each device, of which the largest wins.
    """

    population: int = 100
    elite: float = field(default=0.2, metadata=SHARE)
    mutants: float = field(default=0.1, metadata=SHARE)
    inherit: float = field(default=0.7, metadata=SHARE)
    decoder: Literal["share", "affinity"] = "share"

    @classmethod
    def published(cls) -> Self:
        """The middle of each range, and REGAL's decoder (Paliwal and others, ICLR 2020)."""
        return cls(elite=0.2, mutants=0.2, inherit=0.7, decoder="affinity")
