"""GDP (2019): one network places all nodes of a graph, of any graph for the same number of devices.

``simdev.search`` finds it by its row in ``methods``. Its settings with their sources are in
``settings``; the loop that trains it is ``training``'s, or ``pretraining``'s for several graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..ground.errors import InputError
from ..nouns.structure import unit_of
from ..nouns.taskgraph import Bools, Floats, Ints
from ..oracle import Oracle
from ..search.features import Nodes, features_of
from ..search.instance import Instance
from ..search.prepare import Grouped
from ..search.trial import Trial
from .policy import BARRED, Policy, entropies, inverse, likeliest
from .rules import Proximal, reference_ps, signals_of
from .settings import GDPSettings
from .training import adam_of, keep, one_thread, train

# The input of the network: rows of a graph, whose columns do not depend on the number of rows.


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """A graph as the network reads it: n nodes in topological order, e edges.

    ``rows`` [n, F], where F depends only on the number of devices and the settings; ``source`` and
    ``target`` [e] are rows; ``nodes`` [n] is the node of each row.
    """

    rows: NDArray[np.float32]
    source: Ints
    target: Ints
    nodes: Ints


def inputs_of(oracle: Oracle, harmonics: int) -> Inputs:
    """The features of the groups of an oracle (``Nodes.scaled``), and the place of each in the
    graph.

    Ours: the share of transfers in the time (``_dearness``), without which graphs would look the
    same whether they are best on one device or on all; the longest path to a node and from it, in
    seconds over the longest path of all; and ``harmonics`` of both, of the topological number and
    of the share of all transfers: sin and cos of pi 2^k x, which distinguish otherwise equal
    neighbours and graphs.
    """
    nodes = features_of(oracle)
    sequence = np.argsort(nodes.order, kind="stable").astype(np.int64)
    time = nodes.seconds.sum(axis=1) / np.maximum(nodes.able.sum(axis=1), 1)
    before, after = _ways(nodes, time)
    dearness = _dearness(oracle, time)
    number = nodes.order / max(len(nodes) - 1, 1)
    place = np.column_stack([number, before, after, dearness[:, 2]])
    waves = [place[:, :, None] * (np.pi * 2.0**k) for k in range(harmonics)]
    turned = [f(wave).reshape(len(nodes), -1) for wave in waves for f in (np.sin, np.cos)]
    table = np.hstack([nodes.scaled(), dearness, before[:, None], after[:, None], *turned])
    source, target = nodes.order[nodes.source], nodes.order[nodes.target]
    return Inputs(table[sequence].astype(np.float32), source, target, sequence)


def _dearness(oracle: Oracle, time: Floats) -> Floats:
    """The share [n, 3] of transfers in the seconds of transfers and computing: for the node's
    inputs and for its outputs, were it alone on its device, and for the whole graph.

    ``time`` [n] is the computing time of each node, in seconds.
    """
    instance = Instance(oracle.prepared, Grouped.of(oracle.graph))
    group_of = np.array(unit_of(oracle.graph), np.int64)
    ends = group_of[np.array(instance.edges, np.int64).reshape(-1, 2)]
    apart = ends[:, 0] != ends[:, 1]
    seconds = instance.edge_ps[apart] / 1e12
    read, sent = (np.bincount(ends[apart, side], seconds, len(time)) for side in (1, 0))
    moved = np.column_stack([read, sent, np.full(len(time), seconds.sum())])
    both = moved + np.column_stack([time, time, np.full(len(time), time.sum())])
    share: Floats = moved / np.where(both > 0, both, 1.0)
    return share


def _ways(nodes: Nodes, time: Floats) -> tuple[Floats, Floats]:
    """The longest path that ends before each node [n], and the longest path after its end [n], over
    the longest path of all; by ``time`` [n]. Edges that lead back, on cycles, are left out.
    """
    ahead = nodes.order[nodes.source] < nodes.order[nodes.target]
    source, target = nodes.source[ahead], nodes.target[ahead]
    begin, rest = np.zeros(len(nodes)), np.zeros(len(nodes))
    for edge in np.argsort(nodes.order[source], kind="stable"):
        here, there = source[edge], target[edge]
        begin[there] = max(begin[there], begin[here] + time[here])
    for edge in np.argsort(-nodes.order[target], kind="stable"):
        here, there = source[edge], target[edge]
        rest[here] = max(rest[here], rest[there] + time[there])
    longest = float((begin + time + rest).max(initial=0.0)) or 1.0
    return begin / longest, rest / longest


# The network of GDP: a graph encoder, and a placer that attends over segments (section 3).


class Network(nn.Module):
    """Logits for every node of a graph in one pass. No weight depends on the number of nodes.

    ``features`` is the number of columns that describe a node. Raises InputError where ``width`` is
    not a multiple of ``heads``.
    """

    def __init__(self, features: int, devices: int, settings: GDPSettings, seed: int) -> None:
        super().__init__()
        width, superposed = settings.width, settings.superposition
        if width % settings.heads:
            raise InputError(
                f"settings: width must be a multiple of heads, got {width} and {settings.heads}"
            )
        self._segment, self._memory = settings.segment, settings.memory
        # Layers draw their first weights from the caller's random numbers, which stay as they were.
        with torch.random.fork_rng(devices=[]):
            self.entry = nn.Linear(features, width)
            self.hops = nn.ModuleList(Sage(width) for _ in range(settings.hops))
            heads = settings.heads if settings.attention else 0
            layers = (Attention(width, heads, superposed) for _ in range(settings.layers))
            self.layers = nn.ModuleList(layers)
            self.exit = Gated(width, devices, width, superposed)
        _begin(self, torch.Generator().manual_seed(seed))

    def encoded(self, rows: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """The vectors [n, W] of nodes [n, features] with edges [e] between them."""
        nodes: Tensor = self.entry(rows).relu()
        for hop in self.hops:
            nodes = hop(nodes, source, target)
        return nodes

    def forward(self, rows: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Logits [n, D] of nodes in topological order."""
        nodes = self.encoded(rows, source, target)
        graph = nodes.mean(0)
        for layer in self.layers:
            nodes = layer(nodes, graph, self._segment, self._memory)
        logits: Tensor = self.exit(nodes, graph)
        return logits


