"""The settings of the learners that need PyTorch, and where each value is from. They are read where
PyTorch is missing too.

A value marked "recalled" is from memory of a paper whose own text could not be read beyond its
beginning, and not verified. A value marked "ours" is not in the papers, or theirs would take hours.

``simdev.search.learners`` checks what a caller gives against them, and the site's table of learners
is made of these docstrings: a new field needs its bullet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

from ..search.learners import bounded


@dataclass(frozen=True, slots=True)
class PlacerSettings:
    """The settings that learners share whose policy is a ``Placer`` (seq2seq.py).

    A learner's own class adds its fields, and says of all where they are from.

    - ``hidden``: numbers in the states of the LSTMs. ``embedding``: numbers that encode a kind
      and for a device.
    - ``attention``: "dot" or "additive". ``aligned``: what a stage's score of its own group begins
      with, beyond those of the others. ``forget``: what the biases of all forget gates begin with
      (both are trained; ours).
    - ``bound``, ``temperature``: logits are bound x tanh(l / temperature).
    - ``samples``: placements an update. ``controllers``: into how many parts these are divided:
      each part is sampled and differentiated by itself, so the answer depends on their number but
      not on that of the processes.
    - ``rate``: of Adam.
    - ``differing``: a warm start is imitated until a sample is expected to differ from it in so
      many groups. ``decodes``: the likeliest placement is evaluated every so many updates.
    - ``device``: where samples are drawn and differentiated: "cpu", or a GPU by "cuda" (ours).
      Adam, imitation and decoding are the CPU's.
    """

    hidden: int = 64
    embedding: int = 16
    attention: Literal["dot", "additive"] = "dot"
    aligned: float = bounded(8.0, least=0)
    forget: float = bounded(-1.0, least=-10)
    bound: float = bounded(5.0, most=1e6)  # far within what bars a device (policy.py)
    temperature: float = 1.0
    samples: int = 10
    controllers: int = 1
    rate: float = 0.003
    differing: float = 3.0
    decodes: int = 10
    device: Literal["cpu", "cuda"] = "cpu"


# ColocRL. What is marked "recalled" is of its sections 3 and 4.


@dataclass(frozen=True, slots=True)
class ColocRLSettings(PlacerSettings):
    """By default sizes with which 5,000 evaluations of 500 groups take some minutes on one core.

    - ``hidden``: numbers in the state of each LSTM (section 4; recalled: 512).
    - ``embedding``: numbers that encode a kind of op and for a device (section 3.2 says that
      they are trained; their size is ours).
    - ``attention``: "additive" (section 3.2, after Bahdanau) costs G x G x ``hidden`` tanh a
      placement; "dot", which costs less, is ours.
    - ``aligned``: what a stage's score of its own group begins with (ours; 0: the network has to
      learn which stage belongs to which group). ``forget``: the first biases of forget gates
      (ours).
    - ``bound``, ``temperature``: logits are bound x tanh(l / temperature) (section 4; recalled as
      there, without their values; ours).
    - ``samples``: placements an update (section 3.1; ours). ``controllers``: into how many parts
      these are divided, for as many processes (section 3.4: some, asynchronous; here they wait for
      each other, so that the same seed gives the same answer; ours).
    - ``rate``: of Adam (section 4; recalled). ``clip``: the norm at which gradients are clipped
      (recalled: 1).
    - ``decay``: of the moving average that is the baseline (section 3.1; its value is ours).
    - ``entropy``: weight of the mean entropy of a stage at the beginning, in units of the
      advantages' root mean square; falls to 0 by the end of the budget (ours; the paper has none).
    - ``failing_updates``: after so many updates only placements that succeed train (section 3.1;
      recalled: 5,000).
    - ``differing``: groups in which a sample may differ from a warm start that was imitated (ours).
    - ``decodes``: the likeliest placement is evaluated every so many updates (ours).
    """

    clip: float = 1.0
    decay: float = bounded(0.9, least=0, most=1)
    entropy: float = bounded(4.0, least=0)
    failing_updates: int = bounded(100, least=0)

    @classmethod
    def published(cls) -> Self:
        """The paper's, as far as they are known."""
        return cls(
            hidden=512,
            attention="additive",
            aligned=0.0,
            forget=0.0,
            entropy=0.0,
            failing_updates=5000,
        )


# Spotlight. No public text tells the paper's network or its numbers: all values are ours. Known are
# the process (a stage for each group, its state the placements of the groups before, one reward
# after the last) and the rule (PPO by stage).


