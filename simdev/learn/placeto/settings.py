"""The settings of Placeto, and where each is from.

"Code" is the released code (github.com/aravic/generalizable-device-placement, d9a81a9), "summary" a
summary of the paper, whose own text could not be read beyond its beginning. What is marked "ours"
neither says, or would take hours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Settings:
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
    - ``stay``: what the logit of the device where a group stands begins with (ours; trained).

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
      of the ratio of new to old chances (as in learning/ppo.py), and into how many steps each epoch
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
    hidden: int = field(default=16, metadata={"least": 0})
    pooling: Literal["mean", "sum"] = "mean"
    stay: float = field(default=3.0, metadata={"least": 0})
    scale: Literal["log", "linear"] = "log"
    goal: Literal["end", "best"] = "end"
    discount: float = field(default=0.9, metadata={"least": 0})
    penalty: float = 2.0
    history: int = 10
    relative: bool = True
    entropy: float = field(default=0.2, metadata={"least": 0})
    last_entropy: float = field(default=0.05, metadata={"least": 0})
    rate: float = 0.003
    last_rate: float = 0.0003
    clip: float = 1.25
    epochs: int = 4
    ratio: float = 0.2
    parts: int = 4
    differing: float = 3.0

    @classmethod
    def published(cls) -> Settings:
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
