"""A table that embedding and classifier share: what ranks send each other for its gradient."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from hybrid_steps import DENSE, lowered
from simdev.nouns.models.large.roles import DATA, PIPELINE, LargeStep
from simdev.nouns.schedules import BIDIRECTIONAL, FOLDED, NAMES
from simdev.nouns.strategy.parallelism import Parallelism
from simdev.nouns.taskgraph import TaskGraph

PLANNED = [name for name in NAMES if name != "PipeDream"]
CHUNKED = {"Interleaved1F1B": 2, "InterleavedZeroBubble": 2}
FOLDED_TABLE = "0F0,1F0,1B0,0B0\n"  # both stages on one rank
ONE_HOME = "1F0,1F1,1B0,1B1\n0F0,2F0,0F1,2F1,2B0,0B0,2B1,0B1\n"


def plan_drawn(draw: random.Random, schedule: str) -> Parallelism:
    pp = draw.choice((2, 4))
    two_ways = schedule in BIDIRECTIONAL
    return Parallelism(
        dp=draw.choice((1, 2)), tp=draw.choice((1, 2)), pp=pp,
        schedule=schedule, chunks=CHUNKED.get(schedule, 1),
        microbatches=2 * pp * draw.choice((1, 2)),
        zero=draw.choice((0, 1) if two_ways else (0, 1, 2, 3)), overlap=draw.random() < 0.5,
        gradient_bytes=draw.choice((2, 4)), recompute=draw.choice(("none", "full")),
    )  # fmt: skip


def exchanged(task_graph: TaskGraph, large: LargeStep) -> int:
    """Bytes that ranks send each other behind the actions, for a table on two of them."""
    return int(task_graph.tasks.bytes[(large.role == PIPELINE) & (large.microbatch < 0)].sum())


def table(p: Parallelism) -> int:
    """Parameters of the table on a device: rows for all of tp, in multiples of 128."""
    return -(-DENSE.vocabulary // (128 * p.tp)) * 128 * DENSE.hidden


def check(draw: random.Random, schedule: str) -> None:
    p = plan_drawn(draw, schedule)
    task_graph, large = lowered(DENSE, p, symmetry=False)
    shares = p.replicas if p.zero >= 2 else 1
    alone = p.replicas * p.tp * -(-table(p) // shares) * p.gradient_bytes
    together = schedule in (*BIDIRECTIONAL, *FOLDED)
    assert exchanged(task_graph, large) == (0 if together else alone), p
    apart, large = lowered(replace(DENSE, tied=False), p, symmetry=False)
    assert exchanged(apart, large) == 0


@pytest.mark.parametrize("schedule", PLANNED)
def test_a_table_is_exchanged_where_its_ends_stand_on_two_ranks(schedule: str) -> None:
    for seed in range(3):
        check(random.Random(seed), schedule)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", PLANNED)
def test_a_table_is_exchanged_where_its_ends_stand_on_two_ranks_whatever_else(
    schedule: str,
) -> None:
    for seed in range(3, 114):
        check(random.Random(seed), schedule)


@pytest.mark.parametrize(
    ("pp", "microbatches", "written"), [(1, 1, FOLDED_TABLE), (2, 2, ONE_HOME)]
)
def test_a_table_of_actions_with_both_ends_on_a_rank_sends_none(
    pp: int, microbatches: int, written: str
) -> None:
    p = Parallelism(pp=pp, microbatches=microbatches, table=written)
    assert exchanged(*lowered(DENSE, p)) == 0


@pytest.mark.parametrize("zero", [0, 1])
def test_the_copies_of_a_tied_table_are_joined_once(zero: int) -> None:
    """Each rank sends the other what that one updates: of both ends one table."""
    p = Parallelism(schedule="DualPipe", pp=2, microbatches=4, zero=zero)
    sent = {}
    for tied in (True, False):
        task_graph, large = lowered(replace(DENSE, tied=tied), p)
        sent[tied] = int(task_graph.tasks.bytes[large.role == DATA].sum())
    each = (4 + 2 * zero) / (1 + zero)  # with ZeRO 1 a half, as a gradient and back as a parameter
    assert sent[False] - sent[True] == 2 * table(p) * each
