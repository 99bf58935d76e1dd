"""How the step is spread over the devices: a placement, how ops are split, and the order in which
queues are served.
"""

from .collectives import ALGORITHMS, COSTS, Collectives, choice_problems, settled_cost
from .configuration import ROLES, Configuration, Origin, Resolved, Resolver, resolve_partition
from .loader import Loader
from .parallelism import DEGREES, Parallelism, degrees_over_one
from .placement import NOWHERE, WILDCARDS, Named, named, placed, resolve_placement
from .strategy import (
    POLICIES,
    POLICY_NAMES,
    SHORT_FORMS,
    SHORT_MEANINGS,
    SYNCS,
    Order,
    Strategy,
    default_sync,
    no_sync,
    sync_of,
)
from .sync import POLICY_MEANINGS, PRESETS, Sync, sync_policy

__all__ = [
    "ALGORITHMS",
    "COSTS",
    "DEGREES",
    "NOWHERE",
    "POLICIES",
    "POLICY_MEANINGS",
    "POLICY_NAMES",
    "PRESETS",
    "ROLES",
    "SHORT_FORMS",
    "SHORT_MEANINGS",
    "SYNCS",
    "WILDCARDS",
    "Collectives",
    "Configuration",
    "Loader",
    "Named",
    "Order",
    "Origin",
    "Parallelism",
    "Resolved",
    "Resolver",
    "Strategy",
    "Sync",
    "choice_problems",
    "default_sync",
    "degrees_over_one",
    "named",
    "no_sync",
    "placed",
    "resolve_partition",
    "resolve_placement",
    "settled_cost",
    "sync_of",
    "sync_policy",
]
