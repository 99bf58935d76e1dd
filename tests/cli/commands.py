"""The command in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def command(arguments: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | options.pop("env", {})
    return subprocess.run(
        [sys.executable, "-m", "simdev", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        **options,
    )


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}
