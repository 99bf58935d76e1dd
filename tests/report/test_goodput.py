"""Long runs that fail: goodput beside closed forms, the best interval beside Young's and Daly's."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from simdev import InputError, load_scenario, run
from simdev.commands import main
from simdev.execution.goodput import (
    MOST,
    SHARES,
    Fleet,
    best_interval,
    expected_goodput,
    failure_rate,
    goodput_of,
)
from simdev.nouns.failures import Failures
from simdev.report.page import Subject, page, run_data
from simdev.report.results import results_ranking
from simdev.search.sweep import sweep

DAY = 86_400
SINGLE = Fleet(1, 1, 0.01)
QUESTION: dict[str, Any] = {
    "version": 1,
    "graph": {"model": "lenet", "batch": 64},
    "cluster": "c4140-4x-v100",
    "strategy": "data-parallel",
    "failures": {"checkpoint": "1 min", "restart": "5 min", "node_mtbf": "5 days"},
}


def failing(checkpoint: str = "1 min", mtbf: str | None = "1 d", **more: Any) -> Failures:
    return Failures(checkpoint, more.pop("restart", "5 min"), None, mtbf, **more)


def daly(interval: float, stall: float, restart: float, mean: float) -> float:
    """Daly 2006, equation 13, as it stands there: the time of an interval of training."""
    return mean * math.exp(restart / mean) * (math.exp((interval + stall) / mean) - 1)


@pytest.mark.parametrize("checkpoint", [10, 60, 600])
@pytest.mark.parametrize("interval", [600, 3600, 20_000])
def test_simulated_goodput_is_that_of_dalys_model(checkpoint: int, interval: int) -> None:
    failures = failing(f"{checkpoint} s", interval=interval, length="10000 d")
    answer = goodput_of(failures, SINGLE)
    exact = interval / daly(interval, checkpoint, 300, DAY)
    assert answer.expected == pytest.approx(exact, rel=1e-9)
    assert answer.mean == pytest.approx(exact, rel=2e-3)
    # Any single run of 10,000 days is within 1 %, too.
    assert answer.shares[:, 0] == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize("checkpoint", [5, 30, 300])
def test_the_best_interval_is_youngs_and_dalys_where_checkpoints_are_short(checkpoint: int) -> None:
    best = best_interval(failing(f"{checkpoint} s"), SINGLE)
    share = checkpoint / (2 * DAY)
    young = math.sqrt(2 * checkpoint * DAY)
    # Daly 2006, equation 37, for checkpoints under twice the mean time.
    higher = young * (1 + math.sqrt(share) / 3 + share / 9) - checkpoint
    assert best == pytest.approx(young, rel=0.03)
    assert best == pytest.approx(higher, rel=1e-3)


def test_no_interval_is_better_than_the_best_by_formula_or_simulated() -> None:
    failures = failing("20 min", length="10000 d", restart="1 h", swap="2 h")
    best = best_interval(failures, SINGLE)
    others = [best * factor for factor in (0.5, 0.8, 1.25, 2)]
    exact = [expected_goodput(failures, SINGLE, interval) for interval in (best, *others)]
    simulated = [goodput_of(failures, SINGLE, interval).mean for interval in (best, *others)]
    assert exact[0] == max(exact)
    assert simulated[0] == max(simulated)
    near = [expected_goodput(failures, SINGLE, best + shift) for shift in (-1, 1)]
    assert exact[0] > max(near)


def test_without_failures_only_checkpoints_take_time() -> None:
    failures = failing(mtbf=None, interval="9 min", length="100 min")
    answer = goodput_of(failures, SINGLE)
    assert answer.expected == 540 / 600
    assert answer.mean == pytest.approx(540 / 600, rel=1e-12)
    assert not answer.failures.any()
    assert best_interval(failures, SINGLE) == 6000


def test_parts_of_a_run_add_up_and_failures_come_as_often_as_told() -> None:
    fleet = Fleet(16_384, 2048, 5.0)
    failures = Failures("30 s", "10 min", length="54 d")
    answer = goodput_of(failures, fleet)
    assert answer.shares.sum(axis=1) == pytest.approx(1)
    assert answer.shares.min() >= 0
    # 419 in 54 days of Llama 3; of these 4 % of the time no step ran, and machines failed too.
    assert failure_rate(failures, fleet) * 54 * DAY == pytest.approx(419, rel=0.01)
    assert answer.failures.mean() == pytest.approx(419, rel=0.02)


def test_a_checkpoint_that_is_written_beside_training_counts_later() -> None:
    late = failing("10 s", written="20 min", interval="1 h", length="10000 d")
    answer = goodput_of(late, SINGLE)
    exact = 3600 / (daly(3600, 10, 300, DAY) * math.exp(1200 / DAY))
    assert answer.mean == pytest.approx(exact, rel=2e-3)
    stalled = failing("20 min", interval="1 h", length="10000 d")
    assert answer.mean > goodput_of(stalled, SINGLE).mean
    with pytest.raises(InputError, match="shorter than a checkpoint takes to be written"):
        goodput_of(late, SINGLE, 600)
    assert best_interval(failing("1 s", written="5 h"), SINGLE) == 5 * 3600


def test_a_step_of_no_time_with_free_checkpoints_loses_restarts_alone() -> None:
    answer = goodput_of(failing("0 s", length="1000 d"), Fleet(1, 1, 0.0))
    # A day of training to each 300 s of restart, which fails as well.
    assert answer.mean == pytest.approx(math.exp(-300 / DAY), rel=1e-3)
    assert answer.expected == pytest.approx(math.exp(-300 / DAY), rel=1e-9)


def test_swaps_take_their_time_and_without_a_spare_the_run_waits_for_repair() -> None:
    swapped = failing(swap="1 h", interval="1 h", length="10000 d")
    # A failure costs an hour more: downtime d in (1/l + d) exp(l r) (exp(l (w + c)) - 1).
    exact = 3600 / (daly(3600, 60, 300, DAY) * (1 + 3600 / DAY))
    assert goodput_of(swapped, SINGLE).mean == pytest.approx(exact, rel=3e-3)
    # Without any spare each failure waits for a repair: that is a swap as long.
    repaired = failing(spares=0, repair="1 h", interval="1 h", length="10000 d")
    assert goodput_of(repaired, SINGLE).mean == pytest.approx(exact, rel=3e-3)
    assert goodput_of(repaired, SINGLE).expected is None


def test_spares_are_a_queue_of_machines() -> None:
    """Mean time between failures and repair are a day each, restarts take no time.

    With one spare the wait is w' = max(0, 1 - w - e) days after the wait w and an exponential day
    e. Its stationary density f has f(1 - x) = g(x), g' = g(1 - x) - g(x), so g is a constant: half
    of the failures wait not at all, the others by chance up to a day. The mean is a quarter.
    """
    settings = {"interval": "1 h", "length": "10000 d", "restart": 0, "repair": "1 d"}
    waits = [
        goodput_of(failing("1 s", spares=spares, **settings), SINGLE).shares.mean(0)
        for spares in (0, 1, 2, 50)
    ]
    waiting = [dict(zip(SHARES, shares, strict=True))["waiting for nodes"] for shares in waits]
    assert waiting == sorted(waiting, reverse=True)
    assert waiting[-1] == 0
    # Trains for a day in the mean, then waits for the day of a repair.
    assert waiting[0] == pytest.approx(0.5, abs=0.005)
    assert waiting[1] == pytest.approx(0.25 / 1.25, abs=0.003)


def test_runs_are_those_of_their_seed() -> None:
    first, again = (goodput_of(failing(seed=3), SINGLE) for _ in range(2))
    assert (first.shares == again.shares).all()
    assert (first.shares != goodput_of(failing(seed=4), SINGLE).shares).any()


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"checkpoint": -1}, "checkpoint: must be from 0 to a million years, got -1"),
        ({"length": 0}, "length: must be > 0, got 0"),
        ({"node_mtbf": "0 s"}, "node_mtbf: must be > 0, got 0"),
        ({"spares": -1, "repair": 1}, "spares: must be a whole number from 0 on, or null, got -1"),
        ({"spares": 1}, "repair: is needed with spares, for after it a node is a spare again"),
        ({"restart": "5 parsecs"}, 'restart: has the unknown unit "parsecs"'),
        ({"seed": 1.5}, "seed: must be a whole number from 0 on, got 1.5"),
    ],
)
def test_impossible_failures_are_told(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError) as caught:
        Failures(**({"checkpoint": 1, "restart": 1} | fields))
    assert str(caught.value).startswith(problem)


def test_files_tell_failures_and_their_faults_have_paths() -> None:
    assert load_scenario(QUESTION).failures == Failures("1 min", "5 min", node_mtbf="5 days")
    for failures, problem in (
        ({"checkpoint": "1 min"}, "failures.restart: missing"),
        ({"checkpoint": 1, "restart": 1, "spares": 1}, "failures.repair: is needed"),
        ({"checkpoint": "1 GB", "restart": 1}, "failures.checkpoint: has the unknown unit"),
    ):
        with pytest.raises(InputError) as caught:
            load_scenario(QUESTION | {"failures": failures})
        assert str(caught.value).startswith(problem)
    often = QUESTION["failures"] | {"device_mtbf": "1 min"}
    with pytest.raises(InputError, match=f"more than {MOST:,}"):
        run(QUESTION | {"failures": often}).to_json()


def test_the_report_tells_steps_that_count() -> None:
    report = run(QUESTION)
    goodput = report.goodput
    assert goodput is not None
    assert goodput.fleet == Fleet(4, 1, report.seconds)
    figures = report.to_json()["goodput"]
    assert figures["steps_per_day"] == pytest.approx(figures["goodput"] * DAY / report.seconds)
    assert sum(figures["shares"].values()) == pytest.approx(1)
    assert figures["interval_s"] == figures["best_interval_s"]
    assert f"Goodput {figures['goodput']:.1%} of 30 d" in str(report)
    assert "Where a long run's time goes" in str(report)
    assert run({k: v for k, v in QUESTION.items() if k != "failures"}).goodput is None


def test_the_page_draws_goodput_over_the_interval() -> None:
    scenario = load_scenario(QUESTION)
    data = run_data(Subject("lenet", run(scenario), scenario))
    curve = data["goodput"]
    best = curve["marks"][-1]
    assert best[0] == "best"
    assert best[2] >= max(curve["mean"]) - 1e-3
    assert curve["at"] == sorted(curve["at"])
    assert "class Goodput" in page(data)


def test_a_sweep_has_its_columns() -> None:
    table = sweep(QUESTION, {"failures.node_mtbf": ["1 d", "10 d"]})
    assert table["goodput"].is_monotonic_increasing
    assert table["failures.node_mtbf_s"].tolist() == [DAY, 10 * DAY]
    assert (table["steps_per_day"] > 0).all()
    ranks = results_ranking(table)
    assert (ranks.order, ranks.goals[0].column) == ((1, 0), "steps_per_day")


def test_the_command_refuses_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "q.json"
    path.write_text(json.dumps(QUESTION | {"failures": {"checkpoint": 1}}))
    assert main(["simulate", str(path)]) == 2
    assert "failures.restart: missing" in capsys.readouterr().err
