"""Mutants of traces, measured steps and saved programs."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("scipy")

from attack.judge import require_sound


def test_mutants_are_answered_or_refused() -> None:
    require_sound("traces", 300)
