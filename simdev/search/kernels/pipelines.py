"""Lower bounds of pipelines by whole actions: their earliest ends, and the least memory that they
hold.

``search.plan.bounds`` fills the columns. A bound must not exceed the time or memory that
``lowering.hybrid`` gives the plan: a change that lowers these has to be made here, too. Columns of
actions are by rank and place in the rank's order (``schedules.Order``); ``stages`` by number; kinds
are 0 forward, 1 backward or gradient of the input, 2 gradient of the weights.
"""

from __future__ import annotations

from typing import NamedTuple

from ...nouns.taskgraph import Ints
from . import kernel, opener, part

TURN = 9  # fields of a turn


class Pipeline(NamedTuple):
    """A pipeline, and, in the last columns, the results of a run. Times are ps, sizes bytes.

    Where replicas exchange data during the actions, ``turns`` has the parts of each action: those
    of a stage and kind are from ``turn_at`` on. A turn has the rank's times before, during and
    after it, then by queue the time to gather before it and to sum after it, and last the time to
    sum between groups of replicas.
    """

    ranks: int
    places: int
    stages: int
    microbatches: int
    reach: int  # a turn's gathering waits for the turn ``reach`` before it; 0: there are no turns
    behind: int  # a turn that is summed waits for the sum of the turn ``behind`` before it
    stage: Ints
    kind: Ints
    microbatch: Ints
    time: Ints  # by stage and kind
    ahead: Ints  # by stage: transfer time of its input
    back: Ints  # by stage: transfer time of the gradient of its output
    turn_at: Ints  # by stage and kind: the number of the first turn; and the number of all turns
    turns: Ints
    turned: Ints  # by rank: numbers of turns that have ended, that need a sum, that were summed
    number: Ints  # by rank and slot of ``reach``: the turn in this slot
    ended: Ints  # by rank and slot of ``reach``: when this turn ended
    summed: Ints  # by rank and slot of ``behind``: when the sum ended
    queue: Ints  # by rank and queue (between groups last): when its work so far ends
    done: Ints  # by rank: the number of actions that have ended
    clock: Ints  # by rank: when its last action ended
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
    again: Ints  # by stage: from the gradient of the input to the gradient of the weights (split)
    during: Ints  # by stage: further bytes while a backward runs
    peak: Ints  # by rank


open_pipeline, open_held = opener(Pipeline), opener(Held)


@part
def _sum(p: Pipeline, rank: int, number: int) -> None:
    """Sum the gradients of a turn, after all earlier work of its queues."""
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
    """The instant when the next turn of a rank has gathered all its data."""
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
    """The instant when a rank has ended a turn and the time after it."""
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
    """The instant when an action may begin, -1 where its input has no time yet."""
    stage, kind, i = p.stage[place], p.kind[place], p.microbatch[place]
    there = way = 0
    if kind == 0 and stage > 0:
        there, way = p.end[2 * (stage - 1) * p.microbatches + i], p.ahead[stage]
    if kind == 1 and stage < p.stages - 1:
        there, way = p.end[(2 * (stage + 1) + 1) * p.microbatches + i], p.back[stage]
    return -1 if there < 0 else max(int(p.clock[rank]), there + way)


@part
def _end(p: Pipeline, rank: int, action: int, begin: int) -> int:
    """The instant when an action of a stage and kind has ended."""
    end = begin
    if p.reach:
        for turn in range(p.turn_at[action], p.turn_at[action + 1]):
            end = _run_turn(p, rank, turn, end)
    return max(end, begin + int(p.time[action]))


@kernel
def run_pipeline(table: Ints) -> int:
    """Run each action as soon as its rank and its input are ready; returns the number of actions
    that could not run.
    """
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
    """The peak of each rank's bytes, at the end of forwards and during backwards."""
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
