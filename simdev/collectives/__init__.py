"""How long collectives take: by closed form over the links, or by a table of what was measured.

Sizes are those of nccl-tests: the bytes of one rank's whole buffer (all_reduce, broadcast, reduce, all_to_all, p2p),
of the gathered result (all_gather) or of what is scattered (reduce_scatter).
"""

from __future__ import annotations

from .closed import COLLECTIVES, best_chunks, bus_bandwidth, bus_factor, direct, hierarchical, ring, tree
from .legs import pieces_of
from .model import CollectiveCost, CollectiveModel
from .phases import ALGORITHMS, Phase, bytes_sent, phases
from .table import CollectiveTable, table_of_bus_bandwidth, table_of_rows
from .wire import Step, Steps, Wire, direct_wire, flows_wire, ring_wire, steps_of

__all__ = [
    "ALGORITHMS",
    "COLLECTIVES",
    "CollectiveCost",
    "CollectiveModel",
    "CollectiveTable",
    "Phase",
    "Step",
    "Steps",
    "Wire",
    "best_chunks",
    "bus_bandwidth",
    "bus_factor",
    "bytes_sent",
    "direct",
    "direct_wire",
    "flows_wire",
    "hierarchical",
    "phases",
    "pieces_of",
    "ring",
    "ring_wire",
    "steps_of",
    "table_of_bus_bandwidth",
    "table_of_rows",
    "tree",
]
