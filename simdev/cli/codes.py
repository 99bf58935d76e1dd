"""Exit codes of the command line."""

from __future__ import annotations

DONE = 0
INFEASIBLE = 1
BAD_INPUT = 2
FAILED_CHECK = 3
INTERNAL = 70
INTERRUPTED = 130
BROKEN_PIPE = 141
