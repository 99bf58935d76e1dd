"""Placeto's network (message passing in both directions, pooling, a classifier), and its input
graph.

Only the learner beside it uses it. The features of groups come from ``simdev.search.features``: a
change there changes the weights that a saved policy needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, one_hot

from ...nouns.taskgraph import Floats, Ints
from ...search.features import Nodes, ancestors_of
from ..policy import BARRED
from ..settings import PlacetoSettings

RELATIONS = 3  # ancestors, descendants, the others


@dataclass(frozen=True, slots=True, eq=False)
class Structure:
    """G groups and D devices as tensors.

    - ``fixed`` [G, D + 1]: run time on each device (the paper has one time: its devices are
      identical) and output bytes, each over its maximum.
    - ``allowed`` [G, D]: whether a group may run on a device.
    - ``members`` and ``begins``: parents of each group, then children of each group (counted from
      G), as 2G bags: bag i is members[begins[i]:begins[i + 1]]. ``bag_weight`` [2G, 1]: 1, or 1
      over the size of the bag; 0 for an empty bag.
    - ``related`` [3, G, G]: for each group its ancestors, its descendants, and all others except
      itself; 1, or rows that add up to 1.
    - ``order`` [G]: the groups in topological order.
    """

    fixed: Tensor
    allowed: Tensor
    members: Tensor
    begins: Tensor
    bag_weight: Tensor
    related: Tensor
    order: Ints

    def __len__(self) -> int:
        return len(self.order)


def structure_of(nodes: Nodes, mean: bool) -> Structure:
    """The structure of a graph; ``mean``: neighbours and relatives are averaged, not added up."""
    count = len(nodes)
    fixed = np.column_stack([_shares(nodes.seconds), _shares(nodes.output_bytes)])
    bags = np.concatenate([nodes.target, nodes.source + count])
    members = np.concatenate([nodes.source, nodes.target + count])
    sequence = np.argsort(bags, kind="stable")
    sizes = np.bincount(bags, minlength=2 * count)
    begins = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    before = ancestors_of(nodes)
    others = ~(before | before.T | np.eye(count, dtype=np.bool_))
    related = np.stack([before, before.T, others]).astype(np.float32)
    weight = (sizes > 0) / np.maximum(sizes if mean else 1, 1)
    if mean:
        related /= np.maximum(related.sum(axis=2, keepdims=True), 1.0)
    return Structure(
        torch.from_numpy(fixed.astype(np.float32)),
        torch.from_numpy(nodes.able.copy()),
        torch.from_numpy(members[sequence].astype(np.int64)),
        torch.from_numpy(begins.astype(np.int64)),
        torch.from_numpy(weight.astype(np.float32))[:, None],
        torch.from_numpy(related),
        np.argsort(nodes.order).astype(np.int64),
    )


def _shares(values: Floats) -> Floats:
    """Values over their maximum, where that is not 0."""
    return values / (values.max(initial=0.0) or 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class States:
    """Placements under way: W moments of each of E episodes, at which n groups are visited.

    ``devices`` and ``visited`` [W, E, G]: the device of each group, and whether this pass has
    visited it. ``groups`` [W, n]: the groups that are visited now. ``starts`` [W, E, G]: start
    times after the first visited group's, over the latest start; None where the network does
    without.
    """

    devices: Tensor
    visited: Tensor
    groups: Tensor
    starts: Tensor | None = None

    def part(self, moments: Tensor) -> States:
        """The states at some of the moments."""
        starts = None if self.starts is None else self.starts[moments]
        return States(self.devices[moments], self.visited[moments], self.groups[moments], starts)


class Layers(nn.Module):
    """``count`` feed-forward networks side by side, of these sizes; ReLU after each layer, except
    the last where ``ends`` is False. Weights are drawn as in Glorot and Bengio (AISTATS 2010),
    biases are 0.
    """

    def __init__(
        self, count: int, sizes: Sequence[int], random: torch.Generator, ends: bool = True
    ) -> None:
        super().__init__()
        self._ends = ends
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for inner, outer in pairwise(sizes):
            bound = (6.0 / (inner + outer)) ** 0.5
            drawn = torch.empty(count, inner, outer).uniform_(-bound, bound, generator=random)
            self.weights.append(nn.Parameter(drawn))
            self.biases.append(nn.Parameter(torch.zeros(count, 1, outer)))

    def forward(self, rows: Tensor) -> Tensor:
        """Outputs [count, N, last size] of rows [count, N, first size]."""
        last = len(self.weights) - 1
        for at, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            rows = torch.baddbmm(bias, rows, weight)
            if at < last or self._ends:
                rows = rows.relu()
        return rows


class PlacetoNetwork(nn.Module):
    """The policy: the device of a visited group. Its weights depend on the number of devices, but
    not on any graph.

    Features of a group: its run time on each device, output bytes, its device (one number for each
    device), whether this pass has visited it, whether it is visited now; as an option, its start
    time. They go through a network of three layers; then for some rounds a group adds to its own
    state the states of its parents, and separately of its children (summary: "radial"). A
    classifier reads the visited group's state, and pooled states of its ancestors, descendants and
    all others.
    """

    groups = 0  # any number

    def __init__(self, devices: int, settings: PlacetoSettings, seed: int) -> None:
        super().__init__()
        self.devices, self._rounds, self._starts = devices, settings.rounds, settings.starts
        features = 2 * devices + 3 + settings.starts
        hidden = settings.hidden or features
        both, joined = [hidden] * 3, [2 * hidden] * 3
        random = torch.Generator().manual_seed(seed)
        self.embed = Layers(1, [features, *both], random)
        self.sent, self.received = Layers(2, both, random), Layers(2, both, random)
        self.pooled, self.summed = (Layers(RELATIONS, joined, random) for _ in range(2))
        sizes = [8 * hidden, 16 * hidden, 8 * hidden, devices]
        self.classify = Layers(1, sizes, random, ends=False)
        self.stay = nn.Parameter(torch.tensor(float(settings.stay)))

    def forward(self, graph: Structure, states: States) -> Tensor:
        """Log-probabilities [W, E, n, D] of the devices of the visited groups, about -1e9 where
        they may not run.
        """
        moments, episodes, groups = states.devices.shape
        here = one_hot(states.devices, self.devices).to(self.stay.dtype)
        joined = self._exchanged(graph, self._features(graph, states, here))
        width = joined.shape[-1]
        rows = joined.view(1, -1, width).expand(RELATIONS, -1, -1)
        spoken = self.pooled(rows).view(RELATIONS, groups, moments, episodes * width)
        related = graph.related[:, states.groups].transpose(0, 1).to(here.dtype)  # [W, 3, n, G]
        sums = related @ spoken.permute(2, 0, 1, 3)  # [W, 3, n, E * width]
        sums = self.summed(sums.transpose(0, 1).reshape(RELATIONS, -1, width))
        # Rows are by moment, visited group, episode.
        by_moment = joined.view(groups, moments, episodes, width).transpose(0, 1)
        at = torch.arange(moments)[:, None]
        visited = by_moment[at, states.groups].reshape(-1, width)
        logits = self.classify(torch.cat([visited, *sums], 1)[None])[0]
        logits = logits.view(moments, -1, episodes, self.devices).transpose(1, 2)
        stands = here.transpose(1, 2)[at, states.groups].transpose(1, 2)  # [W, E, n, D]
        logits = logits + self.stay * stands
        allowed = graph.allowed[states.groups][:, None]
        log_chances: Tensor = logits.masked_fill(~allowed, BARRED).log_softmax(-1)
        return log_chances

    def _features(self, graph: Structure, states: States, here: Tensor) -> Tensor:
        """Features [G, W * E, F] of all groups."""
        moments, episodes, groups = states.devices.shape
        now = torch.zeros(moments, 1, groups, dtype=here.dtype)
        now.scatter_(2, states.groups[:, None], 1.0)
        flags = [states.visited, now.expand(-1, episodes, -1)]
        flags += [] if states.starts is None else [states.starts]
        changing = torch.cat([here, torch.stack(flags, -1).to(here.dtype)], -1)
        fixed = graph.fixed[:, None].expand(-1, moments * episodes, -1).to(here.dtype)
        return torch.cat([fixed, changing.flatten(0, 1).transpose(0, 1)], -1)

    def _exchanged(self, graph: Structure, features: Tensor) -> Tensor:
        """States of groups after all rounds [G * B, 2 H], from features [G, B, F]."""
        groups, batch, width = features.shape
        weight = graph.bag_weight.to(features.dtype)
        first = self.embed(features.reshape(1, -1, width)).expand(2, -1, -1)
        rows = first
        for _ in range(self._rounds):
            sent = self.sent(rows).reshape(2 * groups, -1)
            # A bag is a group's parents or children; bags are many times faster than index_add.
            heard = embedding_bag(graph.members, sent, graph.begins, mode="sum")
            heard = self.received((heard * weight).view(2, groups * batch, -1))
            # A group without parents (or children) keeps its own state.
            hears = heard.view(2 * groups, -1) * (weight > 0)
            rows = first + hears.view_as(first)
        return torch.cat([rows[0], rows[1]], 1)
