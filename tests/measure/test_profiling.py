"""Capturing and measuring PyTorch steps: shapes and keys, never times."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from simdev.costs import op_key  # noqa: E402
from simdev.errors import InputError  # noqa: E402
from simdev.graph import Graph, Op, Tensor  # noqa: E402
from simdev.measure import model_names, profile_grid, profile_model  # noqa: E402
from simdev.measure.capture import Capture, capture, row_key  # noqa: E402
from simdev.measure.compare import compare, has_step  # noqa: E402
from simdev.measure.grid import CLASSES, LIMITS, Limit, Point, capture_grid, capture_point, points  # noqa: E402
from simdev.measure.operators import Conditions, measure_call, measure_in_turns  # noqa: E402
from simdev.measure.provenance import driver_fields, gpu_kind  # noqa: E402
from simdev.measure.record import Call, Slot, TensorSpec  # noqa: E402
from simdev.measure.steps import Measured, StepTimer, measure  # noqa: E402
from simdev.measure.timers import (  # noqa: E402
    CudaTimer,
    Samples,
    peak_beyond,
    spin_cycles,
    workspace_bytes,
)
from simdev.measure.torch_models import MODELS  # noqa: E402
from simdev.measure.torch_models.batches import image_step  # noqa: E402
from simdev.measure.torch_models.classifiers import mlp  # noqa: E402
from simdev.measure.torch_models.nasnet import NasNet  # noqa: E402
from simdev.measure.torch_models.recurrent import gnmt  # noqa: E402
from simdev.measure.transfers import LinkTimes, cluster_object, fit_line, measure_copies  # noqa: E402

Step = tuple[nn.Module, tuple[Any, ...], Callable[..., Any]]
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


def conv_net() -> Step:
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(36, 5),
    )
    return (
        module,
        (torch.randn(2, 3, 8, 8), torch.randint(5, (2,))),
        lambda m, x, y: F.cross_entropy(m(x), y),
    )


class TwoSteps(nn.Module):
    """One LSTM cell, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(6, 5)

    def forward(self, x: Any) -> Any:
        state = self.cell(x)
        return self.cell(x, state)[0]


def lstm() -> Step:
    return TwoSteps(), (torch.randn(3, 6),), lambda m, x: m(x).square().sum()


STEPS = [mlp, conv_net, lstm]


def graph_of(captured: Capture) -> Graph:
    ops = [
        {
            **op,
            "inputs": tuple(op.get("inputs", ())),
            "outputs": tuple(
                Tensor(t["bytes"], tuple(t["shape"]), t["dtype"]) for t in op["outputs"]
            ),
        }
        for op in captured.graph["ops"]
    ]
    return Graph(captured.graph["name"], tuple(Op(**op) for op in ops))


def ops_of(captured: Capture, kind: str) -> list[dict[str, Any]]:
    return [op for op in captured.graph["ops"] if op["kind"] == kind]


def measured(step: Step, optimizer: str = "adam") -> tuple[Capture, Measured]:
    captured = capture(*step, optimizer=optimizer)
    return captured, measure(captured, *step, optimizer, Conditions("cpu", "test-1core", 0.5))


@pytest.mark.parametrize("build", STEPS)
def test_a_captured_graph_is_well_formed_and_in_program_order(build: Callable[[], Step]) -> None:
    graph = graph_of(capture(*build()))
    assert all(producer < i for i, reads in enumerate(graph.reads) for producer, _ in reads)
    assert {op.phase for op in graph.ops} == {"forward", "backward", "update"}


@pytest.mark.parametrize("build", STEPS)
def test_outputs_have_the_bytes_of_their_shape(build: Callable[[], Step]) -> None:
    for op in capture(*build()).graph["ops"]:
        for tensor in op["outputs"]:
            assert (
                tensor["bytes"]
                == math.prod(tensor["shape"]) * getattr(torch, tensor["dtype"]).itemsize
            )


