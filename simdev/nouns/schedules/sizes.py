"""How large a schedule may be."""

from __future__ import annotations

from ...ground.errors import refuse

# Files from outside: a larger table would take minutes to check.
MAX_ACTIONS = 2_000_000


def check_sizes(ranks: int, microbatches: int, chunks: int = 1) -> None:
    """Raises InputError where a schedule has no action, or more than any may have."""
    given = {"stages": ranks, "microbatches": microbatches, "chunks": chunks}
    wrong = [
        f"{name}: must be at least 1, got {value}" for name, value in given.items() if value < 1
    ]
    if not wrong and 3 * ranks * microbatches * chunks > MAX_ACTIONS:
        wrong = [f"stages, microbatches, chunks: make more than {MAX_ACTIONS:,} actions"]
    refuse(wrong)
