"""CONTRIBUTING.md names files that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_path_that_contributors_are_told_of_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    paths = {name for name in re.findall(r"`([\w./-]+)`", text) if "/" in name}
    paths |= set(re.findall(r"`([A-Z]+\.md|\w+\.(?:cfg|py))`", text))
    templates = {"simdev/commands/VERB.py", "scenarios/NAME.json"}
    beside = {"test_kind_names.py": "tests/semantics", "opening.py": "simdev/formats"}
    assert len(paths) > 25
    missing = [
        name
        for name in sorted(paths - templates)
        if not (ROOT / beside.get(name, "") / name).exists()
    ]
    assert not missing
