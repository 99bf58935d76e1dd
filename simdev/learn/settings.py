"""The settings of the learners that need PyTorch, and the source of each value. This module itself
does without PyTorch.

A value marked "recalled" is from memory of a paper whose text could not be read beyond its
beginning, and not verified. A value marked "ours" is not in the papers, or theirs would take hours.

``simdev.search.learners`` checks a caller's settings against these classes, and the site's table of
learners is made of these docstrings: a new field needs its bullet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

from ..search.learners import bounded


@dataclass(frozen=True, slots=True)
class PlacerSettings:
    """The common settings of learners whose policy is a ``Placer`` (seq2seq.py).

    The class of a learner adds its fields, and gives the source of all.

    - ``hidden``: numbers in the states of the LSTMs. ``embedding``: numbers in the vector of a kind
      of op, and of a device.
    - ``attention``: "dot" or "additive". ``aligned``: the first value added to a stage's score of
      its own group. ``forget``: the first bias of all forget gates (both are trained; ours).
    - ``bound``, ``temperature``: logits are bound x tanh(l / temperature).
    - ``samples``: placements per update. ``controllers``: the number of parts that these are
      divided into: each part is sampled and differentiated by itself, so the answer depends on this
      number but not on the number of processes.
    - ``rate``: of Adam.
    - ``differing``: a warm start is imitated until a sample is expected to differ from it in this
      many groups. ``decodes``: updates between two evaluations of the likeliest placement.
    - ``device``: where samples are drawn and differentiated: "cpu", or "cuda" for a GPU (ours).
      Adam, imitation and decoding run on the CPU.
    """

    hidden: int = 64
    embedding: int = 16
    attention: Literal["dot", "additive"] = "dot"
    aligned: float = bounded(8.0, least=0)
    forget: float = bounded(-1.0, least=-10)
    bound: float = bounded(5.0, most=1e6)  # far below BARRED (policy.py)
    temperature: float = 1.0
    samples: int = 10
    controllers: int = 1
    rate: float = 0.003
    differing: float = 3.0
    decodes: int = 10
    device: Literal["cpu", "cuda"] = "cpu"


# ColocRL. Values marked "recalled" are from its sections 3 and 4.


@dataclass(frozen=True, slots=True)
class ColocRLSettings(PlacerSettings):
    """Settings of ColocRL; the defaults take some minutes on a core for 5,000 evaluations of 500
    groups.

    - ``hidden``: numbers in the state of each LSTM (section 4; recalled: 512).
    - ``embedding``: numbers in the vector of a kind of op, and of a device (section 3.2 says that
      they are trained; their size is ours).
    - ``attention``: "additive" (section 3.2, after Bahdanau) costs G x G x ``hidden`` tanh per
      placement; "dot", which costs less, is ours.
    - ``aligned``: the first value added to a stage's score of its own group (ours; 0: the network
      has to learn which stage belongs to which group). ``forget``: the first biases of forget gates
      (ours).
    - ``bound``, ``temperature``: logits are bound x tanh(l / temperature) (section 4, recalled; the
      values are ours).
    - ``samples``: placements per update (section 3.1; ours). ``controllers``: the number of parts
      that these are divided into, for as many processes (section 3.4: some, asynchronous; here they
      wait for each other, so that the same seed gives the same answer; ours).
    - ``rate``: of Adam (section 4; recalled). ``clip``: the norm at which gradients are clipped
      (recalled: 1).
    - ``decay``: of the moving average that is the baseline (section 3.1; its value is ours).
    - ``entropy``: weight of the mean entropy of a stage at the beginning, in units of the
      advantages' root mean square; falls to 0 by the end of the budget (ours; the paper has none).
    - ``failing_updates``: after this many updates only placements that succeed train (section 3.1;
      recalled: 5,000).
    - ``differing``: groups in which a sample may differ from a warm start that was imitated (ours).
    - ``decodes``: updates between two evaluations of the likeliest placement (ours).
    """

    clip: float = 1.0
    decay: float = bounded(0.9, least=0, most=1)
    entropy: float = bounded(4.0, least=0)
    failing_updates: int = bounded(100, least=0)

    @classmethod
    def published(cls) -> Self:
        """The paper's values, where they are known."""
        return cls(
            hidden=512,
            attention="additive",
            aligned=0.0,
            forget=0.0,
            entropy=0.0,
            failing_updates=5000,
        )


# Spotlight. No public text has the paper's network or its numbers: all values are ours. Known are
# the process (a stage for each group, its state the placements of the groups before, one reward
# after the last) and the rule (PPO by stage).


