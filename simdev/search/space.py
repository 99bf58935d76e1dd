"""What there is to choose: the devices at which each group may stand, and how far a cost is from fitting."""

from __future__ import annotations

import numpy as np

from ..errors import InputError
from ..oracle import Cost, Oracle
from ..taskgraph import Ints


def choices(oracle: Oracle) -> tuple[Ints, ...]:
    """For each of ``oracle.groups`` the indices of the devices on which all its ops have a cost, ascending.

    Raises InputError naming every group that can stand nowhere.
    """
    known = oracle.prepared.duration >= 0
    found = tuple(np.flatnonzero(known[list(members)].all(axis=0)) for members in oracle.groups)
    ops = oracle.graph.ops
    nowhere = [
        f'ops[{members[0]}]: no device on which "{ops[members[0]].name}" and its group have a cost'
        for members, devices in zip(oracle.groups, found, strict=True)
        if not len(devices)
    ]
    if nowhere:
        raise InputError(nowhere)
    return found


def relative_excess(oracle: Oracle, cost: Cost) -> float:
    """The largest excess of a device over its capacity, relative to the capacity; 0 where all fit."""
    limits = [None if device.memory is None else int(device.memory) for device in oracle.cluster.devices]
    pairs = [(peak, limit) for peak, limit in zip(cost.peaks, limits, strict=True) if limit is not None]
    return max((max(peak - limit, 0) / max(limit, 1) for peak, limit in pairs), default=0.0)
