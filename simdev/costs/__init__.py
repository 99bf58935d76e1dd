"""Measured times of operators, and the ladder of costs that answers from them."""

from .host import HOST_RUNGS, HostCost
from .ladder import CostModel
from .roofline import DeviceSpec, Efficiency, Scalars
from .rows import KNOWN, PHASE_CODES, RUNGS, CostMiss, OpCost, Profile, Row, op_key, profile_key

__all__ = [
    "HOST_RUNGS",
    "KNOWN",
    "PHASE_CODES",
    "RUNGS",
    "CostMiss",
    "CostModel",
    "DeviceSpec",
    "Efficiency",
    "HostCost",
    "OpCost",
    "Profile",
    "Row",
    "Scalars",
    "op_key",
    "profile_key",
]
