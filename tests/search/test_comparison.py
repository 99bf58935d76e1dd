"""Comparisons as values: medians and quartiles by hand, marks, and results as JSON."""

from __future__ import annotations

import json
from math import inf, nan

import numpy as np
import pytest

from forks import fork, forks
from simdev.nouns.strategy import Configuration, Strategy
from simdev.oracle import Cost, oracle_of
from simdev.search import METHODS, Comparison, Result, search
from simdev.search.comparison.comparison import plans
from simdev.search.comparison.curves import best_so_far, curve_of, places_of, quartiles
from simdev.search.comparison.runs import Reference, References, Run, record_of, run_of
from simdev.search.space import rank_of
from simdev.search.trial import Point

MS = 10**9  # ps


def run(seed: int, *steps_ms: float, method: str = "walk", over: int = 0, budget: int = 8) -> Run:
    """A run that got better at evaluations 1, 2, ... with a tenth of a CPU second each; 0: not
    there. All that it found is ``over`` its memory.
    """
    points = [
        Point(at, at / 10, int(step * MS), over) for at, step in enumerate(steps_ms, 1) if step
    ]
    last = points[-1].step_ps
    cost = Cost(last / 1e12, not over, over, last, (5 + over,))
    provenance = {
        "ended": "budget",
        "evaluations": budget,
        "cpu_seconds": budget / 10,
        "seed": seed,
    }
    objectives = {"step_time_s": cost.seconds}
    result = Result(Strategy({"*": "g0"}), cost, objectives, tuple(points), provenance, {})
    return Run("q", method, seed, result, (over, over, last))


def reference(step_ms: float, over: int = 0) -> Reference:
    ps = int(step_ms * MS)
    return Reference(Cost(ps / 1e12, not over, over, ps, ()), (over, over, ps))


def test_quantiles_are_those_of_numpy_and_never_between_a_number_and_none():
    values = np.array([[4.0, 1.0], [1.0, inf], [2.0, inf], [8.0, 3.0]])
    lower, middle, _ = quartiles(values)
    assert middle.tolist() == [3.0, inf]
    assert lower.tolist() == [1.75, 2.5]
    assert quartiles(values[:3])[1].tolist() == [2.0, inf]
    assert quartiles(values[:, 0])[2] == np.quantile(values[:, 0], 0.75)
    assert quartiles(np.array([inf, inf])).tolist() == [inf, inf, inf]


def test_the_best_so_far_is_a_step_function():
    result = run(0, 9, 0, 6).result
    assert result is not None
    places = np.array([0.5, 1.0, 1.9, 2.0, 3.0, 50.0])
    best = best_so_far(result, "evaluations", places)
    assert best.tolist() == [inf, 0.009, 0.009, 0.009, 0.006, 0.006]
    assert best_so_far(result, "cpu_seconds", places / 10).tolist() == best.tolist()


def test_a_curve_has_the_quartiles_over_seeds():
    """Best by evaluation 1, 2, 3 in ms: 10 10 6; - 8 8; 9 9 5; 7 7 7; 12 4 4."""
    seeds = [run(0, 10, 0, 6), run(1, 0, 8), run(2, 9, 0, 5), run(3, 7), run(4, 12, 4)]
    results = [one.result for one in seeds if one.result is not None]
    places = places_of(results, "evaluations")
    assert places.tolist() == list(range(1, 9))
    curve = curve_of("walk", results, "evaluations", places)
    assert curve.at.tolist() == places.tolist()
    assert (curve.lower_s[:3] * 1e3).tolist() == [9, 7, 5]
    assert (curve.median_s[:3] * 1e3).tolist() == [10, 8, 6]
    assert (curve.upper_s[:3] * 1e3).tolist() == [12, 9, 7]
    assert curve.to_json()["upper_s"][0] == 0.012
    worse = curve_of("walk", results[1:3], "evaluations", places)
    assert worse.to_json()["median_s"][:2] == [None, 0.0085]


