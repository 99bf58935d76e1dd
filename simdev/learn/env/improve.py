"""``simdev/Improve-v0``: Placeto's process (Addanki et al., NeurIPS 2019) as a Gymnasium
environment: a whole placement is changed group by group.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from ...ground.errors import InputError
from ...ground.units import is_count
from ...nouns.taskgraph import Floats, Ints, Rows
from ...oracle import Oracle, Placement
from ...search.features import ancestors_of
from ...search.sampling import sampled, uniform
from ...search.trial import REFUSED
from .ground import WORST, Ground, outcome_of, share

# What is seen of a placement from one group of it, in as many numbers for any graph.

POOLS = 5
SCALARS = 3


class View:
    """The rows of observations of a graph, each of ``size`` numbers from -1 to 1.

    For D devices a row is, in this order:

    - the F features of the visited group (``Nodes.scaled``);
    - the progress of the episode, how bad the placement is, and the group's start (3);
    - by device whether the group stands there, the bytes that it reads from there, those that it
      sends there, the time and the memory of all groups there (5 D);
    - of its ancestors, its descendants, the groups that are neither, those that it reads and those
      that read it: by device the time of those there, how many they are, and how much later than
      the group they start, on average (D + 2 each).

    Bytes are relative to the most that a group reads and sends; times to the longest times of all
    groups, memory and how many to those of all; starts to the step (at most 1). Without a visited
    group all that tells of it is 0.
    """

    def __init__(self, ground: Ground) -> None:
        nodes, self._devices = ground.features.groups, ground.devices
        self._features: Floats = nodes.scaled().astype(np.float64)
        self._leads = ancestors_of(nodes)
        self._seconds = share(ground.seconds, ground.longest)
        self._memory = ground.memory
        count = len(nodes)
        traffic = np.bincount(nodes.source, nodes.edge_bytes, count)
        traffic += np.bincount(nodes.target, nodes.edge_bytes, count)
        self._bytes = share(nodes.edge_bytes, traffic.max(initial=0.0))
        self._source, self._target = nodes.source, nodes.target
        # The edges of each group by number: of all those of a graph a visit needs a few.
        edges = np.arange(len(nodes.source), dtype=np.int64)
        self._into = Rows.of_pairs(nodes.target, edges, count)
        self._out = Rows.of_pairs(nodes.source, edges, count)
        self.size = (
            self._features.shape[1] + SCALARS + 5 * self._devices + POOLS * (self._devices + 2)
        )

    def row(
        self, group: int | None, placement: Ints, starts: Floats, progress: float, badness: float
    ) -> NDArray[np.float32]:
        """The observation; ``placement`` and ``starts`` (relative to the step) are by group."""
        rows, here = np.arange(len(placement)), np.eye(self._devices)[placement]
        work = here * self._seconds[rows, placement][:, None]
        loads = np.concatenate((work.sum(axis=0), self._memory @ here))
        if group is None:
            around, features = np.zeros(3 * self._devices), np.zeros(self._features.shape[1])
            pools, start = np.zeros(POOLS * (self._devices + 2)), 0.0
        else:
            around, features = self._around(group, placement), self._features[group]
            pools, start = self._pools(group, work, starts), starts[group]
        scalars = (progress, badness / (1.0 + badness), start)
        row = np.concatenate((features, scalars, around, loads, pools))
        return np.clip(row, -1.0, 1.0).astype(np.float32)  # sums of shares may round over 1

    def _around(self, group: int, placement: Ints) -> Floats:
        """By device: whether the group stands there, what it reads from there, what it sends
        there.
        """
        stands = np.arange(self._devices) == placement[group]
        into, out = self._into[group], self._out[group]
        read, sent = placement[self._source[into]], placement[self._target[out]]
        return np.concatenate(
            (
                stands,
                np.bincount(read, self._bytes[into], self._devices),
                np.bincount(sent, self._bytes[out], self._devices),
            )
        )

    def _pools(self, group: int, work: Floats, starts: Floats) -> Floats:
        """Of each pool the time by device, the share of all groups, and the mean of how much later
        they start.
        """
        pools = np.zeros((POOLS, len(starts)))
        pools[0], pools[1] = self._leads[group], self._leads[:, group]
        pools[2] = ~(self._leads[group] | self._leads[:, group])
        pools[2, group] = 0.0
        pools[3, self._source[self._into[group]]] = 1.0
        pools[4, self._target[self._out[group]]] = 1.0
        count = pools.sum(axis=1)
        later = pools @ starts / np.maximum(count, 1.0) - starts[group] * (count > 0)
        return np.column_stack((pools @ work, count / len(starts), later)).ravel()


STARTS = ("single", "first", "random")
ORDERS = ("topological", "random")


class ImproveEnv(gymnasium.Env[NDArray[np.float32], np.int64]):
    """One episode visits every group of ``oracle.groups``, ``passes`` times; the action is the
    device index of the visited one, and the placement is evaluated after every step.

    ``start`` is where an episode begins: on the best ``"single"`` device (where none runs all, each
    group on its fastest), each on its ``"first"`` device, on ``"random"`` ones, or a placement.
    ``order`` of the visits: ``"topological"``, or ``"random"``, in each pass anew. The options of
    ``reset`` may name another ``start`` and ``order``.

    The reward of a step is how much better the placement became, t before minus t after: the return
    of the steps from any on is t there minus t at the end. t is the step time relative to
    ``reference_ps``, the best step on a single device (where no device runs all: the sum of the
    longest times), plus ``penalty`` times the relative excess over memory, at most 1,000, which is
    that of a placement that cannot be. A group that is sent where it cannot stand
    (``info["action_mask"]`` is 0) goes to its fastest device instead, at a reward of -1 besides.

    The observation is a row of float32 from -1 to 1, as ``View`` has it; its length depends on the
    number of devices alone. Placeto's network pools over ancestors, descendants and others by
    trained weights; here times and starts are pooled as they are (ours).

    ``info`` has ``placement``, ``group`` (the visited one; -1: none), ``action_mask``, ``starts``
    (seconds by group; 0 where the placement cannot be), ``seconds``, ``feasible``,
    ``memory_excess``, and ``error`` for a wrong action or a placement that cannot be; that of
    ``reset`` also the graph as arrays (``Ground.arrays``).

    Raises InputError for a graph without ops, a group that can stand nowhere, and options that are
    none.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (gymnasium's own name and type)

    def __init__(
        self,
        oracle: Oracle,
        penalty: float = 1.0,
        passes: int = 1,
        start: str | Placement = STARTS[0],
        order: str = ORDERS[0],
    ) -> None:
        if not is_count(passes) or passes < 1:
            raise InputError(f"passes: must be a whole number from 1 on, got {passes!r}")
        self.oracle, self.penalty, self.passes = oracle, penalty, passes
        self._ground = Ground(oracle, penalty)
        self._options = {"start": start, "order": order}
        # What is wrong with them is told here, not at the first reset.
        self._placement_of(start, np.random.default_rng(0))
        self._visits(order, np.random.default_rng(0))
        self.reference_ps = self._ground.reference_ps
        self._view = View(self._ground)
        self._sequence, self._next = np.zeros(0, np.int64), 0  # until the first reset
        self.action_space = gymnasium.spaces.Discrete(self._ground.devices)
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (self._view.size,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start again. Raises InputError for options other than ``start`` and ``order``."""
        super().reset(seed=seed)
        unknown = sorted(set(options or {}) - set(self._options))
        if unknown:
            raise InputError(f"options: start and order are known, got {', '.join(unknown)}")
        wanted = self._options | (options or {})
        self._placement = self._placement_of(wanted["start"], self.np_random)
        self._sequence, self._next = self._visits(wanted["order"], self.np_random), 0
        self._evaluate()
        return self._observation(), self._info() | self._ground.arrays()

    def step(
        self, action: np.int64
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Put the visited group on a device.

        Raises ResetNeeded after the last one, InputError for no device index.
        """
        if self._next >= len(self._sequence):
            raise ResetNeeded("the episode is over")
        group, before = int(self._sequence[self._next]), self._badness
        device, reward, reason = self._ground.legal(group, action)
        self._next += 1
        # Where nothing moves, nothing changes: to keep a group where it is costs no evaluation.
        if device != self._placement[group]:
            self._placement[group] = device
            self._evaluate()
        reward += before - self._badness
        over = self._next == len(self._sequence)
        return self._observation(), reward, over, False, self._info() | reason

    def _evaluate(self) -> None:
        """Of the placement as it stands how bad it is, when its groups start (ps), and what is to
        be told.
        """
        try:
            starts = self.oracle.starts(self._placement)
        except REFUSED as error:
            self._badness, self._step_ps = WORST, 1
            self._starts = np.zeros(self._ground.groups, np.int64)
            costs = {"seconds": np.inf, "feasible": False, "memory_excess": 0}
            self._outcome = {**costs, "error": str(error)}
            return
        self._badness, self._starts = self._ground.badness(starts.cost), starts.group_ps
        self._step_ps, self._outcome = starts.cost.step_ps, outcome_of(starts.cost)

    @property
    def _group(self) -> int | None:
        """The visited group."""
        over = self._next >= len(self._sequence)
        return None if over else int(self._sequence[self._next])

    def _info(self) -> dict[str, Any]:
        group = self._group
        return {
            "placement": self._placement.copy(),
            "group": -1 if group is None else group,
            "action_mask": self._ground.allowed(group),
            "starts": self._starts / 1e12,
            **self._outcome,
        }

    def _observation(self) -> NDArray[np.float32]:
        starts = share(self._starts.astype(np.float64), self._step_ps)
        progress = self._next / len(self._sequence)
        return self._view.row(self._group, self._placement, starts, progress, self._badness)

    def _placement_of(self, start: str | Placement, random: np.random.Generator) -> Ints:
        """A device by group. Raises InputError for a start that is none."""
        ground = self._ground
        if not isinstance(start, str):
            return self._given(start)
        if start not in STARTS:
            names = ", ".join(STARTS)
            raise InputError(f'start: must be one of {names} or a placement, got "{start}"')
        if start == "random":
            return sampled(uniform(ground.mask > 0), random.random(ground.groups))
        if start == "first":
            return ground.first.copy()
        if ground.single is None:
            return ground.fastest.copy()
        return np.full(ground.groups, ground.single, np.int64)

    def _given(self, start: Placement) -> Ints:
        """A placement by group. Raises InputError for devices that are none, or not allowed."""
        self.oracle.named(start)
        first = [members[0] for members in self.oracle.groups]
        placement = self.oracle.placement(start)[first]
        wrong = np.flatnonzero(self._ground.mask[np.arange(len(placement)), placement] == 0)
        if len(wrong):
            group = int(wrong[0])
            raise InputError(f"start: group {group} cannot stand on device {placement[group]}")
        return placement

    def _visits(self, order: str, random: np.random.Generator) -> Ints:
        """The groups in the order in which an episode visits them. Raises InputError."""
        if order not in ORDERS:
            raise InputError(f'order: must be one of {", ".join(ORDERS)}, got "{order}"')
        if order == "random":
            groups = self._ground.groups
            return np.concatenate([random.permutation(groups) for _ in range(self.passes)])
        return np.tile(np.argsort(self._ground.features.groups.order), self.passes)
