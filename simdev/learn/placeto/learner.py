"""Placeto's learner: REINFORCE over episodes of improvement, with a baseline for each visit.

``simdev.search`` finds it by its row in ``learn.methods``, ``pretraining`` by the ``general`` of
that row. Its network is in ``network``, its settings are in ``learn.settings``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import log

import numpy as np
import torch
from torch import Tensor

from ...nouns.taskgraph import Floats, Ints
from ...oracle import Cost, Oracle
from ...search.features import features_of
from ...search.sampling import anywhere
from ...search.space import IMPOSSIBLE, relative_excess
from ...search.trial import REFUSED, Trial, best_start, rounds
from ..policy import chosen, entropies, inverse, likeliest
from ..rules import climbed, reference_ps, use
from ..settings import PlacetoSettings
from ..training import adam_of, descend, keep, one_thread
from .network import PlacetoNetwork, States, structure_of

MOST = 10.0  # steps of the best single device; the code's limit is 10 s, for steps of about 1 s


def badness(oracle: Oracle, cost: Cost, reference: float, settings: PlacetoSettings) -> float:
    """The badness of a placement: its step over ``reference`` [ps] plus the penalty for memory over
    capacity, at most MOST, or the logarithm of that. An impossible placement has MOST.
    """
    if cost is IMPOSSIBLE:
        value = MOST
    else:
        excess = relative_excess(oracle, cost)
        value = min(cost.step_ps / reference + settings.penalty * excess, MOST)
    return log(max(value, 1e-9)) if settings.scale == "log" else value


def returns(gains: Floats, goal: str = "end", discount: float = 1.0) -> Floats:
    """The returns [n, T] of T visits from their gains: the badness before each visit minus the
    badness after it.

    Until the "end" of the episode a return is the sum of the gains of this visit and all later
    ones, each further visit discounted by ``discount``: without a discount the sum telescopes to
    t_i - t_end. Until the "best", it is the largest such sum up to any later visit: t_i minus the
    least t_j.
    """
    sums = gains.copy()
    for visit in range(gains.shape[1] - 2, -1, -1):
        later = discount * sums[:, visit + 1]
        sums[:, visit] += np.maximum(later, 0.0) if goal == "best" else later
    return sums


class Baseline:
    """The mean return of a graph's last ``history`` episodes, at each visit."""

    def __init__(self, history: int) -> None:
        self._kept = deque[Floats](maxlen=history)

    def advantages(self, gained: Floats) -> Floats:
        """The advantage over the baseline of each visit of these episodes [n, T].

        These episodes are themselves among the last ones (as in the code, where workers wait for
        each other); a first single episode is compared with its own mean over all visits (ours).
        """
        self._kept.extend(gained)
        rows = np.stack(self._kept)
        mean = rows.mean(axis=0) if len(rows) > 1 else np.full(rows.shape[1], rows.mean())
        advantages: Floats = gained - mean
        return advantages


def scaled(advantages: Floats) -> Floats:
    """Advantages divided by their root mean square; 0 where all are 0."""
    size = float(np.sqrt(np.square(advantages).mean()))
    return advantages / size if size > 0 else advantages


Choice = Callable[[Tensor, int], Tensor]
"""Chooses devices [E, n] from log-probabilities [E, n, D] at the visits from a number on."""

Visits = Sequence[tuple[int, Ints]]  # pairs of a group and its devices [E]


