"""Placements of whole ops: one graph on one cluster as columns, and kernels that run them.

problem.py says what the kernels read, step.py is the recurrence, buffers.py the memory, moves.py
the re-simulation of a few ops that moved; evaluator.py calls them, session.py searches with them.
All but session.py need numba.
"""

from __future__ import annotations

from .session import PlacementSession

__all__ = ["PlacementSession"]
