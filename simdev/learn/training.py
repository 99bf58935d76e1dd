"""The loop that trains a policy (sample, evaluate, follow the gradient of a rule); the controllers
that sample and differentiate for it, perhaps in other processes; and saving and restoring policies.

The learners with a ``Policy`` call ``train``; ``pretraining`` trains several graphs at once without
it. ``simdev.search.trial`` keeps the budget and the best placement.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from ..ground.errors import InputError
from ..nouns.taskgraph import Floats, Ints
from ..search.features import VERSION
from ..search.policy import SavedPolicy, tied_to
from ..search.trial import Budget, Trial, rounds
from ..search.workers import Workers
from .policy import Policy
from .rules import Rule, reference_ps, require_finite, signals_of, use

IMITATIONS = 500  # updates of an imitation at most; ours
CLIP = 1.0  # norm of its gradient; ours


def train(
    trial: Trial, policy: Policy, rule: Rule, norm: float, overflow_fails: bool = True
) -> None:
    """Train a policy until the budget is used up, or no new placement was sampled for PATIENCE
    updates. Begins with the use of a saved policy, its likeliest placement first, or with the
    imitation of the trial's warm start. Raises SpentError.

    The learner's settings have ``samples`` (of an update), ``controllers``, ``rate``, ``decodes``
    and the others of ``PlacerSettings``. ``norm`` is the largest norm of the gradient of all
    weights; ``overflow_fails``: a placement that does not fit fails (``rules.signals_of``).
    """
    with one_thread():
        use(
            trial,
            lambda: trial.score_once(policy.decode().numpy()),
            lambda: _play(trial, policy),
        )
        if not trial.learning.train:
            return
        loop = Loop(trial, policy, rule, norm, overflow_fails)
        settings, warm = trial.learning.settings, trial.learning.warm
        if warm is not None:
            imitated = imitate(trial.budget, policy, warm, settings.rate, settings.differing)
            trial.best.details["imitation"] = imitated
        for _ in rounds(trial):
            loop.update()


def _play(trial: Trial, policy: Policy) -> None:
    """Evaluate a batch of samples."""
    uniforms = trial.budget.random.random((trial.learning.settings.samples, policy.choices))
    for row in policy.placements(policy.sample(torch.from_numpy(uniforms))).numpy():
        trial.score_once(row)


def imitate(
    budget: Budget, policy: Policy, placement: Ints, rate: float, few: float
) -> dict[str, float]:
    """Raise the probability of a placement until a sample is expected to differ from it in at most
    ``few`` groups. Returns the number of ``updates``, and the expected number of ``differing``
    groups.

    The latter is the sum over the stages of the probability of any other choice, given that earlier
    stages chose as in the placement, times the groups that it moves. Raises SpentError where the
    time is over.
    """
    adam = adam_of(policy, rate)
    sample, moved = policy.imitating(torch.from_numpy(placement))
    for update in range(IMITATIONS):
        budget.require_time()
        log_chosen, _ = policy.judge(sample[None])
        differing = float(((1.0 - log_chosen.detach().exp()) * moved).sum())
        if differing <= few:
            return {"updates": update, "differing": differing}
        descend(policy, adam, -log_chosen.sum(), CLIP)
    return {"updates": IMITATIONS, "differing": differing}


def adam_of(module: nn.Module, rate: float) -> torch.optim.Adam:
    """An optimiser of all weights of a module."""
    # One tensor after another (no foreach): the fused variants may add in another order.
    return torch.optim.Adam(module.parameters(), lr=rate, foreach=False)


def descend(module: nn.Module, adam: torch.optim.Adam, loss: Tensor, norm: float) -> None:
    """One step of a module's weights down the gradient of a loss, clipped at a norm."""
    adam.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(module.parameters(), norm)
    adam.step()


