"""Updates of parameters from the operators of an optimizer's step.

An update of simdev is one op a parameter; PyTorch runs several operators over one parameter, or one
over all. What they take together is divided over the parameters by their elements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from .events import OPTIMIZER, Event, is_shape

if TYPE_CHECKING:
    import torch

EACH_ONCE = (
    "_fused_adamw_", "_fused_adam_", "_fused_sgd_", "_fused_adagrad_", "_foreach_addcdiv_",
    "addcdiv_",
    "_foreach_mul_", "mul_", "_foreach_add_", "add_",
)  # fmt: skip
"""Operators of which the first that there is touches every parameter once, as its first tensor or
list of them.
"""

KINDS = {
    "Adam": "adam_update",
    "AdamW": "adamw_update",
    "Adagrad": "adagrad_update",
    "RMSprop": "rmsprop_update",
}


def optimizer_step(event: Event) -> Event | None:
    """The optimizer's step that an operator lies in."""
    return next((one for one in event.above() if one.name.startswith(OPTIMIZER)), None)


def update_rows(
    step: Event,
    operators: Sequence[Event],
    present: set[str],
    types: Mapping[tuple[int, ...], torch.dtype],
) -> list[tuple[dict[str, Any], float]]:
    """(row, its share of the step's time) of every parameter that the operators of an optimizer's
    step update.

    ``present`` are the names of operators of all steps, which tell the kind of optimizer.
    """
    from .replay import DTYPES

    names = {f"aten::{name}": name for name in EACH_ONCE}
    own = {event.name for event in operators}
    chosen = next((name for name in names if name in own), None)
    kind = _kind(step.name, present)
    if chosen is None or kind is None:
        return []
    found: list[tuple[tuple[int, ...], str]] = []
    for event in operators:
        shapes, kinds = event.args.get("Input Dims"), event.args.get("Input type")
        if (
            event.name != chosen
            or not isinstance(shapes, list)
            or not isinstance(kinds, list)
            or not shapes
            or not kinds
        ):
            continue
        listed = shapes[0] if kinds[0] == "TensorList" else [shapes[0]]
        for shape in listed:
            if not is_shape(shape):
                return []
            dtype = DTYPES.get(str(kinds[0])) or types.get(tuple(shape))
            found.append((tuple(shape), str(dtype or "torch.float32").removeprefix("torch.")))
    total = sum(prod(shape) for shape, _ in found)
    return (
        [(_row(kind, shape, dtype), prod(shape) / total) for shape, dtype in dict.fromkeys(found)]
        if total
        else []
    )


def _kind(step: str, present: set[str]) -> str | None:
    """The kind of update by the step's name (``Optimizer.step#SGD.step``)."""
    name = step.partition("#")[2].partition(".")[0]
    if name == "SGD":
        momentum = any("mul_" in one or "sgd_" in one for one in present)
        return "sgd_momentum_update" if momentum else "sgd_update"
    return KINDS.get(name)


def _row(kind: str, shape: Sequence[int], dtype: str) -> dict[str, Any]:
    operands = [list(shape), list(shape)]
    return {
        "op": kind,
        "attrs": {},
        "in": operands,
        "dt": [dtype, dtype],
        "out": [],
        "phase": "opt",
    }
