"""Pipelines by whole actions: when they end at the earliest, and what they hold at the least.

``search.plan.bounds`` fills the columns. A bound must not exceed what ``lowering.hybrid`` makes of
the plan: what takes less time or memory there has to take less here, too. The actions of every rank
in their order (``schedules.Order``), by rank and place; ``stages`` by number, kinds 0 forward, 1
backward or gradient of the input, 2 of the weights.
"""

from __future__ import annotations

from typing import NamedTuple

from ...nouns.taskgraph import Ints
from . import kernel, opener, part

TURN = 9  # fields of a turn


class Pipeline(NamedTuple):
    """A pipeline, and what a run writes: the last columns. Times are ps, sizes bytes.

    Where replicas send each other something during the actions ``turns`` tells it: by stage and
    kind those from ``turn_at`` on, each by what its rank does before, during and after it, then by
    queue how long is gathered before and summed after, and behind that between groups of replicas.
    """

    ranks: int
    places: int
    stages: int
    microbatches: int
    reach: int  # what is gathered waits for the turn so many before it, 0: there are no turns
    behind: int  # a turn that is summed waits for the sum of the one so many before it
    stage: Ints
    kind: Ints
    microbatch: Ints
    time: Ints  # by stage and kind
    ahead: Ints  # by stage: how long its input is on its way
    back: Ints  # by stage: how long the gradient of its output is on its way
    turn_at: Ints  # by stage and kind, and behind the last one
    turns: Ints
    turned: Ints  # by rank: how many turns have ended, how many were to be summed, how many are
    number: Ints  # by rank and place of ``reach``: the turn that stands there
    ended: Ints  # by rank and place of ``reach``: when its turn ended
    summed: Ints  # by rank and place of ``behind``: when its sum ended
    queue: Ints  # by rank and queue (those between groups last): when it has done all so far
    done: Ints  # by rank: how many actions have ended
    clock: Ints  # by rank: when the last of them has
    end: Ints  # by stage, kind 0 or 1 and microbatch: when it ended, -1: not yet
    last: Ints  # by stage and kind: when the last one began


class Held(NamedTuple):
    """The bytes that the actions of a pipeline hold; ``peak`` is written."""

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


@part
def _sum(p: Pipeline, rank: int, number: int) -> None:
    """The gradients of a turn are summed behind all that its queues did before."""
    place, end = rank * p.reach + number % p.reach, 0
    for queue in range(2):
        length, ready = p.turns[TURN * p.number[place] + 5 + queue], p.ended[place]
        if length:
            p.queue[4 * rank + queue] = max(p.queue[4 * rank + queue], ready) + length
            ready = p.queue[4 * rank + queue]
            end = max(end, ready)
        further = p.turns[TURN * p.number[place] + 7 + queue]
        if further:
            p.queue[4 * rank + 2 + queue] = max(p.queue[4 * rank + 2 + queue], ready) + further
            if not length:
                end = max(end, p.queue[4 * rank + 2 + queue])
    if end:
        p.summed[rank * p.behind + p.turned[3 * rank + 2] % p.behind] = end
        p.turned[3 * rank + 2] += 1


@part
def _gather(p: Pipeline, rank: int, turn: int) -> int:
    """When all is there that the next turn of a rank gathers."""
    there, number = 0, p.turned[3 * rank]
    since = p.ended[rank * p.reach + number % p.reach] if number >= p.reach else 0
    for queue in range(2):
        length = p.turns[TURN * turn + 3 + queue]
        if length:
            p.queue[4 * rank + queue] = max(p.queue[4 * rank + queue], since) + length
            there = max(there, p.queue[4 * rank + queue])
    if p.reach > 1 and number >= p.reach - 1:
        _sum(p, rank, number - p.reach + 1)
    return there


@part
def _run_turn(p: Pipeline, rank: int, turn: int, clock: int) -> int:
    """When a rank has done a turn, and what follows it."""
    begin, number = max(clock + p.turns[TURN * turn], _gather(p, rank, turn)), p.turned[3 * rank]
    within, between = TURN * turn + 5, TURN * turn + 7
    if p.turns[within] + p.turns[within + 1] + p.turns[between] + p.turns[between + 1]:
        other = p.turned[3 * rank + 1] - p.behind
        if 0 <= other < p.turned[3 * rank + 2]:
            begin = max(begin, p.summed[rank * p.behind + other % p.behind])
        p.turned[3 * rank + 1] += 1
    place = rank * p.reach + number % p.reach
    p.number[place], p.ended[place] = turn, begin + p.turns[TURN * turn + 1]
    p.turned[3 * rank] += 1
    if p.reach == 1:
        _sum(p, rank, number)
    return int(p.ended[place] + p.turns[TURN * turn + 2])


@part
def _begin(p: Pipeline, rank: int, place: int) -> int:
    """When an action may begin, -1 where its input is not known yet."""
    stage, kind, i = p.stage[place], p.kind[place], p.microbatch[place]
    there = way = 0
    if kind == 0 and stage > 0:
        there, way = p.end[2 * (stage - 1) * p.microbatches + i], p.ahead[stage]
    if kind == 1 and stage < p.stages - 1:
        there, way = p.end[(2 * (stage + 1) + 1) * p.microbatches + i], p.back[stage]
    return -1 if there < 0 else max(int(p.clock[rank]), there + way)


@part
def _end(p: Pipeline, rank: int, action: int, begin: int) -> int:
    """When an action of a stage and kind has ended."""
    end = begin
    if p.reach:
        for turn in range(p.turn_at[action], p.turn_at[action + 1]):
            end = _run_turn(p, rank, turn, end)
    return max(end, begin + int(p.time[action]))


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
                begin = _begin(p, rank, place)
                if begin < 0:
                    break
                stage, kind = p.stage[place], p.kind[place]
                end = _end(p, rank, 3 * stage + kind, begin)
                if kind < 2:
                    p.end[(2 * stage + kind) * p.microbatches + p.microbatch[place]] = end
                p.clock[rank], p.last[3 * stage + kind] = end, begin
                p.done[rank] += 1
                left -= 1
    for rank in range(p.ranks):
        for number in range(max(p.turned[3 * rank] - p.reach + 1, 0), p.turned[3 * rank]):
            _sum(p, rank, number)
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
