"""Gradients in captured steps: their modules, what clips them, the memory that they take."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from rank_steps import step_of
from simdev import load_scenario, run
from simdev.measure.ranks.pretend import World
from simdev.measure.ranks.scenario import scenario_of
from simdev.measure.ranks.writing import RankStep
from simdev.report.measures.modules import Modules


def accumulated(backend: str, kept: bool = False) -> RankStep:
    """Four backwards a step, then a clipping of gradients."""

    def train() -> None:
        model: Any = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
        if backend == "fsdp":
            for layer in (model[0], model[2]):
                fully_shard(layer)
            fully_shard(model)
        else:
            model = DistributedDataParallel(model, gradient_as_bucket_view=kept)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            for i in range(4):
                whole = i == 3
                if backend == "fsdp":
                    model.set_requires_gradient_sync(whole)
                with nullcontext() if whole or backend == "fsdp" else model.no_sync():
                    model(torch.randn(8, 64, device="cuda")).sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=not kept)

    return step_of(train)


@pytest.mark.parametrize("backend", ["fsdp", "ddp"])
def test_gradients_that_add_up_belong_to_the_modules_of_their_parameters(backend: str) -> None:
    ops = accumulated(backend).ops
    sums = [op["name"] for op in ops if op["kind"] == "add" and op["phase"] == "backward"]
    # Three times for each weight and bias.
    assert len(sums) == 12
    assert {name.rpartition("/")[0] for name in sums} == {"grad/0", "grad/2"}
    clips = [op for op in ops if op["kind"] in ("foreach_norm", "linalg_vector_norm", "clamp")]
    assert {op["phase"] for op in clips} == {"update"}
    assert [op["kind"] for op in clips] == ["foreach_norm", "linalg_vector_norm", "clamp"]


@pytest.mark.parametrize("kept", [False, True])
def test_buckets_hold_gradients(kept: bool) -> None:
    size = 2 * 4 * (64 * 64 + 64)
    ops = accumulated("ddp", kept).ops
    held = [op for op in ops if op.get("grad_bytes")]
    assert sum(op["grad_bytes"] for op in held) == size
    assert sum(op.get("param_bytes", 0) for op in ops) == size
    assert all(tensor["bytes"] == 0 for op in held for tensor in op["outputs"])


@pytest.mark.parametrize("backend", ["fsdp", "ddp"])
def test_memory_of_gradients_has_a_column(backend: str) -> None:
    document = scenario_of([accumulated(backend)], World(4), "dgx-h100")
    section = run(load_scenario(document))[Modules]
    whole = 2 * 4 * (64 * 64 + 64)
    assert section.memory["*"]["gradients"] >= whole
    assert section.memory["*"]["parameters"] < section.memory["*"]["gradients"] * 1.1
