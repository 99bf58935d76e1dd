"""Verbs that join, split and choose elements; and long short-term memory, one op a step of time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..backward import Gradients, OutputGradients, gradient, gradient_of_all, gradients_of
from ..builder import Call, Shape, StepBuilder, Value, record


def concat(parts: Sequence[Value], dim: int) -> Value:
    """Tensors side by side along a dimension."""
    whole = sum(part.shape[dim] for part in parts)
    return record("concat", *parts, shape=_with(parts[0].shape, dim, whole), dim=dim)


def split(x: Value, parts: int, dim: int) -> tuple[Value, ...]:
    """So many equal parts along a dimension."""
    return _split(x, [x.shape[dim] // parts] * parts, dim)


def select(x: Value, dim: int, index: int) -> Value:
    """One slice along a dimension, which the result lacks."""
    return record("select", x, shape=x.shape[:dim] + x.shape[dim + 1 :], dim=dim, index=index)


def gather(x: Value, index: Value, dim: int) -> Value:
    """Elements looked up along a dimension by an index of the result's shape."""
    return record("gather", x, index, shape=index.shape, dim=dim)


def zeros(x: Value, *shape: int) -> Value:
    """A state before the first step: zeros of the dtype of x."""
    return x.step.record("zeros", (), [(shape, x.dtype)], size=list(shape))[0]


def _split(x: Value, extents: Sequence[int], dim: int) -> tuple[Value, ...]:
    outputs = [(_with(x.shape, dim, extent), x.dtype) for extent in extents]
    return x.step.record("split", [x], outputs, dim=dim)


def _with(shape: Shape, dim: int, extent: int) -> Shape:
    return (*shape[:dim], extent, *shape[dim + 1 :])


@gradient("concat")
def _concat(call: Call, dy: Value) -> Gradients:
    dim = call.attrs["dim"]
    parts = _split(dy, [part.shape[dim] for part in call.inputs], dim)
    return zip(call.inputs, parts, strict=True)


@gradient_of_all("split")
def _split_backward(call: Call, outputs: OutputGradients) -> Gradients:
    yield call.inputs[0], concat(_filled(outputs, call.outputs), call.attrs["dim"])


def _filled(gradients: OutputGradients, outputs: Sequence[Value]) -> list[Value]:
    """The gradients of these outputs, with zeros for those that nothing reads."""
    # Some gradient is there, for an op without any has no rule called.
    like = next(dy for dy in gradients if dy is not None)
    return [
        record("zeros_like", like, shape=output.shape) if dy is None else dy
        for dy, output in zip(gradients, outputs, strict=True)
    ]


@gradient("select", "gather")
def _chosen(call: Call, dy: Value) -> Gradients:
    x, *index = call.inputs
    sizes = {} if index else {"input_sizes": list(x.shape)}
    operands = dy, *index
    yield (x, record(f"{call.kind}_backward", *operands, shape=x.shape, **call.attrs, **sizes))


State = tuple[Value, Value]
"""Output and memory of a cell, each (n, hidden)."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The weights of an LSTM layer, which all its steps of time share.

    They are (4, hidden, features), (4, hidden, hidden) and (4, hidden), for four gates. ``path`` is
    the scope of the layer; step t runs at path@t.
    """

    path: str
    from_input: Value
    from_state: Value
    bias: Value


def cell(step: StepBuilder, name: str, features: int, hidden: int) -> Cell:
    """A cell with weights of its own at the scope ``name``."""
    with step.scope(name):
        return Cell(
            name,
            step.parameter("from_input", 4, hidden, features),
            step.parameter("from_state", 4, hidden, hidden),
            step.parameter("bias", 4, hidden),
        )


def lstm_cell(of: Cell, x: Value, state: State | None, time: int) -> State:
    """One step: x (n, features) and the state before (None: zeros) to the state after."""
    batch, hidden = x.shape[0], of.bias.shape[1]
    with x.step.scope(f"{of.path}@{time}"):
        if state is None:
            start = zeros(x, batch, hidden)
            state = start, start
        # The gates are kept for the backward, as cuDNN does.
        outputs = [((batch, *extents), x.dtype) for extents in ((hidden,), (hidden,), (4, hidden))]
        operands = x, *state, of.from_input, of.from_state, of.bias
        h, c, _ = x.step.record("lstm_cell", operands, outputs)
        return h, c


def lstm(
    of: Cell, steps: Iterable[tuple[int, Value]], state: State | None = None
) -> tuple[dict[int, Value], State | None]:
    """Outputs of a layer by time, over inputs (time, x) in running order; and its last state."""
    outputs: dict[int, Value] = {}
    for time, x in steps:
        state = lstm_cell(of, x, state, time)
        outputs[time] = state[0]
    return outputs, state


@gradient_of_all("lstm_cell")
def _lstm_cell(call: Call, outputs: OutputGradients) -> Gradients:
    x, h, c, from_input, from_state, bias = call.inputs
    _, memory, gates = call.outputs
    dh, dc = _filled(outputs[:2], call.outputs[:2])
    operands = dh, dc, c, memory, gates, from_input, from_state
    *states, (_, dgates) = gradients_of((x, h, c, gates), "lstm_cell_backward_input", operands)
    yield from states
    weights = from_input, from_state, bias
    yield from gradients_of(weights, "lstm_cell_backward_weight", (dgates, x, h))
