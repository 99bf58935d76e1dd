"""Rules: what transfers and devices of a cluster take, whatever is split, as columns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...fabric import Segment
from ...jit import opener
from ...lowering import Prepared
from ...taskgraph import Ints, Rows
from .plan import NotCoveredError

MOST_PS = 1 << 42
"""No single task takes longer (4.4 s); so a million tasks stay within 53 days."""


class Rules(NamedTuple):
    """Columns by (source, destination), by class of bandwidth, and by device.

    A byte takes ``whole`` ps and ``rest`` of ``parts`` more; ``route_class`` is -1 where no route
    is.
    """

    devices: int
    queues: int
    route_class: Ints
    route_held: Ints
    route_lag: Ints
    route_gap: Ints
    queue_ptr: Ints
    queue: Ints
    whole: Ints
    rest: Ints
    parts: Ints
    device_gap: Ints
    most_bytes: int
    unit: int  # bytes of which every buffer is a multiple


open_rules = opener(Rules)


def rules_of(prepared: Prepared, round_bits: int) -> Rules:
    """The rules of a cluster; gaps and lags as instants. Raises NotCoveredError."""
    cluster, count = prepared.cluster, len(prepared.cluster.devices)
    segments: list[Segment | None] = [None] * (count * count)
    places = [d for d, device in enumerate(cluster.devices) if device.runs_ops]
    for source in places:
        for destination in places:
            pieces = (
                None if source == destination else prepared.fabric.segments(source, destination)
            )
            segments[source * count + destination] = None if pieces is None else pieces[0]
    found = [segment for segment in segments if segment is not None]
    rates = sorted({segment.route.bandwidth for segment in found})
    each = [10**12 / rate for rate in rates]
    whole = [int(ps) for ps in each]
    parts = [(ps - int(ps)).denominator for ps in each]
    held = Rows.of([() if segment is None else segment.resources for segment in segments])
    times = [ps for segment in found for ps in (segment.held_ps, segment.lag_ps, segment.gap_ps)]
    if (
        max(times + prepared.gap_ps.tolist(), default=0) >= MOST_PS
        or max(parts, default=1) >= MOST_PS
    ):
        raise NotCoveredError
    most = (
        min((MOST_PS // (ps + 1) for ps in whole), default=0),
        min((2**61 // part for part in parts), default=0),
    )
    return Rules(
        count,
        count + len(prepared.fabric.queues),
        np.array(
            [-1 if one is None else rates.index(one.route.bandwidth) for one in segments], np.int64
        ),
        np.array([0 if one is None else one.held_ps for one in segments], np.int64),
        np.array([0 if one is None else one.lag_ps << round_bits for one in segments], np.int64),
        np.array([0 if one is None else one.gap_ps << round_bits for one in segments], np.int64),
        held.ptr,
        held.ids,
        np.array(whole, np.int64),
        np.array(
            [int((ps - int(ps)) * part) for ps, part in zip(each, parts, strict=True)], np.int64
        ),
        np.array(parts, np.int64),
        prepared.gap_ps << round_bits,
        min(most),
        prepared.memory.unit,
    )
