"""Broken files: every one is refused with the exact message, by the library and by the command
line.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bad.case import Bad
from bad.clusters import CLUSTERS
from bad.graphs import GRAPHS
from bad.profiles import PROFILES, row
from bad.runs import broken_runs
from bad.scenarios import SCENARIOS, scenario
from bad.strategies import STRATEGIES
from simdev import load_scenario, run
from simdev.commands import main
from simdev.files import (
    read_cluster,
    read_graph,
    read_profile,
    read_run,
    read_scenario,
    read_strategy,
    write_run,
)
from simdev.ground.errors import InputError
from worlds.scenarios import written

READERS: dict[str, Callable[[str], Any]] = {
    "graph": read_graph,
    "cluster": read_cluster,
    "strategy": read_strategy,
    "profile": read_profile,
    "run": read_run,
    "scenario": read_scenario,
}


def valid_run(folder: Path) -> dict[str, Any]:
    """A run of two ops on two devices, as its file tells it."""
    path = folder / "run.json"
    parts = json.loads(scenario(strategy={"a": "gpu:0", "b": "gpu:1"}))
    write_run(run(load_scenario(parts)).trace, path)
    saved: dict[str, Any] = json.loads(path.read_text())
    return saved


def named(cases: tuple[Bad, ...]) -> list[Any]:
    return [pytest.param(case, id=f"{case.kind}-{case.name}") for case in cases]


@pytest.mark.parametrize("case", named(GRAPHS + CLUSTERS + STRATEGIES + PROFILES))
def test_a_broken_part_is_refused(case: Bad, here: Path) -> None:
    Path(case.file).write_text(case.text, encoding="utf-8")
    with pytest.raises(InputError) as error:
        READERS[case.kind](case.file)
    assert str(error.value) == case.stderr


@pytest.mark.parametrize("case", named(SCENARIOS))
def test_a_broken_scenario_is_refused(
    case: Bad, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(case.file).write_text(case.text, encoding="utf-8")
    assert main(["simulate", case.file]) == 2
    printed = capsys.readouterr()
    assert printed.err.rstrip("\n") == case.stderr
    assert printed.out == ""


def test_broken_runs_are_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = broken_runs(valid_run(here))
    assert len(cases) > 30
    for case in cases:
        Path(case.file).write_text(case.text, encoding="utf-8")
        assert main(["check", case.file]) == 2, case.name
        assert capsys.readouterr().err.rstrip("\n") == case.stderr, case.name


def test_the_corpus_is_large_and_its_names_are_distinct(here: Path) -> None:
    cases = GRAPHS + CLUSTERS + STRATEGIES + PROFILES + SCENARIOS + broken_runs(valid_run(here))
    assert len(cases) >= 200
    assert len({(case.kind, case.name) for case in cases}) == len(cases)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "latin.json",
            '{"version": 1, "name": "é"}'.encode("latin-1"),
            "not UTF-8 text: byte 24 is 0xe9",
        ),
        ("utf16.json", '{"version": 1}'.encode("utf-16"), "not UTF-8 text: byte 0 is 0xff"),
        ("zeros.json", b"\0" * 8, "column 1: not JSON: expecting value"),
        ("plain.json.gz", b'{"version": 1}', "damaged gzip file"),
        (
            "cut.json.gz",
            gzip.compress(b'{"version": 1, "ops": []}', mtime=0)[:-9],
            "damaged gzip file",
        ),
        (
            "flipped.json.gz",
            gzip.compress(b'{"version": 1, "ops": []}', mtime=0)[:-3] + b"xyz",
            "damaged gzip file",
        ),
        (
            "bomb.json.gz",
            gzip.compress(b" " * 2**25, mtime=0),
            "unpacks to more than 16777216 bytes: refused as a decompression bomb",
        ),
        ("commas.json", b"[" + b"," * 20_000_001 + b"]", "holds more than 20000000 values"),
    ],
)
def test_broken_bytes_are_refused(name: str, content: bytes, message: str, here: Path) -> None:
    Path(name).write_bytes(content)
    for read in (read_graph, read_profile):
        with pytest.raises(InputError) as error:
            read(name)
        assert message in str(error.value)
        assert str(error.value).startswith(f"{name}: ")


def test_a_text_beyond_the_limit_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simdev.files.reading.MAX_TEXT", 2**20)
    Path("large.json").write_text(" " * (2**20 + 1))
    with pytest.raises(InputError, match=r"large\.json: larger than 1 MiB"):
        read_graph("large.json")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere.json", "nowhere.json: no such file"),
        (".", ".: is a directory"),
        ("f.json/g.json", "f.json/g.json: no such file"),
        ("a\0b", "a\\x00b: cannot be read"),
        ("n" * 300, f"{'n' * 300}: File name too long"),
    ],
)
def test_a_path_that_leads_nowhere_is_told(path: str, message: str, here: Path) -> None:
    Path("f.json").write_text("{}")
    with pytest.raises(InputError) as error:
        read_graph(path)
    assert str(error.value) == message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_told(here: Path) -> None:
    Path("f.json").write_text("{}")
    Path("f.json").chmod(0)
    with pytest.raises(InputError, match=r"^f\.json: permission denied$"):
        read_graph("f.json")


def test_every_file_of_a_scenario_is_judged_at_once(here: Path) -> None:
    Path("scenarios").mkdir()
    Path("g.json").write_text('{"version": 1, "ops": 1}')
    Path("p.jsonl").write_text(row() + "\n" + row(v=2))
    parts = scenario(
        graph="../g.json", profile=["../p.jsonl", "q.jsonl"], cluster="nowhere", strategy={"a": 1}
    )
    Path("scenarios/s.json").write_text(parts)
    with pytest.raises(InputError) as error:
        load_scenario("scenarios/s.json")
    assert str(error.value).split("\n") == [
        "g.json: ops: must be a list, got 1",
        (
            'scenarios/s.json: cluster: neither a file nor a preset: "nowhere"; there are '
            'those of "simdev clusters"'
        ),
        "p.jsonl: line 2: v: must be 1, the only one that this simdev reads; got 2",
        "scenarios/q.jsonl: no such file",
        'scenarios/s.json: strategy.placement["a"]: must be text, got 1',
    ]


def test_a_misplaced_op_is_told_of_the_strategy_file(here: Path) -> None:
    Path("bare.json").write_text('{"*": "gpu:9"}')
    Path("s.json").write_text(scenario(strategy="bare.json"))
    with pytest.raises(
        InputError, match=r'^bare\.json: placement\["\*"\]: no device named "gpu:9"$'
    ):
        load_scenario("s.json")


def test_messages_stay_on_one_short_line_and_steer_no_terminal(here: Path) -> None:
    written(Path("f.json"), {"a\n\x1b[2J": "gpu:0", "b": 1, "c" * 5000: 2})
    with pytest.raises(InputError) as error:
        read_strategy("f.json")
    assert str(error.value).isascii()
    lines = str(error.value).split("\n")
    assert len(lines) == 2
    assert max(map(len, lines)) <= 600
    with pytest.raises(InputError, match=r'placement\["a\\n\\x1b\[2J"\]: no device named "gpu:0"'):
        load_scenario(
            json.loads(scenario(cluster={"devices": [{"name": "x"}]}, strategy="f.json"))
            | {"strategy": {"a\n\x1b[2J": "gpu:0"}}
        )


def test_thousands_of_problems_are_counted_and_not_listed(here: Path) -> None:
    written(Path("f.json"), {f"op{i}": i for i in range(1000)})
    with pytest.raises(InputError) as error:
        read_strategy("f.json")
    assert len(error.value.problems) == 1000
    assert str(error.value).split("\n")[5:] == ["... and 995 more"]


def test_the_command_itself_exits_2_without_a_traceback(here: Path) -> None:
    case = next(case for case in SCENARIOS if case.name == "all_parts_broken")
    Path(case.file).write_text(case.text, encoding="utf-8")
    command = [sys.executable, "-m", "simdev", "simulate", case.file]
    path = {"PYTHONPATH": str(Path(__file__).parents[2])}
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | path
    )
    assert (result.returncode, result.stdout, result.stderr.rstrip("\n")) == (2, "", case.stderr)


@pytest.mark.parametrize(
    "operands", [[[{"y": 1}]], [[1, [2]]], [[1.5]], [[-1]], [3], "4x4", {"y": 1}]
)
def test_operands_of_an_untimed_op_are_shapes_or_refused(operands: object) -> None:
    value = json.loads(
        scenario(cluster={"version": 1, "devices": [{"name": "gpu:0", "kind": "h100-sxm"}]})
    )
    made = {"shape": [4, 4], "dtype": "float32", "bytes": 64}
    ops = [
        {"name": "x", "kind": "parameter", "outputs": [made]},
        {
            "name": "y",
            "kind": "relu",
            "inputs": ["x"],
            "attrs": {"in": operands},
            "outputs": [made],
        },
    ]
    value |= {"graph": {"version": 1, "ops": ops}, "strategy": {"placement": {"*": "gpu:0"}}}
    with pytest.raises(InputError, match=r'op "y": attrs\.in: must be a list of shapes'):
        run(load_scenario(value))
