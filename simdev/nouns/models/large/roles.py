"""The roles of the tasks of a large model's step: columns beside its task graph.

``simdev/lowering/hybrid`` fills them; analyses, pictures and plans of such a step find here which
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

# The roles of tasks. Tasks of the first COMPUTES roles compute; others block them or are hidden
# behind them. "host" tasks copy to and from host memory, "dispatch" tasks occupy its thread.
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
    """A kernel's share of the time of a task: its seconds, the rung that answered and its expected
    error (None: unknown), its op class, and the name that was looked up.
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
    pipeline runs equally on ``copies`` devices. Where ``collapsed``, the task graph holds only the
    device ``first[rank]``, else all of them, ``first[rank]`` included. ``why`` is the reason why
    copies are not collapsed. ``counted`` is the number of tasks on all devices together,
    ``peak_flops`` the sum of their datasheets' FLOP/s in the precision of the model's products.
    ``peak_dtype`` names that peak ("float8"; where datasheets differ, or have a wider dtype in its
    place, all their names). ``host`` is the mode of the first rank's host ("none": no host).
    ``rungs`` is the computing time by the rung of the ladder that it comes from, ``rel_err`` the
    expected error of a kernel (None: unknown). ``borrowed`` is a remark on narrow products whose
    efficiency is known only in other dtypes ("": none). ``device`` names the kinds of the devices.
    ``cost`` is the number of each task's duration; by this number, ``shares`` are the shares of its
    kernels and ``tabled`` the share of its time from measured tables of collectives.
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
