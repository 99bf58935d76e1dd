"""Networks that place groups one after another: an LSTM reads a row for each group, another with
attention places the groups, stage by stage; and the learners whose policy is such a network.

The network is ColocRL's (Mirhoseini and others, ICML 2017, section 3.2), and also the placer of HDP
(Mirhoseini and others, ICLR 2018). Shapes: m sequences of G rows are read, and k placements are
made of each; D devices, H numbers in a state.

``simdev.search`` finds ``colocrl`` and ``spotlight`` by their rows in ``methods``; ``hdp`` uses the
network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..nouns.taskgraph import Bools, Floats, Ints
from ..search.features import Nodes, features_of
from ..search.trial import Trial
from .policy import BARRED, Policy, inverse, likeliest
from .rules import ByStage, Reinforce
from .settings import ColocRLSettings, PlacerSettings, SpotlightSettings
from .training import keep, train

# Attention of a stage of the decoder to the encoder's outputs of all groups.

CHUNK = 1 << 24  # the most numbers of an additive attention that are held at a time


class Dot(nn.Module):
    """Scores are products of the decoder's state and the encoder's outputs (Luong, Pham, Manning,
    EMNLP 2015, section 3.1, "dot"), over the root of their length.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self._scale = 1.0 / sqrt(hidden)

    def keys(self, memory: Tensor) -> Tensor:
        """The keys [..., G, H] that states are compared with, from the encoder's outputs [..., G,
        H].
        """
        return memory * self._scale

    def forward(self, states: Tensor, keys: Tensor) -> Tensor:
        """Scores [..., n, G] of states [..., n, H]."""
        return states @ keys.mT


class Additive(nn.Module):
    """Scores are v tanh(W memory + U state) (Bahdanau, Cho, Bengio, ICLR 2015, appendix A.1.2)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.memory = nn.Linear(hidden, hidden, bias=False)
        self.state = nn.Linear(hidden, hidden, bias=False)
        self.score = nn.Linear(hidden, 1, bias=False)

    def keys(self, memory: Tensor) -> Tensor:
        """The keys [..., G, H] that states are compared with, from the encoder's outputs [..., G,
        H].
        """
        keys: Tensor = self.memory(memory)
        return keys

    def forward(self, states: Tensor, keys: Tensor) -> Tensor:
        """Scores [..., n, G] of states [..., n, H]."""
        parts = states.split(max(CHUNK // keys.numel(), 1), -2)
        if torch.is_grad_enabled() and len(parts) > 1:
            # The tanh is computed again for the gradient, since to keep it would take gigabytes.
            scores = [checkpoint(self._scores, part, keys, use_reentrant=False) for part in parts]
        else:
            scores = [self._scores(part, keys) for part in parts]
        return torch.cat(scores, -2)

    def _scores(self, states: Tensor, keys: Tensor) -> Tensor:
        scores: Tensor = self.score(
            torch.tanh(keys.unsqueeze(-3) + self.state(states).unsqueeze(-2))
        )
        return scores.squeeze(-1)


ATTENTIONS: Mapping[str, type[Dot] | type[Additive]] = {"dot": Dot, "additive": Additive}


# Lstm: one layer, with PyTorch's biases or with a single number for all forget gates.


class Lstm(nn.LSTM):
    """A layer that reads rows [stages, n, inputs]; gates in the order of ``nn.LSTM``.

    With ``biases`` every gate has its own. Without, one trained number is added to all forget gates
    of all directions, as in HDP's released code. ``both_ways``: another layer of the same size
    reads the rows from the last to the first, and its outputs are appended.
    """

    def __init__(
        self, inputs: int, hidden: int, biases: bool = True, both_ways: bool = False
    ) -> None:
        super().__init__(inputs, hidden, bias=biases, bidirectional=both_ways)
        if not biases:
            self.forget = nn.Parameter(torch.zeros(()))

    def begin(self, forget: float) -> None:
        """Set the first bias of the forget gates; nothing else changes."""
        size = self.hidden_size
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name == "forget":
                    parameter.fill_(forget)
                elif name.startswith("bias_ih"):
                    parameter[size : 2 * size] = forget

    @property
    def gate_biases(self) -> Tensor:
        """The biases of the gates of the first direction [4 H]."""
        if self.bias:
            return self.get_parameter("bias_ih_l0") + self.get_parameter("bias_hh_l0")
        return self._shared()

    def _shared(self) -> Tensor:
        """The biases of all gates from the single number of the forget gates [4 H]."""
        gates = self.forget.new_zeros(4)
        gates = torch.cat([gates[:1], self.forget.reshape(1), gates[2:]])
        return gates.repeat_interleave(self.hidden_size)

    def forward(  # type: ignore[override]  # no packed sequences
        self, rows: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Outputs [stages, n, H x directions], and the last hidden and cell states [directions, n,
        H], from a first ``state`` of that shape (None: zeros).
        """
        if self.bias:
            outputs, last = super().forward(rows, state)
            return outputs, last
        directions = 2 if self.bidirectional else 1
        if state is None:
            zeros = rows.new_zeros(directions, rows.shape[1], self.hidden_size)
            state = zeros, zeros
        shared, weights = self._shared(), list[Tensor]()
        for suffix in ("", "_reverse")[:directions]:
            inputs, turn = (self.get_parameter(f"weight_{of}_l0{suffix}") for of in ("ih", "hh"))
            weights += [inputs, turn, shared, torch.zeros_like(shared)]
        outputs, hidden, cell = torch.lstm(
            rows, state, weights, True, 1, 0.0, False, self.bidirectional, False
        )
        return outputs, (hidden, cell)


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """The encoder's result for m sequences: its outputs [m, G, H], its last hidden and cell states
    [m, H].
    """

    outputs: Tensor
    hidden: Tensor
    cell: Tensor

    def of(self, sequences: Tensor) -> Memory:
        """The memory of some sequences, by their numbers; a sequence may occur several times."""
        return Memory(self.outputs[sequences], self.hidden[sequences], self.cell[sequences])