def test_a_curve_ends_where_the_last_of_its_seeds_ended():
    short, long = run(0, 10, budget=3).result, run(0, 10, 5, budget=100).result
    assert short is not None
    assert long is not None
    places = places_of([short, long], "cpu_seconds")
    assert (places[0], places[-1]) == (0.1, 10.0)
    assert curve_of("walk", [short], "cpu_seconds", places).at[-1] == 0.3
    both = curve_of("walk", [short, long], "cpu_seconds", places)
    assert both.at[-1] == 10.0
    assert both.median_s[-1] == 0.0075


def test_a_row_has_medians_and_says_what_ends_below_it():
    seeds = [run(seed, step) for seed, step in enumerate((10, 6, 9, 7, 12))]
    references = References(reference(9.5), reference(8.5))
    table = Comparison((*seeds, run(0, 3, method="good")), {"q": references}).table
    walk, good = table.to_dict("records")
    assert (walk["step_ms"], walk["lower_ms"], walk["upper_ms"]) == (9, 7, 10)
    assert (walk["seeds"], walk["evaluations"], walk["placing_s"]) == (5, 8, 0.8)
    assert walk["above"] == "the scenario's strategy"
    assert walk["against_single"] == pytest.approx(9.5 / 9)
    assert (good["seeds"], good["above"], good["reason"]) == (1, "", "")
    above = Comparison(tuple(seeds), {"q": References(reference(8), reference(8.5))})
    assert above.table.above.tolist() == ["one device, the scenario's strategy"]
    alone = Comparison(tuple(seeds), {"q": References()}).table
    assert alone.above.tolist() == [""]
    assert alone.against_single.isna().all()


def test_what_fits_is_better_than_a_shorter_step_that_does_not():
    seeds = [run(0, 5, over=2), run(1, 9), run(2, 4, over=1)]
    references = References(reference(7), reference(1, over=9))
    comparison = Comparison(tuple(seeds), {"q": references})
    (row,) = comparison.table.to_dict("records")
    assert (row["fits"], row["step_ms"], row["peak_bytes"]) == (False, 4, 6)
    assert (row["lower_ms"], row["upper_ms"]) == (inf, inf)
    assert row["above"] == "one device"
    best = comparison.best("q")
    assert best is not None
    assert best.seed == 1
    assert not Comparison((seeds[1],), {"q": references}).table.above[0].count("own")
    never = Comparison((seeds[0],), {"q": references})
    assert never.to_json("q")["methods"][0]["curves"]["evaluations"]["median_s"] == [None] * 8


def test_marks_are_reached_at_the_median_over_seeds():
    runs = [run(0, 10, 9, 8, method="greedy"), run(1, 10, 7, method="greedy")]
    runs += [run(0, 9, 0, 0, 7.5), run(1, 0, 7.25), run(2, 9.5)]
    reached = Comparison(tuple(runs), {"q": References(reference(10))}).reached
    assert reached.mark.tolist() == ["0.9 x one device"] * 2 + ["greedy"] * 2
    assert reached.mark_s.tolist() == pytest.approx([0.009, 0.009, 0.0075, 0.0075])  # of 8 and 7
    assert reached.evaluations.tolist() == [2, 2, inf, 4]
    assert reached.cpu_seconds.tolist() == pytest.approx([0.2, 0.2, inf, 0.4])
    assert reached.reached.tolist() == [2, 2, 1, 2]
    assert reached.seeds.tolist() == [2, 3, 2, 3]


def test_a_run_that_was_cut_short_counts_only_where_there_is_no_whole_one():
    short = run(1, 3)
    assert short.result is not None
    short.result.provenance["ended"] = "interrupted"
    both = Comparison((run(0, 5), short), {"q": References()}, interrupted=True)
    assert both.table[["step_ms", "seeds", "reason"]].to_numpy().tolist() == [[5, 1, ""]]
    best = both.best("q")
    assert best is not None
    assert best.seed == 1
    alone = Comparison((short,), {"q": References()}, interrupted=True).table
    assert alone[["step_ms", "seeds", "reason"]].to_numpy().tolist() == [[3, 1, "interrupted"]]


