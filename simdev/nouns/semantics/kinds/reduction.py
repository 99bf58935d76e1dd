"""Reductions along dimensions, ops that need whole dimensions (softmax, cumulative sums,
statistics), losses with their gradients, and normalisations.

The attribute ``reduction`` of a loss: 0 none, 1 mean (default), 2 sum, as PyTorch numbers them.

The statistics of batch_norm are reduced over batch and positions: split there, every shard has the
statistics of its own part, and a strategy with statistics of the whole batch pays for their
reduction. Dimensions that layer_norm, group_norm and rms_norm normalise over stay whole. Operations
for each element: forward 8 (mean 1, variance 3, normalise 2, scale 2), RMS 5; backward 9 (batch,
group), 13 (layer) or 11 (RMS).

A reducer of partial results needs a kind that combines them (``COMBINES`` in
``kinds/elementwise.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from ....ground.frozen import FrozenDict
from ..description import (
    ALL,
    Access,
    Axis,
    Call,
    Describer,
    Description,
    Entry,
    Output,
    Shape,
    axes,
    per,
)
from ..registry import Traits, register
from . import Local, broadcast_reads, dimensions, made, numbered, pointwise, register_each, sized

Reducer = Literal["sum", "max", "min", "prod"]

REDUCERS: dict[str, Reducer] = {
    "sum": "sum",
    "mean": "sum",
    "amax": "max",
    "amin": "min",
    "prod": "prod",
    "all": "min",
    "any": "max",
}
"""The reducer of each reduction's partial results; one operation for each element."""

WHOLE = {
    "var": 4,
    "std": 4,
    "logsumexp": 4,
    "argmax": 1,
    "argmin": 1,
    "max": 1,
    "min": 1,
    "norm": 2,
}
"""Reductions whose partial results do not simply add up, so that their dimensions stay whole."""

ALONG = {
    "softmax": ("softmax", 5),
    "safe_softmax": ("softmax", 5),
    "log_softmax": ("softmax", 5),
    "cumsum": ("reduction", 1),
    "sort": ("reduction", 8),
    "flip": ("data_movement", 0),
}
"""Ops that turn each slice into a slice: class and operations for each element (softmax: maximum,
difference, exp, sum, quotient).
"""

_DTYPES = {"all": "bool", "any": "bool", "argmax": "int64", "argmin": "int64"}


def _reduction(name: str, operations: int, reducer: Reducer | None) -> Describer:
    def describe(call: Call) -> Description:
        x = call.inputs[0]
        dims = dimensions(call.attrs.get("dim"), len(x))
        points = numbered(x, () if reducer else dims)
        index: tuple[Entry, ...] = tuple(
            0 if i in dims else axis
            for i, axis in enumerate(points)
            if call.attrs.get("keepdim") or i not in dims
        )
        over = tuple(points[i] for i in dims) if reducer else ()
        # The second output of a maximum or minimum holds its places.
        dtypes = [_DTYPES.get(name), *["int64"] * (len(call.outputs) - 1)]
        outputs = tuple(Output(index, over, reducer or "sum", dtype) for dtype in dtypes)
        return Description(outputs, (Access(points),), (per(operations, *points),))

    return describe


def _along(operations: int) -> Describer:
    def describe(call: Call) -> Description:
        x = call.inputs[0]
        points = numbered(x, dimensions(call.attrs.get("dim"), len(x)))
        # The second output of sort holds places.
        dtypes = (None, *["int64"] * (len(call.outputs) - 1))[: len(call.outputs)]
        outputs = tuple(Output(points, dtype=dtype) for dtype in dtypes)
        reads = (Access(points),) * len(call.inputs)
        return Description(outputs, reads, (per(operations, *points),))

    return describe


def _classes(
    call: Call, operand: int, split: bool
) -> tuple[tuple[Axis, ...], Axis, tuple[Axis, ...]]:
    """The axes of logits[n, c, ..]: all of them, the classes, and the target's axes."""
    shape = call.inputs[operand]
    points = numbered(shape)
    place = 1 if len(shape) > 1 else 0
    c = Axis("c", shape[place], split)
    return (*points[:place], c, *points[place + 1 :]), c, (*points[:place], *points[place + 1 :])


def _reduced(call: Call, rows: tuple[Axis, ...]) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
    """The index of a loss, and the rows that it is summed over (all or none)."""
    return ((), rows) if int(call.attrs.get("reduction", 1)) else (rows, ())


def _upstream(call: Call, rows: tuple[Axis, ...]) -> Access:
    """The read of the loss's gradient: one number, or one for each row."""
    return Access(() if call.inputs[0] == () else rows)


def nll_loss(call: Call) -> Description:
    """Minus the sum over n of logp[n, target[n]].

    One class is looked up: a split along c is a reduction.
    """
    points, c, rows = _classes(call, 0, True)
    index, over = _reduced(call, rows)
    return Description(
        outputs=(Output(index, (*over, c)), *(Output((), rows) for _ in call.outputs[1:])),
        inputs=(
            Access(points, at_most=rows),
            Access(rows),
            *(Access((c,)) for _ in call.inputs[2:]),
        ),
        flops=(per(Fraction(2, max(1, c.size)), *points),),
    )


