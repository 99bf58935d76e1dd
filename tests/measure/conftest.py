"""Shared by the tests of the doctor."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from profile_rows import Row, Writer, header


@pytest.fixture
def write(tmp_path: Path) -> Writer:
    """Writes rows, with a header that fits them, to a file."""

    def writer(rows: Sequence[Row], name: str = "p.jsonl", **more: Any) -> Path:
        lines = [{"v": 1, "header": header(rows, **more)}, *rows]
        path = tmp_path / name
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    return writer
