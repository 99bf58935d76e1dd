"""Pages of reports: one step, two steps side by side, or the results of a sweep, as one HTML file.

read_subject / read_results -> run_data, compare_data, results_data (plain data) -> page (HTML)
"""

from __future__ import annotations

from ..results import is_results, read_results, results_data
from ..whatif import WhatIf, what_ifs
from .compare import compare_data, compare_tables, reasons, verdict
from .html import page
from .step import Subject, read_subject, run_data

__all__ = [
    "Subject",
    "WhatIf",
    "compare_data",
    "compare_tables",
    "is_results",
    "page",
    "read_results",
    "read_subject",
    "reasons",
    "results_data",
    "run_data",
    "verdict",
    "what_ifs",
]
