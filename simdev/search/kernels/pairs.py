"""The dynamic program over pairs of ideals: each device takes the blocks between two of them.

``simdev/search/maxload/contiguous.py`` explains blocks, ideals, nets and states, fills the columns
and reads the answer. ``MaxLoadProblem`` repeats the rules of a device's load and memory for whole
splits. Test: ``tests/search/test_placers_partition.py``, against enumeration.
"""

from __future__ import annotations

from typing import NamedTuple

from ...nouns.taskgraph import Floats, Ints
from . import kernel, opener, part


class Pairs(NamedTuple):
    """Ideals in an order in which subsets come first. Times are ms, sizes bytes.

    A net is open at an ideal that holds some of its blocks, not all.
    """

    ideals: int
    words: int  # 0: each ideal holds all before it
    accelerators: int
    cpus: int
    capacity: int  # -1: unlimited
    member: Ints  # bit sets, ``words`` of 64 bits each
    on_accelerator: Floats  # of all that an ideal holds
    on_cpu: Floats
    size: Ints
    # the number of an ideal's blocks that cannot run on an accelerator; they count as 0 ms there
    not_accelerator: Ints
    not_cpu: Ints
    open_ptr: Ints  # open nets of each ideal, ascending
    open_net: Ints
    open_count: Ints  # the number of the net's blocks in the ideal
    open_cost: Floats  # of all open nets together
    cost: Floats  # by net
    limit: Floats  # [0]: an upper bound of every load in an optimal split
    # by state (CPUs used, accelerators used, ideal), numbered by ``state``:
    best: Floats  # the least largest load
    before: Ints  # the ideal before the last device; -1: the device is not used
    last: Ints  # the kind of the last device: 0 accelerator, 1 CPU


open_pairs = opener(Pairs)


@part
def state(p: Pairs, cpus: int, accelerators: int, ideal: int) -> int:
    """The number of a state; ``contiguous.py`` has the same order as a shape (``_states``)."""
    return (cpus * (p.accelerators + 1) + accelerators) * p.ideals + ideal


@part
def within(p: Pairs, small: int, large: int) -> bool:
    """Whether ideal ``large`` contains ideal ``small``."""
    for w in range(p.words):
        if p.member[small * p.words + w] & ~p.member[large * p.words + w]:
            return False
    return True


@part
def may_accelerate(p: Pairs, small: int, large: int) -> bool:
    """Whether an accelerator can run the blocks between two ideals, and hold them."""
    if p.not_accelerator[small] != p.not_accelerator[large]:
        return False
    return bool(p.capacity < 0 or p.size[large] - p.size[small] <= p.capacity)


@part
def cut(p: Pairs, small: int, large: int) -> float:
    """The cost of the nets that have blocks both among the blocks between two ideals and outside of
    them.

    The nets open at either ideal, less the nets open at both: subtracted once where some of their
    blocks lie between, else twice.
    """
    crossing: float = p.open_cost[small] + p.open_cost[large]
    a, b = p.open_ptr[small], p.open_ptr[large]
    while a < p.open_ptr[small + 1] and b < p.open_ptr[large + 1]:
        if p.open_net[a] == p.open_net[b]:
            cost = p.cost[p.open_net[a]]
            crossing -= cost if p.open_count[a] != p.open_count[b] else 2 * cost
            a += 1
            b += 1
        elif p.open_net[a] < p.open_net[b]:
            a += 1
        else:
            b += 1
    return crossing


@part
def improve(p: Pairs, small: int, large: int, load: float, kind: int) -> None:
    """Let one more device of a kind take the blocks between two ideals."""
    for c in range(kind, p.cpus + 1):
        for a in range(1 - kind, p.accelerators + 1):
            at, from_ = state(p, c, a, large), state(p, c - kind, a - (1 - kind), small)
            value = max(p.best[from_], load)
            if value < p.best[at]:
                p.best[at], p.before[at], p.last[at] = value, small, kind


@part
def unused(p: Pairs, ideal: int) -> None:
    """Update the states in which a device is left unused."""
    for c in range(p.cpus + 1):
        for a in range(p.accelerators + 1):
            at = state(p, c, a, ideal)
            for kind in range(2):
                if (kind == 0 and a == 0) or (kind == 1 and c == 0):
                    continue
                from_ = state(p, c - kind, a - (1 - kind), ideal)
                if p.best[from_] < p.best[at]:
                    p.best[at], p.before[at], p.last[at] = p.best[from_], -1, kind


@kernel
def fill(words: object, first: int, end: int) -> None:
    """Fill ``best`` for the ideals from ``first`` up to ``end``; all ideals before ``first`` are
    filled, and ideal 0 is the empty one.
    """
    p = open_pairs(words)
    for large in range(max(first, 1), end):
        for small in range(large):
            fast = p.on_accelerator[large] - p.on_accelerator[small]
            slow = p.on_cpu[large] - p.on_cpu[small]
            if fast > p.limit[0] and (p.cpus == 0 or slow > p.limit[0]):
                continue
            if not within(p, small, large):
                continue
            if fast <= p.limit[0] and may_accelerate(p, small, large):
                load = fast + cut(p, small, large)
                if load <= p.limit[0]:
                    improve(p, small, large, load, 0)
            if p.cpus > 0 and slow <= p.limit[0] and p.not_cpu[small] == p.not_cpu[large]:
                improve(p, small, large, slow, 1)
        unused(p, large)
