"""Measured times of operators, and the ladder of costs that answers from them."""

from .groups import Group
from .ladder import CostModel
from .roofline import Scalars
from .rows import KNOWN, PHASE_CODES, RUNGS, CostMiss, OpCost, Profile, Row, op_key, profile_key
from .spec import DeviceSpec, Efficiency

__all__ = [
    "KNOWN",
    "PHASE_CODES",
    "RUNGS",
    "CostMiss",
    "CostModel",
    "DeviceSpec",
    "Efficiency",
    "Group",
    "OpCost",
    "Profile",
    "Row",
    "Scalars",
    "op_key",
    "profile_key",
]
