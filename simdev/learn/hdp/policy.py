"""Hierarchical: the grouper and the placer as one policy."""

from __future__ import annotations

from collections.abc import Callable
from math import log

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...ground.errors import InputError
from ...nouns.taskgraph import Ints
from ..networks.placer import Memory, Placer, begin
from ..networks.policy import BARRED, Policy, chosen, entropies, inverse, likeliest
from .homes import bands, pure
from .ops import SHAPES, WIDTH, Ops
from .settings import Settings


class Grouper(nn.Module):
    """Logits [V, G] of the group of each op: two matrices, neither biases nor a nonlinearity
    between them, as in the released code.

    They are divided by ``temperature``, and ``homing`` is added for the group where an op begins,
    ``home`` [V] (all ours; homes.py).
    """

    rows: Tensor
    home: Tensor
    homing: Tensor

    def __init__(self, rows: NDArray[np.float32], groups: int, settings: Settings) -> None:
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
        """Let ops begin in these groups, of which at most so many are expected to stray."""
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

    The placer reads what the sampled groups are: edges to and from each group, types, shapes.
    """

    where: Tensor
    kind: Tensor
    shapes: Tensor
    source: Tensor
    target: Tensor
    instead: Tensor
    fixed: Tensor
    barred: Tensor

    def __init__(self, ops: Ops, allowed: NDArray[np.bool_], settings: Settings, seed: int) -> None:
        most = min(settings.groups, len(ops))
        super().__init__(allowed, len(ops) + most)
        self.ops, self.most, self.kinds = len(ops), most, ops.kinds
        self.together = settings.placements
        tables = {name: getattr(ops, name) for name in ("where", "kind", "shapes", "instead")}
        tables |= {"source": ops.source, "target": ops.target}
        tables["fixed"] = allowed.argmax(axis=1)  # of groups without a choice
        tables["barred"] = ~allowed[ops.where].any(axis=0)
        for name, table in tables.items():
            self.register_buffer(name, torch.from_numpy(table), persistent=False)
        with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay as they were
            self.grouper = Grouper(ops.rows, self.most, settings)
            width = 2 * self.most + self.kinds + SHAPES
            self.placer = Placer(width, self.devices, settings.network)
        begin(self, settings.forget, torch.Generator().manual_seed(seed))

    def settle(self, placement: Ints, differing: float) -> None:
        """Begin with groups that a placement [groups of the oracle] does not split, and that hardly
        an op leaves: half of ``differing`` are expected to.
        """
        self.grouper.settle(pure(placement[self.where.numpy()], self.most), differing / 2.0)

    def require_homes(self) -> None:
        """Raises InputError where a saved policy has groups for homes that are not there."""
        home = self.grouper.home
        if bool(((home < 0) | (home >= self.most)).any()):
            raise InputError(f"policy: grouper.home must hold groups from 0 to {self.most - 1}")

    def groups_in_use(self) -> int:
        """How many groups the likeliest grouping has."""
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
        """Each op where its group is; where it cannot be, on the fastest device that it may use (as
        TensorFlow's soft placement goes elsewhere; ours).
        """
        groupings, devices = samples.split([self.ops, self.most], 1)
        there = devices.gather(1, groupings)
        able = self.allowed[self.where].expand(len(samples), -1, -1)
        may = able.gather(-1, there.unsqueeze(-1)).squeeze(-1)
        placements = self.fixed.repeat(len(samples), 1)
        placements[:, self.where] = torch.where(may, there, self.instead)
        return placements

    def imitating(self, placement: Tensor) -> tuple[Tensor, Tensor]:
        """Every op at home, and each group where most of its ops are in the placement."""
        home = self.grouper.home
        counts = torch.zeros(self.most, self.devices)
        counts.index_put_((home, placement[self.where]), torch.ones(()), accumulate=True)
        moved = torch.cat([torch.ones(self.ops), counts.sum(1)])
        return torch.cat([home, counts.argmax(1)]), moved

    def described(self, groupings: Tensor) -> Tensor:
        """What the placer reads of m groupings [m, V]: rows [m, G, 2 G + K + 25].

        Of each group the edges to every group and from every group (within it too), how many ops it
        has of each type, and their summed shapes; each row over its maximum + 1. The released code
        adds the shapes onto the first 25 of the types' columns; here they have their own.
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
        """What the encoder makes of each of n groupings; of equal ones once."""
        different, which = groupings.unique(dim=0, return_inverse=True)
        return self.placer.read(self.described(different)).of(which)

    def _sampled(self, uniforms: Tensor) -> Tensor:
        """The numbers of the first of every ``together`` samples group the ops for all of these."""
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