class Loop:
    """A training under way: a policy, its optimiser, and the controllers that work for it."""

    def __init__(
        self, trial: Trial, policy: Policy, rule: Rule, norm: float, overflow_fails: bool
    ) -> None:
        self._trial, self._policy, self._rule, self._norm = trial, policy, rule, norm
        self._settings, self._overflow_fails = trial.learning.settings, overflow_fails
        device = getattr(self._settings, "device", "cpu")
        if device == "cuda" and not torch.cuda.is_available():
            raise InputError("settings: device is cuda, and PyTorch sees no GPU here")
        controller = Controller(policy, rule, device)
        self._workers = Workers(controller, trial.learning.n_jobs, trial.budget)
        self._adam = adam_of(policy, self._settings.rate)
        self._reference, self._updates = reference_ps(trial), 0
        samples = self._settings.samples
        # Every share needs a sample: without one it would have no mean.
        shares = min(self._settings.controllers, samples)
        self._shares = np.array_split(np.arange(samples), shares)

    def update(self) -> None:
        """Sample a batch, evaluate it, and follow the rule's gradient. Raises SpentError."""
        trial, shape = self._trial, (self._settings.samples, self._policy.choices)
        uniforms, weights = trial.budget.random.random(shape), weights_of(self._policy)
        calls = [(weights, uniforms[share]) for share in self._shares]
        parts: list[Ints] = self._workers.run("sample", calls)
        placements = self._policy.placements(torch.from_numpy(np.concatenate(parts))).numpy()
        costs = map(trial.score_once, placements)
        signals = signals_of(trial, costs, self._reference, self._overflow_fails)
        self._follow(parts, self._rule.advantages(signals))
        self._updates += 1
        if self._updates % self._settings.decodes == 0:
            trial.score_once(self._policy.decode().numpy())

    def _follow(self, parts: Sequence[Ints], advantages: Floats) -> None:
        """The epochs of the rule on a batch. The weight of entropies falls linearly to 0 by the end
        of the budget (ours: a policy first explores, and is certain in the end).
        """
        left = 1.0 - self._trial.budget.share
        old: Sequence[Weights | None] = [None] * len(parts)
        sizes = [len(part) / len(advantages) for part in parts]
        for _ in range(self._rule.epochs):
            weights = weights_of(self._policy)
            rows = zip(parts, old, self._shares, strict=True)
            calls = [
                (weights, part, before, advantages[share], left) for part, before, share in rows
            ]
            answers = self._workers.run("gradient", calls)
            old = [before for _, before in answers]
            gradient = np.zeros_like(weights)
            for (part, _), size in zip(answers, sizes, strict=True):
                gradient += part * np.float32(size)
            require_finite(gradient)
            set_gradient(self._policy, gradient)
            nn.utils.clip_grad_norm_(self._policy.parameters(), self._norm)
            self._adam.step()


Weights = NDArray[np.float32]


