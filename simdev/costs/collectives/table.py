"""Tables of measured collectives: anchors in bytes, straight lines between them.

A line of latency and bandwidth misses measured NCCL curves by 4 to 27 % in the mean, since NCCL
changes its protocol with the size; eight to ten anchors miss them by 3 to 7 %. ``model`` tries the
tables before its closed forms; ``files/collectives.py`` reads them, ``formats/nvidia.py`` makes
them from the output of nccl-tests.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np

from ...ground import PACKAGE
from ...ground.errors import InputError, refuse
from ...ground.frozen import freeze
from ...ground.units import (
    MAX_BYTES,
    MAX_PS,
    PS_PER_SECOND,
    Number,
    exact,
    parse_bytes,
    parse_time,
    written,
)
from ...nouns.taskgraph import Floats
from .phases import COLLECTIVES, unknown_collective

TOO_LONG = "seconds must be > 0 and under 53 days, got {:g}"
ANCHORS = 10
CANDIDATES = 64
NEAR = 0.05
"""Measurements within 5 % of an anchor's size give its time together: the median of their seconds
per byte.
"""


class Crossing(NamedTuple):
    """The slowest link that a collective crosses on its way around the ranks, when the table was
    measured and now: bytes per second, and seconds of latency.
    """

    rate_then: Fraction
    latency_then: Fraction
    rate_now: Fraction
    latency_now: Fraction

    def seconds(self, measured: Fraction, least: Fraction) -> Fraction:
        """The seconds that a collective takes now, where it took ``measured`` when the table was
        made; ``least`` is the least time in that table.

        The least time scales with the latency, the rest with the bandwidth (ours).
        """
        if self.latency_then:
            latency = least * self.latency_now / self.latency_then
        else:
            latency = least + self.latency_now
        return latency + (measured - least) * self.rate_then / self.rate_now


@dataclass(frozen=True, slots=True)
class CollectiveTable:
    """The times of one collective over ``ranks`` ranks: ``anchors`` are (bytes, seconds) by
    increasing bytes.

    ``source`` is "measured", or "fitted" where the anchors come from a fit. Raises InputError.
    """

    collective: str
    ranks: int
    anchors: tuple[tuple[int, Fraction], ...]
    source: str = "measured"

    def __post_init__(self) -> None:
        freeze(self, "anchors")
        refuse(self._problems())

    def _problems(self) -> Iterator[str]:
        if self.source not in ("measured", "fitted"):
            yield f'source: must be one of measured, fitted, got "{self.source}"'
        if self.collective not in COLLECTIVES:
            yield unknown_collective(self.collective)
        if self.ranks < 2:
            yield f"ranks: must be at least 2, got {self.ranks}"
        if len(self.anchors) < 2:
            yield "anchors: at least two are needed"
        last = 0
        for i, (size, seconds) in enumerate(self.anchors):
            if not last < size <= MAX_BYTES:
                yield f"anchors[{i}]: bytes must be > 0 and grow from anchor to anchor, got {size}"
            if not 0 < seconds * PS_PER_SECOND <= MAX_PS:
                yield f"anchors[{i}]: {TOO_LONG.format(float(seconds))}"
            last = size

    def seconds_over(self, crossing: Crossing | None, size: int) -> Fraction:
        """The time of ``size`` bytes over links that may have changed since (None: unchanged)."""
        measured = self.seconds(size)
        if crossing is None:
            return measured
        # The least time, not the first anchor's: a larger message may have taken less.
        return crossing.seconds(measured, min(seconds for _, seconds in self.anchors))

    def seconds(self, size: Fraction | int) -> Fraction:
        """The time of ``size`` bytes: exact at anchors, a line between them.

        Below the first anchor it is that anchor's time (nothing is faster than the smallest
        message). Above the last anchor the line goes on; where the time did not grow, the bandwidth
        stays.
        """
        if size <= self.anchors[0][0]:
            return self.anchors[0][1]
        i = bisect_left(self.anchors, size, hi=len(self.anchors) - 1, key=lambda anchor: anchor[0])
        (low, start), (high, end) = self.anchors[i - 1], self.anchors[i]
        # A falling line would reach 0 seconds somewhere.
        if size > high and end <= start:
            return end * size / high
        return start + (end - start) * (size - low) / (high - low)

    def error(self, rows: Iterable[tuple[int, Number]]) -> tuple[float, float]:
        """Mean and largest relative error over measured (bytes, seconds), without the anchors'
        sizes.
        """
        anchors = dict(self.anchors)
        errors = [
            abs(float(self.seconds(size) / exact(time)) - 1)
            for size, time in rows
            if size not in anchors
        ]
        if not errors:
            raise InputError("rows: none was left out of the table")
        return sum(errors) / len(errors), max(errors)


def table_of_rows(
    collective: str, ranks: int, rows: Iterable[tuple[int, Number]], anchors: int = ANCHORS
) -> CollectiveTable:
    """A table from measured (bytes, seconds), in any order, as nccl-tests prints them.

    Half of the anchors are spread evenly over the logarithm of the sizes; each further anchor goes
    where it reduces the mean error over all rows most, with equal weight for every octave of sizes.
    Raises InputError.
    """
    sizes, times, exact_times = _columns(rows)
    if anchors < 2:
        raise InputError(f"anchors: at least two are needed, got {anchors}")
    candidates = _spread(sizes, CANDIDATES)
    values = {i: _smoothed(sizes, times, i) for i in candidates}
    chosen = _spread(sizes[candidates], (anchors + 1) // 2)
    picked = sorted({candidates[i] for i in chosen})
    octave = np.floor(np.log2(sizes / sizes[0])).astype(np.int64)
    # Each octave has the same weight: sweeps measure small sizes more densely than large ones.
    weights = 1 / np.bincount(octave)[octave]
    while len(picked) < min(anchors, len(candidates)):
        left = [i for i in candidates if i not in picked]
        picked = min(
            (sorted([*picked, i]) for i in left),
            key=lambda trial: _misfit(sizes, times, weights, trial, values),
        )
    table = []
    for i in picked:
        # A size measured alone keeps the printed time; a smoothed time has six digits.
        alone = abs(values[i] / times[i] - 1) < 1e-12
        seconds = exact_times[i] if alone else exact(float(f"{values[i]:.6g}"))
        table.append((int(sizes[i]), seconds))
    return CollectiveTable(collective, ranks, tuple(table))


def _is_whole(size: object) -> bool:
    """Whether a size is a whole number; columns of data frames hold whole numbers as floats."""
    return not isinstance(size, bool) and (
        isinstance(size, Integral) or (isinstance(size, float) and size.is_integer())
    )


def _columns(rows: Iterable[tuple[int, Number]]) -> tuple[Floats, Floats, list[Fraction]]:
    """The sizes in increasing order, and the median time of each."""
    by_size: dict[int, list[Fraction]] = {}
    problems = []
    for i, (size, time) in enumerate(rows):
        try:
            seconds = exact(time)
        except ValueError as error:
            problems.append(f"rows[{i}]: seconds: {error}")
            continue
        if not (_is_whole(size) and 0 < size <= MAX_BYTES):
            problems.append(f"rows[{i}]: bytes must be a whole number > 0, got {written(size)}")
        elif not 0 < seconds * PS_PER_SECOND <= MAX_PS:
            problems.append(f"rows[{i}]: {TOO_LONG.format(float(seconds))}")
        else:
            by_size.setdefault(int(size), []).append(seconds)
    if not problems and len(by_size) < 2:
        problems.append("rows: at least two sizes are needed")
    refuse(problems)
    sizes = sorted(by_size)
    times = [sorted(by_size[size])[len(by_size[size]) // 2] for size in sizes]
    return np.array(sizes, np.float64), np.array(times, np.float64), times


def _spread(sizes: Floats, count: int) -> list[int]:
    """Positions of at most ``count`` sizes, both ends included, spread over their logarithm."""
    targets = np.linspace(np.log(sizes[0]), np.log(sizes[-1]), max(count, 2))
    return sorted({int(np.argmin(np.abs(np.log(sizes) - target))) for target in targets})


def _smoothed(sizes: Floats, times: Floats, i: int) -> float:
    near = np.abs(np.log(sizes / sizes[i])) < NEAR
    return float(np.median(times[near] / sizes[near]) * sizes[i])


def _misfit(
    sizes: Floats, times: Floats, weights: Floats, picked: list[int], values: dict[int, float]
) -> float:
    line = np.interp(sizes, sizes[picked], [values[i] for i in picked])
    return float(np.average(np.abs(line / times - 1), weights=weights))


# The measured tables that are shipped, one collection for each kind of node.

COLLECTIVE_PRESETS = PACKAGE / "files" / "presets" / "collectives"


@cache
def collective_names() -> tuple[str, ...]:
    """Names of the collections of tables shipped with simdev, sorted."""
    return tuple(sorted(path.stem for path in COLLECTIVE_PRESETS.glob("*.json")))


@cache
def shipped_tables(name: str) -> tuple[CollectiveTable, ...]:
    """The tables shipped under a name; none under "". Raises InputError."""
    require_collectives(name)
    if not name:
        return ()
    fields = json.loads((COLLECTIVE_PRESETS / f"{name}.json").read_text(encoding="utf-8"))
    return tuple(map(table_of_fields, fields["tables"]))


def table_of_fields(fields: Mapping[str, Any]) -> CollectiveTable:
    """A table from its fields in JSON. Raises InputError, or ValueError for an anchor."""
    anchors = tuple((parse_bytes(size), parse_time(time)) for size, time in fields["anchors"])
    source = fields.get("source", "measured")
    return CollectiveTable(fields["collective"], fields["ranks"], anchors, source)


def require_collectives(name: str) -> None:
    """Raises InputError unless tables are shipped under this name, or it is ""."""
    if name and name not in collective_names():
        raise InputError(
            f'collectives: no tables "{name}"; there are those of {", ".join(collective_names())}'
        )
