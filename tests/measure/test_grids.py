"""Grids, copies, links, and measured steps beside simulated ones."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from simdev.ground.errors import InputError  # noqa: E402
from simdev.measure import profile_grid, profile_model  # noqa: E402
from simdev.measure.capture import capture, row_key  # noqa: E402
from simdev.measure.compare import compare  # noqa: E402
from simdev.measure.profiles import (  # noqa: E402
    CLASSES,
    LIMITS,
    Limit,
    Point,
    capture_grid,
    capture_point,
    points,
)
from simdev.measure.transfers import LinkTimes, cluster_object, fit_line, measure_copies  # noqa: E402

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
    from simdev.commands import main

    sizes = ["--size", "width=16", "--size", "layers=2", "--seconds", "0.5"]
    assert main(["profile", "mlp", "--batch", "4", *sizes, "-o", str(tmp_path), "--compare"]) == 0
    lines = capsys.readouterr().out.splitlines()
    line = r": simulated [\d.]+ (us|ms), measured [\d.]+ (us|ms), no error: "
    (compared,) = (number for number, text in enumerate(lines) if re.search(line, text))
    assert all(advice.startswith("  ") for advice in lines[compared + 1 :])


def test_a_profile_without_a_step_cannot_be_compared(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"v": 1, "header": {"device": {"kind": "x"}}}\n')
    with pytest.raises(InputError, match="tells no measured step"):
        compare(path)
    path.write_text(
        '{"v": 1, "header": {"device": {"kind": "x"}, "step": {"measured_step_s": 1.5}}}\n'
    )
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