def nll_loss_backward(call: Call) -> Description:
    """dlogp[n, c] = - dloss / count where c is target[n], else 0; only the shape of logp
    is used.
    """
    points, c, rows = _classes(call, 1, True)
    others = (Access(() if shape == () else (c,)) for shape in call.inputs[3:])
    reads = _upstream(call, rows), Access(points, read=False), Access(rows), *others
    return made(points, reads, Fraction(1, max(1, c.size)))


def cross_entropy(call: Call) -> Description:
    """The loss from logits[n, c] and target[n], with log-softmax inside: the classes stay whole, 5
    operations for each element.
    """
    points, _, rows = _classes(call, 0, False)
    # The second output is the logarithm of the sum of exponentials, kept for the backward.
    outputs = (Output(*_reduced(call, rows)), *(Output(rows) for _ in call.outputs[1:]))
    return Description(outputs, (Access(points), Access(rows)), (per(5, *points),))


def cross_entropy_backward(call: Call) -> Description:
    """Gradient dloss * (softmax(logits)[n, c] - onehot(target[n])[c]): 6 operations for each
    element, 3 with a given lse[n].
    """
    # With the sum of exponentials given, classes are independent and can be split.
    is_given = len(call.inputs) > 3
    points, _, rows = _classes(call, 1, is_given)
    others = (Access(rows) for _ in call.inputs[3:])
    reads = (_upstream(call, rows), Access(points), Access(rows), *others)
    return made(points, reads, 3 if is_given else 6)


def _pointwise_loss(operations: int) -> Describer:
    def describe(call: Call) -> Description:
        points = numbered(call.inputs[0])
        reads = broadcast_reads(call.inputs, points)
        return Description((Output(*_reduced(call, points)),), reads, (per(operations, *points),))

    return describe


_DIMS = "dim (all), keepdim"
for _name, _reducer in REDUCERS.items():
    register(_name, _reduction(_name, 1, _reducer), "reduction", "x", "y", _DIMS)
for _name, _count in WHOLE.items():
    _describe = _reduction(_name, _count, None)
    register(_name, _describe, "reduction", "x", "y, index (int64) or none", _DIMS)
for _name, (_class, _count) in ALONG.items():
    register(_name, _along(_count), _class, "x", "y", "dim")
_BACKWARD = "softmax_backward log_softmax_backward"
register_each(_BACKWARD, _along(4), "softmax", "dy, y", "dx", "dim, input_dtype")

# Operations of the forward and of the backward for each element.
for _name, _count, _backward in (
    ("mse_loss", 3, 3),
    ("l1_loss", 3, 3),
    ("huber_loss", 5, 5),
    ("binary_cross_entropy_with_logits", 7, 6),
):
    _attributes = "reduction"
    register(_name, _pointwise_loss(_count), "elementwise", "x, target", "loss[]", _attributes)
    _operands, _describe = "dloss[], x, target", pointwise(_backward)
    register(f"{_name}_backward", _describe, "elementwise", _operands, "dx", _attributes)
register(
    "nll_loss",
    nll_loss,
    "reduction",
    "logp[n, c], target[n], class weights[c] or none",
    "loss[], total_weight[]",
    "reduction",
)
register(
    "nll_loss_backward",
    nll_loss_backward,
    "elementwise",
    "dloss[], logp[n, c], target[n], total_weight[]",
    "dlogp[n, c]",
    "reduction",
    Traits(own_statistics=True),
)
register(
    "cross_entropy",
    cross_entropy,
    "softmax",
    "logits[n, c], target[n]",
    "loss[], lse[n] or none",
    "reduction",
)
register(
    "cross_entropy_backward",
    cross_entropy_backward,
    "softmax",
    "dloss[], logits[n, c], target[n], lse[n] or none",
    "dlogits[n, c]",
    "reduction",
)


