"""Makes the rows of updates from the operators of an optimizer's step.

simdev has one update op for each parameter. PyTorch runs several operators for each parameter in a
loop, or one operator over lists of all parameters. The shapes of a loop's operators show their
parameter; the time of an operator over lists is divided among the parameters by their elements.

``reading`` and ``step`` call it. UPDATE_KINDS lists optimizers by the name of their class;
``simdev.nouns.semantics.kinds`` describes the update op.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import prod

import torch

from ..kinds import Fields, dtype_name
from .events import Event, Events, is_shape
from .replay import ATEN, DTYPES, Types

TOUCH_EACH_ONCE = (
    *("_fused_adamw_", "_fused_adam_", "_fused_sgd_", "_fused_adagrad_"),
    *("_foreach_addcdiv_", "addcdiv_", "_foreach_mul_", "mul_", "_foreach_add_", "add_"),
)
"""Operators of optimizers. The first of them that a step runs touches every parameter once: its
first argument is the parameter, or the list of parameters.
"""

UPDATE_KINDS = {
    "Adam": "adam_update",
    "AdamW": "adamw_update",
    "Adagrad": "adagrad_update",
    "RMSprop": "rmsprop_update",
}

OPTIMIZER = "Optimizer.step"
ACCUMULATES = "torch::autograd::AccumulateGrad"
"""The span in which autograd stores the gradient of a parameter, with its shape and type."""

Parameter = tuple[tuple[int, ...], str]
"""The shape and dtype of a parameter."""

Timed = tuple[Event, int]
"""An operator and its time in ns."""


def optimizers_of(events: Events) -> list[Event]:
    """The steps of optimizers."""
    return [span for span in events.spans if span.name.startswith(OPTIMIZER)]


def gradients_of(events: Events, start: int = 0) -> list[tuple[int, Parameter]]:
    """The moment, in ns, at which autograd stores each gradient, and its parameter; in that order,
    from ``start`` up to the next step of an optimizer.
    """
    spans = (span for span in events.spans if span.name == ACCUMULATES and span.start >= start)
    stored = sorted(spans, key=lambda span: span.start)
    first = stored[0].start if stored else start
    steps = [span.start for span in optimizers_of(events) if span.start >= first]
    return [
        (span.start, (tuple(gradient.shape), dtype_name(DTYPES[gradient.type])))
        for span in stored
        if span.start < min(steps, default=span.end)
        for gradient in span.arguments()[:1]
        if is_shape(gradient.shape) and gradient.type in DTYPES
    ]


def optimizer_steps(events: Events) -> list[Event]:
    """The steps of training, where an optimizer ran two or more: each ends with the optimizer's."""
    ends = sorted(span.end for span in optimizers_of(events))
    if len(ends) < 2:
        return []
    starts = [min(root.start for root in events.roots), *ends]
    return [
        Event(f"step {i}", "user_annotation", start, end, ("", ""), {})
        for i, (start, end) in enumerate(zip(starts, ends, strict=False))
    ]


def update_rows(
    step: Event,
    operators: Sequence[Timed],
    present: set[str],
    types: Types,
    parameters: Sequence[Parameter] = (),
) -> list[tuple[Fields, float]]:
    """For every parameter that an optimizer's step updates, its row and its share of the step's
    time; nothing for an optimizer that is not known.

    ``present`` are the names of the operators of all steps, which show the kind of optimizer.
    ``parameters`` are those with gradients in the backward; they stand in for lists of more than 30
    tensors, whose shapes a trace leaves out.
    """
    kind = update_kind(step.name, present)
    names = {event.name for event, _ in operators}
    chosen = next((name for name in TOUCH_EACH_ONCE if ATEN + name in names), None)
    if chosen is None or kind is None:
        return []
    touched = list(_touched(ATEN + chosen, [event for event, _ in operators], types))
    members = [*parameters] if None in touched else [member for member in touched if member]
    shares = _looped(operators, members) or _by_elements(members)
    # A row for each parameter, even if equal: the step has an op for each.
    return [
        (_update_row(kind, *parameter), shares[parameter])
        for parameter in members
        if shares.get(parameter)
    ]


def _touched(name: str, operators: Sequence[Event], types: Types) -> Iterator[Parameter | None]:
    """The parameters that operators of this name touch; None for a list whose shapes the trace
    leaves out.
    """
    for event in operators:
        for argument in event.arguments()[:1] if event.name == name else ():
            is_list = argument.type == "TensorList"
            shapes = argument.shape if is_list else [argument.shape]
            if not shapes or not all(map(is_shape, shapes)):
                yield None
                continue
            for shape in shapes:
                dtype = DTYPES.get(argument.type) or types.get(tuple(shape), torch.float32)
                yield tuple(shape), dtype_name(dtype)


def _looped(
    operators: Sequence[Timed], parameters: Sequence[Parameter]
) -> Mapping[Parameter, float]:
    """The shares of the parameters in a loop, where every operator works on a parameter's tensor;
    else nothing.
    """
    times: defaultdict[Parameter, int] = defaultdict(int)
    counts = Counter(parameters)
    for event, time in operators:
        first = next(iter(event.arguments()), None)
        if first is None or first.type not in DTYPES or not is_shape(first.shape):
            return {}
        times[tuple(first.shape), dtype_name(DTYPES[first.type])] += time
    total = sum(times.values())
    if not total or set(times) != set(counts):
        return {}
    return {parameter: times[parameter] / count / total for parameter, count in counts.items()}


def _by_elements(parameters: Sequence[Parameter]) -> Mapping[Parameter, float]:
    total = sum(prod(shape) for shape, _ in parameters)
    return {parameter: prod(parameter[0]) / total for parameter in parameters if total}


def update_kind(step: str, present: set[str]) -> str | None:
    """The kind of update by the name of an optimizer's step (``Optimizer.step#SGD.step``)."""
    name = step.partition("#")[2].partition(".")[0]
    if name == "SGD":
        momentum = any("mul_" in operator or "sgd_" in operator for operator in present)
        return "sgd_momentum_update" if momentum else "sgd_update"
    return UPDATE_KINDS.get(name)


def _update_row(kind: str, shape: Sequence[int], dtype: str) -> Fields:
    operands, dtypes = [list(shape)] * 2, [dtype] * 2
    return {"op": kind, "attrs": {}, "in": operands, "dt": dtypes, "out": [], "phase": "opt"}
