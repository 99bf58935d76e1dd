"""The Violation of a rule of the execution contract, and the names of the rules.

A new rule needs its name here, its meaning in the docstring of this package, and a function in the
module of its layer.
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
    """A breach of a rule: the rule, the names of the tasks, resources and devices concerned, and a
    message.
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
