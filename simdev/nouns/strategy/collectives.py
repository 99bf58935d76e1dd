"""Which algorithm collectives take, and how they are costed, where an op does not say so itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Protocol

from ...ground.errors import refuse
from ...ground.units import Unit, decimal_text, is_count, parse_slowdown, unread

ALGORITHMS = ("auto", "ring", "tree", "hierarchical", "direct")
COSTS = ("auto", "closed", "table", "expanded")


class Table(Protocol):
    """Measured times of one collective over so many ranks
    (``simdev.costs.collectives.CollectiveTable``).
    """

    @property
    def collective(self) -> str: ...  # noqa: D102
    @property
    def ranks(self) -> int: ...  # noqa: D102
    @property
    def anchors(self) -> tuple[tuple[int, Fraction], ...]: ...  # noqa: D102
    @property
    def source(self) -> str: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Collectives:
    """How collective ops run unless their attributes say otherwise.

    - ``algorithm``: one of ALGORITHMS; "auto" is the fastest.
    - ``cost``: "closed", one task of the length of the closed form; "table", of the time in
      ``tables`` (the fastest closed form where they hold none); "expanded", its messages one by
      one; "auto" as ``settled_cost`` has it.
    - ``tables``: measured inside one node; none: those that the cluster names.
    - ``chunks``: into how many a broadcast or reduce along a chain is cut (None: the number of
      least closed form).
    - ``slowdown``: how many times longer computation and a collective take while they share a
      device (1: they do not slow each other; Galvatron, VLDB 2022, has 1.3). At most 2: what shares
      a device is no slower than in turn.
    """

    algorithm: str = ALGORITHMS[0]
    cost: str = COSTS[0]
    tables: tuple[Table, ...] = ()
    chunks: int | None = None
    slowdown: Annotated[Fraction, Unit(parse_slowdown, decimal_text)] = Fraction(1)

    def __post_init__(self) -> None:
        problems = list(choice_problems(self.algorithm, self.cost, self.chunks))
        # A path is a sequence too; its letters would be taken for tables.
        tables: object = self.tables
        if not isinstance(tables, Sequence) or isinstance(tables, str):
            problems.append("tables: must hold measured tables; files.read_collectives reads them")
        refuse(f"collectives.{problem}" for problem in [*problems, *unread(self)])
        object.__setattr__(self, "tables", tuple(self.tables))


def settled_cost(cost: str, algorithm: str, measured: bool) -> str:
    """The way to cost a collective that "auto" stands for, where there are tables (``measured``) or
    none: they know the algorithm that the library took, and tell of no other.
    """
    if cost != "auto":
        return cost
    return "table" if measured and algorithm == "auto" else "closed"


def choice_problems(algorithm: object, cost: object, chunks: object) -> list[str]:
    """What is wrong with an algorithm, a way to cost it and a number of chunks, as ``field:
    reason``.
    """
    problems = [
        f"{name}: must be one of {', '.join(choice)}, got {_shown(value)}"
        for name, value, choice in (("algorithm", algorithm, ALGORITHMS), ("cost", cost, COSTS))
        if value not in choice
    ]
    if chunks is not None and not (is_count(chunks) and chunks):
        problems.append(f"chunks: must be a whole number > 0, at most 2^60, got {_shown(chunks)}")
    return problems


def _shown(value: object) -> str:
    return f'"{value[:40]}"' if isinstance(value, str) else str(value)[:40]
