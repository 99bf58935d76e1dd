"""From the name of a model to a graph file and a profile file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..files.writing import parents, write_text
from ..ground.errors import InputError
from .building import Chosen, alike, built, precision_flags, resolve, sizes_of
from .capture import Capture, capture
from .grid import CLASSES, POINTS, capture_grid
from .operators import Conditions, Progress
from .provenance import describe, device_kind
from .steps import Measured, Step, measure_alone, measure_together, profile_text
from .timers import require_device
from .torch_models import MODELS
from .transfers import measure_copies

GZIP_FROM = 10**6  # characters; profiles are kept in repositories


def model_names() -> list[tuple[str, int, str]]:
    """(name, batch on a CPU, optimizer) of the models that are ready to be measured."""
    return [
        (name, sizes_of(model.build, model.cpu)["batch"], model.optimizer)
        for name, model in MODELS.items()
    ]


def profile_model(
    name: str,
    device: str = "cpu",
    batch: int | None = None,
    seconds: float = 240.0,
    out_dir: str | os.PathLike[str] = "profiles",
    progress: Progress | None = None,
    optimizer: str | None = None,
    flush: bool | None = None,
    sizes: Mapping[str, int] | None = None,
    precision: str | None = None,
) -> tuple[Path, Path]:
    """Captures and measures a model's training step; returns the paths of its graph and its
    profile.

    ``name`` is one of ``model_names()`` or ``path/to/file.py:function``, a function that returns
    (module, inputs, loss), or (module, inputs) where the module returns its loss. ``device`` is
    "cpu" or "cuda", ``seconds`` about the time that measuring may take. ``batch`` and ``sizes`` are
    arguments of the function (default: the papers' sizes, on a CPU those that one core measures in
    minutes). ``progress`` is called as (done, total, kind of op). ``flush`` empties the caches
    before each sample (default: on CUDA only). ``precision``: one of PRECISIONS (default: as the
    code says). Files of over 1 MB are gzipped. Raises InputError.
    """
    batches = None if batch is None else [batch]
    graphs, profile = profile_batches(
        name, batches, device, seconds, out_dir, progress, optimizer, flush, sizes, precision
    )
    return graphs[0], profile


def profile_batches(
    name: str,
    batches: Sequence[int] | None,
    device: str = "cpu",
    seconds: float = 240.0,
    out_dir: str | os.PathLike[str] = "profiles",
    progress: Progress | None = None,
    optimizer: str | None = None,
    flush: bool | None = None,
    sizes: Mapping[str, int] | None = None,
    precision: str | None = None,
) -> tuple[list[Path], Path]:
    """``profile_model`` for several batch sizes in one run; returns the paths of their graphs and
    of their one profile.

    Operators that several of them have are measured once. The header tells the first batch's step,
    and those of all under ``runs``. Raises InputError.
    """
    conditions = _conditions(device, seconds, flush, progress)
    wanted = [None] if batches is None else list(dict.fromkeys(batches))
    chosen = [{**(sizes or {}), **({} if batch is None else {"batch": batch})} for batch in wanted]
    models = [resolve(name, device, each, optimizer, precision) for each in chosen]
    with precision_flags(precision, device):
        steps = _steps(models, name, conditions)
        measured = measure_together(steps, conditions)
        described = describe(device)
    folder, graphs, runs = Path(out_dir), [], []
    for model, step, (whole, host) in zip(models, steps, measured.wholes, strict=True):
        about = model.about() | described | {"flags": described["flags"] | step_flags(step)}
        path = folder / "graphs" / f"{step.captured.graph['name']}.json"
        graphs.append(write_packed(path, _graph_text(step.captured, about)))
        run = {"graph": f"graphs/{graphs[-1].name}", **model.about(), "step": whole, "host": host}
        runs.append(run)
        if len(runs) == 1:
            first = about | {"graph": run["graph"]}
    several = {"runs": runs} if len(runs) > 1 else {}
    text = profile_text(measured, first | several)
    return graphs, write_packed(folder / f"{models[0].file_title}.{conditions.kind}.jsonl", text)


def _steps(models: Sequence[Chosen], name: str, conditions: Conditions) -> list[Step]:
    """The captured steps of a model in several sizes; those whose parameters are alike share
    them.
    """
    steps: list[Step] = []
    for model in models:
        # Parameters and inputs have the same values in every run: some kernels branch on them.
        torch.manual_seed(0)
        module, inputs, loss = built(model, name, conditions.device)
        if steps and alike(module, steps[0].module):
            module = steps[0].module
        conditions.tell("capture")
        # On a GPU PyTorch dispatches other operators, so the graph is another file.
        suffix = "" if conditions.device == "cpu" else f"-{conditions.device}"
        title = model.graph_name + suffix
        captured = capture(module, inputs, loss, model.optimizer, title, real=True)
        steps.append(Step(captured, module, inputs, loss, model.optimizer))
    return steps


def step_flags(step: Step) -> dict[str, Any]:
    """In what the step computes: the dtypes of its parameters, and that of autocast."""
    dtypes = dict.fromkeys(str(p.dtype).removeprefix("torch.") for p in step.module.parameters())
    return {"parameters": list(dtypes), "autocast": step.captured.autocast}


def profile_grid(
    classes: Sequence[str],
    device: str = "cpu",
    seconds: float = 240.0,
    out_dir: str | os.PathLike[str] = "profiles",
    points: int | None = None,
    dtype: str = "float32",
    flush: bool | None = None,
    progress: Progress | None = None,
) -> Path:
    """Measures random shapes of op classes (``grid.CLASSES``, or all: ``copies`` are by size);
    returns the profile.

    ``points`` a class and dtype (default: the device's). Copies stand alone. Raises InputError.
    """
    conditions = _conditions(device, seconds, flush, progress)
    names = list(dict.fromkeys(classes)) or list(CLASSES)
    about: dict[str, Any] = {"grid": names, **describe(device)}
    if names == ["copies"]:
        rows, method, noise = measure_copies(device, conditions.kind, progress=progress)
        measured = Measured(rows, noise, {}, method, [])
    else:
        each = POINTS[device] if points is None else points
        if each < 1:
            raise InputError(f"points: must be at least 1, got {each}")
        about |= {"points": each, "dtype": dtype}
        measured = measure_alone(capture_grid(names, each, device, dtype), conditions)
    title = "grid" if names == list(CLASSES) else "grid-" + "-".join(names)
    title += "" if dtype == "float32" else f"-{dtype}"
    path = Path(out_dir) / f"{title}.{conditions.kind}.jsonl"
    return write_packed(path, profile_text(measured, about))


def _conditions(
    device: str, seconds: float, flush: bool | None, progress: Progress | None
) -> Conditions:
    require_device(device)
    flush = device == "cuda" if flush is None else flush
    return Conditions(device, device_kind(device), seconds, flush, progress)


def _graph_text(captured: Capture, about: Mapping[str, Any]) -> str:
    """The graph, an op a line."""
    names = ("model", "batch", "sizes", "optimizer", "created", "tool")
    provenance = {name: about[name] for name in names} | {
        "captured": (
            "operators as PyTorch dispatches them in the joint forward and backward, views folded"
        ),
        "torch": about["device"]["torch"],
    }
    head = {"version": 1, "name": captured.graph["name"], "provenance": provenance}
    lines = ",\n  ".join(json.dumps(op) for op in captured.graph["ops"])
    return json.dumps(head)[:-1] + f', "ops": [\n  {lines}\n]}}\n'


def write_packed(path: Path, text: str) -> Path:
    """Writes a text, gzipped where it is large; returns the path, with ``.gz`` where it is.

    Raises OSError.
    """
    written, stale = path, path.with_name(path.name + ".gz")
    if len(text) > GZIP_FROM:
        written, stale = stale, written
    with parents(path):
        write_text(written, text)
    # A file of an earlier run under the other name would be read in its place.
    stale.unlink(missing_ok=True)
    return written
