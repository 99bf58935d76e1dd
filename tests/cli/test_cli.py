"""The command line: what goes to stdout and to stderr, and files that appear whole or not."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest

from bad.runs import edited
from bad.scenarios import CLUSTER, GRAPH, scenario
from commands import command, names
from simdev.commands import main
from worlds.costs import row_of
from worlds.scenarios import question, written


def test_simulate_prints_a_report(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "s.json"]) == 0
    printed = capsys.readouterr()
    assert "2.008 us" in printed.out
    assert "FITS" in printed.out
    assert printed.err == ""


def test_simulate_prints_one_object_of_json(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "s.json", "--json", "--engine", "simpy"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["step_time_ps"], report["step_time_s"]) == (2_008_000, 2.008e-6)
    assert (report["feasible"], report["memory_excess_bytes"], report["engine"]) == (
        True,
        0,
        "simpy",
    )
    assert report["transfers"] == {"count": 1, "bytes": 8}
    assert {"busy_s", "utilization", "peak_bytes", "capacity_bytes"} <= set(
        report["devices"]["gpu:1"]
    )
    assert [segment["blame"] for segment in report["critical_path"]] == [
        "compute",
        "transfer",
        "compute",
    ]
    assert report["costs"] == {"given": 1.0}


def test_a_step_that_does_not_fit_exits_1_and_still_writes(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "oom.json", "--json", "--save", "r.json"]) == 1
    assert json.loads(capsys.readouterr().out)["memory_excess_bytes"] == 3
    assert main(["check", "r.json"]) == 0


def test_every_output_is_written(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = ["--gantt", "g.svg", "--trace", "t.json.gz", "--save", "r.json.gz"]
    assert main(["simulate", "s.json", "--check", *outputs]) == 0
    assert names(here) == {"s.json", "oom.json", "g.svg", "t.json.gz", "r.json.gz"}
    assert "<svg" in Path("g.svg").read_text()
    assert json.loads(gzip.decompress(Path("t.json.gz").read_bytes()))["traceEvents"]
    assert json.loads(gzip.decompress(Path("r.json.gz").read_bytes()))["version"] == 1


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_the_same_input_draws_the_same_bytes(
    ending: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contents = []
    for _ in range(2):
        assert (
            main(
                [
                    "simulate",
                    "s.json",
                    "--gantt",
                    f"g.{ending}",
                    "--save",
                    "r.json",
                    "--trace",
                    "t.json",
                ]
            )
            == 0
        )
        contents.append([Path(name).read_bytes() for name in (f"g.{ending}", "r.json", "t.json")])
    assert contents[0] == contents[1]


def test_files_of_the_scenario_are_not_overwritten(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads((here / "s.json").read_text())
    written(here / "g.json", document["graph"])
    written(here / "by_name.json", {**document, "graph": "g.json"})
    before = (here / "g.json").read_bytes()
    assert main(["simulate", "by_name.json", "--save", "./g.json"]) == 2
    assert capsys.readouterr() == (
        "",
        "--save: ./g.json is a file of the scenario by_name.json too\n",
    )
    assert (here / "g.json").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--gantt", "no/where.png"],
            "--gantt: cannot write no/where.png: no such file or directory",
        ),
        (["--save", "folder.json"], "--save: cannot write folder.json: is a directory"),
        (["--trace", "s.json/t.json"], "--trace: cannot write s.json/t.json: not a directory"),
        (["--gantt", "g.json"], "--gantt: g.json: the name must end in .png or .svg or .pdf"),
        (["--trace", "t.txt"], "--trace: t.txt: the name must end in .json or .json.gz"),
        (["--save", "./s.json"], "--save: ./s.json is the scenario s.json too"),
        (["--save", "x.json", "--trace", "x.json"], "--save: x.json is the output of --trace too"),
        (["--save", "a\0b.json"], "--save: cannot write a\\x00b.json: embedded null byte"),
    ],
)
def test_what_cannot_be_written_is_told_before_any_work(
    arguments: list[str], message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "folder.json").mkdir()
    before = names(here)
    assert main(["simulate", "s.json", *arguments]) == 2
    assert capsys.readouterr() == ("", message + "\n")
    assert names(here) == before


def test_bad_input_leaves_no_output_and_keeps_the_old_one(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("r.json").write_text("old")
    Path("bad.json").write_text("{}")
    assert main(["simulate", "bad.json", "--save", "r.json", "--gantt", "g.png"]) == 2
    assert Path("r.json").read_text() == "old"
    assert names(here) == {"s.json", "oom.json", "bad.json", "r.json"}


def test_standard_input_is_a_scenario_too(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = command(["simulate", "-", "--json"], input=Path("s.json").read_text())
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["step_time_ps"] == 2_008_000
    monkeypatch.setattr(
        "sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"version": 1, "graph": "g.json"'))
    )
    assert main(["simulate", "-"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("<stdin>: line 1, column 33: not JSON")


def test_other_files_are_told_what_takes_them(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, verb in (("m.py", "simdev profile"), ("p.jsonl", "names"), ("m.onnx", "import")):
        (here / name).write_text("x = 1\n")
        assert main(["simulate", name]) == 2
        assert verb in capsys.readouterr().err
        (here / name).write_text((here / "s.json").read_text())
        assert main(["simulate", name]) == 0


def test_strict_refuses_estimates(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = row_of("m")
    graph = {"ops": [{"name": "a", "kind": "m"}, {"name": "b", "time": "3 us"}]}
    Path("e.json").write_text(
        scenario(graph=graph, profile={"rows": [row | {"src": "model:mine"}]})
    )
    Path("m.json").write_text(scenario(graph=graph, profile={"rows": [row]}))
    assert main(["simulate", "m.json", "--strict"]) == 0
    assert main(["simulate", "e.json"]) == 0
    capsys.readouterr()
    assert main(["simulate", "e.json", "--strict"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        'e.json: ops[0]: no given or measured time for "a" on a device of kind "gpu"'
    )
    assert error.count("\n") == 1


def test_an_engine_can_be_chosen(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr("simdev.execution.engine.ENGINES", ("simpy",))
    assert main(["simulate", "s.json", "--engine", "compiled"]) == 2
    assert '"compiled" is not available' in capsys.readouterr().err


BREAKS: dict[str, tuple[tuple[str, Any], ...]] = {
    "starts_too_early": (("spans.start_ps.1", 1_007_999), ("spans.finish_ps.1", 2_007_999)),
    "takes_too_long": (("spans.finish_ps.1", 2_008_001),),
    "never_ran": (("spans.start_ps.0", -1), ("spans.finish_ps.0", -1)),
    "waits_for_nothing": (("spans.start_ps.1", 1_008_001), ("spans.finish_ps.1", 2_008_001)),
    "step_claimed_too_short": (("step_time_ps", 2_007_999),),
    "peak_claimed_too_low": (("memory.gpu:0.peak_bytes", 7),),
    "said_not_to_fit": (("feasible", False),),
}


@pytest.mark.parametrize("name", BREAKS)
def test_check_finds_what_was_broken_by_hand(
    name: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "s.json", "--save", "r.json"]) == 0
    run = json.loads(Path("r.json").read_text())
    written(Path("broken.json"), edited(run, BREAKS[name]))
    capsys.readouterr()
    assert main(["check", "r.json"]) == 0
    assert capsys.readouterr() == ("ok: 3 tasks, step 2.008e-06 s, no violation\n", "")
    assert main(["check", "broken.json"]) == 3
    printed = capsys.readouterr()
    assert printed.out
    assert "of the execution contract (times in ps)" in printed.err
    assert main(["check", "broken.json", "--json"]) == 3
    findings = json.loads(capsys.readouterr().out)
    assert findings["ok"] is False
    assert findings["tasks"] == 3
    assert {"rule", "names", "message"} == set(findings["violations"][0])


def test_a_failed_check_exits_3(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    from simdev.execution.check import Violation

    monkeypatch.setattr(
        "simdev.execution.check.check", lambda *_: (Violation("order", ("a",), "a was late"),)
    )
    assert main(["simulate", "s.json", "--check"]) == 3
    assert capsys.readouterr().err == "order: a was late\ncheck: 3 tasks, 1 violation\n"


def test_outputs_may_be_what_is_no_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            [
                "simulate",
                "s.json",
                "--gantt",
                "/dev/null",
                "--trace",
                "/dev/null",
                "--save",
                "/dev/null",
            ]
        )
        == 0
    )
    assert Path("/dev/null").is_char_device()


def test_a_saved_run_may_come_by_standard_input(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["simulate", "s.json", "--save", "r.json.gz"]) == 0
    stream = io.TextIOWrapper(io.BytesIO(Path("r.json.gz").read_bytes()))
    monkeypatch.setattr("sys.stdin", stream)
    assert main(["check", "-"]) == 0


def in_order(value: Any, turn: int) -> dict[str, Any]:
    return dict(list(value.items())[::turn])


def test_the_order_of_keys_links_and_entries_changes_nothing(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = []
    for turn in (1, -1):
        parts = question(GRAPH, CLUSTER, {"a": "gpu:0", "b": "gpu:1"})
        turned = {
            key: part if key == "version" else in_order(part, turn) for key, part in parts.items()
        }
        written(Path("t.json"), in_order(turned, turn))
        assert main(["simulate", "t.json", "--json", "--save", "r.json"]) == 0
        outputs.append((capsys.readouterr().out, Path("r.json").read_bytes()))
    assert outputs[0] == outputs[1]
