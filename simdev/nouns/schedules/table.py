"""A schedule: the table of actions, checked, with what follows from it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import accumulate, islice, pairwise
from math import lcm

from ...ground.errors import InputError, refuse
from ...ground.frozen import freeze
from .actions import BACKWARD, FORWARD, WEIGHT, Action, problems, slots

Row = tuple[Action | None, ...]


@dataclass(frozen=True)
class Schedule:
    """A row of actions for each rank, None for an empty slot, which says nothing about time.

    ``asynchronous``: every backward is followed on the spot by an update of its stage's weights,
    and no flush ends the step (PipeDream). ``replicas`` says by stage on how many ranks it stands
    (() for one each): microbatch i of a stage of r runs on its replica i mod r, forward and
    backward (1F1B-RR, Narayanan et al. 2019, section 3.2). ``bidirectional``: each stage
    stands on two ranks, for the two copies of a model whose microbatches run in opposite directions
    (DeepSeek-V3, section 3.2.1). ``overlaps`` are actions that run together with the next one of
    their row, where the times tell what the two take. Raises InputError for a table that no
    pipeline could run, every problem with rank and slot.
    """

    rows: tuple[Row, ...]
    name: str = "custom"
    asynchronous: bool = False
    replicas: tuple[int, ...] = ()
    bidirectional: bool = False
    overlaps: frozenset[Action] = frozenset()

    def __post_init__(self) -> None:
        freeze(self, "rows", "replicas")
        refuse(problems(self.rows, self.replicas))
        if not self.replicas:
            stages = len({action.stage for action in self.actions})
            object.__setattr__(self, "replicas", (1,) * stages)
        if max(self.replicas) > 1 and not (self.asynchronous or self.bidirectional):
            raise InputError("replicas: only an asynchronous schedule runs microbatches in turn")

    @classmethod
    def generated(
        cls, rows: tuple[Row, ...], name: str, asynchronous: bool, stages: int
    ) -> Schedule:
        """The schedule of rows that a generator made, each stage on a rank: they are not checked,
        which takes longer than to simulate them (tests check all that are published).
        """
        made = object.__new__(cls)
        values = rows, name, asynchronous, (1,) * stages, False, frozenset[Action]()
        for field, value in zip(fields(cls), values, strict=True):
            object.__setattr__(made, field.name, value)
        return made

    @cached_property
    def actions(self) -> tuple[Action, ...]:
        """All actions, rank by rank, in the order of their rows."""
        return tuple(action for row in self.rows for action in row if action is not None)

    @cached_property
    def first_replica(self) -> tuple[int, ...]:
        """By stage the number of its first replica: all are numbered, stage by stage."""
        return tuple(accumulate(self.replicas[:-1], initial=0))

    def replica(self, action: Action) -> int:
        """The number of the replica that an action runs on."""
        return self.first_replica[action.stage] + action.microbatch % self.replicas[action.stage]

    @cached_property
    def home(self) -> tuple[int, ...]:
        """The rank of each replica."""
        homes = {
            self.replica(action): rank
            for rank, row in enumerate(self.rows)
            for action in row
            if action is not None
        }
        return tuple(homes[replica] for replica in range(len(homes)))

    @cached_property
    def rank_of(self) -> tuple[int, ...]:
        """The rank of each stage; of its first replica, where it has several."""
        return tuple(self.home[replica] for replica in self.first_replica)

    @cached_property
    def stages_of(self) -> tuple[tuple[int, ...], ...]:
        """The stages that each rank runs."""
        stages: list[list[int]] = [[] for _ in self.rows]
        owners = (stage for stage, count in enumerate(self.replicas) for _ in range(count))
        for stage, rank in zip(owners, self.home, strict=True):
            stages[rank].append(stage)
        return tuple(map(tuple, stages))

    @property
    def ranks(self) -> int:
        """How many devices the table spreads its stages over."""
        return len(self.rows)

    @property
    def stages(self) -> int:
        """How many stages the model is cut into."""
        return len(self.replicas)

    @cached_property
    def round(self) -> int:
        """After how many microbatches every stage begins anew with its first replica."""
        return lcm(*self.replicas)

    @cached_property
    def microbatches(self) -> int:
        """How many microbatches make a step."""
        return len({action.microbatch for action in self.actions})

    @cached_property
    def chunks(self) -> tuple[int, ...]:
        """How many stages of a microbatch each rank runs."""
        # In one direction a rank runs other stages than in the other one.
        count, ways = Counter(self.home), 1 + self.bidirectional
        return tuple(count[rank] // ways for rank in range(self.ranks))

    @cached_property
    def pairs(self) -> dict[Action, Action]:
        """Each forward that overlaps with a whole backward, and that backward."""
        rows = ([action for action in row if action is not None] for row in self.rows)
        return {
            first: second
            for row in rows
            for first, second in pairwise(row)
            if first in self.overlaps and (first.kind, second.kind) == (FORWARD, BACKWARD)
        }

    def __repr__(self) -> str:
        return (
            f"Schedule({self.name}: {self.ranks} ranks, {self.stages} stages, "
            f"{self.microbatches} microbatches)"
        )


def aligned(schedule: Schedule) -> Schedule:
    """Empty slots put in, so that every action stands after those that it waits for.

    It is the grid of a pipeline whose actions all take one slot, for people to read.
    """
    slot = slots(schedule.rows)
    rows: list[Row] = []
    for actions in schedule.rows:
        row: list[Action | None] = []
        for action in actions:
            if action is not None:
                row += [None] * (slot[action] - len(row)) + [action]
        rows.append(tuple(row))
    return replace(schedule, rows=tuple(rows))


def weight_versions(schedule: Schedule) -> tuple[int, ...]:
    """The most versions of its weights that each stage holds at once; 1 in a synchronous schedule.

    Weight stashing (PipeDream, Narayanan et al. 2019, section 3.3): a microbatch goes backward
    through the weights that it went forward through, while every backward makes a new version. In
    1F1B stage s of p needs p - s. A replica updates once for its own backward, so in 1F1B-RR a
    stage needs its workers and those of all stages after it, over its own, rounded up.
    """
    # A flush ends each step before the weights change.
    if not schedule.asynchronous:
        return (1,) * schedule.stages
    homes = iter(schedule.home)
    return tuple(
        max(_versions(schedule.rows[rank], stage) for rank in islice(homes, count))
        for stage, count in enumerate(schedule.replicas)
    )


def _versions(row: Row, stage: int) -> int:
    current, most = 0, 1
    stashed: dict[int, int] = {}  # microbatch -> the version it went forward through
    for action in row:
        if action is None or action.stage != stage:
            continue
        if action.kind == FORWARD:
            stashed[action.microbatch] = current
        elif action.kind in (BACKWARD, WEIGHT):
            del stashed[action.microbatch]
            current += 1
        most = max(most, len({current, *stashed.values()}))
    return most
