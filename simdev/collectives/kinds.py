"""What is known of collectives whatever the links: names, bus factors, the best chunks."""

from __future__ import annotations

from fractions import Fraction
from math import isqrt

from ..errors import InputError
from .wire import Wire

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "p2p",
)
SPREADING = ("all_gather", "reduce_scatter", "all_to_all")
ROOTED = ("broadcast", "reduce")
LEAST_CHUNK = 4096  # bytes: no message is cut into smaller ones


def bus_factor(collective: str, ranks: int) -> Fraction:
    """Bytes that each rank's link carries, per byte of the buffer (nccl-tests): bus bandwidth =
    factor x S / time.
    """
    _check(collective, ranks)
    if collective == "all_reduce":
        return Fraction(2 * (ranks - 1), ranks)
    return Fraction(ranks - 1, ranks) if collective in SPREADING else Fraction(1)


def bus_bandwidth(collective: str, ranks: int, size: int, seconds: Fraction) -> Fraction:
    """Bus bandwidth in bytes per second of a collective of ``size`` bytes that took so long
    (nccl-tests).
    """
    if seconds <= 0:
        raise InputError(f"seconds: must be > 0, got {float(seconds):g}")
    return bus_factor(collective, ranks) * size / seconds


def best_chunks(stations: int, size: Fraction | int, wire: Wire) -> int:
    """Into how many chunks a message is best cut that passes so many stations one after the other.

    The k that makes (stations + k - 1) (alpha + S / (k B)) least is the root of (stations - 1) S /
    (alpha B).
    """
    most = max(1, int(size) // LEAST_CHUNK)
    if wire.latency == 0:
        return most
    return min(
        most, max(1, isqrt(int((stations - 1) * Fraction(size) / (wire.latency * wire.bandwidth))))
    )


def _check(collective: str, ranks: int) -> None:
    if collective not in COLLECTIVES:
        raise InputError(f'collective: must be one of {", ".join(COLLECTIVES)}, got "{collective}"')
    if ranks < 1:
        raise InputError(f"ranks: must be > 0, got {ranks}")
