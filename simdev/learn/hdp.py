"""HDP (Mirhoseini and others, ICLR 2018): REINFORCE over a grouper and a placer.

``simdev.search`` finds it by its row in ``methods``. Its settings are in ``settings``, its placer
is the network of ``seq2seq``, and ``training`` runs its loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log, nan

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..ground.errors import InputError
from ..nouns.taskgraph import Bools, Floats, Ints
from ..oracle import Oracle
from ..search.features import Nodes, features_of
from ..search.space import mean_ps
from ..search.trial import Trial
from .policy import BARRED, Policy, chosen, entropies, inverse, likeliest
from .rules import FAILING, Reinforce
from .seq2seq import Memory, Placer, begin
from .settings import HDPSettings
from .training import keep, train

# Homes: the group in which each op begins (ours; the paper's grouper begins at random).


def bands(ops: int, groups: int) -> Ints:
    """Groups of equally many ops, one band after another in topological order."""
    return np.arange(ops, dtype=np.int64) * groups // max(ops, 1)


def pure(devices: Ints, groups: int) -> Ints:
    """Groups, each with ops of one device only, where there are enough groups: bands of the ops of
    each device, in proportion to their number.

    ``devices`` [V] are in topological order, and groups are numbered by their first ops.
    """
    used, counts = np.unique(devices, return_counts=True)
    if len(used) > groups:
        return bands(len(devices), groups)
    # Each device gets a group; the other groups are shared out in proportion to further ops.
    spare, further = groups - len(used), np.concatenate([[0], np.cumsum(counts - 1)])
    shares = 1 + np.diff(further * spare // max(int(further[-1]), 1))
    homes, begin = np.empty(len(devices), np.int64), 0
    for device, count, share in zip(used, counts.tolist(), shares.tolist(), strict=True):
        homes[devices == device] = begin + bands(count, share)
        begin += share
    _, first, number = np.unique(homes, return_index=True, return_inverse=True)
    renumbered: Ints = np.argsort(np.argsort(first))[number.ravel()]
    return renumbered


# The ops that HDP groups, and their description (numpy only). The layout is that of the released
# code (TensorFlow, python/grappler/hierarchical_controller.py): the paper says only that types,
# output shapes and adjacency are in it.

OUTPUTS, EXTENTS = 5, 5  # tensors of an op that are described, and extents of each
SHAPES = OUTPUTS * EXTENTS
NEIGHBOURS = 10  # neighbours in a description, each by its number and +1 (reads) or -1 (is read)
WIDTH = 1 + SHAPES + 2 * NEIGHBOURS  # 46


@dataclass(frozen=True, slots=True, eq=False)
class Ops:
    """The V ops with a choice of devices, in topological order; ops that have to share a device
    count as one op.

    ``where`` [V]: their groups in the oracle. ``kind`` [V]: the type of each, as a number of
    ``kinds``. ``shapes`` [V, 25]: extents of outputs, 0 where there are none. ``rows`` [V, 46]: the
    description. ``source``, ``target`` [e]: the edges between them. ``instead`` [V]: the fastest
    device that an op may use, for where its group is placed on another.
    """

    where: Ints
    kind: Ints
    kinds: int
    shapes: NDArray[np.float32]
    rows: NDArray[np.float32]
    source: Ints
    target: Ints
    instead: Ints

    def __len__(self) -> int:
        return len(self.where)


def ops_of(oracle: Oracle, scaled: bool) -> Ops:
    """The groups of an oracle, each as an op.

    Ours: where several ops share a device, the type is that of the longest op, and the outputs of
    all are listed; a tensor without a shape has one extent, its bytes. ``scaled`` (ours): numbers
    of types and neighbours are divided by their count, logarithms of extents by the largest;
    else they are the plain numbers of the released code.
    """
    groups = features_of(oracle)
    order = np.argsort(groups.order)
    where = order[groups.able[order].sum(axis=1) > 1].astype(np.int64)
    kind, kinds = _kinds(oracle, where)
    shapes = _shapes(oracle, where)
    source, target = _edges(groups, where)
    near = _neighbours(source, target, len(where))
    types = kind.astype(np.float64)
    if scaled:
        types /= max(kinds, 1)
        near[:, ::2] /= max(len(where), 1)
        shapes = np.where(shapes > 0, np.log1p(np.abs(shapes)), shapes)
        shapes = np.where(shapes > 0, shapes / max(shapes.max(initial=0.0), 1.0), shapes)
    rows = np.column_stack([types, shapes, near]).astype(np.float32)
    instead = np.where(groups.able, groups.seconds, np.inf).argmin(axis=1)[where]
    extents = np.maximum(shapes, 0.0).astype(np.float32)
    return Ops(where, kind, kinds, extents, rows, source, target, instead.astype(np.int64))


def _kinds(oracle: Oracle, where: Ints) -> tuple[Ints, int]:
    """The types of ops as numbers, in the order of their names, and the number of types."""
    ops, times = oracle.graph.ops, mean_ps(oracle.prepared.duration)
    longest = [max(oracle.groups[group], key=lambda i: float(times[i])) for group in where]
    names, kind = np.unique([ops[i].kind for i in longest], return_inverse=True)
    return kind.ravel().astype(np.int64), len(names)


def _shapes(oracle: Oracle, where: Ints) -> Floats:
    """The extents of outputs [V, 25], -1 where there are none."""
    table = np.full((len(where), OUTPUTS, EXTENTS), -1.0)
    for row, group in zip(table, where, strict=True):
        made = (tensor for i in oracle.groups[group] for tensor in oracle.graph.ops[i].made)
        for cells, tensor in zip(row, made, strict=False):
            shape = (tensor.bytes,) if tensor.shape is None else tensor.shape
            cells[: len(shape)] = shape[:EXTENTS]
    return table.reshape(-1, SHAPES)


def _edges(groups: Nodes, where: Ints) -> tuple[Ints, Ints]:
    """Source and target of the edges between the ops of ``where``, as positions there."""
    number = np.full(len(groups), -1, np.int64)
    number[where] = np.arange(len(where))
    source, target = number[groups.source], number[groups.target]
    both = (source >= 0) & (target >= 0)
    return source[both], target[both]


def _neighbours(source: Ints, target: Ints, count: int) -> Floats:
    """Pairs of a neighbour's number and +1 or -1 [V, 20], lowest numbers first; 0 where there are
    fewer neighbours.
    """
    table = np.zeros((count, NEIGHBOURS, 2))
    of, near = np.concatenate([source, target]), np.concatenate([target, source])
    sign = np.repeat([1.0, -1.0], len(source))
    used = np.zeros(count, np.int64)
    for i in np.lexsort((sign, near)):
        if used[of[i]] < NEIGHBOURS:
            table[of[i], used[of[i]]] = near[i], sign[i]
            used[of[i]] += 1
    return table.reshape(-1, 2 * NEIGHBOURS)


# Hierarchical: the grouper and the placer as one policy.


class Grouper(nn.Module):
    """Logits [V, G] of the group of each op: two matrices, with neither biases nor a nonlinearity
    between them, as in the released code.

    The logits are divided by ``temperature``, and ``homing`` is added for the group where an op
    begins, ``home`` [V] (all ours).
    """

    rows: Tensor
    home: Tensor
    homing: Tensor

    def __init__(self, rows: NDArray[np.float32], groups: int, settings: HDPSettings) -> None:
        super().__init__()
        self.groups, self.temperature = groups, settings.grouper_temperature
        self.inner = nn.Linear(WIDTH, settings.grouping, bias=False)
        self.outer = nn.Linear(settings.grouping, groups, bias=False)
        self.register_buffer("rows", torch.from_numpy(rows), persistent=False)
        self.register_buffer("home", torch.from_numpy(bands(len(rows), groups)))
        self.register_buffer("homing", torch.tensor(settings.homing))

    def forward(self) -> Tensor:
        """The logits, the same for every sample."""
        at_home = nn.functional.one_hot(self.home, self.groups)
        return self._of_rows() + self.homing * at_home

    def settle(self, home: Ints, strays: float) -> None:
        """Let ops begin in the groups ``home``, which at most ``strays`` of them are expected to
        leave.
        """
        self.home.copy_(torch.from_numpy(home))
        with torch.no_grad():
            logits = self._of_rows()
            ahead = logits.amax(1, keepdim=True) - logits.gather(1, self.home.unsqueeze(1))
        others = len(home) * (self.groups - 1)
        self.homing.clamp_(min=float(ahead.max()) + log(max(others / strays, 1.0)))

    def _of_rows(self) -> Tensor:
        logits: Tensor = self.outer(self.inner(self.rows)) / self.temperature
        return logits


class Hierarchical(Policy):
    """A sample is the groups of V ops, then the devices of G groups: their log-probabilities add,
    so both networks are trained together.

    The placer reads a description of the sampled groups: edges to and from each group, types,
    shapes.
    """

    where: Tensor
    kind: Tensor
    shapes: Tensor
    source: Tensor
    target: Tensor
    instead: Tensor
    fixed: Tensor
    barred: Tensor

    def __init__(self, ops: Ops, allowed: Bools, settings: HDPSettings, seed: int) -> None:
        most = min(settings.groups, len(ops))
        super().__init__(allowed, len(ops) + most)
        self.ops, self.most, self.kinds = len(ops), most, ops.kinds
        self.together = settings.placements
        self.hold(where=ops.where, kind=ops.kind, shapes=ops.shapes, instead=ops.instead)
        self.hold(source=ops.source, target=ops.target)
        # The devices of groups without a choice, and the devices that no op may use.
        self.hold(fixed=allowed.argmax(axis=1), barred=~allowed[ops.where].any(axis=0))
        with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay as they were
            self.grouper = Grouper(ops.rows, self.most, settings)
            width = 2 * self.most + self.kinds + SHAPES
            self.placer = Placer(width, self.devices, settings, biases=False, both_ways=True)
        begin(self, settings.forget, torch.Generator().manual_seed(seed))

    def settle(self, placement: Ints, differing: float) -> None:
        """Begin with groups that a placement [groups of the oracle] does not split; half of
        ``differing`` ops are expected to leave them.
        """
        self.grouper.settle(pure(placement[self.where.numpy()], self.most), differing / 2.0)

    def require_homes(self) -> None:
        """Raises InputError where the home of an op in a saved policy is no group."""
        home = self.grouper.home
        if bool(((home < 0) | (home >= self.most)).any()):
            raise InputError(f"policy: grouper.home must hold groups from 0 to {self.most - 1}")

    def groups_in_use(self) -> int:
        """The number of groups in the likeliest grouping."""
        with torch.inference_mode():
            return len(likeliest(self.grouper()).unique())

    def judge(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities [n, V + G], and the mean entropy of an op's group plus that of a
        group's device [n, 1].
        """
        groupings, devices = samples.split([self.ops, self.most], 1)
        log_groups = self.grouper().log_softmax(-1)
        logits = self.placer.logits(self._read(groupings), devices[:, None])[:, 0]
        log_devices = logits.masked_fill(self.barred, BARRED).log_softmax(-1)
        by_op = chosen(log_groups.expand(len(samples), -1, -1), groupings)
        spread = entropies(log_groups).mean() + entropies(log_devices).mean(1, keepdim=True)
        return torch.cat([by_op, chosen(log_devices, devices)], 1), spread

    def placements(self, samples: Tensor) -> Tensor:
        """Each op on its group's device; where it may not run there, on the fastest device that it
        may use (like TensorFlow's soft placement; ours).
        """
        groupings, devices = samples.split([self.ops, self.most], 1)
        there = devices.gather(1, groupings)
        able = self.allowed[self.where].expand(len(samples), -1, -1)
        may = able.gather(-1, there.unsqueeze(-1)).squeeze(-1)
        placements = self.fixed.repeat(len(samples), 1)
        placements[:, self.where] = torch.where(may, there, self.instead)
        return placements

    def imitating(self, placement: Tensor) -> tuple[Tensor, Tensor]:
        """Every op in its home group, and each group on the device of most of its ops in the
        placement.
        """
        home = self.grouper.home
        counts = torch.zeros(self.most, self.devices)
        counts.index_put_((home, placement[self.where]), torch.ones(()), accumulate=True)
        moved = torch.cat([torch.ones(self.ops), counts.sum(1)])
        return torch.cat([home, counts.argmax(1)]), moved

    def described(self, groupings: Tensor) -> Tensor:
        """The rows [m, G, 2 G + K + 25] that the placer reads for m groupings [m, V].

        A group's row has its edges to every group and from every group (itself too), its number of
        ops of each type, and their summed shapes; each row is divided by its maximum + 1. The
        released code adds the shapes onto the first 25 of the types' columns; here they have their
        own.
        """
        count, most = len(groupings), self.most
        counted = self.shapes.new_ones(1)
        ops, edges = counted.expand(groupings.shape), counted.expand(count, len(self.source))
        cells = groupings[:, self.source] * most + groupings[:, self.target]
        sent = self.shapes.new_zeros(count, most * most).scatter_add_(1, cells, edges)
        sent = sent.view(count, most, most)
        types = self.shapes.new_zeros(count, most * self.kinds)
        types.scatter_add_(1, groupings * self.kinds + self.kind, ops)
        shapes = self.shapes.new_zeros(count, most, SHAPES)
        index = groupings.unsqueeze(-1).expand(-1, -1, SHAPES)
        shapes.scatter_add_(1, index, self.shapes.expand(count, -1, -1))
        rows = torch.cat([sent, sent.mT, types.view(count, most, -1), shapes], 2)
        return rows / (rows.amax(2, keepdim=True) + 1.0)

    def _read(self, groupings: Tensor) -> Memory:
        """The encoder's memory of each of n groupings; equal groupings are read once."""
        different, which = groupings.unique(dim=0, return_inverse=True)
        return self.placer.read(self.described(different)).of(which)

    def _sampled(self, uniforms: Tensor) -> Tensor:
        """Samples; the first of every ``together`` samples draws the grouping of them all."""
        by_op, by_group = uniforms.split([self.ops, self.most], 1)
        chances = self.grouper().softmax(-1)
        first = by_op[:: self.together]
        groupings = inverse(chances.expand(len(first), -1, -1), first)
        groupings = groupings.repeat_interleave(self.together, 0)[: len(uniforms)]

        def choose(stage: int, logits: Tensor) -> Tensor:
            return inverse(logits.softmax(-1), by_group[:, stage])

        return self._placed(groupings, choose)

    def _decoded(self) -> Tensor:
        groupings = likeliest(self.grouper())[None]
        return self._placed(groupings, lambda _, logits: likeliest(logits))[0]

    def _placed(self, groupings: Tensor, choose: Callable[[int, Tensor], Tensor]) -> Tensor:
        """Samples [n, V + G] of groupings [n, V]."""

        def choose_allowed(stage: int, logits: Tensor) -> Tensor:
            return choose(stage, logits.masked_fill(self.barred, BARRED))

        devices = self.placer.walk(self._read(groupings), 1, choose_allowed)[:, 0]
        return torch.cat([groupings, devices], 1)


def hdp(trial: Trial) -> None:
    """HDP (ICLR 2018): a network groups the ops, another places the groups; both learn together.

    Only ops with a choice of devices are placed; ops that must share a device count as one.
    ``details`` has the number of groups in the likeliest grouping at the end. Raises SpentError,
    and InputError for settings that do not fit.
    """
    problem = trial.problem
    settings: HDPSettings = trial.learning.settings
    if settings.hidden % 2:
        raise InputError(f"settings: hidden must be even (it is halved), got {settings.hidden}")
    ops = ops_of(problem.oracle, settings.rows == "scaled")
    if not len(ops):
        trial.score_once(problem.allowed.argmax(axis=1))
        return
    policy = Hierarchical(ops, problem.allowed, settings, trial.budget.seed)
    keep("hdp", trial, policy)
    policy.require_homes()
    if trial.learning.warm is not None:
        policy.settle(trial.learning.warm, settings.differing)
    first = FAILING if settings.baseline == "failing" else nan
    rule = Reinforce(settings.decay, settings.entropy, settings.failing_updates, first)
    try:
        train(trial, policy, rule, settings.clip)
    finally:
        trial.best.details["groups"] = {"most": policy.most, "in_use": policy.groups_in_use()}
