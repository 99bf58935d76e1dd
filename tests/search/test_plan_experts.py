"""Plans whose experts have a grid of ranks of their own (``etp``)."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from planned import DENSE, SPARSE, check_setup, every_plan, space_of
from simdev.commands import main
from simdev.ground.errors import InputError
from simdev.search.plan import choices_of, plans_of, question_of
from simdev.search.plan.bounds import Bounds
from simdev.search.plan.searching import score

NARROW = {
    "schedule": "1F1B", "recompute": "none", "microbatch": 1, "zero": 1, "cp": 1, "pp": 1,
}  # fmt: skip


def degrees(graph: dict[str, Any], **options: Any) -> set[tuple[int, int | None, int]]:
    """tp, etp and ep of all setups on eight devices."""
    question = question_of(graph, "dgx-a100-40", 8)
    setups = space_of(question, NARROW | options).setups(Counter())
    return {(s.layout.tp, s.layout.etp, s.layout.ep) for s in setups}


def test_experts_are_whole_or_cut_as_all_else() -> None:
    """Of tp 2 on eight devices ep divides 4; whole experts are spread over all eight."""
    every = degrees(SPARSE, tp=[1, 2])
    assert every == {
        *((1, None, ep) for ep in (1, 2, 4, 8)),
        *((2, None, ep) for ep in (1, 2, 4)),
        *((2, 1, ep) for ep in (1, 2, 4, 8)),
    }
    assert {etp for _, etp, _ in degrees(DENSE)} == {None}


def test_what_is_set_is_tried_and_as_many_as_of_tp_once() -> None:
    assert degrees(SPARSE, tp=2, etp=[1, 2, None, 4], ep=2) == {(2, e, 2) for e in (1, None, 4)}
    assert degrees(SPARSE, tp=4, etp=None, ep=[1, 4]) == {(4, None, 1)}
    with pytest.raises(InputError, match="etp: must be a whole number from 1"):
        choices_of({"etp": 0})
    illegal: Counter[str] = Counter()
    question = question_of(SPARSE, "dgx-a100-40", 8)
    options = NARROW | {"tp": 2, "etp": 1, "ep": 8, "sequence_parallel": False}
    assert not list(space_of(question, options).setups(illegal))
    (reason,) = illegal
    assert reason.startswith("etp: 1 beside tp 2 needs sequence_parallel")


def test_replicas_of_experts_alone_share_states() -> None:
    """tp 8 is one replica of attention; of experts cut in two there are four."""
    question = question_of(SPARSE, "dgx-a100-40", 8)
    options = {"tp": 8, "pp": 1, "ep": 1, "etp": [None, 2]}
    space = space_of(question, options)
    zeros = {s.layout.etp: space.zeros(s.layout) for s in space.setups(Counter())}
    assert zeros == {None: (0,), 2: (0, 1, 2, 3)}


@pytest.mark.parametrize("seed", [0, 1])
def test_bounds_hold_and_are_steps(seed: int) -> None:
    options = {"etp": [1, 2, 4], "tp": [2, 4, 8], "in_flight": [0, 2], "bucket": 1_000_000}
    question = question_of(SPARSE, "dgx-a100-40", 8)
    space = space_of(question, options)
    bounds = Bounds(question, space.choices.listed["schedule"])
    plans = [plan for plan in every_plan(space) if plan.setup.layout.etp is not None]
    alone = [plan for plan in plans if plan.setup.layout.dp * plan.setup.layout.cp == 1]
    draw = random.Random(seed)
    for plan in (*draw.sample(plans, 8), *draw.sample(alone, 6)):
        row = score(question, plan)
        bound = {p: bounds.plan(p) for p in space.plans(plan.setup)}[plan]
        check_setup(bounds, plan.setup, space.zeros(plan.setup.layout), row)
        assert bounds.waited_ps(plan) <= bound.step_ps == row["step_ps"], plan
        assert bound.peak_bytes <= row["peak_bytes"], plan


def test_the_best_of_all_is_that_of_trying_everything() -> None:
    question, options = question_of(SPARSE, "dgx-a100-40", 8), NARROW | {"tp": [2, 4]}
    plans = plans_of(question, choices_of(options), top=4, alike=True)
    every = sorted(
        score(question, plan)["step_ps"] for plan in every_plan(space_of(question, options))
    )
    assert [scored.row["step_ps"] for scored in plans.best] == every[:4]
    frame, layouts = plans.frame, [scored.plan.setup.layout for scored in plans.best]
    assert any(layout.etp == 1 for layout in layouts)
    for row, layout in zip(frame.to_dict("records"), layouts, strict=True):
        assert row["etp"] == (layout.etp or layout.tp)
        assert row["scenario"]["strategy"]["pipeline"].get("etp") == layout.etp
    plain = plans_of(question, choices_of(options | {"etp": None}))
    assert "etp" not in plain.frame


def test_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    line = "plan mixtral-8x7b --length 512 --cluster dgx-h100 --nodes 2 --global-batch 4"
    line += " --set tp=4 --set pp=1 --set zero=1 --set recompute=full --set cp=1 --set ep=8"
    line += " --set microbatch=1"
    assert main([*line.split(), "--set", "etp=null,1"]) in (0, 1)
    said = capsys.readouterr().out
    assert " etp " in said
