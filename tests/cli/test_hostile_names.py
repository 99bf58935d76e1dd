"""Names in arguments and files that would steer a terminal: no verb writes them as they are."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from bad.scenarios import scenario
from commands import options
from simdev.commands import main
from simdev.ground.errors import printable

HOSTILE = "a\x1b[31mred\x1b]0;title\x07\u202eevil\u2028\x9b2J\rb\nsecond"
"""Escape sequences, a bell, a mark that turns the direction, line breaks."""
NEEDED = {
    "simulate": ["s.json"], "sweep": ["s.json"], "report": ["s.json", "-o", "r.html"],
    "compare": ["s.json", "s.json"],
    "plan": ["llama3.2-1b", "--cluster", "dgx-h100", "--global-batch", "x"],
    "search": ["s.json", "--method", "single"], "train": ["post", "--family", "x", "-o", "x"],
    "family": ["x", "-o", "x"], "pipeline": ["--schedule", "x"], "check": ["s.json"],
    "import": ["s.json", "-o", "x.json"], "calibrate": ["s.json", "no.json"],
    "clusters": [], "examples": ["nothing"], "completion": ["bash"],
}  # fmt: skip
"""The other arguments of each verb, but of verbs that are no short runs."""


def everything(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """All that a command writes to the terminal, which nothing in it steers."""
    try:
        code = main(arguments)
    except SystemExit as stop:
        code = int(stop.code or 0)
    assert code in (0, 1, 2)
    written = "".join(capsys.readouterr())
    assert printable(written, lines=True) == written
    assert not any(line.startswith("second") for line in written.split("\n"))
    return written


@pytest.mark.parametrize("verb", NEEDED)
def test_arguments_steer_no_terminal(
    verb: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in (a for name, a in options() if name == verb and a.nargs != 0):
        everything([verb, *NEEDED[verb], option.option_strings[-1], HOSTILE], capsys)
    everything([verb, *NEEDED[verb], HOSTILE, HOSTILE, HOSTILE], capsys)
    everything([verb, HOSTILE], capsys)
    everything([HOSTILE], capsys)


@pytest.mark.parametrize("verb", sorted({verb for verb, _ in options()} - {*NEEDED}))
def test_a_wrong_argument_steers_no_terminal(
    verb: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    everything([verb, "x", f"--{HOSTILE}"], capsys)


def test_names_of_files_steer_no_terminal(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = f"{HOSTILE}.json"
    os.rename("s.json", source)
    shown = printable(HOSTILE)
    assert "step time" in everything(["simulate", source], capsys)
    assert shown in everything(["report", source, "-o", f"{HOSTILE}.html"], capsys)
    assert shown in everything(["compare", source, "oom.json", "-o", f"{HOSTILE}.htm"], capsys)
    page = Path(f"{HOSTILE}.html").read_text()
    assert printable(page, lines=True) == page
    everything(["simulate", source, "--save", f"run {HOSTILE}.json"], capsys)
    assert "ok:" in everything(["check", f"run {HOSTILE}.json"], capsys)
    assert shown in everything(["sweep", source, "-o", f"{HOSTILE}.csv"], capsys)
    everything(["sweep", source, "--set", f'cluster.name="x{HOSTILE[:3]}"'], capsys)
    everything(["search", source, "--method", "single", "-o", f"out {HOSTILE}.json"], capsys)
    everything(["examples", "alexnet-4x-p4000-flexflow-p3", "-o", HOSTILE], capsys)


PLACES: dict[str, Any] = {
    "graph": {"ops": [{"name": HOSTILE, "time": 1}]},
    "cluster": {"devices": [{"name": HOSTILE}]},
    "strategy": {"a": HOSTILE},
    "name": HOSTILE,
    "profile": HOSTILE,
    "options": {HOSTILE: 1},
    HOSTILE: 1,
    "provenance": {HOSTILE: HOSTILE},
}


@pytest.mark.parametrize("place", PLACES)
def test_names_in_files_steer_no_terminal(
    place: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = json.loads(Path("s.json").read_text()) | {place: PLACES[place]}
    Path("h.json").write_text(json.dumps(value))
    for verb in ("simulate", "check", "report", "sweep", "compare", "import"):
        needed = [*NEEDED[verb]]
        everything([verb, *("h.json" if part == "s.json" else part for part in needed)], capsys)
    Path("raw.json").write_text(f'{{"{HOSTILE}')
    for verb in ("simulate", "check", "report", "sweep", "import"):
        everything([verb, *("raw.json" if p == "s.json" else p for p in NEEDED[verb])], capsys)


def test_what_is_said_line_by_line_stays_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert printable("a\tb\n\x1b\u202e", lines=True) == "a\tb\n\\x1b\\u202e"
    assert printable("a\tb\n\x85") == "a\\tb\\n\\x85"
    assert scenario() == printable(scenario())
