"""Placeto's network: message passing in both directions, pooling, a classifier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, one_hot

from ..networks.policy import BARRED
from .settings import Settings
from .structure import RELATIONS, Structure


@dataclass(frozen=True, slots=True, eq=False)
class States:
    """Placements under way: W moments of each of E episodes, at which n groups are visited.

    ``devices`` and ``visited`` [W, E, G]: where groups stand, and whether this pass has visited
    them. ``groups`` [W, n]: which are visited now. ``starts`` [W, E, G]: when they start, from the
    first of the visited on, over the latest; None where the network does without.
    """

    devices: Tensor
    visited: Tensor
    groups: Tensor
    starts: Tensor | None = None

    def part(self, moments: Tensor) -> States:
        """Some of the moments."""
        starts = None if self.starts is None else self.starts[moments]
        return States(self.devices[moments], self.visited[moments], self.groups[moments], starts)


class Layers(nn.Module):
    """``count`` feed-forward networks side by side, of these sizes; ReLU after each layer, but the
    last where ``ends`` is False. Weights as Glorot and Bengio (AISTATS 2010) draw them, biases 0.
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
    """The policy: which device a visited group goes to. Its weights know the number of devices, and
    nothing of any graph.

    Features of a group: its run time on each device, output bytes, where it stands (one number for
    each device), whether this pass has visited it, whether it is visited now; with the option, when
    it starts. All of them go through a network of three layers; then for some rounds a group adds
    to its own what its parents, and apart from that what its children, have become (summary:
    "radial"). The visited group's, and what becomes of its ancestors, descendants and all others
    together, go to a classifier.
    """

    groups = 0  # any number

    def __init__(self, devices: int, settings: Settings, seed: int) -> None:
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
        they may not stand.
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
        """What groups have become after all rounds [G * B, 2 H], of features [G, B, F]."""
        groups, batch, width = features.shape
        weight = graph.bag_weight.to(features.dtype)
        first = self.embed(features.reshape(1, -1, width)).expand(2, -1, -1)
        rows = first
        for _ in range(self._rounds):
            sent = self.sent(rows).reshape(2 * groups, -1)
            # Each bag holds one group's parents or children: many times faster than index_add.
            heard = embedding_bag(graph.members, sent, graph.begins, mode="sum")
            heard = self.received((heard * weight).view(2, groups * batch, -1))
            # A group that hears nothing keeps its own.
            hears = heard.view(2 * groups, -1) * (weight > 0)
            rows = first + hears.view_as(first)
        return torch.cat([rows[0], rows[1]], 1)
