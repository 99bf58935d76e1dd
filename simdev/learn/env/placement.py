"""``simdev/Placement-v0``: placing a graph as a Gymnasium environment, one group after another."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from ...nouns.taskgraph import Rows
from ...oracle import Oracle
from ...search.trial import REFUSED
from .ground import WORST, Ground, outcome_of, share


class PlacementEnv(gymnasium.Env[NDArray[np.float32], np.int64]):
    """One episode places every group of ``oracle.groups`` in turn; the action is the device index.

    The observation is one row of float32 from 0 to 1 (G groups, D devices): progress, the group's
    shares of all memory and of all bytes sent (3 numbers); for each device the group's time there,
    whether it may stand there, the bytes that it reads from there, the time and the memory placed
    there so far (5 D numbers); for each group its device (G numbers; 0: none yet, else (index + 1)
    / D). Times are relative to the sum of the longest of all groups.

    The reward comes with the last group: minus the step time relative to ``reference_ps``, the best
    step on a single device (where no device runs all: the sum of the longest times), minus
    ``penalty`` times the relative excess over memory, and no less than -1,000, which is that of a
    placement that cannot be, as one without a route. The info of ``reset`` has the graph as arrays
    too: ``nodes``, ``edges`` and ``edge_bytes`` (``Ground.arrays``).

    A group that is sent where it cannot stand (``info["action_mask"]`` is 0) goes to its fastest
    device instead, at the reward -1, and the episode goes on. To name that device would have led to
    the same at no cost: to quit never pays, however bad a placement is. ``info["error"]`` tells
    either.

    Raises InputError for a graph without ops, and for a group that can stand nowhere.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (gymnasium's own name and type)

    def __init__(self, oracle: Oracle, penalty: float = 1.0) -> None:
        self.oracle, self.penalty = oracle, penalty
        self._ground = Ground(oracle, penalty)
        groups, devices = self._ground.groups, self._ground.devices
        self.reference_ps = self._ground.reference_ps
        nodes = self._ground.features.groups
        self._time = share(self._ground.seconds, self._ground.longest)
        self._memory = self._ground.memory
        self._source, self._bytes = nodes.source, share(nodes.edge_bytes, nodes.edge_bytes.sum())
        edges = np.arange(len(nodes.source), dtype=np.int64)
        self._into = Rows.of_pairs(nodes.target, edges, groups)
        self._sent = np.bincount(nodes.source, self._bytes, groups)
        self._placement = np.full(groups, -1, np.int64)
        self._placed = np.zeros((2, devices))  # time and memory placed on each device so far
        self._next = groups  # until the first reset
        self.action_space = gymnasium.spaces.Discrete(devices)
        self.observation_space = gymnasium.spaces.Box(
            0.0, 1.0, (3 + 5 * devices + groups,), np.float32
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start again with nothing placed."""
        super().reset(seed=seed)
        self._placement[:], self._placed[:], self._next = -1, 0.0, 0
        return self._observation(), self._info() | self._ground.arrays()

    def step(
        self, action: np.int64
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Place the current group.

        Raises ResetNeeded after the last one, InputError for no device index.
        """
        if self._next >= self._ground.groups:
            raise ResetNeeded("the episode is over")
        wrong, reason = self._put(action)
        if self._next < self._ground.groups:
            return self._observation(), wrong, False, False, self._info() | reason
        final, outcome = self._judged()
        return self._observation(), wrong + final, True, False, self._info() | reason | outcome

    def _put(self, action: np.int64) -> tuple[float, dict[str, Any]]:
        """Place the current group. The reward for that, and what is to be told."""
        group = self._next
        device, reward, reason = self._ground.legal(group, action)
        self._placement[group] = device
        self._placed[:, device] += self._time[group, device], self._memory[group]
        self._next += 1
        return reward, reason

    def _judged(self) -> tuple[float, dict[str, Any]]:
        """The reward of the whole placement, and what is to be told."""
        try:
            cost = self._ground.oracle(self._placement)
        except REFUSED as error:
            return -WORST, {"error": str(error)}
        return -self._ground.badness(cost), outcome_of(cost)

    def _info(self) -> dict[str, Any]:
        group = self._next if self._next < self._ground.groups else None
        return {"action_mask": self._ground.allowed(group), "placement": self._placement.copy()}

    def _observation(self) -> NDArray[np.float32]:
        groups, devices = self._ground.groups, self._ground.devices
        by_device, shares = np.zeros((5, devices)), (0.0, 0.0)
        placed, now = self._placement, self._next
        if now < groups:
            by_device[:2] = self._time[now], self._ground.mask[now]
            into = self._into[now]
            into = into[placed[self._source[into]] >= 0]
            np.add.at(by_device[2], placed[self._source[into]], self._bytes[into])
            shares = self._memory[now], self._sent[now]
        by_device[3:] = self._placed
        row = np.concatenate(([now / groups], shares, by_device.ravel(), (placed + 1) / devices))
        return np.clip(row, 0.0, 1.0).astype(np.float32)  # sums of shares may round over 1
