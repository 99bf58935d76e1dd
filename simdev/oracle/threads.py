"""The host threads of a cluster as the columns that kernels read."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from ..ground.units import picoseconds
from ..lowering import Prepared
from ..nouns.taskgraph import Ints
from .heap import NOBODY


class Threads(NamedTuple):
    """Columns by device.

    ``thread`` is the number of the thread that dispatches to it (NOBODY: it has no host),
    ``captured`` in ps how long the one dispatch of its step takes in mode ``graph`` (NOBODY: every
    op has its own), ``ahead`` how many launches its host may be ahead.
    """

    number: int
    thread: Ints
    captured: Ints
    ahead: Ints


def threads_of(prepared: Prepared, program: bool = False) -> Threads | None:
    """The host threads of a cluster; None where no device has a host, unless ``program`` asks for
    the order that these would give.
    """
    cluster = prepared.cluster
    if not cluster.hosted and not program:
        return None
    hosts = [cluster.host_of(device) for device in range(len(cluster.devices))]
    numbers: dict[tuple[str, int], int] = {}
    rows = []
    for index, (device, host) in enumerate(zip(cluster.devices, hosts, strict=True)):
        if host is None:
            rows.append((NOBODY, NOBODY, 0))
            continue
        key = ("node", device.node) if host.threads == "node" else ("device", index)
        captured = picoseconds(Fraction(host.launch)) if host.mode == "graph" else NOBODY
        rows.append((numbers.setdefault(key, len(numbers)), captured, host.ahead))
    return Threads(len(numbers), *np.array(rows, np.int64).T.copy())


def most_of_dispatches(prepared: Prepared, threads: Threads) -> tuple[int, int]:
    """The most ps that all dispatches of a step take together, and how many may take none."""
    eager = (threads.thread != NOBODY) & (threads.captured == NOBODY)
    lengths = prepared.host_ps[:, eager]
    captured = threads.captured[threads.captured != NOBODY].tolist()
    most = sum(lengths.max(axis=1, initial=0).tolist()) + sum(captured)
    return most, int((lengths == 0).any(axis=1).sum()) + captured.count(0)