def _begin(network: Network, generator: torch.Generator) -> None:
    """First weights by Glorot and Bengio (2010), biases 0, gates 1. The last layer's weights are 0,
    so that all devices are equally likely (ours: else most nodes would begin on the same device).
    """
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight, generator=generator)
            nn.init.zeros_(module.bias)
    for module in network.modules():
        if isinstance(module, Gated) and module.gate is not None:
            nn.init.zeros_(module.gate.weight)
    nn.init.zeros_(network.exit.dense.weight)


class Sage(nn.Module):
    """A hop of GraphSAGE with max-pooling (section 3.1; Hamilton, Ying, Leskovec, NIPS 2017,
    equation 3): the elementwise maximum over all neighbours after a trained layer, joined with the
    node itself by another layer.

    Ours: producers and consumers are pooled by separate layers, and rows are normalised to mean 0
    and variance 1, where GraphSAGE divides by their length.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.producers = nn.Linear(width, width)
        self.consumers = nn.Linear(width, width)
        self.joined = nn.Linear(3 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, nodes: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """The nodes [n, W] after a hop along edges [e] in both directions."""
        before = _largest(self.producers(nodes).relu(), source, target)
        after = _largest(self.consumers(nodes).relu(), target, source)
        joined: Tensor = self.joined(torch.cat([nodes, before, after], 1))
        normed: Tensor = self.norm(joined.relu())
        return normed


def _largest(messages: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """The elementwise largest message [n, W] that arrives at each node; 0 where none does, which is
    the least output of a ReLU.
    """
    index = target[:, None].expand(-1, messages.shape[1])
    return torch.zeros_like(messages).scatter_reduce(0, index, messages[source], "amax")


class Gated(nn.Module):
    """A dense layer under superposition (section 3.3): its input is multiplied elementwise by a
    layer of the graph's vector; g(c(graph) * x).

    Without ``superposed`` it is the dense layer alone. The gate is 1 + c, and c is 0 at first
    (ours): then both are the same.
    """

    def __init__(self, inside: int, outside: int, graph: int, superposed: bool) -> None:
        super().__init__()
        self.dense = nn.Linear(inside, outside)
        self.gate = nn.Linear(graph, inside) if superposed else None

    def forward(self, rows: Tensor, graph: Tensor) -> Tensor:
        """Rows [..., outside] of rows [..., inside] and the vector of the graph [W]."""
        if self.gate is not None:
            rows = rows * (1.0 + self.gate(graph))
        dense: Tensor = self.dense(rows)
        return dense


class Attention(nn.Module):
    """A layer of Transformer-XL without its positions (section 3.2; Dai and others, ACL 2019): the
    rows of a segment attend to each other and to the ``memory`` rows before it, through which no
    gradient flows. Then two dense layers. Both parts are residual, and normalised.

    All nodes of a segment are placed at once, so rows also see later rows of it (ours). With 0
    ``heads`` there are only the two dense layers, as in the paper's ablation.
    """

    def __init__(self, width: int, heads: int, superposed: bool) -> None:
        super().__init__()
        self.heads = heads
        if heads:
            self.query = Gated(width, width, width, superposed)
            self.key_value = Gated(width, 2 * width, width, superposed)
            self.mixed = Gated(width, width, width, superposed)
            self.first = nn.LayerNorm(width)
        self.wide = Gated(width, 2 * width, width, superposed)
        self.narrow = Gated(2 * width, width, width, superposed)
        self.second = nn.LayerNorm(width)

    def forward(self, rows: Tensor, graph: Tensor, segment: int, memory: int) -> Tensor:
        """The rows [n, W] after the layer.

        A segment remembers the layer's input of the segment before it, which is known for all
        segments: so all are computed side by side, with the same result as one after another.
        """
        if self.heads:
            mixed = self.mixed(self._attended(rows, graph, segment, memory), graph)
            rows = self.first(rows + mixed)
        dense = self.narrow(self.wide(rows, graph).relu(), graph)
        after: Tensor = self.second(rows + dense)
        return after

    def _attended(self, rows: Tensor, graph: Tensor, segment: int, memory: int) -> Tensor:
        """The rows of attention [n, W]."""
        count, width = rows.shape
        segment = min(segment, count)
        segments = -(-count // segment)
        padding, memory = segments * segment - count, min(memory, (segments - 1) * segment)
        queries = _padded(self.query(rows, graph), 0, padding).view(segments, segment, width)
        here = _padded(self.key_value(rows, graph), 0, padding).view(segments, segment, -1)
        before = self.key_value(rows.detach(), graph)
        before = _padded(before, memory, padding).unfold(0, memory, segment)[:segments]
        kept = torch.cat([before.transpose(1, 2), here], 1)  # [segments, memory + segment, 2 W]
        position = torch.arange(segments)[:, None] * segment + torch.arange(-memory, segment)
        there = ((position >= 0) & (position < count))[:, None, None]
        keys, values = self._by_head(kept).chunk(2, -1)
        read = nn.functional.scaled_dot_product_attention(
            self._by_head(queries), keys, values, attn_mask=there
        )
        return read.transpose(1, 2).reshape(-1, width)[:count]

    def _by_head(self, rows: Tensor) -> Tensor:
        """Rows [S, L, H * w] by head [S, H, L, w]."""
        return rows.view(*rows.shape[:2], self.heads, -1).transpose(1, 2)


def _padded(rows: Tensor, before: int, after: int) -> Tensor:
    """Rows [n, W] with zeros before and after."""
    return nn.functional.pad(rows, (0, 0, before, after))


class OnGraph(Policy):
    """The distribution of GDP over the placements of a graph: given the graph, nodes are
    independent, so a batch of placements takes one pass. Several graphs may share a ``network``.
    """

    rows: Tensor
    source: Tensor
    target: Tensor
    row_of: Tensor

    def __init__(self, network: Network, inputs: Inputs, allowed: Bools) -> None:
        super().__init__(allowed)
        self.network = network
        row_of = np.argsort(inputs.nodes)
        self.hold(rows=inputs.rows, source=inputs.source, target=inputs.target, row_of=row_of)

    def logits(self) -> Tensor:
        """Logits by node and device [n, D], BARRED where the node may not run."""
        logits: Tensor = self.network(self.rows, self.source, self.target)[self.row_of]
        return logits.masked_fill(~self.allowed, BARRED)

    def forward(self, placements: Tensor) -> Tensor:
        """Log-probabilities [n, G, D], the same for all n placements."""
        return self.logits().log_softmax(-1).expand(len(placements), -1, -1)

    def judge(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities [n, G] of the chosen devices, and the entropies [1, G]."""
        log_chances = self.logits().log_softmax(-1)
        return log_chances.gather(1, samples.T).T, entropies(log_chances)[None]

    def _sampled(self, uniforms: Tensor) -> Tensor:
        return inverse(self.logits().softmax(-1).expand(len(uniforms), -1, -1), uniforms)

    def _decoded(self) -> Tensor:
        return likeliest(self.logits())


