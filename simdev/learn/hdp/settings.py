"""The settings of HDP, and where each is from.

"Paper" is the setup paragraph of the ICLR 2018 paper, "code" the released controller (TensorFlow,
python/grappler/hierarchical_controller.py). What is marked "ours" neither says, or would take
hours. Not copied from the code:

- Shapes are added onto the columns of types: here they have columns of their own.
- After step 500 old placements are replayed, not sampled: here all are sampled.
- The update samples anew, and the placer then reads zeros: its gradient is not that of the
  placement that was measured. Here it is.
- Of the ops that an op reads, all but the last are forgotten: here all are neighbours.
- The decoder reads what attention compares, the encoder's states through its matrix: here it reads
  the states (as Bahdanau, Cho and Bengio, ICLR 2015, have it).
- The paper says nothing of noise on logits until step 750 and of a rate that falls from step 400.

The sign is easily misread: the code multiplies signal - baseline by the negative log-probability,
and minimises minus that, which is right.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ..networks.sizes import Network, PlacerSettings, Training, part_of


@dataclass(frozen=True, slots=True)
class Settings(PlacerSettings):
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
      numbers that stand for a device (code: 512; ours).
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
    homing: float = field(default=8.0, metadata={"least": 0})
    rows: Literal["scaled", "raw"] = "scaled"
    placements: int = 1
    rate: float = 0.005
    clip: float = 1.0
    decay: float = field(default=0.9, metadata={"least": 0})
    baseline: Literal["mean", "failing"] = "mean"
    failing_updates: int = field(default=100, metadata={"least": 0})
    entropy: float = field(default=4.0, metadata={"least": 0})

    @classmethod
    def published(cls) -> Settings:
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

    @property
    def network(self) -> Network:
        """The sizes of the placer."""
        return part_of(self, Network, biases=False, both_ways=True)

    @property
    def training(self) -> Training:
        """How both networks are trained."""
        return part_of(self, Training)
