"""The tensors of a batch however they are nested, and the loss of whatever a model returns.

People hand a step one tensor, several, a dict of them as the tokenizers of Hugging Face give it, or
objects of their own. Measuring needs the tensors alone: to make fake ones of them, to move them.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor, nn

from ..ground.errors import InputError


def flat_step(
    module: nn.Module, batch: Any, loss: Callable[..., Any] | None
) -> tuple[tuple[Tensor, ...], Callable[..., Tensor]]:
    """The tensors of a batch, and a function ``(module, *tensors)`` that gives the step's loss.

    A mapping is given by keywords where the loss names its keys, a tuple or a list by place,
    anything else as the one argument. Without a ``loss`` the module is called with the batch and
    tells its loss itself. Raises InputError: a batch without tensors.
    """
    args, kwargs = _arguments(module if loss is None else loss, batch, skipped=loss is not None)
    # Arguments keep their names, so that the inputs of the graph bear them.
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
    kind = inspect.Parameter.POSITIONAL_ONLY
    parameters = [inspect.Parameter(name, kind) for name in ("module_", *names)]
    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return tuple(tensor for _, tensor in named), flat


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
    """Positional arguments and keywords of a batch; ``skipped``: the module comes before them."""
    if isinstance(batch, Mapping):
        keywords = {str(name): value for name, value in batch.items()}
        try:
            signature = inspect.signature(getattr(function, "forward", function))
            signature.bind(*[None] * skipped, **keywords)
        except (TypeError, ValueError):
            return [batch], {}
        return [], keywords
    # A named tuple is one object to the loss that takes it: it would be a plain tuple otherwise.
    if isinstance(batch, (tuple, list)) and not hasattr(batch, "_fields"):
        return list(batch), {}
    return [batch], {}


def _leaf_names(
    function: Callable[..., Any], whole: Sequence[Any], keywords: Sequence[str], skipped: bool
) -> list[str]:
    """A name for each tensor: its argument, and its path in it where that holds several."""
    names = [*_positional_names(function)[skipped:], *(f"input_{i}" for i in range(len(whole)))]
    names = [*names[: len(whole) - len(keywords)], *keywords]
    paths = [
        path.replace(".", "_")
        for name, value in zip(names, whole, strict=True)
        for path, _ in _tensors(value, name)
    ]
    # Names of parameters must be identifiers, and each another.
    plain = [path if path.isidentifier() else f"input_{i}" for i, path in enumerate(paths)]
    return [name if plain.count(name) == 1 else f"{name}_{i}" for i, name in enumerate(plain)]


def _positional_names(function: Callable[..., Any]) -> list[str]:
    try:
        # A loss may be written in C, or take *tensors: then Python has no names for them.
        signature = inspect.signature(getattr(function, "forward", function))
    except (TypeError, ValueError):
        return []
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return [name for name, p in signature.parameters.items() if p.kind in kinds]


def _children(value: Any) -> list[tuple[str, Any]]:
    """The parts of a container or of an object that carries data, by name or place."""
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
    """A value with its tensors exchanged, in the order in which ``_tensors`` tells them."""
    if isinstance(value, Tensor):
        return next(tensors)
    parts = [(name, _filled(part, tensors)) for name, part in _children(value)]
    if all(new is old for (_, new), (_, old) in zip(parts, _children(value), strict=True)):
        return value
    if isinstance(value, MutableMapping):
        # A copy, so that what else the mapping knows (methods, encodings) stays with it.
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
