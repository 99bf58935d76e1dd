"""Transfers of the pipeline that the ranks of tp share out, and gather behind them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hybrid_steps import SMALL, boxes, lowered, report_of
from simdev.commands import main
from simdev.ground.errors import InputError
from simdev.nouns.models.large import shard_of
from simdev.nouns.models.large.roles import PIPELINE, TENSOR
from simdev.nouns.strategy.parallelism import Parallelism

WHOLE = Parallelism(pp=2, tp=4, microbatches=4, sequence_parallel=False)
SHARED = replace(WHOLE, scatter_gather=True)


def sizes(p: Parallelism, role: int) -> list[int]:
    task_graph, step = lowered(SMALL, p, cluster=boxes(4, 2))
    return sorted(task_graph.tasks.bytes[step.role == role].tolist())


def test_a_share_is_sent_and_the_whole_gathered() -> None:
    whole, parts = sizes(WHOLE, PIPELINE), sizes(SHARED, PIPELINE)
    size = shard_of(SMALL, WHOLE).rows_bytes
    assert whole == [size] * 8  # 4 microbatches there and back
    assert parts == [size // 4] * 8
    assert len(sizes(SHARED, TENSOR)) == len(sizes(WHOLE, TENSOR)) + 8


def test_it_pays_where_a_node_has_one_nic() -> None:
    """What is sent is large enough here that bandwidth counts, not latency."""
    whole, shared = (
        report_of(SMALL, replace(p, microbatch=32), cluster=boxes(4, 2, 1)).step_ps
        for p in (WHOLE, SHARED)
    )
    assert shared < whole


@pytest.mark.parametrize("fields", [{"tp": 1}, {"sequence_parallel": True}, {"pp": 1}])
def test_nothing_to_share_out(fields: dict[str, int]) -> None:
    """One part of tp, one of the sequence each, or no transfer at all."""
    steps = {report_of(SMALL, replace(p, **fields)).step_ps for p in (WHOLE, SHARED)}
    assert len(steps) == 1


@pytest.mark.parametrize("schedule", ["ZB-H1", "Interleaved1F1B"])
def test_every_device_does_as_the_one_that_stands_for_it(schedule: str) -> None:
    p = replace(SHARED, schedule=schedule, chunks=1 + (schedule != "ZB-H1"), dp=2)
    one, every = (report_of(SMALL, p, symmetry, boxes(8, 2)) for symmetry in (True, False))
    assert one.step_ps == every.step_ps
    assert [d.memory.peak for d in one.devices] == [d.memory.peak for d in every.devices][::8]


def test_the_option_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    options = "--model gpt-1.7b --cluster dgx-h100 --tp 4 --pp 2 --microbatches 4 --json"
    tasks = []
    for more in ([], ["--scatter-gather"]):
        assert main(["simulate", *options.split(), "--no-sequence-parallel", *more]) == 0
        tasks.append(json.loads(capsys.readouterr().out)["training"]["symmetry"]["tasks"])
    assert tasks[1] == tasks[0] + 8
    with pytest.raises(InputError, match="scatter_gather: must be true or false, got 1"):
        Parallelism(scatter_gather=1)  # type: ignore[arg-type]
