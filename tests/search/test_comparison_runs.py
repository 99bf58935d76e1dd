"""Making the runs of a comparison: journals, several at once, interrupts, refusals, pictures."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd
import pytest

from forks import fork, forks, mixed
from simdev.ground.errors import InputError
from simdev.learn.post import Settings
from simdev.search import Comparison, compare, run_comparison, search
from simdev.search import comparison as comparisons
from simdev.search.comparison.curves import COLOURS, looks_of

METHODS = ["single", "annealing", "greedy", "heft"]
LIMITS = {"budget": 30, "seeds": 3}


def told(comparison: Comparison) -> pd.DataFrame:
    """All that does not hang on the clock."""
    curves = comparison.curves
    curves = curves[curves.axis == "evaluations"]
    rows = comparison.table.drop(columns="placing_s")
    reached = comparison.reached.drop(columns="cpu_seconds")
    return pd.concat([rows, reached, curves], ignore_index=True)


def made(monkeypatch: pytest.MonkeyPatch, most: int = 10**6) -> list[tuple[str, int]]:
    """The runs that are made from now on; after ``most`` of them somebody presses Ctrl-C."""
    runs: list[tuple[str, int]] = []
    answer = comparisons.answer

    def counted(task):
        if len(runs) == most:
            raise KeyboardInterrupt
        runs.append((task.entrant.label, task.seed))
        return answer(task)

    monkeypatch.setattr(comparisons, "answer", counted)
    return runs


def test_methods_that_draw_nothing_run_once(monkeypatch):
    runs = made(monkeypatch)
    table = run_comparison(METHODS, {"forks": forks()}, **LIMITS, seed=7).table
    seeds = [("annealing", 7), ("annealing", 8), ("annealing", 9)]
    assert runs[:4] == [("single", 7), *seeds]
    assert table.set_index("method").seeds.to_dict() == {
        "single": 1,
        "annealing": 3,
        "greedy": 3,
        "heft": 1,
    }


def test_settings_and_starts_are_those_of_learners_alone():
    """A learner listed with its start keeps that; a search has neither."""
    chosen = ["annealing", "post", "post+heft"]
    given = {"settings": "published", "warm": "random", "budget": 30, "seeds": 1}
    comparison = run_comparison(chosen, {"q": forks()}, **given)
    walk, alone, started = (run.result.provenance for run in comparison.runs)
    assert not {"warm", "settings"} & walk.keys()
    assert (alone["warm"], started["warm"]) == ("random", "heft")
    assert alone["settings"] == started["settings"] == asdict(Settings.published())
    assert comparison.table.method.tolist() == chosen
    heft = search(forks(), "heft").cost.step_ps / 1e9
    assert comparison.table.step_ms.tolist()[2] <= heft
    wrong = run_comparison(["post", "single"], {"q": forks()}, settings={"breadth": 3}).table.reason
    assert wrong[0].startswith("settings: no 'breadth'")
    assert not wrong[1]


def test_a_comparison_that_goes_on_equals_one_that_was_never_interrupted(monkeypatch, tmp_path):
    questions = {"forks": forks(5), "fork": fork()}
    whole = run_comparison(METHODS, questions, **LIMITS)
    for most in (5, 3, 2):
        with monkeypatch.context() as patch:
            made(patch, most)
            part = run_comparison(METHODS, questions, **LIMITS, journal=tmp_path / "j")
        assert part.interrupted
        assert "interrupted before it began" in set(part.table.reason)
    runs = made(monkeypatch)
    again = run_comparison(METHODS, questions, **LIMITS, journal=tmp_path / "j")
    assert len(runs) == 16 - 10
    assert not again.interrupted
    pd.testing.assert_frame_equal(told(again), told(whole))
    content = Path(tmp_path / "j").read_bytes()
    run_comparison(METHODS, questions, **LIMITS, journal=tmp_path / "j")
    assert len(runs) == 6
    assert Path(tmp_path / "j").read_bytes() == content


def test_other_limits_and_other_questions_are_asked_again(monkeypatch, tmp_path):
    runs, journal = made(monkeypatch), tmp_path / "j"
    for question, more in (
        (forks(), {}),
        (forks(), {}),
        (forks(), {"budget": 31}),
        (forks(), {"seed": 1}),
        (forks(), {"prepare": ["coplace"]}),
        (forks(5), {}),
        (fork(), {}),
        (forks(), {"budget": None, "seconds": 0.01}),
    ):
        limits = {"budget": 30, "seeds": 1, "journal": journal} | more
        run_comparison(["annealing"], {"q": question}, **limits)
    assert len(runs) == 7
    monkeypatch.setattr(comparisons, "sources_version", lambda _: "9.9.9+00000000")
    run_comparison(["annealing"], {"q": forks()}, budget=30, seeds=1, journal=journal)
    assert len(runs) == 8


def test_a_journal_of_another_verb_is_refused(tmp_path):
    from simdev.search.sweep import Journal

    Journal(tmp_path / "j").close()
    with pytest.raises(InputError, match="is not a journal of simdev search"):
        run_comparison(["single"], {"q": forks()}, journal=tmp_path / "j")


def test_rows_do_not_depend_on_the_workers(tmp_path):
    pytest.importorskip("joblib")
    questions = {"forks": forks(5), "fork": fork(), "mixed": mixed()}
    serial = run_comparison([*METHODS, "pipedream"], questions, **LIMITS)
    journal = tmp_path / "j"
    parallel = run_comparison(
        [*METHODS, "pipedream"], questions, **LIMITS, n_jobs=2, journal=journal
    )
    pd.testing.assert_frame_equal(told(serial), told(parallel))
    assert "every device must be able" in serial.table.reason.tolist()[-1]


def test_an_interrupt_keeps_the_best_of_the_run_under_way(monkeypatch):
    """Ctrl-C at the 10th evaluation of the second run."""
    from simdev.search.trial import Trial

    count, evaluate = [0], Trial.note

    def note(self, cost, placement):
        count[0] += self.budget.seed == 1
        if count[0] == 10:
            raise KeyboardInterrupt
        evaluate(self, cost, placement)

    comparisons.rehearse("random")
    monkeypatch.setattr(Trial, "note", note)
    comparison = run_comparison(["random", "greedy"], {"q": forks()}, **LIMITS)
    assert comparison.interrupted
    assert comparison.table.seeds.tolist() == [1, 0]
    assert comparison.table.reason.tolist() == ["", "interrupted before it began"]
    short = comparison.runs[1].result
    assert short is not None
    assert short.provenance["ended"] == "interrupted"
    assert short.provenance["evaluations"] == 9


def test_an_interrupt_before_anything_is_there_is_one(monkeypatch):
    made(monkeypatch, 0)
    with pytest.raises(KeyboardInterrupt):
        run_comparison(["single"], {"q": forks()})


def test_what_goes_wrong_in_a_method_is_told_in_its_row(monkeypatch, tmp_path):
    monkeypatch.setattr("simdev.search.blackbox.best_start", lambda _: 1 // 0)
    table = compare(["greedy", "single"], {"q": forks()}, journal=tmp_path / "j")
    assert table.reason[0].startswith("a bug in simdev, not in your files: ZeroDivisionError")
    monkeypatch.undo()
    table = compare(["greedy", "single"], {"q": forks()}, journal=tmp_path / "j")
    assert table.reason.tolist() == ["", ""]


def test_methods_that_split_are_asked_the_graph_as_it_is():
    table = compare(["optcnn", "greedy"], {"q": forks()}, budget=5, prepare=["coplace"])
    assert table.reason.tolist() == ["", ""]


def test_all_are_all_but_what_nothing_ends(monkeypatch):
    from simdev.search import METHODS as EVERY

    answer, single = comparisons.answer, comparisons.Entrant("single")
    monkeypatch.setattr(comparisons, "answer", lambda task: answer(replace(task, entrant=single)))

    def labels(methods, seconds):
        return compare(methods, {"q": forks()}, seconds=seconds).method.tolist()

    assert labels("all", 1.0) == list(EVERY)
    assert labels(["all"], None) == [name for name in EVERY if name != "exhaustive"]
    assert labels(["greedy", "all", "greedy"], 1.0)[:2] == ["greedy", "single"]
    assert labels("exhaustive", None) == ["exhaustive"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"methods": ["magic"]}, "method: must be one of single"),
        ({"methods": ["magic+single"]}, "method: must be one of single"),
        ({"methods": ["annealing+single"]}, "warm: goes with methods that learn ("),
        ({"methods": [5]}, "methods: must be names, got 5"),
        ({"seeds": 0}, "seeds: must be a whole number of at least 1, got 0"),
        ({"seeds": True}, "seeds: must be a whole number"),
        ({"questions": ["q"]}, "questions: must be Scenarios or Oracles by name"),
        ({"budget": 0}, "budget: must be"),
        ({"n_jobs": 0}, "n_jobs: must be a whole number, not 0"),
    ],
)
def test_what_a_comparison_refuses(arguments, problem):
    given = {"methods": ["single"], "questions": {"q": forks()}} | arguments
    with pytest.raises(InputError, match=problem.replace("(", r"\(")):
        run_comparison(**given)


def test_no_point_has_the_colour_of_a_line_as_long_as_there_are_others():
    methods = [str(i) for i in range(len(COLOURS) + 4)]
    looks = looks_of(methods[:9], methods[::2])
    assert len({look["color"] for look in looks.values()}) == 9
    looks = looks_of(methods, methods[::2])
    assert len({repr(look) for look in looks.values()}) == len(methods)


def test_the_picture_has_every_method_in_both_panels():
    comparison = run_comparison(["single", "annealing", "random"], {"forks": fork()}, **LIMITS)
    figure = comparison.plot("forks")
    evaluations, seconds = figure.axes
    assert (evaluations.get_xlabel(), seconds.get_xlabel()) == ("evaluations", "CPU seconds")
    assert evaluations.get_xscale() == seconds.get_xscale() == "log"
    (legend,) = figure.legends
    names = {text.get_text().partition("  ")[0] for text in legend.get_texts()}
    assert names == {"single", "annealing", "random", "one device", "the scenario's strategy"}
    # a line and its end for each of two, a point, and two lines beside
    assert [len(axes.lines) for axes in figure.axes] == [7, 7]
    steps = {line.get_drawstyle() for line in evaluations.lines if len(line.get_xdata()) > 2}
    assert steps == {"steps-post"}
    with pytest.raises(InputError, match="no method has an answer"):
        run_comparison([], {"q": forks()}).plot("q")
    with pytest.raises(InputError, match="no method has an answer"):
        run_comparison(["single"], {"q": mixed()}).plot("q")
