"""Draws of plans: the interval of each row, and which rows are ties."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import simdev
from simdev.commands import main
from simdev.nouns.draws import Draws, is_tie, percentiles, wins
from simdev.report.page.answers import plans_data
from simdev.search.plan import Plans, choices_of, plans_of, question_of

TINY = {"model": "llama3.2-1b", "layers": 4, "length": 512}
CHOICES = {
    "cp": 1, "zero": 1, "recompute": "none", "schedule": "1F1B", "microbatch": 1, "pp": [1, 2],
}  # fmt: skip
COUNT, SEED = 40, 3


@cache
def drawn() -> Plans:
    question = question_of(TINY, "dgx-h100", 16)
    return plans_of(question, choices_of(CHOICES), 3, alike=True, draws=COUNT, seed=SEED)


def test_a_row_has_the_draws_of_its_scenario_by_common_random_numbers() -> None:
    frame = drawn().frame
    assert len(frame) == 3
    draws = [simdev.run(scenario, draws=COUNT, seed=SEED).draws for scenario in frame["scenario"]]
    steps = [each.step_ps for each in draws if each is not None]
    for row, each in zip(frame.to_dict("records"), draws, strict=True):
        assert each is not None
        low, middle, high = percentiles(each.step_ps)
        assert [row[f"step_p{part}_s"] for part in (10, 50, 90)] == [
            low / 1e12, middle / 1e12, high / 1e12,
        ]  # fmt: skip
        assert low < row["step_time_ps"] < high
        assert row["peak_p10_bytes"] <= row["peak_bytes"] <= row["peak_p90_bytes"]
        assert row["beats_best"] == wins(each.step_ps, steps[0])
        assert row["tied"] == is_tie(row["beats_best"])
    best = np.stack(steps).argmin(axis=0)
    assert frame["first_in_draws"].tolist() == [float((best == i).mean()) for i in range(3)]


def test_without_errors_every_percentile_is_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simdev.costs.drawn.sigma_of", lambda error: 0.0)
    question = question_of(TINY, "dgx-h100", 16)
    plans = plans_of(question, choices_of(CHOICES), 3, alike=True, draws=5)
    for row in plans.frame.to_dict("records"):
        assert {row[f"step_p{part}_s"] for part in (10, 50, 90)} == {row["step_time_s"]}
        assert {row[f"peak_p{part}_bytes"] for part in (10, 50, 90)} == {row["peak_bytes"]}
    # Nothing but the order of equal steps is open then.
    steps, beats = plans.frame["step_time_ps"], plans.frame["beats_best"]
    assert beats.tolist() == [0.5 if step == steps[0] else 0.0 for step in steps]


def test_equal_plans_tie_and_one_twice_as_slow_loses_every_draw() -> None:
    plans = drawn()
    first: Draws = plans.draws[0]
    slow = replace(first, step_ps=2 * first.step_ps)
    frame = replace(plans, draws=(first, first, slow)).frame
    assert frame["tied"].tolist() == [True, True, False]
    assert frame["beats_best"].tolist() == [0.5, 0.5, 0.0]
    assert frame["first_in_draws"].tolist() == [0.5, 0.5, 0.0]
    # The pair of equals counts 0, the two others 1 each.
    assert frame.attrs["counts"]["draws"] == {
        "count": COUNT, "seed": SEED, "kendall_tau": pytest.approx(2 / 3),
    }  # fmt: skip


def test_a_faster_answer_is_told_apart_from_80_percent_of_the_draws_on() -> None:
    assert [is_tie(share) for share in (0.0, 0.2, 0.21, 0.5, 0.79, 0.8, 1.0)] == [
        False, False, True, True, True, False, False,
    ]  # fmt: skip


def test_the_command_shows_intervals_and_ties(capsys: pytest.CaptureFixture[str]) -> None:
    model = ["llama3.2-1b", "--cluster", "dgx-h100", "--global-batch", "16", "--length", "512"]
    sets = [f"--set={name}={','.join(map(str, value))}" for name, value in
            {name: value if isinstance(value, list) else [value]
             for name, value in CHOICES.items()}.items()]  # fmt: skip
    command = ["plan", *model, *sets, "--top", "3", "--draws", "20"]
    assert main([*command, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert main(command) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    head = next(line for line in lines if line.lstrip().startswith("#"))
    rows = lines[lines.index(head) + 1 :][: len(answer["plans"])]
    for row, plan in zip(rows, answer["plans"], strict=True):
        assert f"{plan['beats_best']:.0%}" in row
        assert (" =  " in row) == (plan["tied"] and plan is not answer["plans"][0])
    assert "the faster wins in fewer than 80% of the draws" in text
    sure = f"How sure: the best stays first in {answer['plans'][0]['first_in_draws']:.0%}"
    assert lines[-1].startswith(sure)
    assert lines[-1] in plans_data(answer, "plans.json")["notes"]


@pytest.mark.parametrize(("option", "name"), [("--draws=-1", "draws"), ("--seed=-1", "seed")])
def test_what_is_no_number_of_draws_is_refused_before_anything_runs(
    option: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ["plan", "llama3-70b", "--cluster", "dgx-h100", "--global-batch", "512"]
    assert main([*model, option]) == 2
    assert f"--{name}: must be a whole number" in capsys.readouterr().err


def test_draws_go_with_a_model_by_its_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "gnmt", "--cluster", "dgx-1v", "--global-batch", "8", "--draws=9"]) == 2
    assert "--draws: goes with a model by its sizes" in capsys.readouterr().err
