"""Proximal policy optimisation (Schulman and others, 2017) of independent softmaxes, in closed
form.

The parameters are the logits u [group, device] of a distribution f = softmax(u) by group, as in
Post (Gao, Chen, Li, NeurIPS 2018). A step u + rate x gradient multiplies the chances by
exp(rate x gradient), so only these are kept. Of networks learning/ppo.py has the same objective in
torch: in closed form a step costs some array operations, and Post does without PyTorch.
"""

from __future__ import annotations

import numpy as np

from ...nouns.taskgraph import Floats, Ints
from ..networks.signals import spread


def advantages(costs: Floats) -> Floats:
    """How much better each of a batch is than their mean, in standard deviations; 0 where all are
    equal (ours).
    """
    deviation = spread(costs)
    better: Floats = (costs.mean() - costs) / deviation if deviation else np.zeros_like(costs)
    return better


def surrogate(
    chance: Floats, old: Floats, placements: Ints, gains: Floats, clip: float, kl: float
) -> float:
    """The objective of a batch: the mean over its ``placements`` [n, group] of the sum over groups
    of min(r A, clip(r, 1 - c, 1 + c) A), less ``kl`` times the sum of the groups' divergences
    KL(old || new).

    r = new chance / old chance of the device that was drawn, group by group (ours: one ratio of
    hundreds of factors diverges); A the placement's advantage (``gains``).
    """
    groups = np.arange(len(chance))
    ratio = chance[groups, placements] / old[groups, placements]
    gain = gains[:, None]
    least = np.minimum(ratio * gain, np.clip(ratio, 1.0 - clip, 1.0 + clip) * gain)
    is_old = old > 0
    divergence = float((old[is_old] * np.log(old[is_old] / chance[is_old])).sum())
    return float(least.sum() / len(placements)) - kl * divergence


def gradient(
    chance: Floats, old: Floats, placements: Ints, gains: Floats, clip: float, kl: float
) -> Floats:
    """Of ``surrogate`` by the logits [group, device].

    Where a ratio counts, its slope by u[device] is r (1[drawn] - chance); that of the divergence is
    chance - old.
    """
    groups, gain = np.arange(len(chance)), gains[:, None]
    ratio = chance[groups, placements] / old[groups, placements]
    counts = np.where(gain > 0, ratio < 1.0 + clip, ratio > 1.0 - clip)
    weights = counts * ratio * gain / len(placements)
    cells = (groups * chance.shape[1] + placements).ravel()
    drawn = np.bincount(cells, weights.ravel(), chance.size).reshape(chance.shape)
    slope: Floats = drawn - weights.sum(axis=0)[:, None] * chance - kl * (chance - old)
    return slope


def stepped(chance: Floats, slope: Floats, rate: float) -> Floats:
    """The distribution after one step of ascent on its logits; what has no chance keeps none."""
    change = rate * slope
    grown = chance * np.exp(change - change.max(axis=1, keepdims=True))
    after: Floats = grown / grown.sum(axis=1, keepdims=True)
    return after


def ascended(
    old: Floats, placements: Ints, gains: Floats, steps: int, rate: float, clip: float, kl: float
) -> Floats:
    """The distribution after ``steps`` of ascent on the objective of a batch drawn from ``old``."""
    chance = old
    with np.errstate(over="ignore", invalid="ignore"):  # the caller asks what came of it
        for _ in range(steps):
            slope = gradient(chance, old, placements, gains, clip, kl)
            chance = stepped(chance, slope, rate)
    return chance
