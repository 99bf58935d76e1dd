"""Long short-term memory, unrolled: one op a step of time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..backward import Gradients, Made, gradient_of_all
from ..step import Call, Step, Value, record, record_like
from .movement import zeros

State = tuple[Value, Value]
"""Output and memory of a cell, each (n, hidden)."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The weights of an LSTM layer, which all its steps share: (4, hidden, features), (4, hidden,
    hidden), (4, hidden).

    ``path`` is the scope of the layer; step t runs at path@t.
    """

    path: str
    from_input: Value
    from_state: Value
    bias: Value


def cell(step: Step, name: str, features: int, hidden: int) -> Cell:
    """A cell with weights of its own at the scope ``name``."""
    with step.scope(name):
        shapes = {
            "from_input": (4, hidden, features),
            "from_state": (4, hidden, hidden),
            "bias": (4, hidden),
        }
        return Cell(name, **{part: step.parameter(part, *shape) for part, shape in shapes.items()})


def lstm_cell(of: Cell, x: Value, state: State | None, time: int) -> State:
    """One step: x (n, features) and the state before (None: zeros) to the state after."""
    step, hidden = x.step, of.bias.shape[1]
    with step.scope(f"{of.path}@{time}"):
        if state is None:
            start = zeros(x, x.shape[0], hidden)
            state = start, start
        kept = ((x.shape[0], hidden), x.dtype)
        gates = ((x.shape[0], 4, hidden), x.dtype)
        operands = (x, *state, of.from_input, of.from_state, of.bias)
        h, c, _ = step.record("lstm_cell", operands, [kept, kept, gates])
        return h, c


def lstm(of: Cell, steps: Iterable[tuple[int, Value]]) -> dict[int, Value]:
    """Outputs of a layer by time, over inputs (time, x) in the order in which they run."""
    found: dict[int, Value] = {}
    state: State | None = None
    for time, x in steps:
        state = lstm_cell(of, x, state, time)
        found[time] = state[0]
    return found


@gradient_of_all("lstm_cell")
def _lstm_cell(call: Call, made: Made) -> Gradients:
    x, h, c, from_input, from_state, bias = call.inputs
    _, memory, gates = call.outputs
    known = next(dy for dy in made if dy is not None)
    dh, dc = (dy if dy is not None else record("zeros_like", (known,), h.shape) for dy in made[:2])
    operands = dh, dc, c, memory, gates, from_input, from_state
    *states, dgates = record_like("lstm_cell_backward_input", operands, (x, h, c, gates))
    yield from zip((x, h, c), states, strict=True)
    weights = from_input, from_state, bias
    yield from zip(
        weights, record_like("lstm_cell_backward_weight", (dgates, x, h), weights), strict=True
    )
