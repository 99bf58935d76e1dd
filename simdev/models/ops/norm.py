"""Normalisations, each with parameters of its own; ``name`` is their scope.

Statistics are float32.
"""

from __future__ import annotations

from ..backward import Gradients, gradient
from ..step import Call, Value, record_like


def batch_norm(x: Value, name: str = "bn") -> Value:
    """(n, c, h, w) normalised a channel over batch and positions."""
    channels = x.shape[1]
    with x.step.scope(name):
        trained = [x.step.parameter(part, channels) for part in ("weight", "bias")]
        running = [x.step.buffer(part, channels) for part in ("running_mean", "running_var")]
        outputs = [(x.shape, x.dtype), ((channels,), "float32"), ((channels,), "float32")]
        return x.step.record("batch_norm", (x, *trained, *running), outputs, {"training": True})[0]


def layer_norm(x: Value, name: str = "norm") -> Value:
    """(.., width) normalised a row."""
    width, rows = x.shape[-1], ((*x.shape[:-1], 1), "float32")
    with x.step.scope(name):
        trained = [x.step.parameter(part, width) for part in ("weight", "bias")]
        outputs = [(x.shape, x.dtype), rows, rows]
        return x.step.record("layer_norm", (x, *trained), outputs, {"normalized_shape": [width]})[0]


def rms_norm(x: Value, name: str = "norm") -> Value:
    """(.., width) divided by its root mean square, a row."""
    width = x.shape[-1]
    with x.step.scope(name):
        weight = x.step.parameter("weight", width)
        outputs = [(x.shape, x.dtype), ((*x.shape[:-1], 1), "float32")]
        return x.step.record("rms_norm", (x, weight), outputs, {"normalized_shape": [width]})[0]


@gradient("batch_norm")
def _batch_norm(call: Call, dy: Value) -> Gradients:
    (x, weight, bias, *running), (_, *statistics) = call.inputs, call.outputs
    operands, wanted = (dy, x, weight, *running, *statistics), (x, weight, bias)
    yield from zip(
        wanted, record_like("batch_norm_backward", operands, wanted, {"train": True}), strict=True
    )


@gradient("layer_norm", "rms_norm")
def _row_norm(call: Call, dy: Value) -> Gradients:
    (x, *trained), (_, *statistics) = call.inputs, call.outputs
    operands = (dy, x, *statistics, *trained)
    yield from zip(
        call.inputs,
        record_like(f"{call.kind}_backward", operands, call.inputs, call.attrs),
        strict=True,
    )
