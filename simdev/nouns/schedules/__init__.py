"""Pipeline schedules as tables: per rank a sequence of actions, named and written as PyTorch's
pipelining does. ``table`` has the table and its checks, ``generate`` the published schedules,
``times`` the schedules that depend on the times of stages; this module reads and writes tables as
CSV.

``0F0`` is the forward of stage 0 on microbatch 0, ``1B0`` a whole backward, ``1I0`` only the
gradient of its input, and ``1W0`` the gradient of its weights. A table gives the order of each
rank; times follow from the times of the stages.

``simdev/lowering/pipeline.py`` picks the schedule of a strategy, and the passes of lowering turn
its actions into tasks. The schedules that ``simdev plan`` tries are listed in
``simdev/search/plan/space.py`` (large models) and ``simdev/search/plan/graphs.py``.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator

from ...ground.errors import InputError, refuse
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
    check_dualpipe,
    dualpipe,
    dualpipe_v,
    full_name,
    named_schedule,
    order_of,
    round_of,
    round_robin,
)
from .table import (
    BACKWARD,
    FORWARD,
    INPUT,
    MAX_ACTIONS,
    NEEDS,
    READERS,
    WEIGHT,
    Action,
    Part,
    Row,
    Schedule,
    aligned,
    check_sizes,
    readers,
    weight_versions,
)
from .times import StageTimes, searched_schedule, stage_times, zero_bubble

# Schedules as text: a line of comma-separated actions for each rank, as PyTorch's pipelining reads
# and writes it.

_ACTION = re.compile(r"([0-9]{1,7})([FBIW])([0-9]{1,7})")
# Communication in PyTorch's lowered tables, which become empty slots: communication follows from
# the table.
_COMMUNICATION = re.compile(
    r"[0-9]+(?:UNSHARD|RESHARD|REDUCE_GRAD|SEND_F|RECV_F|SEND_B|RECV_B)[0-9]*"
)
_OVERLAP = re.compile(r"\(([^()]*)\)OVERLAP_F_B")


def read_csv(text: str, name: str = "custom") -> Schedule:
    """A schedule from a table with a line for each rank; empty cells are empty slots.

    Reads the dumps of ``torch.distributed.pipelining``, in both of its formats. Actions that
    communicate become empty slots. An OVERLAP_F_B becomes two actions, the first of which is in
    ``Schedule.overlaps``. Raises InputError with every problem.
    """
    problems: list[str] = []
    overlaps = set[Action]()
    rows: list[Row] = []
    try:
        lines = list(csv.reader(io.StringIO(text)))
    except csv.Error as error:
        raise InputError(f"not CSV: {error}") from None
    while lines and not any(cell.strip() for cell in lines[-1]):
        lines.pop()  # a file may end in empty lines
    if sum(map(len, lines)) > MAX_ACTIONS:
        raise InputError(f"more than {MAX_ACTIONS:,} slots")
    for rank, line in enumerate(lines):
        row: list[Action | None] = []
        for cell in line:
            try:
                actions = list(_cell(cell))
            except ValueError as error:
                problems.append(f"rank {rank}, slot {len(row)}: {error}")
                continue
            row += actions
            if len(actions) > 1:
                overlaps.update(filter(None, actions[:1]))
        rows.append(tuple(row))
    refuse(problems)
    return Schedule(tuple(rows), name, overlaps=frozenset(overlaps))


def schedule_csv(schedule: Schedule) -> str:
    """The table as PyTorch dumps it: a line for each rank, an empty cell for an empty slot."""
    file = io.StringIO()
    csv.writer(file).writerows([list(_cells(row, schedule.overlaps)) for row in schedule.rows])
    return file.getvalue()


def _cells(row: Row, overlaps: frozenset[Action]) -> Iterator[str]:
    """The cells of a row: two actions that overlap are in the slot of the second."""
    first: Action | None = None
    for action in row:
        if action is None or action in overlaps:
            first = action or first
            yield ""
        elif first is not None:
            yield f"({first};{action})OVERLAP_F_B"
            first = None
        else:
            yield str(action)


def _cell(cell: str) -> Iterator[Action | None]:
    """The content of a cell: an action, an empty slot, or two actions that overlap."""
    text = cell.strip()
    if not text or _COMMUNICATION.fullmatch(text):
        yield None
    elif overlap := _OVERLAP.fullmatch(text):
        for part in overlap[1].split(";"):
            yield from _cell(part)
    elif action := _ACTION.fullmatch(text):
        yield Action(int(action[1]), action[2], int(action[3]))
    else:
        raise ValueError(
            f'"{text[:40]}" is no action; write stage, F, B, I or W, and microbatch, like 2F0'
        )


__all__ = [
    "BACKWARD",
    "BIDIRECTIONAL",
    "CHUNKED",
    "FOLDED",
    "FORWARD",
    "INPUT",
    "NAMES",
    "NEEDS",
    "PAIRED",
    "READERS",
    "SCHEDULES",
    "SEARCHED",
    "SPLIT",
    "WEIGHT",
    "Action",
    "Order",
    "Part",
    "Schedule",
    "StageTimes",
    "aligned",
    "check_dualpipe",
    "check_sizes",
    "dualpipe",
    "dualpipe_v",
    "full_name",
    "named_schedule",
    "order_of",
    "read_csv",
    "readers",
    "round_of",
    "round_robin",
    "schedule_csv",
    "searched_schedule",
    "stage_times",
    "weight_versions",
    "zero_bubble",
]