@dataclass(frozen=True, slots=True)
class SpotlightSettings(PlacerSettings):
    """Settings of Spotlight; the defaults take some minutes on a core for 5,000 evaluations of 500
    groups.

    The network, which is like ColocRL's (recalled):

    - ``hidden``: numbers in the state of each LSTM. ``embedding``: numbers in the vector of a kind
      of op, and of a device.
    - ``attention``: "additive" as in ColocRL, or "dot", which costs less.
    - ``aligned``: the first value added to a stage's score of its own group. ``forget``: the first
      biases of forget gates.
    - ``bound``, ``temperature``: logits are bound x tanh(l / temperature).

    Learning:

    - ``samples``: placements in a batch. ``controllers``: the number of parts that a batch is
      divided into, for as many processes.
    - ``epochs``: updates with one batch. ``clip``: a stage's ratio gains nothing further than this
      from 1. ``divergence``: weight of the KL divergence from the policy that sampled, added to
      the clipping.
    - ``entropy``: weight of the mean entropy of a stage beside the surrogate at the beginning;
      falls to 0 by the end of the budget.
    - ``decay``: of the moving average of signals that is the baseline. ``normalised``: advantages
      are divided by the standard deviation of the batch's signals.
    - ``rate``: of Adam. ``norm``: the norm at which gradients are clipped.
    - ``differing``: groups in which a sample may differ from a warm start that was imitated.
    - ``decodes``: batches between two evaluations of the likeliest placement.
    """

    epochs: int = 2
    clip: float = 0.2
    divergence: float = bounded(0.0, least=0)
    entropy: float = bounded(4.0, least=0)
    decay: float = bounded(0.0, least=0, most=1)
    normalised: bool = True
    rate: float = 0.005
    norm: float = 1.0

    @classmethod
    def published(cls) -> Self:
        """The paper's values, where they are known: a network like ColocRL's (recalled, not
        verified), with its sizes. All others stay ours.
        """
        return cls(hidden=512, attention="additive", aligned=0.0)


# HDP. "Paper" is the setup paragraph of the ICLR 2018 paper, "code" the released controller
# (TensorFlow, python/grappler/hierarchical_controller.py). Not copied from the code:
#
# - Shapes are added onto the columns of types: here they have columns of their own.
# - After step 500 old placements are replayed, not sampled: here all are sampled.
# - The update samples anew, and the placer then reads zeros: its gradient is not that of the
#   placement that was measured. Here it is.
# - It forgets all ops that an op reads but the last: here all are neighbours.
# - The decoder reads the keys of attention (the encoder's states through its matrix): here it
#   reads the states, as in Bahdanau, Cho and Bengio (ICLR 2015).
# - Noise on logits until step 750, and a rate that falls from step 400: the paper mentions neither.
#
# The sign is easily misread: the code multiplies signal - baseline by the negative log-probability,
# and minimises minus that, which is right.


