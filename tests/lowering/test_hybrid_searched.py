"""ZB-1p and ZB-2p of large models: made from the times and the bytes of their stages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hybrid_steps import DENSE, SMALL, report_of
from simdev.errors import InputError
from simdev.lowering.pipeline import schedule_of
from simdev.models.large import Transformer, shard_of
from simdev.report import Report
from simdev.strategy.parallelism import Parallelism

PLAN = Parallelism(pp=4, tp=2, microbatches=12, microbatch=2)


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


def test_one_of_its_kind_for_several_stages_is_refused() -> None:
    with pytest.raises(InputError, match="chunks: ZB-2p runs one stage a rank"):
        ran(SMALL, "ZB-2p", chunks=2)
    with pytest.raises(InputError, match="schedule: ZB-1p is made from the times of the stages"):
        schedule_of(replace(PLAN, schedule="ZB-1p"))
