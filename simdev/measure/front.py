"""From the name of a model to a graph file and a profile file."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError

if TYPE_CHECKING:
    from .capture import Capture
    from .measure import Measured

Builder = Callable[..., Any]
GZIP_FROM = 10**6


def model_names() -> list[tuple[str, int, str]]:
    """(name, batch on a CPU, optimizer) of the models that are ready to be measured."""
    _require_torch()
    from .torch_models import MODELS

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
    progress: Callable[[int, int, str], None] | None = None,
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
    _require_torch()
    import torch

    from .capture import capture
    from .measure import measure
    from .provenance import describe, device_kind

    _require_device(device)
    model = _resolve(
        name, device, {**(sizes or {}), **({} if batch is None else {"batch": batch})}, optimizer
    )
    torch.manual_seed(0)
    module, inputs, loss = _built(model, name)
    module, inputs = module.to(device).train(), tuple(tensor.to(device) for tensor in inputs)
    graph_name = model.graph_name + ("" if device == "cpu" else f"-{device}")
    captured = capture(module, inputs, loss, model.optimizer, graph_name)
    kind = device_kind(device)
    flush = device == "cuda" if flush is None else flush
    measured = measure(
        captured, module, inputs, loss, model.optimizer, device, kind, seconds, flush, progress
    )
    all_sizes = _sizes(model.build, model.sizes)
    about = {
        "model": model.title,
        "batch": all_sizes.get("batch"),
        "sizes": all_sizes,
        "optimizer": model.optimizer,
    }
    about |= describe(device)
    folder = Path(out_dir)
    graph = write_packed(folder / "graphs" / f"{graph_name}.json", _graph_text(captured, about))
    about["graph"] = f"graphs/{graph.name}"
    return graph, write_packed(
        folder / f"{model.title}.{kind}.jsonl", profile_text(measured, about)
    )


def profile_grid(
    classes: Sequence[str],
    device: str = "cpu",
    seconds: float = 240.0,
    out_dir: str | os.PathLike[str] = "profiles",
    points: int | None = None,
    dtype: str = "float32",
    flush: bool | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Path:
    """Measures random shapes of op classes (``grid.CLASSES``, or all: ``copies`` are by size);
    returns the profile.

    ``points`` a class and dtype (default: the device's). Copies stand alone. Raises InputError.
    """
    _require_torch()
    from .grid import CLASSES, POINTS, capture_grid
    from .measure import Measured, measure_alone
    from .provenance import describe, device_kind

    _require_device(device)
    names = list(dict.fromkeys(classes)) or list(CLASSES)
    kind = device_kind(device)
    flush = device == "cuda" if flush is None else flush
    about: dict[str, Any] = {"grid": names, **describe(device)}
    if names == ["copies"]:
        from .copies import measure_copies

        rows, method, noise = measure_copies(device, kind, progress=progress)
        measured = Measured(rows, noise, {}, method, [])
    else:
        each = POINTS[device] if points is None else points
        if each < 1:
            raise InputError(f"points: must be at least 1, got {each}")
        captured = capture_grid(names, each, device, dtype)
        about |= {"points": each, "dtype": dtype}
        measured = measure_alone(captured, device, kind, seconds, flush, progress)
    title = "grid" if names == list(CLASSES) else "grid-" + "-".join(names)
    title += "" if dtype == "float32" else f"-{dtype}"
    return write_packed(Path(out_dir) / f"{title}.{kind}.jsonl", profile_text(measured, about))


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A model as it is to be measured: its title, its builder, the sizes that it is called with,
    its optimizer.
    """

    title: str
    build: Builder
    sizes: Mapping[str, int]
    optimizer: str

    @property
    def graph_name(self) -> str:
        """The title with the batch and every size that is not the function's own."""
        default = _sizes(self.build, {})
        own = {
            name: size
            for name, size in self.sizes.items()
            if name != "batch" and size != default.get(name)
        }
        batch = _sizes(self.build, self.sizes).get("batch")
        parts = [
            self.title,
            *([] if batch is None else [f"b{batch}"]),
            *(f"{k}{v}" for k, v in own.items()),
        ]
        return "-".join(parts)


def _sizes(build: Builder, chosen: Mapping[str, int]) -> dict[str, int]:
    """All sizes of a builder: its own where nothing else is chosen."""
    try:
        parameters = inspect.signature(build).parameters
    except (TypeError, ValueError):
        return dict(chosen)
    return {name: p.default for name, p in parameters.items() if type(p.default) is int} | dict(
        chosen
    )


def _require_device(device: str) -> None:
    from .timers import require_cuda

    if device not in ("cpu", "cuda"):
        raise InputError(f'device: must be cpu or cuda, got "{device}"')
    if device == "cuda":
        require_cuda()


def _require_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise InputError('profiling needs PyTorch: install the extra "simdev[torch]"')


def _resolve(name: str, device: str, sizes: Mapping[str, int], optimizer: str | None) -> _Chosen:
    """The model of a name, with its sizes on a device. Raises InputError."""
    from .torch_models import MODELS
    from .updates import optimizer as optimizer_named

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
        found = _Chosen(name, model.build, {**usual, **sizes}, optimizer or model.optimizer)
    else:
        path, _, function = name.rpartition(":")
        if not path.endswith(".py"):
            raise InputError(
                f'no model "{name}"; there are {", ".join(MODELS)}, or write '
                "path/to/file.py:function"
            )
        build = _load(path, function)
        found = _Chosen(function.replace("_", "-"), build, sizes, optimizer or "sgd-momentum")
    _check_sizes(found, name)
    return found


def _check_sizes(model: _Chosen, name: str) -> None:
    try:
        taken = inspect.signature(model.build).parameters
    except (TypeError, ValueError):
        return
    missing = [size for size in model.sizes if size not in taken]
    if missing:
        raise InputError(
            [f"{name}: the function takes no argument named {size}" for size in missing]
        )


def _load(path: str, function: str) -> Builder:
    """A function of a Python file. Raises InputError."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None or not os.path.isfile(path):
        raise InputError("no such file", path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        # The file is the user's: whatever it raises is a problem of the question, told with its
        # place.
        raise InputError(f"cannot be imported: {type(error).__name__}: {error}", path) from error
    found = getattr(module, function, None)
    if not callable(found):
        raise InputError(f'no function "{function}"', path)
    return found  # type: ignore[no-any-return]


def _built(model: _Chosen, name: str) -> tuple[Any, tuple[Any, ...], Any]:
    import torch

    made = model.build(**model.sizes)
    if not (
        isinstance(made, tuple)
        and len(made) == 3
        and isinstance(made[0], torch.nn.Module)
        and callable(made[2])
    ):
        raise InputError(f"{name}: must return (module, inputs, loss)")
    inputs = (made[1],) if isinstance(made[1], torch.Tensor) else tuple(made[1])
    if not all(isinstance(tensor, torch.Tensor) for tensor in inputs):
        raise InputError(f"{name}: inputs must be tensors")
    return made[0], inputs, made[2]


def _graph_text(captured: Capture, about: Mapping[str, Any]) -> str:
    """The graph, an op a line."""
    provenance = {
        key: about[key] for key in ("model", "batch", "sizes", "optimizer", "created", "tool")
    }
    provenance["captured"] = (
        "operators as PyTorch dispatches them in the joint forward and backward, views folded"
    )
    provenance["torch"] = about["device"]["torch"]
    head = {"version": 1, "name": captured.graph["name"], "provenance": provenance}
    lines = ",\n  ".join(json.dumps(op) for op in captured.graph["ops"])
    return json.dumps(head)[:-1] + f', "ops": [\n  {lines}\n]}}\n'


def profile_text(measured: Measured, about: Mapping[str, Any]) -> str:
    """Canonical JSON lines: the header, then a row a line."""
    rows = "".join(_canonical(row) for row in measured.rows)
    header = {
        "schema": 1,
        **about,
        "method": measured.method,
        "noise": measured.noise,
        **({"step": measured.step} if measured.step else {}),
        "unmeasured": measured.unmeasured,
        "sha256_of_rows": hashlib.sha256(rows.encode()).hexdigest(),
    }
    return _canonical({"v": 1, "header": header}) + rows


def _canonical(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False) + "\n"


def write_packed(path: Path, text: str) -> Path:
    """Writes a text, gzipped where it is large; returns the path, with ``.gz`` where it is.

    Raises OSError.
    """
    from ..files.writing import write_text

    path.parent.mkdir(parents=True, exist_ok=True)
    compressed = path.with_name(path.name + ".gz")
    if len(text) > GZIP_FROM:
        path.unlink(missing_ok=True)
        path = compressed
    else:
        compressed.unlink(missing_ok=True)
    write_text(path, text)
    return path
