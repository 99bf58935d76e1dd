"""The documented way from PyTorch to a trace to a step, run as it is written; compiled models."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from kineto import MATRIX, kernel, launch, operator, span, trace
from simdev import load_scenario
from simdev.commands import main
from simdev.report import run

torch = pytest.importorskip("torch")

from simdev.measure import import_trace, trace_profile, trace_step  # noqa: E402
from simdev.nouns.graph import PHASES  # noqa: E402

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "importers.md").read_text()
SECTION = PAGE[PAGE.index("## Traces of torch.profiler") : PAGE.index("## ONNX")]
F = torch.nn.functional


@pytest.fixture(scope="module", autouse=True)
def single_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """The folder of a reader who ran the recipe."""
    folder = tmp_path_factory.mktemp("recipe")
    (source,) = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(compile(source, "docs/how-to/importers.md", "exec"), {})
    return folder


def test_the_recipe_marks_steps_and_its_commands_run(recipe, monkeypatch, capsys):
    monkeypatch.chdir(recipe)
    commands = re.findall(r"^    simdev (import trace\.json .*)$", SECTION, re.MULTILINE)
    assert len(commands) == 4
    for command in commands:
        # Those without a device are for traces of a GPU, which name it.
        device = [] if "--device" in command else ["--device", "epyc-1core"]
        assert main([*shlex.split(command), *device]) == 0
    printed = capsys.readouterr().err
    assert "left out 1 of 4 steps as warm-up" in printed
    assert "left out 2 of 4 steps as warm-up" in printed
    scenario = load_scenario("step.json")
    step = json.loads(Path("step.json").read_text())["provenance"]["step"]
    times = [op.seconds_on("epyc-1core") for op in scenario.graph.ops if op.kind == "linear"]
    assert len(times) == 2
    # A CPU runs its operators itself, and is its own host between them: the step is both.
    assert run(scenario).step_ps / 10**12 == pytest.approx(step["step_s"], rel=1e-6)
    assert {op.phase for op in scenario.graph.ops} == set(PHASES)
    (parameters,) = [op for op in scenario.graph.ops if op.kind == "parameter"]
    assert parameters.param_bytes == 4 * (64 * 256 + 256 + 256 * 10 + 10)
    assert parameters.state_bytes == 2 * parameters.param_bytes
    # Gradients live to the end of the step: its last op reads them.
    made = scenario.graph.operands[-1]
    assert sum(tensor.bytes for tensor in made) + parameters.grad_bytes >= parameters.param_bytes


def microseconds_of(op, kind="h100-sxm") -> float:
    return float(op.seconds_on(kind) * 10**6)


def traced(path, step, count, **options) -> str:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, **options) as profiler:
        for _ in range(count):
            step()
            profiler.step()
    profiler.export_chrome_trace(str(path))
    return path.read_text()


def training(model, optimizer, x, y):
    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def test_without_a_schedule_nothing_is_marked_and_the_steps_are_seen_all_the_same(tmp_path):
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = training(model, optimizer, torch.randn(16, 8), torch.randint(4, (16,)))
    text = traced(tmp_path / "t.json", step, 3)
    assert "ProfilerStep#" not in text
    three = trace_step(text, "epyc-1core")
    assert "the trace marks no steps: 3 are told by the optimizer's" in three.notes
    single = trace_step(traced(tmp_path / "t.json", step, 1), "epyc-1core")
    assert "the trace marks no steps: the whole of it is one" in single.notes
    kinds = [op.kind for op in single.graph.ops]
    assert kinds.count("linear") == [op.kind for op in three.graph.ops].count("linear") == 1


def test_an_optimizer_over_a_long_list_has_the_parameters_of_the_backward(tmp_path):
    """Of lists of more than 30 tensors torch writes no shapes."""
    layers = [torch.nn.Linear(8, 8) for _ in range(20)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(8, 4))
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    x, y = torch.randn(16, 8), torch.randint(4, (16,))

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()

    step()
    text = traced(tmp_path / "t.json", step, 1)
    lists = [
        event["args"]
        for event in json.loads(text)["traceEvents"]
        if event.get("name") == "aten::_foreach_addcdiv_"
    ]
    assert lists, "another way of updating: the test has to be written anew"
    assert all(args["Input Dims"][0] == [] for args in lists)
    profile = import_trace(tmp_path / "t.json", "epyc-1core").profile
    updates = {
        row.details["in"][0]: row.details["t_ns"]["n"]
        for row in profile.rows.values()
        if row.details["phase"] == "opt"
    }
    assert updates == {(8, 8): 20, (8,): 20, (4, 8): 1, (4,): 1}
    assert {
        row.details["op"] for row in profile.rows.values() if row.details["phase"] == "opt"
    } == {"adam_update"}


def compiled_net(backend):
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.compiler.reset()  # compiled regions are numbered from 0
    compiled = torch.compile(model, backend=backend)
    step = training(compiled, optimizer, torch.randn(8, 16), torch.randint(4, (8,)))
    for _ in range(2):
        step()
    return step


def test_a_step_compiled_to_operators_has_them_under_its_regions(tmp_path):
    text = traced(tmp_path / "t.json", compiled_net("aot_eager"), 1)
    step = trace_step(text, "epyc-1core")
    names = [op.name for op in step.graph.ops]
    assert {"compiled 0/0/linear", "compiled 0/0/gelu", "compiled 0/0/linear_1"} <= set(names)
    assert any(name.startswith("grad/compiled function/gelu_backward") for name in names)
    assert "Cache Lookup" not in " ".join(names)
    rows = trace_profile(text, "epyc-1core").profile.rows.values()
    assert {"linear", "gelu", "gelu_backward"} <= {row.details["op"] for row in rows}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what Inductor imports
def test_a_step_that_inductor_compiled_has_its_products_and_its_graphs(tmp_path):
    text = traced(tmp_path / "t.json", compiled_net("inductor"), 2)
    profile = import_trace(tmp_path / "t.json", "epyc-1core")
    kinds = [row.details["op"] for row in profile.profile.rows.values()]
    assert kinds.count("compiled_graph") == 2
    assert kinds.count("linear") == 2
    assert any("are kernels that a compiler fused" in note for note in profile.notes)
    step = trace_step(text, "epyc-1core")
    assert [op.phase for op in step.graph.ops if op.kind == "compiled_graph"] == [
        "forward",
        "backward",
    ]
    assert step.figures["compiled_s"] > 0


HASH = "fpmlsn4hh5uobp7onajit3c7punatwy5we52lq36nx2ndb6bxdzm"
TENSORS = [("float", [64, 16], ""), ("float", [64, 16], ""), ("Scalar", [], "1024")]


def compiled_region(start, number, phase="forward"):
    """A graph of Inductor: a fused kernel, a product that writes into a given tensor, and a kernel
    whose launch no operator holds.
    """
    out = [*MATRIX, ("float", [64, 16], "")]
    return [
        span("CompiledFunction" + "Backward" * (phase == "backward"), start, 90),
        span(f"## Call CompiledFxGraph {HASH} ##", start + 1, 88, "user_annotation"),
        operator(f"triton_poi_fused_gelu_{number}", start + 5, 20, TENSORS, 10 + number),
        span("cuLaunchKernel", start + 8, 3, "cuda_driver", correlation=10 * number + 1),
        operator("aten::mm", start + 30, 20, out, 20 + number),
        launch(start + 35, 10 * number + 2),
        span("cuLaunchKernel", start + 60, 3, "cuda_driver", correlation=10 * number + 3),
    ]


def compiled_step():
    """A compiled step as Kineto tells it of a GPU: forward, then the backward on its thread."""
    forward = [span("Torch-Compiled Region: 0/0", 0, 95), *compiled_region(2, 0)]
    backward = [
        span("autograd::engine::evaluate_function: CompiledFunctionBackward", 200, 99),
        *compiled_region(202, 1, "backward"),
    ]
    kernels = [
        kernel(start + at, duration, 10 * number + k + 1, name=name)
        for number, start in enumerate((0, 200))
        for k, (at, duration, name) in enumerate(
            [
                (20, 10, f"triton_poi_fused_gelu_{number}"),
                (45, 40, "sm80_xmma_gemm_f32f32"),
                (85, 50, f"triton_red_fused_sum_{number + 2}"),
            ]
        )
    ]
    return trace(*forward, *backward, *kernels)


def test_a_compiled_step_of_a_gpu_is_told_by_its_kernels():
    step = trace_step(compiled_step())
    place = "compiled fpmlsn4h/"
    assert [(op.name, op.phase) for op in step.graph.ops] == [
        (f"{place}triton_poi_fused_gelu", "forward"),
        (f"{place}matmul", "forward"),
        (f"{place}triton_red_fused_sum", "forward"),
        (f"grad/{place}triton_poi_fused_gelu", "backward"),
        (f"grad/{place}matmul", "backward"),
        (f"grad/{place}triton_red_fused_sum", "backward"),
    ]
    times = [microseconds_of(op) for op in step.graph.ops]
    assert times == [10, 40, 50, 10, 40, 50]
    gelu, product, *_ = step.graph.ops
    assert (gelu.attrs["in"], gelu.outputs[0].shape) == (((64, 16),), (64, 16))
    assert gelu.outputs[0].bytes == 4 * 64 * 16
    assert product.attrs["in"] == ((64, 32), (32, 16))
    assert any(
        "4 of 6 ops, 60.0% of the device's time, are kernels that a compiler fused" in note
        for note in step.notes
    )


def test_a_profile_of_a_compiled_step_has_rows_of_its_kernels():
    profile = trace_profile(compiled_step())
    rows = {
        (row.details["op"], row.details["phase"]): row.details["t_ns"]["p50"]
        for row in profile.profile.rows.values()
    }
    assert rows == {
        (kind, phase): duration
        for phase in ("fwd", "bwd")
        for kind, duration in (
            ("triton_poi_fused_gelu", 10_000),
            ("matmul", 40_000),
            ("triton_red_fused_sum", 50_000),
        )
    }
    assert any(
        note.startswith("4 of 6 calls a step, 60.0% of the rows' time, are kernels that a compiler")
        for note in profile.notes
    )


def test_an_optimizer_that_is_not_known_has_rows_of_its_operators():
    shape = ("float", [1000], "")
    events = [
        span("Optimizer.step#Lion.step", 0, 500, "user_annotation"),
        operator("aten::sign", 10, 20, [shape], 1),
        *(launch(15, 1), kernel(20, 9, 1)),
    ]
    profile = trace_profile(trace(*events))
    (row,) = profile.profile.rows.values()
    assert (row.details["op"], row.details["phase"]) == ("sign", "opt")
    assert profile.profile.header["header"]["step"]["left_out_s"] == 0


def test_a_cuda_graph_is_one_op_of_all_its_kernels():
    events = [
        operator("aten::mm", 0, 10, MATRIX, 1),
        *(launch(5, 1), kernel(8, 10, 1)),
        span("cudaGraphLaunch", 30, 10, "cuda_runtime", correlation=2),
        *(kernel(40 + 11 * k, 10, 2, name=f"k{k}") for k in range(5)),
    ]
    step = trace_step(trace(*events))
    assert [(op.kind, op.launches) for op in step.graph.ops] == [("matmul", 1), ("cuda_graph", 1)]
    # Five of 10 us, and the four gaps between them.
    assert [microseconds_of(op) for op in step.graph.ops] == [10, 54]
    rows = trace_profile(trace(*events)).profile.rows.values()
    assert [row.details["op"] for row in rows] == ["matmul", "cuda_graph"]


def test_kernels_of_a_cpu_are_named_where_inductor_tells_them():
    """With ``torch._inductor.config.cpp.enable_kernel_profile``; what is left is the graph's."""
    events = [
        span("CompiledFunction", 0, 100),
        span(f"## Call CompiledFxGraph {HASH} ##", 5, 90, "user_annotation"),
        operator("graph_0_cpp_fused_gelu_1", 10, 30, TENSORS[:2], 1),
        operator("aten::mm", 50, 20, MATRIX, 2),
    ]
    step = trace_step(trace(*events, devices=[]), "epyc-1core")
    times = {op.kind: microseconds_of(op, "epyc-1core") for op in step.graph.ops}
    assert times == {"compiled_graph": 40, "cpp_fused_gelu": 30, "matmul": 20}
