"""Finds a model to be measured by its name, and builds it on a device in a precision.

``profiles`` calls ``resolve`` and ``built``. The models that ship are in ``torch_models``. A new
precision in PRECISIONS needs its flags or its cast here, and its name in the help of
``simdev profile``.
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ..ground.errors import InputError
from .torch_models import MODELS
from .tracing import Loss, argument_names, optimizer_named, with_argument_names

# Extracts the tensors of a batch however they are nested, and the loss of whatever a model returns.
# A batch may be one tensor, several, a dict as the tokenizers of Hugging Face return it, or an
# object of the user's own class. Measuring needs its tensors alone, to make fake ones and to move
# them to a device.


def flat_step(
    module: nn.Module, batch: Any, loss: Callable[..., Any] | None
) -> tuple[tuple[Tensor, ...], Callable[..., Tensor]]:
    """The tensors of a batch, and a function ``(module, *tensors)`` that gives the step's loss.

    A mapping is passed as keyword arguments where the loss has parameters of these names, a tuple
    or a list as positional arguments, any other batch as a single argument. Without a ``loss`` the
    module is called with the batch and returns its loss itself. Raises InputError for a batch
    without tensors.
    """
    args, kwargs = _arguments(module if loss is None else loss, batch, skipped=loss is not None)
    # Arguments keep their names, which become the names of the graph's inputs.
    whole = [*args, *kwargs.values()]
    named = list(_tensors(whole, ""))
    if not named:
        raise InputError("inputs: no tensor among them")

    def flat(module: nn.Module, *tensors: Tensor) -> Tensor:
        filled = _filled(whole, iter(tensors))
        positional = filled[: len(args)]
        keywords = dict(zip(kwargs, filled[len(args) :], strict=True))
        if loss is None:
            return loss_of(module(*positional, **keywords))
        return loss_of(loss(module, *positional, **keywords))

    names = _leaf_names(module if loss is None else loss, whole, list(kwargs), loss is not None)
    return tuple(tensor for _, tensor in named), with_argument_names(flat, "module_", *names)


def loss_of(outputs: Any) -> Tensor:
    """The loss in what a model or a loss function returns: the tensor itself, its entry or
    attribute ``loss``, or the first of a tuple.

    Raises InputError where that is not one floating-point number.
    """
    value = outputs
    if isinstance(outputs, Mapping):
        value = outputs.get("loss")
    elif not isinstance(outputs, Tensor) and getattr(outputs, "loss", None) is not None:
        value = outputs.loss
    elif isinstance(outputs, (tuple, list)) and outputs:
        value = outputs[0]
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.is_floating_point():
        shape = f" of shape {list(value.shape)}" if isinstance(value, Tensor) else ""
        raise InputError(
            "the step returns no loss (one number, or an object with one as its loss), got "
            f"{type(value).__name__}{shape}"
        )
    return value.reshape(()) if value.dim() else value


def _arguments(
    function: Callable[..., Any], batch: Any, skipped: bool
) -> tuple[list[Any], dict[str, Any]]:
    """The positional and keyword arguments of a batch. ``skipped`` says that the function's first
    parameter is the module.
    """
    if isinstance(batch, Mapping):
        keywords = {str(name): value for name, value in batch.items()}
        try:
            signature = inspect.signature(getattr(function, "forward", function))
            signature.bind(*[None] * skipped, **keywords)
        except (TypeError, ValueError):
            return [batch], {}
        return [], keywords
    # A named tuple is passed as a single object: a loss written for one expects it whole.
    if isinstance(batch, (tuple, list)) and not hasattr(batch, "_fields"):
        return list(batch), {}
    return [batch], {}


def _leaf_names(
    function: Callable[..., Any], whole: Sequence[Any], keywords: Sequence[str], skipped: bool
) -> list[str]:
    """A name for each tensor: the name of its argument, and its path inside the argument."""
    names = [*argument_names(function)[skipped:], *(f"input_{i}" for i in range(len(whole)))]
    names = [*names[: len(whole) - len(keywords)], *keywords]
    paths = [
        path.replace(".", "_")
        for name, value in zip(names, whole, strict=True)
        for path, _ in _tensors(value, name)
    ]
    # Names of parameters must be distinct identifiers.
    plain = [path if path.isidentifier() else f"input_{i}" for i, path in enumerate(paths)]
    return [name if plain.count(name) == 1 else f"{name}_{i}" for i, name in enumerate(plain)]


def _children(value: Any) -> list[tuple[str, Any]]:
    """The parts of a container or a dataclass instance, by name or index; none otherwise."""
    if isinstance(value, Mapping):
        return [(str(name), part) for name, part in value.items()]
    if isinstance(value, (tuple, list)):
        return [(str(i), part) for i, part in enumerate(value)]
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value)]
        return [(name, getattr(value, name)) for name in names if hasattr(value, name)]
    return []


def _tensors(value: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    for name, part in _children(value):
        yield from _tensors(part, f"{path}.{name}" if path else name)


def _filled(value: Any, tensors: Iterator[Tensor]) -> Any:
    """The value with its tensors replaced, in the order in which ``_tensors`` yields them."""
    if isinstance(value, Tensor):
        return next(tensors)
    parts = [(name, _filled(part, tensors)) for name, part in _children(value)]
    if all(new is old for (_, new), (_, old) in zip(parts, _children(value), strict=True)):
        return value
    if isinstance(value, MutableMapping):
        # A copy keeps the mapping's class and its other attributes (methods, encodings).
        filled = copy.copy(value)
        for key, (_, part) in zip(value, parts, strict=True):
            filled[key] = part
        return filled
    if isinstance(value, Mapping):
        return {key: part for key, (_, part) in zip(value, parts, strict=True)}
    if isinstance(value, (tuple, list)):
        news = [part for _, part in parts]
        return type(value)(*news) if hasattr(value, "_fields") else type(value)(news)
    filled = copy.copy(value)
    for name, part in parts:
        object.__setattr__(filled, name, part)
    return filled


Builder = Callable[..., Any]
PRECISIONS = ("float32", "tf32", "bfloat16", "autocast")
"""The precisions that a model can be measured in: float32 without and with TF32 in products and
convolutions, everything in bfloat16, and float32 under autocast to bfloat16.
"""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A model to be measured: its title, its builder, the sizes passed to the builder, its
    optimizer, and one of PRECISIONS (None: as the builder makes it).
    """

    title: str
    build: Builder
    sizes: Mapping[str, int]
    optimizer: str
    precision: str | None = None

    @property
    def file_title(self) -> str:
        """The title, with the precision where one is set."""
        return self.title if self.precision is None else f"{self.title}-{self.precision}"

    def about(self) -> dict[str, Any]:
        """The entries about the model in a profile's header."""
        sizes = sizes_of(self.build, self.sizes)
        about = {"model": self.title, "batch": sizes.get("batch"), "sizes": sizes}
        return about | {"optimizer": self.optimizer}

    @property
    def graph_name(self) -> str:
        """The title with the batch and every size that is not the function's default."""
        default, sizes = sizes_of(self.build, {}), sizes_of(self.build, self.sizes)
        batch = [f"b{sizes['batch']}"] if "batch" in sizes else []
        special = [
            f"{name}{size}"
            for name, size in self.sizes.items()
            if name != "batch" and size != default.get(name)
        ]
        return "-".join([self.file_title, *batch, *special])


