"""How the step is spread over the devices: a placement, how ops are split, and the order in which queues are served."""

from .configuration import LEAVES, Configuration, Resolved, resolve_partition
from .named import WILDCARDS, Named, named
from .origin import ROLES, Origin
from .placement import NOWHERE, placed, resolve_placement
from .strategy import POLICIES, SHORT_FORMS, SYNCS, Order, Strategy

__all__ = [
    "LEAVES",
    "NOWHERE",
    "POLICIES",
    "ROLES",
    "SHORT_FORMS",
    "SYNCS",
    "WILDCARDS",
    "Configuration",
    "Named",
    "Order",
    "Origin",
    "Resolved",
    "Strategy",
    "named",
    "placed",
    "resolve_partition",
    "resolve_placement",
]
