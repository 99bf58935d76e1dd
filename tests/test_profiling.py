"""Capturing and measuring PyTorch steps: shapes and keys, never times."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from simdev.errors import InputError  # noqa: E402
from simdev.graph import Graph, Op, Tensor  # noqa: E402
from simdev.profile import op_key  # noqa: E402
from simdev.profiling import model_names, profile_model  # noqa: E402
from simdev.profiling.blocks import block_of, partition  # noqa: E402
from simdev.profiling.capture import Capture, capture, row_key  # noqa: E402
from simdev.profiling.links import LinkTimes, cluster_object, fit_line  # noqa: E402
from simdev.profiling.measure import Measured, measure  # noqa: E402
from simdev.profiling.torch_models import gnmt, inception_v3, mlp  # noqa: E402

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
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)
    )
    return module, (torch.randn(2, 3, 8, 8), torch.randint(5, (2,))), lambda m, x, y: F.cross_entropy(m(x), y)


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
            "outputs": tuple(Tensor(t["bytes"], tuple(t["shape"]), t["dtype"]) for t in op["outputs"]),
        }
        for op in captured.graph["ops"]
    ]
    return Graph(captured.graph["name"], tuple(Op(**op) for op in ops))


def ops_of(captured: Capture, kind: str) -> list[dict[str, Any]]:
    return [op for op in captured.graph["ops"] if op["kind"] == kind]


def measured(step: Step, optimizer: str = "adam") -> tuple[Capture, Measured]:
    captured = capture(*step, optimizer=optimizer)
    return captured, measure(captured, *step, optimizer, "cpu", "test-1core", seconds=0.5)


@pytest.mark.parametrize("build", STEPS)
def test_a_captured_graph_is_well_formed_and_in_program_order(build: Callable[[], Step]) -> None:
    graph = graph_of(capture(*build()))
    assert all(producer < i for i, reads in enumerate(graph.reads) for producer, _ in reads)
    assert {op.phase for op in graph.ops} == {"forward", "backward", "update"}


@pytest.mark.parametrize("build", STEPS)
def test_outputs_have_the_bytes_of_their_shape(build: Callable[[], Step]) -> None:
    for op in capture(*build()).graph["ops"]:
        for tensor in op["outputs"]:
            assert tensor["bytes"] == math.prod(tensor["shape"]) * getattr(torch, tensor["dtype"]).itemsize


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
    assert not [op for op in captured.graph["ops"] if op["kind"] in ("view", "t", "detach", "expand")]
    (linear,) = ops_of(captured, "linear")
    assert linear["inputs"][0] == "3/max_pool2d"
    assert linear["attrs"]["in"] == [[2, 36], [5, 36], [5]]


def test_an_operator_in_place_makes_a_new_version() -> None:
    captured = capture(*conv_net())
    (relu,), (pool,) = ops_of(captured, "relu"), ops_of(captured, "max_pool2d")
    assert pool["inputs"] == [relu["name"]]


def test_names_follow_modules_and_number_their_calls() -> None:
    names = {op["name"] for op in capture(*lstm()).graph["ops"]}
    assert {"cell@0/linear", "cell@1/linear", "grad/cell@1/sigmoid_backward", "cell/weight_hh"} <= names


def test_a_dropout_is_captured_without_its_allocations() -> None:
    captured = capture(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), (torch.randn(2, 4),), lambda m, x: m(x).sum())
    (mask,) = ops_of(captured, "bernoulli")
    assert mask["inputs"] == []
    assert ops_of(captured, "empty_like") == []


def test_a_step_that_reads_values_is_refused() -> None:
    with pytest.raises(InputError, match="cannot be captured"):
        capture(nn.Linear(2, 1), (torch.randn(3, 2),), lambda m, x: m(x).sum() * float(m(x).sum().item() > 0))


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
    assert {op_key(graph, i, kind) for i, op in enumerate(graph.ops) if op.time is None} == set(profile.rows)
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
    [("vgg", "no model"), ("missing.py:f", "no such file"), (f"{__file__}:nothing", 'no function "nothing"')],
)
def test_an_unknown_model_is_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        profile_model(name)


def test_cuda_without_a_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="no CUDA device"):
        profile_model("mlp", device="cuda")


def test_the_shipped_models_have_the_parameters_of_their_papers() -> None:
    inception = sum(p.numel() for p in inception_v3(batch=1)[0].parameters())
    assert inception == 23_834_568  # 27.16 million with the auxiliary head
    small = capture(*gnmt(batch=2, length=2, hidden=4, layers=4, vocabulary=8))
    names = [op["name"] for op in small.graph["ops"]]
    assert any(name.startswith("grad/decoder/layer_3@1/cell/") for name in names)
    assert [name for name, _, _ in model_names()] == ["inception-v3", "gnmt", "mlp"]


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


def test_partition_is_contiguous_and_makes_the_longest_part_shortest() -> None:
    assert partition([1.0, 1.0, 1.0, 3.0, 2.0], 2) == [0, 0, 0, 1, 1]
    assert partition([5.0, 1.0, 1.0], 3) == [0, 1, 2]
    assert block_of("grad/mixed_5b/branch1x1/conv/add") == "mixed_5b"


def test_importing_the_front_door_does_not_import_torch() -> None:
    code = "import sys, simdev, simdev.profiling; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
