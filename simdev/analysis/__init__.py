"""What a trace means: Report, the critical path and its blame, utilization, and the rows of a
timeline.
"""

from __future__ import annotations

from .outcome import Outcome
from .path import BLAMES, NOBODY, Segment, critical_path, path_tasks
from .report import Report, analyze
from .rows import Row, timeline_rows
from .spans import Window, covered_ps, told_devices, transfer_mask
from .splits import SplitCost, split_costs
from .steady import COUNTS, Steady, steady_state, step_time_ps
from .table import Table, shorten, table_text
from .training import Training
from .usage import Carrier, DeviceUse, LinkUse, carriers

__all__ = [
    "BLAMES",
    "COUNTS",
    "NOBODY",
    "Carrier",
    "DeviceUse",
    "LinkUse",
    "Outcome",
    "Report",
    "Row",
    "Segment",
    "SplitCost",
    "Steady",
    "Table",
    "Training",
    "Window",
    "analyze",
    "carriers",
    "covered_ps",
    "critical_path",
    "path_tasks",
    "shorten",
    "split_costs",
    "steady_state",
    "step_time_ps",
    "table_text",
    "timeline_rows",
    "told_devices",
    "transfer_mask",
]
