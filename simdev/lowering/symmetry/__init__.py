"""Symmetry: what is equal in a step is simulated once, exactly.

The quotient of a step by the automorphisms of cluster, strategy and graph: of devices in one orbit
one is simulated, and what they share (a collective of all of them) lasts as long as that of the
full group. ``quotient_of`` makes it for graphs of ops, ``Alike`` tells large models which groups of
devices cost the same.
"""

from __future__ import annotations

from .alike import Alike, Flow
from .quotient import WORTH_REDUCING, Quotient, quotient_of
from .symmetry import IDLE, Expanded, Symmetry

__all__ = [
    "IDLE",
    "WORTH_REDUCING",
    "Alike",
    "Expanded",
    "Flow",
    "Quotient",
    "Symmetry",
    "quotient_of",
]
