"""Bounds of plans: never above what is simulated, and the best of all plans by their means."""

from __future__ import annotations

import random
import re
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest

from folded import first_of_answers
from planned import DENSE, SPARSE, TIED, check_setup, every_plan, space_of
from simdev.ground import PACKAGE
from simdev.ground.errors import InputError
from simdev.lowering.hybrid import lower_hybrid
from simdev.nouns.models.large.roles import TENSOR
from simdev.nouns.schedules import PAIRED, SEARCHED
from simdev.search.plan import Plan, Question, Space, choices_of, plans_of, question_of
from simdev.search.plan.bounds import Bounds
from simdev.search.plan.searching import APART, degrees, score
from simdev.search.plan.space import PLANNED, Setup

EVERY = [name for name in PLANNED if name not in PAIRED]
OFFLOAD = {
    "offload": ["", ["activations", "optimizer"]], "host_bandwidth": "20 GB/s",
    "flash": [False, True], "scatter_gather": [False, True], "sequence_parallel": [False, True],
    "message_latency": "5 us",
}  # fmt: skip
KINDS = 4 * ["h100-sxm"] + 2 * ["v100"] + 2 * ["h100-sxm"]
MIXED = {
    "version": 1, "name": "mixed",
    "devices": [
        {"name": f"{kind} {n}", "kind": kind, "memory": "64 GB"} for n, kind in enumerate(KINDS)
    ],
    "links": [
        {"ends": [f"{k} {n}", f"{j} {m}"], "bandwidth": "25 GB/s", "latency": "5 us"}
        for (n, k), (m, j) in combinations(enumerate(KINDS), 2)
    ],
}  # fmt: skip
SLOW = {"preset": "dgx-a100-40", "slow": {"gpu:3": 0.5, "gpu:6": 0.9}}
LINEAR = {
    "linear_heads": 8, "linear_key_heads": 4, "linear_width": 64, "full_every": 3, "conv_kernel": 4,
    "attention_gate": True, "shared_gate": True,
}  # fmt: skip
WORLDS: list[tuple[dict[str, Any], Any, dict[str, Any]]] = [
    (DENSE, "nc-a100-pairs", {"overlap": [True, False], "prefetch": [0, 2]}),
    (TIED, "p3-4x-p4000", OFFLOAD),
    (
        {**SPARSE, "software": "deepspeed-0.3"},
        "nc-a100-pairs",
        {"zero": [2, 3], "overlap": [True, False], "prefetch": [0, 1]},
    ),
    (SPARSE, "dgx-a100-40", {"schedule": EVERY, "in_flight": [0, 2], "bucket": 1_000_000}),
    (SPARSE, "dgx-a100-40", {"recompute_modules": ["mlp", ["layernorm", "moe_act"], ["moe"]]}),
    (SPARSE, "dgx-a100-40", {"schedule": ["1F1B", *PAIRED]}),
    (
        {**SPARSE, "dense_layers": 2},
        "dgx-a100-40",
        {"schedule": EVERY, "tp_comm_overlap": True, "cp": [1, 2], "message_latency": "20 us"},
    ),
    (DENSE, "nc-a100-pairs", {"schedule": EVERY, "tp_comm_overlap": [False, True]}),
    (
        SPARSE,
        "dgx-a100-40",
        {"schedule": EVERY, "recompute_layers": [0, 1, 3, None], "bucket": 1_000_000},
    ),
    (
        TIED,
        "p3-4x-p4000",
        {
            "schedule": PAIRED,
            "offload": OFFLOAD["offload"],
            "host_bandwidth": "20 GB/s",
            "recompute_modules": ["mlp", ["layernorm"]],
        },
    ),
    ({**SPARSE, "precision": "nvfp4", "wide_last": 1, "mtp": 1}, "dgx-b200", {"schedule": "1F1B"}),
    ({**SPARSE, **LINEAR}, "dgx-a100-40", {"schedule": EVERY}),
    (
        {**DENSE, "software": "torchtitan"},
        "nc-a100-pairs",
        {
            "schedule": EVERY,
            "dp_replicate": [1, 2, 4],
            "in_flight": [0, 2],
            "reshard_after_forward": [True, False],
        },
    ),
    (
        {**SPARSE, "software": "torchtitan-compiled"},
        "dgx-a100-40",
        {"dp_replicate": [2, 4], "bucket": 1_000_000, "in_flight": [1, 2]},
    ),
    (SPARSE, "dgx-a100-40", {"dp_replicate": [2, 4], "overlap": [True, False]}),
    (TIED, "nc-a100-pairs", {"schedule": EVERY, "dp_replicate": 2}),
    (
        {**SPARSE, "software": "megatron-bridge"},
        "dgx-b200",
        {"schedule": EVERY, "ep_comm_overlap": [False, True]},
    ),
    (
        {**SPARSE, "software": "megatron-bridge"},
        "dgx-b200",
        {"slowdown": [1.5, 2], "token_dispatcher": ["alltoall", "deepep"], "cuda_graphs": "full"},
    ),
    ({**DENSE, "layers": 9, "vocabulary": 512}, MIXED, {"schedule": EVERY, "chunks": [1, 2]}),
    (SPARSE, SLOW, {"schedule": EVERY, "tp_comm_overlap": [False, True]}),
]


