"""Bounds: what no plan can be faster than, and what it holds at the least, without simulating it.

Of the edges of a step those are kept that join whole actions: on each rank one after the other in
the order of the schedule, and across ranks by what they send. All starts of the step meet these, so
its longest path is no longer than the step; queues that it leaves out (of transfers, of the
replicas) count by their load. docs/how-to/plan.md has the proofs.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ...lowering.hybrid.program import Program
from ...models.large import shard_of
from ...schedules import BACKWARD, FORWARD, SEARCHED, SPLIT, Schedule, named_schedule
from ...taskgraph import Ints
from ..kernels.compiling import Columns
from ..kernels.pipelines import Held, run_held
from .ground import Division, Ground, flat_order
from .path import Path
from .pieces import CLASSIFIER, EMBEDDING, MAIN, Pieces
from .question import Question
from .space import Plan, Setup

UNKNOWN = 0


class Bound(NamedTuple):
    """At least so many ps and bytes; ``fits`` unless the bytes exceed a capacity."""

    step_ps: int
    peak_bytes: int
    fits: bool


@cache
def _shape(pp: int) -> Schedule:
    """Any schedule of so many ranks: it tells where the first and the last stage are."""
    return named_schedule("1F1B", pp, 1)


class Bounds:
    """The bounds of the plans of a question; what they share is worked out once."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.ground = cache(self._ground)
        # Of the setup that was asked for last.
        self._pieces: tuple[Any, dict[int, Pieces]] = None, {}
        self._flying: dict[tuple[str, int], Ints] = {}
        self._ended: dict[tuple[str, int], tuple[Ints, Ints]] = {}

    def _ground(self, number: int) -> Ground:
        return Ground(self.question, number)

    def pieces(self, setup: Setup, zero: int) -> Pieces:
        """Those of a setup, which are kept for its next plan."""
        if self._pieces[0] != setup:
            self._pieces, self._flying, self._ended = (setup, {}), {}, {}
        if zero not in self._pieces[1]:
            ground = self.ground(setup.layout.cluster)
            plan = Plan(setup, "1F1B", 1, zero)
            p, shape = plan.parallelism, _shape(setup.layout.pp)
            layers = ground.division(setup.layout.pp).layers
            shard = shard_of(self.question.model, p)
            program = Program(shard, p, shape, layers, ground.durations(plan))
            ranks = ground.ranks(setup.layout.pp)
            self._pieces[1][zero] = Pieces(program, ground.kinds, ranks)
        return self._pieces[1][zero]

    def setup_ps(self, setup: Setup) -> int:
        """What no plan of a setup is faster than: what a rank computes and exchanges in the mean,
        behind the forwards of the stages before it, of a layer each at the least.
        """
        pieces, pp = self.pieces(setup, 0), setup.layout.pp
        counts = np.bincount(self.ground(setup.layout.cluster).kind)
        forward, backward = pieces.layers(FORWARD)[:, MAIN], pieces.layers(BACKWARD)[:, MAIN]
        each = int(counts @ (forward + backward)) + sum(
            pieces.end(end, kind).main
            for end in (EMBEDDING, CLASSIFIER)
            for kind in (FORWARD, BACKWARD)
        )
        # Halves of a backward are rounded each by itself, a ps at most.
        each -= 2 * len(self.ground(setup.layout.cluster).kind) + 4
        waiting = pp * (pp - 1) // 2 * int(forward.min())
        return (setup.microbatches * each + waiting) // pp

    def plan(self, plan: Plan) -> Bound:
        """That of one plan."""
        peak, fits = self._memory(plan)
        return Bound(self._time(plan) if fits else UNKNOWN, peak, fits)

    def _memory(self, plan: Plan) -> tuple[int, bool]:
        layout = plan.setup.layout
        pieces, ground = self.pieces(plan.setup, plan.zero), self.ground(layout.cluster)
        division = ground.division(layout.pp * plan.chunks)
        held = division.updated(pieces, layout.pp)[:, 1]
        if plan.schedule not in SEARCHED:
            if plan[1:3] not in self._flying:  # whatever ZeRO shares out
                self._flying[plan[1:3]] = _held(pieces, division, plan)
            held = held + self._flying[plan[1:3]]
        fits = bool((held <= ground.capacity(layout.pp)).all())
        return int(held.max()), fits

    def _time(self, plan: Plan) -> int:
        least = self.setup_ps(plan.setup)
        if plan.schedule in SEARCHED:
            return least
        ground = self.ground(plan.setup.layout.cluster)
        run = Path(self.pieces(plan.setup, plan.zero), ground, plan)
        if plan.zero >= 2:
            return max(least, run.step_ps(*run.actions()))
        # ZeRO 0 and 1 differ behind the last action alone.
        if plan[1:3] not in self._ended:
            self._ended[plan[1:3]] = run.actions()
        return max(least, run.step_ps(*self._ended[plan[1:3]]))


def _held(pieces: Pieces, division: Division, plan: Plan) -> Ints:
    """What the microbatches in flight hold on each rank at the least."""
    counts, pp = division.counts, plan.setup.layout.pp
    prints, split = pieces.footprints, plan.schedule in SPLIT
    moved = "activations" in pieces.program.parallelism.offload
    saved = counts @ np.array([f.saved - f.moved * moved for f in prints], np.int64)
    again = np.array([f.again for f in prints], np.int64)
    embedding, classifier, beside, kept = pieces.ends_saved
    last = pieces.program.shard.model.kind_of
    kinds = [pieces.kind_numbers[last(layers[-1])] for layers in division.layers]
    space = np.where(counts > 0, [f.workspace for f in prints], 0).max(axis=1)
    # The first layer of a backward, while all others are still there.
    during = space + again[kinds]
    saved[0] += embedding
    saved[-1] += classifier
    during[-1] = max(int(space[-1]) + beside, int(during[-1]) - classifier + kept * split)
    # What selective recomputation makes again lies in one row of the backward.
    after = counts @ again * (plan.setup.recompute == "full")
    after[-1] += kept - classifier
    order = flat_order(plan.schedule, pp, plan.setup.microbatches, plan.chunks)
    places = len(order.stage) // pp
    columns = order.stage, order.kind, saved, after, during, np.zeros(pp, np.int64)
    table = Columns(Held(pp, places, int(split), *columns))
    run_held(table.handle)
    peak: Ints = table.array("peak")
    return peak
