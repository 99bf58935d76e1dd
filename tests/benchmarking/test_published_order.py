"""The order of published layouts, errors by group, and effects that are taken away, by hand."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pytest

# plain `pytest` puts tests/ alone on the path
sys.path.append(str(Path(__file__).resolve().parents[2]))

from benchmarks import published
from benchmarks.ablation import EFFECTS
from benchmarks.ladder import END
from benchmarks.order import Timed, orders, summary
from benchmarks.runs import Answer, Published, chosen, groups, scenario_of
from simdev.report.measures.published import published_runs

PUBLISHED = (1.0, 1.2, 1.5, 2.0, 4.0)


def _timed(simulated: tuple[float, ...], cell: str = "m on H100") -> list[Timed]:
    pairs = zip(PUBLISHED, simulated, strict=True)
    return [Timed(cell, f"layout {n}", *pair) for n, pair in enumerate(pairs)]


@pytest.mark.parametrize(
    ("simulated", "rank", "regret"),
    [
        ((0.1, 0.2, 0.3, 0.4, 0.5), 1.0, 0.0),
        ((0.5, 0.4, 0.3, 0.2, 0.1), -1.0, 3.0),
        # 1 - 6 (sum of squared differences) / (n (n^2 - 1)), Spearman 1904
        ((0.2, 0.1, 0.4, 0.3, 0.5), 1 - 6 * 4 / 120, 0.2),
        # Ranks 2, 2, 2, 4, 5 by (1, 2, 3, 4, 5): Pearson's 8 / sqrt(8 x 10). Of the best the worst.
        ((0.1, 0.1, 0.1, 0.3, 0.5), 8 / 80**0.5, 0.5),
        ((0.1, 0.1, 0.1, 0.1, 0.1), None, 3.0),
    ],
)
def test_orders_by_hand(simulated: tuple[float, ...], rank: float | None, regret: float) -> None:
    (order,) = orders(_timed(simulated))
    assert (order.rank is None) == (rank is None)
    assert order.rank == pytest.approx(rank)
    assert order.regret == pytest.approx(regret)
    assert (order.layouts, order.spread) == (5, 0)


def test_releases_of_a_question_are_one_by_their_median() -> None:
    rows = _timed((0.1, 0.2, 0.3, 0.4, 0.5))
    more = [Timed(rows[0].cell, rows[0].question, time, 0.1) for time in (0.8, 1.3, 1.6)]
    (order,) = orders([*rows, *more])  # 0.8, 1, 1.3, 1.6: 1.15, still the best of all
    assert (order.layouts, order.rank, order.regret) == (5, 1, 0)
    assert order.spread == pytest.approx(1.6 / 0.8 - 1)
    assert order.line() == ("m on H100", "5", "100.0%", "1.00", "0.0%")


def test_few_questions_are_no_order() -> None:
    assert not list(orders(_timed((0.1, 0.2, 0.3, 0.4, 0.5))[:3]))
    assert summary([]) == "No cell has 4 layouts."
    kept, lost = _timed((0.1, 0.2, 0.3, 0.4, 0.5)), _timed((0.5, 0.4, 0.3, 0.2, 0.1), "n on B200")
    assert summary(list(orders([*kept, *lost]))) == (
        "Spearman is at least 0.8 in 1 of 2 cells (50%); the largest regret is 300.0% (n on B200)."
    )


def _answer(model: str, system: str | None, seconds: float | None) -> Answer:
    row: dict[str, Any] = {"model": model, "global_batch": 8, "length": 100, "gpus": 4}
    row |= {"system": system} if system else {}
    return Answer(Published(f"{model} {system}", "", 100.0, row), seconds)  # published: 2 s


def test_errors_by_group() -> None:
    answers = [
        _answer("llama3-8b", "H100", 1.0),
        _answer("llama3-70b", "H100", 3.0),
        _answer("llama3-8b", "GB200", 1.8),
        _answer("llama3-8b", "B200", None),
        _answer("qwen3-30b-a3b", "H100", 2.5),
        _answer("llama3-8b", None, None),
    ]
    assert groups(answers) == [
        ("dense, H100", "2", "2", "50.0%", "+0.0%"),
        ("dense, Blackwell", "2", "1", "10.0%", "-10.0%"),
        ("mixtures of experts", "1", "1", "25.0%", "+25.0%"),
        ("torchtitan", "1", "0", "-", "-"),
    ]


def test_effects_take_a_field_away_and_leave_the_scenario_as_it_was() -> None:
    scenario = scenario_of(next(chosen(["qwen3-30b-a3b on H100"])))
    scenario["strategy"]["pipeline"]["recompute"] = "full"
    before, whole = repr(scenario), scenario["strategy"]["pipeline"]
    for change in EFFECTS.values():
        change(scenario)
        assert repr(scenario) == before
    changed = {name: change(scenario) for name, change in EFFECTS.items()}
    assert "software" in scenario["graph"]
    assert "software" not in changed["software"]["graph"]
    for name, keys in (("the experts' own grid", {"etp"}), ("recomputation", {"recompute"})):
        assert whole.keys() - changed[name]["strategy"]["pipeline"].keys() == keys
    assert changed["CUDA graphs"]["strategy"]["pipeline"] == {**whole, "cuda_graphs": "none"}
    assert changed["offload"] == scenario
    sheets = changed["clocks under the power cap"]["devices"]
    assert "h100-sxm" in [sheet["kind"] for sheet in sheets]
    assert not any("sustained_clock" in sheet for sheet in sheets)


def _table(name: str) -> list[list[str]]:
    """The lines of a table of the page, below its header."""
    text = published.PAGE.read_text("utf-8").partition(published.begin(name))[2].partition(END)[0]
    return [line.strip("| ").split(" | ") for line in text.splitlines()[2:]]


def test_the_tables_of_the_page_are_of_the_given_rows() -> None:
    for name, key in (("cells", "cell"), ("groups", "group")):
        counts = Counter(getattr(run, key) for run in chosen([]))
        lines = [line for line in _table(name) if line[0] != "all"]
        assert {line[0]: int(line[1]) for line in lines} == counts
    cells, groups_ = _table("cells"), _table("groups")
    for column in (1, 2):
        total = sum(int(line[column]) for line in groups_)
        assert [line[column] for line in cells if line[0] == "all"] == [str(total)]
    assert {line[0] for line in _table("orders")} <= {line[0] for line in cells}


def test_a_line_of_the_page_is_written_for_its_run_and_plan() -> None:
    page = "| run | plan |\n| a | 8: dp 8 | 1 |\n| a | 16: dp 16 | 1 |\n"
    changed = published.with_line(page, ("a", "16: dp 16", "2"))
    assert changed == page.replace("16 | 1 |", "16 | 2 |")


def test_the_errors_of_the_page_are_what_the_file_tells() -> None:
    """Of the cells whose rows are all in the file: it leaves out what other tables have."""
    errors: dict[str, list[float]] = {}
    for each in published_runs():
        errors.setdefault(each.step.partition(",")[0], []).extend(each.errors)
    whole = 0
    for cell, _, asked, _, *figures in _table("cells"):
        known = errors.get(cell, [])
        if len(known) == int(asked):
            told = fmean(map(abs, known)), median(known), max(known, key=abs)
            assert [float(text.rstrip("%")) / 100 for text in figures] == pytest.approx(
                told, abs=0.0006
            )
            whole += 1
    assert whole > 10
