"""Placing as Gymnasium environments: ``simdev/Placement-v0`` places one group after another,
``simdev/Improve-v0`` changes a whole placement group by group (Placeto's process, Addanki et al.,
NeurIPS 2019).

Importing this module registers both: ``gymnasium.make("simdev/Improve-v0", oracle=oracle)``. Their
arguments are those of ``PlacementEnv`` and ``ImproveEnv``.

No other module imports it: users and tests do. ``simdev.search.features`` defines the rows of
features; saved policies check its VERSION.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from inspect import signature
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from ..ground.errors import InputError
from ..ground.units import is_count
from ..nouns.taskgraph import Floats, Ints, Rows
from ..oracle import Cost, Oracle, Placement
from ..search.features import Nodes, ancestors_of, features_of
from ..search.sampling import anywhere
from ..search.space import IMPOSSIBLE, alone, choices, reference_ps, relative_excess
from ..search.trial import REFUSED

MASKED = -1.0  # reward of an action that the mask rules out: minus the reference step
WORST = 1000.0  # badness of an impossible placement, and the most of any other

Observation = NDArray[np.float32]
Info = dict[str, Any]
Begun = tuple[Observation, Info]
"""The answer of ``reset``."""
Stepped = tuple[Observation, float, bool, bool, Info]
"""The answer of ``step``: observation, reward, terminated, truncated (always False), and
``info``.
"""


class Ground:
    """The groups of an oracle and its devices.

    ``mask`` [G, D] is 1 where a group may run, ``seconds`` [G, D] its time there (else 0),
    ``first`` [G] the first such device, ``fastest`` [G] the device of the least time. ``single`` is
    the best device for all groups (None: no device runs all). ``reference_ps`` is
    ``space.reference_ps``; ``penalty`` the price of a relative excess over memory of 1, in units of
    ``reference_ps``. ``longest`` is the sum of the groups' longest seconds, ``memory`` [G] each
    group's share of the bytes of all groups. Raises InputError for a graph without ops, and for a
    group that can run nowhere.
    """

    def __init__(self, oracle: Oracle, penalty: float) -> None:
        if not oracle.groups:
            raise InputError("graph: there is nothing to place")
        singles = alone(oracle, choices(oracle))  # raises for a group that can run nowhere
        self.oracle, self.penalty = oracle, penalty
        self.nodes: Nodes = features_of(oracle)
        self.mask = self.nodes.able.astype(np.int8)
        self.seconds: Floats = self.nodes.seconds
        self.first: Ints = self.mask.argmax(axis=1)
        self.fastest: Ints = np.where(self.mask, self.seconds, np.inf).argmin(axis=1)
        held = self.nodes.persistent_bytes + self.nodes.output_bytes + self.nodes.workspace_bytes
        self.memory: Floats = share(held, held.sum())
        self.longest = float(self.seconds.max(axis=1).sum())
        costs = [_cost(oracle, placement) for placement in singles]
        self.reference_ps = reference_ps(oracle, costs)
        pairs = zip(singles, costs, strict=True)
        steps = [(cost.step_ps, int(row[0])) for row, cost in pairs if cost is not IMPOSSIBLE]
        self.single = min(steps)[1] if steps else None

    @property
    def groups(self) -> int:
        """The number of groups."""
        return len(self.mask)

    @property
    def devices(self) -> int:
        """The number of devices."""
        return int(self.mask.shape[1])

    def legal(self, group: int, action: np.int64) -> tuple[int, float, Info]:
        """The device that an action sends a group to, the reward for that alone, and entries of
        ``info``.

        Where the group cannot run there, it is the group's fastest device, at the reward MASKED: an
        action that names that device has the same effect at no cost. Raises InputError for no
        device index.
        """
        device = int(action)
        if not 0 <= device < self.devices:
            raise InputError(f"action: device {action} is not in 0..{self.devices - 1}")
        if self.mask[group, device]:
            return device, 0.0, {}
        error = f"group {group} cannot stand on device {device}"
        return int(self.fastest[group]), MASKED, {"error": error}

    def badness(self, cost: Cost) -> float:
        """The step relative to ``reference_ps`` plus ``penalty`` times the relative excess over
        memory; at most WORST.
        """
        excess = relative_excess(self.oracle, cost)
        return min(cost.step_ps / self.reference_ps + self.penalty * excess, WORST)

    def allowed(self, group: int | None) -> NDArray[np.int8]:
        """The mask of actions for a group; all 0 where there is no group."""
        return np.zeros(self.devices, np.int8) if group is None else self.mask[group].copy()

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The graph in the ``info`` of ``reset``: ``nodes`` [G, F] (``Nodes.scaled``), ``edges``
        [2, E] of group numbers, source over target, and ``edge_bytes`` [E], relative to the
        largest.
        """
        return {name: array.copy() for name, array in self._arrays.items()}

    @cached_property
    def _arrays(self) -> dict[str, NDArray[Any]]:
        nodes, size = self.nodes, self.nodes.edge_bytes
        return {
            "nodes": nodes.scaled(),
            "edges": np.stack((nodes.source, nodes.target)),
            "edge_bytes": share(size, size.max(initial=0.0)).astype(np.float32),
        }


