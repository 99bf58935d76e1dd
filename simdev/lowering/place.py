"""The rule that says where a tensor has to go: the one function that lowering and the compiled
oracle share.

Plain loops over indexed columns, on lists as on arrays, so that the oracle compiles this very
source.
"""

from __future__ import annotations

from ..taskgraph import Ints

Column = list[int] | Ints


def destinations(
    consumers: Column, begin: int, end: int, placement: Column, source: int, found: Column
) -> int:
    """Write the devices other than ``source`` that hold some of ``consumers[begin:end]`` to
    ``found``, ascending.

    Returns how many there are. ``found`` has room for every device.
    """
    count = 0
    for e in range(begin, end):
        device = placement[consumers[e]]
        if device == source:
            continue
        at = count
        while at > 0 and found[at - 1] > device:
            at -= 1
        if at > 0 and found[at - 1] == device:
            continue
        for k in range(count, at, -1):
            found[k] = found[k - 1]
        found[at] = device
        count += 1
    return count
