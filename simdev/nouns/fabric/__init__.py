"""How bytes go on a cluster: routes between devices, and what transfers hold or share on them."""

from .queues import (
    LINK_QUEUES,
    MODES,
    QUEUED,
    SHARED,
    Bank,
    Fabric,
    QueueMode,
    Segment,
    fabric_of,
    merged,
    transfer_ps,
)
from .routes import Route, Routes

__all__ = [
    "LINK_QUEUES",
    "MODES",
    "QUEUED",
    "SHARED",
    "Bank",
    "Fabric",
    "QueueMode",
    "Route",
    "Routes",
    "Segment",
    "fabric_of",
    "merged",
    "transfer_ps",
]
