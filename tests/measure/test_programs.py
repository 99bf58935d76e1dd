"""Programs of torch.export and real traces of torch.profiler: the graphs and keys are those of a
captured step.
"""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from simdev import load_scenario
from simdev.files import read_profile
from simdev.formats import Machine, graph_scenario, write_imported
from simdev.ground.errors import InputError
from simdev.measure import import_program, import_trace
from simdev.report import run

torch = pytest.importorskip("torch")
F = torch.nn.functional
from simdev.nouns.graph import PHASES  # noqa: E402
from small_net import Loss, Net, batch  # noqa: E402

# torch.export


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> str:
    path = str(tmp_path_factory.mktemp("export") / "net.pt2")
    torch.export.save(torch.export.export(Net().eval(), batch()[:1]), path)
    return path


def test_a_saved_program_is_the_graph_of_its_module(saved):
    found = import_program(saved, name="net")
    assert found.graph.ops == import_program(Net().eval(), batch()[:1]).graph.ops
    ops = {op.name: op for op in found.graph.ops}
    assert ops["conv/conv2d"].inputs == ("x", "conv/weight", "conv/bias")
    assert ops["body/0/linear"].attrs["in"] == ((4, 128), (16, 128), (16,))
    assert {op.phase for op in found.graph.ops} == {"forward"}
    assert not any(op.grad_bytes or op.state_bytes for op in found.graph.ops)
    assert any("forward pass alone" in note for note in found.notes)


@pytest.mark.parametrize("optimizer", ["sgd-momentum", "adam"])
def test_a_program_with_its_loss_is_the_whole_step(optimizer):
    from simdev.files import read_graph
    from simdev.measure.capture import capture

    torch.manual_seed(0)
    net = Net()
    program = torch.export.export(Loss(net), batch())
    found = import_program(program, optimizer=optimizer).graph
    captured = read_graph(
        capture(net, batch(), lambda m, x, y: F.cross_entropy(m(x), y), optimizer).graph
    )
    assert {op.phase for op in found.ops} == set(PHASES)

    def seen(graph) -> list[tuple[object, ...]]:
        return [(op.kind, op.phase, op.attrs, op.outputs, op.state_bytes) for op in graph.ops]

    assert seen(found) == seen(captured)


def test_dynamic_dimensions_take_the_sizes_of_the_inputs():
    dims = {"x": {0: torch.export.Dim("n", min=2, max=64)}}
    program = torch.export.export(Net().eval(), batch()[:1], dynamic_shapes=dims)
    found = import_program(program)
    assert any("dynamic dimensions" in note for note in found.notes)
    larger = import_program(program, (torch.zeros(32, 3, 8, 8),))
    shape = {op.name: op.outputs for op in larger.graph.ops}["conv/conv2d"][0].shape
    assert shape == (32, 8, 8, 8)


def test_arguments_may_be_nested_and_named():
    class Two(torch.nn.Module):
        def forward(
            self, pair: tuple[torch.Tensor, torch.Tensor], *, scale: torch.Tensor
        ) -> torch.Tensor:
            return (pair[0] + pair[1]) * scale

    x = torch.zeros(2, 3)
    program = torch.export.export(Two(), ((x, x.clone()),), {"scale": torch.ones(3)})
    graph = import_program(program).graph
    assert [op.kind for op in graph.ops] == ["input"] * 3 + ["add", "mul"]


def test_an_imported_program_runs(saved, tmp_path):
    found = import_program(saved)
    write_imported(
        graph_scenario(found.graph, Machine(device="v100"), "torch-export"), tmp_path / "s.json"
    )
    assert run(load_scenario(tmp_path / "s.json")).step_ps > 0


def test_a_program_without_a_loss_makes_no_step(saved):
    with pytest.raises(InputError, match="returns no loss"):
        import_program(saved, optimizer="adam")
    with pytest.raises(InputError, match="optimizer: must be one of"):
        import_program(saved, optimizer="sgd")
    with pytest.raises(InputError, match="inputs: a module needs"):
        import_program(Net())


