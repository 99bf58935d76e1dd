"""Verbs over rows or channels: normalisations, softmax and the loss of a classifier.

Normalisations have parameters of their own at the scope ``name``. Their statistics are float32
whatever the dtype of the tensor, as in PyTorch's kernels.
"""

from __future__ import annotations

from math import prod

from ..backward import Gradients, gradient, gradients_of
from ..builder import Call, Value, record


def batch_norm(x: Value, name: str = "bn") -> Value:
    """(n, c, h, w) normalised a channel over batch and positions."""
    channels = x.shape[1]
    with x.step.scope(name):
        trained = [x.step.parameter(part, channels) for part in ("weight", "bias")]
        running = [x.step.buffer(part, channels) for part in ("running_mean", "running_var")]
        statistics = [((channels,), "float32")] * 2
        outputs = [x.shape_dtype, *statistics]
        return x.step.record("batch_norm", [x, *trained, *running], outputs, training=True)[0]


def layer_norm(x: Value, name: str = "norm") -> Value:
    """(.., width) normalised a row."""
    return _row_norm("layer_norm", x, name, ("weight", "bias"))


def rms_norm(x: Value, name: str = "norm") -> Value:
    """(.., width) divided by its root mean square, a row."""
    return _row_norm("rms_norm", x, name, ("weight",))


def _row_norm(kind: str, x: Value, name: str, parts: tuple[str, ...]) -> Value:
    """With a statistic a row for each parameter: mean and deviation, or the root mean square."""
    width = x.shape[-1]
    with x.step.scope(name):
        trained = [x.step.parameter(part, width) for part in parts]
        outputs = [x.shape_dtype, *[((*x.shape[:-1], 1), "float32")] * len(parts)]
        return x.step.record(kind, [x, *trained], outputs, normalized_shape=[width])[0]


def softmax(x: Value, dim: int) -> Value:
    """Weights that sum to 1 along a dimension."""
    return record("softmax", x, dim=dim)


def cross_entropy(logits: Value, labels: Value, name: str = "loss") -> Value:
    """The mean over all rows of minus the log-probability of the label.

    Logits are (.., classes), labels (..).
    """
    rows = prod(logits.shape[:-1])
    with logits.step.scope(name):
        chances = record("log_softmax", logits.view(rows, logits.shape[-1]), dim=1)
        # The loss, and the sum of the labels' weights that its backward divides by.
        outputs = [((), logits.dtype)] * 2
        return logits.step.record("nll_loss", [chances, labels.view(rows)], outputs, reduction=1)[0]


@gradient("batch_norm")
def _batch_norm(call: Call, dy: Value) -> Gradients:
    (x, weight, bias, *running), (_, *statistics) = call.inputs, call.outputs
    operands = dy, x, weight, *running, *statistics
    return gradients_of((x, weight, bias), "batch_norm_backward", operands, train=True)


@gradient("layer_norm", "rms_norm")
def _row_norm_backward(call: Call, dy: Value) -> Gradients:
    (x, *trained), (_, *statistics) = call.inputs, call.outputs
    operands = dy, x, *statistics, *trained
    return gradients_of(call.inputs, f"{call.kind}_backward", operands, **call.attrs)


@gradient("softmax", "log_softmax")
def _softmax(call: Call, dy: Value) -> Gradients:
    (x,), (y,) = call.inputs, call.outputs
    yield x, record(f"{call.kind}_backward", dy, y, **call.attrs, input_dtype=x.dtype)


@gradient("nll_loss")
def _nll_loss(call: Call, dy: Value) -> Gradients:
    (chances, labels), (_, weight) = call.inputs, call.outputs
    operands = dy, chances, labels, weight
    yield (chances, record("nll_loss_backward", *operands, shape=chances.shape, **call.attrs))
