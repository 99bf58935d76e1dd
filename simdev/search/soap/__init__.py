"""How ops are split: OptCNN's tables, FlexFlow's walks and branch and bound, over the layers of a
step.
"""

from __future__ import annotations

from .exhaustive import exhaustive
from .flexflow import Space, flexflow, space_of
from .layers import Layer, Layers
from .optcnn import optcnn
from .strategies import entries, strategy_of
from .tables import Tables, tables_of

__all__ = [
    "Layer",
    "Layers",
    "Space",
    "Tables",
    "entries",
    "exhaustive",
    "flexflow",
    "optcnn",
    "space_of",
    "strategy_of",
    "tables_of",
]
