"""A disk that takes no more: verbs print their answer all the same, end with exit code 2, and leave
what was there as it was.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from simdev.commands import main

resource = pytest.importorskip("resource")


@contextmanager
def full_disk() -> Iterator[None]:
    """No file can grow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


PRINTING = {
    "simulate": ["simulate", "s.json", "--save", "out.json"],
    "compare": ["compare", "s.json", "oom.json", "-o", "out.html"],
    "report": ["report", "s.json", "--json", "-o", "out.html"],
    "search": ["search", "s.json", "--method", "single", "-o", "out.json"],
    "sweep": ["sweep", "s.json", "--journal", "/dev/null"],
    "clusters": ["clusters", "dgx-1v", "-o", "out.svg"],
}
SILENT = {
    "family": ["family", "nmt", "-o", "out"],
    "examples": ["examples", "alexnet-4x-p4000-flexflow-p3", "-o", "out/deep"],
    "report": ["report", "s.json", "-o", "out.html"],
}


def state(folder: Path) -> dict[str, str | None]:
    paths = sorted(folder.rglob("*"))
    return {str(path): path.read_text() if path.is_file() else None for path in paths}


@pytest.mark.parametrize("arguments", [*SILENT.values(), *PRINTING.values()], ids=lambda a: a[0])
@pytest.mark.parametrize("is_there", [False, True])
def test_a_full_disk_costs_the_file_and_not_the_answer(
    arguments: list[str], is_there: bool, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    is_file = "." in arguments[-1]
    if is_there and is_file and arguments[-2] != "--journal":
        Path(arguments[-1]).write_text("old")
    before = state(here)
    with full_disk():
        code = main(arguments)
    printed = capsys.readouterr()
    assert code == 2
    assert printed.err
    assert state(here) == before
    if arguments in PRINTING.values() and arguments[0] not in ("sweep", "clusters"):
        assert "tep" in printed.out
    if "--json" in arguments:
        assert json.loads(printed.out)["step_time_s"] > 0
