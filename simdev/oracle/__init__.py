"""The cost oracle: a question prepared once, asked for many strategies; the same path as ``run``,
made short.

Where queues are fifo and not shared, a placement goes straight through compiled kernels
(placements/); any other strategy is lowered and simulated. Both give the same integers.
"""

from __future__ import annotations

from .columns import Placement
from .cost import Cost, Starts, cost_of
from .of_scenario import oracle_of
from .oracle import Oracle

__all__ = ["Cost", "Oracle", "Placement", "Starts", "cost_of", "oracle_of"]