class Task:
    """A graph of a training: its structure, its baseline, and the start of its episodes."""

    def __init__(self, trial: Trial, settings: PlacetoSettings, start: str) -> None:
        self.trial, self.settings, self._start = trial, settings, start
        self.structure = structure_of(features_of(trial.problem.oracle), settings.pooling == "mean")
        self.baseline = Baseline(settings.history)
        self.reference, self.idle = reference_ps(trial), 0
        column = best_start(trial) if start in ("best", "single") else None
        self._single = None if column is None else trial.problem.by_group(column)[0]

    @property
    def visits(self) -> list[Ints]:
        """The groups that each message passing serves, in their order: all groups, pass
        after pass.
        """
        size, order = self.settings.refresh, self.structure.order
        part = [order[at : at + size] for at in range(0, len(order), size)]
        return part * self.settings.passes

    def start(self) -> Ints:
        """The placement (devices by group) at which an episode begins.

        Ours: after ``idle`` updates in a row without a new placement, 2, 4, 8 .. groups of the best
        so far move to random devices, since all moves from the best are then known, and most of
        them lose.
        """
        problem, random = self.trial.problem, self.trial.budget.random
        base = self.trial.best.base
        if self._start == "best" and base is not None:
            placement = problem.by_group(base[0])[0]
            if self.idle:
                moved = random.permutation(len(placement))[: 2 ** min(self.idle, 16)]
                placement[moved] = anywhere(problem.allowed, random)[moved]
            return placement
        if self._start == "single" and self._single is not None:
            return self._single.copy()
        if self._start == "first":
            return np.array([able[0] for able in problem.choices], np.int64)
        return anywhere(problem.allowed, random)

    def bad(self, placement: Ints) -> float:
        """The badness of a placement, evaluated if it is new. Raises SpentError."""
        cost = self.trial.score_once(placement)
        return badness(self.trial.problem.oracle, cost, self.reference, self.settings)

    def begins(self, placements: Ints, groups: Ints) -> Floats | None:
        """Start times of groups [E, G] after the first visited group's, over the latest start; None
        where the settings do without. Placements are evaluated before, so nothing is counted here.
        """
        if not self.settings.starts:
            return None
        rows = np.zeros(placements.shape)
        for row, placement in zip(rows, placements, strict=True):
            try:
                row[:] = self.trial.problem.oracle.starts(placement).group_ps
            except REFUSED:  # it starts nowhere
                continue
        latest = np.maximum(rows.max(axis=1, keepdims=True), 1.0)
        begins: Floats = (rows - rows[:, groups].min(axis=1, keepdims=True)) / latest
        return begins


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """E finished episodes: ``states`` of their W moments, the chosen ``devices`` [W, E, n],
    ``counts`` [W, n] whether there was a visit (the last moment of a pass may have fewer), the
    choices' log-probabilities [W, E, n], and ``gains`` [E, T], the badness before each visit minus
    the badness after it; 0 for visits that were taken back, or that were evaluated with a later
    one.
    """

    states: States
    devices: Tensor
    counts: Tensor
    log_chosen: Tensor
    gains: Floats


def play(network: PlacetoNetwork, task: Task, count: int, choose: Choice, every: int = 1) -> Played:
    """Play ``count`` episodes side by side, evaluated after ``every`` visits of a message passing.
    Raises SpentError.
    """
    placements = np.stack([task.start() for _ in range(count)])
    bad, gains = np.array([task.bad(row) for row in placements]), list[Floats]()
    moments = list[tuple[States, Tensor, Tensor]]()
    visited, begun = np.zeros(placements.shape, np.float32), 0
    for groups in task.visits:
        if visited[0, groups].any():  # another pass
            visited[:] = 0.0
        state = _state(task, placements, visited, groups)
        with torch.inference_mode():
            log_chances = network(task.structure, state)[0]
            devices = choose(log_chances, begun)
            moments.append((state, devices, chosen(log_chances, devices)))
        visits = list(zip(groups.tolist(), devices.numpy().T, strict=True))
        together = [visits[at : at + every] for at in range(0, len(visits), every)]
        bad = _moved(task, placements, bad, together, gains)
        visited[:, groups] = 1.0
        begun += len(groups)
    return _played(moments, task.settings.refresh, np.stack(gains, axis=1))


def _state(task: Task, placements: Ints, visited: np.ndarray, groups: Ints) -> States:
    """One moment of the episodes."""
    begins = task.begins(placements, groups)
    return States(
        torch.from_numpy(placements.copy())[None],
        torch.from_numpy(visited.copy())[None],
        torch.from_numpy(groups)[None],
        None if begins is None else torch.from_numpy(begins.astype(np.float32))[None],
    )