def _cost(oracle: Oracle, placement: Ints) -> Cost:
    try:
        return oracle(placement)
    except REFUSED:
        return IMPOSSIBLE


def outcome_of(cost: Cost) -> Info:
    """The parts of a cost that are in ``info``."""
    return {name: getattr(cost, name) for name in ("seconds", "feasible", "memory_excess")}


def share(part: Floats, whole: float) -> Floats:
    """The part over the whole; 0 where the whole is 0."""
    return part / whole if whole > 0 else part * 0.0


class _Env(gymnasium.Env[Observation, np.int64]):
    """An environment on the groups of an oracle, whose actions are device indices."""

    metadata = {"render_modes": []}  # noqa: RUF012 (gymnasium's own name and type)

    def __init__(self, oracle: Oracle, penalty: float) -> None:
        self.oracle, self.penalty = oracle, penalty
        self._ground = Ground(oracle, penalty)
        self.reference_ps = self._ground.reference_ps
        self.action_space = gymnasium.spaces.Discrete(self._ground.devices)


class PlacementEnv(_Env):
    """One episode places every group of ``oracle.groups`` in turn; the action is the device index.

    The observation is one row of float32 from 0 to 1 (G groups, D devices): progress, the group's
    shares of all memory and of all bytes sent (3 numbers); for each device the group's time there,
    whether it may run there, the bytes that it reads from there, the time and the memory placed
    there so far (5 D numbers); for each group its device (G numbers; 0: none yet, else (index + 1)
    / D). Times are relative to the sum of the longest times of all groups.

    The reward comes with the last group: minus the step time relative to ``reference_ps``, the best
    step on a single device (where no device runs all: the sum of the longest times), minus
    ``penalty`` times the relative excess over memory, and no less than -1,000. An impossible
    placement, such as one without a route, has -1,000. The info of ``reset`` also has the graph as
    arrays: ``nodes``, ``edges`` and ``edge_bytes`` (``Ground.arrays``).

    A group that is sent where it cannot run (``info["action_mask"]`` is 0) goes to its fastest
    device instead, at the reward -1, and the episode goes on. An action that names that device has
    the same effect at no cost, so to quit never pays, however bad a placement is. ``info["error"]``
    reports such an action and an impossible placement.

    Raises InputError for a graph without ops, and for a group that can run nowhere.
    """

    def __init__(self, oracle: Oracle, penalty: float = 1.0) -> None:
        super().__init__(oracle, penalty)
        groups, devices = self._ground.groups, self._ground.devices
        nodes = self._ground.nodes
        self._time = share(self._ground.seconds, self._ground.longest)
        self._memory = self._ground.memory
        self._source, self._bytes = nodes.source, share(nodes.edge_bytes, nodes.edge_bytes.sum())
        edges = np.arange(len(nodes.source), dtype=np.int64)
        self._into = Rows.of_pairs(nodes.target, edges, groups)
        self._sent = np.bincount(nodes.source, self._bytes, groups)
        self._placement = np.full(groups, -1, np.int64)
        self._placed = np.zeros((2, devices))  # time and memory placed on each device so far
        self._next = groups  # until the first reset
        self.observation_space = gymnasium.spaces.Box(
            0.0, 1.0, (3 + 5 * devices + groups,), np.float32
        )

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> Begun:
        """Start again with nothing placed."""
        super().reset(seed=seed)
        self._placement[:], self._placed[:], self._next = -1, 0.0, 0
        return self._observation(), self._info() | self._ground.arrays()

    def step(self, action: np.int64) -> Stepped:
        """Place the current group.

        Raises ResetNeeded after the last one, InputError for no device index.
        """
        if self._next >= self._ground.groups:
            raise ResetNeeded("the episode is over")
        group = self._next
        device, reward, entries = self._ground.legal(group, action)
        self._placement[group] = device
        self._placed[:, device] += self._time[group, device], self._memory[group]
        self._next += 1
        is_over = self._next == self._ground.groups
        if is_over:
            try:
                cost = self._ground.oracle(self._placement)
            except REFUSED as error:
                reward, entries = reward - WORST, entries | {"error": str(error)}
            else:
                reward, entries = reward - self._ground.badness(cost), entries | outcome_of(cost)
        return self._observation(), reward, is_over, False, self._info() | entries

    def _info(self) -> Info:
        group = self._next if self._next < self._ground.groups else None
        return {"action_mask": self._ground.allowed(group), "placement": self._placement.copy()}

    def _observation(self) -> Observation:
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


