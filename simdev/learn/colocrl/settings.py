"""The settings of ColocRL, and where each is from.

The paper's own text could not be read beyond its beginning: what is marked "recalled" is from
memory of its section 3 and 4, and not verified. What is marked "ours" the paper does not say, or
would take hours.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..networks.sizes import PlacerSettings, Training, part_of


@dataclass(frozen=True, slots=True)
class Settings(PlacerSettings):
    """By default sizes with which 5,000 evaluations of 500 groups take some minutes on one core.

    - ``hidden``: numbers in the state of each LSTM (section 4; recalled: 512).
    - ``embedding``: numbers that stand for a kind of op and for a device (section 3.2 says that
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
    decay: float = field(default=0.9, metadata={"least": 0, "most": 1})
    entropy: float = field(default=4.0, metadata={"least": 0})
    failing_updates: int = field(default=100, metadata={"least": 0})

    @classmethod
    def published(cls) -> Settings:
        """The paper's, as far as they are known."""
        return cls(
            hidden=512,
            attention="additive",
            aligned=0.0,
            forget=0.0,
            entropy=0.0,
            failing_updates=5000,
        )

    @property
    def training(self) -> Training:
        """How it is trained."""
        return part_of(self, Training)