class Placer(nn.Module):
    """A decoder that begins with the encoder's last state and has a stage for each row. Its input
    is the embedding of the device just chosen, its output a linear function of its state and of the
    encoder's outputs that attention reads.

    ``biases``: all gates and the output have biases; without, all forget gates share one number.
    ``both_ways``: half of the encoder's state reads from the last group to the first.
    """

    def __init__(
        self,
        width: int,
        devices: int,
        settings: PlacerSettings,
        biases: bool = True,
        both_ways: bool = False,
    ) -> None:
        super().__init__()
        hidden, aligned = settings.hidden, settings.aligned
        self.settings, self.devices = settings, devices
        self.encoder = Lstm(width, hidden // 2 if both_ways else hidden, biases, both_ways)
        # The last embedding is the input of the first stage: nothing is chosen yet.
        self.device = nn.Embedding(devices + 1, settings.embedding)
        self.decoder = Lstm(settings.embedding, hidden, biases)
        self.attention = ATTENTIONS[settings.attention](hidden)
        self.from_state = nn.Linear(hidden, devices, bias=biases)
        self.from_context = nn.Linear(hidden, devices, bias=False)
        self.aligned = nn.Parameter(torch.tensor(aligned)) if aligned else None

    def read(self, rows: Tensor) -> Memory:
        """The encoder's memory of rows [m, G, width]."""
        outputs, last = self.encoder(rows.transpose(0, 1))
        hidden, cell = (state.transpose(0, 1).flatten(1) for state in last)
        return Memory(outputs.transpose(0, 1), hidden, cell)

    def logits(self, memory: Memory, devices: Tensor) -> Tensor:
        """Logits [m, k, G, D] of all stages at once, given the devices [m, k, G] that
        were chosen.
        """
        sequences, count, stages = devices.shape
        turns = devices.reshape(-1, stages).T  # [G, m k]
        first = turns.new_full(turns.shape[1:], self.devices)
        before = self.device(torch.cat([first.unsqueeze(0), turns[:-1]]))
        states, _ = self.decoder(before, _begin(memory, count))
        states = states.view(stages, sequences, count, -1).transpose(0, 1)  # [m, G, k, H]
        scores = self.attention(states.flatten(1, 2), self.attention.keys(memory.outputs))
        scores = scores.view(sequences, stages, count, stages)
        if self.aligned is not None:
            scores.diagonal(dim1=1, dim2=3).add_(self.aligned)
        # Outputs are mapped to D numbers per group before attention sums them: D is less than H.
        read = scores.softmax(-1).flatten(1, 2) @ self.from_context(memory.outputs)
        logits = self.from_state(states) + read.view(sequences, stages, count, -1)
        return self._bounded(logits).transpose(1, 2)

    def walk(self, memory: Memory, count: int, choose: Callable[[int, Tensor], Tensor]) -> Tensor:
        """Devices [m, k, G], stage after stage: ``choose`` maps the number of the stage and its
        logits [m k, D] to devices [m k].

        This is ``logits`` written out by stages, since there are hundreds of small stages:
        everything that does not depend on the choices is computed before.
        """
        sequences, stages, _ = memory.outputs.shape
        state, cell = (part[0].clone() for part in _begin(memory, count))
        weight, turn = self.decoder.get_parameter, self.decoder.get_parameter("weight_hh_l0").T
        # The input part of the gates for each device just chosen [D + 1, 4 H].
        inputs = self.device.weight @ weight("weight_ih_l0").T + self.decoder.gate_biases
        keys, values = self.attention.keys(memory.outputs), self.from_context(memory.outputs)
        aligned = 0.0 if self.aligned is None else self.aligned
        chosen = torch.full((len(state),), self.devices, device=state.device)
        devices = chosen.new_empty((stages, len(state)))
        for stage in range(stages):
            gates = torch.addmm(inputs.index_select(0, chosen), state, turn)
            enter, keep, candidate, leave = gates.chunk(4, 1)  # the order of nn.LSTM
            cell.mul_(keep.sigmoid_()).addcmul_(enter.sigmoid_(), candidate.tanh_())
            state = cell.tanh().mul_(leave.sigmoid_())
            scores = self.attention(state.view(sequences, count, -1), keys)
            scores[..., stage] += aligned
            logits = self.from_state(state).view(sequences, count, -1)
            logits = self._bounded(logits.baddbmm_(scores.softmax(-1), values))
            devices[stage] = chosen = choose(stage, logits.flatten(0, 1))
        return devices.T.reshape(sequences, count, stages)

    def _bounded(self, logits: Tensor) -> Tensor:
        return self.settings.bound * torch.tanh(logits / self.settings.temperature)


def _begin(memory: Memory, count: int) -> tuple[Tensor, Tensor]:
    """The first states of the decoder [1, m k, H]."""
    states = (memory.hidden, memory.cell)
    hidden, cell = (state.repeat_interleave(count, 0).unsqueeze(0) for state in states)
    return hidden, cell


def begin(module: nn.Module, forget: float, generator: torch.Generator) -> None:
    """First weights by Glorot and Bengio (2010), biases 0 except for those of forget gates."""
    for parameter in module.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter, generator=generator)
        elif parameter.dim() == 1:
            nn.init.zeros_(parameter)
    for layer in module.modules():
        if isinstance(layer, Lstm):
            layer.begin(forget)


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """The rows that the encoder reads, one for each stage (G stages, one for each group).

    ``stages`` [G] are the groups in the order in which they are placed; ``kinds`` [G, K] the shares
    of kinds among their ops, ``rest`` [G, R] the columns that need no embedding.
    """

    stages: Ints
    kinds: NDArray[np.float32]
    rest: NDArray[np.float32]


