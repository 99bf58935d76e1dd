"""What is known of collectives whatever the links: names and bus factors."""

from __future__ import annotations

from fractions import Fraction

from ...ground.errors import InputError

SPREADING = ("all_gather", "reduce_scatter", "all_to_all")
ROOTED = ("broadcast", "reduce")
# Messages list them in this order; files and importers accept no other names.
COLLECTIVES = ("all_reduce", *SPREADING, *ROOTED, "p2p")


def unknown_collective(name: str) -> str:
    """What is wrong with a name that is none of COLLECTIVES."""
    return f'collective: must be one of {", ".join(COLLECTIVES)}, got "{name}"'


def bus_factor(collective: str, ranks: int) -> Fraction:
    """Bytes that each rank's link carries, per byte of the buffer (nccl-tests, PERFORMANCE.md).

    So bus bandwidth = factor x S / time. Raises InputError.
    """
    if collective not in COLLECTIVES:
        raise InputError(unknown_collective(collective))
    if ranks < 1:
        raise InputError(f"ranks: must be > 0, got {ranks}")
    if collective == "all_reduce":
        return Fraction(2 * (ranks - 1), ranks)
    return Fraction(ranks - 1, ranks) if collective in SPREADING else Fraction(1)


def bus_bandwidth(collective: str, ranks: int, size: int, seconds: Fraction) -> Fraction:
    """Bus bandwidth in bytes per second of a collective of ``size`` bytes (nccl-tests).

    Raises InputError.
    """
    if seconds <= 0:
        raise InputError(f"seconds: must be > 0, got {float(seconds):g}")
    return bus_factor(collective, ranks) * size / seconds
