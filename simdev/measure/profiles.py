"""From the name of a model to a graph file and a profile file."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..files.writing import write_text
from .batch import flat_step
from .capture import Capture, capture
from .grid import CLASSES, POINTS, capture_grid
from .operators import Conditions, Progress
from .optimizers import optimizer_named
from .provenance import describe, device_kind
from .steps import Measured, measure, measure_alone, profile_text
from .timers import require_device
from .torch_models import MODELS
from .tracing import Loss
from .transfers import measure_copies

Builder = Callable[..., Any]
GZIP_FROM = 10**6  # characters; profiles are kept in repositories


def model_names() -> list[tuple[str, int, str]]:
    """(name, batch on a CPU, optimizer) of the models that are ready to be measured."""
    return [
        (name, _sizes(model.build, model.cpu)["batch"], model.optimizer)
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
) -> tuple[Path, Path]:
    """Captures and measures a model's training step; returns the paths of its graph and its
    profile.

    ``name`` is one of ``model_names()`` or ``path/to/file.py:function``, a function that returns
    (module, inputs, loss). ``device`` is "cpu" or "cuda", ``seconds`` about the time that measuring
    may take. ``batch`` and ``sizes`` are arguments of the function (default: the papers' sizes, on
    a CPU those that one core measures in minutes). ``progress`` is called as (done, total, kind of
    op). ``flush`` empties the caches before each sample (default: on CUDA only). Files of over 1 MB
    are gzipped. Raises InputError.
    """
    conditions = _conditions(device, seconds, flush, progress)
    chosen = {**(sizes or {}), **({} if batch is None else {"batch": batch})}
    model = _resolve(name, device, chosen, optimizer)
    # Parameters and inputs have the same values in every run: some kernels branch on them.
    torch.manual_seed(0)
    module, inputs, loss = _built(model, name, device)
    # On a GPU PyTorch dispatches other operators, so the graph is another file.
    graph_name = model.graph_name + ("" if device == "cpu" else f"-{device}")
    captured = capture(module, inputs, loss, model.optimizer, graph_name, real=True)
    measured = measure(captured, module, inputs, loss, model.optimizer, conditions)
    about = _about(model) | describe(device)
    folder = Path(out_dir)
    graph = write_packed(folder / "graphs" / f"{graph_name}.json", _graph_text(captured, about))
    text = profile_text(measured, about | {"graph": f"graphs/{graph.name}"})
    return graph, write_packed(folder / f"{model.title}.{conditions.kind}.jsonl", text)


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


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A model to be measured: its title, its builder, the sizes that it is called with, its
    optimizer.
    """

    title: str
    build: Builder
    sizes: Mapping[str, int]
    optimizer: str

    @property
    def graph_name(self) -> str:
        """The title with the batch and every size that is not the function's default."""
        default, sizes = _sizes(self.build, {}), _sizes(self.build, self.sizes)
        batch = [f"b{sizes['batch']}"] if "batch" in sizes else []
        special = [
            f"{name}{size}"
            for name, size in self.sizes.items()
            if name != "batch" and size != default.get(name)
        ]
        return "-".join([self.title, *batch, *special])


def _about(model: _Chosen) -> dict[str, Any]:
    """What a header says of a model."""
    sizes = _sizes(model.build, model.sizes)
    about = {"model": model.title, "batch": sizes.get("batch"), "sizes": sizes}
    return about | {"optimizer": model.optimizer}


def _parameters(build: Builder) -> Mapping[str, inspect.Parameter] | None:
    """The arguments of a builder; None where Python cannot tell them."""
    try:
        return inspect.signature(build).parameters
    except (TypeError, ValueError):
        return None


def _sizes(build: Builder, chosen: Mapping[str, int]) -> dict[str, int]:
    """All sizes of a builder: its defaults where nothing else is chosen."""
    parameters = (_parameters(build) or {}).items()
    return {name: p.default for name, p in parameters if type(p.default) is int} | dict(chosen)


def _resolve(name: str, device: str, sizes: Mapping[str, int], optimizer: str | None) -> _Chosen:
    """The model of a name, with its sizes on a device. Raises InputError."""
    problems = [
        f"{size}: must be at least 1, got {value}" for size, value in sizes.items() if value < 1
    ]
    if problems:
        raise InputError(problems)
    if optimizer is not None:
        optimizer_named(optimizer)
    if name in MODELS:
        model = MODELS[name]
        usual = model.cpu if device == "cpu" else {}
        chosen = _Chosen(name, model.build, {**usual, **sizes}, optimizer or model.optimizer)
    else:
        path, _, function = name.rpartition(":")
        if not path.endswith(".py"):
            raise InputError(
                f'no model "{name}"; there are {", ".join(MODELS)}, or write '
                "path/to/file.py:function"
            )
        build = _load(path, function)
        chosen = _Chosen(function.replace("_", "-"), build, sizes, optimizer or "sgd-momentum")
    taken = _parameters(chosen.build)
    missing = [] if taken is None else [size for size in chosen.sizes if size not in taken]
    if missing:
        raise InputError(
            [f"{name}: the function takes no argument named {size}" for size in missing]
        )
    return chosen


def _load(path: str, function: str) -> Builder:
    """A function of a Python file. Raises InputError."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None or not os.path.isfile(path):
        raise InputError("no such file", path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        # The file is the user's: whatever it raises is a problem of the input, with its place.
        raise InputError(f"cannot be imported: {type(error).__name__}: {error}", path) from error
    build = getattr(module, function, None)
    if not callable(build):
        raise InputError(f'no function "{function}"', path)
    return build  # type: ignore[no-any-return]


def _built(model: _Chosen, name: str, device: str) -> tuple[nn.Module, tuple[Tensor, ...], Loss]:
    """(module, tensors of the batch, loss of both) of a builder, which may be anybody's, on a
    device.

    Raises InputError.
    """
    match _called(model, name, device):
        case (nn.Module() as module, inputs, loss) if loss is None or callable(loss):
            pass
        case (nn.Module() as module, inputs):
            loss = None
        case _:
            raise InputError(
                f"{name}: must return (module, inputs, loss), or (module, inputs) of a module that "
                "returns its loss"
            )
    try:
        batch, flat = flat_step(module, inputs, loss)
    except InputError as error:
        raise error.within(name) from None
    return module.to(device).train(), tuple(tensor.to(device) for tensor in batch), flat


def _called(model: _Chosen, name: str, device: str) -> Any:
    """What the builder returns; it is the user's, so whatever it raises is a problem of the
    input.
    """
    try:
        if device != "cpu":
            try:
                # Tensors that are no parameters (attributes, weights of a loss, the batch itself)
                # are made on the device too, where nothing in the code says otherwise.
                with torch.device(device):
                    return model.build(**model.sizes)
            except RuntimeError:
                pass
        return model.build(**model.sizes)
    except Exception as error:
        raise InputError(f"{name}: {type(error).__name__}: {error}") from error


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
    path.parent.mkdir(parents=True, exist_ok=True)
    written, stale = path, path.with_name(path.name + ".gz")
    if len(text) > GZIP_FROM:
        written, stale = stale, written
    # A file of an earlier run under the other name would be read in its place.
    stale.unlink(missing_ok=True)
    write_text(written, text)
    return written