@dataclass(frozen=True, slots=True)
class SpotlightSettings(PlacerSettings):
    """By default sizes with which 5,000 evaluations of 500 groups take some minutes on one core.

    Of the network, which is like ColocRL's (recalled):

    - ``hidden``: numbers in the state of each LSTM. ``embedding``: numbers that encode a kind of
      op and for a device.
    - ``attention``: "additive" as in ColocRL's, or "dot", which costs less.
    - ``aligned``: what a stage's score of its own group begins with. ``forget``: the first biases
      of forget gates.
    - ``bound``, ``temperature``: logits are bound x tanh(l / temperature).

    Of learning:

    - ``samples``: placements in a batch. ``controllers``: into how many parts a batch is divided,
      for as many processes.
    - ``epochs``: updates with one batch. ``clip``: how far a stage's ratio may move from 1 where
      that gains. ``divergence``: weight of the KL divergence from the policy that sampled, added to
      the clipping.
    - ``entropy``: weight of the mean entropy of a stage beside the surrogate at the beginning;
      falls to 0 by the end of the budget.
    - ``decay``: of the moving average of signals that is the baseline. ``normalised``: advantages
      are divided by the standard deviation of the batch's signals.
    - ``rate``: of Adam. ``norm``: the norm at which gradients are clipped.
    - ``differing``: groups in which a sample may differ from a warm start that was imitated.
    - ``decodes``: the likeliest placement is evaluated every so many batches.
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
        """The paper's, as far as they are known: a network like ColocRL's (recalled, not verified),
        with its sizes. The rest stays ours.
        """
        return cls(hidden=512, attention="additive", aligned=0.0)


# HDP. "Paper" is the setup paragraph of the ICLR 2018 paper, "code" the released controller
# (TensorFlow, python/grappler/hierarchical_controller.py). Not copied from the code:
#
# - Shapes are added onto the columns of types: here they have columns of their own.
# - After step 500 old placements are replayed, not sampled: here all are sampled.
# - The update samples anew, and the placer then reads zeros: its gradient is not that of the
#   placement that was measured. Here it is.
# - Of the ops that an op reads, all but the last are forgotten: here all are neighbours.
# - The decoder reads what attention compares, the encoder's states through its matrix: here it
#   reads the states (as Bahdanau, Cho and Bengio, ICLR 2015, have it).
# - The paper says nothing of noise on logits until step 750 and of a rate that falls from step 400.
#
# The sign is easily misread: the code multiplies signal - baseline by the negative log-probability,
# and minimises minus that, which is right.


@dataclass(frozen=True, slots=True)
class HDPSettings(PlacerSettings):
    """By default sizes with which 5,000 evaluations of 500 ops take some minutes on one core.

    - ``groups``: at most so many (paper: 256; ours).
    - ``grouping``: numbers between the matrices of the grouper (code: 64). ``grouper_temperature``:
      its logits are divided by it, so that groups change more slowly than their devices (ours; 1:
      not).
    - ``homing``: what an op's score of the group where it begins has beyond those of all others
      (ours; 0: none). Groups begin as bands in topological order; where a warm start is imitated,
      as bands of the ops of each device.
    - ``rows``: "raw" describes ops by plain numbers (code), "scaled" by numbers up to 1 (ours).
    - ``hidden``: numbers in the placer's states, an even number (code: 512; ours). ``embedding``:
      numbers that encode a device (code: 512; ours).
    - ``attention``: "additive" (paper) or "dot", which costs less (ours). ``aligned``: what a
      stage's score of its own group begins with (ours; 0: none). ``forget``: the first bias that
      all forget gates share (code: 1; ours).
    - ``bound``, ``temperature``: logits are bound x tanh(l / temperature) (paper: 5, 10; ours).
    - ``samples``: placements an update (paper: 4; ours). ``placements``: so many of them have the
      same grouping (paper: 4; ours). ``controllers``: into how many parts these are divided, for as
      many processes (ours).
    - ``rate``: of Adam (paper: 0.1; ours). ``clip``: the norm at which gradients are clipped
      (paper: 1).
    - ``decay``: of the moving average that is the baseline (code: 0.9). ``baseline``: what it
      begins with: a "failing" signal (code), or the "mean" of the first batch (ours: it would fall
      for 60 updates until it is near).
    - ``failing_updates``: after so many updates only placements that succeed train (code: 1,000;
      ours).
    - ``entropy``: weight of the mean entropy of an op's group plus that of a group's device at the
      beginning, in units of the advantages' root mean square; falls to 0 by the end of the budget
      (ours; the paper has none).
    - ``differing``: ops in which a sample may differ from a warm start that was imitated (ours).
    - ``decodes``: the likeliest placement is evaluated every so many updates (ours).
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
        """The paper's, and the code's where the paper says nothing."""
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
    """By default sizes with which 5,000 evaluations of 500 groups take some minutes on one core.

    Episodes:

    - ``start``: where an episode begins (code): on the "best" placement so far, on the "first"
      devices, on "random" ones; "single" is the best start of local search (ours).
    - ``practice``: where it begins in a training on several graphs (ours: where a new graph would).
    - ``undo``: whether, after the visits of each message passing, the episode goes back to the best
      placement among them (ours: of a hundred moves most lose, and a search of minutes cannot learn
      to make none of these). A visit that is taken back gained nothing.
    - ``passes``: how often an episode visits every group (summary: n; code: 1).
    - ``episodes``: how many are sampled from the same weights (code: 4 to 8 workers; here one after
      the other).
    - ``refresh``: for how many visits a message passing serves (ours; the paper's is 1): their
      devices are drawn at once, and each is evaluated in turn.
    - ``every``: after how many visits of a message passing an episode that nothing is learned from
      is evaluated (ours; the code's 1: without rewards to pay, evaluations tell no more than where
      to go back to).
    - ``starts``: whether groups know when they start (code; the paper's five features do without).
    - ``decodes``: after so many updates an episode takes the likeliest devices (code).

    Network:

    - ``rounds``: of message passing (code: 8). ``hidden``: numbers that describe a group (0: as
      many as it has features, as in the code).
    - ``pooling``: whether messages are added up ("sum", code) or averaged ("mean", ours: sums over
      hundreds of groups drown everything else).
    - ``stay``: what the logit of the device of a group begins with (ours; trained).

    Learning:

    - ``scale``: "log" takes the logarithm of step times (code, behind a flag), "linear" the times
      themselves, relative to the best single device (the paper has seconds).
    - ``goal``: the return of a visit is what the step gained until the "end" of the episode, or
      until the "best" placement after it (both code). ``discount``: of gains at later visits
      (code: 1).
    - ``penalty``: of a relative excess over memory of 1, in best single devices (code: 2 s for each
      GB beyond 8 GB; ours).
    - ``history``: episodes whose mean, visit by visit, is the baseline (code: 10).
    - ``relative``: whether advantages are divided by their root mean square, so that ``entropy``
      means the same where all moves gain much or little (ours).
    - ``entropy``, ``last_entropy``: weight of the mean entropy of a visit in nats (code: from 1.0
      down), linear in the budget used.
    - ``rate``, ``last_rate``: of Adam (code: 1e-3 to 1e-4), also linear. ``clip``: the norm at
      which gradients are clipped (code: 1.25).
    - ``epochs``, ``ratio``, ``parts``: how often the episodes of an update are climbed, the bound
      of the ratio of new to old chances (as in rules.py), and into how many steps each epoch
      is divided (ours; with 1 epoch in 1 part this is REINFORCE, as in the paper).
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
        """The paper's and its code's."""
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


# GDP. No size and no number of its training is known. What is marked "recalled" is of section 3.


@dataclass(frozen=True, slots=True)
class GDPSettings:
    """By default sizes with which 5,000 evaluations of 500 nodes take some minutes on one core.

    - ``width``: numbers in the vector of a node, a multiple of ``heads``. ``hops``: of the graph
      encoder. ``layers``: of attention. ``heads``: of each of these.
    - ``attention``: without, each layer of the placer is its two dense ones alone, as the paper
      has it to show what attention adds.
    - ``segment``: nodes that attend to each other. ``memory``: how many before them they also read.
    - ``superposition``: every dense layer of the placer is gated by a vector of the graph (section
      3.3).
    - ``harmonics``: of a node's place in the graph, and of how dear the graph's transfers are, by
      which it is described (``inputs_of``; ours).
    - ``samples``: placements of a graph in a batch. ``controllers``: into how many parts these are
      divided, for as many processes. ``graphs``: from how many graphs a policy learns at once,
      where there are so many (``simdev train``).
    - ``epochs``: updates with one batch. ``clip``: how far a node's ratio may move from 1 where
      that gains. ``divergence``: weight of the KL divergence from the policy that sampled, a sum
      over nodes: the larger, the smaller the steps (ours; what noise there is in the advantages of
      some dozens of placements would else be taken for what makes them better).
    - ``entropy``: weight of the mean entropy of a node beside the surrogate at the beginning; falls
      to 0 by the end of the budget (ours).
    - ``baseline``: "earlier", the mean of all rewards of the graph so far (recalled), or "batch",
      that of the batch (ours).
    - ``rate``, ``norm``: Adam's rate, the norm at which gradients are clipped.
    - ``differing``: nodes in which a sample may differ from a warm start that was imitated.
    - ``decodes``: the likeliest placement is evaluated every so many batches (while a policy is
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
        """The paper's, as far as they are known: the rewards' baseline, nodes without their places,
        and proximal updates by clipping alone (recalled). Its sizes are not known; how dear
        transfers are is told, and a policy begins even, all the same (ours).
        """
        return cls(baseline="earlier", harmonics=0, divergence=0.0, samples=10)
