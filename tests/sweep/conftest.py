"""A folder with scenarios to sweep."""

from __future__ import annotations

from pathlib import Path

import pytest

from worlds.scenarios import TINY, written

CLUSTER, GRAPH = TINY["cluster"], TINY["graph"]


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with nothing but the tiny scenario (s.json)."""
    monkeypatch.chdir(tmp_path)
    return written(tmp_path / "s.json", TINY).parent


@pytest.fixture
def here(here: Path) -> Path:
    """A working directory with a scenario whose parts are files (s.json), and one that does not fit
    (oom.json).
    """
    parts = here / "parts"
    parts.mkdir()
    for part in ("graph", "cluster", "strategy"):
        version = {} if part == "strategy" else {"version": 1}
        written(parts / f"{part}.json", TINY[part] | version)
    named = {part: f"parts/{part}.json" for part in ("graph", "cluster", "strategy")}
    written(here / "s.json", {"version": 1, **named})
    small = CLUSTER | {"devices": [{"name": "gpu:0", "memory": 5}, {"name": "gpu:1"}]}
    written(here / "oom.json", {"version": 1, **named, "cluster": small})
    return here
