"""Reports: one step, two steps side by side, or the results of a sweep, as data and as a page of
their own.

read_subject / read_results -> run_data, compare_data, results_data (plain data) -> page (HTML)
"""

from __future__ import annotations

from .compare import compare_data, compare_sheets, verdict
from .html import page
from .pictures import timeline
from .results import results_data
from .run import run_data
from .sheet import Sheet, sheet_table
from .source import Subject, is_results, read_results, read_subject
from .whatif import WhatIf, what_ifs

__all__ = [
    "Sheet",
    "Subject",
    "WhatIf",
    "compare_data",
    "compare_sheets",
    "is_results",
    "page",
    "read_results",
    "read_subject",
    "results_data",
    "run_data",
    "sheet_table",
    "timeline",
    "verdict",
    "what_ifs",
]