@pytest.mark.parametrize("build", STEPS)
def test_every_parameter_has_one_update_that_reads_its_gradient(build: Callable[[], Step]) -> None:
    step = build()
    captured = capture(*step, optimizer="adam")
    ops = {op["name"]: op for op in captured.graph["ops"]}
    for name, parameter in step[0].named_parameters():
        path = name.replace(".", "/")
        owner, update = ops[path], ops[f"update/{path}"]
        size = parameter.numel() * 4
        assert (owner["param_bytes"], owner["state_bytes"], owner["time"]) == (size, 2 * size, 0)
        assert update["inputs"][0] == path
        assert update["outputs"] == []
        assert owner["colocate"] == update["colocate"]
        gradient = ops[update["inputs"][1].rpartition(":")[0] or update["inputs"][1]]
        assert gradient["phase"] == "backward"


def test_a_linear_backward_is_two_products_of_their_own_shapes() -> None:
    captured = capture(*mlp(batch=8, width=16, layers=1, classes=4))
    products = [op for op in ops_of(captured, "matmul") if op["phase"] == "backward"]
    assert [op["outputs"][0]["shape"] for op in products] == [[8, 16], [4, 16], [16, 16]]
    assert products[1]["attrs"] == {"transpose_a": True}
    assert ops_of(captured, "linear")[0]["attrs"] == {"transpose_b": True}


def test_a_convolution_backward_is_split_and_only_what_is_wanted_stays() -> None:
    captured = capture(*conv_net())
    assert ops_of(captured, "conv2d_backward_input") == []  # images have no gradient
    (weight,) = ops_of(captured, "conv2d_backward_weight")
    assert [tensor["shape"] for tensor in weight["outputs"]] == [[4, 3, 3, 3], [4]]
    assert weight["inputs"][1] == "x"


def test_two_convolutions_have_an_input_gradient_between_them() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.Conv2d(4, 5, 3, bias=False))
    captured = capture(module, (torch.randn(2, 3, 8, 8),), lambda m, x: m(x).sum())
    (gradient,) = ops_of(captured, "conv2d_backward_input")
    assert gradient["name"] == "grad/1/conv2d_backward_input"
    assert gradient["outputs"][0]["shape"] == [2, 4, 6, 6]
    assert gradient["inputs"][1] == "1/weight"


def test_views_are_folded_and_their_readers_tell_the_shapes_they_see() -> None:
    captured = capture(*conv_net())
    assert not [
        op for op in captured.graph["ops"] if op["kind"] in ("view", "t", "detach", "expand")
    ]
    (linear,) = ops_of(captured, "linear")
    assert linear["inputs"][0] == "3/max_pool2d"
    assert linear["attrs"]["in"] == [[2, 36], [5, 36], [5]]


def test_an_operator_in_place_makes_a_new_version() -> None:
    captured = capture(*conv_net())
    (relu,), (pool,) = ops_of(captured, "relu"), ops_of(captured, "max_pool2d")
    assert pool["inputs"] == [relu["name"]]


def test_names_follow_modules_and_number_their_calls() -> None:
    names = {op["name"] for op in capture(*lstm()).graph["ops"]}
    assert {
        "cell@0/linear",
        "cell@1/linear",
        "grad/cell@1/sigmoid_backward",
        "cell/weight_hh",
    } <= names


def test_a_dropout_is_captured_without_its_allocations() -> None:
    captured = capture(
        nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)),
        (torch.randn(2, 4),),
        lambda m, x: m(x).sum(),
    )
    (mask,) = ops_of(captured, "bernoulli")
    assert mask["inputs"] == []
    assert ops_of(captured, "empty_like") == []


def test_a_step_that_reads_values_is_refused() -> None:
    with pytest.raises(InputError, match="cannot be captured"):
        capture(
            nn.Linear(2, 1),
            (torch.randn(3, 2),),
            lambda m, x: m(x).sum() * float(m(x).sum().item() > 0),
        )


def test_an_unknown_optimizer_is_refused() -> None:
    with pytest.raises(InputError, match="optimizer: must be one of"):
        capture(*mlp(), optimizer="newton")


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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vgg", "no model"),
        ("missing.py:f", "no such file"),
        (f"{__file__}:nothing", 'no function "nothing"'),
    ],
)
def test_an_unknown_model_is_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        profile_model(name)


def test_cuda_without_a_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="no CUDA device"):
        profile_model("mlp", device="cuda")


PARAMETERS = {
    "inception-v3": 23_834_568,  # 27.16 million with the auxiliary head
    "resnet-50": 25_557_032,
    "vgg-19": 143_667_240,
    "alexnet": 61_100_840,
    "nasnet-mobile": 5_289_978,
    "nasnet-large": 88_753_150,
    "bert-large": 336_226_108,
    "gpt2-small": 124_439_808,
    "gpt2-medium": 354_823_168,
}
"""Published counts of trainable parameters, to the last one."""


