"""Collective ops: one op that several devices run together, over the links between them.

An op of one of KINDS with the attribute ``ranks`` (device names) reads its inputs and leaves its
outputs on its ranks (``operands.py``). It holds no compute queue. Costed by closed form or table it
is one task that holds, for its whole length, every queue that one of its messages would hold: one
communicator at a time, as NCCL. Expanded it is its messages, one task each, which contend with
everything else (``steps.py``).
"""

from __future__ import annotations

from .operands import ALL_REDUCE, KINDS, collective_problems, is_collective, rings
from .steps import add_steps
from .tasks import Communicators, Ring

__all__ = [
    "ALL_REDUCE",
    "KINDS",
    "Communicators",
    "Ring",
    "add_steps",
    "collective_problems",
    "is_collective",
    "rings",
]
