"""The settings of Post."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

ANY = {"least": 0}
SHARE = {"least": 0, "most": 1}


@dataclass(frozen=True, slots=True)
class Settings:
    """What Post is run with. That there are about 10 steps of ascent, and that N is several or tens
    of times K, is the paper's; the rest is recalled of it, or ours where it says so.

    - ``batch``: K, the samples of one proximal update. ``samples``: N, those of one cross-entropy
      step, a multiple of K (100: ours).
    - ``elite``: the share of the N samples that the distribution follows. 0 leaves out the
      cross-entropy steps; then the N-th sample, too, ends in a proximal update.
    - ``explore``: the share of the uniform distribution that is mixed in after a cross-entropy
      step, at first; it falls to 0 over the budget (in proportion: ours).
    - ``moves``: how many groups of a sample are expected elsewhere at first, where it begins at a
      placement, and what the uniform share may then move of a sample at most (ours).
    - ``steps``: of ascent in one proximal update; 0 leaves them out. ``rate``: how long such a step
      is (ours).
    - ``clip``: how far from 1 a ratio counts (the usual value, ours). ``kl``: the weight of
      KL(old || new), in place of ``clip`` or beside it (the paper's penalty, recalled; 0: ours).
    """

    batch: int = 10
    samples: int = 100
    elite: float = field(default=0.1, metadata=SHARE)
    explore: float = field(default=0.1, metadata=SHARE)
    moves: float = 3.0
    steps: int = field(default=10, metadata=ANY)
    rate: float = 0.3
    clip: float = 0.2
    kl: float = field(default=0.0, metadata=ANY)

    @classmethod
    def published(cls) -> Self:
        """What is recalled of the paper."""
        return cls(samples=50)
