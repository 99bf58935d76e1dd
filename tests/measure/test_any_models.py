"""Steps as people write them are captured and measured, without a crash and without a loss."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import any_models  # noqa: E402
import odd_models  # noqa: E402
from simdev import load_scenario, run  # noqa: E402
from simdev.files.graph import read_graph  # noqa: E402
from simdev.files.profile import read_profile  # noqa: E402
from simdev.ground.errors import InputError  # noqa: E402
from simdev.measure import profile_model  # noqa: E402
from simdev.measure.building import flat_step, loss_of  # noqa: E402
from simdev.measure.capture import Capture, capture  # noqa: E402
from simdev.measure.operators import isolated  # noqa: E402
from simdev.nouns.semantics import kinds as kinds_described  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

MODELS = [*any_models.MODELS, *odd_models.MODELS]


@cache
def captured(build: Callable[[], any_models.Built]) -> Capture:
    torch.manual_seed(0)
    module, batch, loss = build()
    tensors, flat = flat_step(module, batch, loss)
    return capture(module.train(), tensors, flat, real=True)


def kinds(capture: Capture, phase: str) -> list[str]:
    return [op["kind"] for op in capture.graph["ops"] if op["phase"] == phase]


def write(folder: Path, build: str, body: str = "") -> str:
    """A file with a builder, as a user has one."""
    file = folder / "mine.py"
    here = str(Path(any_models.__file__).parent)
    text = f"import sys\nsys.path.insert(0, {here!r})\nimport any_models, torch\n{body}\n"
    file.write_text(text + f"build = next(m for m in any_models.MODELS if m.__name__ == {build!r})")
    return f"{file}:build"


Profiled = Callable[[str], tuple[Path, Path]]


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Profiled:
    """Graph and profile of a model by its name, which is measured once."""

    @cache
    def measured(name: str) -> tuple[Path, Path]:
        folder = tmp_path_factory.mktemp(name)
        return profile_model(write(folder, name), seconds=0.1, out_dir=folder)

    return measured


# Measured to the end: a sample of each way to fail that there was.
@pytest.mark.parametrize(
    "name",
    ["lstm", "packed_lstm", "model_output", "closure", "checkpointed", "gathering", "ctc"],
)
def test_every_operator_is_measured(name: str, profiled: Profiled) -> None:
    graph, profile = profiled(name)
    header = read_profile(profile).header["header"]
    assert header["unmeasured"] == ()
    assert len(read_profile(profile).rows) == header["step"]["keys"]
    assert read_graph(graph).ops


@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_every_model_is_captured(build: Callable[[], any_models.Built]) -> None:
    found = captured(build)
    assert "update" in {op["phase"] for op in found.graph["ops"]}
    assert sum(found.counts.values()) == sum("time" not in op for op in found.graph["ops"])


@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_every_model_runs_on_a_device_that_nobody_measured_it_on(
    build: Callable[[], any_models.Built],
) -> None:
    cluster = {"version": 1, "name": "one", "links": []}
    cluster["devices"] = [{"name": "gpu:0", "kind": "h100-sxm"}]
    graph, strategy = captured(build).graph, {"placement": {"*": "gpu:0"}}
    question = {"version": 1, "graph": graph, "cluster": cluster, "strategy": strategy}
    report = run(load_scenario(question))
    undescribed = {op["kind"] for op in graph["ops"]} - set(kinds_described())
    passes = {miss.kind for miss in report.cost_misses if miss.rung == "memory pass"}
    assert undescribed <= passes
    assert report.costs.keys() == {"roofline"} | ({"memory pass"} if passes else set())


def test_a_recurrent_layer_is_measured_with_the_buffers_of_a_real_step(profiled: Profiled) -> None:
    _, profile = profiled("lstm")
    rows = [row.details for row in read_profile(profile).rows.values()]
    backward = next(row for row in rows if row["op"] == "mkldnn_rnn_layer_backward")
    assert backward["meth"].endswith("+step-inputs")
    # The workspace that the forward leaves to it has its true size.
    assert backward["in"][-1][0] > 0


def test_a_checkpoint_computes_anew_in_the_backward() -> None:
    plain, again = captured(any_models.frozen), captured(any_models.checkpointed)
    assert kinds(again, "forward").count("linear") == 3
    assert kinds(again, "backward").count("linear") >= 1
    assert kinds(plain, "backward").count("linear") == 0
    # Every parameter gets its update.
    assert kinds(again, "update") == ["sgd_momentum_update"] * 6


def test_a_tied_weight_is_one_parameter_with_one_update() -> None:
    found = captured(any_models.tied)
    assert kinds(found, "forward").count("parameter") == 1
    assert len(kinds(found, "update")) == 1
    assert "add" in kinds(found, "backward")  # both uses give a gradient


def test_tensors_of_closures_and_attributes_are_inputs_of_the_step() -> None:
    ops = captured(any_models.plain_attribute).graph["ops"]
    constants = [op["name"] for op in ops if op["name"].startswith("constant")]
    assert len(constants) == 2  # the mask and the table, each once


def test_tensors_of_closures_keep_their_gradients() -> None:
    scale = torch.nn.Parameter(torch.ones(8))
    module, batch = any_models.net(), torch.randn(3, 8)
    capture(module, [batch], lambda m, x: m(x * scale).sum())
    assert scale.grad is None
    assert all(parameter.grad is None for parameter in module.parameters())


def test_a_step_that_asks_for_values_leaves_the_module_as_it_was() -> None:
    module, batch, loss = any_models.in_place()

    def asks(m: Any, x: Any) -> Any:
        return loss(m, x) * (2.0 if float(x.sum()) > 0 else 1.0)

    before = {key: tensor.clone() for key, tensor in module.state_dict().items()}
    found = capture(module, batch, asks, real=True)
    assert "linear" in kinds(found, "forward")
    assert all(torch.equal(before[key], now) for key, now in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())


def test_the_op_that_the_host_waits_for_blocks_it() -> None:
    module = any_models.net()

    def asks(m: Any, x: Any) -> Any:
        out = m(x)
        return out.sum() * (2.0 if out.max().item() > 0 else 1.0)

    found = capture(module, (torch.randn(3, 8),), asks, real=True)
    assert [op["kind"] for op in found.graph["ops"] if op.get("blocks_host")] == ["max"]
    assert not [op for op in captured(any_models.closure).graph["ops"] if "blocks_host" in op]


def test_inputs_of_a_mapping_keep_their_names() -> None:
    for build in (any_models.dict_batch, any_models.keyword_batch, any_models.no_loss):
        names = [op["name"] for op in captured(build).graph["ops"] if op["kind"] == "input"]
        assert {"input_ids", "attention_mask", "labels"} <= {
            name.removeprefix("batch_") for name in names
        }


def test_a_batch_keeps_its_own_type_and_what_is_no_tensor() -> None:
    class Batch(dict):  # type: ignore[type-arg]
        kind = "mine"

    seen = []
    batch = Batch(x=torch.ones(2), scale=3.0)
    tensors, flat = flat_step(
        torch.nn.Identity(), (batch,), lambda m, b: seen.append(b) or b["x"].sum()
    )
    assert float(flat(torch.nn.Identity(), tensors[0] * 2)) == 4.0
    assert (type(seen[0]), seen[0].kind, seen[0]["scale"]) == (Batch, "mine", 3.0)
    assert torch.equal(batch["x"], torch.ones(2))  # the user's own stays


def test_a_batch_may_be_a_dataclass_with_slots() -> None:
    @dataclass(slots=True)
    class Batch:
        x: Any
        scale: float

    tensors, flat = flat_step(
        torch.nn.Identity(), Batch(torch.ones(2), 3.0), lambda m, b: b.x.sum() * b.scale
    )
    assert float(flat(torch.nn.Identity(), tensors[0] * 2)) == 12.0


@pytest.mark.parametrize("value", [None, {"logits": 1}, torch.ones(2), torch.tensor(1), "loss"])
def test_what_is_no_loss_is_refused(value: Any) -> None:
    with pytest.raises(InputError, match="returns no loss"):
        loss_of(value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def build():\n    raise KeyError('data')", "KeyError: 'data'"),
        ("def build():\n    return 3", "must return .module, inputs, loss."),
        (
            "def build():\n    return torch.nn.Linear(2, 2), 'text', lambda m, x: x",
            "no tensor among them",
        ),
        (
            "def build():\n    m = torch.nn.Linear(2, 2)\n"
            "    return m, torch.ones(2, 3), lambda m, x: m(x).sum()",
            r"cannot be captured: .*mine.py, line \d",
        ),
        (
            "def build():\n    m = torch.nn.Linear(2, 2)\n"
            "    return m, torch.ones(2, 2), lambda m, x: {}['loss']",
            r"KeyError: 'loss' \(.*mine.py, line \d",
        ),
        (
            "def build():\n    m = torch.nn.Linear(2, 2)\n"
            "    return m, torch.ones(2, 2), lambda m, x: x.sum()",
            "depends on no parameter",
        ),
        (
            "def build():\n    m = torch.nn.Linear(2, 2)\n"
            "    data = torch.ones(1, 2), torch.tensor([7])\n"
            "    loss = torch.nn.functional.cross_entropy\n"
            "    return m, data, lambda m, x, y: loss(m(x), y)",
            r"cannot be run: IndexError: Target 7 is out of bounds. \(.*mine.py, line \d",
        ),
    ],
)
def test_what_a_file_does_wrong_is_told_with_its_place(
    body: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"import torch\n{body}\n")
    with pytest.raises(InputError, match=message):
        profile_model(f"{file}:build", seconds=0.1, out_dir=tmp_path)


CRASHING = """
import os, torch
from torch import nn

