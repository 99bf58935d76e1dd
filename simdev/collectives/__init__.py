"""How long collectives take: by closed form over the links, or by a table of what was measured.

Sizes are those of nccl-tests: the bytes of one rank's whole buffer (all_reduce, broadcast, reduce, all_to_all, p2p),
of the gathered result (all_gather) or of what is scattered (reduce_scatter).
"""

from __future__ import annotations

from .closed import COLLECTIVES, best_chunks, bus_bandwidth, bus_factor, direct, hierarchical, ring, tree
from .model import CollectiveCost, CollectiveModel
from .table import CollectiveTable, table_of_bus_bandwidth, table_of_rows
from .wire import Wire, direct_wire, flows_wire, ring_wire

__all__ = [
    "COLLECTIVES",
    "CollectiveCost",
    "CollectiveModel",
    "CollectiveTable",
    "Wire",
    "best_chunks",
    "bus_bandwidth",
    "bus_factor",
    "direct",
    "direct_wire",
    "flows_wire",
    "hierarchical",
    "ring",
    "ring_wire",
    "table_of_bus_bandwidth",
    "table_of_rows",
    "tree",
]
