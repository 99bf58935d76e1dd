"""Scripts that ask for gloo: one thread of a CPU does all, and takes the paths of CPUs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from rank_steps import sent, step_of
from simdev.measure.ranks.writing import RankStep


def step_over(backend: str, sharded: bool) -> RankStep:
    def train() -> None:
        model: Any = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        if sharded:
            fully_shard(model, mesh=device_mesh.init_device_mesh("cpu", (dist.get_world_size(),)))
        else:
            model = DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.randn(2, 4, 16)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    return step_of(train, backend=backend)


@pytest.mark.parametrize("sharded", [False, True])
def test_a_cpu_has_one_stream(sharded: bool) -> None:
    on_cpu, on_gpu = (step_over(backend, sharded) for backend in ("gloo", "nccl"))
    # Calls that are not waited for at once run beside the thread: the all_reduces of buckets.
    beside = {op["kind"] for op in on_cpu.ops if "stream" in op}
    assert beside == (set() if sharded else {"all_reduce"})
    assert len({op.get("stream") for op in on_gpu.ops}) == (4 if sharded else 2)
    assert sent(on_cpu) == sent(on_gpu)


def test_a_cpu_takes_its_own_paths() -> None:
    on_cpu, on_gpu = (
        {op["kind"] for op in step_over(backend, False).ops} for backend in ("gloo", "nccl")
    )
    assert "scaled_dot_product_flash_attention_for_cpu" in on_cpu - on_gpu
    assert "scaled_dot_product_efficient_attention" in on_gpu - on_cpu
    assert "foreach_add" in on_gpu - on_cpu