# The observation of a placement from a visited group: equally many numbers for any graph.

POOLS = 5
SCALARS = 3


class View:
    """The rows of observations of a graph, each of ``size`` numbers from -1 to 1.

    For D devices a row is, in this order:

    - the F features of the visited group (``Nodes.scaled``);
    - the progress of the episode, the badness of the placement, and the group's start (3);
    - by device whether the group is there, the bytes that it reads from there and sends there, the
      time and the memory of all groups there (5 D);
    - for each of five pools (its ancestors, its descendants, the groups that are neither, its
      sources and its readers): their time by device, their number, and their mean start after the
      group's start (D + 2 each).

    Bytes are relative to the most that a group reads and sends; times to the sum of the longest
    times of all groups; memory and numbers to the totals; starts to the step (at most 1). Without a
    visited group all its numbers are 0.
    """

    def __init__(self, ground: Ground) -> None:
        nodes, self._devices = ground.nodes, ground.devices
        self._features: Floats = nodes.scaled().astype(np.float64)
        self._leads = ancestors_of(nodes)
        self._seconds = share(ground.seconds, ground.longest)
        self._memory = ground.memory
        count = len(nodes)
        traffic = np.bincount(nodes.source, nodes.edge_bytes, count)
        traffic += np.bincount(nodes.target, nodes.edge_bytes, count)
        self._bytes = share(nodes.edge_bytes, traffic.max(initial=0.0))
        self._source, self._target = nodes.source, nodes.target
        # The edges of each group by number: a visit needs only a few of the graph's edges.
        edges = np.arange(len(nodes.source), dtype=np.int64)
        self._into = Rows.of_pairs(nodes.target, edges, count)
        self._out = Rows.of_pairs(nodes.source, edges, count)
        self.size = (
            self._features.shape[1] + SCALARS + 5 * self._devices + POOLS * (self._devices + 2)
        )

    def row(
        self, group: int | None, placement: Ints, starts: Floats, progress: float, badness: float
    ) -> Observation:
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
        """By device: whether the group is there, the bytes that it reads from there, the bytes that
        it sends there.
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
        """For each pool its time by device, its share of all groups, and the mean start of its
        groups after the group's start.
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


