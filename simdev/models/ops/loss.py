"""The loss of a classifier."""

from __future__ import annotations

from math import prod

from ..backward import Gradients, gradient
from ..step import Call, Value, record


def cross_entropy(logits: Value, labels: Value, name: str = "loss") -> Value:
    """The mean over all rows of minus the log-probability of the label: logits (.., classes),
    labels (..).
    """
    step, rows = logits.step, prod(logits.shape[:-1])
    with step.scope(name):
        chances = record(
            "log_softmax",
            (logits.view(rows, logits.shape[-1]),),
            (rows, logits.shape[-1]),
            {"dim": 1},
        )
        outputs = [((), logits.dtype), ((), logits.dtype)]
        return step.record("nll_loss", (chances, labels.view(rows)), outputs, {"reduction": 1})[0]


@gradient("nll_loss")
def _nll_loss(call: Call, dy: Value) -> Gradients:
    (chances, labels), (_, weight) = call.inputs, call.outputs
    operands = dy, chances, labels, weight
    yield chances, record("nll_loss_backward", operands, chances.shape, call.attrs)
