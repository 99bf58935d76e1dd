"""Placements as samples: a distribution over the devices for each group, independent of the others.

A distribution is an array of probabilities [group, device]: rows add up to 1, and a device that is
not allowed has 0. Placements are devices by group. The cross-entropy method (blackbox.py), the
start of learners (run.py) and learners of ``simdev/learn`` draw from them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..nouns.taskgraph import Bools, Floats, Ints
from .space import Rank

ELITE = 0.1  # share of the samples that a distribution follows (Gao, Chen, Li, 2018; recalled)
EXPLORE = 0.1  # first share of the uniform distribution that is mixed in (recalled of the same)


def explored(first: float, used: float) -> float:
    """The share of the uniform distribution to mix in once ``used`` of the budget is used: it falls
    from ``first`` to 0 linearly (ours).
    """
    return first * (1.0 - used)


def uniform(allowed: Bools) -> Floats:
    """Equal probabilities of all devices that each group may go to (``space.allowed``)."""
    chance: Floats = allowed / allowed.sum(axis=1, keepdims=True)
    return chance


def sampled(chance: Floats, lucks: Floats) -> Ints:
    """A placement for each row of ``lucks`` (uniform in [0, 1), [..., group]): devices [...,
    group].
    """
    ends = np.cumsum(chance, axis=1)
    # The last sum may be under 1 by rounding.
    reached = (lucks * ends[:, -1])[..., None] >= ends
    placements: Ints = reached.sum(axis=-1)
    return placements


def anywhere(allowed: Bools, random: np.random.Generator, *count: int) -> Ints:
    """Random placements [*count, group] on the devices that each group may go to."""
    even = uniform(allowed)
    return sampled(even, random.random((*count, len(even))))


def likeliest(chance: Floats) -> Ints:
    """Each group on its most probable device (on a tie the first)."""
    placement: Ints = chance.argmax(axis=1)
    return placement


def best_of(placements: Ints, ranks: Sequence[Rank], share: float = ELITE) -> Ints:
    """The ``share`` of the placements with the lowest ranks, at least one; on a tie the earlier."""
    order = sorted(range(len(ranks)), key=lambda i: ranks[i])
    best: Ints = placements[order[: max(round(share * len(ranks)), 1)]]
    return best


def frequencies(placements: Ints, devices: int) -> Floats:
    """The distribution under which the given placements [n, group] are most likely: how often each
    group is on each device.

    It minimises the cross-entropy to them (Rubinstein; Gao, Chen, Li, NeurIPS 2018, section 3.2).
    """
    is_on: Bools = placements[..., None] == np.arange(devices)
    chance: Floats = is_on.mean(axis=0)
    return chance


def mixed(chance: Floats, other: Floats, share: float) -> Floats:
    """The first distribution with a share of the other mixed in."""
    return (1.0 - share) * chance + share * other


def share_of_moves(groups: float, even: Floats) -> float:
    """The share of the uniform distribution ``even`` that, mixed into a placement, moves ``groups``
    groups on average; at most 1.
    """
    movable = float((1.0 - (even**2).sum(axis=1)).sum())
    return min(groups / movable, 1.0) if movable > 0 else 1.0


def around(placement: Ints, even: Floats, groups: float) -> Floats:
    """The distribution whose samples differ from ``placement`` in ``groups`` groups on average.

    ``even`` is the uniform distribution. The number of moves does not grow with the number of
    groups, as a fixed share would make it.
    """
    there = frequencies(placement[None], even.shape[1])
    return mixed(there, even, share_of_moves(groups, even))
