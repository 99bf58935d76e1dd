"""Every schedule that plans may have: random plans beside their bounds, and the best of random
spaces beside simulating all of them.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import simdev
from planned import DENSE, SPARSE, TIED, check_setup, every_plan
from simdev.ground.errors import InputError
from simdev.search.plan import Question, Space, bounds, choices_of, plans_of, question_of, searching
from simdev.search.plan.bounds import Bounds
from simdev.search.plan.searching import score
from simdev.search.plan.space import PLANNED

CLUSTERS = "nc-a100-pairs", "p3-4x-p4000", "dgx-a100-40", "p3-16xlarge"
WHOLE = "GPipe", "1F1B", "Interleaved1F1B"
SEEDS = {"ZB-1p": (5, 27), "ZB-2p": (5, 29)}
"""Draws of schedules that leave less idle than a whole backward would; of others the first ones."""
OTHERS: dict[str, list[Any]] = {
    "overlap": [True, False],
    "prefetch": [0, 1, 2],
    "in_flight": [0, 1, 2],
    "flash": [False, True],
    "scatter_gather": [False, True],
    "sequence_parallel": [False, True],
    "message_latency": ["0 us", "5 us"],
    "offload": ["", ["activations", "optimizer"]],
}


def question_drawn(draw: random.Random) -> Question:
    """A small model on a machine; often with so many microbatches that little of a step is idle."""
    graph = draw.choice((DENSE, TIED, SPARSE))
    length, vocabulary = draw.choice((128, 1024)), draw.choice((512, 50_304))
    sizes = {"layers": draw.randint(4, 9), "length": length, "vocabulary": vocabulary}
    return question_of({**graph, **sizes}, draw.choice(CLUSTERS), draw.choice((8, 16, 24, 32)))


def options_drawn(draw: random.Random, *schedules: str) -> dict[str, Any]:
    """Whole pipelines of few degrees, all other settings by chance."""
    others = {name: draw.choice(values) for name, values in OTHERS.items()}
    options = {name: [value] for name, value in others.items()} | {"host_bandwidth": "20 GB/s"}
    narrow = {"recompute": draw.choice(("none", "selective", "full")), "context": "ring"}
    narrow |= {"microbatch": 1, "zero": draw.choice((0, 1, 2, 3))}
    degrees = {"cp": [1, draw.choice((1, 2))], "tp": [1, draw.choice((1, 2))]}
    return options | narrow | degrees | {"schedule": list(schedules)}


def space_drawn(draw: random.Random, *schedules: str) -> Iterator[tuple[Question, Space]]:
    """Questions with plans of these schedules, and their spaces."""
    while True:
        question, options = question_drawn(draw), options_drawn(draw, *schedules)
        try:
            choices = choices_of(options)
        except InputError:
            continue
        space = Space(question.model, question.devices, question.global_batch, choices)
        if sum(map(space.count, space.setups(Counter()))):
            yield question, space


def check_schedule(name: str, seed: int) -> None:
    """A random plan of this schedule takes and holds no less than its bounds."""
    draw = random.Random(seed)
    for question, space in space_drawn(draw, name):
        setups = [s for s in space.setups(Counter()) if space.count(s)]
        plan = draw.choice(space.plans(draw.choice(setups)))
        row = score(question, plan)
        if "reason" not in row:
            break
    limits = Bounds(question, space.choices.listed["schedule"])
    bound = limits.plan(plan)
    check_setup(limits, plan.setup, space.zeros(plan.setup.layout), row)
    assert limits.waited_ps(plan) <= row["step_ps"], plan
    assert bound.step_ps <= row["step_ps"], plan
    assert bound.peak_bytes <= row["peak_bytes"], plan
    assert bound.fits or not row["fits"], plan
    # Where nothing but actions of whole backwards takes memory they hold what the bound says.
    if name in WHOLE and plan.zero < 2 and not plan.parallelism.offload:
        assert bound.peak_bytes >= 0.97 * row["peak_bytes"], plan


def check_best(schedules: list[str], seed: int) -> None:
    """The best of a random space is that of simulating everything."""
    draw = random.Random(seed)
    for question, space in space_drawn(draw, *schedules):
        plans = every_plan(space)
        rows = [score(question, plan) for plan in plans]
        if not any("reason" in row for row in rows):
            break
    fitting = sorted(
        (row["step_ps"], row["peak_bytes"], place) for place, row in enumerate(rows) if row["fits"]
    )
    answer = plans_of(question, space.choices, top=2, alike=True)
    assert [scored.order for scored in answer.best] == fitting[:2], space.choices
    assert answer.proved == bool(fitting)


@pytest.mark.parametrize("name", PLANNED)
def test_no_plan_is_faster_or_smaller_than_its_bounds(name: str) -> None:
    for seed in SEEDS.get(name, range(4)):
        check_schedule(name, seed)


@pytest.mark.parametrize("name", PLANNED)
def test_no_plan_by_measured_rows_is_faster_than_its_bounds(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On H100, for which rows ship: times of layers that are no roofline."""
    monkeypatch.setattr(sys.modules[__name__], "CLUSTERS", ("dgx-h100",))
    for seed in range(2):
        check_schedule(name, seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANNED)