def on_graph(trial: Trial, network: Network | None = None) -> OnGraph:
    """The policy on a trial's graph: with a new network, or with a shared one."""
    problem = trial.problem
    settings: GDPSettings = trial.learning.settings
    inputs = inputs_of(problem.oracle, settings.harmonics)
    if network is None:
        columns, devices = inputs.rows.shape[1], problem.allowed.shape[1]
        network = Network(columns, devices, settings, trial.budget.seed)
    return OnGraph(network, inputs, problem.allowed)


# Batch training: one policy learns from several graphs at once (section 3.3).


class Task:
    """A graph of a training: the policy on it, its reference step, and its baseline."""

    def __init__(self, trial: Trial, policy: OnGraph) -> None:
        self.policy, self._trial = policy, trial
        self._rule, self._reference = Proximal(trial.learning.settings), reference_ps(trial)

    def sampled(self, count: int) -> Callable[[float], Tensor]:
        """Evaluate ``count`` placements; returns the rule's loss on them as a function of the
        weight of entropies. Raises SpentError.
        """
        trial, shape = self._trial, (count, self.policy.groups)
        samples = self.policy.sample(torch.from_numpy(trial.budget.random.random(shape)))
        signals = signals_of(trial, map(trial.score_once, samples.numpy()), self._reference)
        advantages = torch.from_numpy(self._rule.advantages(signals)).float()
        with torch.no_grad():
            before, _ = self.policy.judge(samples)

        def loss(left: float) -> Tensor:
            log_chosen, spread = self.policy.judge(samples)
            return self._rule.loss(log_chosen, before, left * spread, advantages)

        return loss


