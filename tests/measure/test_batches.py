"""Several batch sizes and precisions of a model, in one run and one profile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from simdev.commands import main  # noqa: E402
from simdev.costs import op_key  # noqa: E402
from simdev.files.graph import read_graph  # noqa: E402
from simdev.files.profile import read_profile  # noqa: E402
from simdev.ground.errors import InputError  # noqa: E402
from simdev.measure import profile_batches, profile_model  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
NET = """
import torch
from torch import nn

BUILT = []

def net(batch=2):
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    BUILT.append(module)
    data = torch.randn(batch, 4), torch.randint(3, (batch,))
    return module, data, lambda m, x, y: nn.functional.cross_entropy(m(x).float(), y)
"""


@pytest.fixture
def net(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(NET)
    return f"{tmp_path / 'mine.py'}:net"


def test_batches_share_the_operators_that_are_equal(net: str, tmp_path: Path) -> None:
    graphs, path = profile_batches(net, [1, 2, 3], seconds=0.2, out_dir=tmp_path)
    profile = read_profile(path)
    kind = profile.header["header"]["device"]["kind"]
    keys = [
        {op_key(graph, i, kind) for i, op in enumerate(graph.ops) if op.time is None}
        for graph in map(read_graph, graphs)
    ]
    assert set.union(*keys) == set(profile.rows)
    # Every batch has the same updates, and operators of its own.
    shared = set.intersection(*keys)
    assert sum(profile.rows[key].details["phase"] == "opt" for key in shared) == 4
    assert len(set.union(*keys)) == sum(map(len, keys)) - 2 * len(shared)


def test_the_header_tells_every_batch(net: str, tmp_path: Path) -> None:
    graphs, path = profile_batches(net, [3, 1, 3], seconds=0.2, out_dir=tmp_path)
    assert [graph.name for graph in graphs] == ["net-b3.json", "net-b1.json"]
    header = read_profile(path).header["header"]
    assert [run["batch"] for run in header["runs"]] == [3, 1]
    assert [run["graph"] for run in header["runs"]] == [f"graphs/{g.name}" for g in graphs]
    assert header["step"] == header["runs"][0]["step"]
    assert (header["batch"], header["graph"]) == (3, "graphs/net-b3.json")
    assert all(run["step"]["measured_step_s"] > 0 for run in header["runs"])


def test_one_batch_has_no_list_of_runs(net: str, tmp_path: Path) -> None:
    _, path = profile_model(net, batch=1, seconds=0.1, out_dir=tmp_path)
    assert "runs" not in read_profile(path).header["header"]


@pytest.mark.parametrize(
    ("precision", "parameters", "autocast", "products"),
    [
        ("float32", ["float32"], None, "float32"),
        ("bfloat16", ["bfloat16"], None, "bfloat16"),
        ("autocast", ["float32"], "bfloat16", "bfloat16"),
    ],
)
def test_a_model_is_measured_in_a_precision(
    net: str,
    tmp_path: Path,
    precision: str,
    parameters: list[str],
    autocast: str | None,
    products: str,
) -> None:
    graph, path = profile_model(net, seconds=0.1, out_dir=tmp_path, precision=precision)
    flags = read_profile(path).header["header"]["flags"]
    assert (list(flags["parameters"]), flags["autocast"]) == (parameters, autocast)
    rows = [row.details for row in read_profile(path).rows.values()]
    assert {row["dt"][0] for row in rows if row["op"] == "linear"} == {products}
    assert graph.name == f"net-{precision}-b2.json"
    assert path.name.startswith(f"net-{precision}.")


def test_tf32_needs_a_gpu(net: str) -> None:
    with pytest.raises(InputError, match="tf32 is a mode of CUDA devices"):
        profile_model(net, precision="tf32")
    with pytest.raises(InputError, match="must be one of float32, tf32"):
        profile_model(net, precision="int4")


def test_the_command_takes_batches_by_comma(
    net: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["profile", net, "--batch", "1,2", "--seconds", "0.2", "-o", str(tmp_path)])
    printed = capsys.readouterr().out.splitlines()
    assert code == 0
    assert [Path(line).name for line in printed[:2]] == ["net-b1.json", "net-b2.json"]
    assert main(["profile", net, "--batch", "1,x", "-o", str(tmp_path)]) == 2
    assert "--batch: must be whole numbers" in capsys.readouterr().err


def test_an_interrupt_keeps_what_was_measured(
    net: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from simdev.measure import operators

    measure_in_turns = operators.measure_in_turns

    def interrupted(*args: Any) -> Iterator[Any]:
        yield next(measure_in_turns(*args))
        raise KeyboardInterrupt

    monkeypatch.setattr(operators, "measure_in_turns", interrupted)
    assert main(["profile", net, "--seconds", "0.2", "-o", str(tmp_path)]) == 130
    (path,) = tmp_path.glob("net.*.jsonl")
    header = read_profile(path).header["header"]
    assert header["method"]["interrupted"] is True  # type: ignore[index]
    rows = read_profile(path).rows.values()
    assert {row.details["phase"] for row in rows} == {"fwd", "bwd"}
    assert {row.details["t_ns"]["n"] for row in rows} == {1}
    assert "interrupted" in capsys.readouterr().err
