"""Post: cross-entropy minimisation and proximal policy optimisation of one distribution, without a
network (Gao, Chen, Li, NeurIPS 2018).

``simdev.search`` finds it by its row in ``methods``. Since it needs no PyTorch, its settings are
here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import nan
from typing import Self

import numpy as np

from ..ground.errors import InputError
from ..nouns.taskgraph import Floats, Ints
from ..oracle import Cost
from ..search.learners import bounded
from ..search.policy import SavedPolicy, tied_to
from ..search.sampling import (
    around,
    best_of,
    explored,
    frequencies,
    likeliest,
    mixed,
    sampled,
    share_of_moves,
    uniform,
)
from ..search.space import rank_of
from ..search.trial import Trial, rounds
from .rules import in_deviations, reference_ps, require_finite, signals_of, use

# Proximal policy optimisation (Schulman and others, 2017) of independent categorical distributions,
# in closed form. The parameters are the logits u [group, device] of a distribution f = softmax(u)
# by group, as in Post (Gao, Chen, Li, NeurIPS 2018). A step u + rate x gradient multiplies each
# chance by exp(rate x gradient) and renormalises, so only chances are stored. ``rules`` has the
# same objective for networks in torch; in closed form a step costs some array operations, and Post
# does without PyTorch.


def advantages(costs: Floats) -> Floats:
    """The advantage of each cost of a batch over the batch's mean, in standard deviations; 0 where
    all are equal (ours).
    """
    return in_deviations(costs.mean() - costs, costs)


def gradient(
    chance: Floats, old: Floats, placements: Ints, gains: Floats, clip: float, kl: float
) -> Floats:
    """The gradient of a batch's objective by the logits [group, device].

    The objective is the mean over the ``placements`` [n, group] of the sum over groups of min(r A,
    clip(r, 1 - c, 1 + c) A), less ``kl`` times the sum of the groups' divergences KL(old || new). r
    is the new probability over the old of the drawn device, group by group (ours: one ratio of
    hundreds of factors diverges), A the placement's advantage (``gains``). Where a ratio counts,
    its slope by u[device] is r (1[drawn] - chance); the slope of the divergence is chance - old.
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
    """The distribution after one step of ascent on its logits; probabilities of 0 stay 0."""
    change = rate * slope
    grown = chance * np.exp(change - change.max(axis=1, keepdims=True))
    after: Floats = grown / grown.sum(axis=1, keepdims=True)
    return after


def ascended(
    old: Floats, placements: Ints, gains: Floats, steps: int, rate: float, clip: float, kl: float
) -> Floats:
    """The distribution after ``steps`` of ascent on the objective of a batch drawn from ``old``."""
    chance = old
    with np.errstate(over="ignore", invalid="ignore"):  # the caller checks the result
        for _ in range(steps):
            slope = gradient(chance, old, placements, gains, clip, kl)
            chance = stepped(chance, slope, rate)
    return chance


