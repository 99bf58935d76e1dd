"""Pages of reports: one step, two side by side, a sweep, plans or a search, as one HTML file.

read_subject, read_results -> run_data, compare_data, results_data, answers_data (plain data)
                           -> page (HTML)
"""

from __future__ import annotations

from ..results import is_results, read_results, results_data
from ..whatif import WhatIf, what_ifs
from .answers import answers_data
from .compare import compare_data, compare_tables, reasons, verdict
from .html import page
from .step import Subject, read_subject, run_data

__all__ = [
    "Subject",
    "WhatIf",
    "answers_data",
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
