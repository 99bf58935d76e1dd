"""A training script for two CPUs, as a user writes it: ``gloo_training.py ddp|fsdp|pipeline FILE
[WIDTH LENGTH]``.

``benchmarks.scripts`` really runs it over gloo, which leaves the seconds of its steps in the file,
and has it captured as it is.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

LAYERS, SAMPLES = 4, 8
MICROBATCHES = 4
STEPS, WARM_UPS = 5, 3


def layers(width: int, count: int = LAYERS) -> nn.Sequential:
    """Layers of a Transformer."""
    options: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "norm_first": True}
    return nn.Sequential(
        *(nn.TransformerEncoderLayer(width, 8, 4 * width, **options) for _ in range(count))
    )


def loss_of(output: Tensor, _: Tensor | None = None) -> Tensor:
    """A loss."""
    return output.pow(2).mean()


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of a rank's parameters."""
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def data_parallel(model: nn.Module, width: int, length: int) -> Callable[[], None]:
    """A step of a model, each rank with samples of its own."""
    optimizer, x = optimizer_of(model), torch.randn(SAMPLES, length, width)

    def step() -> None:
        loss_of(model(x)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def ddp(width: int, length: int) -> Callable[[], None]:
    """DistributedDataParallel."""
    return data_parallel(DistributedDataParallel(layers(width)), width, length)


def fsdp(width: int, length: int) -> Callable[[], None]:
    """FSDP2; gloo adds up, and does not average."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model: Any = layers(width)
    for module in (*model, model):
        fully_shard(module, mesh=mesh)
        module.set_force_sum_reduction_for_comms(True)
    return data_parallel(model, width, length)


def pipeline(width: int, length: int) -> Callable[[], None]:
    """A stage a rank, by GPipe."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = layers(width, LAYERS // ranks)
    shape = (SAMPLES // MICROBATCHES, length, width)
    ends = [torch.empty(shape, requires_grad=requires) for requires in (rank > 0, True)]
    stage = PipelineStage(
        model, rank, ranks, torch.device("cpu"), input_args=ends[0], output_args=ends[1]
    )
    schedule = ScheduleGPipe(stage, MICROBATCHES, loss_of)
    optimizer, x = optimizer_of(model), torch.randn(SAMPLES, length, width)

    def step() -> None:
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=x)
        optimizer.step()
        optimizer.zero_grad()

    return step


def main(kind: str, file: str, width: str = "512", length: str = "64") -> None:
    """Trains; rank 0 writes the seconds of its steps."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    step = {"ddp": ddp, "fsdp": fsdp, "pipeline": pipeline}[kind](int(width), int(length))
    seconds = []
    for _ in range(WARM_UPS + STEPS):
        dist.barrier()
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    if dist.get_rank() == 0:
        Path(file).write_text(json.dumps(seconds[WARM_UPS:]))
    # Gloo waits for its peers where it is taken down: all let go of it together, before it ends.
    del step
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