@cache
def world_of(number: int) -> tuple[Question, Space, list[Plan]]:
    """A question, which several tests ask, with all its plans."""
    graph, cluster, options = WORLDS[number]
    question = question_of(graph, cluster, 8)
    space = space_of(question, options)
    return question, space, every_plan(space)


def check_bounds(world: int, count: int, seed: int) -> None:
    cluster = WORLDS[world][1]
    question, space, plans = world_of(world)
    bounds = Bounds(question, space.choices.listed["schedule"])
    for plan in random.Random(seed).sample(plans, min(count, len(plans))):
        # In the order of a search, which asks for all plans of a setup.
        row = score(question, plan)
        bound = {p: bounds.plan(p) for p in space.plans(plan.setup)}[plan]
        if "reason" in row:
            continue
        check_setup(bounds, plan.setup, space.zeros(plan.setup.layout), row)
        assert bounds.setup_ps(plan.setup) <= bounds.waited_ps(plan) <= row["step_ps"], plan
        assert bound.step_ps <= row["step_ps"], plan
        assert bound.peak_bytes <= row["peak_bytes"], plan
        assert bound.fits or not row["fits"], plan
        # What replicas send is followed turn by turn: the bound is the step. It leaves out what
        # ranks of tp gather that was sent scattered, and where tied tables hold back a turn.
        others = dict(plan.setup.others)
        # Of orders that follow from times the bound knows none.
        exact = plan.zero < 2 or not question.model.tied
        exact = exact and cluster not in (MIXED, SLOW) and plan.schedule not in (*PAIRED, *SEARCHED)
        # Nor does it know how sums within groups of replicas are queued before those between them
        # behind the last microbatch, and how much computing and collectives slow each other.
        each = plan.zero >= 2 and question.model.runs_on.startswith("torchtitan")
        exact = exact and (each or plan.setup.layout.dp_replicate == 1)
        exact = exact and "slowdown" not in others
        if exact and not others.get("offload"):
            least = 0.99 if others.get("scatter_gather") else 1
            assert bound.step_ps >= least * row["step_ps"], plan


