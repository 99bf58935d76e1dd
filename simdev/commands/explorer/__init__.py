"""A scenario with sliders: what its step becomes as the machines, or the microbatches, change.

knobs (what can be turned) -> Explorer (the page of a setting) -> door (HTTP on the loopback)
                                                              -> widget (a notebook)
"""

from __future__ import annotations

from .explorer import Explorer, explorer_of
from .knobs import Knob, knobs_of, turned
from .widget import widget

__all__ = ["Explorer", "Knob", "explorer_of", "knobs_of", "turned", "widget"]
