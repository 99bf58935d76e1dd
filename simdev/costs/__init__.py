"""The times of operators: measured rows, and the ladder of costs that answers from them.

Lowering and the oracle ask ``CostModel`` for the time of an op (``ladder``) and of its dispatch
(``dispatch``); ``collectives`` has the times of collectives. A new rung begins in ``ladder``.
"""

from ..nouns.semantics.keys import PHASE_CODES, op_key, profile_key
from .dispatch import HOST_RUNGS, HostCost
from .ladder import CostModel
from .roofline import DeviceSpec, Efficiency, Scalars
from .rows import (
    KNOWN,
    MEMORY_PASS,
    MEMORY_PASS_ERROR,
    ROOFLINE,
    RUNGS,
    CostMiss,
    OpCost,
    Profile,
    Row,
)

__all__ = [
    "HOST_RUNGS",
    "KNOWN",
    "MEMORY_PASS",
    "MEMORY_PASS_ERROR",
    "PHASE_CODES",
    "ROOFLINE",
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
