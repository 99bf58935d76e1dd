"""The one model of collectives: their messages, the times of these, and the queues that they hold.

Sizes are counted as in nccl-tests: the bytes of one rank's whole buffer (all_reduce, broadcast,
reduce, all_to_all, p2p), of the gathered result (all_gather) or of the buffer that is scattered
(reduce_scatter).

``model`` chooses an algorithm, ``phases`` has its messages, ``rounds`` adds up their times,
``table`` has the measured times.
"""

from __future__ import annotations

from .model import CollectiveCall, CollectiveCost, CollectiveModel, Form, collective_model
from .phases import (
    COLLECTIVES,
    Phase,
    bus_bandwidth,
    bus_factor,
    bytes_sent,
    lane_rings,
    levels,
    phases,
)
from .rounds import Closed, Wire, best_chunks, flows_wire, pieces_of, rounds_of
from .table import (
    COLLECTIVE_PRESETS,
    CollectiveTable,
    collective_names,
    require_collectives,
    shipped_tables,
    table_of_fields,
    table_of_rows,
)

__all__ = [
    "COLLECTIVES",
    "COLLECTIVE_PRESETS",
    "Closed",
    "CollectiveCall",
    "CollectiveCost",
    "CollectiveModel",
    "CollectiveTable",
    "Form",
    "Phase",
    "Wire",
    "best_chunks",
    "bus_bandwidth",
    "bus_factor",
    "bytes_sent",
    "collective_model",
    "collective_names",
    "flows_wire",
    "lane_rings",
    "levels",
    "phases",
    "pieces_of",
    "require_collectives",
    "rounds_of",
    "shipped_tables",
    "table_of_fields",
    "table_of_rows",
]
