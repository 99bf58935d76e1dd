"""``simdev/Placement-v0``: placing a graph as a Gymnasium environment, one group after another.

Importing this module registers it: ``gymnasium.make("simdev/Placement-v0", oracle=oracle)``.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from ..errors import InputError
from ..oracle import Oracle
from .space import choices, relative_excess

ID = "simdev/Placement-v0"
Floats = NDArray[np.float64]


class PlacementEnv(gymnasium.Env[NDArray[np.float32], np.int64]):
    """One episode places every group of ``oracle.groups`` in turn; the action is the device index.

    The observation is one row of float32 from 0 to 1 (G groups, D devices): progress, the group's shares of all
    memory and of all bytes sent (3 numbers); for each device the group's time there, whether it may stand there, the
    bytes that it reads from there, the time and the memory placed there so far (5 D numbers); for each group its
    device (G numbers; 0: none yet, else (index + 1) / D). Times are relative to the sum of the longest of all groups.

    The reward comes with the last group: minus the step time relative to ``reference_ps``, the best step on a single
    device (where no device runs all: the sum of the longest times), minus ``penalty`` times the relative excess over
    memory. A device at which the group cannot stand (``info["action_mask"]`` is 0), or a placement without a route,
    ends the episode with the reward -(1 + penalty).

    Raises InputError for a graph without ops, and for a group that can stand nowhere.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (gymnasium's own name and type)

    def __init__(self, oracle: Oracle, penalty: float = 1.0) -> None:
        if not oracle.groups:
            raise InputError("graph: there is nothing to place")
        self.oracle, self.penalty = oracle, penalty
        groups, devices = len(oracle.groups), len(oracle.cluster.devices)
        self._mask = np.zeros((groups, devices), np.int8)
        for row, allowed in enumerate(choices(oracle)):
            self._mask[row, allowed] = 1
        self._time, self._memory, self._sent = _group_features(oracle, self._mask)
        self._placement = np.full(groups, -1, np.int64)
        self._next = groups  # until the first reset
        self.reference_ps = self._reference_ps()
        self.action_space = gymnasium.spaces.Discrete(devices)
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (3 + 5 * devices + groups,), np.float32)

    def _reference_ps(self) -> int:
        """The best step on a single device in ps, at least 1."""
        alone = np.flatnonzero(self._mask.all(axis=0)).tolist()
        steps = [self.oracle([device] * len(self._mask)) for device in alone]
        longest = round(self._longest_ps)
        return max(min((cost.step_ps for cost in steps), default=longest), 1)

    @property
    def _longest_ps(self) -> float:
        return float(self._time.max(axis=1).sum())

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start again with nothing placed."""
        super().reset(seed=seed)
        self._placement[:], self._next = -1, 0
        return self._observation(), self._info()

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Place the current group. Raises ResetNeeded after the last one, InputError for no device index."""
        groups, devices = self._mask.shape
        if self._next >= groups:
            raise ResetNeeded("the episode is over")
        if not 0 <= int(action) < devices:
            raise InputError(f"action: device {action} is not in 0..{devices - 1}")
        if not self._mask[self._next, int(action)]:
            return self._end(f"group {self._next} cannot stand on device {int(action)}")
        self._placement[self._next] = int(action)
        self._next += 1
        if self._next < groups:
            return self._observation(), 0.0, False, False, self._info()
        try:
            cost = self.oracle(self._placement)
        except InputError as error:
            return self._end(str(error))
        reward = -cost.step_ps / self.reference_ps - self.penalty * relative_excess(self.oracle, cost)
        found = {"seconds": cost.seconds, "feasible": cost.feasible, "memory_excess": cost.memory_excess}
        return self._observation(), reward, True, False, self._info() | found

    def _end(self, error: str) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """A placement that cannot be."""
        self._next = len(self._mask)
        return self._observation(), -(1.0 + self.penalty), True, False, self._info() | {"error": error}

    def _info(self) -> dict[str, Any]:
        groups, devices = self._mask.shape
        mask = self._mask[self._next] if self._next < groups else np.zeros(devices, np.int8)
        return {"action_mask": mask.copy(), "placement": self._placement.copy()}

    def _observation(self) -> NDArray[np.float32]:
        groups, devices = self._mask.shape
        by_device = np.zeros((5, devices))
        placed, now = self._placement, self._next
        rows = np.flatnonzero(placed >= 0)
        np.add.at(by_device[3], placed[rows], self._time[rows, placed[rows]])
        np.add.at(by_device[4], placed[rows], self._memory[rows])
        own = np.zeros(2)
        if now < groups:
            by_device[0], by_device[1] = self._time[now], self._mask[now]
            np.add.at(by_device[2], placed[rows], self._sent[rows, now])
            own[:] = _share(self._memory[now], self._memory.sum()), _share(self._sent[now].sum(), self._sent.sum())
        by_device[[0, 3]] = _share(by_device[[0, 3]], self._longest_ps)
        by_device[2] = _share(by_device[2], float(self._sent.sum()))
        by_device[4] = _share(by_device[4], float(self._memory.sum()))
        row = np.concatenate(([now / groups], own, by_device.ravel(), (placed + 1) / devices))
        return np.clip(row, 0.0, 1.0).astype(np.float32)


def _share(part: Any, whole: float) -> Any:
    """The part of a whole; 0 where there is nothing."""
    return part / whole if whole > 0 else part * 0.0


def _group_features(oracle: Oracle, mask: NDArray[np.int8]) -> tuple[Floats, Floats, Floats]:
    """Of each group: ps by device (0 where it may not stand), bytes that its ops hold, bytes sent to each group."""
    groups, reads = oracle.groups, oracle.prepared.reads
    group_of = np.empty(len(oracle.graph.ops), np.int64)
    for row, members in enumerate(groups):
        group_of[list(members)] = row
    times = np.zeros(mask.shape)
    np.add.at(times, group_of, oracle.prepared.duration.astype(np.float64))
    held = [
        op.param_bytes + op.grad_bytes + op.state_bytes + op.workspace_bytes + sum(one.bytes for one in op.outputs)
        for op in oracle.graph.ops
    ]
    sent = np.zeros((len(groups), len(groups)))
    source = group_of[reads.producer[reads.consumers.owners()]]
    np.add.at(sent, (source, group_of[reads.consumers.ids]), reads.bytes[reads.consumers.owners()].astype(np.float64))
    np.fill_diagonal(sent, 0.0)
    weight = np.zeros(len(groups))
    np.add.at(weight, group_of, np.array(held, np.float64))
    return times * mask, weight, sent


if ID not in gymnasium.registry:
    gymnasium.register(ID, entry_point=f"{__name__}:PlacementEnv")
