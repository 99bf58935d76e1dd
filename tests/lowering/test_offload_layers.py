"""Activations of the first layers of each stage go to the host, those of the others stay."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from hybrid_steps import DENSE, EXPERTS, SMALL, lowered, report_of
from simdev.commands import main
from simdev.execution.check import check
from simdev.execution.engine import simulate
from simdev.ground.errors import InputError
from simdev.nouns.models.large import Transformer, footprint, shard_of
from simdev.nouns.strategy.parallelism import Parallelism
from simdev.search.plan import choices_of, plans_of, question_of

OFFLOAD = Parallelism(tp=2, pp=2, microbatches=4, offload=("activations",), host_bandwidth="1 TB/s")
PLANS = {
    "1F1B": OFFLOAD,
    "chunks": replace(OFFLOAD, schedule="Interleaved1F1B", chunks=2),
    "split": replace(OFFLOAD, schedule="ZB-H1", dp=2, zero=3, bucket=100_000),
    "full": replace(OFFLOAD, recompute="full"),
}


def figures(model: Transformer, p: Parallelism) -> tuple[Any, ...]:
    report = report_of(model, p)
    return report.step_ps, [stage.memory.peak for stage in report.training.stages]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("model", [DENSE, EXPERTS])
def test_of_no_layers_it_is_none_and_of_all_it_is_all(model: Transformer, plan: str) -> None:
    p = PLANS[plan]
    none = replace(p, offload=(), host_bandwidth=None)
    _, peaks = figures(model, replace(p, offload_layers=0))
    assert peaks == figures(model, none)[1]
    for count in (4 if p.chunks == 1 else 2, model.layers):
        assert figures(model, replace(p, offload_layers=count)) == figures(model, p)


def test_memory_falls_by_what_each_layer_saves() -> None:
    """One microbatch on one rank has all layers' activations at its peak."""
    p = replace(OFFLOAD, tp=1, pp=1, microbatches=1)
    moved = footprint(shard_of(DENSE, p), 0).saved
    peaks = [figures(DENSE, replace(p, offload_layers=n))[1][0] for n in range(6)]
    assert {before - after for before, after in pairwise(peaks)} == {moved}


def test_the_first_layers_of_each_stage_are_offloaded() -> None:
    stages = (0, 1, 2), (3, 4), (5,)
    assert replace(OFFLOAD, offload_layers=2).layers_offloaded(stages) == {0, 1, 3, 4, 5}
    assert OFFLOAD.layers_offloaded(stages) == {0, 1, 2, 3, 4, 5}
    assert replace(OFFLOAD, offload=("optimizer",)).layers_offloaded(stages) == set()


def test_engines_and_checker_agree() -> None:
    p = replace(OFFLOAD, dp=2, offload_layers=1)
    task_graph, _ = lowered(EXPERTS, p)
    traces = [simulate(task_graph, engine) for engine in ("simpy", "compiled")]
    assert traces[0].end_ps == traces[1].end_ps
    assert not check(task_graph, traces[0])


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InputError, match="offload_layers: go with offload of activations"):
        Parallelism(offload=("optimizer",), host_bandwidth="1 TB/s", offload_layers=1)
    with pytest.raises(InputError, match="offload_layers: must be a whole number"):
        replace(OFFLOAD, offload_layers=-1)
    with pytest.raises(InputError, match="offload_layers: 9 of a stage, small has 8"):
        shard_of(SMALL, replace(OFFLOAD, offload_layers=9))


def test_plans_may_be_asked_for_so_many_layers() -> None:
    question = question_of({"model": "llama3.2-1b", "layers": 4, "length": 512}, "dgx-a100-40", 8)
    told = {"tp": 2, "pp": 2, "cp": 1, "microbatch": 1, "zero": 1, "schedule": "1F1B"}
    told |= {"offload": [["activations"]], "host_bandwidth": "2 GB/s"}
    counts = {"offload_layers": [0, 1, 2], "recompute": "none"}
    rows = plans_of(question, choices_of(told | counts), top=9).frame.sort_values("offload_layers")
    assert rows["step_time_s"].is_monotonic_increasing
    assert list(rows["offload_layers"]) == [0, 1, 2]


def test_the_command_line_takes_it(capsys: pytest.CaptureFixture[str]) -> None:
    line = "simulate --model llama3.2-1b --length 512 --cluster dgx-h100 --dp 4 --pp 2 "
    line += "--offload activations --host-bandwidth 51GB/s --offload-layers 3"
    assert main(line.split()) == 0
    assert "Activations of 6 of 16 layers go to the host." in capsys.readouterr().out
