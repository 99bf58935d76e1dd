"""The Llama script as captured, beside the large model of the same sizes: its messages are the
same, to the byte, and what differs is named.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch.distributed as dist

from hybrid_steps import SMALL, lowered
from simdev.measure.ranks.pretend import Mail, World
from simdev.measure.ranks.scripts import captured_rank, run_file
from simdev.measure.ranks.writing import RankStep, RankWriter
from simdev.nouns.models.large import roles
from simdev.nouns.strategy.parallelism import Parallelism

LLAMA = Path(__file__).parents[3] / "scenarios/scripts/llama_fsdp.py"
SIZES = "--dim 256 --layers 2 --heads 8 --kv-heads 4 --hidden 512 --vocab 1024 --seq 128"
MODEL = replace(SMALL, layers=2, vocabulary=1024, positions=False, software="torchtitan")


def step_of(world: int, options: str, rank: int = 0) -> RankStep:
    program = partial(run_file, LLAMA, f"{SIZES} {options}".split())
    mail = Mail(dist.HashStore(), rank)
    return RankWriter(captured_rank(program, World(world, rank), mail)).step()


def sent(step: RankStep, group: tuple[int, ...]) -> Counter[int]:
    """How often so many bytes are sent in a group."""
    return Counter(m.bytes for m in step.messages.values() if m.group == group)


def planned(p: Parallelism, role: int) -> Counter[int]:
    """The same of the large model."""
    task_graph, large = lowered(MODEL, p)
    sizes = zip(large.role, task_graph.tasks.bytes, strict=True)
    return Counter(int(size) for kind, size in sizes if kind == role)


def test_fsdp_is_as_zero_3() -> None:
    script = sent(step_of(4, "--ac none"), (0, 1, 2, 3))
    plan = planned(Parallelism(dp=4, zero=3, reduce_bytes=4), roles.DATA)
    embedding = 2 * 1024 * 256
    # FSDP2 gathers the embedding again for its backward, which reads no weight; norms of gradients.
    assert script - plan == Counter({embedding: 1, 4 * 21: 1})
    assert not plan - script


def test_tensor_parallelism_is_as_megatrons_with_sequence_parallelism() -> None:
    """By hand: a layer gathers and scatters twice, forward and backward, 2 bytes a number."""
    script = sent(step_of(4, "--ac none --tp 2"), (0, 1))
    plan = planned(Parallelism(dp=2, tp=2, zero=3, sequence_parallel=True), roles.TENSOR)
    activation = 2 * 128 * 256
    assert plan == Counter({activation: 2 * 8 + 4})
    # Of the loss: the largest logit of each token, the sum, its label's, twice; norms' weights.
    small = {size: count for size, count in (script - plan).items() if size > 1024}
    assert not plan - script
    assert not small
