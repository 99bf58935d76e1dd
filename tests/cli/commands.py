"""Runs the command in a child process, and lists the options of its verbs."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from simdev.commands import parser

ROOT = Path(__file__).parents[2]


def command(arguments: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs ``simdev`` in a child process."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | options.pop("env", {})
    return subprocess.run(
        [sys.executable, "-m", "simdev", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        **options,
    )


def actions() -> Iterator[tuple[str, argparse.Action]]:
    """Each verb with each of its arguments, as actions of argparse."""
    (verbs,) = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    for verb, command in verbs.choices.items():
        yield from ((verb, action) for action in command._actions)


def options() -> Iterator[tuple[str, argparse.Action]]:
    """Each verb with each of its options, except ``--help``."""
    yield from ((v, a) for v, a in actions() if a.option_strings and a.dest != "help")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}