def _moved(
    task: Task, placements: Ints, bad: Floats, visits: Sequence[Visits], gains: list[Floats]
) -> Floats:
    """The badness of the placements [E, G] after some visits, evaluated after each of ``visits``.
    Changes ``placements``, and adds the gain of each visit to ``gains`` (0 where it is taken back).
    """
    best, least, first = placements.copy(), bad, len(gains)
    kept = np.full(len(bad), first)  # the number of visits up to the best placement
    for together in visits:
        after, before = bad.copy(), placements.copy()
        for group, devices in together:
            placements[:, group] = devices
        # A group that stays where it is changes nothing, and needs no evaluation.
        for episode in np.flatnonzero((placements != before).any(axis=1)):
            after[episode] = task.bad(placements[episode])
        gains += [*np.zeros((len(together) - 1, len(bad))), bad - after]
        better = after < least
        best[better], least = placements[better], np.minimum(after, least)
        kept[better], bad = len(gains), after
    if task.settings.undo:
        placements[:], bad = best, least
        for visit, gained in enumerate(gains[first:], first):
            gained[kept <= visit] = 0.0
    return bad


def _played(moments: list[tuple[States, Tensor, Tensor]], size: int, gains: Floats) -> Played:
    """Moments joined; moments with fewer visits are filled up with visits that do not count."""
    states = [state for state, _, _ in moments]
    starts = [state.starts for state in states if state.starts is not None]
    size = min(size, max(state.groups.shape[1] for state in states))
    counts = torch.stack([torch.arange(size) < state.groups.shape[1] for state in states])
    joined = States(
        torch.cat([state.devices for state in states]),
        torch.cat([state.visited for state in states]),
        torch.cat([_filled(state.groups, size) for state in states]),
        torch.cat(starts) if starts else None,
    )
    devices = torch.stack([_filled(devices, size) for _, devices, _ in moments])
    log_chosen = torch.stack([_filled(rows, size) for _, _, rows in moments])
    return Played(joined, devices, counts, log_chosen.clone(), gains)


def _filled(rows: Tensor, size: int) -> Tensor:
    """Rows [..., n] filled up to ``size`` with their first element."""
    missing = size - rows.shape[-1]
    return torch.cat([rows, rows[..., :1].expand(*rows.shape[:-1], missing)], -1)


def by_luck(uniforms: Floats) -> Choice:
    """A Choice that samples devices at ``uniforms`` [E, T]."""
    lucks = torch.from_numpy(uniforms)

    def choose(log_chances: Tensor, begun: int) -> Tensor:
        end = begun + log_chances.shape[1]
        return inverse(log_chances.exp(), lucks[:, begun:end])

    return choose


def by_chance(log_chances: Tensor, begun: int) -> Tensor:
    """The likeliest devices; on a tie, up to rounding, the first."""
    return likeliest(log_chances.double())


# Imitation: the policy learns to send every group where a given placement has it.

UPDATES = 200  # at most; ours
MOMENTS = 8  # per update, drawn from an episode; ours