@dataclass(frozen=True, slots=True)
class HDPSettings(PlacerSettings):
    """Settings of HDP; the defaults take some minutes on a core for 5,000 evaluations of 500 ops.

    - ``groups``: at most this many (paper: 256; ours).
    - ``grouping``: numbers between the matrices of the grouper (code: 64). ``grouper_temperature``:
      a divisor of the grouper's logits, so that groups change more slowly than their devices (ours;
      1: not).
    - ``homing``: the first value added to an op's score of the group where it begins (ours; 0:
      none). Groups begin as bands in topological order; where a warm start is imitated, as bands of
      the ops of each device.
    - ``rows``: "raw" describes ops by plain numbers (code), "scaled" by numbers up to 1 (ours).
    - ``hidden``: numbers in the placer's states, an even number (code: 512; ours). ``embedding``:
      numbers in the vector of a device (code: 512; ours).
    - ``attention``: "additive" (paper) or "dot", which costs less (ours). ``aligned``: the first
      value added to a stage's score of its own group (ours; 0: none). ``forget``: the first bias
      that all forget gates share (code: 1; ours).
    - ``bound``, ``temperature``: logits are bound x tanh(l / temperature) (paper: 5, 10; ours).
    - ``samples``: placements per update (paper: 4; ours). ``placements``: the number of samples
      that share a grouping (paper: 4; ours). ``controllers``: the number of parts that the samples
      are divided into, for as many processes (ours).
    - ``rate``: of Adam (paper: 0.1; ours). ``clip``: the norm at which gradients are clipped
      (paper: 1).
    - ``decay``: of the moving average that is the baseline (code: 0.9). ``baseline``: its first
      value: a "failing" signal (code), or the "mean" of the first batch (ours: else it would take
      60 updates to fall near the mean).
    - ``failing_updates``: after this many updates only placements that succeed train (code: 1,000;
      ours).
    - ``entropy``: weight of the mean entropy of an op's group plus that of a group's device at the
      beginning, in units of the advantages' root mean square; falls to 0 by the end of the budget
      (ours; the paper has none).
    - ``differing``: ops in which a sample may differ from a warm start that was imitated (ours).
    - ``decodes``: updates between two evaluations of the likeliest placement (ours).
    """

    groups: int = 64
    grouping: int = 64
    grouper_temperature: float = 10.0
    homing: float = bounded(8.0, least=0)
    rows: Literal["scaled", "raw"] = "scaled"
    placements: int = 1
    rate: float = 0.005
    clip: float = 1.0
    decay: float = bounded(0.9, least=0)
    baseline: Literal["mean", "failing"] = "mean"
    failing_updates: int = bounded(100, least=0)
    entropy: float = bounded(4.0, least=0)

    @classmethod
    def published(cls) -> Self:
        """The paper's values, and the code's where the paper has none."""
        return cls(
            groups=256,
            grouper_temperature=1.0,
            homing=0.0,
            rows="raw",
            hidden=512,
            embedding=512,
            attention="additive",
            aligned=0.0,
            forget=1.0,
            temperature=10.0,
            samples=4,
            placements=4,
            rate=0.1,
            baseline="failing",
            failing_updates=1000,
            entropy=0.0,
        )


# Placeto. "Code" is the released code (github.com/aravic/generalizable-device-placement, d9a81a9),
# "summary" a summary of the paper.


@dataclass(frozen=True, slots=True)
class PlacetoSettings:
    """Settings of Placeto; the defaults take some minutes on a core for 5,000 evaluations of 500
    groups.

    Episodes:

    - ``start``: the placement where an episode begins (code): the "best" so far, the "first"
      devices, or "random" devices; "single" is the best start of local search (ours).
    - ``practice``: ``start`` in a training on several graphs (ours: as on a new graph).
    - ``undo``: whether, after the visits of each message passing, the episode goes back to the best
      placement among them (ours: of a hundred moves most lose, and a search of minutes cannot learn
      to avoid them all). A visit that is taken back gains nothing.
    - ``passes``: visits of an episode to every group (summary: n; code: 1).
    - ``episodes``: episodes that are sampled from the same weights (code: 4 to 8 workers; here one
      after the other).
    - ``refresh``: visits per message passing (ours; paper: 1): their devices are drawn at once, and
      each visit is evaluated in turn.
    - ``every``: visits per evaluation in an episode without learning (ours; code: 1): without
      rewards, an evaluation only finds the placement to go back to.
    - ``starts``: whether the start times of groups are a feature (code; not among the paper's five
      features).
    - ``decodes``: updates between two episodes of the likeliest devices (code).

    Network:

    - ``rounds``: of message passing (code: 8). ``hidden``: numbers in the state of a group (0: the
      number of its features, as in the code).
    - ``pooling``: whether messages are added up ("sum", code) or averaged ("mean", ours: sums over
      hundreds of groups drown everything else).
    - ``stay``: the first value added to the logit of a group's current device (ours; trained).

    Learning:

    - ``scale``: "log" takes the logarithm of step times (code, behind a flag), "linear" the times
      themselves, relative to the best single device (the paper has seconds).
    - ``goal``: the return of a visit is the gain of the step until the "end" of the episode, or
      until the "best" placement after it (both code). ``discount``: of gains at later visits
      (code: 1).
    - ``penalty``: of a relative excess over memory of 1, in steps of the best single device (code:
      2 s for each GB beyond 8 GB; ours).
    - ``history``: episodes whose mean, visit by visit, is the baseline (code: 10).
    - ``relative``: whether advantages are divided by their root mean square, so that ``entropy``
      means the same where all moves gain much or little (ours).
    - ``entropy``, ``last_entropy``: weight of the mean entropy of a visit in nats (code: from 1.0
      down), linear in the budget used.
    - ``rate``, ``last_rate``: of Adam (code: 1e-3 to 1e-4), also linear. ``clip``: the norm at
      which gradients are clipped (code: 1.25).
    - ``epochs``, ``ratio``, ``parts``: the epochs over the episodes of an update, the bound of the
      ratio of new to old probabilities (as in rules.py), and the steps per epoch (ours; 1 epoch in
      1 part is REINFORCE, as in the paper).
    - ``differing``: groups in which an episode may differ from a warm start that was imitated
      (ours).
    """

    start: Literal["best", "single", "first", "random"] = "best"
    practice: Literal["best", "single", "first", "random"] = "single"
    undo: bool = True
    passes: int = 1
    episodes: int = 2
    refresh: int = 8
    every: int = 4
    starts: bool = False
    decodes: int = 10
    rounds: int = 8
    hidden: int = bounded(16, least=0)
    pooling: Literal["mean", "sum"] = "mean"
    stay: float = bounded(3.0, least=0)
    scale: Literal["log", "linear"] = "log"
    goal: Literal["end", "best"] = "end"
    discount: float = bounded(0.9, least=0)
    penalty: float = 2.0
    history: int = 10
    relative: bool = True
    entropy: float = bounded(0.2, least=0)
    last_entropy: float = bounded(0.05, least=0)
    rate: float = 0.003
    last_rate: float = 0.0003
    clip: float = 1.25
    epochs: int = 4
    ratio: float = 0.2
    parts: int = 4
    differing: float = 3.0

    @classmethod
    def published(cls) -> Self:
        """The values of the paper and its code."""
        return cls(
            practice="best",
            undo=False,
            refresh=1,
            every=1,
            hidden=0,
            pooling="sum",
            stay=0.0,
            scale="linear",
            discount=1.0,
            relative=False,
            entropy=1.0,
            last_entropy=0.0,
            rate=1e-3,
            last_rate=1e-4,
            episodes=8,
            epochs=1,
            parts=1,
        )


