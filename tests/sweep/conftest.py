"""A folder with scenarios to sweep."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from worlds.scenarios import TINY

CLUSTER, GRAPH = TINY["cluster"], TINY["graph"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a scenario whose parts are files (s.json), and one that does not fit
    (oom.json).
    """
    monkeypatch.chdir(tmp_path)
    parts = tmp_path / "parts"
    parts.mkdir()
    for part in ("graph", "cluster", "strategy"):
        (parts / f"{part}.json").write_text(
            json.dumps(TINY[part] | ({} if part == "strategy" else {"version": 1}))
        )
    named = {part: f"parts/{part}.json" for part in ("graph", "cluster", "strategy")}
    (tmp_path / "s.json").write_text(json.dumps({"version": 1, **named}))
    small = CLUSTER | {"devices": [{"name": "gpu:0", "memory": 5}, {"name": "gpu:1"}]}
    (tmp_path / "oom.json").write_text(json.dumps({"version": 1, **named, "cluster": small}))
    return tmp_path
