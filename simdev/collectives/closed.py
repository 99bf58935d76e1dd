"""Closed forms of collectives, exact: n ranks, S bytes, a latency alpha a step and a bandwidth B.

Sources: the ring, chain and all-to-all forms are those of Thakur, Rabenseifner and Gropp (IJHPCA 2005) and of NCCL's
own model; bus factors are those of nccl-tests (PERFORMANCE.md).
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import isqrt

from ..errors import InputError
from .wire import Wire

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "p2p")
SPREADING = ("all_gather", "reduce_scatter", "all_to_all")
ROOTED = ("broadcast", "reduce")
LEAST_CHUNK = 4096  # bytes: no message is cut into smaller ones
Inner = Callable[[str, int, Fraction], Fraction]


def bus_factor(collective: str, ranks: int) -> Fraction:
    """Bytes that each rank's link carries, per byte of the buffer (nccl-tests): bus bandwidth = factor x S / time."""
    _check(collective, ranks)
    if collective == "all_reduce":
        return Fraction(2 * (ranks - 1), ranks)
    return Fraction(ranks - 1, ranks) if collective in SPREADING else Fraction(1)


def bus_bandwidth(collective: str, ranks: int, size: int, seconds: Fraction) -> Fraction:
    """Bus bandwidth in bytes per second of a collective of ``size`` bytes that took so long (nccl-tests)."""
    if seconds <= 0:
        raise InputError(f"seconds: must be > 0, got {float(seconds):g}")
    return bus_factor(collective, ranks) * size / seconds


def ring(collective: str, ranks: int, size: Fraction | int, wire: Wire, chunks: int = 1) -> Fraction:
    """Seconds of the ring algorithm; one rank alone needs none.

    all_reduce 2 (n-1) (alpha + S / (n B)); reduce_scatter, all_gather, all_to_all half of that; broadcast and reduce
    along a chain in k chunks (n + k - 2) (alpha + S / (k B)); p2p alpha + S / B.
    """
    _check(collective, ranks)
    if ranks == 1:
        return Fraction(0)
    if collective == "p2p":
        return wire.seconds(size)
    if collective in ROOTED:
        return (ranks + chunks - 2) * wire.seconds(Fraction(size) / chunks)
    steps = (2 if collective == "all_reduce" else 1) * (ranks - 1)
    return steps * wire.seconds(Fraction(size) / ranks)


def tree(collective: str, ranks: int, size: Fraction | int, wire: Wire, chunks: int = 1) -> Fraction:
    """Seconds over a tree of depth d = ceil(log2 n), the message in k chunks that follow one another.

    broadcast and reduce (d + k - 1) (alpha + S / (k B)); all_reduce one after the other; all_gather and reduce_scatter
    by recursive doubling and halving, d alpha + (n-1)/n S / B. Raises InputError for all_to_all, which has no tree.
    """
    _check(collective, ranks)
    if collective == "all_to_all":
        raise InputError("all_to_all: has no tree algorithm")
    if ranks == 1:
        return Fraction(0)
    if collective == "p2p":
        return wire.seconds(size)
    depth = (ranks - 1).bit_length()
    if collective in SPREADING:
        return depth * wire.latency + Fraction(size) * (ranks - 1) / ranks / wire.bandwidth
    passes = 2 if collective == "all_reduce" else 1
    return passes * (depth + chunks - 1) * wire.seconds(Fraction(size) / chunks)


def best_chunks(stations: int, size: Fraction | int, wire: Wire) -> int:
    """Into how many chunks a message is best cut that passes so many stations one after the other.

    The k that makes (stations + k - 1) (alpha + S / (k B)) least is the root of (stations - 1) S / (alpha B).
    """
    most = max(1, int(size) // LEAST_CHUNK)
    if wire.latency == 0:
        return most
    return min(most, max(1, isqrt(int((stations - 1) * Fraction(size) / (wire.latency * wire.bandwidth)))))


def direct(ranks: int, size: Fraction | int, wire: Wire) -> Fraction:
    """Seconds of an all_to_all whose n (n-1) messages of S / n all run at once, with the wire of all those flows."""
    _check("all_to_all", ranks)
    return wire.seconds(Fraction(size) / ranks) if ranks > 1 else Fraction(0)


def hierarchical(
    collective: str, local: int, nodes: int, size: Fraction | int, inside: Inner, between: Inner
) -> Fraction:
    """Seconds of the two-level form over ``nodes`` nodes of ``local`` ranks each.

    ``inside`` and ``between`` give the time of a collective by name, ranks and bytes: within a node, and among the
    ranks of one place in every node, all places at once. all_reduce is reduce_scatter inside, all_reduce between,
    all_gather inside; the others follow from its parts. Raises InputError for p2p.
    """
    _check(collective, local * nodes)
    whole = Fraction(size)
    share = whole / local
    match collective:
        case "all_reduce":
            ends = inside("reduce_scatter", local, whole) + inside("all_gather", local, whole)
            return ends + between("all_reduce", nodes, share)
        case "all_gather" | "reduce_scatter":
            return inside(collective, local, whole) + between(collective, nodes, share)
        case "broadcast" | "reduce" | "all_to_all":
            return inside(collective, local, whole) + between(collective, nodes, whole)
        case _:
            raise InputError(f"{collective}: has no two-level form")


def _check(collective: str, ranks: int) -> None:
    if collective not in COLLECTIVES:
        raise InputError(f'collective: must be one of {", ".join(COLLECTIVES)}, got "{collective}"')
    if ranks < 1:
        raise InputError(f"ranks: must be > 0, got {ranks}")
