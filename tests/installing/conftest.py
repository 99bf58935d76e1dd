"""A wheel of the project."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as ``make wheel`` does, from a copy: a build leaves its own where it runs."""
    clone, place = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("wheel")
    files = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\0")
    for file in filter(None, files):
        (clone / file).parent.mkdir(parents=True, exist_ok=True)
        (clone / file).write_bytes((ROOT / file).read_bytes())
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "-w", str(place), "."], cwd=clone, check=True, capture_output=True)
    (result,) = place.glob("simdev-*.whl")
    return result
