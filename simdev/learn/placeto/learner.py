"""The learner: REINFORCE over episodes of improvement, with a baseline for each visit."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import numpy as np
import torch
from torch import Tensor, nn

from ...nouns.taskgraph import Floats, Ints
from ...search.policy import SavedPolicy
from ...search.sampling import PATIENCE, sampled, uniform
from ...search.trial import Trial
from ..networks import ppo
from ..networks.controllers import one_thread
from ..networks.evaluation import use
from ..networks.keeping import keep
from ..networks.policy import chosen, entropies
from .episodes import Played, Task, by_chance, by_luck, play
from .network import PlacetoNetwork, States
from .returns import returns, scaled
from .settings import Settings

# Imitation: the policy learns to send every group where a given placement has it.

UPDATES = 200  # at most; ours
MOMENTS = 8  # of an update, drawn from an episode; ours


def imitate(
    network: PlacetoNetwork, adam: torch.optim.Adam, task: Task, placement: Ints
) -> dict[str, float]:
    """Raise the probability that an episode ends at ``placement`` (devices by group), whatever it
    began at: groups that were visited stand as there, the others at random.

    Ends where an episode is expected to differ in few groups; how many updates that took, and in
    how many groups. Raises SpentError where the time is over.
    """
    settings, random, visits = task.settings, task.trial.budget.random, task.visits
    goal, differing, full = torch.from_numpy(placement), float(len(placement)), visits[0]
    for update in range(UPDATES):
        task.trial.budget.require_time()
        drawn = [at for at in random.permutation(len(visits)) if len(visits[at]) == len(full)]
        states = _states(task, placement, [int(at) for at in drawn[:MOMENTS]])
        log_chances = network(task.structure, states)
        devices = goal[states.groups][:, None]
        log_chosen = chosen(log_chances, devices)
        differing = float((1.0 - log_chosen.detach().exp()).mean()) * len(placement)
        if differing <= settings.differing:
            return {"updates": update, "differing": differing}
        adam.zero_grad()
        (-log_chosen.mean()).backward()
        nn.utils.clip_grad_norm_(network.parameters(), settings.clip)
        adam.step()
    return {"updates": UPDATES, "differing": differing}


def _states(task: Task, placement: Ints, moments: list[int]) -> States:
    """Moments of episodes that began at random and do as they should."""
    random, visits = task.trial.budget.random, task.visits
    even = uniform(task.trial.problem.allowed)
    devices = sampled(even, random.random((len(moments), len(placement))))
    visited = np.zeros(devices.shape, np.float32)
    begins = list[np.ndarray]()
    for row, marks, moment in zip(devices, visited, moments, strict=True):
        before = np.concatenate([np.zeros(0, np.int64), *visits[:moment]])
        row[before], marks[before] = placement[before], 1.0
        starts = task.begins(row[None], visits[moment])
        begins += [] if starts is None else [starts]
    groups = torch.from_numpy(np.stack([visits[moment] for moment in moments]))
    starts_of = torch.from_numpy(np.stack(begins).astype(np.float32)) if begins else None
    return States(
        torch.from_numpy(devices)[:, None], torch.from_numpy(visited)[:, None], groups, starts_of
    )


# Placeto's training: episodes are played, and the policy climbs their returns.


class Placeto:
    """A policy under way, for any number of graphs with as many devices as the first has;
    ``practises``: for others than these.
    """

    graphs = 1

    def __init__(self, trial: Trial, practises: bool = False) -> None:
        settings = trial.learning.settings
        assert isinstance(settings, Settings)
        self.settings, self.trial = settings, trial
        self._start = settings.practice if practises else settings.start
        devices = len(trial.problem.oracle.cluster.devices)
        self.network = PlacetoNetwork(devices, settings, trial.budget.seed)
        keep("placeto", trial, self.network, any_graph=True)
        # One tensor after another: the compiled variants may add in another order.
        self.adam = torch.optim.Adam(self.network.parameters(), lr=settings.rate, foreach=False)
        self._tasks, self._updates = dict[Trial, Task](), 0

    def saved(self) -> SavedPolicy:
        """The policy as it is now."""
        assert self.trial.policy is not None
        return self.trial.policy.saved()

    def task(self, trial: Trial) -> Task:
        """What is kept of a graph; the first time its starts are evaluated. Raises SpentError."""
        if trial not in self._tasks:
            self._tasks[trial] = Task(trial, self.settings, self._start)
        return self._tasks[trial]

    def update(self, trials: Sequence[Trial]) -> None:
        """Play episodes on each graph, and learn from them. Raises SpentError."""
        with one_thread():
            for trial in trials:
                task = self.task(trial)
                before = trial.distinct
                self._climb(task, self.sample(task))
                task.idle = 0 if trial.distinct > before else task.idle + 1
                self._updates += 1
                if self._updates % self.settings.decodes == 0:
                    self.decode(task)

    def sample(self, task: Task, every: int = 1) -> Played:
        """Episodes whose devices are drawn, evaluated after ``every`` visits. Raises SpentError."""
        count, random = self.settings.episodes, task.trial.budget.random
        visits = sum(map(len, task.visits))
        return play(self.network, task, count, by_luck(random.random((count, visits))), every)

    def decode(self, task: Task) -> None:
        """An episode of the likeliest devices, from which nothing is learned; in double precision,
        so that it is alike on every machine. Raises SpentError.
        """
        exact = deepcopy(self.network).double()
        play(exact, task, 1, by_chance, self.settings.every)

    def _climb(self, task: Task, played: Played) -> None:
        """The epochs of an update."""
        settings, budget = self.settings, task.trial.budget
        gains = returns(played.gains, settings.goal, settings.discount)
        advantages = task.baseline.advantages(gains)
        if settings.relative:
            advantages = scaled(advantages)
        gained = _by_moment(advantages, played)
        self.adam.param_groups[0]["lr"] = _between(settings.rate, settings.last_rate, budget.share)
        weight = _between(settings.entropy, settings.last_entropy, budget.share)
        for _ in range(settings.epochs):
            for part in _parts(len(gained), settings.parts, budget.random):
                budget.require_time()
                self.adam.zero_grad()
                self._loss(task, played, gained, part, weight).backward()
                nn.utils.clip_grad_norm_(self.network.parameters(), settings.clip)
                self.adam.step()

    def _loss(
        self, task: Task, played: Played, gained: Tensor, part: Tensor, weight: float
    ) -> Tensor:
        """Minus what the visits of some moments gain, and minus their entropies: means over
        visits.
        """
        log_chances = self.network(task.structure, played.states.part(part))
        counts = played.counts[part][:, None].expand(-1, log_chances.shape[1], -1)
        log_chosen = chosen(log_chances, played.devices[part])[counts]
        ratio = ppo.ratios(log_chosen, played.log_chosen[part][counts])
        advantage, bound = gained[part][counts], self.settings.ratio
        clipped = ratio.clamp(1.0 - bound, 1.0 + bound)
        climbed = (ratio * advantage).minimum(clipped * advantage).mean()
        return -climbed - weight * entropies(log_chances)[counts].mean()


def search_with(trial: Trial) -> None:
    """Train on one graph until the budget is used up, or nothing new was sampled for PATIENCE
    updates. Begins with the use of a saved policy, an episode of its likeliest devices first, or
    with the imitation of a warm start where episodes do not begin there. Raises SpentError.
    """
    learner, idle = Placeto(trial), 0
    with one_thread():
        task = learner.task(trial)
        every = learner.settings.every
        use(trial, lambda: learner.decode(task), lambda: learner.sample(task, every))
        if trial.learning.warm is not None and learner.settings.start != "best":
            imitated = imitate(learner.network, learner.adam, task, trial.learning.warm)
            trial.best.details["imitation"] = imitated
    while trial.learning.train and idle < PATIENCE:
        before = trial.distinct
        learner.update([trial])
        idle = 0 if trial.distinct > before else idle + 1


def _by_moment(advantages: Floats, played: Played) -> Tensor:
    """Advantages [E, T] by moment [W, E, n]; 0 where there is no visit."""
    counts = played.counts.numpy()
    rows = np.zeros((len(advantages), *counts.shape))
    rows[:, counts] = advantages
    return torch.from_numpy(rows.astype(np.float32)).transpose(0, 1)


def _parts(count: int, parts: int, random: np.random.Generator) -> list[Tensor]:
    """``count`` moments, shuffled where they are divided."""
    if parts == 1:
        return [torch.arange(count)]
    split = np.array_split(random.permutation(count), min(parts, count))
    return [torch.from_numpy(part) for part in split]


def _between(first: float, last: float, share: float) -> float:
    return first + (last - first) * share


def placeto(trial: Trial) -> None:
    """Placeto (NeurIPS 2019): a network improves a whole placement group by group, and learns from
    what each move gains.

    It trains a policy on this graph, or plays with a saved one. Raises SpentError.
    """
    search_with(trial)


def general(trial: Trial) -> Placeto:
    """The learner of any number of graphs, of the first of their trials."""
    return Placeto(trial, practises=True)
