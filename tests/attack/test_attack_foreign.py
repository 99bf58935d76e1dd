"""Mutants of files of other tools."""

from __future__ import annotations

import pytest

pytest.importorskip("onnx")
pytest.importorskip("google.protobuf")

from attack.judge import require_sound


def test_mutants_are_answered_or_refused() -> None:
    require_sound("foreign", 450)
