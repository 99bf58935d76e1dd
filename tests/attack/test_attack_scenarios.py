"""Mutants of scenarios and of the files that they name."""

from __future__ import annotations

from attack.judge import require_sound


def test_mutants_are_answered_or_refused() -> None:
    require_sound("scenarios", 500)
