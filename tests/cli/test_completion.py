"""Completion: bash sources the script and completes verbs, options, files and names."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from simdev.commands import VERBS, main

BASH = shutil.which("bash")
ASK = """
source ./script
while IFS= read -r line; do
  COMP_WORDS=($line)
  [[ $line == *" " ]] && COMP_WORDS+=("")
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
  _shtab_simdev
  echo "${COMPREPLY[*]}"
done
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("here")


@pytest.fixture
def complete(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[list[str]]]:
    if not (folder / "script").exists():
        assert main(["completion", "bash"]) == 0
        (folder / "script").write_text(capsys.readouterr().out)

    def words(*lines: str) -> list[list[str]]:
        """What each line can be completed to, in one bash."""
        assert BASH is not None
        result = subprocess.run(
            [BASH, "--norc", "-c", ASK],
            input="".join(f"{line}\n" for line in lines),
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
        assert result.stderr == ""
        return [line.split() for line in result.stdout.splitlines()]

    return words


@pytest.mark.skipif(BASH is None, reason="needs bash")
def test_bash_completes_what_is_typed(
    folder: Path, complete: Callable[..., list[list[str]]]
) -> None:
    (folder / "mine.json").touch()
    (folder / "place").mkdir()
    verbs, simulate, explored, *others = complete(
        "simdev ",
        "simdev simulate gnmt-1",
        "simdev explore gnmt-1",
        "simdev simulate x --gan",
        "simdev simulate min",
        "simdev simulate --model llama3-70b --schedule Zero",
        "simdev simulate --model llama3-70b --cluster dgx-h",
        "simdev family nmt -o pla",
        "simdev examples 04",
        "simdev simulate x --engine s",
        "simdev search x --method m-e",
    )
    option, files, schedules, preset, place, copies, engine, method = others
    assert verbs == [verb.__name__.rpartition(".")[2].rstrip("_") for verb in VERBS]
    assert simulate == explored == ["gnmt-1x-cpu"]
    assert option == ["--gantt"]
    assert files == ["mine.json"]
    assert preset == ["dgx-h100", "dgx-h200"]
    assert place == ["place"]
    assert copies == ["04-pipelines"]
    assert engine == ["simpy"]
    assert method == ["m-etf"]
    assert all(name.startswith("Zero") for name in schedules)


@pytest.mark.parametrize(
    ("shell", "line"), [("zsh", "#compdef simdev"), ("tcsh", "complete simdev")]
)
def test_other_shells_get_a_script_of_their_kind(
    shell: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert line in script
    assert "01-simulate-a-placement 02-" in script
    assert "m-etf" in script


def test_a_shell_that_is_not_known_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["completion", "fish-and-chips"])
    assert stop.value.code == 2
    assert "bash" in capsys.readouterr().err
