"""``simdev capture`` as a person types it: a script of one's own, and what can be wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from simdev.commands import main
from simdev.report import run

SCRIPT = """
import argparse, os
import torch, torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=64)
width = parser.parse_args().width
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = torch.nn.Linear(width, width).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):
    loss = model(torch.randn(4, width, device="cuda")).sum()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    print("step", step, "of", dist.get_world_size(), "ranks")
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def test_a_script_becomes_a_scenario_and_a_report(
    script: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "folder" / "step.json"
    output.parent.mkdir()
    arguments = [
        "capture", script, "--cluster", "dgx-h100", "--world", "2", "--json", "--tokens", "4",
        "-o", str(output), "--", "--width", "128",
    ]  # fmt: skip
    assert main(arguments) == 0
    out, err = capfd.readouterr()
    report = json.loads(out)  # what the script prints stays away from stdout
    assert "step 0 of 2 ranks" in err
    assert "an eager host is assumed" in err
    sent = {call["call"]: call for call in report["modules"]["communication"]}
    assert sent["all_reduce"]["calls"] == 2
    assert sent["all_reduce"]["bytes"] == 4 * (128 * 128 + 128)
    assert report["ranks"] == {"captured": [0], "compared": [1], "assumed": 0}
    assert report["throughput"]["tokens_per_s"] == pytest.approx(8 / report["step_time_s"])
    assert all(change["step_time_s"] <= report["step_time_s"] for change in report["advice"])
    written = json.loads(output.read_text())
    assert written["provenance"]["world"] == 2
    assert not any(Path(path).is_absolute() for path in written["profile"])
    assert run(output).step_ps == report["step_time_ps"]


def test_the_answer_tells_which_ranks_were_never_run(script: str, capsys: Any) -> None:
    arguments = ["capture", script, "--cluster", "dgx-h100", "--world", "10", "--no-advice"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "Ranks: 1 of 10 captured (0); 2 compared with them do as they (1, 9); that the" in out
    assert "the other 7 do so too is assumed (--compare-all runs them)." in out
    assert "reserved by PyTorch's allocator." in out
    assert main([*arguments, "--compare-all"]) == 0
    assert "9 compared with them do as they (1, 2, 3, 4, 5, 6, ..., 9)." in capsys.readouterr().out


def test_worlds_are_captured_anew(script: str, capsys: Any) -> None:
    code = main(["capture", script, "--cluster", "dgx-h100", "--world", "2,4", "--rank", "0"])
    assert code == 0
    out = capsys.readouterr().out
    assert "Each world captured anew" in out
    assert [line.split()[0] for line in out.splitlines()[2:]] == ["2", "4"]


WRONG = {
    "raise ValueError('no data')": "ValueError: no data",
    "import torch": "ended before its second step",
    "raise SystemExit(3)": "the script ended with 3",
    "import a_module_of_nobody": "No module named 'a_module_of_nobody'",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_with_a_script_is_one_line(text: str, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "train.py"
    path.write_text(text)
    assert main(["capture", str(path), "--cluster", "dgx-h100", "--world", "2"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{path}: rank 0: ")
    assert WRONG[text] in line


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--world", "17", "--nodes", "2"], "--world: 17 ranks, 8 on a node, do not fit"),
        (["--world", "0"], "--world: must be at least 1"),
        (["--world", "2", "--rank", "2"], "rank 2: the world has 2 ranks"),
        (["--world", "2", "--what-if", "batch=2"], "--what-if: must be NAME=VALUE"),
        (["--world", "2,4", "-o", "step.json"], "--output: goes with one --world, got 2"),
        (["--rank", "1", "--compare-all"], "--compare-all: finds the ranks to capture"),
        (["--profile", "nowhere.jsonl"], "nowhere.jsonl: "),
        (["--tokens", "0"], "--tokens: must be at least 1"),
    ],
)
def test_what_cannot_be_is_refused(
    arguments: list[str], reason: str, script: str, capsys: Any
) -> None:
    assert main(["capture", script, "--cluster", "dgx-h100", *arguments]) == 2
    assert reason in capsys.readouterr().err


def test_arguments_of_the_script_stand_behind_a_rule(script: str, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main(["capture", script, "--cluster", "dgx-h100", "--width", "128"])
    assert "what is for the script stands behind --" in capsys.readouterr().err


def test_a_script_that_is_not_there(capsys: Any) -> None:
    assert main(["capture", "nowhere.py", "--cluster", "dgx-h100", "--world", "2"]) == 2
    assert capsys.readouterr().err == "nowhere.py: no such file\n"
