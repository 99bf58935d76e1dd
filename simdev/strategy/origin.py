"""Origin: which op of the graph an op of the sharded graph stands for."""

from __future__ import annotations

from dataclasses import dataclass

ROLES = ("shard", "copy", "stored", "sum", "sync")


@dataclass(frozen=True, slots=True)
class Origin:
    """What an op of a sharded graph is made from.

    ``op`` is the name in the graph that was split; ``role`` one of ROLES: a ``shard`` of it, a
    ``copy`` that is made where it is read, a part ``stored`` otherwise than it is made, a ``sum``
    of partial results, the ``sync`` of a gradient. ``number`` counts those of one op and role. By
    output that it makes, ``regions`` are the output of the op and the part of it, and ``addend`` is
    which of its partial results that is, of how many (0 of 1: the values). ``box`` is the interval
    of each axis that is cut.
    """

    op: str
    role: str
    number: int
    regions: tuple[tuple[int, tuple[tuple[int, int], ...]], ...] = ()
    addend: tuple[tuple[int, int], ...] = ()
    box: tuple[tuple[str, tuple[int, int]], ...] = ()
