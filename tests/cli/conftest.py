"""A folder with a scenario that fits and one that does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from bad.scenarios import CLUSTER, scenario


@pytest.fixture
def here(here: Path) -> Path:
    """A working directory with a scenario that fits (s.json) and one that does not (oom.json)."""
    (here / "s.json").write_text(scenario(strategy={"a": "gpu:0", "b": "gpu:1"}))
    small = CLUSTER | {"devices": [{"name": "gpu:0", "memory": 5}]}
    (here / "oom.json").write_text(scenario(cluster=small))
    return here
