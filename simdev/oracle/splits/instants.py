"""Instants of the kernels of split ops.

An instant has few bits for rounds, as many as this evaluation tries (Work's BITS), but the first
instant has FIRST of them: there all leaves lie. From FIRST on, instants are ``(ps << bits | round)
+ FIRST``. Where rounds do not fit their bits, the run ends with the fault FAR.
"""

from __future__ import annotations

from ...ground.jit import jitable
from ..heap import FAR, FAULT
from .columns import BITS, Work

FIRST = 1 << 16
LATEST = 1 << 61
FULL, LONG, WORSE = FAR + 1, FAR + 2, FAR + 3
"""Faults beside FAR: no room; a step or a graph too long; a step that exceeds the limit."""


@jitable
def after(w: Work, instant: int, length: int) -> int:
    """The instant ``length`` ps later: the first round of another, or the next round of this."""
    bits = w.cell[BITS]
    if length > 0:
        return (max(instant, FIRST) >> bits << bits) + (length << bits)
    following = instant + 1
    if following >= FIRST and following & ((1 << bits) - 1) == 0:
        w.cell[FAULT] = FAR
    return following


@jitable
def later(w: Work, instant: int, length: int) -> int:
    """The instant a lag or gap (ps) later: unchanged where there is none."""
    return after(w, instant, length) if length > 0 else instant


@jitable
def ps_of(w: Work, instant: int) -> int:
    """The ps of an instant."""
    return max(instant - FIRST, 0) >> w.cell[BITS]
