"""The roles of the tasks of a large model's step: columns beside its task graph.

``simdev/lowering/hybrid`` fills them; analyses, pictures and plans of such a step read here which
tasks compute and which wait for others. A new role is a name of ``ROLES``, a queue or a rule in
``simdev/lowering/hybrid``, and perhaps a colour in ``simdev/report/figures/charts.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....ground.frozen import FrozenDict
from ...schedules import Schedule
from ...strategy.parallelism import Parallelism
from .transformer import Transformer

# What a task is for. The first COMPUTES compute; the others are blocked on or hidden behind them.
# "host" are copies to and from its memory, "dispatch" is what its thread does.
ROLES = (
    "forward", "backward", "weight gradient", "recompute", "update",
    "tensor", "expert", "data", "pipeline", "host", "dispatch",
)  # fmt: skip
(
    FORWARD, BACKWARD, WEIGHT, RECOMPUTE, UPDATE, TENSOR, EXPERT, DATA, PIPELINE, HOST, DISPATCH,
) = range(len(ROLES))  # fmt: skip
COMPUTES = 5
NO_LAYER = -1  # of a task that belongs to the embedding, the classifier or a whole stage


class Share(NamedTuple):
    """A kernel's share of the time of a task: seconds, the rung that told them and its expected
    error (None: not told); its op class, and the name of what was looked up.
    """

    seconds: float
    rung: str
    rel_err: float | None
    op_class: str
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class LargeStep:
    """The role of each task of a large model's step, and the first device of each pipeline rank.

    ``role`` indexes ROLES; ``microbatch`` is -1 where a task serves them all. Every rank of the
    pipeline runs on ``copies`` devices alike; where ``collapsed``, the task graph holds one of
    them, ``first[rank]``, else all, of which ``first[rank]`` is one. ``why`` tells why copies could
    not be, or were not, collapsed. ``counted`` are the tasks that all devices run together,
    ``peak_flops`` the FLOP/s of all their datasheets together, in the precision of the model's
    products. ``peak_dtype`` names that peak ("float8"; where datasheets differ, or have a wider
    dtype in its place, the names of these). ``host`` is the mode of the first rank's host ("none":
    it has none). ``rungs`` share out the computing time by the rung of the ladder that told it,
    ``rel_err`` is the expected error of a kernel (None: not known). ``borrowed`` is a remark on
    narrow products whose efficiency is known in other dtypes alone ("": there are none). ``device``
    names the kinds of the devices. ``cost`` is by task the number of its duration, of which
    ``shares`` are those of its kernels, ``tabled`` the share that tables of measured collectives
    tell.
    """

    model: Transformer
    parallelism: Parallelism
    schedule: Schedule
    stage_layers: tuple[int, ...]
    role: NDArray[np.int8]
    microbatch: NDArray[np.int32]
    first: tuple[int, ...]
    copies: int
    collapsed: bool
    why: str
    counted: int
    peak_flops: float
    peak_dtype: str
    host: str = "none"
    rungs: Mapping[str, float] = FrozenDict()
    rel_err: float | None = None
    borrowed: str = ""
    device: str = ""
    cost: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    shares: Mapping[int, tuple[Share, ...]] = FrozenDict()
    tabled: Mapping[int, float] = FrozenDict()

    @property
    def layers(self) -> tuple[range, ...]:
        """The layers of each stage."""
        borders = [*accumulate(self.stage_layers, initial=0)]
        return tuple(range(first, end) for first, end in pairwise(borders))