@pytest.mark.parametrize("world", range(len(WORLDS)))
def test_setups_that_are_alike_share_their_bounds(world: int) -> None:
    """Whichever of them is asked for first."""
    question, _, plans = world_of(world)
    setups = list(dict.fromkeys(plan.setup for plan in plans))
    shared = Bounds(question)
    groups: dict[Any, list[Setup]] = {}
    for setup in setups:
        groups.setdefault(shared.alike(setup), []).append(setup)
    several = [group for group in groups.values() if len({s.layout.pp for s in group}) > 1]
    for group in random.Random(3).sample(several, min(len(several), 3)):
        assert len({shared.exchanged_ps(setup) for setup in group}) == 1
        for setup in (group[0], group[-1]):
            alone = Bounds(question)
            assert shared.setup_ps(setup) == alone.setup_ps(setup)
            assert shared.held(setup, (0, 1)) == alone.held(setup, (0, 1))


@pytest.mark.parametrize("world", range(len(WORLDS)))
def test_bounds_hold(world: int) -> None:
    check_bounds(world, 8, seed=7)


@pytest.mark.slow
@pytest.mark.parametrize("world", range(len(WORLDS)))
def test_bounds_hold_everywhere(world: int) -> None:
    check_bounds(world, 400, seed=world)


def test_what_products_hide_both_ways_is_not_exchanged() -> None:
    """Backward products hide more of what tp exchanges: a bound counts each way by itself."""
    question = question_of({**DENSE, "length": 8192}, "dgx-a100-40", 8)
    options = {"tp": 2, "microbatch": 1, "recompute": "none", "zero": 0, "tp_comm_overlap": True}
    plan, *_ = every_plan(space_of(question, {**options, "dp": 4}))
    timings = question.timings(0)
    given = plan.parallelism, timings.model, timings.costs, True, timings
    tasks, large = lower_hybrid(question.model, *given)
    inside = np.array(["/layer_" in name for name in tasks.tasks.name])
    exchanged = int(tasks.tasks.duration[(large.role == TENSOR) & inside].sum())
    assert 0.999 * exchanged < Bounds(question).exchanged_ps(plan.setup) <= exchanged


def test_what_layers_save_counts_where_actions_follow_one_another() -> None:
    question, _, plans = world_of(0)
    saving = next(plan.setup for plan in plans if plan.setup.recompute == "none")
    again = saving._replace(recompute="full")
    follow, overlap = Bounds(question), Bounds(question, PAIRED)
    assert follow.held(again, (0,))[0] < follow.held(saving, (0,))[0]
    assert overlap.held(again, (0,))[0] == overlap.held(saving, (0,))[0]


def test_a_rank_waits_longer_than_the_mean_of_all() -> None:
    question, _, plans = world_of(0)
    bounds, some = Bounds(question), random.Random(5).sample(plans, 20)
    pairs = [(bounds.setup_ps(plan.setup), bounds.waited_ps(plan)) for plan in some]
    assert all(mean <= longest for mean, longest in pairs)
    assert any(mean < longest for mean, longest in pairs)


def test_updates_are_those_of_no_other_kind_of_device() -> None:
    """Whatever was asked before: of 9 layers rank 2, the slow one, has 2, as rank 1 of 8 stages."""
    graph, cluster, _ = next(world for world in WORLDS if world[1] is MIXED)
    question = question_of(graph, cluster, 8)
    few = {"pp": 4, "cp": 1, "tp": 1, "microbatch": 1, "recompute": "none", "zero": 1}
    setup = every_plan(space_of(question, few))[0].setup

    def updates(*stages: int) -> list[Any]:
        bounds = Bounds(question)
        pieces, ground = bounds.pieces(setup, 1), bounds.ground(0)
        return [pieces.tails(ground.division(n))[:, 0].tolist() for n in stages][-1]

    assert updates(4, 8) == updates(8)
    assert updates(8, 4) == updates(4)


SMALL = {"schedule": ["1F1B", "ZB-H1", "Interleaved1F1B"], "recompute": "none", "context": "ring"}


