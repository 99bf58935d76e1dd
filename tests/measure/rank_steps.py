"""Steps of a rank in a pretended world, recorded in this process."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist

from simdev.measure.ranks.pretend import Mail, World
from simdev.measure.ranks.scripts import StepIsRecordedError, running
from simdev.measure.ranks.writing import RankStep, RankWriter


def step_of(
    train: Callable[[], None], size: int = 4, rank: int = 0, backend: str = "nccl"
) -> RankStep:
    """The second step of ``train``, which is a training script as a function."""
    with running(World(size, rank), Mail(dist.HashStore(), rank)) as steps:
        dist.init_process_group(backend)
        try:
            train()
        except StepIsRecordedError:
            return RankWriter(steps.recorder).step()
    raise AssertionError("the script ended before its second step")


def sent(step: RankStep) -> list[tuple[str, int]]:
    """The (kind, bytes) of all messages, in the order of issue."""
    return [(message.kind, message.bytes) for message in step.messages.values()]


def names(step: RankStep) -> list[str]:
    """The names of all ops except leaves, in the order of issue."""
    return [op["name"] for op in step.ops if op["kind"] not in ("parameter", "input")]
