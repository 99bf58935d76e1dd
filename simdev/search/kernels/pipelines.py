"""Pipelines by whole actions: when they end at the earliest, and what they hold at the least.

The actions of every rank in their order (``schedules.Order``), by rank and place; ``stages`` by
number, kinds 0 forward, 1 backward or gradient of the input, 2 of the weights.
"""

from __future__ import annotations

from typing import NamedTuple

from ...nouns.taskgraph import Ints
from .compiling import kernel, opener


class Pipeline(NamedTuple):
    """A pipeline, and what a run writes: the last four columns. Times are ps, sizes bytes."""

    ranks: int
    places: int
    stages: int
    microbatches: int
    stage: Ints
    kind: Ints
    microbatch: Ints
    time: Ints  # by stage and kind
    ahead: Ints  # by stage: how long its input is on its way
    back: Ints  # by stage: how long the gradient of its output is on its way
    done: Ints  # by rank: how many actions have ended
    clock: Ints  # by rank: when the last of them has
    end: Ints  # by stage, kind 0 or 1 and microbatch: when it ended, -1: not yet
    last: Ints  # by stage and kind: when the last one began


class Held(NamedTuple):
    """What the actions of a pipeline hold; ``peak`` is written."""

    ranks: int
    places: int
    split: int  # 1: gradients of weights are actions of their own
    stage: Ints
    kind: Ints
    saved: Ints  # by stage: from the forward to the last backward
    again: Ints  # by stage: from the gradient of the input to that of the weights, where split
    during: Ints  # by stage: beside these while a backward runs
    peak: Ints  # by rank


open_pipeline, open_held = opener(Pipeline), opener(Held)


@kernel
def run_pipeline(table: Ints) -> int:
    """Each action as soon as its rank and its input are there: how many could not run."""
    p = open_pipeline(table)
    left, before = p.ranks * p.places, -1
    while left != before:
        before = left
        for rank in range(p.ranks):
            while p.done[rank] < p.places:
                place = rank * p.places + p.done[rank]
                stage, kind, i = p.stage[place], p.kind[place], p.microbatch[place]
                begin = p.clock[rank]
                if kind == 0 and stage > 0:
                    there = p.end[2 * (stage - 1) * p.microbatches + i]
                    if there < 0:
                        break
                    begin = max(begin, there + p.ahead[stage])
                if kind == 1 and stage < p.stages - 1:
                    there = p.end[(2 * (stage + 1) + 1) * p.microbatches + i]
                    if there < 0:
                        break
                    begin = max(begin, there + p.back[stage])
                end = begin + p.time[3 * stage + kind]
                if kind < 2:
                    p.end[(2 * stage + kind) * p.microbatches + i] = end
                p.clock[rank] = end
                p.last[3 * stage + kind] = begin
                p.done[rank] += 1
                left -= 1
    return left


@kernel
def run_held(table: Ints) -> int:
    """The most that each rank holds at the end of a forward and while a backward runs."""
    p = open_held(table)
    for rank in range(p.ranks):
        level, peak = 0, 0
        for place in range(rank * p.places, (rank + 1) * p.places):
            stage, kind = p.stage[place], p.kind[place]
            if kind == 0:
                level += p.saved[stage]
                peak = max(peak, level)
            elif kind == 1:
                peak = max(peak, level + p.during[stage])
                level += p.again[stage] if p.split else -p.saved[stage]
            else:
                level -= p.saved[stage] + p.again[stage]
        p.peak[rank] = peak
    return 0