def test_the_best_of_all_and_the_front_are_those_of_trying_everything() -> None:
    question, options = (
        question_of(DENSE, "nc-a100-pairs", 4),
        {**SMALL, "microbatch": 1, "cp": [1, 2], "tp": [1, 2]},
    )
    plans = every_plan(space_of(question, options))
    rows = [score(question, plan) for plan in plans]
    points = sorted(
        (row["step_ps"], row["peak_bytes"], place) for place, row in enumerate(rows) if row["fits"]
    )
    answer = plans_of(question, choices_of(options), top=5, front=True, alike=True)
    assert [s.order for s in answer.best] == points[:5]
    front = [
        p for p in points if not any(q != p and q[:2] <= p[:2] and q[1] <= p[1] for q in points)
    ]
    assert {s.order[:2] for s in answer.front} == {p[:2] for p in front}
    counts = answer.counts
    assert counts.legal == len(plans) == counts.unfit + counts.slower + counts.simulated
    fast = plans_of(question, choices_of(options), top=5, alike=True)
    assert [s.order for s in fast.best] == points[:5]
    assert fast.counts.simulated < len(plans) / 3
    of_degrees = {degrees(plans[p[2]].setup): p for p in reversed(points)}
    for has_front in (False, True):
        apart = plans_of(question, choices_of(options), top=3, front=has_front)
        assert [s.order for s in apart.best] == first_of_answers(list(of_degrees.values()), 3)
        assert has_front == bool(apart.front)
    assert {s.order[:2] for s in apart.front} == {p[:2] for p in front}


def test_what_does_not_fit_is_told_with_its_least_memory() -> None:
    question = question_of({"model": "llama3-70b"}, "nc-a100-pairs", 1)
    answer = plans_of(question, choices_of({"recompute": "full"}))
    assert not answer.best
    assert answer.counts.unfit == answer.counts.legal
    assert answer.counts.least_bytes is not None
    assert answer.counts.least_bytes > 80 * 2**30


def test_a_journal_and_workers_change_nothing(tmp_path: Path) -> None:
    question, choices = (
        question_of(DENSE, "nc-a100-pairs", 4),
        choices_of({**SMALL, "cp": 1, "tp": 1}),
    )
    journal = tmp_path / "plan.journal"
    first = plans_of(question, choices, top=3, journal=journal)
    lines = journal.read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simdev.search.plan.bounds.Pieces", None)  # no bound is worked out again
        again = plans_of(question, choices, top=3, journal=journal)
    assert journal.read_bytes() == lines
    journal.write_bytes(lines[: len(lines) // 2])
    half = plans_of(question, choices, top=3, journal=journal)
    with joblib.parallel_config(backend="threading", n_jobs=2):
        workers = plans_of(question, choices, top=3)
    for other in (again, half, workers):
        assert [s.order for s in other.best] == [s.order for s in first.best]
        assert other.frame.drop(columns="scenario").equals(first.frame.drop(columns="scenario"))
        assert other.counts == first.counts


def test_every_source_of_plans_counts_in_the_keys_of_their_journal() -> None:
    sources = {path.stem for path in (PACKAGE / "search" / "plan").glob("*.py")}
    apart = {name for name in sources if re.match(APART, f"search/plan/{name}/")}
    assert {"searching", "space"} <= sources
    assert not apart
    assert re.match(APART, "search/soap/optcnn/")
    assert not re.match(APART, "lowering/stages/")
    assert not re.match(APART, "search/kernels/pipelines/")  # bounds are kept, too


def test_a_journal_of_another_question_is_not_taken(tmp_path: Path) -> None:
    choices = choices_of({**SMALL, "pp": 1, "cp": 1})
    journal = tmp_path / "plan.journal"
    for batch in (4, 8):
        question = question_of(DENSE, "nc-a100-pairs", batch)
        kept = plans_of(question, choices, top=2, journal=journal)
        assert [s.order for s in kept.best] == [
            s.order for s in plans_of(question, choices, top=2).best
        ]
    with pytest.raises(InputError, match="journal"):
        plans_of(question, choices, journal=tmp_path / "no folder" / "journal")
