"""Two steps side by side: what changed, told exactly, in text, JSON and on a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bad.scenarios import CLUSTER, scenario
from simdev.commands import main
from simdev.execution.scenario import Outcome, load_scenario
from simdev.nouns.draws import are_tied, wins
from simdev.report import Report, analyze, run
from simdev.report.page import Subject, compare_data, compare_tables, verdict
from worlds.traces import Span, trace_of


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One device (1 us each for a and b), and two devices with 8 bytes between them at 1 GB/s."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.json").write_text(scenario())
    (tmp_path / "two.json").write_text(scenario(strategy={"a": "gpu:0", "b": "gpu:1"}))
    return tmp_path


def subject(name: str, **changes: Any) -> Subject:
    return Subject(name, run(load_scenario(json.loads(scenario(**changes)))))


def rows(first: Subject, second: Subject) -> dict[str, dict[str, tuple[Any, ...]]]:
    tables = compare_tables(first, second)
    return {sheet.title: {row[0]: row[1:] for row in sheet.rows} for sheet in tables}


def test_what_changed_is_told_exactly() -> None:
    one, two = subject("one"), subject("two", strategy={"a": "gpu:0", "b": "gpu:1"})
    found = rows(one, two)
    assert found["The step"]["step time"] == ("2 us", "2.008 us", 0.004)
    assert found["Critical path: what the step time is spent on"]["transfer"] == (
        0,
        8000,
        8000,
        None,
    )
    assert found["Devices"]["gpu:1"] == (0, 1_000_000, 0.0, 1_000_000 / 2_008_000, 0, 8)
    assert found["Work by kind of task"]["forward"] == (2_000_000, 2_000_000, 0, 0.0)
    assert found["Tasks that changed most"]["b"] == (
        *("gpu:0", "gpu:1"),
        *(1_000_000, 1_000_000, 0),
        *(1_000_000, 1_008_000, 8_000),
    )
    assert "a" not in found["Tasks that changed most"]


def test_a_period_beside_a_step_is_called_one() -> None:
    once, again = subject("once"), subject("again", options={"steps": "repeated"})
    assert rows(once, again)["The step"]["step time"][:2] == ("2 us", "2 us (period)")


def test_a_step_against_itself_has_no_change() -> None:
    one = subject("one", strategy={"a": "gpu:0", "b": "gpu:1"})
    found = rows(one, one)
    assert {row[2] for row in found["The step"].values()} == {0.0}
    assert found["Tasks that changed most"] == {}
    assert verdict(one, one) == "B (one) takes as long as A (one)"


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (200, 100, "B (b) is 2 times as fast as A (a)"),
        (100, 250, "B (b) takes 2.5 times as long as A (a)"),
        (1000, 1001, "B (b) takes 0.10% longer than A (a)"),
        (1000, 995, "B (b) takes 0.50% less time than A (a)"),
        (0, 5, "B (b) takes some time, A (a) none"),
        (0, 0, "B (b) takes as long as A (a)"),
    ],
)
def test_the_verdict_says_who_is_faster(before: int, after: int, told: str) -> None:
    first, second = (
        Subject(n, analyze(Outcome(trace_of([Span("x", 0, t, "gpu:0")]))))
        for n, t in (("a", before), ("b", after))
    )
    assert verdict(first, second) == told


def test_devices_and_tasks_of_one_only_are_told() -> None:
    first = Subject(
        "a",
        analyze(Outcome(trace_of([Span("x", 0, 5, "gpu:0"), Span("y", 5, 9, "gpu:0")], ["gpu:0"]))),
    )
    second = Subject(
        "b",
        analyze(Outcome(trace_of([Span("x", 0, 5, "gpu:9"), Span("z", 5, 6, "gpu:9")], ["gpu:9"]))),
    )
    tables = {sheet.title: sheet for sheet in compare_tables(first, second)}
    assert {row[0]: row[1:3] for row in tables["Devices"].rows} == {
        "gpu:0": (9, None),
        "gpu:9": (None, 6),
    }
    assert tables["Tasks that changed most"].note.startswith(
        "1 tasks are in A only, 1 in B only; 1 of"
    )
    json.dumps(compare_data(first, second), allow_nan=False)


def test_compare_prints_text_and_json_and_writes_a_page(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "two.json", "--save", "two.run.json"]) == 0
    capsys.readouterr()
    assert main(["compare", "one.json", "two.run.json", "-o", "c.html"]) == 0
    printed = capsys.readouterr()
    assert "B (two.run.json) takes 0.40% longer than A (one.json)" in printed.out
    assert "step time" in printed.out
    assert printed.err == "page: c.html\n"
    assert (here / "c.html").read_text().startswith("<!doctype html>")
    assert main(["compare", "one.json", "two.json", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["a"], told["b"]) == ("one.json", "two.json")
    assert next(sheet["title"] for sheet in told["sheets"]) == "The step"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["one.json", "none.json"], "none.json: no such file"),
        (["one.json", "r.csv"], "r.csv: is a table; compare takes scenarios and saved runs"),
        (["-", "-"], "A and B: only one of them can be stdin"),
        (
            ["one.json", "two.json", "-o", "new.json"],
            "--output: new.json: the name must end in .html or .htm",
        ),
        (["one.json", "bad.json"], 'bad.json: strategy.placement["a"]: no device named "gpu:7"'),
    ],
)
def test_what_cannot_be_compared_is_one_message(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    (here / "bad.json").write_text(scenario(strategy={"a": "gpu:7", "b": "gpu:0"}))
    before = (here / "two.json").read_text()
    assert main(["compare", *arguments]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"{told}\n")
    assert (here / "two.json").read_text() == before


def test_a_step_that_does_not_fit_is_compared_too(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "oom.json").write_text(
        scenario(cluster=CLUSTER | {"devices": [{"name": "gpu:0", "memory": 5}]})
    )
    assert main(["compare", "one.json", "oom.json"]) == 0
    assert "memory over capacity" in capsys.readouterr().out


def test_files_of_one_name_are_told_apart_by_their_folders(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "other").mkdir()
    (here / "other" / "one.json").write_text(scenario())
    assert main(["compare", "one.json", "other/one.json"]) == 0
    assert "B (other/one.json) takes as long as A (one.json)" in capsys.readouterr().out
    assert main(["compare", "one.json", "two.json"]) == 0
    assert "B (two.json)" in capsys.readouterr().out


def test_draws_of_one_scenario_are_a_tie(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = ["alexnet-2x-gpu-staged"] * 2
    assert main(["compare", *both, "--draws", "20", "--json"]) == 0
    draws = json.loads(capsys.readouterr().out)["draws"]
    added = {"p10": 0, "p50": 0, "p90": 0}
    expected = {"count": 20, "seed": 0, "a_faster": 0.5, "tie": True, "added_ps": added}
    assert draws == expected


def test_with_common_random_numbers_a_slower_link_always_loses() -> None:
    def on(bandwidth: str) -> Report:
        cluster = {"links": [{"ends": ["gpu:0", "gpu:1"], "bandwidth": bandwidth}]}
        strategy = {"a": "gpu:0", "b": "gpu:1"}
        question = json.loads(scenario(strategy=strategy))
        question["cluster"] = {**question["cluster"], **cluster}
        return run(load_scenario(question), draws=50)

    fast, slow = on("1 GB/s").draws, on("0.5 GB/s").draws
    assert fast is not None
    assert slow is not None
    assert (fast.step_ps < slow.step_ps).all()
    assert wins(fast.step_ps, slow.step_ps) == 1
    assert not are_tied(fast.step_ps, slow.step_ps)


def test_what_tells_no_errors_is_not_drawn(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "one.json", "--save", "run.json"]) == 0
    capsys.readouterr()
    assert main(["compare", "one.json", "run.json", "--draws", "20"]) == 2
    message = "run.json: draws: a saved run tells no errors; give its scenario\n"
    assert capsys.readouterr().err == message
