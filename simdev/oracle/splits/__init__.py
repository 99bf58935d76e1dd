"""Strategies that split ops: blocks cached by op and configuration, and kernels that run them.

``lowering.partition`` says what a strategy means; this runs its rules op by op, keeps what they
give (program.py), writes it down as integers (blocks.py), and lets kernels tell who is handed what
(pieces.py, fan.py), when all happens (run.py) and what it holds (buffers.py); evaluator.py calls
them, session.py searches with them. All but session.py need numba.
"""

from __future__ import annotations

from .session import SplitSession

__all__ = ["SplitSession"]