def rewritten(source: str, target, change) -> str:
    """The archive with some of its files changed: ``change(name, data)``."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return str(target)


def test_files_that_are_no_programs_are_refused(saved, tmp_path):
    (tmp_path / "text.pt2").write_text("hello")
    (tmp_path / "cut.pt2").write_bytes(Path(saved).read_bytes()[:3000])
    with zipfile.ZipFile(tmp_path / "other.pt2", "w") as archive:
        archive.writestr("a", "b")
    torch.save({"a": torch.zeros(2)}, tmp_path / "weights.pt2")
    for name, reason in (
        ("text", "damaged archive"),
        ("cut", "damaged archive"),
        ("other", "not an archive of"),
        ("weights", "not an archive of"),
        ("none", "no such file"),
    ):
        with pytest.raises(InputError, match=f"(?i){reason}"):
            import_program(tmp_path / f"{name}.pt2")
    broken = rewritten(
        saved, tmp_path / "b.pt2", lambda n, d: b"{}" if n.endswith("model.json") else d
    )
    with pytest.raises(InputError, match=r"models/model\.json: graph_module: missing"):
        import_program(broken)


def test_pickled_objects_are_never_loaded(saved, tmp_path):
    import pickle

    marker = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return (open, (str(marker), "w"))

    import io

    torch_file = io.BytesIO()
    torch.save(Evil(), torch_file)
    sample = rewritten(
        saved, tmp_path / "s.pt2", lambda n, d: torch_file.getvalue() if "sample_inputs" in n else d
    )
    with pytest.raises(InputError, match="example inputs that only unpickling could read: refused"):
        import_program(sample)
    entry = {
        "config": {
            "c": {
                "path_name": "opaque_obj_0",
                "is_param": False,
                "use_pickle": True,
                "tensor_meta": None,
            }
        }
    }
    constant = rewritten(
        saved,
        tmp_path / "c.pt2",
        lambda n, d: json.dumps(entry).encode() if "constants_config" in n else d,
    )
    with zipfile.ZipFile(constant, "a") as archive:
        root = archive.namelist()[0].split("/")[0]
        archive.writestr(f"{root}/data/constants/opaque_obj_0", pickle.dumps(Evil()))
    with pytest.raises(InputError, match="c: a pickled object, which could run code: refused"):
        import_program(constant)
    assert not marker.exists()


# Kineto


@pytest.fixture(scope="module")
def traced(tmp_path_factory) -> str:
    """Four steps of a real training loop, as torch.profiler writes them."""
    from torch.profiler import ProfilerActivity, profile, schedule

    path = str(tmp_path_factory.mktemp("kineto") / "trace.json")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    plan = schedule(wait=0, warmup=1, active=4, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, schedule=plan) as profiler:
        for _ in range(5):
            x, y = batch()
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
            profiler.step()
    profiler.export_chrome_trace(path)
    torch.set_num_threads(threads)
    return path


def told(key: str) -> str:
    """A key without its kind of device."""
    return json.dumps(json.loads(key)[1:])


def test_a_real_trace_has_a_row_for_every_op_of_the_captured_step(traced):
    from simdev.measure.capture import capture

    found = import_trace(traced, device="epyc-1core")
    captured = capture(Net(), batch(), lambda m, x, y: F.cross_entropy(m(x), y))
    rows = {told(key) for key in found.profile.rows}
    missing = [row for key, row in captured.rows.items() if told(key) not in rows]
    assert not missing
    # What the step does not run: random numbers of the batch, and clearing of gradients.
    extra = {
        json.loads(key)[1]
        for key in found.profile.rows
        if told(key) not in {told(k) for k in captured.rows}
    }
    assert extra <= {"randn", "normal", "randint", "random", "zero", "fill"}


def test_steps_quantiles_and_origin_of_a_real_trace(traced, tmp_path):
    found = import_trace(traced, device="epyc-1core")
    assert "left out 1 of 4 steps as warm-up" in found.notes
    rows = {
        (row.details["op"], row.details["phase"]): row.details
        for row in found.profile.rows.values()
    }
    linear = [row.details for row in found.profile.rows.values() if row.details["op"] == "linear"]
    assert [row["t_ns"]["n"] for row in linear] == [3, 3]
    for row in rows.values():
        assert row["t_ns"]["min"] <= row["t_ns"]["p10"] <= row["t_ns"]["p50"] <= row["t_ns"]["p90"]
    assert rows["conv2d", "fwd"]["src"] == "measured"
    assert rows["sgd_momentum_update", "opt"]["src"] == "fitted"
    (tmp_path / "p.jsonl").write_text(found.text)
    back = read_profile(tmp_path / "p.jsonl")
    assert set(back.rows) == set(found.profile.rows)
    header = back.header["header"]
    assert header["provenance"]["file"] == "trace.json"
    assert header["provenance"]["units"] == "times in us"
    assert "created" not in header
    # Operators fill most of a step, and never more than it (the thread is one).
    assert 0 < header["step"]["rows_s"] <= header["step"]["step_s"]
    assert import_trace(traced, device="epyc-1core").text == found.text
    assert len(import_trace(traced, "epyc-1core", warm_up=0).profile.rows) >= len(back.rows)


def test_a_program_and_a_trace_make_a_measured_step(traced, tmp_path):
    """From PyTorch alone to a simulated step whose times are all of the trace."""
    (tmp_path / "p.jsonl").write_text(import_trace(traced, "epyc-1core").text)
    program = import_program(torch.export.export(Loss(Net()), batch()), optimizer="sgd-momentum")
    found = graph_scenario(program.graph, Machine(device="epyc-1core"), "torch-export", timed=True)
    write_imported(replace(found, profiles=(str(tmp_path / "p.jsonl"),)), tmp_path / "s.json")
    scenario = load_scenario(tmp_path / "s.json")
    assert json.loads((tmp_path / "s.json").read_text())["profile"] == ["p.jsonl"]
    costs = [
        scenario.costs.cost(scenario.graph, i, "epyc-1core")
        for i, op in enumerate(scenario.graph.ops)
        if op.kind not in ("parameter", "input")
    ]
    assert {cost.rung for cost in costs} == {"measured", "fitted"}
    rungs = [cost.rung for cost in costs]
    assert rungs.count("fitted") == sum(op.phase == "update" for op in scenario.graph.ops)
    total = sum(cost.seconds for cost in costs) * 10**12
    # one device, each op rounded up to a picosecond
    assert total <= run(scenario).step_ps <= total + len(costs)
