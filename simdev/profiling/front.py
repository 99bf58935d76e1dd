"""From the name of a model to a graph file and a profile file."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError

if TYPE_CHECKING:
    from .capture import Capture
    from .measure import Measured

Builder = Callable[..., Any]
GZIP_FROM = 10**6


def model_names() -> list[tuple[str, int, str]]:
    """(name, batch, optimizer) of the models that are ready to be measured."""
    _require_torch()
    from .torch_models import MODELS

    return [(name, batch, optimizer) for name, (_, batch, optimizer) in MODELS.items()]


def profile_model(
    name: str,
    device: str = "cpu",
    batch: int | None = None,
    seconds: float = 240.0,
    out_dir: str | os.PathLike[str] = "profiles",
    progress: Callable[[int, int, str], None] | None = None,
    optimizer: str | None = None,
    flush: bool | None = None,
) -> tuple[Path, Path]:
    """Captures and measures a model's training step; returns the paths of its graph and its profile.

    ``name`` is one of ``model_names()`` or ``path/to/file.py:function``, a function that returns (module, inputs,
    loss) and may take ``batch``. ``device`` is "cpu" or "cuda", ``seconds`` about the time that measuring may take.
    ``progress`` is called as (done, total, kind of op). ``flush`` empties the caches before each sample (default: on
    CUDA only). Files of over 1 MB are gzipped. Raises InputError.
    """
    _require_torch()
    import torch

    from .capture import capture
    from .measure import measure
    from .provenance import describe, device_kind
    from .timers import require_cuda

    if device not in ("cpu", "cuda"):
        raise InputError(f'device: must be cpu or cuda, got "{device}"')
    if device == "cuda":
        require_cuda()
    title, build, batch, optimizer = _resolve(name, batch, optimizer)
    torch.manual_seed(0)
    module, inputs, loss = _built(build, batch, name)
    module, inputs = module.to(device).train(), tuple(tensor.to(device) for tensor in inputs)
    graph_name = title if batch is None else f"{title}-b{batch}"
    captured = capture(module, inputs, loss, optimizer, graph_name)
    kind = device_kind(device)
    flush = device == "cuda" if flush is None else flush
    measured = measure(captured, module, inputs, loss, optimizer, device, kind, seconds, flush, progress)
    about = {"model": title, "batch": batch, "optimizer": optimizer, **describe(device)}
    folder = Path(out_dir)
    return (
        _write(folder / "graphs" / f"{graph_name}.json", _graph_text(captured, about)),
        _write(folder / f"{title}.{kind}.jsonl", _profile_text(measured, about)),
    )


def _require_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise InputError('profiling needs PyTorch: install the extra "simdev[torch]"')


def _resolve(name: str, batch: int | None, optimizer: str | None) -> tuple[str, Builder, int | None, str]:
    """Title, builder, batch and optimizer of a model's name."""
    from .torch_models import MODELS
    from .updates import optimizer as optimizer_named

    if batch is not None and batch < 1:
        raise InputError(f"batch: must be at least 1, got {batch}")
    if optimizer is not None:
        optimizer_named(optimizer)
    if name in MODELS:
        build, usual, usual_optimizer = MODELS[name]
        return name, build, batch or usual, optimizer or usual_optimizer
    path, _, function = name.rpartition(":")
    if not path.endswith(".py"):
        raise InputError(f'no model "{name}"; there are {", ".join(MODELS)}, or write path/to/file.py:function')
    return function.replace("_", "-"), _load(path, function), batch, optimizer or "sgd-momentum"


def _load(path: str, function: str) -> Builder:
    """A function of a Python file. Raises InputError."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None or not os.path.isfile(path):
        raise InputError("no such file", path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        # The file is the user's: whatever it raises is a problem of the question, told with its place.
        raise InputError(f"cannot be imported: {type(error).__name__}: {error}", path) from error
    found = getattr(module, function, None)
    if not callable(found):
        raise InputError(f'no function "{function}"', path)
    return found  # type: ignore[no-any-return]


def _built(build: Builder, batch: int | None, name: str) -> tuple[Any, tuple[Any, ...], Any]:
    import torch

    try:
        takes_batch = batch is not None and "batch" in inspect.signature(build).parameters
    except (TypeError, ValueError):
        takes_batch = False
    if batch is not None and not takes_batch:
        raise InputError(f"{name}: the function takes no argument named batch")
    made = build(batch=batch) if takes_batch else build()
    if not (isinstance(made, tuple) and len(made) == 3 and isinstance(made[0], torch.nn.Module) and callable(made[2])):
        raise InputError(f"{name}: must return (module, inputs, loss)")
    inputs = (made[1],) if isinstance(made[1], torch.Tensor) else tuple(made[1])
    if not all(isinstance(tensor, torch.Tensor) for tensor in inputs):
        raise InputError(f"{name}: inputs must be tensors")
    return made[0], inputs, made[2]


def _graph_text(captured: Capture, about: Mapping[str, Any]) -> str:
    """The graph, an op a line."""
    provenance = {key: about[key] for key in ("model", "batch", "optimizer", "created", "tool")}
    provenance["captured"] = "operators as PyTorch dispatches them in the joint forward and backward, views folded"
    provenance["torch"] = about["device"]["torch"]
    head = {"version": 1, "name": captured.graph["name"], "provenance": provenance}
    lines = ",\n  ".join(json.dumps(op) for op in captured.graph["ops"])
    return json.dumps(head)[:-1] + f', "ops": [\n  {lines}\n]}}\n'


def _profile_text(measured: Measured, about: Mapping[str, Any]) -> str:
    """Canonical JSON lines: the header, then a row a line."""
    rows = "".join(_canonical(row) for row in measured.rows)
    header = {
        "schema": 1,
        **about,
        "method": measured.method,
        "noise": measured.noise,
        "step": measured.step,
        "unmeasured": measured.unmeasured,
        "sha256_of_rows": hashlib.sha256(rows.encode()).hexdigest(),
    }
    return _canonical({"v": 1, "header": header}) + rows


def _canonical(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False) + "\n"


def _write(path: Path, text: str) -> Path:
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
