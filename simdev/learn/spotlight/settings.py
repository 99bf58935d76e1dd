"""The settings of Spotlight, and where each is from.

No public text tells the paper's network or its numbers: all values are ours. What is known is the
process (a stage for each group, its state the placements of the groups before, one reward after the
last) and the rule (PPO by stage).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..networks.sizes import PlacerSettings, Training, part_of


@dataclass(frozen=True, slots=True)
class Settings(PlacerSettings):
    """By default sizes with which 5,000 evaluations of 500 groups take some minutes on one core.

    Of the network, which is like ColocRL's (recalled):

    - ``hidden``: numbers in the state of each LSTM. ``embedding``: numbers that stand for a kind of
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
    divergence: float = field(default=0.0, metadata={"least": 0})
    entropy: float = field(default=4.0, metadata={"least": 0})
    decay: float = field(default=0.0, metadata={"least": 0, "most": 1})
    normalised: bool = True
    rate: float = 0.005
    norm: float = 1.0

    @classmethod
    def published(cls) -> Settings:
        """What is known of the paper's: a network like ColocRL's (recalled, not verified), with its
        sizes. The rest stays ours.
        """
        return cls(hidden=512, attention="additive", aligned=0.0)

    @property
    def training(self) -> Training:
        """How it is trained. What does not fit counts as slower by its relative excess (ours): the
        policy learns from every sample, and from how far it is from fitting.
        """
        return part_of(self, Training, clip=self.norm, overflow_fails=False)