Indexed = Callable[[Shape], tuple[Entry, ...]]
"""A function from a tensor's shape to its index."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """The indices of a normalisation's tensors.

    ``index`` is that of x, whose points are ``points``; a statistic (summed over ``reduced``, where
    shards have their own) and a parameter are indexed by their shapes; the gradient of a parameter
    is summed over ``rows``.
    """

    index: tuple[Entry, ...]
    points: tuple[Axis, ...]
    statistic: Indexed
    parameter: Indexed
    rows: tuple[Axis, ...]
    reduced: tuple[Axis, ...] = ()
    local: Local = field(default=sized())


def _by_channel(call: Call) -> _Layout:
    """The layout of batch_norm: one value for each channel, reduced over the rest."""
    shape = call.inputs[0]
    names = {2: "n c", 3: "n c h", 4: "n c h w", 5: "n c d h w"}[len(shape)]
    points = axes(names, shape)
    c, rest = points[1], (points[0], *points[2:])

    def channelwise(shape: Shape) -> tuple[Entry, ...]:
        # In evaluation some outputs are empty.
        return (c,) if shape == (c.size,) else (ALL,) * len(shape)

    return _Layout(points, points, channelwise, channelwise, rest, rest)


def _by_row(call: Call) -> _Layout:
    """The layout of layer_norm and rms_norm: over normalized_shape, else the last dimension."""
    shape = call.inputs[0]
    count = len(call.attrs.get("normalized_shape", (0,)))
    if not 0 < count <= len(shape):
        raise ValueError(f"normalized_shape: {count} dimensions of {len(shape)}")
    lead = len(shape) - count
    points = numbered(shape, range(lead, len(shape)))
    rows, last = points[:lead], points[lead:]

    def statistic(shape: Shape) -> tuple[Entry, ...]:
        # One value for each row, with the normalised dimensions as ones or left out.
        return (*rows, *(0 for _ in shape[lead:]))

    return _Layout(points, points, statistic, lambda shape: last, rows)


def _by_group(call: Call) -> _Layout:
    """The layout of group_norm: over the channels and positions of a group; a parameter has one
    value for each channel.
    """
    shape, groups = call.inputs[0], int(call.attrs["group"])
    n, g = axes("n g", (shape[0], groups))
    # Channels are numbered through the groups, so a channel is a sum of two axes, of which only the
    # outer can be cut.
    names = " ".join(["j", *(f"d{i}" for i in range(2, len(shape)))])
    j, *positions = axes(names, (shape[1] // groups, *shape[2:]), split=False)
    channel = g * j.size + j
    return _Layout(
        (n, channel, *positions),
        (n, g, j, *positions),
        lambda shape: (n, g),
        lambda shape: (channel,),
        (n, *positions),
        local=sized(N=(n,), C=(g, j), group=(g,)),
    )


def _norm(
    layout_of: Callable[[Call], _Layout],
    operations: int,
    evaluated: int | None = None,
    statistics: int | None = None,
) -> Describer:
    """Describer of y and its statistics, from x and the parameters; with ``statistics``, of dx and
    the gradients of the parameters, from dy, x, this number of statistics, and the parameters.
    ``evaluated``: operations in evaluation.
    """

    def describe(call: Call) -> Description:
        layout, is_back = layout_of(call), statistics is not None
        data = 2 if is_back else 1
        first = data + (statistics or 0)
        trained = evaluated is None or call.attrs.get("training")
        indexed, over = layout.statistic, layout.reduced
        if is_back:
            indexed, over = layout.parameter, layout.rows
        return Description(
            outputs=(
                Output(layout.index),
                *(Output(indexed(shape), over) for shape in call.outputs[1:]),
            ),
            inputs=(
                *[Access(layout.index)] * data,
                *(Access(layout.statistic(shape)) for shape in call.inputs[data:first]),
                *(Access(layout.parameter(shape)) for shape in call.inputs[first:]),
            ),
            flops=(per(operations if trained else evaluated or 0, *layout.points),),
            parameters=tuple(range(first, len(call.inputs))),
            gradients=tuple(range(1, len(call.outputs))) if is_back else (),
            local=layout.local,
        )

    return describe


register(
    "batch_norm",
    _norm(_by_channel, 8, evaluated=4),
    "norm",
    "x[n, c, ..], weight[c], bias[c], running_mean[c], running_var[c]",
    "y[n, c, ..], mean[c], rstd[c]",
    "training",
)
register(
    "batch_norm_backward",
    _norm(_by_channel, 9, statistics=0),
    "norm",
    "dy[n, c, ..], x[n, c, ..], weight[c], running_mean[c], running_var[c], mean[c], rstd[c]",
    "dx[n, c, ..], dweight[c], dbias[c]",
    "train",
    # cuDNN's backward leaves out the default, its only value.
    Traits(own_statistics=True, defaults=FrozenDict({"train": True})),
)
register(
    "layer_norm",
    _norm(_by_row, 8),
    "norm",
    "x, weight, bias (both of normalized_shape, or none)",
    "y, mean, rstd (one a row, normalised dimensions 1; or none)",
    "normalized_shape (default: the last dimension)",
)
register(
    "layer_norm_backward",
    _norm(_by_row, 13, statistics=2),
    "norm",
    "dy, x, mean, rstd, weight, bias (the last two or none)",
    "dx, dweight, dbias",
    "normalized_shape",
)
# The second name is that of PyTorch's own kernel.
register_each(
    "rms_norm fused_rms_norm",
    _norm(_by_row, 5),
    "norm",
    "x, weight or none",
    "y, rstd or none",
    "normalized_shape",
)
register_each(
    "rms_norm_backward fused_rms_norm_backward",
    _norm(_by_row, 11, statistics=1),
    "norm",
    "dy, x, rstd, weight or none",
    "dx, dweight",
    "normalized_shape",
)
register(
    "group_norm",
    _norm(_by_group, 8),
    "norm",
    "x[n, c, ..], weight[c], bias[c]",
    "y[n, c, ..], mean[n, g], rstd[n, g]",
    "N, C, HxW, group",
)
register(
    "group_norm_backward",
    _norm(_by_group, 9, statistics=2),
    "norm",
    "dy[n, c, ..], x[n, c, ..], mean[n, g], rstd[n, g], weight[c]",
    "dx[n, c, ..], dweight[c], dbias[c]",
    "N, C, HxW, group",
)