def _parameters(build: Builder) -> Mapping[str, inspect.Parameter] | None:
    """The arguments of a builder; None where Python does not know them."""
    try:
        return inspect.signature(build).parameters
    except (TypeError, ValueError):
        return None


def sizes_of(build: Builder, chosen: Mapping[str, int]) -> dict[str, int]:
    """All sizes of a builder: its integer defaults, replaced by the chosen sizes."""
    parameters = (_parameters(build) or {}).items()
    return {name: p.default for name, p in parameters if type(p.default) is int} | dict(chosen)


def resolve(
    name: str,
    device: str,
    sizes: Mapping[str, int],
    optimizer: str | None,
    precision: str | None = None,
) -> Chosen:
    """The model of a name, with its sizes on a device. Raises InputError."""
    if precision is not None and precision not in PRECISIONS:
        raise InputError(f'precision: must be one of {", ".join(PRECISIONS)}, got "{precision}"')
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
        mine = optimizer or model.optimizer
        chosen = Chosen(name, model.build, {**usual, **sizes}, mine, precision)
    else:
        path, _, function = name.rpartition(":")
        if name.endswith(".py"):
            raise InputError(f"which of its functions? Write {name}:function", name)
        if not path.endswith(".py"):
            raise InputError(
                f'no model "{name}"; there are {", ".join(MODELS)}, or write '
                "path/to/file.py:function"
            )
        build = _load(path, function)
        mine, title = optimizer or "sgd-momentum", function.replace("_", "-")
        chosen = Chosen(title, build, sizes, mine, precision)
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
    folder = str(Path(path).resolve().parent)
    if folder not in sys.path:
        # The file can import modules of its folder, also later, when the function runs.
        sys.path.append(folder)
    before = sys.modules.get(spec.name)
    sys.modules[spec.name] = module  # dataclasses look up their module by name
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        # The file is the user's: any exception is a problem of the input.
        raise InputError(f"cannot be imported: {type(error).__name__}: {error}", path) from error
    finally:
        if before is not None:  # a file with the name of an imported module must not replace it
            sys.modules[spec.name] = before
    build = getattr(module, function, None)
    if not callable(build):
        names = ", ".join(_functions(module))
        there = f"; there are {names}" if names else ""
        raise InputError(f'no function "{function}"{there}', path)
    if isinstance(build, type) and issubclass(build, nn.Module):
        reason = f"{function} is a module; name a function that returns (module, inputs, loss)"
        raise InputError(reason, path)
    return build  # type: ignore[no-any-return]


