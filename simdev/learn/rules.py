"""Rules of learning: the signal of a placement (a number without unit, smaller is better), and the
loss from the signals of sampled placements.

No rule needs PyTorch itself. Shapes: n placements, G stages; ``log_chosen`` [n, G] are the
log-probabilities (natural) of the chosen devices, each given the devices before it.

The learners choose a rule by their settings (``settings``), and ``training`` runs it. The oracle
gives the cost of a placement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf, nan, sqrt
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..ground.errors import InputError
from ..nouns.taskgraph import Floats
from ..oracle import Cost
from ..search import space
from ..search.space import alone, energy
from ..search.trial import Trial, rounds
from .settings import GDPSettings, SpotlightSettings

if TYPE_CHECKING:
    from torch import Tensor

FAILING = 10.0
"""The signal of a placement that fails: that of a step 100 times as long as one device's.
(ColocRL's successor uses the root of 100 s, for steps of some seconds; a constant in seconds would
mean something else on each question.)
"""

ROUNDING = 1e-12  # relative


def reference_ps(trial: Trial) -> float:
    """The step time that signals are relative to [ps] (``space.reference_ps``); evaluates all
    single devices. Raises SpentError.
    """
    oracle, choices = trial.problem.oracle, trial.problem.choices
    return float(space.reference_ps(oracle, map(trial.score_once, alone(oracle, choices))))


def signals_of(
    trial: Trial, costs: Iterable[Cost], reference: float, overflow_fails: bool = True
) -> Floats:
    """The signal of each placement: the root of its step over the reference (ColocRL, ICML 2017,
    section 3.1), at most FAILING.

    An impossible placement fails. A placement that does not fit fails too (``overflow_fails``), or
    counts as slower by the factor 1 + its relative excess.
    """
    oracle = trial.problem.oracle
    effective = [
        inf if overflow_fails and not cost.feasible else energy(oracle, cost) for cost in costs
    ]
    return np.array([min(sqrt(ps / reference), FAILING) for ps in effective])


def in_deviations(better: Floats, signals: Floats) -> Floats:
    """Advantages of a batch [n] in standard deviations of its signals (ours); 0 where all signals
    are equal up to rounding.
    """
    deviation = float(signals.std())
    if not deviation > ROUNDING * float(np.abs(signals).max(initial=0.0)):
        return np.zeros(len(signals))
    return better / deviation


def require_finite(numbers: NDArray[Any]) -> None:
    """Raises InputError where the settings have led to numbers that are not finite."""
    if not np.isfinite(numbers).all():
        raise InputError("settings: too large or too small: what is learned is no finite number")


class Rule(Protocol):
    """A rule as the training loop uses it. ``advantages`` is called once for each batch, and may
    keep state; ``loss`` is called ``epochs`` times for each part of it, perhaps in other processes.
    """

    epochs: int

    def advantages(self, signals: Floats) -> Floats:
        """The advantage of each of n placements over the expected signal (> 0: better)."""

    def loss(
        self, log_chosen: Tensor, old_log_chosen: Tensor, entropies: Tensor, advantages: Tensor
    ) -> Tensor:
        """The loss, a mean over placements. Arguments: log-probabilities of the choices [n, S], now
        and when they were sampled, entropies [n, any] in nats, advantages [n].
        """


class Reinforce:
    """REINFORCE (Williams, 1992) with a moving average of the signals as baseline, as in ColocRL
    (ICML 2017, section 3.1; recalled, not verified).

    It follows the gradient of the mean of (signal - baseline) x log-probability. After
    ``failing_updates`` updates only placements that succeed train and move the baseline, which then
    begins anew (ours: else it would fall from FAILING for dozens of updates, all of which would
    praise whatever succeeds). ``entropy`` is the weight of the mean entropy of a stage, in units of
    the root mean square of the advantages, so that it means the same whether placements differ much
    or little (ours). ``baseline`` is its first value; NaN: the mean of the first batch.
    """

    epochs = 1

    def __init__(
        self, decay: float, entropy: float, failing_updates: int, baseline: float = nan
    ) -> None:
        self._decay, self._entropy, self._failing_updates = decay, entropy, failing_updates
        self._updates, self._baseline = 0, baseline

    def advantages(self, signals: Floats) -> Floats:
        """The baseline minus each signal [n]; 0 for failing placements once these no
        longer train.
        """
        if self._updates == self._failing_updates:
            self._baseline = float("nan")
        trains = (signals < FAILING) | (self._updates < self._failing_updates)
        self._updates += 1
        if not trains.any():
            return np.zeros(len(signals))
        mean = float(signals[trains].mean())
        before = mean if np.isnan(self._baseline) else self._baseline
        self._baseline = self._decay * before + (1.0 - self._decay) * mean
        return np.where(trains, before - signals, 0.0)

    def loss(
        self, log_chosen: Tensor, old_log_chosen: Tensor, entropies: Tensor, advantages: Tensor
    ) -> Tensor:
        """Minus the advantages x log-probabilities of whole placements, minus the entropies."""
        gained = (advantages * log_chosen.sum(1)).mean()
        weight = self._entropy * advantages.square().mean().sqrt()
        return -gained - weight * entropies.mean()


# Proximal policy optimisation by stage: a ratio for each group of a placement, not one for all. The
# clipped surrogate of Schulman et al. 2017 (arXiv 1707.06347), eq. 7, in the sum over stages of
# Spotlight (Gao, Chen, Li, ICML 2018).


def surrogate(
    log_chosen: Tensor, old_log_chosen: Tensor, advantages: Tensor, clip: float
) -> Tensor:
    """The objective that an update climbs: the sum over stages of min(r A, clip(r) A), its mean
    over placements.

    ``advantages`` [n], one per placement: its reward comes after the last stage. ``clip`` bounds
    each ratio r to 1 - clip..1 + clip where a larger change would only gain. The product of the
    ratios of all stages would leave these bounds after one step.
    """
    return climbed(log_chosen, old_log_chosen, advantages[:, None], clip).sum(1).mean()


def climbed(log_chosen: Tensor, old_log_chosen: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """The clipped gain min(r A, clip(r) A) of each choice; all three tensors have its shape. r is
    the new probability of the choice over its probability when it was sampled.

    ``old_log_chosen`` come from the policy that sampled: they are constant in all epochs of a
    batch, and no gradient runs through them.
    """
    ratio = (log_chosen - old_log_chosen.detach()).exp()
    return (ratio * advantages).minimum(ratio.clamp(1.0 - clip, 1.0 + clip) * advantages)


def divergence(log_chosen: Tensor, old_log_chosen: Tensor) -> Tensor:
    """An estimate of KL(old || new) from the choices: the mean over placements of the sum over
    stages of r - 1 - log r.

    Each term is at least 0, and its mean over the old policy's choices is the KL divergence of the
    stage.
    """
    change = log_chosen - old_log_chosen.detach()
    return (change.exp() - 1.0 - change).sum(1).mean()


class Epochs:
    """The part of a rule that climbs a batch for several epochs; learners add a baseline."""

    def __init__(self, settings: GDPSettings | SpotlightSettings) -> None:
        self._settings, self.epochs = settings, settings.epochs

    def loss(
        self, log_chosen: Tensor, old_log_chosen: Tensor, entropies: Tensor, advantages: Tensor
    ) -> Tensor:
        """The loss of each epoch: minus the surrogate, minus the mean entropy of a stage
        (``entropies`` [n, G], nats), plus the divergence, by the weights of the settings.

        Ours: the mean of the entropies, not their sum, so that one weight suits any number of
        stages: with many stages each has only a small part in the advantage of its placement.
        """
        settings = self._settings
        gain = surrogate(log_chosen, old_log_chosen, advantages, settings.clip)
        gain = gain + settings.entropy * entropies.mean()
        return settings.divergence * divergence(log_chosen, old_log_chosen) - gain


class ByStage(Epochs):
    """Spotlight's rule: proximal policy optimisation over the stages of placements, several epochs
    per batch.

    The only reward comes after the last stage, and nothing is discounted: all stages have the
    advantage of their placement, (baseline - signal) / standard deviation of the batch. All numbers
    are ours.
    """

    _settings: SpotlightSettings
    _baseline = nan

    def advantages(self, signals: Floats) -> Floats:
        """The advantage of each of n placements over the baseline [n]: the moving average of
        earlier batches, for the first batch its own mean. Failing placements count too.
        """
        mean, decay = float(signals.mean()), self._settings.decay
        before = mean if np.isnan(self._baseline) else self._baseline
        self._baseline = decay * before + (1.0 - decay) * mean
        better = before - signals
        return in_deviations(better, signals) if self._settings.normalised else better


class Proximal(Epochs):
    """GDP's rule (section 3.4; recalled): proximal policy optimisation with a ratio for each node
    (ours; a product of hundreds of factors would leave every bound after one step), several epochs
    per batch.

    The reward is minus the signal (the root of the step over the best single device's; 10 for an
    impossible placement or one that does not fit). The baseline is the mean of all rewards of the
    same graph before this batch, or of this batch alone ("batch", ours).
    """

    _settings: GDPSettings
    _sum, _count = 0.0, 0

    def advantages(self, signals: Floats) -> Floats:
        """The advantage of each of n placements over the baseline [n]."""
        earlier = self._settings.baseline == "earlier" and self._count > 0
        baseline = self._sum / self._count if earlier else float(signals.mean())
        self._sum, self._count = self._sum + float(signals.sum()), self._count + len(signals)
        return in_deviations(baseline - signals, signals)


def use(trial: Trial, decode: Callable[[], object], sample: Callable[[], object]) -> None:
    """Use the saved policy that a trial begins with, if any: evaluate its likeliest placement
    (``decode``), so that no training after it ends with a worse one.

    Without training, batches of samples follow, each by a call of ``sample``, until the budget is
    spent or PATIENCE batches in a row bring no new placement. Raises SpentError.
    """
    if trial.learning.policy is None:
        return
    decode()
    if not trial.learning.train:
        for _ in rounds(trial):
            sample()
