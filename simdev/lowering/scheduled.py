"""The schedule of a strategy's pipeline."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import InputError
from ..schedules import BACKWARD, FORWARD, INPUT, Schedule, named_schedule, read_csv
from ..strategy.parallelism import Parallelism


def schedule_of(p: Parallelism) -> Schedule:
    """The schedule that a parallelism names or holds. Raises InputError."""
    if p.table is not None:
        try:
            found = read_csv(p.table)
        except InputError as error:
            raise InputError([f"table: {problem}" for problem in error.problems]) from None
    else:
        found = named_schedule(p.schedule, p.pp, p.microbatches, p.chunks)
    problems = list(_schedule_problems(found, p))
    if problems:
        raise InputError(problems)
    return found


def _schedule_problems(found: Schedule, p: Parallelism) -> Iterator[str]:
    if found.asynchronous:
        yield (
            f"schedule: {found.name} has no step whose time could be told; `simdev "
            "pipeline` runs it"
        )
    for name, told, count in (
        ("pp", p.pp, found.ranks),
        ("microbatches", p.microbatches, found.microbatches),
    ):
        if told != count:
            yield f"{name}: is {told}, but the table has {count}"
    kinds: dict[int, set[str]] = {}
    for action in found.actions:
        if action.kind != FORWARD:
            kinds.setdefault(action.stage, set()).add(action.kind)
    for stage, some in sorted(kinds.items()):
        if {BACKWARD, INPUT} <= some:
            yield f"table: stage {stage} does some backwards whole and some in two; do all alike"
