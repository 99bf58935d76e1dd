"""Scripts of torch.distributed.pipelining as captured: the order of their actions is that of the
published schedules, their step that of the closed form of 1F1B.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    _PipelineScheduleRuntime,
    get_schedule_class,
)

from simdev import load_scenario, run
from simdev.measure.ranks import Captured, capture_program
from simdev.measure.ranks.joining import joined
from simdev.measure.ranks.pretend import World
from simdev.measure.ranks.writing import RankStep
from simdev.nouns.schedules import named_schedule, schedule_csv
from worlds.scenarios import question

WIDTH, ROWS = 8, 2


class Stage(nn.Module):
    """A product of WIDTH x WIDTH, named by the number of the stage."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.name = f"stage{number}"
        self.add_module(self.name, nn.Linear(WIDTH, WIDTH, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.get_submodule(self.name)(x)
        return result


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).sum()


def pipeline(
    schedule: str,
    ranks: int,
    microbatches: int,
    chunks: int = 1,
    known: Callable[[int], bool] = lambda _: False,
    table: Path | None = None,
) -> Callable[[], None]:
    """A script; the stages for which ``known`` holds are given the shapes of their tensors. With a
    ``table``, a CSV file, it runs that schedule.
    """

    def train() -> None:
        dist.init_process_group("nccl")
        rank, stages = dist.get_rank(), ranks * chunks
        numbers = [rank + i * ranks for i in range(chunks)]
        if schedule in ("ZBVZeroBubble", "DualPipeV"):
            numbers = [rank, stages - 1 - rank]
        shape = torch.empty(ROWS, WIDTH)
        within = torch.empty(ROWS, WIDTH, requires_grad=True)
        parts = [
            PipelineStage(
                Stage(n),
                n,
                stages,
                torch.device("cuda"),
                **(
                    {"input_args": (within if n else shape,), "output_args": (within,)}
                    if known(n)
                    else {}
                ),
            )
            for n in numbers
        ]
        kind = _PipelineScheduleRuntime if table else get_schedule_class(schedule)
        several = issubclass(kind, PipelineScheduleMulti)
        runner = kind(parts if several else parts[0], microbatches, loss_fn=loss_of)
        if table:
            runner._load_csv(str(table))
        weights = [p for part in parts for p in part.submod.parameters()]
        optimizer = torch.optim.SGD(weights, lr=0.1)
        for _ in range(2):
            batch = torch.randn(microbatches * ROWS, WIDTH, device="cuda")
            ends = {"target": batch} if stages - 1 in numbers else {}
            runner.step(*([batch] if 0 in numbers else []), **ends)
            optimizer.step()
            optimizer.zero_grad()

    return train


def captured(*args: Any, **kwargs: Any) -> Captured:
    return capture_program(pipeline(*args, **kwargs), World(args[1]))


def actions(step: RankStep) -> list[str]:
    """Actions of a rank, written as tables have them (W and I, as autograd has it, for each B)."""
    numbers: dict[tuple[str, str], count[int]] = {}
    done = []
    for op in step.ops:
        if op["kind"] != "matmul":
            continue
        stage = op["name"].partition("stage")[2].partition("/")[0]
        of_weight = op["outputs"][0]["shape"] == [WIDTH, WIDTH]
        kind = "F" if op["phase"] == "forward" else "IW"[of_weight]
        done.append(f"{stage}{kind}{next(numbers.setdefault((stage, kind), count()))}")
    return done


def expected(row: Sequence[Any]) -> list[str]:
    """The actions of a table's row in the same manner. The first stage has no gradient of its
    input.
    """
    done = []
    for action in row:
        if action is None:
            continue
        for kind in {"B": "WI"}.get(action.kind, action.kind):
            if (action.stage, kind) != (0, "I"):
                done.append(f"{action.stage}{kind}{action.microbatch}")
    return done


@pytest.mark.parametrize(
    ("schedule", "ranks", "microbatches", "chunks"),
    [
        ("GPipe", 3, 4, 1),
        ("1F1B", 4, 6, 1),
        ("Interleaved1F1B", 2, 4, 2),
        ("InterleavedZeroBubble", 2, 4, 2),
        ("DualPipeV", 2, 4, 2),
    ],
)
def test_actions_come_in_the_order_of_the_published_schedule(
    schedule: str, ranks: int, microbatches: int, chunks: int
) -> None:
    steps = captured(schedule, ranks, microbatches, chunks).steps
    table = named_schedule(schedule, ranks, microbatches, chunks)
    assert [step.rank for step in steps] == list(range(ranks))
    assert [actions(step) for step in steps] == list(map(expected, table.rows))
    # No two ranks wait for each other.
    joined(steps, [f"gpu:{rank}" for rank in range(ranks)], "pipeline")


def test_actions_are_those_of_a_table(tmp_path: Path) -> None:
    """ZB-H1, which PyTorch has no schedule for."""
    table = named_schedule("ZB-H1", 3, 4)
    file = tmp_path / "zb-h1.csv"
    file.write_text(schedule_csv(table))
    steps = captured("ZB-H1", 3, 4, table=file).steps
    assert [actions(step) for step in steps] == list(map(expected, table.rows))


@pytest.mark.parametrize("known", [lambda _: True, lambda stage: stage == 1], ids=["all", "some"])
def test_stages_vote_whether_shapes_are_known(known: Callable[[int], bool]) -> None:
    """Where all are they are trusted, else all stages infer them: the step is the same."""
    with_shapes, without = captured("1F1B", 2, 2, known=known), captured("1F1B", 2, 2)
    fingerprints = [[step.fingerprint for step in each.steps] for each in (with_shapes, without)]
    assert fingerprints[0] == fingerprints[1]


@pytest.mark.parametrize(
    ("schedule", "ranks", "microbatches", "chunks"),
    [
        ("1F1B", 2, 2, 1),
        ("1F1B", 3, 5, 1),
        ("GPipe", 3, 5, 1),
        ("Interleaved1F1B", 2, 4, 2),
        ("Interleaved1F1B", 4, 8, 2),
    ],
)
def test_equal_stages_take_the_closed_form(
    schedule: str, ranks: int, microbatches: int, chunks: int
) -> None:
    """(S - 1 + M v)(f + b) of v chunks a rank, with links that take next to no time (Huang et al.
    2019, section 2.3; Narayanan et al. 2021, section 2.2).
    """
    forward, backward = 2 * 10**12, 3 * 10**12
    steps = captured(schedule, ranks, microbatches, chunks).steps
    graph, strategy = joined(steps, [f"gpu:{rank}" for rank in range(ranks)], "pipeline")
    for op in graph["ops"]:
        if op["kind"] != "p2p":
            op["time"] = 0
        if op["kind"] == "matmul":
            # Of a backward the gradient of the weight comes last; the first stage has it alone.
            of_weight = op["outputs"][0]["shape"] == [WIDTH, WIDTH]
            op["time"] = f"{forward if op['phase'] == 'forward' else backward * of_weight} ps"
    report = run(load_scenario(question(graph, "dgx-h100", strategy)))
    assert report.step_ps == pytest.approx(
        (ranks - 1 + microbatches * chunks) * (forward + backward), rel=1e-5
    )
