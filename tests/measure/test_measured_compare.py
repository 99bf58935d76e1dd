"""A measured step beside the simulated one, with what the host costs."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from simdev.commands import main
from simdev.costs import CostModel
from simdev.costs.dispatch import between_cost
from simdev.execution.scenario import load_scenario
from simdev.files.profile import read_profile
from simdev.measure.compare import Comparison, advice, compare, write_scenario
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.report import run

GRAPH = {
    "version": 1,
    "name": "net",
    "ops": [
        {
            "name": "x",
            "kind": "input",
            "time": 0,
            "outputs": [{"bytes": 16, "shape": [4], "dtype": "float32"}],
        },
        {
            "name": "a",
            "kind": "relu",
            "inputs": ["x"],
            "outputs": [{"bytes": 16, "shape": [4], "dtype": "float32"}],
        },
        {
            "name": "grad/a",
            "kind": "relu",
            "phase": "backward",
            "inputs": ["a"],
            "outputs": [{"bytes": 16, "shape": [4], "dtype": "float32"}],
        },
    ],
}
DEVICE = {"kind": "my-core"}


def row(phase: str, nanoseconds: int) -> dict[str, Any]:
    return {
        "v": 1, "op": "relu", "attrs": {}, "in": [[4]], "dt": ["float32"], "out": [[4]],
        "dev": "my-core", "phase": phase, "t_ns": {"p50": nanoseconds}, "src": "measured",
    }  # fmt: skip


def phases(forward: float, backward: float) -> dict[str, Any]:
    return {
        "forward": {"host_s": forward, "ops": 1},
        "backward": {"host_s": backward, "ops": 1},
        "update": {"host_s": 0.0, "ops": 0},
    }


def files(folder: Path, **header: Any) -> Path:
    """A profile of the graph, whose ops take 3 and 5 us in a step of 20."""
    (folder / "graphs").mkdir(exist_ok=True)
    (folder / "graphs/net.json").write_text(json.dumps(GRAPH))
    head = {
        "schema": 1, "model": "net", "batch": 2, "graph": "graphs/net.json", "device": DEVICE,
        "step": {"measured_step_s": 20e-6}, **header,
    }  # fmt: skip
    lines = [{"v": 1, "header": head}, row("fwd", 3000), row("bwd", 5000)]
    path = folder / "net.my-core.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_without_a_host_the_step_is_its_operators(tmp_path: Path) -> None:
    result = compare(files(tmp_path))
    assert result.simulated_s == result.with_host_s == pytest.approx(8e-6)
    assert result.error == pytest.approx(-0.6)
    assert result.host is None


def test_the_host_s_cost_stands_between_the_operators(tmp_path: Path) -> None:
    result = compare(files(tmp_path, host={"phases": phases(5e-6, 7e-6), "ahead": 1}))
    assert result.with_host_s == pytest.approx(20e-6)
    # The step told its host itself, and would agree with it whatever it is: no error is told.
    assert (result.host_error, result.error) == (None, pytest.approx(-0.6))
    assert result.host == {"forward": 5e-6, "backward": 7e-6, "update": 0.0}
    assert result.known == 1


def of_batches(folder: Path, *told: tuple[int, float, float, float], **host: Any) -> Path:
    """A profile of several batches of the same ops: batch, step, and host's time of the forward
    and of the backward in us.
    """
    runs = [
        {
            "graph": f"graphs/net-b{batch}.json",
            "batch": batch,
            "step": {"measured_step_s": step * 1e-6},
            "host": {"phases": phases(forward * 1e-6, backward * 1e-6), **host},
        }
        for batch, step, forward, backward in told
    ]
    path = files(folder, **runs[0], runs=runs)
    for run_ in runs:
        (folder / run_["graph"]).write_text(json.dumps(GRAPH))
    return path


@pytest.mark.parametrize("host", [{"ahead": 1}, {"ahead": 1, "method": "left of the step"}])
def test_the_host_of_a_batch_is_tried_on_another(tmp_path: Path, host: Any) -> None:
    profile = of_batches(tmp_path, (2, 20, 5, 7), (4, 25, 6, 10), (64, 98, 40, 50), **host)
    found = [compare(profile, tmp_path / f"graphs/net-b{batch}.json") for batch in (2, 4, 64)]
    # Ops of 8 us between 16, 12 and 16 us of the host of the batch that is nearest.
    assert [each.held_out_s for each in found] == [pytest.approx(s) for s in (24e-6, 20e-6, 24e-6)]
    errors = [24 / 20 - 1, 20 / 25 - 1, 24 / 98 - 1]
    assert [each.host_error for each in found] == [pytest.approx(error) for error in errors]
    assert [each.tried for each in found] == [4, 2, 4]


def test_a_gpu_s_host_is_held_out_too(tmp_path: Path) -> None:
    """Rows tell what its host took in this very step, which is not what tries it."""
    profile = of_batches(tmp_path, (2, 20, 9, 11), (4, 25, 30, 40))
    header, *lines = map(json.loads, profile.read_text().splitlines())
    rows = [header, *(line | {"host_step_ns": 10_000} for line in lines)]
    profile.write_text("".join(json.dumps(line) + "\n" for line in rows))
    result = compare(profile)
    # The host dispatches for 30 + 40 us, and the device runs the last op behind it.
    assert result.held_out_s == pytest.approx(75e-6)
    assert result.host_error == pytest.approx(75 / 20 - 1)


def test_what_is_printed_without_and_with_a_batch_to_try(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = {"unmeasured": [], "method": {}}

    def compared(profile: Path, graph: str) -> str:
        monkeypatch.setattr(
            "simdev.measure.profile_batches", lambda *_, **__: ([tmp_path / graph], profile)
        )
        assert main(["profile", "net", "--compare"]) == 0
        return capsys.readouterr().out

    host = {"phases": phases(5e-6, 7e-6), "ahead": 1}
    said = compared(files(tmp_path, host=host, **whole), "graphs/net.json")
    assert "measured 20 us, no error: this very step told what its host costs; another" in said
    assert "error +" not in said
    several = of_batches(tmp_path, (2, 20, 5, 7), (4, 25, 6, 10), ahead=1)
    header, *lines = map(json.loads, several.read_text().splitlines())
    header["header"] |= whole
    several.write_text("".join(json.dumps(line) + "\n" for line in (header, *lines)))
    said = compared(several, "graphs/net-b4.json")
    assert "simulated 20 us with the host of batch 2, measured 25 us, error -20.0%" in said


def test_a_scenario_of_the_step_is_written_beside_the_profile(tmp_path: Path) -> None:
    profile = files(tmp_path, host={"phases": phases(5e-6, 7e-6), "ahead": 1})
    path = write_scenario(profile)
    assert path == tmp_path / "net.scenario.json"
    report = run(load_scenario(path))
    assert report.step_ps == 20_000_000
    # Without a host in the profile there is none in the scenario.
    assert run(load_scenario(write_scenario(files(tmp_path)))).step_ps == 8_000_000


def test_kernels_follow_one_another_as_in_the_scenario(tmp_path: Path) -> None:
    """Products near the peak of a kind with a datasheet run at the clock that the power leaves."""
    profile = files(tmp_path, device={"kind": "h100-sxm"})
    header, *lines = map(json.loads, profile.read_text().splitlines())
    hot = {"dev": "h100-sxm", "kernel_ns": 10_000, "launches": 1, "flops": 8 * 10**9}
    rows = [header, *(line | hot for line in lines)]
    profile.write_text("".join(json.dumps(line) + "\n" for line in rows))
    result = compare(profile)
    assert result.simulated_s == pytest.approx(2 * (10e-6 / 0.92 + 0.8e-6), rel=1e-6)
    report = run(load_scenario(write_scenario(profile)))
    assert report.step_ps == round(result.simulated_s * 1e12)


def test_a_run_of_several_batches_is_compared_by_its_graph(tmp_path: Path) -> None:
    runs = [
        {"graph": "graphs/net.json", "batch": 2, "step": {"measured_step_s": 20e-6}},
        {"graph": "graphs/other.json", "batch": 4, "step": {"measured_step_s": 16e-6}},
    ]
    profile = files(tmp_path, runs=runs)
    (tmp_path / "graphs/other.json").write_text(json.dumps({**GRAPH, "name": "other"}))
    result = compare(profile, tmp_path / "graphs/other.json")
    assert (result.batch, result.measured_s) == (4, 16e-6)
    assert compare(profile).measured_s == 20e-6


def comparison(
    error: float, host_error: float | None, known: float = 1.0, **more: Any
) -> Comparison:
    fields: dict[str, Any] = {"clock": "cuda", "too_noisy": False, "host": {}, **more}
    return Comparison(
        "net",
        1,
        "gpu",
        simulated_s=1 + error,
        measured_s=1.0,
        known=known,
        with_host_s=1.0,
        held_out_s=None if host_error is None else 1 + host_error,
        **fields,
    )


@pytest.mark.parametrize(
    ("result", "begins"),
    [
        (comparison(-0.03, 0.02), []),
        (comparison(-0.67, 0.0), ["host-bound: operators fill 33% of the step; keep the host"]),
        (comparison(-0.67, -0.67, host=None), ["host-bound: operators fill 33% of the step, and"]),
        (comparison(-0.1, -0.1, too_noisy=True), ["noisy: the machine was busy"]),
        (comparison(0.3, 0.3, 0.8), ["unmeasured: 20% of the op time is estimated"]),
        (comparison(-0.1, None), []),
        (comparison(0.1, 0.1), ["slower than measured: operators alone are colder"]),
        (comparison(-0.1, -0.1, host=None), ["faster than measured: the step waits"]),
        (comparison(-0.5, -0.2), ["host-bound: operators fill 50%", "faster than measured: "]),
    ],
)
def test_an_error_says_what_to_do_about_it(result: Comparison, begins: list[str]) -> None:
    lines = list(advice(result))
    assert len(lines) == len(begins)
    assert all(line.startswith(begin) for line, begin in zip(lines, begins, strict=True))


def test_only_a_gpu_is_offered_graphs() -> None:
    assert "CUDA graphs" in next(advice(comparison(-0.67, 0.0)))
    assert "CUDA graphs" not in next(advice(comparison(-0.67, 0.0, clock="cpu")))


# What an op of a CPU costs its host.


def op(name: str, kind: str, phase: str = "forward") -> Op:
    return Op(name, kind, phase=phase, outputs=(Tensor(16, (4,)),))


def test_every_op_of_a_phase_bears_its_share(tmp_path: Path) -> None:
    told = phases(6e-6, 7e-6)
    told["forward"]["ops"] = 3
    costs = CostModel((read_profile(files(tmp_path, host={"phases": told, "ahead": 1})),))
    graph = Graph("net", (op("x", "input"), op("a", "relu"), op("b", "relu", "backward")))
    found = [costs.host_cost(graph, i, "my-core") for i in range(3)]
    assert [cost.seconds for cost in found if cost] == [0, Fraction("2e-6"), Fraction("7e-6")]
    assert {cost.rung for cost in found if cost} == {"estimated"}
    assert costs.host_cost(graph, 1, "other-core") is None


@pytest.mark.parametrize(
    "host",
    [
        {"phases": phases(1e-6, 1e-6)},  # a GPU's: its host is another thread
        {"ahead": 1},
        {"ahead": 1, "phases": None},
        "x86",
    ],
)
def test_headers_that_tell_nothing_of_a_cpu_s_host(host: Any, tmp_path: Path) -> None:
    profile = read_profile(files(tmp_path, host=host))
    assert between_cost((profile.header,), op("a", "relu"), "my-core") is None
    assert compare(files(tmp_path, host=host)).error < -0.5


# A model of one's own, measured and compared.


@pytest.mark.filterwarnings("ignore")
def test_the_step_of_a_tiny_model_agrees_with_its_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    from simdev.commands import main

    sizes = ["--size", "width=16", "--size", "layers=2", "--seconds", "0.5"]
    assert main(["profile", "mlp", "--batch", "2,4", *sizes, "-o", str(tmp_path), "--compare"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [Path(line).name for line in said if line.endswith(".scenario.json")] == [
        "mlp-b2-width16-layers2.scenario.json",
        "mlp-b4-width16-layers2.scenario.json",
    ]
    assert sum("the host's cost: forward" in line for line in said) == 2
    (profile,) = tmp_path.glob("mlp.*.jsonl")
    result = compare(profile)
    # Of the batch that told the host's cost by its very step; the other is what tries it.
    assert result.with_host_s == pytest.approx(result.measured_s, rel=1e-3)
    assert result.tried == 4
    assert 1e-6 < abs(result.host_error or 0) < 1
    assert result.error < -0.2
    assert sum("with the host of batch" in line for line in said) == 2
