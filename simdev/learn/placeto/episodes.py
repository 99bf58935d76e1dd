"""Episodes: every group is visited in topological order, and placements are evaluated on the
way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...nouns.taskgraph import Floats, Ints
from ...search.features import features_of
from ...search.learning.beginning import by_group
from ...search.sampling import sampled, uniform
from ...search.trial import REFUSED, Trial, best_start
from ..networks.policy import inverse, likeliest
from ..networks.signals import reference_ps
from .network import PlacetoNetwork, States
from .returns import Baseline, badness
from .settings import Settings
from .structure import structure_of

Choice = Callable[[Tensor, int], Tensor]
"""Devices [E, n] of log-probabilities [E, n, D] at visits from a number on."""

Visits = Sequence[tuple[int, Ints]]  # each a group with its devices [E]


class Task:
    """What is kept of a graph: its structure, its baseline, and where its episodes begin."""

    def __init__(self, trial: Trial, settings: Settings, start: str) -> None:
        self.trial, self.settings, self._start = trial, settings, start
        self.structure = structure_of(
            features_of(trial.problem.oracle).groups, settings.pooling == "mean"
        )
        self.baseline = Baseline(settings.history)
        self.reference, self.idle = reference_ps(trial), 0
        self._single = self._best_start() if start in ("best", "single") else None

    @property
    def visits(self) -> list[Ints]:
        """The groups that each message passing serves, in their order: all groups, pass after
        pass.
        """
        size, order = self.settings.refresh, self.structure.order
        part = [order[at : at + size] for at in range(0, len(order), size)]
        return part * self.settings.passes

    def start(self) -> Ints:
        """The placement (devices by group) at which an episode begins.

        Ours: where ``idle`` updates in a row met nothing new, 2, 4, 8 .. groups of the best so far
        are sent anywhere: all moves from there are known, and most of them lose.
        """
        problem, base = self.trial.problem, self.trial.best.base
        if self._start == "best" and base is not None:
            placement = by_group(problem, base[0])[0]
            if self.idle:
                random, count = self.trial.budget.random, len(placement)
                moved = random.permutation(count)[: 2 ** min(self.idle, 16)]
                drawn = sampled(uniform(problem.allowed), random.random(count))
                placement[moved] = drawn[moved]
            return placement
        if self._start == "single" and self._single is not None:
            return self._single.copy()
        if self._start == "first":
            return np.array([able[0] for able in problem.choices], np.int64)
        even = uniform(problem.allowed)
        return sampled(even, self.trial.budget.random.random(len(even)))

    def bad(self, placement: Ints) -> float:
        """How bad a placement is, evaluated where it was not before. Raises SpentError."""
        cost = self.trial.score_once(placement)
        return badness(self.trial.problem.oracle, cost, self.reference, self.settings)

    def begins(self, placements: Ints, groups: Ints) -> Floats | None:
        """When groups start [E, G], from the first of the visited ones on, over the latest; None
        where the settings do without. What starts is evaluated already: this counts as none.
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

    def _best_start(self) -> Ints | None:
        column = best_start(self.trial)
        return None if column is None else by_group(self.trial.problem, column)[0]


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """E episodes that ended: ``states`` of their W moments, ``devices`` [W, E, n] that were chosen,
    ``counts`` [W, n] whether there was a visit (the last moment of a pass may have fewer), their
    log-probabilities [W, E, n], and ``gains`` [E, T], how bad the placement was before each visit
    minus after it; 0 for visits that were taken back, or that were evaluated with a later one.
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
            log_chosen = log_chances.gather(-1, devices[..., None])[..., 0]
        moments.append((state, devices, log_chosen))
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
    """How bad the placements [E, G] are after some visits, evaluated after each of ``visits``; they
    are changed, and what each visit gained is added to ``gains``: nothing, where it is taken back.
    """
    best, least, first = placements.copy(), bad, len(gains)
    kept = np.full(len(bad), first)  # how many visits lead to the best
    for together in visits:
        after, before = bad.copy(), placements.copy()
        for group, devices in together:
            placements[:, group] = devices
        # To keep a group where it is changes nothing, and needs no evaluation.
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
    """Moments joined; those with fewer visits are filled up with visits that do not count."""
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
    log_chosen = torch.stack([_filled(chosen, size) for _, _, chosen in moments])
    return Played(joined, devices, counts, log_chosen.clone(), gains)


def _filled(rows: Tensor, size: int) -> Tensor:
    """Rows [..., n] filled up to ``size`` with their first."""
    missing = size - rows.shape[-1]
    return torch.cat([rows, rows[..., :1].expand(*rows.shape[:-1], missing)], -1)


def by_luck(uniforms: Floats) -> Choice:
    """Devices sampled at ``uniforms`` [E, T]."""
    lucks = torch.from_numpy(uniforms)

    def choose(log_chances: Tensor, begun: int) -> Tensor:
        end = begun + log_chances.shape[1]
        return inverse(log_chances.exp(), lucks[:, begun:end])

    return choose


def by_chance(log_chances: Tensor, begun: int) -> Tensor:
    """The likeliest devices; of those that are equal but for rounding, the first."""
    return likeliest(log_chances.double())
