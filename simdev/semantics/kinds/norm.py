"""Normalisations: batch, layer, group and RMS, forward and backward.

The statistics of batch_norm are reduced over batch and positions: split there, every shard has
those of its own part, and a strategy that wants the statistics of the whole batch pays for their
reduction. What layer_norm, group_norm and rms_norm normalise over stays whole. Operations an
element: forward 8 (mean 1, variance 3, normalise 2, scale 2); backward 9 (batch, group) or 13
(layer), RMS 5 and 11.
"""

from __future__ import annotations

from ..description import ALL, Access, Call, Describer, Description, Entry, Output, Shape, axes, per
from ..index import Axis
from ..registry import register
from ..traits import Traits
from .common import numbered, sized


def _batch_axes(shape: Shape) -> tuple[Axis, ...]:
    names = {2: "n c", 3: "n c h", 4: "n c h w", 5: "n c d h w"}[len(shape)]
    return axes(names, shape)


def _channelwise(shape: Shape, c: Axis) -> tuple[Entry, ...]:
    """A tensor with one value a channel; in evaluation some outputs are empty."""
    return (c,) if shape == (c.size,) else (ALL,) * len(shape)


def batch_norm(call: Call) -> Description:
    """y[n, c, ..] from x[n, c, ..] and one value a channel; mean[c] and rstd[c] are reduced over
    the rest.
    """
    points = _batch_axes(call.inputs[0])
    c, rest = points[1], (points[0], *points[2:])
    return Description(
        outputs=(
            Output(points),
            *(Output(_channelwise(shape, c), over=rest) for shape in call.outputs[1:]),
        ),
        inputs=(Access(points), *(Access(_channelwise(shape, c)) for shape in call.inputs[1:])),
        flops=(per(8 if call.attrs.get("training") else 4, *points),),
        parameters=tuple(range(1, len(call.inputs))),
    )


def batch_norm_backward(call: Call) -> Description:
    """dx[n, c, ..]; dweight[c] and dbias[c] are sums over the rest."""
    points = _batch_axes(call.inputs[0])
    c, rest = points[1], (points[0], *points[2:])
    return Description(
        outputs=(
            Output(points),
            *(Output(_channelwise(shape, c), over=rest) for shape in call.outputs[1:]),
        ),
        inputs=(
            Access(points),
            Access(points),
            *(Access(_channelwise(shape, c)) for shape in call.inputs[2:]),
        ),
        flops=(per(9, *points),),
        parameters=tuple(range(2, len(call.inputs))),
        gradients=tuple(range(1, len(call.outputs))),
    )


def _rows(call: Call, x: Shape) -> tuple[tuple[Axis, ...], int]:
    """Axes of x, and how many of them come before the normalised ones (normalized_shape, else the
    last one).
    """
    count = len(call.attrs.get("normalized_shape", (0,)))
    if not 0 < count <= len(x):
        raise ValueError(f"normalized_shape: {count} dimensions of {len(x)}")
    return numbered(x, range(len(x) - count, len(x))), len(x) - count


def _statistic(shape: Shape, rows: tuple[Axis, ...]) -> tuple[Entry, ...]:
    """One value a row, with or without the normalised dimensions as ones."""
    return (*rows, *(0 for _ in shape[len(rows) :]))


def _row_norm(operations: int) -> Describer:
    def describe(call: Call) -> Description:
        points, lead = _rows(call, call.inputs[0])
        rows, last = points[:lead], points[lead:]
        return Description(
            outputs=(
                Output(points),
                *(Output(_statistic(shape, rows)) for shape in call.outputs[1:]),
            ),
            inputs=(Access(points), *(Access(last) for _ in call.inputs[1:])),
            flops=(per(operations, *points),),
            parameters=tuple(range(1, len(call.inputs))),
        )

    return describe


def layer_norm_backward(call: Call) -> Description:
    """Gradients: dx from dy, x, mean, rstd and weight; dweight and dbias are sums over the rows."""
    return _row_norm_backward(call, 2, 13)


def rms_norm_backward(call: Call) -> Description:
    """Gradients: dx from dy, x, rstd and weight; dweight is a sum over the rows."""
    return _row_norm_backward(call, 1, 11)


