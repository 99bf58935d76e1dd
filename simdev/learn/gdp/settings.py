"""The settings of GDP, and where each is from.

The paper could not be read beyond its beginning: no size and no number of its training is known.
What is marked "recalled" is from memory of its section 3, and not verified; every other value is
ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ..networks.sizes import Training, part_of

ANY = {"least": 0}


@dataclass(frozen=True, slots=True)
class Settings:
    """By default sizes with which 5,000 evaluations of 500 nodes take some minutes on one core.

    - ``width``: numbers in the vector of a node, a multiple of ``heads``. ``hops``: of the graph
      encoder. ``layers``: of attention. ``heads``: of each of these.
    - ``attention``: without, each layer of the placer is its two dense ones alone, as the paper
      has it to show what attention adds.
    - ``segment``: nodes that attend to each other. ``memory``: how many before them they also read.
    - ``superposition``: every dense layer of the placer is gated by a vector of the graph (section
      3.3).
    - ``harmonics``: of a node's place in the graph, and of how dear the graph's transfers are, by
      which it is described (inputs.py; ours).
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
    harmonics: int = field(default=6, metadata=ANY)
    samples: int = 50
    controllers: int = 1
    graphs: int = 4
    epochs: int = 4
    clip: float = 0.2
    divergence: float = field(default=0.5, metadata=ANY)
    entropy: float = field(default=2.0, metadata=ANY)
    baseline: Literal["earlier", "batch"] = "batch"
    rate: float = 0.001
    norm: float = 1.0
    differing: float = 10.0
    decodes: int = 1

    @classmethod
    def published(cls) -> Settings:
        """What is known of the paper's: the rewards' baseline, nodes without their places,
        and proximal updates by clipping alone (recalled). Its sizes are not known; how dear
        transfers are is told, and a policy begins even, all the same (ours).
        """
        return cls(baseline="earlier", harmonics=0, divergence=0.0, samples=10)

    @property
    def training(self) -> Training:
        """How it is trained. What cannot be or does not fit fails (recalled: a reward of -10)."""
        return part_of(self, Training, clip=self.norm)
