"""Measured times of operators, and the ladder of costs that answers from them."""

from .host import HOST_RUNGS, HostCost
from .ladder import CostModel
from .roofline import DeviceSpec, Efficiency, Scalars
from .rows import (
    KNOWN,
    MEMORY_PASS,
    MEMORY_PASS_ERROR,
    PHASE_CODES,
    RUNGS,
    CostMiss,
    OpCost,
    Profile,
    Row,
    op_key,
    profile_key,
)

__all__ = [
    "HOST_RUNGS",
    "KNOWN",
    "MEMORY_PASS",
    "MEMORY_PASS_ERROR",
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
