"""Imitation: the policy learns to send every group where a given placement has it."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from ...nouns.taskgraph import Ints
from ...search.sampling import sampled, uniform
from ..networks.policy import chosen
from .episodes import Task
from .network import PlacetoNetwork, States

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