def inputs_of(groups: Nodes) -> Inputs:
    """ColocRL's description of groups (ICML 2017, section 3.2; recalled, not verified): kinds of
    ops, output shapes, and which other groups are adjacent, as 0 or 1 in the order of the stages.

    Ours: a group has the mean of its ops' kinds; the logarithms of its summed extents and of its
    output bytes (shapes may be missing) are divided by their maxima.
    """
    stages = np.argsort(groups.order).astype(np.int64)
    kinds = groups.kind / np.maximum(groups.kind.sum(axis=1, keepdims=True), 1.0)
    sizes = np.log1p(np.column_stack([groups.shape, groups.output_bytes]))
    sizes /= np.maximum(sizes.max(axis=0, initial=0.0), 1.0)
    adjacent: Floats = np.zeros((len(stages), len(stages)))
    adjacent[groups.order[groups.source], groups.order[groups.target]] = 1.0
    rest = np.hstack([sizes[stages], np.maximum(adjacent, adjacent.T)])
    return Inputs(stages, kinds[stages].astype(np.float32), rest.astype(np.float32))


class Seq2Seq(Policy):
    """The policy of ColocRL (Mirhoseini and others, ICML 2017, section 3.2): a row for each group,
    the same for all placements.
    """

    stages: Tensor
    kinds: Tensor
    rest: Tensor

    def __init__(self, inputs: Inputs, allowed: Bools, settings: PlacerSettings, seed: int) -> None:
        super().__init__(allowed)
        self.hold(stages=inputs.stages, kinds=inputs.kinds, rest=inputs.rest)
        # Layers draw their first weights from the caller's random numbers, which stay as they were.
        with torch.random.fork_rng(devices=[]):
            self.kind = nn.Linear(self.kinds.shape[1], settings.embedding, bias=False)
            width = settings.embedding + self.rest.shape[1]
            self.placer = Placer(width, self.devices, settings)
        begin(self, settings.forget, torch.Generator().manual_seed(seed))

    def rows(self) -> Tensor:
        """The rows that the encoder reads [1, G, width], by stage."""
        return torch.cat([self.kind(self.kinds), self.rest], 1).unsqueeze(0)

    def forward(self, placements: Tensor) -> Tensor:
        """Log-probabilities [n, G, D], each given the devices chosen before."""
        memory = self.placer.read(self.rows())
        logits = self.placer.logits(memory, placements[None, :, self.stages])[0]
        by_group = logits[:, self.stages.argsort()]
        return by_group.masked_fill(~self.allowed, BARRED).log_softmax(-1)

    def _sampled(self, uniforms: Tensor) -> Tensor:
        by_stage = uniforms[:, self.stages].T.contiguous()

        def choose(stage: int, logits: Tensor) -> Tensor:
            return inverse(self._masked(stage, logits).softmax(-1), by_stage[stage])

        return self._walk(len(uniforms), choose)

    def _decoded(self) -> Tensor:
        return self._walk(1, lambda stage, logits: likeliest(self._masked(stage, logits)))[0]

    def _masked(self, stage: int, logits: Tensor) -> Tensor:
        """Logits [n, D] of a stage, BARRED where its group may not run."""
        allowed = self.allowed.index_select(0, self.stages[stage : stage + 1])
        return logits.masked_fill(~allowed, BARRED)

    def _walk(self, count: int, choose: Callable[[int, Tensor], Tensor]) -> Tensor:
        """``count`` placements [n, G]."""
        devices = self.placer.walk(self.placer.read(self.rows()), count, choose)[0]
        return devices[:, self.stages.argsort()]