class ImproveEnv(_Env):
    """One episode visits every group of ``oracle.groups``, ``passes`` times; the action is the
    device index of the visited group, and the placement is evaluated after every step.

    ``start`` is the placement where an episode begins: the best ``"single"`` device (where none
    runs all, each group on its fastest), each group on its ``"first"`` device, on a ``"random"``
    device, or a given placement. ``order`` of the visits: ``"topological"``, or ``"random"``, in
    each pass anew. The options of ``reset`` may name another ``start`` and ``order``.

    The reward of a step is the improvement of the placement, t before minus t after: the return
    from any step on is t there minus t at the end. t is the step time relative to ``reference_ps``,
    the best step on a single device (where no device runs all: the sum of the longest times), plus
    ``penalty`` times the relative excess over memory, at most 1,000; an impossible placement has
    1,000. A group that is sent where it cannot run (``info["action_mask"]`` is 0) goes to its
    fastest device instead, at a further reward of -1.

    The observation is a row of float32 from -1 to 1, as in ``View``; its length depends only on the
    number of devices. Placeto's network pools over ancestors, descendants and others by trained
    weights; here times and starts are pooled as they are (ours).

    ``info`` has ``placement``, ``group`` (the visited group; -1: none), ``action_mask``, ``starts``
    (seconds by group; 0 where the placement is impossible), ``seconds``, ``feasible``,
    ``memory_excess``, and ``error`` for a wrong action or an impossible placement; after ``reset``
    also the graph as arrays (``Ground.arrays``).

    Raises InputError for a graph without ops, a group that can run nowhere, and unknown options.
    """

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
        super().__init__(oracle, penalty)
        self.passes = passes
        self._options: Info = {"start": start, "order": order}
        # Wrong options raise here, not at the first reset.
        self._placement_of(start, np.random.default_rng(0))
        self._visits(order, np.random.default_rng(0))
        self._view = View(self._ground)
        self._sequence, self._next = np.zeros(0, np.int64), 0  # until the first reset
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (self._view.size,), np.float32)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> Begun:
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

    def step(self, action: np.int64) -> Stepped:
        """Put the visited group on a device.

        Raises ResetNeeded after the last one, InputError for no device index.
        """
        if self._next >= len(self._sequence):
            raise ResetNeeded("the episode is over")
        group, before = int(self._sequence[self._next]), self._badness
        device, reward, reason = self._ground.legal(group, action)
        self._next += 1
        # A group that stays where it is changes nothing, and needs no evaluation.
        if device != self._placement[group]:
            self._placement[group] = device
            self._evaluate()
        reward += before - self._badness
        over = self._next == len(self._sequence)
        return self._observation(), reward, over, False, self._info() | reason

    def _evaluate(self) -> None:
        """Evaluate the placement: its badness, the starts of its groups (ps), and entries of
        ``info``.
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

    def _info(self) -> Info:
        group = self._group
        return {
            "placement": self._placement.copy(),
            "group": -1 if group is None else group,
            "action_mask": self._ground.allowed(group),
            "starts": self._starts / 1e12,
            **self._outcome,
        }

    def _observation(self) -> Observation:
        starts = share(self._starts.astype(np.float64), self._step_ps)
        progress = self._next / len(self._sequence)
        return self._view.row(self._group, self._placement, starts, progress, self._badness)

    def _placement_of(self, start: str | Placement, random: np.random.Generator) -> Ints:
        """A device by group. Raises InputError for an unknown start."""
        ground = self._ground
        if not isinstance(start, str):
            return self._given(start)
        if start not in STARTS:
            names = ", ".join(STARTS)
            raise InputError(f'start: must be one of {names} or a placement, got "{start}"')
        if start == "random":
            return anywhere(ground.mask > 0, random)
        if start == "first":
            return ground.first.copy()
        if ground.single is None:
            return ground.fastest.copy()
        return np.full(ground.groups, ground.single, np.int64)

    def _given(self, start: Placement) -> Ints:
        """A given placement by group. Raises InputError for devices that do not exist, or are not
        allowed.
        """
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
        return np.tile(np.argsort(self._ground.nodes.order), self.passes)


__all__ = ["IDS", "ImproveEnv", "PlacementEnv", "make_improve", "make_placement"]

IDS = ("simdev/Placement-v0", "simdev/Improve-v0")
"""Names of the environments for ``gymnasium.make``."""


def make_placement(**arguments: Any) -> PlacementEnv:
    """``simdev/Placement-v0``. Raises InputError for unknown arguments."""
    _check(IDS[0], PlacementEnv, arguments)
    return PlacementEnv(**arguments)


def make_improve(**arguments: Any) -> ImproveEnv:
    """``simdev/Improve-v0``. Raises InputError for unknown arguments."""
    _check(IDS[1], ImproveEnv, arguments)
    return ImproveEnv(**arguments)


def _check(name: str, kind: type[object], arguments: Mapping[str, Any]) -> None:
    known = signature(kind).parameters
    wrong = [f"{each}: no such argument" for each in arguments if each not in known]
    if "oracle" not in arguments:
        wrong.append("oracle: missing, like oracle_of(scenario)")
    if wrong:
        raise InputError(f"{name}: {'; '.join(wrong)}; there are {', '.join(known)}")


for place, function in zip(IDS, (make_placement, make_improve), strict=True):
    if place not in gymnasium.registry:
        gymnasium.register(place, entry_point=f"{__name__}:{function.__name__}")