def _functions(module: ModuleType) -> list[str]:
    """The functions that a file defines itself."""
    return [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__
    ]


def built(model: Chosen, name: str, device: str) -> tuple[nn.Module, tuple[Tensor, ...], Loss]:
    """Calls a builder; returns (module, tensors of the batch, loss), with module and tensors on the
    device.

    The builder may be the user's. Raises InputError.
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
    module, tensors = module.to(device).train(), tuple(tensor.to(device) for tensor in batch)
    if model.precision == "bfloat16":
        module = module.to(torch.bfloat16)
        tensors = tuple(t.bfloat16() if t.is_floating_point() else t for t in tensors)
    return module, tensors, _autocast(flat, device) if model.precision == "autocast" else flat


def _autocast(loss: Loss, device: str) -> Loss:
    @wraps(loss)
    def cast(module: nn.Module, *tensors: Tensor) -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            return loss(module, *tensors)

    return cast


@contextmanager
def precision_flags(precision: str | None, device: str) -> Iterator[None]:
    """Sets PyTorch's flags for a precision: whether products of float32 may run in TF32.

    Raises InputError for TF32 on anything but a GPU.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    if precision == "tf32" and device != "cuda":
        raise InputError("precision: tf32 is a mode of CUDA devices")
    try:
        if precision in ("float32", "tf32"):
            matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def alike(module: nn.Module, other: nn.Module) -> bool:
    """Whether two modules have equal parameters and buffers, by name, shape and dtype. The modules
    of one builder for two batch sizes mostly do.
    """
    looks = [
        [(name, tensor.shape, tensor.dtype) for name, tensor in each.state_dict().items()]
        for each in (module, other)
    ]
    return type(module) is type(other) and looks[0] == looks[1]


def _called(model: Chosen, name: str, device: str) -> Any:
    """The builder's result. The builder may be the user's: any exception becomes an InputError."""
    try:
        if device != "cpu":
            try:
                # Tensors that are not parameters (attributes, weights of a loss, the batch itself)
                # are also made on the device, unless the code says otherwise.
                with torch.device(device):
                    return model.build(**model.sizes)
            except RuntimeError:
                pass
        return model.build(**model.sizes)
    except (Exception, SystemExit) as error:
        raise InputError(f"{name}: {type(error).__name__}: {error}") from error
