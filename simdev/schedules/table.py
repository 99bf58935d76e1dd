"""A schedule: the table of actions, checked, with what follows from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from ..errors import InputError
from ..frozen import freeze
from .action import Action
from .rules import problems, slots

Row = tuple[Action | None, ...]


@dataclass(frozen=True)
class Schedule:
    """A row of actions for each rank, None for an empty slot, which says nothing about time.

    ``asynchronous``: every backward is followed on the spot by an update of its stage's weights,
    and no flush ends the step (PipeDream). Raises InputError for a table that no pipeline could
    run, every problem with rank and slot.
    """

    rows: tuple[Row, ...]
    name: str = "custom"
    asynchronous: bool = False

    def __post_init__(self) -> None:
        freeze(self, "rows")
        found = list(problems(self.rows))
        if found:
            raise InputError(found)

    @cached_property
    def actions(self) -> tuple[Action, ...]:
        """All actions, rank by rank, in the order of their rows."""
        return tuple(action for row in self.rows for action in row if action is not None)

    @cached_property
    def rank_of(self) -> tuple[int, ...]:
        """The rank of each stage."""
        found = {
            action.stage: rank
            for rank, row in enumerate(self.rows)
            for action in row
            if action is not None
        }
        return tuple(found[stage] for stage in range(len(found)))

    @property
    def ranks(self) -> int:
        """How many devices the table spreads its stages over."""
        return len(self.rows)

    @property
    def stages(self) -> int:
        """How many stages the model is cut into."""
        return len(self.rank_of)

    @cached_property
    def microbatches(self) -> int:
        """How many microbatches make a step."""
        return len({action.microbatch for action in self.actions})

    @cached_property
    def chunks(self) -> tuple[int, ...]:
        """How many stages each rank runs."""
        count = Counter(self.rank_of)
        return tuple(count[rank] for rank in range(self.ranks))

    def __repr__(self) -> str:
        return (
            f"Schedule({self.name}: {self.ranks} ranks, {self.stages} stages, "
            f"{self.microbatches} microbatches)"
        )


def aligned(schedule: Schedule) -> Schedule:
    """The same order with empty slots put in, so that every action stands after those that it waits
    for.

    It is the grid of a pipeline whose actions all take one slot, for people to read.
    """
    place = slots(schedule.rows)
    return replace(schedule, rows=tuple(_spread(row, place) for row in schedule.rows))


def _spread(row: Row, place: Mapping[Action, int]) -> Row:
    found: list[Action | None] = []
    for action in row:
        if action is not None:
            found += [None] * (place[action] - len(found))
            found.append(action)
    return tuple(found)
