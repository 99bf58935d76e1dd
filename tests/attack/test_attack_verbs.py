"""Mutants of what verbs write and others read, and of requests to the server."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

from attack.judge import require_sound


def test_mutants_are_answered_or_refused() -> None:
    require_sound("verbs", 400)