HOME = os.getpid()

@torch.library.custom_op("simdev_tests::crashes", mutates_args=())
def crashes(x: torch.Tensor) -> torch.Tensor:
    if os.getpid() != HOME:
        os.kill(os.getpid(), 11)
    return x * 2

crashes.register_fake(torch.empty_like)
crashes.register_autograd(lambda ctx, grad: grad * 2)

def build():
    m = nn.Linear(4, 4)
    return m, torch.ones(2, 4), lambda m, x: crashes(m(x)).sum()
"""


def test_an_operator_that_crashes_costs_its_row_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(CRASHING)
    name = f"{tmp_path / 'mine.py'}:build"
    _, profile = profile_model(name, seconds=0.1, out_dir=tmp_path)
    header = json.loads(profile.read_text().splitlines()[0])["header"]
    assert header["unmeasured"] == ["crashes [[2, 4]]: the process that measured it died (SIGSEGV)"]
    assert len(read_profile(profile).rows) == header["step"]["keys"] - 1


def test_work_in_a_child_process() -> None:
    assert isolated(lambda: [os.getpid(), 2])[1] == 2
    assert isolated(os.getpid) != os.getpid()
    with pytest.raises(RuntimeError, match="no such thing"):
        isolated(lambda: (_ for _ in ()).throw(ValueError("no such thing")))
    with pytest.raises(RuntimeError, match=r"died \(SIGKILL\)"):
        isolated(lambda: os.kill(os.getpid(), 9))
    with pytest.raises(RuntimeError, match="ended with code 7"):
        isolated(lambda: os._exit(7))
