"""What a trace means: Report, the critical path and its blame, utilization, and the rows of a timeline."""

from __future__ import annotations

from .path import BLAMES, NOBODY, Segment, critical_path, path_tasks
from .report import Report, analyze
from .rows import Row, timeline_rows
from .spans import covered_ps, told_devices, transfer_mask
from .splits import SplitCost, split_costs
from .table import Table, shorten, table_text
from .usage import DeviceUse, LinkUse

__all__ = [
    "BLAMES",
    "NOBODY",
    "DeviceUse",
    "LinkUse",
    "Report",
    "Row",
    "Segment",
    "SplitCost",
    "Table",
    "analyze",
    "covered_ps",
    "critical_path",
    "path_tasks",
    "shorten",
    "split_costs",
    "table_text",
    "timeline_rows",
    "told_devices",
    "transfer_mask",
]
