"""Training loops as people write them: data loaders, several optimizers, and what ends them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from multiprocessing import Process
from pathlib import Path
from textwrap import dedent
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import simdev
from simdev.measure.ranks import Captured, scripts
from simdev.report.measures.modules import Modules


def kinds(captured: Captured) -> Counter[str]:
    """How often each kind of op stands in the step of rank 0, what it is given aside."""
    return Counter(op["kind"] for op in captured.steps[0].ops) - Counter(
        input=99, randn=99, randint=99
    )


def model() -> torch.nn.Linear:
    return torch.nn.Linear(8, 4)


def test_data_loaders_with_workers_are_no_work_of_a_device() -> None:
    def train(loads: bool) -> None:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        data = TensorDataset(torch.randn(12, 8), torch.randint(4, (12,)))
        batches = [(torch.randn(4, 8), torch.randint(4, (4,)))] * 3
        loader = DataLoader(data, 4, shuffle=True, num_workers=2, prefetch_factor=4)
        for x, y in loader if loads else batches:
            F.cross_entropy(net(x), y).backward()
            optimizer.step()

    loaded, given = (simdev.capture(partial(train, loads), world=1) for loads in (True, False))
    assert kinds(loaded) == kinds(given)
    assert loaded.notes == given.notes


def test_a_step_is_recorded_once_every_optimizer_has_its_state() -> None:
    def train() -> None:
        nets = [model(), model()]
        optimizers = [torch.optim.Adam(net.parameters()) for net in nets]
        for _ in range(4):
            for net, optimizer in zip(nets, optimizers, strict=True):
                net(torch.randn(4, 8)).sum().backward()
                optimizer.step()

    (step,) = simdev.capture(train, world=1).steps
    # Two moments of four bytes for each of 36 numbers of each model.
    assert sum(op.get("state_bytes", 0) for op in step.ops) == 2 * 2 * 4 * 36


def test_a_script_that_catches_everything_is_captured() -> None:
    def train() -> None:
        try:
            for _ in range(3):
                model()(torch.randn(4, 8))
                simdev.step_ends()
        except BaseException as error:
            raise RuntimeError("training failed") from error

    assert kinds(simdev.capture(train, world=1))["linear"] == 1


def test_accelerators_and_checkpoints_are_let_alone(tmp_path: Path) -> None:
    def train() -> None:
        device = torch.accelerator.current_accelerator()
        assert dist.get_default_backend_for_device(device) == "nccl"
        with torch.cuda.device(0):
            torch.cuda.nvtx.range_push("model")
            torch.cuda.set_rng_state(torch.cuda.get_rng_state())
        torch.accelerator.set_device_index(torch.accelerator.current_device_index())
        net = model().to(device)
        for _ in range(3):
            net(torch.randn(4, 8, device=device)).sum().backward()
            torch.save(net.state_dict(), tmp_path / "model.pt")
            simdev.step_ends()

    assert kinds(simdev.capture(train, world=1))["linear"] == 1
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("train", "why"),
    [
        (lambda: torch.nn.DataParallel(model()), "DataParallel: .*DistributedDataParallel"),
        (lambda: torch.multiprocessing.spawn(print), "spawn: .*torchrun"),
        (
            lambda: torch.cuda.CUDAGraph(),
            r"test_loops.py:\d+: torch.cuda.CUDAGraph: .*--host graph",
        ),
        (lambda: torch.cuda.make_graphed_callables(print), "--host graph"),
        (lambda: os.fork(), r"test_loops.py:\d+: os.fork: a rank is one process"),
        (lambda: Process(target=print).start(), "multiprocessing.Process: a rank is one process"),
    ],
)
def test_other_ways_to_several_gpus_are_refused(train: Callable[[], None], why: str) -> None:
    with pytest.raises(simdev.InputError, match=why):
        simdev.capture(train, world=1)


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "its process was ended by SIGKILL"),
        (lambda: os._exit(3), "its process ended with 3"),
    ],
)
def test_a_rank_whose_process_ends_is_told(end: Callable[[], None], why: str) -> None:
    with pytest.raises(simdev.InputError, match=f"rank 0: {why}$"):
        simdev.capture(end, world=1)


def test_a_loop_without_a_step_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def train() -> None:
        net = model()
        while True:
            try:
                net(torch.randn(4, 8)).sum().backward()
            except Exception:
                continue

    monkeypatch.setattr(scripts, "LONGEST", 1)
    with pytest.raises(simdev.InputError, match=r"test_loops.py:\d+: no step .* within 1 CPU sec"):
        simdev.capture(train, world=1)


def test_samplers_of_large_datasets_ask_for_their_order_at_once() -> None:
    class Images(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 1_281_167

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.zeros(8)

    def train() -> None:
        read = []
        item = torch.Tensor.item
        with patch.object(torch.Tensor, "item", lambda x: read.append(x) or item(x)):
            loader = DataLoader(Images(), 4, sampler=DistributedSampler(Images()), num_workers=8)
            for x in loader:
                model()(x)
                assert len(read) < 100
                simdev.step_ends()

    assert kinds(simdev.capture(train, world=2, ranks=[0]))["linear"] == 1


def test_ranks_without_collectives_are_compared_too() -> None:
    def train() -> None:
        for _ in range(3):
            torch.ones(8) @ torch.ones(8)
            if dist.get_rank() == 3:
                dist.all_reduce(torch.zeros(8))
            simdev.step_ends()

    with pytest.raises(simdev.InputError, match="all_reduce"):
        simdev.capture(train, world=4).document("dgx-h100")


def test_ranks_end_with_the_process_that_captures_them(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"""
import os, time
open(r"{tmp_path}/rank", "w").write(str(os.getpid()))
time.sleep(600)
""")
    command = f"import simdev; simdev.capture(r'{script}', world=1)"
    with subprocess.Popen([sys.executable, "-c", command]) as process:
        started = tmp_path / "rank"
        while not (started.exists() and started.read_text()):
            time.sleep(0.1)
        process.kill()
    while _runs(int(started.read_text())):
        time.sleep(0.1)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("root", [0, 1])
def test_messages_of_any_root_are_simulated(root: int) -> None:
    def train() -> None:
        for _ in range(2):
            losses = torch.ones(8)
            dist.broadcast(losses, root)
            dist.reduce(losses, root)
            losses * 2
            simdev.step_ends()

    report = simdev.run(simdev.capture(train, world=2, ranks=[0, 1]).scenario("dgx-h100"))
    assert [calls.call for calls in report[Modules].calls] == ["broadcast", "reduce"]


@pytest.mark.parametrize("switch", ["no_grad", "inference_mode"])
def test_an_evaluation_has_the_ops_of_a_forward(switch: str) -> None:
    def train() -> None:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(3):
            with getattr(torch, switch)():
                net(torch.randn(2, 8)).softmax(-1)
            net(torch.randn(2, 8)).sum().backward()
            optimizer.step()

    of_step = kinds(simdev.capture(train, world=1))
    assert (of_step["linear"], of_step["softmax"]) == (2, 1)


def test_marked_steps_may_have_several_steps_of_an_optimizer(tmp_path: Path) -> None:
    lines = """
        import simdev, torch
        net = torch.nn.Linear(8, 8)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(3):
            for _ in range(2):
                net(torch.randn(4, 8)).sum().backward()
                optimizer.step()
            simdev.step_ends()
    """
    script = tmp_path / "train.py"
    script.write_text(dedent(lines))
    assert kinds(simdev.capture(script, world=1))["linear"] == 2


def test_a_mark_outside_of_the_script_is_refused() -> None:
    def train() -> None:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(3):
            net(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            getattr(simdev, "step_" + "ends")()

    with pytest.raises(simdev.InputError, match="call it in the script itself"):
        simdev.capture(train, world=1)
