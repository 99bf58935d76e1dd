"""The cells of a schedule, what each of them needs, and which tables of them a pipeline can run.

Every stage stands on one rank, every action once, in an order that can finish.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple

FORWARD, BACKWARD, INPUT, WEIGHT = "F", "B", "I", "W"


class Action(NamedTuple):
    """What a stage does for a microbatch, written as torch.distributed.pipelining does: ``2F0``.

    ``kind`` is F (forward), B (whole backward), I (gradient of the input) or W (gradient of the
    weights).
    """

    # A tuple, for actions are the keys of large tables, and a dataclass takes several times as
    # long to look up.

    stage: int
    kind: str
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


Rows = Sequence[Sequence[Action | None]]
Place = tuple[int, int]  # rank, slot

# A table of the wrong shape lacks thousands.
MISSING_SHOWN = 20


def needs(action: Action, known: Container[Action]) -> tuple[Action, ...]:
    """The actions that must end before this one, of those that are ``known``.

    A forward needs the forward of the stage before it; a backward, whole or of the input, its own
    forward and the backward of the stage after it; the gradient of the weights needs that of the
    input.
    """
    stage, kind, microbatch = action
    if kind == WEIGHT:
        wanted = [Action(stage, INPUT, microbatch)]
    elif kind == FORWARD:
        wanted = [Action(stage - 1, FORWARD, microbatch)]
    else:
        wanted = [Action(stage, FORWARD, microbatch), Action(stage + 1, kind, microbatch)]
        if wanted[1] not in known:  # the stage after it may do its backward the other way
            wanted[1] = Action(stage + 1, INPUT if kind == BACKWARD else BACKWARD, microbatch)
    return tuple([needed for needed in wanted if needed in known])


def problems(rows: Rows, replicas: Sequence[int] = ()) -> Iterator[str]:
    """What is wrong with a table, by rank and slot; what follows from a fault is left out.

    ``replicas`` by stage, where stages have several.
    """
    if not any(action is not None for row in rows for action in row):
        yield "the schedule holds no action"
        return
    places: dict[Action, Place] = {}
    faults = [*_idle_ranks(rows), *_twice(rows, places), *_gaps(places)]
    faults = faults or list(_replica_faults(places, replicas)) or list(_two_ranks(places, replicas))
    # The later checks rest on the earlier ones.
    yield from (
        faults or list(_incomplete(places)) or list(_disorder(places)) or _waiting(rows, places)
    )


def slots(rows: Rows) -> dict[Action, int]:
    """The slot in which each action runs where each takes one; what can never start is left out."""
    order = [[action for action in row if action is not None] for row in rows]
    known = frozenset(chain.from_iterable(order))
    waits: dict[Action, int] = {}
    after: dict[Action, list[Action]] = {}
    for row in order:
        for before, action in zip([None, *row], row, strict=False):
            wanted = (*needs(action, known), *(() if before is None else (before,)))
            waits[action] = len(wanted)
            for needed in wanted:
                after.setdefault(needed, []).append(action)
    # The longest chain of what it needs: Kahn's algorithm, which leaves circles out.
    level = dict.fromkeys(waits, 0)
    ready = [action for action, count in waits.items() if not count]
    runs: dict[Action, int] = {}
    while ready:
        action = ready.pop()
        runs[action] = level[action]
        for later in after.get(action, ()):
            level[later] = max(level[later], level[action] + 1)
            waits[later] -= 1
            if not waits[later]:
                ready.append(later)
    return runs


def _at(place: Place) -> str:
    return f"rank {place[0]}, slot {place[1]}"


def _idle_ranks(rows: Rows) -> Iterator[str]:
    for rank, row in enumerate(rows):
        if all(action is None for action in row):
            yield f"rank {rank}: has no action"


def _twice(rows: Rows, places: dict[Action, Place]) -> Iterator[str]:
    """Fills ``places``."""
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
    """Stages and microbatches are numbered from 0 without a gap."""
    for name in ("stage", "microbatch"):
        numbers = {getattr(action, name) for action in places}
        absent = next(number for number in range(len(numbers) + 1) if number not in numbers)
        if absent < len(numbers):
            yield f"{name} {absent}: no rank runs it, but {name} {max(numbers)} stands in the table"


def _incomplete(places: Mapping[Action, Place]) -> Iterator[str]:
    """Every stage does each microbatch forward, and backward: whole, or in its two parts."""
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
    """On one rank, what an action needs stands before it."""
    for action, place in places.items():
        for wanted in needs(action, places):
            rank, slot = places[wanted]
            if rank == place[0] and slot > place[1]:
                yield f"{_at(place)}: {action} stands before {wanted} (slot {slot}), which it needs"


def _waiting(rows: Rows, places: Mapping[Action, Place]) -> Iterator[str]:
    """The circle of ranks that wait for one another for ever, if there is one."""
    runs = slots(rows).keys()
    stuck = (
        (action for action in row if action is not None and action not in runs) for row in rows
    )
    heads = [next(actions, None) for actions in stuck]
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
