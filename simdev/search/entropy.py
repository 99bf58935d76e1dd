"""The cross-entropy method: a distribution over placements that moves towards the best of its
samples.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from .space import Key, key
from .trial import Trial

SAMPLES = 50
ELITE = 0.1  # share of the samples that the distribution follows
EXPLORE = 0.1  # first share of the uniform distribution mixed in; it falls to 0 over the budget
PATIENCE = 20  # rounds of samples that are all known: then there is nothing left to learn


def cross_entropy(trial: Trial) -> None:
    """Rubinstein's method over independent choices of each group (settings as in Gao, Chen, Li,
    NeurIPS 2018).

    Each round samples placements and ranks them (what does not fit comes last). The frequencies
    among the best tenth replace the probabilities, as in the paper's closed form; then a share of
    the uniform distribution is mixed in. Samples seen before are not asked again; stops where all
    are.
    """
    devices = len(trial.oracle.cluster.devices)
    allowed = np.zeros((len(trial.choices), devices))
    for group, one in enumerate(trial.choices):
        allowed[group, one] = 1.0 / len(one)
    chance, known, idle = allowed.copy(), dict[bytes, Key](), 0
    while idle < PATIENCE:
        asked = len(known)
        rows = [_sample(trial, chance) for _ in range(SAMPLES)]
        keys = [_key(trial, row, known) for row in rows]
        best = sorted(range(SAMPLES), key=lambda i: keys[i])[: max(int(ELITE * SAMPLES), 1)]
        counts = np.zeros_like(chance)
        for i in best:
            counts[np.arange(len(counts)), rows[i]] += 1.0 / len(best)
        explore = EXPLORE * (1.0 - trial.share)
        chance = (1.0 - explore) * counts + explore * allowed
        idle = 0 if len(known) > asked else idle + 1


def _sample(trial: Trial, chance: np.ndarray) -> np.ndarray:
    """A device for each group."""
    ends = np.cumsum(chance, axis=1)
    luck = trial.random.random((len(chance), 1)) * ends[:, -1:]
    found: np.ndarray = (luck >= ends).sum(axis=1)
    return found


def _key(trial: Trial, row: np.ndarray, known: dict[bytes, Key]) -> Key:
    """How good a sample is; it is known by its digest, for placements may be long."""
    name = blake2b(row.tobytes(), digest_size=16).digest()
    if name not in known:
        cost = trial.score(row)
        known[name] = key(trial.oracle, cost)
    return known[name]
