"""``simdev examples`` lists and copies what ships; a scenario's bare name is a path everywhere."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

import simdev
from simdev.commands import main
from simdev.files.examples import FOLDERS, examples_folder, scenario_names, scenario_path
from simdev.ground.errors import InputError

SMALL = "pipeline-gpipe"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_every_example_is_listed_with_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["examples", "--json"]) == 0
    listed = {example["name"]: example for example in json.loads(capsys.readouterr().out)}
    notebooks = {path.stem for path in (examples_folder() / "notebooks").glob("*.ipynb")}
    assert set(listed) == {*scenario_names(), *notebooks}
    for name, example in listed.items():
        assert Path(example["path"]).is_file()
        assert 10 <= len(example["shows"]) <= 140, name
        assert example["kind"] == ("notebook" if name in notebooks else "scenario")
    assert listed["gpt3-175b-1024x-a100"]["devices"] == {"a100-80": 1024}
    assert listed["resnet-50-v100-k80"]["devices"] == {"v100": 1, "k80": 1}
    assert all(listed[name]["devices"] for name in scenario_names())

    assert main(["examples"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * len(listed)
    assert lines[0].startswith(f"{next(iter(listed))}  (")


def test_an_example_is_copied_with_every_file_that_it_needs(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["examples", "inception-v3-4x-cpu", "-o", "mine"]) == 0
    assert capsys.readouterr().out == (
        "mine: 5 files copied\ntry: simdev simulate mine/scenarios/inception-v3-4x-cpu.json\n"
    )
    assert files(here / "mine") == {
        "scenarios/inception-v3-4x-cpu.json",
        "scenarios/clusters/4x-cpu.json",
        "scenarios/strategies/inception-v3-blocks.json",
        "profiles/graphs/inception-v3-b16.json",
        "profiles/inception-v3.epyc-1core.jsonl",
    }
    # The copy stands for itself: nothing of it is read where it came from.
    monkeypatch.setattr("simdev.files.examples.examples_folder", lambda: here / "nowhere")
    assert simdev.load_scenario("mine/scenarios/inception-v3-4x-cpu.json").graph.ops


@pytest.mark.slow
def test_every_scenario_opens_where_it_is_copied(here: Path) -> None:
    for name in scenario_names():
        assert main(["examples", name, "-o", name]) == 0
        simdev.load_scenario(f"{name}/scenarios/{name}.json")
        shutil.rmtree(name)


def test_a_notebook_brings_files_whose_names_a_loop_makes(here: Path) -> None:
    assert main(["examples", "11-how-much-is-the-host"]) == 0
    h100 = {"mlp.h100-sxm.jsonl", "graphs/mlp-b4096.json.gz", "measured/graphs.jsonl"}
    assert {f"profiles/h100/{name}" for name in h100} <= files(here)


def test_every_notebook_brings_the_files_that_it_names(here: Path) -> None:
    """Profiles and graphs that it opens itself too."""
    notebooks = sorted((examples_folder() / "notebooks").glob("*.ipynb"))
    assert main(["examples", *(path.stem for path in notebooks)]) == 0
    assert {f"notebooks/{path.name}" for path in notebooks} <= files(here)
    for path in notebooks:
        named = re.findall(r'"\.\./([\w./-]+)"', path.read_text().replace("\\", ""))
        assert all((here / name).exists() for name in named), path.name


def test_all_examples_are_all_files(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["examples", "--all", "-o", "all", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert files(here / "all") == {str(Path(path).relative_to("all")) for path in printed["copied"]}
    assert {path.name for path in (here / "all").iterdir()} == set(FOLDERS)
    assert set(printed["examples"]) >= set(scenario_names())
    assert all(Path(path).is_file() for path in printed["examples"].values())


def test_nothing_is_overwritten_without_a_word(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["examples", "gnmt-1x-cpu"]) == 0
    assert main(["examples", "gnmt-4x-cpu"]) == 0
    assert "3 files copied, 2 there already" in capsys.readouterr().out
    mine = here / "scenarios" / "clusters" / "4x-cpu.json"
    original = mine.read_text()
    mine.write_text("mine")
    (here / "scenarios" / "gnmt-4x-cpu.json").unlink()
    assert main(["examples", "gnmt-4x-cpu"]) == 2
    reason = "is there already and differs; --force replaces it"
    assert capsys.readouterr() == ("", f"scenarios/clusters/4x-cpu.json: {reason}\n")
    assert mine.read_text() == "mine"
    assert not (here / "scenarios" / "gnmt-4x-cpu.json").exists()
    assert main(["examples", "gnmt-4x-cpu", "--force"]) == 0
    assert mine.read_text() == original


def test_a_copy_takes_the_place_of_a_link_and_spares_what_it_points_to(here: Path) -> None:
    mine, link = here / "mine.json", here / "scenarios" / "pipeline-1f1b.json"
    mine.write_text("mine")
    link.parent.mkdir()
    for target in (mine, here / "missing.json"):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        assert main(["examples", "pipeline-1f1b"]) == 2
        assert main(["examples", "pipeline-1f1b", "--force"]) == 0
        assert not link.is_symlink()
        assert "pipeline-1f1b" in link.read_text()
    assert mine.read_text() == "mine"
    assert not (here / "missing.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gnmt-4x-cp"], 'no example "gnmt-4x-cp"; did you mean "gnmt-4x-cpu"?'),
        (["q"], 'no example "q"; "simdev examples" lists them'),
        (["gnmt-4x-cpu", "--all"], "--all: copies every example; leave out NAME"),
        (["-o", "x"], "--output: goes with NAME or --all"),
        (["--force"], "--force: goes with NAME or --all"),
        (
            [SMALL, "-o", "file"],
            "--output: cannot write file/scenarios/pipeline-gpipe.json: not a directory",
        ),
    ],
)
def test_refusals_are_a_line(
    arguments: list[str], message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("file").touch()
    assert main(["examples", *arguments]) == 2
    assert capsys.readouterr() == ("", message + "\n")
    assert files(here) == {"file"}


def test_a_bare_name_is_a_scenario_wherever_one_is_taken(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", SMALL, "--json"]) == 0
    step = json.loads(capsys.readouterr().out)["step_time_ps"]
    assert simdev.run(simdev.load_scenario(SMALL)).step_ps == step
    assert simdev.sweep([SMALL])["scenario"].tolist() == [SMALL]
    assert simdev.sweep([SMALL])["step_time_s"].tolist() == [step / 1e12]
    assert main(["compare", SMALL, "pipeline-1f1b"]) == 0
    assert main(["report", SMALL, "--no-what-if", "-o", "p.html"]) == 0
    capsys.readouterr()
    for verb in (["search", "--method", "m-etf"], ["calibrate", "trace.json"]):
        assert main([verb[0], "pipelin", *verb[1:]]) == 2
        assert capsys.readouterr().err.startswith("pipelin: neither a file nor an example; ")


def test_a_file_goes_before_an_example(here: Path) -> None:
    assert scenario_path(SMALL) == str(examples_folder() / "scenarios" / f"{SMALL}.json")
    Path(SMALL).touch()
    assert scenario_path(SMALL) == SMALL
    assert scenario_path("-") == "-"
    assert scenario_path(f"{SMALL}.json") == f"{SMALL}.json"
    with pytest.raises(InputError, match=r"^pipelin: neither a file nor an example; "):
        scenario_path("pipelin")
