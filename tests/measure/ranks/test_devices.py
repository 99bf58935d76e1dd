"""Devices as scripts name them: tensors lie where a script puts them, and the CPU's work is none of
the GPU's.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import simdev
from simdev.measure.ranks import Captured
from simdev.nouns.structure import rank_module
from simdev.report.measures.modules import folded


def kinds(captured: Captured) -> Counter[str]:
    return Counter(op["kind"] for op in captured.steps[0].ops)


def test_a_script_reads_where_its_tensors_lie() -> None:
    def train() -> None:
        rank = dist.get_rank()
        gpu = torch.device("cuda", torch.cuda.current_device())
        assert gpu.type == "cuda"
        net = nn.Linear(8, 4).to(gpu)
        assert next(net.parameters()).is_cuda
        for _ in range(3):
            x = torch.randn(4, 8)
            assert not x.is_cuda
            assert x.device == torch.device("cpu")
            y = x.to(x.device).cuda()
            loss = net(y).sum()
            assert loss.is_cuda
            assert loss.device == gpu == torch.device("cuda", rank)
            assert torch.zeros(2, device=loss.device).device == gpu
            with gpu:
                assert torch.zeros(2).is_cuda
            assert not loss.detach().cpu().is_cuda
            loss.backward()
            simdev.step_ends()

    simdev.capture(train, world=2, ranks=[1])


def test_work_on_tensors_of_the_cpu_is_no_op() -> None:
    def train(on_cpu: bool) -> None:
        device = torch.device("cpu" if on_cpu else "cuda")
        net, seen = nn.Linear(8, 4).to("cuda"), torch.zeros((), device=device)
        for _ in range(3):
            x = torch.randn(4, 8, device=device)
            x = (x - x.mean()) / x.std()
            loss = net(x.to("cuda")).mean()
            loss.backward()
            seen += loss.detach().to(device)
            seen.sqrt()
            simdev.step_ends()

    def captured(on_cpu: bool) -> Captured:
        return simdev.capture(lambda: train(on_cpu), world=1)

    host, gpu = captured(True), captured(False)
    extra = {"randn": 1, "mean": 1, "sub": 1, "std": 1, "div": 1, "add": 1, "sqrt": 1}
    assert kinds(gpu) - kinds(host) == extra
    # The GPU is given the batch in place of the sum of losses.
    assert kinds(gpu)["input"] == kinds(host)["input"]
    (note,) = (note for note in host.notes if "CPU" in note)
    assert note.startswith("test_devices.py:")
    assert "7 operators" in note


def test_a_function_that_names_no_device_runs_on_it() -> None:
    def step() -> Any:
        return nn.Linear(8, 4), torch.ones(4, 8) * 2, lambda net, x: net(x * 2).sum()

    captured = simdev.capture(step, world=1)
    assert kinds(captured)["mul"] == 1
    assert not [note for note in captured.notes if "CPU" in note]


def test_a_backward_computes_again_on_the_device() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            places = torch.arange(8, device=torch.device("cuda")) + torch.ones(8, device=x.device)
            return self.inner(x) * places

    def train() -> None:
        net = Block().cuda()
        for _ in range(2):
            x = torch.randn(4, 8, device="cuda", requires_grad=True)
            checkpoint(net, x, use_reentrant=False).sum().backward(retain_graph=True)
            simdev.step_ends()

    assert kinds(simdev.capture(train, world=1))["arange"] == 2


def test_values_that_leave_pytorch_are_ones() -> None:
    def train() -> None:
        torch.set_default_device("cuda")
        numbers = torch.Generator(device="cuda").manual_seed(1)
        for _ in range(2):
            x = torch.randn(2, 3, generator=numbers)
            assert x.is_cuda
            array = (x * 2).cpu().numpy()
            assert array.shape == (2, 3)
            assert array.dtype == np.float32
            assert (array == 1).all()
            assert torch.from_numpy(array).tolist() == [[1, 1, 1]] * 2
            simdev.step_ends()

    captured = simdev.capture(train, world=1)
    assert any("asks for the value of a tensor" in note for note in captured.notes)
    waits = [op["kind"] for op in captured.steps[0].ops if op.get("blocks_host")]
    assert waits == ["mul"]


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_gloo_makes_a_step_of_a_cpu_and_says_so(backend: str) -> None:
    def train() -> None:
        dist.destroy_process_group()
        dist.init_process_group(backend)
        for _ in range(2):
            torch.ones(8, device="cuda") * 2
            simdev.step_ends()

    notes = simdev.capture(train, world=1).notes
    assert any("gloo" in note for note in notes) == (backend == "gloo")


def test_a_number_names_a_gpu() -> None:
    def train() -> None:
        rank = int(os.environ["LOCAL_RANK"])
        gpu = torch.device(rank)
        assert gpu == torch.device(type="cuda", index=rank)
        net = nn.Linear(8, 4).to(rank)
        assert net.weight.device == nn.Linear(8, 4, device=rank).weight.device == gpu
        for _ in range(2):
            x = torch.randn(4, 8)
            assert x.to(rank).device == torch.ones(2, device=rank).device == x.cuda(rank).device
            assert f"{net(x.to(rank)).sum():.2f}" == "1.00"
            simdev.step_ends()

    simdev.capture(train, world=2, ranks=[1])


def test_what_scripts_ask_of_a_gpu_is_answered(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(2)}, tmp_path / "w.pt")

    def train() -> None:
        cuda = torch.cuda
        assert cuda.memory_allocated(device=0) == cuda.max_memory_reserved() == 0
        assert cuda.get_device_properties("cuda").warp_size == 32
        assert cuda.utilization() == torch.accelerator.memory_allocated() == 0
        assert int(torch.version.cuda.split(".")[0]) >= 12
        assert torch.backends.cudnn.version() > 8000
        assert cuda.nccl.version() > (2, 0)
        cuda.ipc_collect()
        cuda.memory._record_memory_history()
        cuda.profiler.start()
        for place in ("cuda:0", torch.device("cuda"), lambda storage, _: storage):
            assert torch.load(tmp_path / "w.pt", map_location=place)["weight"].shape == (2,)
        for _ in range(2):
            torch.ones(2, device="cuda") * 2
            simdev.step_ends()

    simdev.capture(train, world=1)


def test_several_models_have_the_names_of_their_classes() -> None:
    class Writer(nn.Linear):
        pass

    class Reader(nn.Linear):
        pass

    def train() -> None:
        models = [DistributedDataParallel(net.cuda()) for net in (Reader(8, 8), Writer(8, 8))]
        optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in models]
        for _ in range(3):
            for model, optimizer in zip(models, optimizers, strict=True):
                model(torch.randn(4, 8, device="cuda")).sum().backward()
                optimizer.step()

    ops = simdev.capture(train, world=2).steps[0].ops
    names = [op["name"] for op in ops if op["kind"] in ("linear", "all_reduce")]
    # The step begins behind the first optimizer's.
    assert [folded(rank_module(f"rank 0/{name}") or "") for name in names] == [
        "Writer", "Writer", "Reader", "Reader",
    ]  # fmt: skip