class Controller:
    """A policy and a rule, on a device. The weights come with each call, so that any process may
    run it.
    """

    def __init__(self, policy: Policy, rule: Rule, device: str = "cpu") -> None:
        self._policy, self._rule, self._device = policy, rule, device
        self._copies: list[Policy] = []  # copies that no call is using

    def sample(self, weights: Weights, uniforms: Floats) -> Ints:
        """Samples [n, S] at ``uniforms`` [n, S]."""
        with one_thread(), self._at(weights) as policy:
            return policy.sample(self._sent(uniforms)).cpu().numpy()

    def gradient(
        self,
        weights: Weights,
        samples: Ints,
        old: Weights | None,
        advantages: Floats,
        left: float = 1.0,
    ) -> tuple[Weights, Weights]:
        """The gradient of the loss by weight, and the log-probabilities [n, S] of the choices when
        they were sampled: ``old``, or the current ones where that is None. The rule sees entropies
        times ``left``.
        """
        with one_thread(), self._at(weights) as policy:
            log_chosen, spread = policy.judge(self._sent(samples))
            before = log_chosen.detach() if old is None else self._sent(old)
            gains = self._sent(advantages).to(log_chosen.dtype)
            loss = self._rule.loss(log_chosen, before, left * spread, gains)
            gradients = torch.autograd.grad(loss, list(policy.parameters()))
            return _flat(gradients), before.cpu().numpy()

    def _sent(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    @contextmanager
    def _at(self, weights: Weights) -> Iterator[Policy]:
        """A copy of the policy with these weights: threads may need several at once."""
        try:
            copied = self._copies.pop()
        except IndexError:
            copied = deepcopy(self._policy).to(self._device)
        set_weights(copied, weights)
        yield copied
        self._copies.append(copied)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use a single thread, so that sums are added in one order."""
    threads = torch.get_num_threads()
    if threads != 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if threads != 1:
            torch.set_num_threads(threads)


def weights_of(module: nn.Module) -> Weights:
    """All weights of a module, one after another."""
    return _flat(parameter.detach() for parameter in module.parameters())


def set_weights(module: nn.Module, weights: Weights) -> None:
    """Set the weights of a module, flat as ``weights_of`` returns them."""
    with torch.no_grad():
        # Copies: how views of one vector lie in memory would change how sums are rounded.
        for parameter, part in _parts(module, weights):
            parameter.copy_(part)


def set_gradient(module: nn.Module, gradient: Weights) -> None:
    """Set the gradient of a module, flat as a controller returns it."""
    for parameter, part in _parts(module, gradient):
        parameter.grad = part


def _parts(module: nn.Module, flat: Weights) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """Each parameter of a module, and its part of a flat array."""
    parameters = list(module.parameters())
    parts = torch.from_numpy(flat).split([parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        yield parameter, part.view_as(parameter)


def _flat(tensors: Iterable[Tensor]) -> Weights:
    return parameters_to_vector(tensors).cpu().numpy()


class Network(Protocol):
    """A network that can be saved: weights by name, for a number of devices and of ``groups`` (0:
    for any number of groups).
    """

    devices: int
    groups: int

    def state_dict(self) -> Mapping[str, Tensor]:
        """The weights, and nothing else, to be saved."""


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """A policy at work in a trial (``trial.policy``). ``method`` is the learner's name;
    ``any_graph``: the policy can place other graphs too.
    """

    method: str
    trial: Trial
    policy: Network
    any_graph: bool = False

    def saved(self) -> SavedPolicy:
        """The policy as it is now."""
        weights = {name: tensor.numpy().copy() for name, tensor in self.policy.state_dict().items()}
        return SavedPolicy(
            method=self.method,
            features=VERSION,
            devices=self.policy.devices,
            groups=self.policy.groups,
            graph="" if self.any_graph else tied_to(self.trial.problem.oracle),
            settings=asdict(self.trial.learning.settings),
            weights=weights,
        )


def keep(method: str, trial: Trial, policy: Network, any_graph: bool = False) -> None:
    """Make a policy the trial's, and restore the weights of the saved policy that it begins with,
    if any.

    Raises InputError where these are of other sizes, or not finite.
    """
    if trial.learning.policy is not None:
        _restore(policy, trial.learning.policy)
    trial.policy = Kept(method, trial, policy, any_graph)


def _restore(policy: Network, saved: SavedPolicy) -> None:
    weights = saved.weights
    parameters = policy.state_dict()
    for name in [*parameters, *weights]:
        here = tuple(parameters[name].shape) if name in parameters else None
        there = weights[name].shape if name in weights else None
        if here != there:
            raise InputError(
                f"policy: {name} has the shape {there}, where the settings want {here}"
            )
    kept = {name: _numbers(name, weights[name]) for name in parameters}
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(torch.from_numpy(kept[name]))


def _numbers(name: str, weights: NDArray[Any]) -> NDArray[np.float32]:
    """A copy of weights as float32. Raises InputError where they are not finite: nothing could be
    sampled, and no gradient would lead back.
    """
    if weights.dtype.kind in "fiub":
        with np.errstate(over="ignore"):  # overflow gives inf, which is refused below
            numbers: NDArray[np.float32] = weights.astype(np.float32)
        if np.isfinite(numbers).all():
            return numbers
    raise InputError(f"policy: {name} must hold finite numbers")
