"""The pages of plans and searches: what their JSON says, ranked and in words; and which rows of a
table are the best.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal
from pathlib import Path

import pytest

from answers import PLANS, SEARCH
from simdev.commands import main
from simdev.commands.plan import write_plans
from simdev.ground.errors import InputError
from simdev.report.page import answers_data
from simdev.report.table import ranking


def test_plans_are_ranked_and_told_why_they_lose() -> None:
    data = answers_data(PLANS, "plans.json") or {}
    assert data["title"] == "tiny on dgx-h100, 32 samples a step: dp 8, 1 s"
    assert data["ranking"]["order"] == [0, 1, 2, 3]
    assert data["ranking"]["front"] == [0, 2]  # the others are as slow with more memory, or slower
    assert data["notes"] == [
        "1 of the plans below are as fast as the first.",
        "The runner-up, dp 2, tp 4, takes longer by 25.0%: tensor +20.0%, bubble +5.0%.",
    ]
    (sheet,) = data["sheets"]
    assert ["illegal", "tp: 3 does not divide heads", 4] in sheet["rows"]
    titles = [column["title"] for column in data["columns"]]
    assert "pp" not in titles  # one value, which says nothing
    assert titles[:2] == ["plan", "step_time_s"]
    json.dumps(data, allow_nan=False)


def test_what_could_not_be_simulated_is_no_proof() -> None:
    counts = PLANS["counts"] | {"refused": {"too many tasks": 3}}
    data = answers_data(PLANS | {"counts": counts}, "plans.json") or {}
    assert "3 plans could not be simulated, and could be faster" in data["notes"][-1]


def test_where_no_plan_fits_that_is_told() -> None:
    data = answers_data({"counts": PLANS["counts"], "plans": []}, "plans.json") or {}
    assert (data["fits"], data["headline"]) == (False, "No plan fits; each needs 5 B or more")


def test_methods_of_a_search_stand_best_first_with_their_curves() -> None:
    data = answers_data(SEARCH, "search.json") or {}
    assert data["title"] == "Which method finds the shortest step: fast, 1 s"
    assert data["headline"] == (
        "fast: 2.00 times as fast as one device, 1.50 times as fast as the scenario's strategy"
    )
    assert [curve["method"] for curve in data["curves"]["evaluations"]] == ["fast", "slow"]
    (sheet,) = data["sheets"]
    assert [row[0] for row in sheet["rows"]] == ["fast", "slow", "none"]
    assert sheet["rows"][2][-1] == "does not fit, too big"


@pytest.mark.parametrize("field", ["plans", "methods", "curve"])
def test_what_is_not_whole_is_refused_in_a_line(field: str) -> None:
    with pytest.raises(InputError, match=f"x.json: {field}: is not what simdev wrote"):
        answers_data({field: [{"no": 1}]}, "x.json")


@pytest.mark.parametrize("number", [0, 10**400, math.inf, math.nan, Decimal("1e999"), "1"])
def test_numbers_that_no_search_writes_are_refused_in_a_line(number: object) -> None:
    curve: dict[str, list[object]] = {
        "evaluation": [1], "step_time_s": [1.0], "memory_excess_bytes": [0], "cpu_seconds": [1.0]
    }  # fmt: skip
    value = {
        "curve": curve, "method": "anneal", "step_time_s": number, "feasible": True,
        "peak_bytes": [1], "cpu_seconds": 1.0, "evaluations": 1, "single_step_time_s": 1.0,
    }  # fmt: skip
    with pytest.raises(InputError, match=r"x.json: curve: is not what simdev wrote"):
        answers_data(value, "x.json")


def test_a_scenario_is_no_answer() -> None:
    assert answers_data({"graph": {}, "cluster": "x"}, "s.json") is None
    assert answers_data([1], "s.json") is None


def test_a_search_becomes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.json").write_text(json.dumps(SEARCH))
    out = tmp_path / "p.html"
    assert main(["report", str(tmp_path / "s.json"), "-o", str(out)]) == 0
    assert "<title>Which method finds" in out.read_text("utf-8")
    assert main(["report", str(tmp_path / "s.json"), "--json"]) == 2
    assert "--json prints the figures of one step" in capsys.readouterr().err


def test_of_a_folder_without_plans_the_folder_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "plans", tmp_path / "p.html"
    folder.mkdir()
    assert main(["report", str(folder), "-o", str(out)]) == 2
    reason = "has no plans.json, which simdev plan --output writes"
    assert capsys.readouterr().err == f"{folder}: {reason}\n"
    (folder / "plans.json").write_text('{"plans": [{"pp": 1}], "counts": {}}')
    assert main(["report", str(folder), "-o", str(out)]) == 2
    reason = "plans: is not what simdev wrote: no 'step_time_s'"
    assert capsys.readouterr().err == f"{folder / 'plans.json'}: {reason}\n"
    assert not out.exists()


def test_plans_that_cannot_be_written_whole_leave_those_before_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plans(PLANS, str(tmp_path))
    before = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert sorted(before) == [*(f"{n:02}.json" for n in range(1, 5)), "plans.html", "plans.json"]

    def full(place: str, text: str) -> None:
        raise OSError(28, "No space left on device", place)

    monkeypatch.setattr("simdev.files.writing.write_text", full)
    with pytest.raises(InputError, match=r"--output: cannot write .*: no space left"):
        write_plans(PLANS, str(tmp_path))
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == before


def test_of_different_batches_the_rate_counts() -> None:
    columns = {"step_time_s": [1.0, 3.0], "samples_per_s": [10.0, 20.0]}
    assert ranking(columns, [True, True], [10, 60]).order == (1, 0)
    assert ranking(columns, [True, True], [10, 10]).order == (0, 1)


def test_what_does_not_fit_stands_apart_and_beats_nothing() -> None:
    columns = {"step_time_s": [1.0, 3.0, 4.0], "peak_bytes": [1, 9, 5]}
    ranks = ranking(columns, [False, True, True], [1, 1, 1])
    assert (ranks.order, ranks.front, ranks.apart) == ((1, 2), (1, 2), (0,))


def test_of_equal_rows_the_first_is_on_the_front() -> None:
    columns = {"step_time_s": [2.0, 2.0, 3.0], "peak_bytes": [5, 5, 4]}
    assert ranking(columns, [True] * 3, [1] * 3).front == (0, 2)