def test_no_plan_of_a_hundred_is_faster_or_smaller_than_its_bounds(name: str) -> None:
    for seed in range(100):
        check_schedule(name, seed)


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches leave out by bounds from the first plan on that was simulated."""
    monkeypatch.setattr(searching, "ROUND", 1)


def test_the_best_schedule_is_that_of_simulating_everything(one_by_one: None) -> None:
    """In the first spaces a plan of ZB-2p is best, which the bound of a whole backward left out."""
    for schedules, seed in [(["ZB-H1", "ZB-2p"], 22), (["ZB-H1", "ZB-2p"], 23)]:
        check_best(schedules, seed)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 400, 100))
def test_the_best_of_all_schedules_is_that_of_simulating_everything(
    start: int, one_by_one: None
) -> None:
    for seed in range(start, start + 100):
        check_best(random.Random(seed).sample(PLANNED, 3), seed)


@pytest.mark.parametrize("pp", [1, 2, 4])
def test_what_all_ranks_hold_is_what_the_setup_is_known_to_hold(pp: int) -> None:
    """As a single microbatch's backward begins, but for the gradient that a message brought, and
    what the classifier has beside its scores.
    """
    sizes = {"layers": 8, "length": 256, "hidden": 512, "inner": 2048, "vocabulary": 1024}
    question = question_of({"model": "llama3-8b", **sizes}, "nc-a100-pairs", 4 // pp)
    options = {"pp": pp, "cp": 1, "tp": 1, "recompute": "none", "schedule": "GPipe", "zero": 0}
    choices = choices_of({**options, "microbatch": 1, "flash": False})
    space = Space(question.model, question.devices, question.global_batch, choices)
    (setup,) = space.setups(Counter())
    report = simdev.run(simdev.load_scenario(question.scenario(space.plans(setup)[0])))
    peaks = [memory.peak for memory in report.memories]
    limits = Bounds(question)
    held, fits = limits.held(setup, (0,))
    message, classifier = 2 * 256 * 512, 2 * 256 * 1024
    assert fits
    assert 0 <= held * pp - (sum(peaks) - classifier - (pp - 1) * message) < pp


def test_what_microbatches_hold_is_worked_out_once_an_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever ZeRO shares out, it is that of the same order."""
    question = question_of(DENSE, "nc-a100-pairs", 8)
    options = {"pp": 2, "cp": 1, "tp": 1, "recompute": "none", "microbatch": 1}
    space = Space(question.model, question.devices, 8, choices_of(options))
    (setup,) = space.setups(Counter())
    plans, orders = space.plans(setup), list[tuple[str, int]]()
    alone = [Bounds(question).plan(plan) for plan in plans]
    in_flight = bounds.Path.in_flight

    def counted(path: bounds.Path) -> Any:
        orders.append(path.plan[1:3])
        return in_flight(path)

    monkeypatch.setattr(bounds.Path, "in_flight", counted)
    limits = Bounds(question)
    assert [limits.plan(plan) for plan in plans] == alone
    assert len(orders) == len(set(orders)) == len({plan[1:3] for plan in plans}) < len(plans)
