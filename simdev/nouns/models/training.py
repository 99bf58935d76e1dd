"""From a recorded forward to a training step: the builders' decorator, inputs and losses."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from inspect import Parameter
from typing import Any

from ...ground.errors import refuse
from ...ground.units import is_count
from ..graph import Graph
from .backward import training_graph
from .builder import StepBuilder, Value
from .ops import cross_entropy


def model(
    name: str, optimizer: str, dtype: str = "float32"
) -> Callable[[Callable[..., Value]], Callable[..., Graph]]:
    """Makes a builder of training steps of what records a forward and returns its loss.

    The builder takes the sizes of the forward and, behind them, ``dtype`` and ``optimizer``, whose
    defaults are given here. ``name`` is that of the graph, with sizes in braces. The builder raises
    InputError for sizes that it does not have or that are no whole numbers >= 1.
    """

    def decorated(forward: Callable[..., Value]) -> Callable[..., Graph]:
        # The forward's first parameter is the StepBuilder, which is made here.
        _, *sizes = inspect.signature(forward).parameters.values()
        defaults = {"dtype": dtype, "optimizer": optimizer}
        texts = (
            Parameter(key, Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation="str")
            for key, default in defaults.items()
        )
        signature = inspect.Signature([*sizes, *texts], return_annotation="Graph")
        known = signature.parameters

        @wraps(forward)
        def build(*args: Any, **dims: Any) -> Graph:
            problems = [
                f"{key}: no such size; {forward.__name__} has {', '.join(known)}"
                for key in dims
                if key not in known
            ]
            # Unknown sizes are reported with the wrong ones, so binding must not stop at them.
            dims = {key: value for key, value in dims.items() if key in known}
            given = signature.bind(*args, **dims)
            problems += _problems(given.arguments, known)
            refuse(problems)
            given.apply_defaults()
            of_step = [given.arguments[key] for key in defaults]
            step = StepBuilder(name.format(**given.arguments), *of_step)
            return training_graph(forward(step, *given.args[: len(sizes)]))

        # For help(), and for the tables of docs/reference/models.md, which list the defaults.
        vars(build)["__signature__"] = signature
        return build

    return decorated


def _problems(given: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> Iterator[str]:
    for name, value in given.items():
        default = parameters[name].default
        # The default tells the kind of a size: bool first, for a bool is an int to Python.
        if isinstance(default, bool):
            if not isinstance(value, bool):
                yield f"{name}: must be true or false, got {value!r}"
        elif isinstance(default, str):
            if not isinstance(value, str):
                yield f"{name}: must be a name, got {value!r}"
        elif not ((value is None and default is None) or (is_count(value) and value >= 1)):
            yield f"{name}: must be a whole number >= 1, got {value!r}"


def images(step: StepBuilder, batch: int, size: int, channels: int = 3) -> Value:
    """A batch of images (n, channels, size, size)."""
    return step.input("images", batch, channels, size, size)


def tokens(step: StepBuilder, name: str, batch: int, length: int) -> Value:
    """A batch of token numbers (n, t)."""
    return step.input(name, batch, length, dtype="int64")


def prediction_loss(scores: Value) -> Value:
    """The cross entropy of scores (.., classes) with the batch's labels."""
    return cross_entropy(scores, scores.step.input("labels", *scores.shape[:-1], dtype="int64"))
