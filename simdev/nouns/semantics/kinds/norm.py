"""Normalisations: batch, layer, group and RMS, forward and backward.

The statistics of batch_norm are reduced over batch and positions: split there, every shard has
those of its own part, and a strategy that wants the statistics of the whole batch pays for their
reduction. What layer_norm, group_norm and rms_norm normalise over stays whole. Operations an
element: forward 8 (mean 1, variance 3, normalise 2, scale 2), RMS 5; backward 9 (batch, group), 13
(layer) or 11 (RMS).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ....ground.frozen import FrozenDict
from ..description import ALL, Access, Call, Describer, Description, Entry, Output, Shape, axes, per
from ..index import Axis
from ..registry import register
from ..traits import Traits
from .common import Local, numbered, sized

Indexed = Callable[[Shape], tuple[Entry, ...]]
"""How a tensor of a shape is indexed."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a normalisation indexes its tensors.

    ``index`` of x, which has these ``points``; a statistic (summed over ``reduced``, where shards
    have their own) and a parameter by their shapes; the gradient of a parameter is summed over
    ``rows``.
    """

    index: tuple[Entry, ...]
    points: tuple[Axis, ...]
    statistic: Indexed
    parameter: Indexed
    rows: tuple[Axis, ...]
    reduced: tuple[Axis, ...] = ()
    local: Local = field(default=sized())


def _by_channel(call: Call) -> _Layout:
    """batch_norm: one value a channel, reduced over the rest."""
    shape = call.inputs[0]
    names = {2: "n c", 3: "n c h", 4: "n c h w", 5: "n c d h w"}[len(shape)]
    points = axes(names, shape)
    c, rest = points[1], (points[0], *points[2:])

    def channelwise(shape: Shape) -> tuple[Entry, ...]:
        # In evaluation some outputs are empty.
        return (c,) if shape == (c.size,) else (ALL,) * len(shape)

    return _Layout(points, points, channelwise, channelwise, rest, rest)


def _by_row(call: Call) -> _Layout:
    """layer_norm and rms_norm: over the dimensions of normalized_shape, else over the last one."""
    shape = call.inputs[0]
    count = len(call.attrs.get("normalized_shape", (0,)))
    if not 0 < count <= len(shape):
        raise ValueError(f"normalized_shape: {count} dimensions of {len(shape)}")
    lead = len(shape) - count
    points = numbered(shape, range(lead, len(shape)))
    rows, last = points[:lead], points[lead:]

    def statistic(shape: Shape) -> tuple[Entry, ...]:
        # One value a row, with the normalised dimensions as ones or without them.
        return (*rows, *(0 for _ in shape[lead:]))

    return _Layout(points, points, statistic, lambda shape: last, rows)


def _by_group(call: Call) -> _Layout:
    """group_norm: over the channels and positions of a group; a parameter has one value a
    channel.
    """
    shape, groups = call.inputs[0], int(call.attrs["group"])
    n, g = axes("n g", (shape[0], groups))
    # Channels are numbered through the groups, so the channel is a sum of two axes, of which only
    # the outer can be cut.
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


def _forward(
    layout_of: Callable[[Call], _Layout], operations: int, evaluated: int | None = None
) -> Describer:
    """Describer of y and the statistics; ``evaluated``: operations where it is not trained."""

    def describe(call: Call) -> Description:
        layout = layout_of(call)
        trained = evaluated is None or call.attrs.get("training")
        statistics = (Output(layout.statistic(shape), layout.reduced) for shape in call.outputs[1:])
        return Description(
            outputs=(Output(layout.index), *statistics),
            inputs=(
                Access(layout.index),
                *(Access(layout.parameter(shape)) for shape in call.inputs[1:]),
            ),
            flops=(per(operations if trained else evaluated or 0, *layout.points),),
            parameters=tuple(range(1, len(call.inputs))),
            local=layout.local,
        )

    return describe


def _backward(
    layout_of: Callable[[Call], _Layout], operations: int, statistics: int = 0
) -> Describer:
    """Describer of dx and the gradients of the parameters, from dy, x, statistics, parameters."""

    def describe(call: Call) -> Description:
        layout, first = layout_of(call), 2 + statistics
        gradients = (Output(layout.parameter(shape), layout.rows) for shape in call.outputs[1:])
        return Description(
            outputs=(Output(layout.index), *gradients),
            inputs=(
                Access(layout.index),
                Access(layout.index),
                *(Access(layout.statistic(shape)) for shape in call.inputs[2:first]),
                *(Access(layout.parameter(shape)) for shape in call.inputs[first:]),
            ),
            flops=(per(operations, *layout.points),),
            parameters=tuple(range(first, len(call.inputs))),
            gradients=tuple(range(1, len(call.outputs))),
            local=layout.local,
        )

    return describe


register(
    "batch_norm",
    _forward(_by_channel, 8, evaluated=4),
    "norm",
    "x[n, c, ..], weight[c], bias[c], running_mean[c], running_var[c]",
    "y[n, c, ..], mean[c], rstd[c]",
    "training",
)
register(
    "batch_norm_backward",
    _backward(_by_channel, 9),
    "norm",
    "dy[n, c, ..], x[n, c, ..], weight[c], running_mean[c], running_var[c], mean[c], rstd[c]",
    "dx[n, c, ..], dweight[c], dbias[c]",
    "train",
    # cuDNN's backward does not tell it: it has no other.
    Traits(own_statistics=True, defaults=FrozenDict({"train": True})),
)
register(
    "layer_norm",
    _forward(_by_row, 8),
    "norm",
    "x, weight, bias (both of normalized_shape, or none)",
    "y, mean, rstd (one a row, normalised dimensions 1; or none)",
    "normalized_shape (default: the last dimension)",
)
register(
    "layer_norm_backward",
    _backward(_by_row, 13, statistics=2),
    "norm",
    "dy, x, mean, rstd, weight, bias (the last two or none)",
    "dx, dweight, dbias",
    "normalized_shape",
)
# PyTorch's own kernel goes by the second name.
for _name in ("rms_norm", "fused_rms_norm"):
    register(
        _name,
        _forward(_by_row, 5),
        "norm",
        "x, weight or none",
        "y, rstd or none",
        "normalized_shape",
    )
    register(
        f"{_name}_backward",
        _backward(_by_row, 11, statistics=1),
        "norm",
        "dy, x, rstd, weight or none",
        "dx, dweight",
        "normalized_shape",
    )
register(
    "group_norm",
    _forward(_by_group, 8),
    "norm",
    "x[n, c, ..], weight[c], bias[c]",
    "y[n, c, ..], mean[n, g], rstd[n, g]",
    "N, C, HxW, group",
)
register(
    "group_norm_backward",
    _backward(_by_group, 9, statistics=2),
    "norm",
    "dy[n, c, ..], x[n, c, ..], mean[n, g], rstd[n, g], weight[c]",
    "dx[n, c, ..], dweight[c], dbias[c]",
    "N, C, HxW, group",
)