@pytest.mark.parametrize("name", PARAMETERS)
def test_models_have_the_parameters_of_their_papers(name: str) -> None:
    assert parameters_of(name) == PARAMETERS[name]


def test_models_whose_papers_round_have_about_their_parameters() -> None:
    # Zaremba's large model
    assert parameters_of("rnnlm", hidden=1500) == pytest.approx(66e6, rel=0.005)
    assert parameters_of("transformer-big") == pytest.approx(213e6, rel=0.01)
    assert parameters_of("transformer-big", width=512, inner=2048, heads=8) == pytest.approx(
        65e6, rel=0.04
    )


def parameters_of(name: str, **sizes: int) -> int:
    """Counted on the meta device: nothing is allocated."""
    with torch.device("meta"):
        module, _, _ = MODELS[name].build(batch=1, **sizes)
    return sum(parameter.numel() for parameter in module.parameters())


SMALL: dict[str, dict[str, int]] = {
    "transformer-big": {
        "layers": 1,
        "length": 4,
        "width": 16,
        "inner": 32,
        "heads": 2,
        "vocabulary": 20,
    },
    "bert-large": {"layers": 1, "length": 16, "width": 16, "heads": 2, "vocabulary": 20},
    "gpt2-small": {"layers": 1, "length": 8, "width": 16, "heads": 2, "vocabulary": 20},
    "rnnlm": {"layers": 2, "length": 3, "hidden": 8, "vocabulary": 20},
    "gnmt": {"length": 2, "hidden": 4, "layers": 4, "vocabulary": 8},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SMALL)
def test_language_models_are_captured_and_measured_whole(name: str) -> None:
    captured, result = measured(MODELS[name].build(batch=2, **SMALL[name]))
    graph = graph_of(captured)
    needed = {op_key(graph, i, "test-1core") for i, op in enumerate(graph.ops) if op.time is None}
    assert result.unmeasured == []
    assert {row_key(row, "test-1core") for row in result.rows} == needed


def test_every_convolution_of_a_cell_network_has_its_gradients() -> None:
    module = NasNet(stem=4, filters=8, repeats=1, skip=True, classes=5)
    graph = graph_of(capture(*image_step(module, batch=1, classes=5, size=64)))
    count = {
        kind: sum(op.kind == kind for op in graph.ops)
        for kind in ("conv2d", "conv2d_backward_weight")
    }
    assert count["conv2d"] == count["conv2d_backward_weight"] > 50


def test_the_models_that_are_ready_are_listed_with_their_sizes_on_a_cpu() -> None:
    assert [name for name, _, _ in model_names()] == list(MODELS)
    assert ("gpt2-medium", 1, "adam") in model_names()
    assert all(
        batch > 0 and optimizer in ("adam", "sgd-momentum") for _, batch, optimizer in model_names()
    )


def test_names_of_steps_tell_the_call() -> None:
    small = capture(*gnmt(batch=2, length=2, hidden=4, layers=4, vocabulary=8))
    assert any(op["name"].startswith("grad/decoder/layer_3@1/cell/") for op in small.graph["ops"])


# What the backward keeps, and workspace.


def saved_of(captured: Capture, kind: str) -> int:
    (key,) = [
        key for key, row in captured.rows.items() if row["op"] == kind and row["phase"] == "fwd"
    ]
    return captured.saved[key]


def test_saved_bytes_are_what_autograd_keeps_beside_parameters() -> None:
    captured = capture(*conv_net())
    images, channels = 2 * 3 * 8 * 8 * 4, 2 * 4 * 6 * 6 * 4
    assert saved_of(captured, "conv2d") == images
    # its input, and mean and deviation of 4 channels
    assert saved_of(captured, "batch_norm") == channels + 2 * 4 * 4
    assert saved_of(captured, "relu") == channels
    # its input, and where the maxima are
    assert saved_of(captured, "max_pool2d") == channels + 2 * 4 * 3 * 3 * 8
    assert saved_of(captured, "linear") == 2 * 36 * 4
    assert all(
        captured.saved[key] == 0 for key, row in captured.rows.items() if row["phase"] == "bwd"
    )


