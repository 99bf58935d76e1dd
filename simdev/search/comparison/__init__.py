"""Comparisons: every method on the same questions, with several seeds.

    runs (method x seed x question; kept in a journal) -> Comparison -> table, curves, picture

``run_comparison`` makes the value, ``compare`` is its table.
"""

from __future__ import annotations

from .comparison import Comparison
from .runner import compare, run_comparison

__all__ = ["Comparison", "compare", "run_comparison"]
