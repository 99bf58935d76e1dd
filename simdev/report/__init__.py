"""Reports: the meaning of a step's trace in numbers, text, figures, pages and exports.

``run`` answers a scenario with a Report, ``analyze`` makes one of an Outcome. ``figures`` draws it,
``page`` writes it as HTML, ``export`` hands the trace to other tools.
"""

from __future__ import annotations

from .measures.path import BLAMES, Segment
from .measures.section import Places, Section
from .report import Report, analyze, drawn, run
from .table import Table, shorten, table_text

__all__ = [
    "BLAMES", "Places", "Report", "Section", "Segment", "Table", "analyze", "drawn", "run",
    "shorten", "table_text",
]  # fmt: skip
