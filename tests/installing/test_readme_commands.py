"""Every command of the README works in an empty folder after the installation of the wheel alone;
one that needs an extra names it, and is told how to get it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from waiting import HANGS

ROOT = Path(__file__).parents[2]
NEEDS = re.compile(r"simdev\[([\w,]+)\]")
LONG = ("--seconds 3600", "--seconds 1")
"""What takes an hour, and what the test makes of it."""

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Command:
    """A line of the README, and the extras that it is said to need."""

    line: str
    extras: frozenset[str]


def commands() -> list[Command]:
    """In the order of the README; the extras of a ``pip install`` hold to the end of its block."""
    result, extras = [], frozenset[str]()
    for line in (ROOT / "README.md").read_text().splitlines():
        line, _, comment = line.strip().partition("    #")
        if line.startswith("```"):
            extras = frozenset()
        elif line.startswith("pip install"):
            extras = _extras(line)
        elif line.startswith("simdev "):
            line = line.partition("   #")[0].strip()
            result.append(Command(line.replace(*LONG), extras | _extras(comment)))
    return result


def _extras(text: str) -> frozenset[str]:
    match = NEEDS.search(text)
    return frozenset(match[1].split(",")) if match else frozenset()


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment with the core dependencies alone."""
    place = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    pip = [str(place / "bin" / "pip"), "install", "-q", "-c", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True)
    return place / "bin"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("empty")


def run(line: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a line in a shell, with nobody at the keyboard."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        line,
        shell=True,
        cwd=folder,
        env=kept | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANGS,
    )


def test_the_readme_has_commands_with_and_without_extras() -> None:
    lines = [command.line for command in commands()]
    assert len(lines) > 20
    assert not any("#" in line for line in lines)
    assert {"torch", "solvers", "fast"} <= {x for command in commands() for x in command.extras}


def test_commands_work_with_the_core_alone_or_name_the_extra(
    environment: Path, folder: Path
) -> None:
    wrong = []
    for command in commands():
        path = f"{environment}{os.pathsep}{os.environ['PATH']}"
        result = run(command.line, folder, PATH=path)
        if command.extras:
            lines = result.stderr.splitlines()
            named = _extras(lines[-1]) if lines else frozenset()
            is_right = (result.returncode, len(lines)) == (2, 1) and named <= command.extras
            is_right = is_right and bool(named)
        else:
            is_right = result.returncode == 0
        if not is_right:
            wrong.append((command, result.returncode, result.stderr[-500:]))
    assert not wrong
    assert (folder / "gpt2-medium.png").stat().st_size > 10_000


def test_commands_that_need_an_extra_work_with_it(
    wheel: Path, folder: Path, tmp_path: Path
) -> None:
    """In the environment of development, with the package of the wheel, on what the commands before
    have left.
    """
    site = tmp_path / "site"
    subprocess.run([sys.executable, "-m", "zipfile", "-e", str(wheel), str(site)], check=True)
    program = f"{sys.executable} -m simdev"
    for command in (command for command in commands() if command.extras):
        if "explore" in command.line:
            continue  # serves until it is ended: tests/explore
        line = command.line.replace("simdev", program, 1)
        result = run(line, folder, PYTHONPATH=str(site))
        assert result.returncode == 0, (command.line, result.stderr[-500:])
