"""ZB-1p and ZB-2p of large models: made from the times and the bytes of their stages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hybrid_steps import DENSE, SMALL, report_of
from simdev import load_scenario, run
from simdev.ground.errors import InputError
from simdev.lowering.pipeline import schedule_of
from simdev.nouns.models.large import Transformer, shard_of
from simdev.nouns.strategy.parallelism import Parallelism
from simdev.report import Report

# Sums of tp, which a whole backward hides better than a split one, would be as long as bubbles.
PLAN = Parallelism(pp=4, tp=2, microbatches=12, microbatch=2, tensor_overlap=False)


def ran(model: Transformer, schedule: str, **more: object) -> Report:
    plan = replace(PLAN, schedule=schedule, **more)  # type: ignore[arg-type]
    return report_of(model, plan)


@pytest.mark.parametrize("model", [SMALL, DENSE], ids=lambda model: model.name)
def test_less_bubble_in_the_memory_that_is_allowed(model: Transformer) -> None:
    one, two, plain = (ran(model, name) for name in ("zb-1P", "ZB-2p", "1F1B"))
    assert two.step_ps < one.step_ps < plain.step_ps
    names = [report.training.large.schedule.name for report in (one, two) if report.training]
    assert names == ["ZB-1p", "ZB-2p"]

    def activations(report: Report) -> list[int]:
        return [device.memory.at_peak["activations"] for device in report.devices]

    # An output stays until it has been sent, whatever the schedule.
    most, sent = max(activations(plain)), shard_of(model, PLAN).rows_bytes
    assert max(activations(one)) <= most + sent
    assert most < max(activations(two)) <= 2 * most + sent


def test_the_times_are_those_of_the_stages() -> None:
    """Stages that are far from even: the order of a rank is not that of ZB-H1."""
    large = ran(SMALL, "ZB-1p", stage_layers=(1, 1, 1, 5)).training
    other = ran(SMALL, "ZB-H1", stage_layers=(1, 1, 1, 5)).training
    assert large
    assert other
    assert large.large.schedule.rows != other.large.schedule.rows


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("1F1B", {1: "0.432 (0.024)", 2: "0.438 (0.022)"}),
        ("ZB-H1", {1: "0.405 (0.031)", 2: "0.463 (0.082)"}),
        ("ZB-1p", {1: "0.412 (0.031)", 2: "0.462 (0.088)"}),
        ("ZB-2p", {1: "0.399 (0.031)", 2: "0.464 (0.089)"}),
    ],
)
def test_reductions_are_hidden_by_gradients_of_weights(
    schedule: str, expected: dict[int, str]
) -> None:
    """A split backward hides less of them: by ZeRO the step and its exposed reductions, seconds."""
    for zero, seconds in expected.items():
        graph = {"model": "llama3-8b", "length": 2048}
        cluster = {"preset": "dgx-h100", "nodes": 8}
        plan = {"dp": 8, "pp": 4, "tp": 2, "microbatches": 12, "schedule": schedule, "zero": zero}
        document = {"graph": graph, "cluster": cluster, "strategy": {"pipeline": plan}}
        report = run(load_scenario(document))
        assert report.training
        assert f"{report.seconds:.3f} ({report.training.terms['data']:.3f})" == seconds


def test_one_of_its_kind_for_several_stages_is_refused() -> None:
    with pytest.raises(InputError, match="chunks: ZB-2p runs one stage a rank"):
        ran(SMALL, "ZB-2p", chunks=2)
    with pytest.raises(InputError, match="schedule: ZB-1p is made from the times of the stages"):
        schedule_of(replace(PLAN, schedule="ZB-1p"))
