"""One breach of the execution contract, and the names of the rules.

A new rule is a name here, its meaning in the docstring of this package, and a function of the layer
that judges it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

RULES = (
    "columns",
    "ran",
    "duration",
    "precedence",
    "overlap",
    "data",
    "bytes",
    "order",
    "waiting",
    "flow",
    "bounds",
    "dispatch",
    "thread",
    "ahead",
    "blocks",
    "stream",
    "step",
    "peak",
    "levels",
    "overflow",
    "feasible",
)


@dataclass(frozen=True, slots=True)
class Violation:
    """Which rule is broken, the names of the tasks, resources and devices concerned, and what is
    wrong.
    """

    rule: str
    names: tuple[str, ...]
    message: str

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"rule: must be one of {', '.join(RULES)}, got {self.rule!r}")

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"


Faults = Iterator[Violation]
