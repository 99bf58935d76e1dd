"""Ten rows of plans are ten answers: those within 1 % are one, told by the simplest; and beside
what is proved of the model stands how far it was from published runs.
"""

from __future__ import annotations

import json
import os
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simdev
from folded import first_answers
from simdev.commands import main
from simdev.nouns.models.large import LARGE
from simdev.report.measures.published import layout_error, published_error
from simdev.report.page import answers_data
from simdev.search.plan import choices_of, plans_of, question_of
from simdev.search.plan.outcome import Scored, answers_of, is_tied, simplicity
from simdev.search.plan.space import Layout, Plan, Setup
from worlds.scenarios import written

TINY = {"model": "llama3.2-1b", "layers": 4, "length": 512}
OPTIONS = {"schedule": ["1F1B", "ZB-H1"], "recompute": "none", "zero": [0, 3], "microbatch": 1}


def drawn(draw: random.Random, place: int) -> Scored:
    cluster, *degrees = draw.choice((0, 1)), *(draw.choice((1, 2, 4)) for _ in range(5))
    setup = Setup(Layout(cluster, *degrees, "all_gather"), 1, 4, "none", ())
    row = {"step_ps": draw.randint(10_000, 10_900), "peak_bytes": draw.randint(100, 110)}
    return Scored(place, Plan(setup, "1F1B", 1, draw.choice((0, 1))), row)


@settings(max_examples=1000, deadline=None)
@given(st.integers(0, 2**32))
def test_answers_are_apart_and_hold_every_plan_once(seed: int) -> None:
    draw = random.Random(seed)
    plans = sorted((drawn(draw, place) for place in range(30)), key=lambda each: each.order)
    front = {each.place for each in draw.sample(plans, 5)} if seed % 2 else set()
    answers = answers_of(plans, (8, 16), front)
    assert sorted(s.place for each in answers for s in each.members) == list(range(30))
    for answer in answers:
        steps = [each.row["step_ps"] for each in answer.members]
        assert steps == sorted(steps)
        assert steps[-1] * 100 <= steps[0] * 101
        assert len({each.plan.setup.layout.cluster for each in answer.members}) == 1
        shown = [each for each in answer.members if each.place in front] or answer.members
        assert answer.shown is min(shown, key=simplicity)
    if not front:
        for number in (0, 1):
            of_one = [a for a in answers if a.shown.plan.setup.layout.cluster == number]
            for one, other in pairwise(of_one):
                least, next_least = (a.members[0].row["step_ps"] for a in (one, other))
                assert not is_tied(next_least, least)


def test_fewer_kinds_then_smaller_degrees_are_simpler() -> None:
    def scored(step: int, *degrees: int, chunks: int = 1, zero: int = 0) -> Scored:
        setup = Setup(Layout(0, *degrees, "all_gather"), 1, 4, "none", ())
        return Scored(step, Plan(setup, "1F1B", chunks, zero), {"step_ps": step, "peak_bytes": 1})

    # (dp, cp, tp, pp, ep)
    simple = [
        scored(9, 8, 1, 1, 1, 1), scored(8, 8, 1, 1, 1, 1, zero=1), scored(7, 1, 1, 8, 1, 1),
        scored(6, 4, 1, 2, 1, 1), scored(5, 2, 1, 4, 1, 1), scored(4, 2, 1, 4, 1, 1, chunks=2),
        scored(3, 2, 1, 2, 2, 1), scored(2, 2, 1, 2, 2, 2),
    ]  # fmt: skip
    assert sorted(reversed(simple), key=simplicity) == simple


def test_rows_are_answers_and_the_first_holds_the_best() -> None:
    question, choices = question_of(TINY, "dgx-h100", 8), choices_of(OPTIONS)
    every = plans_of(question, choices, top=10**6, alike=True)
    first: dict[Any, Any] = {}
    for scored in every.best:
        first.setdefault(scored.plan.setup.layout._replace(context=""), scored.order)
    for top in (1, 3):
        plans = plans_of(question, choices, top=top)
        members = [[s.order for s in each.members] for each in plans.answers]
        assert members == first_answers(list(first.values()), top)
        frame = plans.frame
        assert list(frame["folded"]) == [len(each) - 1 for each in members]
        assert frame["step_time_ps"][0] <= 1.01 * every.best[0].row["step_ps"]
        assert plans.summary["least_step_time_s"] == every.best[0].row["step_ps"] / 1e12
    assert len(simdev.plan(TINY, "dgx-h100", 8, options=OPTIONS, top=3)) == 3
    assert set(every.frame["folded"]) == {0}


def test_answers_cost_little_more_than_a_plan_of_each_degrees() -> None:
    """Bounds of ZeRO 3 are the step, and of equal degrees one plan of a round is simulated."""
    graph = {"model": "llama3-8b", "layers": 8, "length": 512}
    question = question_of(graph, "dgx-h100", 32)
    narrow = {"zero": 3, "pp": 2, "schedule": "Interleaved1F1B"}
    for options, answers in (({"zero": 3}, 10), (narrow, 3)):
        plans = plans_of(question, choices_of(options))
        assert len(plans.answers) == answers
        assert plans.proved
        assert plans.counts.simulated <= 1.5 * len(plans.best), options


