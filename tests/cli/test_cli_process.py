"""The command line as a process: usage, exit codes, streams that end early."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bad.scenarios import scenario
from commands import ROOT, command, names
from simdev.commands import main


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["simulate"],
        ["fly"],
        ["simulate", "s.json", "--engine", "warp"],
        ["simulate", "s.json", "--js"],
    ],
)
def test_wrong_usage_exits_2(
    arguments: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert error.value.code == 2
    assert "usage: simdev" in capsys.readouterr().err


def test_help_names_the_verbs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = command(["--help"])
    assert result.returncode == 0
    assert all(verb in result.stdout for verb in ("simulate", "check", "profile"))
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert (stop.value.code, capsys.readouterr().out) == (0, "simdev 0.1.0\n")


def test_the_command_loads_only_what_a_verb_needs(here: Path) -> None:
    code = (
        "import sys; from simdev.commands import main; main(sys.argv[1:]); "
        "print(*sys.modules, sep='\\n', file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, "simulate", "s.json"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    loaded = set(result.stderr.split())
    assert not loaded & {"pandas", "matplotlib", "torch", "networkx", "scipy"}


def test_a_reader_that_goes_away_is_no_error(here: Path) -> None:
    ops = [{"name": f"op{i}", "time": 1} for i in range(2_000)]
    Path("long.json").write_text(scenario(graph={"ops": ops}))
    line = (
        f"{sys.executable} -m simdev simulate long.json --json | head -c 10; echo "
        f"${{PIPESTATUS[0]}}"
    )
    result = subprocess.run(
        ["bash", "-c", line],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert result.stdout.endswith("141\n")
    assert result.stderr == ""


def test_an_interrupt_while_the_verbs_are_imported_is_told_in_one_line() -> None:
    code = (
        "import sys; from simdev.__main__ import main\n"
        "class Interrupted:\n"
        "    def find_spec(*names):\n"
        "        raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted)\n"
        "sys.exit(main())"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "interrupted\n")


def test_an_interrupt_exits_130_and_leaves_nothing_behind(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("simdev.report.drawn", interrupted)
    assert main(["simulate", "s.json", "--save", "r.json"]) == 130
    assert capsys.readouterr() == ("", "interrupted\n")
    assert names(here) == {"s.json", "oom.json"}


def test_a_verb_that_ends_the_program_has_not_done_its_work(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    """A model file that calls ``sys.exit(0)`` where it is measured does so."""
    monkeypatch.setattr("simdev.report.drawn", lambda *_: sys.exit(0))
    assert main(["simulate", "s.json", "--save", "r.json"]) == 2
    assert capsys.readouterr().err == "code that was measured or captured ended the program early\n"
    assert names(here) == {"s.json", "oom.json"}


def test_a_bug_is_called_a_bug(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("simdev.report.drawn", broken)
    assert main(["simulate", "s.json", "--save", "r.json"]) == 70
    assert "this is a bug in simdev" in capsys.readouterr().err
    assert names(here) == {"s.json", "oom.json"}


def test_names_that_a_terminal_cannot_show_are_escaped(here: Path) -> None:
    graph = {"ops": [{"name": "größe", "time": 1}]}
    Path("u.json").write_text(scenario(graph=graph))
    result = command(["simulate", "u.json"], env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert result.returncode == 0
    assert "gr\\xf6\\xdfe" in result.stdout


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no /dev/full here")
def test_a_full_disk_is_told_and_is_no_bug(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = "cannot write: no space left on device\n"
    result = shell("> /dev/full", here)
    assert (result.returncode, result.stderr) == (2, message)
    for option in ("--save", "--gantt"):
        assert main(["simulate", "s.json", option, "/dev/full"]) == 2
        assert capsys.readouterr().err == message


def test_a_closed_stream_takes_nothing_and_breaks_nothing(here: Path) -> None:
    assert (shell("--save r.json >&-", here).returncode, Path("r.json").is_file()) == (0, True)
    Path("s.json").write_text("{}")
    quiet = shell("2>&-", here)
    assert (quiet.returncode, quiet.stdout) == (2, "")


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """``simdev simulate s.json`` with what a shell makes of the rest of the line."""
    return subprocess.run(
        ["bash", "-c", f'"$0" -m simdev simulate s.json {line}', sys.executable],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
