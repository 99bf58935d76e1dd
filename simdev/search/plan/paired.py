"""Bounds of DualPipe and DualPipeV: what ranks compute, for what they exchange is hidden, and what
they hold when they are warmed up.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from ...lowering.hybrid.buffers import persistent_bytes
from ...lowering.hybrid.program import Program
from ...nouns.models.large.roles import NO_LAYER
from ...nouns.schedules import BACKWARD, FORWARD, Schedule, named_schedule
from ...nouns.taskgraph import Ints
from .ground import Division
from .pieces import CLASSIFIER, EMBEDDING, Pieces
from .space import Plan, Setup


@cache
def _shape(name: str, pp: int) -> Schedule:
    """The least of a name and so many ranks: it tells where the stages are."""
    return named_schedule(name, pp, 2 * pp)


def computing_ps(pieces: Pieces, setup: Setup, counts: Ints) -> int:
    """What a rank computes in the mean; ``counts`` are the layers of each kind."""
    kinds, ends = (FORWARD, BACKWARD), (EMBEDDING, CLASSIFIER)
    each = sum(int(counts @ pieces.computing(kind)) for kind in kinds)
    each += sum(pieces.end_computing(end, kind) for end in ends for kind in kinds)
    # Halves of a backward are rounded each by itself, a ps at most.
    each -= 2 * int(counts.sum()) + 4
    return setup.microbatches * each // setup.layout.pp


def paired_bytes(pieces: Pieces, division: Division, plan: Plan, saved: Ints) -> Ints:
    """By rank: what is there throughout, and what all forwards before the first backward save."""
    p, pp = pieces.program.parallelism, plan.setup.layout.pp
    shape, shard = _shape(plan.schedule, pp), pieces.program.shard
    program = Program(shard, p, shape, division.layers, pieces.program.durations)
    buckets = ([n for n in program.buckets(rank) if n != NO_LAYER] for rank in range(pp))
    held = [
        sum(persistent_bytes(program, rank, layers).values()) for rank, layers in enumerate(buckets)
    ]
    # The turns of schedules.dualpipe: near microbatches come in from the nearer end.
    stages = pp * plan.chunks
    near = np.minimum(np.arange(pp), stages - 1 - np.arange(pp))
    both = near + 1
    warm: Ints = (2 * (stages // 2) - both) * saved[near] + both * saved[stages - 1 - near]
    return np.array(held, np.int64) + warm