def test_the_error_stands_beside_step_plans_and_their_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    question = ["plan", "llama3.2-1b", "--cluster", "nc-a100-pairs", "--global-batch", "4"]
    narrow = ["tp=2", "schedule=1F1B", "recompute=full", "microbatch=1", "cp=1"]
    question += [*(part for each in narrow for part in ("--set", each)), "--length", "512"]
    error = published_error(LARGE["llama3.2-1b"], "a100-80")
    line = str(error)
    assert "published runs of dense models in bfloat16 on a100-80 by megatron" in line
    assert main([*question, "-o", "plans"]) == 0
    printed = capsys.readouterr().out
    assert line in printed
    assert "under this model of the machine" in printed
    assert "as fast, up to 1 %; the row is the simplest of them" in printed
    value = json.loads(Path("plans/plans.json").read_text())
    assert value["counts"]["published"] == error.to_json()
    page = answers_data(value, "plans.json")
    assert page is not None
    assert line in page["notes"]
    assert "under this model" in page["headline"]
    assert main(["simulate", "plans/01.json"]) == 0
    assert line in capsys.readouterr().out
    assert main(["simulate", "plans/01.json", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["training"]["published"]
    assert told == value["counts"]["published"]


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_files_that_plans_name_are_told_from_their_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 512,
        "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8,
        "num_key_value_heads": 8, "vocab_size": 1024, "max_position_embeddings": 256,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (tmp_path / "in").mkdir()
    written(tmp_path / "in" / "config.json", config)
    assert main(["clusters", "nc-a100-pairs", "--json"]) == 0
    (tmp_path / "in" / "cluster.json").write_text(capsys.readouterr().out)
    narrow = ["--set", "tp=2", "--set", "schedule=1F1B", "--set", "recompute=none"]
    for base in ("in", str(tmp_path / "in")):
        model, cluster = f"{base}/config.json", f"{base}/cluster.json"
        question = ["plan", model, "--cluster", cluster, "--global-batch", "4", *narrow]
        assert main([*question, "--json", "-o", "out/deep/plans"]) == 0
        printed = capsys.readouterr().out
        assert str(tmp_path) not in printed
        assert simdev.load_scenario(json.loads(printed)["plans"][0]["scenario"])
        for path in (tmp_path / "out").rglob("*.*"):
            assert str(tmp_path) not in path.read_text()
        moved = tmp_path / "elsewhere"
        moved.mkdir()
        monkeypatch.chdir(moved)
        assert main(["simulate", str(tmp_path / "out/deep/plans/01.json")]) == 0
        capsys.readouterr()
        monkeypatch.chdir(tmp_path)
        moved.rmdir()


@pytest.mark.parametrize(
    "wrong", [["--set", "tp=3"], ["--set", "tp=x"], ["--nodes", "0"], ["--top", "0"]]
)
def test_a_plan_that_fails_leaves_nothing(
    wrong: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    question = ["plan", "llama3.2-1b", "--cluster", "dgx-h100", "--global-batch", "4", *wrong]
    assert main([*question, "-o", str(tmp_path / "far" / "plans")]) == 2
    assert capsys.readouterr().out == ""
    assert not files(tmp_path)


def test_a_full_disk_costs_the_folder_and_not_the_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    question = ["plan", "llama3.2-1b", "--cluster", "nc-a100-pairs", "--global-batch", "4"]
    question += ["--set", "tp=2", "--set", "schedule=1F1B", "--set", "zero=1", "--json"]
    place = ["-o", str(tmp_path / "plans")]
    assert main([*question, *place]) == 0
    before = files(tmp_path)
    answer = json.loads(capsys.readouterr().out)

    def full(path: os.PathLike[str] | str, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("simdev.files.writing.write_text", full)
    assert main([*question, *place]) == 2
    printed = capsys.readouterr()
    assert json.loads(printed.out)["plans"] == answer["plans"]
    assert printed.err.endswith("plans: no space left on device\n")
    assert files(tmp_path) == before


def test_plans_that_the_error_between_layouts_does_not_separate_are_ties(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    question = ["plan", "llama3.2-1b", "--cluster", "nc-a100-pairs", "--global-batch", "8"]
    question += ["--length", "512", "--set", "schedule=1F1B", "--set", "zero=0", "--alike"]
    question += ["--set", "recompute=none", "--set", "cp=1", "--top", "40"]
    assert main([*question, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    error = layout_error(LARGE["llama3.2-1b"], "a100-80")
    assert value["counts"]["layouts"] == error.to_json()
    steps = [row["step_time_ps"] for row in value["plans"]]
    tied = [row["tied"] for row in value["plans"]]
    assert tied == [step <= steps[0] * (1 + error.mean) for step in steps]
    assert tied[0]
    assert tied.count(True) in range(2, len(tied))
    assert main(question) == 0
    printed = capsys.readouterr().out
    rows = [line for line in printed.splitlines() if line.split()[0].isdigit() and " 1F1B " in line]
    assert [" =  " in line for line in rows] == [False, *tied[1:]]
    assert f"tie =: slower than #1 by no more than the {error.mean:.1%} by which two" in printed
    page = answers_data(value, "plans.json")
    assert page is not None
    (note,) = (note for note in page["notes"] if "tie with the first" in note)
    assert note.startswith(f"{tied.count(True) - 1} more tie")
    assert str(error) in note


def test_a_page_opens_the_plans_of_an_earlier_version() -> None:
    counts = dict.fromkeys(("plans", "does_not_fit", "slower", "simulated"), 1)
    counts |= {"simulated_does_not_fit": 0, "seconds": 1.0, "illegal": {}, "refused": {}}
    counts |= {"published": {"size": "small", "precision": "bfloat16", "steps": 0, "mean": None}}
    row = {"dp": 2, "step_time_s": 1.0, "peak_bytes": 1, "schedule": "1F1B", "why": ""}
    page = answers_data({"counts": counts, "plans": [row]}, "plans.json")
    assert page is not None
    assert not any("published" in note for note in page["notes"])
