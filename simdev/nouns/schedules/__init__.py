"""Pipeline schedules as tables: per rank a sequence of actions, named and written as PyTorch's
pipelining does.

``0F0`` is the forward of stage 0 on microbatch 0, ``1B0`` a whole backward, ``1I0`` the gradient of
its input alone and ``1W0`` that of its weights. A table says who does what in which order; when,
follows from the times of the stages.
"""

from __future__ import annotations

from .actions import BACKWARD, FORWARD, INPUT, WEIGHT, Action
from .dualpipe import check_dualpipe, dualpipe, dualpipe_v
from .generate import (
    BIDIRECTIONAL,
    CHUNKED,
    FOLDED,
    NAMES,
    PAIRED,
    SCHEDULES,
    SEARCHED,
    SPLIT,
    Order,
    full_name,
    gpipe,
    named_schedule,
    one_forward_one_backward,
    order_of,
    round_of,
    round_robin,
)
from .heuristic import searched_schedule, zero_bubble
from .table import Schedule, aligned, weight_versions
from .text import read_csv, schedule_csv
from .times import StageTimes, stage_times

__all__ = [
    "BACKWARD",
    "BIDIRECTIONAL",
    "CHUNKED",
    "FOLDED",
    "FORWARD",
    "INPUT",
    "NAMES",
    "PAIRED",
    "SCHEDULES",
    "SEARCHED",
    "SPLIT",
    "WEIGHT",
    "Action",
    "Order",
    "Schedule",
    "StageTimes",
    "aligned",
    "check_dualpipe",
    "dualpipe",
    "dualpipe_v",
    "full_name",
    "gpipe",
    "named_schedule",
    "one_forward_one_backward",
    "order_of",
    "read_csv",
    "round_of",
    "round_robin",
    "schedule_csv",
    "searched_schedule",
    "stage_times",
    "weight_versions",
    "zero_bubble",
]
