"""The routes of a cluster as the columns that kernels read."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from ..lowering import Prepared
from ..nouns.fabric import Segment
from ..nouns.taskgraph import Ints, Rows

Segments = Sequence[Segment | None]


def segments_of(prepared: Prepared) -> list[Segment | None]:
    """What a transfer goes over, row-major by source and destination.

    None where no route in one piece joins them (staging cuts routes), or a device runs no op.
    """
    places = [d for d, device in enumerate(prepared.cluster.devices) if device.runs_ops]
    count = len(prepared.cluster.devices)
    segments: list[Segment | None] = [None] * (count * count)
    for source in places:
        for destination in places:
            pieces = prepared.fabric.segments(source, destination)
            if source != destination and pieces is not None and len(pieces) == 1:
                segments[source * count + destination] = pieces[0]
    return segments


def rates_of(segments: Segments) -> list[Fraction]:
    """The classes of bandwidth in bytes/s, the fastest first."""
    rates = {segment.route.bandwidth for segment in segments if segment is not None}
    return sorted(rates, reverse=True)


def route_columns(segments: Segments, bits: int) -> tuple[Ints, ...]:
    """Class of bandwidth (-1: no route), held latency, lag and gap by route, the times in ps times
    2^bits; then, as CSR, the queues that a transfer holds.
    """
    rates = rates_of(segments)
    rows = [
        (-1, 0, 0, 0)
        if segment is None
        else (
            rates.index(segment.route.bandwidth),
            segment.held_ps << bits,
            segment.lag_ps << bits,
            segment.gap_ps << bits,
        )
        for segment in segments
    ]
    held = Rows.of([() if segment is None else segment.resources for segment in segments])
    return *np.array(rows, np.int64).T.copy(), held.ptr, held.ids
