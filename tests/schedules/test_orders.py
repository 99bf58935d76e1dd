"""The order of a named schedule as columns is that of its table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedule_shapes import SHAPES
from simdev.ground.errors import InputError
from simdev.nouns.schedules import SCHEDULES, Schedule, named_schedule, order_of
from simdev.nouns.schedules.table import needs, readers

KINDS = {"F": 0, "B": 1, "I": 1, "W": 2}
NAMES = [name for name in SCHEDULES if name != "PipeDream"]


@given(st.sampled_from(NAMES), st.integers(1, 6), st.integers(1, 13), st.integers(1, 3))
def test_columns_are_those_of_the_table(
    name: str, ranks: int, microbatches: int, chunks: int
) -> None:
    chunks = chunks if name.startswith("Interleaved") else 1
    try:
        schedule = named_schedule(name, ranks, microbatches, chunks)
    except InputError as error:
        with pytest.raises(InputError, match=error.problems[0][:20]):
            order_of(name, ranks, microbatches, chunks)
        return
    # What is generated is not checked when it is made.
    assert Schedule(schedule.rows, schedule.name).replicas == schedule.replicas
    order = order_of(name, ranks, microbatches, chunks)
    for rank, row in enumerate(schedule.rows):
        actions = [(a.stage, KINDS[a.kind], a.microbatch) for a in row if a is not None]
        columns = (column[rank].tolist() for column in order)
        assert list(zip(*columns, strict=True)) == actions


@given(st.sampled_from(SHAPES))
def test_an_expansion_holds_every_action_once(shape: tuple[str, int, int, int]) -> None:
    """Parts, kinds and ranks are those of the actions; whoever needs an action reads it."""
    schedule = named_schedule(*shape)
    parts = {part: set(microbatches) for part, microbatches in schedule.parts.items()}
    assert sum(map(len, schedule.parts.values())) == len(schedule.actions)
    for rank, order in enumerate(schedule.orders):
        for action in order:
            assert schedule.rank(action) == rank
            assert action.microbatch in parts[schedule.part(action)]
            assert action.kind in schedule.kinds[action.stage]
            for needed in needs(action, schedule.number):
                assert action in readers(needed, schedule.number)
            for reader in readers(action, schedule.number):
                assert action in needs(reader, schedule.number)