class Together:
    """A policy in training on several graphs (a GeneralLearner): an update follows the mean of
    their losses, each with its own baseline.
    """

    def __init__(self, trial: Trial) -> None:
        settings: GDPSettings = trial.learning.settings
        self._trial, self._settings, self.graphs = trial, settings, settings.graphs
        self._policy = on_graph(trial)
        keep("gdp", trial, self._policy, any_graph=True)
        self._adam = adam_of(self._policy, settings.rate)
        self._tasks = dict[Trial, Task]()

    def update(self, trials: Sequence[Trial]) -> None:
        """Evaluate placements of these graphs, and learn from all of them. Raises SpentError."""
        settings, left = self._settings, 1.0 - self._trial.budget.share
        with one_thread():
            losses = [self._task(trial).sampled(settings.samples) for trial in trials]
            for _ in range(settings.epochs):
                self._trial.budget.require_time()
                self._adam.zero_grad()
                for loss in losses:  # one graph after another: all at once would take more memory
                    (loss(left) / len(losses)).backward()
                nn.utils.clip_grad_norm_(self._policy.parameters(), settings.norm)
                self._adam.step()

    def _task(self, trial: Trial) -> Task:
        """The task of a graph; its single devices are evaluated the first time."""
        if trial not in self._tasks:
            self._tasks[trial] = Task(trial, on_graph(trial, self._policy.network))
        return self._tasks[trial]


def gdp(trial: Trial) -> None:
    """GDP (2019): a graph network and attention place all single ops in one pass, learning by
    proximal policy optimisation.

    Nodes are the groups of the problem's oracle: single ops, except those that must share a device.
    Raises SpentError.
    """
    settings: GDPSettings = trial.learning.settings
    policy = on_graph(trial)
    keep("gdp", trial, policy, any_graph=True)
    # A placement that is impossible or does not fit fails (recalled: a reward of -10).
    train(trial, policy, Proximal(settings), settings.norm)
