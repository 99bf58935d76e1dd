"""Mixture: which kinds of moves are proposed, learned from what they gain."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator

from ...nouns.taskgraph import Floats

RATE = 0.03  # how far the logits go in an update
UNIFORM = 0.4  # share of proposals of a kind that is drawn evenly: what pays changes on the way
MEMORY = 0.98  # of the gains of earlier updates
MOST = 6.0  # how far a logit may be below the largest


class Mixture:
    """A policy over ``count`` kinds of moves: a softmax that climbs what a proposal gains in the
    mean (REINFORCE, Williams 1992), with the mean of all kinds as its baseline.

    Gains are remembered with less and less weight, since one update sees a handful of each kind.
    """

    def __init__(self, count: int) -> None:
        self._logits = np.zeros(count)
        self._gains, self._counts = np.zeros(count), np.zeros(count)

    @property
    def chances(self) -> Floats:
        """The chance of each kind."""
        weights = np.exp(self._logits - self._logits.max())
        chances: Floats = (1.0 - UNIFORM) * weights / weights.sum() + UNIFORM / len(weights)
        return chances

    def draw(self, random: Generator, count: int) -> list[int]:
        """Kinds of so many moves."""
        kinds: list[int] = random.choice(len(self._logits), count, p=self.chances).tolist()
        return kinds

    def learn(self, gained: Sequence[tuple[int, float]]) -> None:
        """Learn from proposals, each a kind and what it gained (of any scale)."""
        kinds, gains = [kind for kind, _ in gained], [gain for _, gain in gained]
        counts = np.bincount(np.array(kinds, np.int64), minlength=len(self._logits))
        self._counts = MEMORY * self._counts + counts
        self._gains = MEMORY * self._gains + np.bincount(
            np.array(kinds, np.int64), gains, len(self._logits)
        )
        mean = self._gains / np.maximum(self._counts, 1.0)
        baseline = self._gains.sum() / max(self._counts.sum(), 1.0)
        climb = (mean - baseline) * counts
        norm = float(np.sqrt(np.square(climb).sum()))
        if norm > 0:
            logits = self._logits + RATE * climb / norm
            self._logits = np.maximum(logits - logits.max(), -MOST)