# The settings of Post.


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of Post. About 10 steps of ascent, and an N of several or tens of times K, are
    from the paper; other values are recalled from it, or ours where marked.

    - ``batch``: K, the samples of one proximal update. ``samples``: N, the samples of one
      cross-entropy step, a multiple of K (100: ours).
    - ``elite``: the share of the N samples that the distribution follows. 0 leaves out the
      cross-entropy steps; then the N-th sample, too, ends in a proximal update.
    - ``explore``: the share of the uniform distribution that is mixed in after a cross-entropy
      step, at first; it falls to 0 over the budget (in proportion: ours).
    - ``moves``: the expected number of groups in which a sample differs from the placement that the
      search begins at; also the most groups that the uniform share moves after such a beginning or
      a saved policy (ours).
    - ``steps``: of ascent in one proximal update; 0 leaves them out. ``rate``: the length of such a
      step (ours).
    - ``clip``: a ratio counts up to this far from 1 (the usual value, ours). ``kl``: the weight of
      KL(old || new), in place of ``clip`` or beside it (the paper's penalty, recalled; 0: ours).
    """

    batch: int = 10
    samples: int = 100
    elite: float = bounded(0.1, least=0, most=1)
    explore: float = bounded(0.1, least=0, most=1)
    moves: float = 3.0
    steps: int = bounded(10, least=0)
    rate: float = 0.3
    clip: float = 0.2
    kl: float = bounded(0.0, least=0)

    @classmethod
    def published(cls) -> Self:
        """The paper's values, where they are recalled."""
        return cls(samples=50)


# Post's loop: a proximal update after each K of N samples but the last, then a cross-entropy step.

ROUNDED = 1e-6  # tolerance above 1 of a stored chance
CHANCE = "chance"  # name of the weights of a saved policy: the distribution [group, device]


def post(trial: Trial) -> None:
    """Post (Gao, Chen, Li, NeurIPS 2018, algorithm 1): no network, one distribution over the
    devices of each group.

    It ends where no new placement is sampled any more. Raises SpentError, and InputError for
    settings that contradict each other.
    """
    learner = Post(trial)
    if trial.learning.train:
        for _ in rounds(trial):
            learner.round()


class Post:
    """The distribution of a trial, and its updates.

    It begins uniform, with a saved policy, or around a placement. In the last two cases the uniform
    share that is mixed in moves at most ``moves`` groups of a sample: to move a tenth of hundreds
    of groups would leave nothing of the beginning.
    """

    def __init__(self, trial: Trial) -> None:
        self._trial, learning, problem = trial, trial.learning, trial.problem
        self._settings: Settings = learning.settings
        if self._settings.samples % self._settings.batch:
            raise InputError(
                f"settings: samples must be a multiple of batch, got {self._settings.samples} and "
                f"{self._settings.batch}"
            )
        self._even = uniform(problem.allowed)
        self.chance, self._most = self._even, 1.0
        if learning.policy is not None:
            self.chance = _weights(learning.policy, self._even)
        elif learning.warm is not None:
            self.chance = around(learning.warm, self._even, self._settings.moves)
        if self.chance is not self._even:
            self._most = share_of_moves(self._settings.moves, self._even)
        trial.policy = self
        use(trial, lambda: trial.score_once(likeliest(self.chance)), self._play)
        # An evaluation alone does not simulate the placements on single devices.
        self._reference = reference_ps(trial) if learning.train else nan

    def saved(self) -> SavedPolicy:
        """The distribution as it is now, tied to the groups of its graph."""
        groups, devices = self.chance.shape
        graph, settings = tied_to(self._trial.problem.oracle), asdict(self._settings)
        weights = {CHANCE: self.chance.copy()}
        return SavedPolicy("post", 0, devices, groups, graph, settings, weights)

    def _play(self) -> tuple[Ints, list[Cost]]:
        """K placements [sample, group] and their costs. Raises SpentError."""
        lucks = self._trial.budget.random.random((self._settings.batch, len(self._even)))
        rows = sampled(self.chance, lucks)
        return rows, [self._trial.score_once(row) for row in rows]

    def round(self) -> None:
        """Draw N samples, with a proximal update after each K but the last; then comes a
        cross-entropy step, or, without ``elite``, a proximal update.
        """
        count, elite = self._settings.samples // self._settings.batch, self._settings.elite
        rows: list[Ints] = []
        costs: list[Cost] = []
        for number in range(1, count + 1):
            drawn, its = self._play()
            rows.append(drawn)
            costs += its
            if number < count or not elite:
                self._ascend(drawn, its)
        if elite:
            # The frequencies among the elite of the last N replace the distribution, and a share of
            # the uniform distribution is mixed in.
            ranks = [rank_of(self._trial.problem.oracle, cost) for cost in costs]
            best = best_of(np.concatenate(rows), ranks, elite)
            explore = explored(self._settings.explore, self._trial.budget.share)
            chance = frequencies(best, self._even.shape[1])
            self.chance = mixed(chance, self._even, min(explore, self._most))

    def _ascend(self, rows: Ints, costs: Sequence[Cost]) -> None:
        """Steps of ascent on the proximal objective of the last K samples."""
        settings = self._settings
        # A placement over memory gets a longer step time, so that the gradient leads away from it.
        signals = signals_of(self._trial, costs, self._reference, overflow_fails=False)
        gains = advantages(signals)
        chance = ascended(
            self.chance, rows, gains, settings.steps, settings.rate, settings.clip, settings.kl
        )
        require_finite(chance)
        self.chance = chance


def _weights(policy: SavedPolicy, even: Floats) -> Floats:
    """The distribution of a saved policy, on the devices that are allowed here.

    Raises InputError where the policy holds no distribution of this shape.
    """
    kept = np.asarray(policy.weights.get(CHANCE))
    is_table = kept.shape == even.shape and kept.dtype.kind in "fiub"
    if not is_table or not ((kept >= 0) & (kept <= 1 + ROUNDED)).all():
        raise InputError(f"policy: must hold chances {even.shape[0]} x {even.shape[1]}")
    chance = np.where(even > 0, kept, 0.0).astype(np.float64)
    total = chance.sum(axis=1, keepdims=True)
    # The allowed devices of a group may differ from those of the saved policy.
    here: Floats = np.divide(chance, total, out=even.copy(), where=total > 0)
    return here