# GDP. No size and no number of its training is known. Values marked "recalled" are from section 3.


@dataclass(frozen=True, slots=True)
class GDPSettings:
    """Settings of GDP; the defaults take some minutes on a core for 5,000 evaluations of 500
    nodes.

    - ``width``: numbers in the vector of a node, a multiple of ``heads``. ``hops``: of the graph
      encoder. ``layers``: of the placer. ``heads``: of attention in each layer.
    - ``attention``: False leaves only the two dense layers of each layer of the placer, as in the
      paper's ablation.
    - ``segment``: nodes that attend to each other. ``memory``: nodes before them that they also
      read.
    - ``superposition``: every dense layer of the placer is gated by a vector of the graph (section
      3.3).
    - ``harmonics``: sines and cosines of a node's place in the graph, and of the share of transfers
      in the graph's time, among its features (``inputs_of``; ours).
    - ``samples``: placements of a graph in a batch. ``controllers``: the number of parts that these
      are divided into, for as many processes. ``graphs``: the most graphs that a policy learns from
      at once (``simdev train``).
    - ``epochs``: updates with one batch. ``clip``: a node's ratio gains nothing further than this
      from 1. ``divergence``: weight of the KL divergence from the policy that sampled, a sum
      over nodes: the larger, the smaller the steps (ours; else the noise in the advantages of some
      dozens of placements would be learned).
    - ``entropy``: weight of the mean entropy of a node beside the surrogate at the beginning; falls
      to 0 by the end of the budget (ours).
    - ``baseline``: "earlier", the mean of all rewards of the graph so far (recalled), or "batch",
      the mean of the batch (ours).
    - ``rate``, ``norm``: Adam's rate, the norm at which gradients are clipped.
    - ``differing``: nodes in which a sample may differ from a warm start that was imitated.
    - ``decodes``: batches between two evaluations of the likeliest placement (while a policy is
      still unsure of most nodes, it is far better than the samples).
    """

    width: int = 64
    hops: int = 3
    layers: int = 2
    heads: int = 4
    attention: bool = True
    segment: int = 128
    memory: int = 128
    superposition: bool = True
    harmonics: int = bounded(6, least=0)
    samples: int = 50
    controllers: int = 1
    graphs: int = 4
    epochs: int = 4
    clip: float = 0.2
    divergence: float = bounded(0.5, least=0)
    entropy: float = bounded(2.0, least=0)
    baseline: Literal["earlier", "batch"] = "batch"
    rate: float = 0.001
    norm: float = 1.0
    differing: float = 10.0
    decodes: int = 1

    @classmethod
    def published(cls) -> Self:
        """The paper's values, where they are known: the rewards' baseline, nodes without their
        places, and proximal updates by clipping alone (recalled). The sizes, the share of transfers
        among the features, and the even distribution at the beginning stay ours.
        """
        return cls(baseline="earlier", harmonics=0, divergence=0.0, samples=10)
