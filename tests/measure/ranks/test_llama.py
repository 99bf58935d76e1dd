"""The Llama script as captured, beside the large model of the same sizes: its messages are the
same, to the byte, and what differs is named.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import torch.distributed as dist

from simdev.costs import CostModel
from simdev.costs.collectives import CollectiveModel
from simdev.lowering.hybrid import lower_hybrid
from simdev.measure.ranks import capture_ranks
from simdev.measure.ranks.pretend import Mail, World
from simdev.measure.ranks.scripts import captured_rank, run_file
from simdev.measure.ranks.writing import RankStep, RankWriter
from simdev.nouns.models.large import Transformer, roles
from simdev.nouns.strategy.parallelism import Parallelism
from worlds.clusters import machines
from worlds.costs import SPEC

LLAMA = Path(__file__).parents[3] / "scenarios/scripts/llama_fsdp.py"
# The embedding gives a part of a DTensor, as torchtitan's does; nothing writes to it.
pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
SIZES = "--dim 256 --layers 2 --heads 8 --kv-heads 4 --hidden 512 --vocab 1024 --seq 128"
MODEL = Transformer(
    "llama", 2, 256, 8, 512, 1024, 128, kv_heads=4, gated=True, bias=False, norm="rms", tied=False,
    positions=False, software="torchtitan",
)  # fmt: skip


def step_of(world: int, options: str, rank: int = 0) -> RankStep:
    program = partial(run_file, LLAMA, f"{SIZES} {options}".split())
    mail = Mail(dist.HashStore(), rank)
    return RankWriter(captured_rank(program, World(world, rank), mail)).step()


def sent(step: RankStep, group: tuple[int, ...]) -> Counter[int]:
    """How often so many bytes are sent in a group."""
    return Counter(m.bytes for m in step.messages.values() if m.group == group)


def planned(p: Parallelism, role: int) -> Counter[int]:
    """Messages of the large model, by kind and bytes."""
    cluster = CollectiveModel(machines(p.devices, "link", bandwidth=10**11))
    task_graph, large = lower_hybrid(MODEL, p, cluster, CostModel(specs=(SPEC,)))
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
    # The loss: of each token the largest logit, the sum, its label's logit and what is ignored;
    # the gradients of five norms, as large; the norms of 21 gradients.
    assert script - plan == Counter({4 * 128: 3 + 5, 4 * 21: 1})
    assert not plan - script


def test_pipeline_and_tensor_parallelism_with_fsdp_on_one_mesh() -> None:
    """Ranks 0 and 4 are enough of eight; what they send is what the large model's sends."""
    options = f"{SIZES} --pp 2 --tp 2 --batch 4 --microbatches 4 --ac selective".split()
    captured = capture_ranks(LLAMA, 8, arguments=options)
    assert [step.rank for step in captured.steps] == [0, 4]
    p = Parallelism(dp=2, tp=2, pp=2, microbatches=4, zero=2, sequence_parallel=True)
    messages = [m for step in captured.steps for m in step.messages.values()]
    script = Counter(m.bytes for m in messages if m.kind == "p2p" and m.sends)
    assert script == planned(p, roles.PIPELINE) == Counter({2 * 128 * 256 // 2: 2 * 4})
