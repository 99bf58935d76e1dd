"""Full recomputation of the first layers of each stage: time, memory and FLOPs by closed forms."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from hybrid_steps import DENSE, EXPERTS, SMALL, lowered, report_of
from simdev.commands import main
from simdev.execution.check import check
from simdev.execution.engine import simulate
from simdev.execution.scenario import Outcome
from simdev.ground.errors import InputError
from simdev.nouns.models.large import Transformer, shard_of
from simdev.nouns.models.large.roles import FORWARD, RECOMPUTE
from simdev.nouns.strategy.parallelism import Parallelism
from simdev.report import analyze
from simdev.search.plan import choices_of, plans_of, question_of

FULL = Parallelism(tp=2, pp=2, microbatches=4, recompute="full")
PLANS = {
    "1F1B": FULL,
    "chunks": replace(FULL, schedule="Interleaved1F1B", chunks=2),
    "split": replace(FULL, schedule="ZB-H1", dp=2, zero=3, bucket=100_000),
    "searched": replace(FULL, schedule="ZB-2p"),
    "both ways": replace(FULL, schedule="DualPipeV", chunks=2, microbatches=8),
    "offload": replace(FULL, offload=("activations",), host_bandwidth="20 GB/s"),
}


def figures(model: Transformer, p: Parallelism) -> tuple[Any, ...]:
    report = report_of(model, p)
    peaks = [stage.memory.peak for stage in report.training.stages]
    return report.step_ps, peaks, report.training.mfu, report.training.hfu


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("model", [DENSE, EXPERTS])
def test_of_no_layers_it_is_none_and_of_all_it_is_full(model: Transformer, plan: str) -> None:
    p = PLANS[plan]
    assert figures(model, replace(p, recompute_layers=0)) == figures(
        model, replace(p, recompute="none")
    )
    for count in (4 if p.chunks == 1 else 2, model.layers):
        assert figures(model, replace(p, recompute_layers=count)) == figures(model, p)


@pytest.mark.parametrize("count", range(8))
def test_time_memory_and_flops_are_linear_in_the_layers(count: int) -> None:
    """A layer made again takes its forward once more and keeps its input of 2 bytes a number, not
    all s b h (34 + 5 a s / h) bytes (Korthikanti et al. 2022, equation 1).
    """
    p = Parallelism(recompute="full", flash=False, microbatches=3)
    none, some = (lowered(DENSE, replace(p, recompute_layers=n)) for n in (0, count))
    steps = [analyze(Outcome(simulate(graph, "simpy"), large=step)) for graph, step in (none, some)]
    words, h = DENSE.length, DENSE.hidden
    kept = 34 * words * h + 5 * DENSE.heads * words * words
    duration = some[0].tasks.duration
    again = duration[some[1].role == RECOMPUTE]
    assert len(again) == 3 * count
    # The embedding and the classifier are rows of a forward, too.
    each = duration[some[1].role == FORWARD].reshape(3, 2 + DENSE.layers)[0, 1]
    assert steps[1].step_ps - steps[0].step_ps == again.sum() == 3 * count * each
    less = steps[0].memories[0].peak - steps[1].memories[0].peak
    assert less == count * (kept - 2 * words * h)
    # GPT's layer: 12 h^2 weights, and two products over all pairs (Narayanan et al. 2021).
    flops = 2 * words * 12 * h * h + 4 * words * words * h
    whole = 3 * (8 * flops + 2 * words * h * DENSE.vocabulary)
    training = steps[1].training
    assert training.hfu / training.mfu == pytest.approx(1 + count * flops / whole)


def test_the_last_layer_made_again_is_there_for_its_own_backward() -> None:
    """The first backward begins with it: only what the classifier is done with then is spared."""
    p = Parallelism(recompute="full", microbatches=3)
    peaks = [figures(DENSE, replace(p, recompute_layers=n))[1][0] for n in (6, 7, 8)]
    assert 0 < peaks[1] - peaks[2] < peaks[0] - peaks[1]


def test_stages_have_layers_of_both_sorts() -> None:
    """The first two of stages of 1, 4 and 3 layers; of two chunks the first of each."""

    def again(**plan: Any) -> list[int]:
        _, step = lowered(SMALL, Parallelism(recompute="full", microbatches=4, **plan))
        layers = step.parallelism.layers_again(step.layers)
        assert (step.role == RECOMPUTE).sum() == 4 * len(layers)
        return sorted(layers)

    assert again(pp=3, stage_layers=(1, 4, 3), recompute_layers=2) == [0, 1, 2, 5, 6]
    plan = {"pp": 2, "chunks": 2, "schedule": "Interleaved1F1B"}
    assert again(**plan, recompute_layers=1) == [0, 2, 4, 6]
    assert again(**plan) == list(range(8))
    assert Parallelism(recompute="selective").layers_again([[0, 1]]) == frozenset()


@pytest.mark.parametrize("plan", PLANS)
def test_engines_and_checker_agree(plan: str) -> None:
    p = replace(PLANS[plan], recompute_layers=1)
    task_graph, step = lowered(EXPERTS, p)
    traces = [simulate(task_graph, engine) for engine in ("simpy", "compiled")]
    assert (traces[0].start == traces[1].start).all()
    assert not check(task_graph, traces[0])
    every, _ = lowered(EXPERTS, p, symmetry=False)
    assert simulate(every, "compiled").end_ps == traces[0].end_ps
    assert step.collapsed


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"recompute_layers": 1}, 'recompute_layers: go with recompute "full", got "none"'),
        ({"recompute": "selective", "recompute_layers": 0}, 'with recompute "full", got "selec'),
        ({"recompute": "full", "recompute_layers": -1}, "recompute_layers: must be a whole number"),
        ({"recompute": "full", "recompute_layers": True}, "recompute_layers: must be a whole numb"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        Parallelism(**given)


def test_a_stage_has_no_more_layers_than_the_model() -> None:
    with pytest.raises(InputError, match="recompute_layers: 9 of a stage, small has 8"):
        shard_of(SMALL, replace(FULL, recompute_layers=9))


def test_plans_may_be_asked_for_so_many_layers() -> None:
    question = question_of({"model": "llama3.2-1b", "layers": 4, "length": 512}, "dgx-a100-40", 8)
    narrow = {"tp": 2, "pp": 2, "cp": 1, "microbatch": 1, "zero": 1, "schedule": "1F1B"}
    counts = {"recompute_layers": [None, 0, 1]}
    rows = plans_of(question, choices_of(narrow | counts), top=9).frame.sort_values("step_time_s")
    # Of no layers it is the plan without recomputation by another name.
    assert list(rows["recompute"]) == ["none", "full", "full"]
    assert rows["recompute_layers"].fillna(-1).tolist() == [-1, 1, -1]
    assert rows["peak_bytes"].is_monotonic_decreasing
    reason = "recompute, recompute_layers: no combination of these is full"
    with pytest.raises(InputError, match=reason):
        plans_of(question, choices_of(narrow | {"recompute": "none", "recompute_layers": 1}))


def test_the_command_line_takes_it(capsys: pytest.CaptureFixture[str]) -> None:
    line = "simulate --model llama3.2-1b --length 512 --cluster dgx-h100 --dp 4 --pp 2 "
    line += "--microbatches 4 --recompute full --recompute-layers 3"
    assert main(line.split()) == 0
    assert "Made again before the backward: 6 of 16 layers." in capsys.readouterr().out
    assert main([*line.split(), "--json"]) == 0
    training = json.loads(capsys.readouterr().out)["training"]
    assert 1 < training["hfu"] / training["mfu"] < 4 / 3
    assert main(line.replace("full", "none").split()) == 2
    assert "--recompute-layers: go with recompute" in capsys.readouterr().err