def test_a_function_of_ones_own_has_its_saved_tensors_counted() -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            context.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:  # type: ignore[override]
            return gradient * 2 * context.saved_tensors[0]

    captured = capture(nn.Linear(6, 5), (torch.randn(3, 6),), lambda m, x: Square.apply(m(x)).sum())
    assert saved_of(captured, "mul") == 3 * 5 * 4


def test_an_expanded_tensor_is_saved_once() -> None:
    captured = capture(
        nn.Linear(6, 5), (torch.randn(1, 6),), lambda m, x: (m(x).expand(4, 5) * m(x)).sum()
    )
    assert saved_of(captured, "mul") == 2 * 5 * 4


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
    found = measure_in_turns([constant(7), constant(9)], timer, seconds=0.0)
    assert timer.ran == [7, 9] * (len(timer.ran) // 2)
    assert [samples.device for samples in found] == [[7] * 5, [9] * 5]  # warm-ups are left out


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


def test_a_flush_comes_before_each_gpu_call(fake_cuda: FakeDevice) -> None:
    timer = CudaTimer.__new__(CudaTimer)
    timer._buffer = type("Buffer", (), {"zero_": lambda _: fake_cuda.log.append("flush")})()  # type: ignore[assignment]
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
    steps = StepTimer(module, inputs, loss, "sgd-momentum", "cpu")
    steps.device = "cuda"
    costs = iter([5, 7, 11] * 2)
    monkeypatch.setattr(
        StepTimer,
        "_phases",
        lambda _: (fake_cuda.work(cost) for cost in [next(costs) for _ in range(3)]),
    )
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


# Grids.


@pytest.mark.parametrize("name", CLASSES)
def test_points_of_a_grid_are_random_repeatable_and_within_their_limit(name: str) -> None:
    limit = Limit(1e7, 2**16)
    first, again = ([point.shapes for point in islice(points(name, limit), 12)] for _ in range(2))
    assert first == again
    assert len(set(first)) > 8
    assert all(math.prod(shape) <= limit.elements for shapes in first for shape in shapes)
    assert [point.shapes for point in islice(points(name, limit, seed=1), 12)] != first


def test_a_grid_s_points_bear_the_kinds_of_graphs() -> None:
    kinds = {
        name: {(row["op"], row["phase"]) for row in capture_grid([name], 6, "cpu").rows.values()}
        for name in CLASSES
    }
    assert kinds["gemm"] == {
        ("linear", "fwd"),
        ("matmul", "fwd"),
        ("matmul", "bwd"),
        ("sum", "bwd"),
    }
    assert {kind for kind, _ in kinds["conv"]} == {
        "conv2d",
        "conv2d_backward_input",
        "conv2d_backward_weight",
    }
    assert {("batch_matmul", "fwd"), ("softmax", "fwd"), ("softmax_backward", "bwd")} <= kinds[
        "attention"
    ]
    assert {("layer_norm", "fwd"), ("batch_norm_backward", "bwd")} <= kinds["norm"]
    assert {("gelu_backward", "bwd"), ("add", "fwd")} <= kinds["elementwise"]


def test_a_point_s_key_is_that_of_the_same_layer_in_a_step() -> None:
    layer = capture(nn.Linear(8, 4), (torch.randn(2, 8),), lambda m, x: m(x).sum())
    point = capture_point(Point(F.linear, ((2, 8), (4, 8), (4,)), 2), "cpu", torch.float32)
    (of_layer,) = [row for row in layer.rows.values() if row["op"] == "linear"]
    (of_point,) = [row for row in point.rows.values() if row["op"] == "linear"]
    assert row_key(of_layer) == row_key(of_point)
    assert point.saved[row_key(of_point)] == 2 * 8 * 4


@pytest.mark.filterwarnings("ignore")
def test_a_grid_is_measured_and_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from simdev.files.profile import read_profile

    monkeypatch.setitem(LIMITS, "cpu", Limit(1e5, 2**10))
    path = profile_grid(["softmax", "norm"], seconds=0.1, out_dir=tmp_path, points=2)
    profile = read_profile(path)
    assert path.name.startswith("grid-softmax-norm.")
    assert profile.header["header"]["points"] == 2
    assert len(profile.rows) >= 8
    assert "step" not in profile.header["header"]


def test_copies_are_measured_by_size() -> None:
    rows, method, noise = measure_copies("cpu", "test-1core", sizes=(4096, 65536))
    assert [(row["coll"], row["from"], row["to"], row["bytes"]) for row in rows] == [
        ("copy", "host", "host", 4096),
        ("copy", "host", "host", 65536),
    ]
    assert all(0 < row["t_ns"]["p10"] <= row["t_ns"]["p50"] <= row["t_ns"]["p90"] for row in rows)
    assert method["timer"].startswith("thread-cpu-time")
    assert "too_noisy" in noise


@pytest.mark.parametrize(
    ("classes", "options", "message"),
    [
        (["gemms"], {}, "grid: must be among"),
        (["gemm"], {"dtype": "int8"}, "dtype: must be a float"),
        (["gemm"], {"points": 0}, "points: must be at least 1"),
        (["copies", "gemm"], {}, "grid: must be among"),
        (["gemm"], {"device": "tpu"}, "device: must be cpu or cuda"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(
    classes: list[str], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        profile_grid(classes, **options)


# Measured against simulated.


@pytest.mark.filterwarnings("ignore")
def test_a_step_is_compared_with_the_sum_of_its_ops(tmp_path: Path) -> None:
    graph, profile = profile_model(
        "mlp", batch=4, seconds=0.5, out_dir=tmp_path, sizes={"width": 16, "layers": 2}
    )
    header = json.loads(profile.read_text().splitlines()[0])["header"]
    found = compare(profile)
    assert graph.name == "mlp-b4-width16-layers2.json"
    assert (header["sizes"]["width"], header["graph"]) == (16, f"graphs/{graph.name}")
    assert found == compare(profile, graph)
    assert found.simulated_s == pytest.approx(header["step"]["sum_of_ops_s"], rel=1e-9)
    assert found.error == pytest.approx(header["step"]["ratio"] - 1, abs=1e-3)
    assert (found.known, found.clock, found.model, found.batch) == (1.0, "cpu", "mlp", 4)


@pytest.mark.filterwarnings("ignore")
def test_the_command_tells_the_comparison_in_units(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from simdev.cli import main

    sizes = ["--size", "width=16", "--size", "layers=2", "--seconds", "0.5"]
    assert main(["profile", "mlp", "--batch", "4", *sizes, "-o", str(tmp_path), "--compare"]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert re.search(
        r": simulated [\d.]+ (us|ms), measured [\d.]+ (us|ms), error [+-][\d.]+%", said
    )


def test_a_profile_without_a_step_cannot_be_compared(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"v": 1, "header": {"device": {"kind": "x"}}}\n')
    assert not has_step(path)
    with pytest.raises(InputError, match="tells no measured step"):
        compare(path)
    path.write_text(
        '{"v": 1, "header": {"device": {"kind": "x"}, "step": {"measured_step_s": 1.5}}}\n'
    )
    assert has_step(path)
    with pytest.raises(InputError, match=r"header\.graph: missing"):
        compare(path)


@pytest.mark.parametrize("name", ["resnet", "mlp"])
def test_a_size_that_no_model_has_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"no argument named depth|no model"):
        profile_model(name, sizes={"depth": 3})
    with pytest.raises(InputError, match="width: must be at least 1"):
        profile_model("mlp", sizes={"width": 0})


def test_a_fit_finds_the_line_it_was_drawn_from() -> None:
    sizes = [4096 * 2**i for i in range(8)]
    fit = fit_line(sizes, [50e-6 + size / 2e9 for size in sizes])
    assert fit.latency_s == pytest.approx(50e-6)
    assert fit.bandwidth == pytest.approx(2e9)
    assert fit.max_error < 1e-9


def test_a_fit_of_one_size_is_refused() -> None:
    with pytest.raises(InputError, match="at least two sizes"):
        fit_line([4096], [1e-3])


def test_a_measured_cluster_loads() -> None:
    from simdev.files.cluster import read_cluster

    times = LinkTimes((4096, 8192), (1e-5, 2e-5), (1e-5, 2e-5), (1e-5, 2e-5))
    cluster = read_cluster(cluster_object(4, "test-1core", times, fit_line(times.sizes, times.p50)))
    assert (len(cluster.devices), len(cluster.links)) == (4, 6)


def test_importing_the_front_door_does_not_import_torch() -> None:
    code = "import sys, simdev, simdev.measure; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
