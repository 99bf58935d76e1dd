"""A scenario with sliders: its step under other machines or other numbers of microbatches.

knobs (the sliders) -> Explorer (the page of a setting) -> door (HTTP on the loopback, a notebook)
"""

from __future__ import annotations

from .door import widget
from .explorer import Explorer, explorer_of
from .knobs import Knob, knobs_of, turned

__all__ = ["Explorer", "Knob", "explorer_of", "knobs_of", "turned", "widget"]