def _row_norm_backward(call: Call, statistics: int, operations: int) -> Description:
    points, lead = _rows(call, call.inputs[0])
    rows, last = points[:lead], points[lead:]
    known = [Access(_statistic(shape, rows)) for shape in call.inputs[2 : 2 + statistics]]
    return Description(
        outputs=(Output(points), *(Output(last, over=rows) for _ in call.outputs[1:])),
        inputs=(
            Access(points),
            Access(points),
            *known,
            *(Access(last) for _ in call.inputs[2 + statistics :]),
        ),
        flops=(per(operations, *points),),
        parameters=tuple(range(2 + statistics, len(call.inputs))),
        gradients=tuple(range(1, len(call.outputs))),
    )


def _groups(call: Call, x: Shape) -> tuple[tuple[Entry, ...], tuple[Axis, ...], Entry]:
    """How x is indexed by sample, group, channel of the group and positions; those axes; the
    channel.
    """
    groups = int(call.attrs["group"])
    n, g = axes("n g", (x[0], groups))
    inside = axes(
        " ".join(["j", *(f"d{i}" for i in range(2, len(x)))]), (x[1] // groups, *x[2:]), split=False
    )
    channel = g * (x[1] // groups) + inside[0]
    return (n, channel, *inside[1:]), (n, g, *inside), channel


def group_norm(call: Call) -> Description:
    """y[n, c, ..]; mean[n, g] and rstd[n, g] over the channels and positions of a group."""
    index, points, channel = _groups(call, call.inputs[0])
    return Description(
        outputs=(Output(index), *(Output(points[:2]) for _ in call.outputs[1:])),
        inputs=(Access(index), *(Access((channel,)) for _ in call.inputs[1:])),
        flops=(per(8, *points),),
        parameters=tuple(range(1, len(call.inputs))),
        local=sized(N=points[:1], C=points[1:3], group=points[1:2]),
    )


def group_norm_backward(call: Call) -> Description:
    """Gradients: dx from dy, x, mean, rstd and weight; dweight[c] and dbias[c] are sums over batch
    and positions.
    """
    index, points, channel = _groups(call, call.inputs[0])
    over = (points[0], *points[3:])
    return Description(
        outputs=(Output(index), *(Output((channel,), over=over) for _ in call.outputs[1:])),
        inputs=(
            Access(index),
            Access(index),
            *(Access(points[:2]) for _ in call.inputs[2:4]),
            *(Access((channel,)) for _ in call.inputs[4:]),
        ),
        flops=(per(9, *points),),
        parameters=tuple(range(4, len(call.inputs))),
        gradients=tuple(range(1, len(call.outputs))),
        local=sized(N=points[:1], C=points[1:3], group=points[1:2]),
    )


register(
    "batch_norm",
    batch_norm,
    "norm",
    operands="x[n, c, ..], weight[c], bias[c], running_mean[c], running_var[c]",
    outputs="y[n, c, ..], mean[c], rstd[c]",
    attributes="training",
)
register(
    "batch_norm_backward",
    batch_norm_backward,
    "norm",
    traits=Traits(own_statistics=True),
    operands=(
        "dy[n, c, ..], x[n, c, ..], weight[c], running_mean[c], running_var[c], mean[c], rstd[c]"
    ),
    outputs="dx[n, c, ..], dweight[c], dbias[c]",
    attributes="train",
)
register(
    "layer_norm",
    _row_norm(8),
    "norm",
    operands="x, weight, bias (both of normalized_shape, or none)",
    outputs="y, mean, rstd (one a row, normalised dimensions 1; or none)",
    attributes="normalized_shape (default: the last dimension)",
)
register(
    "layer_norm_backward",
    layer_norm_backward,
    "norm",
    operands="dy, x, mean, rstd, weight, bias (the last two or none)",
    outputs="dx, dweight, dbias",
    attributes="normalized_shape",
)
register(
    "rms_norm",
    _row_norm(5),
    "norm",
    operands="x, weight or none",
    outputs="y, rstd or none",
    attributes="normalized_shape",
)
register(
    "rms_norm_backward",
    rms_norm_backward,
    "norm",
    operands="dy, x, rstd, weight or none",
    outputs="dx, dweight",
    attributes="normalized_shape",
)
register(
    "group_norm",
    group_norm,
    "norm",
    operands="x[n, c, ..], weight[c], bias[c]",
    outputs="y[n, c, ..], mean[n, g], rstd[n, g]",
    attributes="N, C, HxW, group",
)
register(
    "group_norm_backward",
    group_norm_backward,
    "norm",
    operands="dy[n, c, ..], x[n, c, ..], mean[n, g], rstd[n, g], weight[c]",
    outputs="dx[n, c, ..], dweight[c], dbias[c]",
    attributes="N, C, HxW, group",
)
