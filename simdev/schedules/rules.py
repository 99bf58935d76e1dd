"""What makes a table a schedule: every stage on one rank, every action once, and an order that can
finish.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain

from .action import BACKWARD, FORWARD, INPUT, WEIGHT, Action, needs

Rows = Sequence[Sequence[Action | None]]
Place = tuple[int, int]  # rank, slot

MISSING_SHOWN = 20


def problems(rows: Rows) -> Iterator[str]:
    """What is wrong with a table, by rank and slot; a deeper fault is told only where the ones
    before it are absent.
    """
    if not any(action is not None for row in rows for action in row):
        yield "the schedule holds no action"
        return
    places: dict[Action, Place] = {}
    found = [*_idle_ranks(rows), *_twice(rows, places), *_two_ranks(places), *_gaps(places)]
    found = found or list(_incomplete(places))
    found = found or list(_disorder(places))
    yield from found or _waiting(rows, places)


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
            for one in wanted:
                after.setdefault(one, []).append(action)
    level = dict.fromkeys(waits, 0)
    ready = [action for action, count in waits.items() if not count]
    found: dict[Action, int] = {}
    while ready:
        action = ready.pop()
        found[action] = level[action]
        for later in after.get(action, ()):
            level[later] = max(level[later], level[action] + 1)
            waits[later] -= 1
            if not waits[later]:
                ready.append(later)
    return found


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


def _two_ranks(places: Mapping[Action, Place]) -> Iterator[str]:
    home: dict[int, Place] = {}
    told = set()
    for action, place in places.items():
        first = home.setdefault(action.stage, place)
        if first[0] != place[0] and (action.stage, place[0]) not in told:
            told.add((action.stage, place[0]))
            yield (
                f"{_at(place)}: {action} belongs to stage {action.stage}, which runs on "
                f"rank {first[0]}"
            )


def _gaps(places: Iterable[Action]) -> Iterator[str]:
    """Stages and microbatches are numbered from 0 without a gap."""
    for what, numbers in (
        ("stage", {action.stage for action in places}),
        ("microbatch", {action.microbatch for action in places}),
    ):
        absent = next(number for number in range(len(numbers) + 1) if number not in numbers)
        if absent < len(numbers):
            yield f"{what} {absent}: no rank runs it, but {what} {max(numbers)} stands in the table"


def _incomplete(places: Mapping[Action, Place]) -> Iterator[str]:
    """Every stage does each microbatch forward, and backward: whole, or in its two parts."""
    home = {action.stage: place[0] for action, place in places.items()}
    microbatches = range(len({action.microbatch for action in places}))
    shown = 0
    for stage in range(len(home)):
        for microbatch in microbatches:
            for problem in _one_incomplete(stage, microbatch, places):
                yield f"rank {home[stage]}{problem}"
                shown += 1
                if shown == MISSING_SHOWN:
                    return


def _one_incomplete(stage: int, microbatch: int, places: Mapping[Action, Place]) -> Iterator[str]:
    forward, whole, half, rest = (
        Action(stage, kind, microbatch) for kind in (FORWARD, BACKWARD, INPUT, WEIGHT)
    )
    if forward not in places:
        yield f": {forward} is missing"
    split = [action for action in (half, rest) if action in places]
    if whole in places and split:
        yield (
            f", slot {places[split[0]][1]}: {split[0]}, but {whole} (slot "
            f"{places[whole][1]}) is the whole backward"
        )
    elif whole not in places and not split:
        yield f": {whole} is missing (or {half} and {rest})"
    elif len(split) == 1:
        yield (
            f", slot {places[split[0]][1]}: {split[0]}, but "
            f"{rest if split[0] == half else half} is missing"
        )


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
    heads = [
        next((action for action in row if action is not None and action not in runs), None)
        for row in rows
    ]
    rank = next((rank for rank, head in enumerate(heads) if head is not None), None)
    seen: dict[int, str] = {}
    while rank is not None and rank not in seen:
        head = heads[rank]
        assert head is not None
        wanted = _blocker(head, runs, places)
        there = places[wanted]
        behind = heads[there[0]]
        seen[rank] = (
            f"{_at(places[head])}: {head} waits for {wanted} (slot {there[1]} of rank {there[0]})"
        )
        if behind is not None and behind != wanted:
            seen[rank] += f", which stands behind {behind} (slot {places[behind][1]})"
        rank = there[0]
    if rank is not None:
        circle = list(seen)
        yield from (f"deadlock: {seen[one]}" for one in circle[circle.index(rank) :])


def _blocker(head: Action, runs: Set[Action], places: Mapping[Action, Place]) -> Action:
    return next(wanted for wanted in needs(head, places) if wanted not in runs)