# The learners.


def _policy_of(method: str, trial: Trial) -> Seq2Seq:
    """The policy of a learner, kept by the trial."""
    problem, settings = trial.problem, trial.learning.settings
    inputs = inputs_of(features_of(problem.oracle))
    policy = Seq2Seq(inputs, problem.allowed, settings, trial.budget.seed)
    keep(method, trial, policy)
    return policy


def colocrl(trial: Trial) -> None:
    """ColocRL (ICML 2017): a network places the groups one after another and learns from the step
    times.

    As in the paper its policy can place no other graph. Raises SpentError.
    """
    settings: ColocRLSettings = trial.learning.settings
    rule = Reinforce(settings.decay, settings.entropy, settings.failing_updates)
    train(trial, _policy_of("colocrl", trial), rule, settings.clip)


def spotlight(trial: Trial) -> None:
    """Spotlight (ICML 2018): a network like ColocRL's, learning by proximal policy optimisation
    with a ratio for each group.

    A stage places the next group in topological order; the decoder's LSTM remembers the devices of
    the groups before. A placement that does not fit counts as slower by its relative excess (ours):
    the policy learns from every sample, and from how far it is from fitting. Raises SpentError.
    """
    settings: SpotlightSettings = trial.learning.settings
    policy = _policy_of("spotlight", trial)
    train(trial, policy, ByStage(settings), settings.norm, overflow_fails=False)
