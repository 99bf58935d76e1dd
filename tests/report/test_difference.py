"""Why one large model's step takes longer than another: terms that add up to the picosecond."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simdev.commands import main
from simdev.execution.scenario import load_scenario
from simdev.report import run
from simdev.report.measures.training import TERMS, Difference, critical_rank, difference
from worlds.scenarios import GPT, pipelined

TIMES = st.lists(st.integers(0, 2**40), min_size=len(TERMS), max_size=len(TERMS))


def terms(**named: int) -> dict[str, int]:
    return dict.fromkeys(TERMS, 0) | named


@given(TIMES, TIMES)
def test_terms_add_up_and_so_do_the_shares_that_are_told(a: list[int], b: list[int]) -> None:
    before, after = (dict(zip(TERMS, times, strict=True)) for times in (a, b))
    step = Difference.of([before], [after])
    assert sum(step.added_ps.values()) == sum(b) - sum(a)
    if sum(a):
        shares = sum(share for _, share in step.parts())
        assert abs(shares - 1000 * (sum(b) - sum(a)) / sum(a)) <= 0.5


def test_the_sentence_has_the_largest_first_and_says_whose_time_it_is() -> None:
    a, b = terms(forward=700, bubble=300), terms(forward=690, bubble=360, tensor=32)
    sentence = Difference.of([a], [b]).sentence()
    assert sentence.startswith(
        "B is 8.2% slower than A: bubble +6.0%, tensor +3.2%, forward -1.0% "
    )
    assert "rank 0 of A, rank 0 of B" in sentence
    assert Difference.of([b], [a]).sentence("left", "right").startswith("right is 7.6% faster than")
    assert Difference.of([a], [a]).sentence() == "B is as fast as A"


def test_the_critical_rank_waits_least_for_others() -> None:
    ranks = [terms(bubble=5, forward=1), terms(pipeline=3, bubble=1, forward=2), terms(bubble=4)]
    assert critical_rank(ranks) == 1


def test_plans_of_unlike_shapes_differ_by_what_their_critical_ranks_do() -> None:
    shapes = {"dp": 2, "tp": 4, "microbatches": 4}, {"pp": 4, "tp": 2, "microbatches": 8}
    a, b = (run(load_scenario(pipelined(GPT, **shape))).training for shape in shapes)
    step = difference(a, b)
    assert step.steps_ps == tuple(sum(s.stages[0].terms.values()) for s in (a, b))
    assert step.added_ps["data"] < 0 < step.added_ps["bubble"]


def test_compare_tells_the_terms_and_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, pipeline in (("a", {"dp": 8, "microbatches": 4}), ("b", {"pp": 2, "tp": 4})):
        (tmp_path / f"{name}.json").write_text(json.dumps(pipelined(GPT, **pipeline)))
    assert main(["compare", "a.json", "b.json"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"\nB is \d+\.\d% (slower|faster) than A: .*bubble \+", text)
    assert "A trains on 16,384 tokens a step, B on 512." in text
    assert main(["compare", "a.json", "b.json", "--json", "-o", "page.html"]) == 0
    comparison = json.loads(capsys.readouterr().out)
    titles = {sheet["title"].partition(" (")[0]: sheet for sheet in comparison["sheets"]}
    time = titles["Time of the rank that waits least"]
    a, b = (run(load_scenario(f"{name}.json")).step_ps for name in "ab")
    assert sum(row[3] for row in time["rows"]) == b - a
    memory = {row[0]: row[1:3] for row in titles["Memory of the fullest rank at its peak"]["rows"]}
    held = [sum(sizes) for sizes in zip(*memory.values(), strict=True)]
    assert [size / 2 for size in held] == memory["all"]
    assert comparison["reasons"][0].partition(":")[0] in (tmp_path / "page.html").read_text()


def test_other_steps_have_no_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.json").write_text(json.dumps(pipelined(GPT, dp=8)))
    graph = {"graph": {"model": "lenet"}, "cluster": "dgx-1v", "strategy": "data-parallel"}
    (tmp_path / "b.json").write_text(json.dumps({"version": 1, **graph}))
    assert main(["compare", "a.json", "b.json", "--json"]) == 0
    comparison = json.loads(capsys.readouterr().out)
    assert comparison["reasons"] == []
    assert not any(row[0] == "MFU" for row in comparison["sheets"][0]["rows"])