def imitate(
    network: PlacetoNetwork, adam: torch.optim.Adam, task: Task, placement: Ints
) -> dict[str, float]:
    """Raise the probability that an episode ends at ``placement`` (devices by group), whatever it
    began at: groups that were visited are placed as there, the others at random.

    Ends where an episode is expected to differ in few groups (``settings.differing``). Returns the
    number of updates, and the expected number of differing groups. Raises SpentError where the time
    is over.
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
        descend(network, adam, -log_chosen.mean(), settings.clip)
    return {"updates": UPDATES, "differing": differing}


def _states(task: Task, placement: Ints, moments: list[int]) -> States:
    """Moments of episodes that begin at random and place visited groups as in ``placement``."""
    random, visits = task.trial.budget.random, task.visits
    devices = anywhere(task.trial.problem.allowed, random, len(moments))
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
    """A policy in training, for any number of graphs with as many devices as the first has;
    ``practises``: to place other graphs than these.
    """

    graphs = 1

    def __init__(self, trial: Trial, practises: bool = False) -> None:
        settings: PlacetoSettings = trial.learning.settings
        self.settings, self.trial = settings, trial
        self._start = settings.practice if practises else settings.start
        devices = len(trial.problem.oracle.cluster.devices)
        self.network = PlacetoNetwork(devices, settings, trial.budget.seed)
        keep("placeto", trial, self.network, any_graph=True)
        self.adam = adam_of(self.network, settings.rate)
        self._tasks, self._updates = dict[Trial, Task](), 0

    def task(self, trial: Trial) -> Task:
        """The task of a graph; its starts are evaluated the first time. Raises SpentError."""
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
        """Episodes with sampled devices, evaluated after ``every`` visits. Raises SpentError."""
        count, random = self.settings.episodes, task.trial.budget.random
        visits = sum(map(len, task.visits))
        return play(self.network, task, count, by_luck(random.random((count, visits))), every)

    def decode(self, task: Task) -> None:
        """An episode of the likeliest devices, without learning; in double precision, so that it is
        the same on every machine. Raises SpentError.
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
                loss = self._loss(task, played, gained, part, weight)
                descend(self.network, self.adam, loss, settings.clip)

    def _loss(
        self, task: Task, played: Played, gained: Tensor, part: Tensor, weight: float
    ) -> Tensor:
        """Minus the gain of the visits of some moments, and minus their weighted entropies: means
        over visits.
        """
        log_chances = self.network(task.structure, played.states.part(part))
        counts = played.counts[part][:, None].expand(-1, log_chances.shape[1], -1)
        log_chosen = chosen(log_chances, played.devices[part])[counts]
        old, advantage = played.log_chosen[part][counts], gained[part][counts]
        gain = climbed(log_chosen, old, advantage, self.settings.ratio).mean()
        return -gain - weight * entropies(log_chances)[counts].mean()


def placeto(trial: Trial) -> None:
    """Placeto (NeurIPS 2019): a network improves a whole placement group by group, and learns from
    the gain of each move.

    It trains a policy on this graph, or plays with a saved policy, until the budget is used up, or
    no new placement was sampled for PATIENCE updates. It begins with a saved policy (an episode of
    its likeliest devices first), or with the imitation of a warm start where episodes do not begin
    there. Raises SpentError.
    """
    learner = Placeto(trial)
    with one_thread():
        task = learner.task(trial)
        every = learner.settings.every
        use(trial, lambda: learner.decode(task), lambda: learner.sample(task, every))
        if trial.learning.warm is not None and learner.settings.start != "best":
            imitated = imitate(learner.network, learner.adam, task, trial.learning.warm)
            trial.best.details["imitation"] = imitated
    if trial.learning.train:
        for _ in rounds(trial):
            learner.update([trial])


def general(trial: Trial) -> Placeto:
    """The learner of any number of graphs, made from the first of their trials."""
    return Placeto(trial, practises=True)


def _by_moment(advantages: Floats, played: Played) -> Tensor:
    """Advantages [E, T] by moment [W, E, n]; 0 where there is no visit."""
    counts = played.counts.numpy()
    rows = np.zeros((len(advantages), *counts.shape))
    rows[:, counts] = advantages
    return torch.from_numpy(rows.astype(np.float32)).transpose(0, 1)


def _parts(count: int, parts: int, random: np.random.Generator) -> list[Tensor]:
    """``count`` moments in ``parts``, shuffled where there are several parts."""
    if parts == 1:
        return [torch.arange(count)]
    split = np.array_split(random.permutation(count), min(parts, count))
    return [torch.from_numpy(part) for part in split]


def _between(first: float, last: float, share: float) -> float:
    return first + (last - first) * share
