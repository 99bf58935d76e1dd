"""Moves of split ops: a strategy as blocks that are cached by op and configuration, and evaluated
by compiled kernels.

``lowering.partition`` says what a strategy means; this runs its rules op by op, keeps what they
give (plan.py), writes it down as integers (blocks.py), and lets kernels tell who is handed what
(fan.py) and when all happens (run.py).
"""

from __future__ import annotations

from .session import SoapSession

__all__ = ["SoapSession"]
