"""Measured times of operators, and the ladder of costs that answers from them."""

from .ladder import CostModel
from .roofline import DeviceSpec, Efficiency, Scalars
from .rows import KNOWN, PHASE_CODES, RUNGS, CostMiss, OpCost, Profile, Row, op_key, profile_key

__all__ = [
    "KNOWN",
    "PHASE_CODES",
    "RUNGS",
    "CostMiss",
    "CostModel",
    "DeviceSpec",
    "Efficiency",
    "OpCost",
    "Profile",
    "Row",
    "Scalars",
    "op_key",
    "profile_key",
]
