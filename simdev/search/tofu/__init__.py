"""Tofu (Wang, Huang, Li, "Supporting Very Large Models using Automatic Dataflow Graph
Partitioning", EuroSys 2019).
"""

from __future__ import annotations

from .baselines import BASELINES, communication
from .coarse import Coarse
from .method import tofu
from .plan import Plan, recursive
from .strategy import strategy_of

__all__ = ["BASELINES", "Coarse", "Plan", "communication", "recursive", "strategy_of", "tofu"]
