"""Measuring captured steps: rows, clocks, updates in turns; never how long anything took."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from captures import STEPS, Step, conv_net, graph_of, measured  # noqa: E402
from simdev.costs import op_key  # noqa: E402
from simdev.ground.errors import InputError  # noqa: E402
from simdev.measure import profile_model  # noqa: E402
from simdev.measure.building import resolve  # noqa: E402
from simdev.measure.capture import capture, row_key  # noqa: E402
from simdev.measure.operators import measure_call, measure_in_turns  # noqa: E402
from simdev.measure.provenance import driver_fields, gpu_kind  # noqa: E402
from simdev.measure.record import Call, Slot, TensorSpec  # noqa: E402
from simdev.measure.steps import Step as WholeStep  # noqa: E402
from simdev.measure.steps import StepTimer  # noqa: E402
from simdev.measure.timers import (  # noqa: E402
    CudaTimer,
    Samples,
    peak_beyond,
    spin_cycles,
    workspace_bytes,
)
from simdev.measure.torch_models.classifiers import mlp  # noqa: E402

ROW_FIELDS = {
    "v",
    "op",
    "attrs",
    "in",
    "dt",
    "out",
    "dev",
    "phase",
    "t_ns",
    "host_ns",
    "flops",
    "br",
    "bw",
    "out_bytes",
    "saved",
    "ws",
    "launches",
    "batch",
    "src",
    "meth",
    "rel_err",
}
TIME_FIELDS = {"p10", "p50", "p90", "min", "n", "wall"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("build", STEPS)
def test_every_op_of_the_graph_has_a_measured_row(build: Callable[[], Step]) -> None:
    captured, result = measured(build())
    graph = graph_of(captured)
    needed = {op_key(graph, i, "test-1core") for i, op in enumerate(graph.ops) if op.time is None}
    assert {row_key(row, "test-1core") for row in result.rows} == needed
    assert result.unmeasured == []
    assert sum(captured.counts.values()) == sum(op.time is None for op in graph.ops)


def test_rows_are_complete_and_the_header_has_its_ratio() -> None:
    captured, result = measured(conv_net())
    for row in result.rows:
        assert set(row) == ROW_FIELDS
        times = row["t_ns"]
        assert set(times) == TIME_FIELDS
        assert all(isinstance(value, int) for value in times.values())
        assert times["min"] <= times["p10"] <= times["p50"] <= times["p90"]
        assert times["n"] >= 10
    assert result.step["ratio"] > 0
    assert result.step["ops"] == sum(captured.counts.values())
    assert set(result.noise) >= {"idle_repeat_cv", "too_noisy", "wall_per_cpu", "timer_ns"}


def test_flops_of_products_and_convolutions() -> None:
    _, result = measured(conv_net())
    flops = {row["op"]: row["flops"] for row in result.rows}
    assert flops["linear"] == 2 * 2 * 36 * 5
    assert flops["conv2d"] == flops["conv2d_backward_weight"] == 2 * (2 * 4 * 6 * 6) * (3 * 3 * 3)


def test_the_files_load_and_agree(tmp_path: Path) -> None:
    from simdev.files.graph import read_graph
    from simdev.files.profile import read_profile

    seen: list[tuple[int, int, str]] = []
    graph_path, profile_path = profile_model(
        "mlp", batch=4, seconds=0.5, out_dir=tmp_path, progress=lambda *state: seen.append(state)
    )
    graph, profile = read_graph(graph_path), read_profile(profile_path)
    kind = profile.header["header"]["device"]["kind"]
    assert {op_key(graph, i, kind) for i, op in enumerate(graph.ops) if op.time is None} == set(
        profile.rows
    )
    assert seen[-1][0] == seen[-1][1] == 2 * len(profile.rows)
    first = json.loads(profile_path.read_text().splitlines()[0])
    assert first["header"]["step"]["ratio"] > 0


def test_a_function_of_a_file_is_profiled(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\ndef tiny(batch=2):\n    m = torch.nn.Linear(3, 1)\n"
        "    return m, torch.randn(batch, 3), lambda m, x: m(x).sum()\n"
    )
    graph_path, _ = profile_model(f"{file}:tiny", batch=5, seconds=0.2, out_dir=tmp_path)
    assert graph_path.name == "tiny-b5.json"


class Beside(torch.nn.Linear):
    """A module, where a function is asked for."""


def test_a_function_imports_what_stands_beside_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])
    (tmp_path / "standing_beside.py").write_text("from torch.nn import Linear as Net\n")
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\ndef tiny(batch=2):\n    from standing_beside import Net\n"
        "    return Net(3, 1), torch.randn(batch, 3), lambda m, x: m(x).sum()\n"
    )
    chosen = resolve(f"{file}:tiny", "cpu", {}, None)
    assert isinstance(chosen.build()[0], torch.nn.Linear)


def test_a_file_may_define_dataclasses_with_postponed_annotations(tmp_path: Path) -> None:
    file = tmp_path / "configured.py"
    file.write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "@dataclass\n"
        "class Config:\n"
        "    width: int = 8\n"
        "def tiny(batch: int = 2):\n"
        "    return Config().width\n"
    )
    assert resolve(f"{file}:tiny", "cpu", {}, None).build() == 8


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vgg", "no model"),
        ("missing.py:f", "no such file"),
        (f"{__file__}:nothing", 'no function "nothing"; there are .*test_an_unknown_model'),
        (__file__, "which of its functions"),
        (f"{__file__}:Beside", "Beside is a module; name a function"),
    ],
)
def test_an_unknown_model_is_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        profile_model(name)


def test_cuda_without_a_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="no CUDA device"):
        profile_model("mlp", device="cuda")


def test_workspace_is_the_peak_beyond_what_stays() -> None:
    assert peak_beyond([]) == 0
    assert peak_beyond([100]) == 0  # the output alone
    assert peak_beyond([100, 40, -40]) == 40
    assert peak_beyond([30, 100, -30]) == 30
    assert peak_beyond([30, -30, 100]) == 0
    assert peak_beyond([-10, 100, -100]) == 90  # what was there before and went away made room


@pytest.mark.filterwarnings("ignore")
def test_workspace_of_real_calls() -> None:
    x = torch.rand(100, 100)
    assert workspace_bytes(lambda: x + x, "cpu") == 0
    assert workspace_bytes(lambda: (x.sqrt() + x).sum(), "cpu") >= 40_000


# Updates, which run in turns.


class FakeTimer:
    """Counts what is run; every call takes as many ns as it says."""

    device, method = "cpu", "fake+rotate"

    def __init__(self) -> None:
        self.ran: list[int] = []

    def sample(self, thunks: Any, reps: int, batch: int) -> Samples:
        times = [thunks[(rep * batch) % len(thunks)]() for rep in range(reps)]
        self.ran.extend(times)
        return Samples(times, times, [], batch)


def constant(value: int, elements: int = 4) -> Call:
    spec = TensorSpec((elements,), (1,), torch.float32)
    return Call(lambda _: value, (Slot(0),), {}, (spec,), (spec,))


def test_updates_run_in_turns() -> None:
    timer = FakeTimer()
    turns = list(measure_in_turns([[lambda: 7], [lambda: 9]], timer, seconds=0.0))
    assert timer.ran == [7, 9] * (2 + 5)
    # Warm-ups are left out.
    assert [[samples.device for samples in turn] for turn in turns] == [[[7], [9]]] * 5


def test_a_call_gets_its_least_repetitions_without_any_time_left() -> None:
    samples = measure_call(constant(80_000), FakeTimer(), seconds=0.0)
    assert samples.device == [80_000] * 5
    assert samples.batch == 1


def test_a_long_call_is_warm_after_one_call() -> None:
    timer = FakeTimer()
    measure_call(constant(900_000_000), timer, seconds=0.0)
    assert len(timer.ran) == 1 + 5


def test_short_calls_are_timed_several_at_once() -> None:
    assert measure_call(constant(10_000), FakeTimer(), seconds=0.0).batch == 5


# The clock of a GPU, on a device that only counts.


class FakeEvent:
    """An event of a device whose clock moves as work is queued."""

    def __init__(self, device: FakeDevice) -> None:
        self.device = device

    def record(self) -> None:
        self.device.log.append("event")
        self.at = self.device.clock

    def elapsed_time(self, other: FakeEvent) -> float:
        return (other.at - self.at) / 1e6


class FakeDevice:
    """Stands in for torch.cuda: work advances its clock by what it takes."""

    def __init__(self) -> None:
        self.clock, self.log, self.spins = 0, [], []  # type: ignore[var-annotated]

    def Event(self, enable_timing: bool) -> FakeEvent:  # noqa: N802
        assert enable_timing
        return FakeEvent(self)

    def synchronize(self) -> None:
        self.log.append("synchronize")

    def _sleep(self, cycles: int) -> None:
        self.log.append("spin")
        self.spins.append(cycles)

    def is_available(self) -> bool:
        return True

    def work(self, nanoseconds: int) -> None:
        self.log.append("work")
        self.clock += nanoseconds


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    device = FakeDevice()
    for name in ("Event", "synchronize", "_sleep", "is_available"):
        monkeypatch.setattr(torch.cuda, name, getattr(device, name), raising=False)
    return device


def test_a_gpu_call_stands_between_events_behind_a_filler(fake_cuda: FakeDevice) -> None:
    timer = CudaTimer(flush=False)
    calls = [lambda: fake_cuda.work(1000), lambda: fake_cuda.work(3000)]
    samples = timer.sample(calls, reps=4, batch=1)
    assert samples.device == [1000, 3000, 1000, 3000]
    assert fake_cuda.log[1:5] == ["spin", "event", "work", "event"]
    assert len(samples.host) == 4


def test_the_filler_outlasts_the_host(
    fake_cuda: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    # each look at the host's clock is 400 us after the one before
    ticks = iter(range(0, 10**12, 400_000))
    monkeypatch.setattr(time, "perf_counter_ns", lambda: next(ticks))
    CudaTimer(flush=False).sample([lambda: None], reps=3, batch=1)
    assert fake_cuda.spins == [spin_cycles(250_000), spin_cycles(400_000), spin_cycles(400_000)]
    assert spin_cycles(400_000) / 2.1 >= 2 * 400_000


def test_a_flush_comes_before_each_gpu_call(
    fake_cuda: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = SimpleNamespace(zero_=lambda: fake_cuda.log.append("flush"))
    monkeypatch.setattr(torch, "empty", lambda *_, **__: buffer)
    timer = CudaTimer(flush=True)
    timer.sample([lambda: fake_cuda.work(5)], reps=2, batch=1)
    assert [event for event in fake_cuda.log if event != "synchronize"] == [
        "flush",
        "spin",
        "event",
        "work",
        "event",
    ] * 2


def test_steps_on_a_gpu_are_timed_by_events(
    fake_cuda: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, inputs, loss = mlp(batch=2, width=4, layers=1)

    def timed(*step: Any) -> Any:
        fake_cuda.work(5)
        value = loss(*step)
        value.register_hook(lambda _: fake_cuda.work(7))
        return value

    step = WholeStep(capture(module, inputs, loss), module, inputs, timed, "sgd-momentum")
    steps = StepTimer(step, "cpu")
    steps.device = "cuda"
    monkeypatch.setattr(steps.optimizer, "step", lambda: fake_cuda.work(11))
    steps.run(2)
    assert steps.times == {"forward": [5, 5], "backward": [7, 7], "update": [11, 11]}


def test_a_driver_s_answer_becomes_fields_without_the_device_s_id() -> None:
    found = driver_fields("535.104.05, GPU-12345678, 1980, 1980, 2619, 700.00, 5, 16\n")
    assert (found["driver"], found["sm_mhz"], found["power_cap_w"]) == ("535.104.05", 1980.0, 700.0)
    assert "12345678" not in str(found)
    assert driver_fields("") == driver_fields("no devices were found") == {}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA GeForce RTX 2080", "rtx-2080"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx-2080-ti"),
        ("NVIDIA A10G", "nvidia-a10g"),
    ],
)
def test_gpus_bear_the_names_of_their_datasheets(name: str, kind: str) -> None:
    assert gpu_kind(name) == kind