def test_what_ends_by_itself_after_a_few_evaluations_is_a_point():
    planned, walked = run(0, 5, budget=2), run(0, 5, budget=2)
    assert planned.result is not None
    planned.result.provenance["ended"] = "done"
    assert plans([planned])
    assert not plans([walked])


@pytest.mark.parametrize("method", ["annealing", "optcnn", "dnn-contiguous"])
def test_a_result_comes_back_from_json(method):
    oracle = forks(5)
    result = search(oracle, method, 20)
    record = json.loads(json.dumps(record_of(oracle, result), allow_nan=False))
    again = run_of("q", method, 0, record)
    assert again.rank == rank_of(oracle, result.cost)
    assert again.result is not None
    assert again.result.to_json() == result.to_json()
    for name in ("strategy", "cost", "objectives", "points", "obstacles"):
        assert getattr(again.result, name) == getattr(result, name)


def test_a_strategy_that_splits_comes_back_from_json():
    oracle, result = oracle_of(fork()), run(0, 5).result
    assert result is not None
    split = Strategy(partition={"a": Configuration({"sample": 2}, ("g0", "g1"))}, sync="sharded")
    object.__setattr__(result, "strategy", split)
    again = run_of("q", "walk", 0, json.loads(json.dumps(record_of(oracle, result)))).result
    assert again is not None
    assert again.strategy == split


def test_json_of_a_comparison_has_rows_curves_and_runs():
    refused = Run("q", "never", 0, reason="cannot")
    runs = (run(0, 9, 0, 6), run(1, 0, 8), refused)
    told = Comparison(runs, {"q": References(reference(10))}).to_json("q")
    json.dumps(told, allow_nan=False)
    assert told["single_step_time_s"] == 0.01
    assert told["present_step_time_s"] is None
    walk, never = told["methods"]
    assert (walk["method"], walk["step_ms"], walk["lower_ms"]) == ("walk", 7, 6.5)
    assert [len(curve["at"]) for curve in walk["curves"].values()] == [8, 200]
    assert walk["reached"][0]["evaluations"] == 1.5
    assert [one["curve"]["evaluation"] for one in walk["runs"]] == [[1, 3, 8], [2, 8]]
    assert never["reason"] == "cannot"
    assert never["step_ms"] is None
    assert never["curves"] == {}
    assert never["runs"] == [{"seed": 0, "reason": "cannot"}]


def test_the_frame_of_curves_has_both_axes_of_all_methods():
    runs = (run(0, 9, 0, 6), run(0, 5, method="good", budget=2))
    curves = Comparison(runs, {"q": References()}).curves
    ends = curves.groupby(["method", "axis"], sort=False).last()
    last = {key: (row["at"], row["median_s"]) for key, row in ends.iterrows()}
    assert last == {
        ("walk", "evaluations"): (8, 0.006),
        ("good", "evaluations"): (2, 0.005),
        ("walk", "cpu_seconds"): (0.8, 0.006),
        ("good", "cpu_seconds"): (0.2, 0.005),
    }
    assert Comparison((), {}).curves.empty


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].learner is None])
def test_the_seed_matters_where_the_table_of_methods_says_so(name):
    """On a question where both of what is drawn lead elsewhere on the way."""
    oracle = forks()
    points = [[p.step_ps for p in search(oracle, name, 40, seed).points] for seed in range(6)]
    if not METHODS[name].draws:
        assert points == [points[0]] * 6
    elif not METHODS[name].splits:
        assert points != [points[0]] * 6


def test_rows_without_an_answer_hold_no_numbers():
    (row,) = Comparison((Run("q", "m", 0, reason="no"),), {"q": References()}).table.to_dict(
        "records"
    )
    assert row["step_ms"] is nan or np.isnan(row["step_ms"])
    assert (row["fits"], row["evaluations"], row["seeds"], row["reason"]) == (False, 0, 0, "no")
