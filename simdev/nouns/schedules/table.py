"""A pipeline's schedule as a table of actions: the order of each rank, and the actions that each
action needs.

An *action* is what one stage does for one microbatch: forward, whole backward, or one of its two
halves. A table has a row for each *rank* (a device of the pipeline), and each row is divided into
*slots*, which hold an action or nothing. A stage may have several *replicas* on different ranks,
and a *part* is the actions of one replica that differ only in their microbatch. The second half of
the module refuses tables that no pipeline could run.

``generate.py`` beside this module makes tables, ``simdev/nouns/schedules/times.py`` times them, and
``simdev/lowering/pipeline.py``, ``simdev/lowering/stages.py`` and ``simdev/lowering/hybrid/`` lower
them: only this module knows the needs of an action, whether a stage is a time, ops of a graph, or
layers of a large model. A new kind of action is a row of ``NEEDS``, a time in ``StageTimes.ps``
(``times.py``), and its tasks in ``simdev/lowering/stages.py`` for ops and
``simdev/lowering/hybrid/templates.py`` for layers. Tests: ``tests/schedules/``;
``test_schedules_tables.py`` has the tables that are refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import accumulate, chain, islice, pairwise
from math import lcm
from typing import NamedTuple

from ...ground.errors import InputError, refuse
from ...ground.frozen import freeze

FORWARD, BACKWARD, INPUT, WEIGHT = "F", "B", "I", "W"
NEEDS = {
    FORWARD: ((-1, FORWARD),),
    BACKWARD: ((0, FORWARD), (1, BACKWARD), (1, INPUT)),
    INPUT: ((0, FORWARD), (1, INPUT), (1, BACKWARD)),
    WEIGHT: ((0, INPUT),),
}
"""The actions that each kind of action needs, as (stages further on, kind). Whole and halved
backwards are both listed, since the next stage may do its backward in the other way.
"""
READERS = {
    made: tuple(
        (-step, kind) for kind, needed in NEEDS.items() for step, of in needed if of == made
    )
    for made in NEEDS
}
"""The actions that need each kind of action, as (stages further on, kind)."""


class Action(NamedTuple):
    """An action of a stage for a microbatch, written as torch.distributed.pipelining does: ``2F0``.

    ``kind`` is F (forward), B (whole backward), I (gradient of the input) or W (gradient of the
    weights).
    """

    # A tuple, since actions are keys of large dictionaries, and dataclasses are several times
    # slower there.

    stage: int
    kind: str
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


Row = tuple[Action | None, ...]
Rows = Sequence[Sequence[Action | None]]
Place = tuple[int, int]  # rank, slot
Part = tuple[int, int, str]
"""(replica of the stage, stage, kind): actions that differ only in their microbatch."""

# Tables come from files, and a larger one would take minutes to check.
MAX_ACTIONS = 2_000_000
# A table of the wrong shape may lack thousands of actions; at most this many are named.
MISSING_SHOWN = 20


def check_sizes(ranks: int, microbatches: int, chunks: int = 1) -> None:
    """Raises InputError where a schedule has no action, or may have more than MAX_ACTIONS."""
    given = {"stages": ranks, "microbatches": microbatches, "chunks": chunks}
    wrong = [
        f"{name}: must be at least 1, got {value}" for name, value in given.items() if value < 1
    ]
    if not wrong and 3 * ranks * microbatches * chunks > MAX_ACTIONS:
        wrong = [f"stages, microbatches, chunks: make more than {MAX_ACTIONS:,} actions"]
    refuse(wrong)


def needs(action: Action, known: Container[Action]) -> list[Action]:
    """The ``known`` actions that must end before this one."""
    return _beside(action, NEEDS, known)


def readers(action: Action, known: Container[Action]) -> list[Action]:
    """The ``known`` actions that need this one."""
    return _beside(action, READERS, known)


def _beside(
    action: Action, steps: Mapping[str, tuple[tuple[int, str], ...]], known: Container[Action]
) -> list[Action]:
    stage, kind, microbatch = action
    others = [Action(stage + step, other, microbatch) for step, other in steps[kind]]
    return [other for other in others if other in known]


def slots(orders: Sequence[Sequence[Action]]) -> dict[Action, int]:
    """The slot in which each action runs if every action takes one slot.

    Actions that wait in a circle, and so never start, are left out.
    """
    known = frozenset(chain.from_iterable(orders))
    waits = {action: needs(action, known) for action in chain.from_iterable(orders)}
    for order in orders:
        for before, action in pairwise(order):
            waits[action].append(before)
    sorter, runs = TopologicalSorter(waits), dict[Action, int]()
    with suppress(CycleError):  # get_ready still gives the actions that wait for no circle
        sorter.prepare()
    while ready := sorter.get_ready():
        for action in ready:
            runs[action] = max((runs[needed] + 1 for needed in waits[action]), default=0)
        sorter.done(*ready)
    return runs


@dataclass(frozen=True)
class Schedule:
    """A row of actions for each rank; None is an empty slot, which says nothing about time.

    ``asynchronous``: every backward is followed at once by an update of its stage's weights, and no
    flush ends the step (PipeDream). ``replicas`` is by stage the number of ranks that run it (()
    for one each): where a stage has r, microbatch i runs on replica i mod r, forward and backward
    (1F1B-RR, Narayanan et al. 2019, section 3.2). ``bidirectional``: each stage is on two ranks,
    since the model has two copies whose microbatches run in opposite directions (DeepSeek-V3,
    section 3.2.1). ``overlaps`` are actions that run together with the next one of their row.
    Raises InputError for a table that no pipeline could run, every problem with rank and slot.
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
        """The schedule of rows that a generator made, each stage on one rank.

        The rows are not checked, which would take longer than to simulate them; tests check all
        published schedules.
        """
        made = object.__new__(cls)
        values = rows, name, asynchronous, (1,) * stages, False, frozenset[Action]()
        for field, value in zip(fields(cls), values, strict=True):
            object.__setattr__(made, field.name, value)
        return made

    @cached_property
    def orders(self) -> tuple[tuple[Action, ...], ...]:
        """The actions of each rank in their order: its row without empty slots."""
        return tuple(tuple(filter(None, row)) for row in self.rows)

    @cached_property
    def actions(self) -> tuple[Action, ...]:
        """All actions, rank by rank, in the order of their rows."""
        return tuple(chain.from_iterable(self.orders))

    @cached_property
    def number(self) -> dict[Action, int]:
        """The index of each action in ``actions``."""
        return {action: number for number, action in enumerate(self.actions)}

    def part(self, action: Action) -> Part:
        """The part of the schedule that an action belongs to."""
        return action.microbatch % self.replicas[action.stage], action.stage, action.kind

    @cached_property
    def parts(self) -> dict[Part, list[int]]:
        """The microbatches of each part, in the order in which its rank does them."""
        parts: dict[Part, list[int]] = {}
        for action in self.actions:
            parts.setdefault(self.part(action), []).append(action.microbatch)
        return parts

    @cached_property
    def kinds(self) -> tuple[frozenset[str], ...]:
        """The kinds of actions of each stage."""
        kinds: list[set[str]] = [set() for _ in self.replicas]
        for stage, kind in {action[:2] for action in self.actions}:
            kinds[stage].add(kind)
        return tuple(map(frozenset, kinds))

    @cached_property
    def first_replica(self) -> tuple[int, ...]:
        """The number of the first replica of each stage; replicas are numbered stage by stage."""
        return tuple(accumulate(self.replicas[:-1], initial=0))

    def replica(self, action: Action) -> int:
        """The number of the replica that an action runs on."""
        return self.first_replica[action.stage] + action.microbatch % self.replicas[action.stage]

    @cached_property
    def home(self) -> tuple[int, ...]:
        """The rank of each replica."""
        homes = {
            self.replica(action): rank for rank, order in enumerate(self.orders) for action in order
        }
        return tuple(homes[replica] for replica in range(len(homes)))

    def rank(self, action: Action) -> int:
        """The rank that runs an action."""
        return self.home[self.replica(action)]

    @cached_property
    def rank_of(self) -> tuple[int, ...]:
        """The rank of the first replica of each stage."""
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
        """The number of devices that the table spreads its stages over."""
        return len(self.rows)

    @property
    def stages(self) -> int:
        """The number of stages that the model is cut into."""
        return len(self.replicas)

    @cached_property
    def round(self) -> int:
        """The number of microbatches after which every stage is at its first replica again."""
        return lcm(*self.replicas)

    @cached_property
    def microbatches(self) -> int:
        """The number of microbatches of a step."""
        return len({action.microbatch for action in self.actions})

    @cached_property
    def chunks(self) -> tuple[int, ...]:
        """The number of stages of a microbatch that each rank runs."""
        # With two directions a rank has stages of both copies; a microbatch passes half of them.
        count, ways = Counter(self.home), 1 + self.bidirectional
        return tuple(count[rank] // ways for rank in range(self.ranks))

    @cached_property
    def pairs(self) -> dict[Action, Action]:
        """Each forward that overlaps with a whole backward, and that backward."""
        return {
            first: second
            for order in self.orders
            for first, second in pairwise(order)
            if first in self.overlaps and (first.kind, second.kind) == (FORWARD, BACKWARD)
        }

    def __repr__(self) -> str:
        return (
            f"Schedule({self.name}: {self.ranks} ranks, {self.stages} stages, "
            f"{self.microbatches} microbatches)"
        )


def aligned(schedule: Schedule) -> Schedule:
    """The schedule with added empty slots, so that each action is in a later slot than all actions
    that it waits for.

    This is the grid of a pipeline whose actions all take one slot, for people to read.
    """
    slot, rows = slots(schedule.orders), list[Row]()
    for order in schedule.orders:
        row: list[Action | None] = []
        for action in order:
            row += [None] * (slot[action] - len(row)) + [action]
        rows.append(tuple(row))
    return replace(schedule, rows=tuple(rows))


def weight_versions(schedule: Schedule) -> tuple[int, ...]:
    """The most versions of its weights that each stage holds at once; 1 in a synchronous schedule.

    Weight stashing (PipeDream, Narayanan et al. 2019, section 3.3): a microbatch goes backward
    through the weights that it went forward through, while every backward makes a new version. In
    1F1B stage s of p needs p - s. A replica updates once for its own backward, so in 1F1B-RR a
    stage needs the workers from it to the last stage, over its own workers, rounded up.
    """
    # A flush ends each step before the weights change.
    if not schedule.asynchronous:
        return (1,) * schedule.stages
    homes = iter(schedule.home)
    return tuple(
        max(_versions(schedule.orders[rank], stage) for rank in islice(homes, count))
        for stage, count in enumerate(schedule.replicas)
    )


def _versions(order: Iterable[Action], stage: int) -> int:
    """The most versions that a stage holds while a rank runs its actions in this order."""
    current, most = 0, 1
    stashed: dict[int, int] = {}  # microbatch -> the version it went forward through
    for action in (action for action in order if action.stage == stage):
        if action.kind == FORWARD:
            stashed[action.microbatch] = current
        elif action.kind in (BACKWARD, WEIGHT):
            del stashed[action.microbatch]
            current += 1
        most = max(most, len({current, *stashed.values()}))
    return most


# The tables that a pipeline can run: each replica of a stage is on one rank, each action is there
# once, and the orders of the ranks can finish.


def problems(rows: Rows, replicas: Sequence[int] = ()) -> Iterator[str]:
    """The faults of a table, by rank and slot; a fault that is only a consequence of another is
    left out.

    ``replicas`` are by stage; () where each has one.
    """
    if not any(action is not None for row in rows for action in row):
        yield "the schedule holds no action"
        return
    places: dict[Action, Place] = {}
    faults = [*_idle_ranks(rows), *_twice(rows, places), *_gaps(places)]
    faults = faults or list(_replica_faults(places, replicas)) or list(_two_ranks(places, replicas))
    # A later check is right only where the earlier ones found nothing.
    yield from (
        faults or list(_incomplete(places)) or list(_disorder(places)) or _waiting(rows, places)
    )


def _at(place: Place) -> str:
    return f"rank {place[0]}, slot {place[1]}"


def _idle_ranks(rows: Rows) -> Iterator[str]:
    for rank, row in enumerate(rows):
        if all(action is None for action in row):
            yield f"rank {rank}: has no action"


def _twice(rows: Rows, places: dict[Action, Place]) -> Iterator[str]:
    """Actions that are in the table twice; fills ``places``."""
    for rank, row in enumerate(rows):
        for slot, action in enumerate(row):
            if action is None:
                continue
            first = places.setdefault(action, (rank, slot))
            if first != (rank, slot):
                yield f"{_at((rank, slot))}: {action} stands at {_at(first)} already"


def _two_ranks(places: Mapping[Action, Place], replicas: Sequence[int]) -> Iterator[str]:
    home: dict[tuple[int, int], int] = {}
    reported = set()
    for action, place in places.items():
        count = replicas[action.stage] if replicas else 1
        replica = action.stage, action.microbatch % count
        first, key = home.setdefault(replica, place[0]), (*replica, place[0])
        if first != place[0] and key not in reported:
            reported.add(key)
            owner = f"replica {replica[1]} of " * (count > 1) + f"stage {action.stage}"
            yield f"{_at(place)}: {action} belongs to {owner}, which runs on rank {first}"
    if reported:
        return
    ranks: dict[tuple[int, int], int] = {}
    for (stage, number), rank in home.items():
        first = ranks.setdefault((stage, rank), number)
        if first != number:
            yield f"rank {rank}: runs the replicas {first} and {number} of stage {stage}"


def _replica_faults(places: Iterable[Action], replicas: Sequence[int]) -> Iterator[str]:
    if not replicas:
        return
    stages = len({action.stage for action in places})
    if len(replicas) != stages or any(count < 1 for count in replicas):
        yield (
            f"replicas: must hold {stages} numbers of at least 1, one for each stage, "
            f"got {list(replicas)}"
        )


def _gaps(places: Iterable[Action]) -> Iterator[str]:
    """Faults where stages and microbatches are not numbered from 0 without gaps."""
    for name in ("stage", "microbatch"):
        numbers = {getattr(action, name) for action in places}
        absent = next(number for number in range(len(numbers) + 1) if number not in numbers)
        if absent < len(numbers):
            yield f"{name} {absent}: no rank runs it, but {name} {max(numbers)} stands in the table"


def _incomplete(places: Mapping[Action, Place]) -> Iterator[str]:
    """Faults where a stage lacks a microbatch's forward, or its backward, whole or in two parts."""
    home = {action.stage: place[0] for action, place in places.items()}
    microbatches = range(len({action.microbatch for action in places}))
    faults = (
        f"rank {home[stage]}{fault}"
        for stage in range(len(home))
        for microbatch in microbatches
        for fault in _missing(stage, microbatch, places)
    )
    return islice(faults, MISSING_SHOWN)


def _missing(stage: int, microbatch: int, places: Mapping[Action, Place]) -> Iterator[str]:
    kinds = (FORWARD, BACKWARD, INPUT, WEIGHT)
    forward, whole, half, rest = (Action(stage, kind, microbatch) for kind in kinds)
    if forward not in places:
        yield f": {forward} is missing"
    split = [action for action in (half, rest) if action in places]
    if not split:
        if whole not in places:
            yield f": {whole} is missing (or {half} and {rest})"
        return
    at = f", slot {places[split[0]][1]}: {split[0]}, but"
    if whole in places:
        yield f"{at} {whole} (slot {places[whole][1]}) is the whole backward"
    elif len(split) == 1:
        yield f"{at} {rest if split[0] == half else half} is missing"


def _disorder(places: Mapping[Action, Place]) -> Iterator[str]:
    """Faults where an action comes before an action on the same rank that it needs."""
    for action, place in places.items():
        for wanted in needs(action, places):
            rank, slot = places[wanted]
            if rank == place[0] and slot > place[1]:
                yield f"{_at(place)}: {action} stands before {wanted} (slot {slot}), which it needs"


def _waiting(rows: Rows, places: Mapping[Action, Place]) -> Iterator[str]:
    """A fault where ranks wait for one another in a circle."""
    orders = [[action for action in row if action is not None] for row in rows]
    runs = slots(orders).keys()
    heads = [next((each for each in order if each not in runs), None) for order in orders]
    rank = next((rank for rank, head in enumerate(heads) if head is not None), None)
    waits: dict[int, str] = {}
    while rank is not None and rank not in waits:
        head = heads[rank]
        assert head is not None
        wanted = next(action for action in needs(head, places) if action not in runs)
        other, slot = places[wanted]
        behind = heads[other]
        waits[rank] = (
            f"{_at(places[head])}: {head} waits for {wanted} (slot {slot} of rank {other})"
        )
        if behind is not None and behind != wanted:
            waits[rank] += f", which stands behind {behind} (slot {places[behind][1]})"
        rank = other
    if rank is not None:
        circle = list(waits)
        yield from (f"deadlock: {waits[each]}" for each in circle[circle.index(rank) :])
