"""Convolutions with stride, padding, dilation and groups, in one, two or three dimensions, and
their gradients.

y[n, k, p] = Sum over c, r of x[n, c, p * stride - padding + r * dilation] * weight[k, c, r], with
p, r standing for one index a spatial dimension. With G groups, output channel k reads the input
channels of its group k // (K / G). The operations are 2 N K P Q C R S for the forward and for each
half of the backward (C: channels of one group).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import prod
from typing import Any

from ..description import Access, Call, Describer, Description, Entry, Output, axes, per
from ..index import Axis, Box, Index
from ..registry import register
from .common import each, extent

OUT = {1: "p", 2: "p q", 3: "o p q"}
IN = {1: "h", 2: "h w", 3: "d h w"}
KERNEL = {1: "r", 2: "r s", 3: "t r s"}

Geometry = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def geometry(attrs: Mapping[str, Any], rank: int, stride: Sequence[int] | None = None) -> Geometry:
    """Stride, padding, dilation, one value a spatial dimension.

    Raises ValueError where they are no such numbers.
    """
    ones, zeros = (1,) * rank, (0,) * rank
    found = each(attrs, "stride", rank, stride or ones, 1), each(attrs, "padding", rank, zeros)
    return (*found, each(attrs, "dilation", rank, ones, 1))


def require_fit(
    read: Sequence[int], made: Sequence[int], kernel: Sequence[int], how: Geometry
) -> None:
    """Raises ValueError where an input of extents ``read`` does not make outputs of extents
    ``made``.
    """
    wanted = [
        (size + 2 * pad - step * (taps - 1) - 1) // stride + 1
        for size, taps, stride, pad, step in zip(read, kernel, *how, strict=True)
    ]
    if list(made) != wanted:
        raise ValueError(f"windows over {list(read)} make {wanted}, not {list(made)}")


def windows(made: Sequence[Axis], kernel: Sequence[Axis], how: Geometry) -> tuple[Index, ...]:
    """Where the window of an output position reads: p * stride - padding + r * dilation."""
    return tuple(
        Index(((p, s), (r, d)), -pad) for p, r, s, pad, d in zip(made, kernel, *how, strict=True)
    )


def reached(read: Sequence[Axis], kernel: Sequence[Axis], how: Geometry) -> tuple[Index, ...]:
    """The windows that read a position: (h + padding - r * dilation) / stride, where that is
    whole.
    """
    parts = zip(read, kernel, *how, strict=True)
    return tuple(Index(((h, 1), (r, -d)), pad).exact_div(s) for h, r, s, pad, d in parts)


def unpadded(
    made: Sequence[Axis],
    kernel: Sequence[Axis],
    reach: Sequence[int] = (),
    groups: tuple[Axis, int] | None = None,
) -> Callable[[Mapping[str, Any], Box], Mapping[str, Any]]:
    """Attributes of a shard: along a window dimension that is cut, the padding becomes part of the
    operand.

    A gradient of the input (``reach``: its dilation) is padded by what its kernel reaches over
    instead. ``groups``: the axis of grouped channels and how many of them form a group.
    """
    rank = len(made)
    steps = tuple(reach) or (0,) * rank

    def local(attrs: Mapping[str, Any], box: Box) -> Mapping[str, Any]:
        found = dict(attrs)
        told = each(attrs, "padding", rank, (0,) * rank)
        padding = list(told)
        for i, (p, r, step) in enumerate(zip(made, kernel, steps, strict=True)):
            if p.name in box or r.name in box:
                padding[i] = step * (extent(r, box) - 1)
        if tuple(padding) != told:
            found["padding"] = padding
        if groups is not None and groups[0].name in box and "groups" in found:
            found["groups"] = max(1, extent(groups[0], box) // groups[1])
            if found["groups"] == 1:  # left out where it is 1, as the capture does
                del found["groups"]
        return found

    return local


def _channels(call: Call, k: Axis, inside: int) -> tuple[Axis, Entry, int]:
    """The axis of channels inside a group, the input channel that it stands for, and output
    channels a group.
    """
    groups = int(call.attrs.get("groups", 1))
    c = Axis("c", inside, groups == 1)
    return c, (c if groups == 1 else (k // (k.size // groups)) * inside + c), k.size // groups


def convolution(call: Call) -> Description:
    """The forward of a convolution."""
    x, weight = call.inputs[:2]
    rank = len(weight) - 2
    how = geometry(call.attrs, rank)
    require_fit(x[2:], call.outputs[0][2:], weight[2:], how)
    n, k, *made = axes(f"n k {OUT[rank]}", call.outputs[0])
    c, channel, group = _channels(call, k, weight[1])
    kernel = axes(KERNEL[rank], weight[2:])
    return Description(
        outputs=(Output((n, k, *made), over=(c, *kernel)),),
        inputs=(
            Access((n, channel, *windows(made, kernel, how)), padded=True),
            Access((k, c, *kernel)),
            *(Access((k,)) for _ in call.inputs[2:]),
        ),
        flops=(per(2, n, k, *made, c, *kernel),),
        parameters=(1, 2)[: len(call.inputs) - 1],
        local=unpadded(made, kernel, groups=(k, group)),
    )


def backward_input(call: Call) -> Description:
    """dx[n, c, h] = Sum over k, r of dy[n, k, (h + padding - r * dilation) / stride] * weight[k, c,
    r].
    """
    gradient, weight = call.inputs
    rank = len(weight) - 2
    how = geometry(call.attrs, rank)
    groups = int(call.attrs.get("groups", 1))
    n, c, *read = axes(f"n c {IN[rank]}", call.outputs[0])
    k = Axis("k", weight[0] // groups, groups == 1)
    kernel = axes(KERNEL[rank], weight[2:])
    made: Entry = k if groups == 1 else (c // weight[1]) * k.size + k
    share = Fraction(prod(gradient[2:]), max(1, prod(axis.size for axis in read)))
    return Description(
        outputs=(Output((n, c, *read), over=(k, *kernel)),),
        inputs=(
            Access((n, made, *reached(read, kernel, how)), padded=True),
            Access((made, c if groups == 1 else c % weight[1], *kernel)),
        ),
        flops=(per(2 * share, n, c, *read, k, *kernel),),
        parameters=(1,),
        local=unpadded(read, kernel, how[2], (c, weight[1])),
    )


def backward_weight(call: Call) -> Description:
    """dweight[k, c, r] = Sum over n, p of dy[n, k, p] * x[n, c, p * stride - padding + r *
    dilation]; dbias[k].
    """
    gradient, x = call.inputs
    rank = len(gradient) - 2
    how = geometry(call.attrs, rank)
    require_fit(x[2:], gradient[2:], call.outputs[0][2:], how)
    n, k, *made = axes(f"n k {OUT[rank]}", gradient)
    c, channel, group = _channels(call, k, call.outputs[0][1])
    kernel = axes(KERNEL[rank], call.outputs[0][2:])
    over = (n, *made)
    return Description(
        outputs=(Output((k, c, *kernel), over), *(Output((k,), over) for _ in call.outputs[1:])),
        inputs=(
            Access((n, k, *made)),
            Access((n, channel, *windows(made, kernel, how)), padded=True),
        ),
        flops=(per(2, n, k, *made, c, *kernel),),
        gradients=tuple(range(len(call.outputs))),
        local=unpadded(made, kernel, groups=(k, group)),
    )


def transposed(call: Call) -> Description:
    """y[n, k, p] = Sum over c, r of x[n, c, (p + padding - r * dilation) / stride] * weight[c, k,
    r]; no groups.
    """
    x, weight = call.inputs[:2]
    _no_groups(call)
    rank = len(weight) - 2
    how = geometry(call.attrs, rank)
    n, k, *made = axes(f"n k {OUT[rank]}", call.outputs[0])
    c, *kernel = axes(f"c {KERNEL[rank]}", (weight[0], *weight[2:]))
    share = Fraction(prod(x[2:]), max(1, prod(axis.size for axis in made)))
    return Description(
        outputs=(Output((n, k, *made), over=(c, *kernel)),),
        inputs=(
            Access((n, c, *reached(made, kernel, how)), padded=True),
            Access((c, k, *kernel)),
            *(Access((k,)) for _ in call.inputs[2:]),
        ),
        flops=(per(2 * share, n, k, *made, c, *kernel),),
        parameters=(1, 2)[: len(call.inputs) - 1],
        local=unpadded(made, kernel, how[2]),
    )


def transposed_backward_input(call: Call) -> Description:
    """dx[n, c, h] = Sum over k, r of dy[n, k, h * stride - padding + r * dilation] * weight[c, k,
    r].
    """
    _, weight = call.inputs
    _no_groups(call)
    rank = len(weight) - 2
    n, c, *read = axes(f"n c {IN[rank]}", call.outputs[0])
    k, *kernel = axes(f"k {KERNEL[rank]}", weight[1:])
    window = windows(read, kernel, geometry(call.attrs, rank))
    return Description(
        outputs=(Output((n, c, *read), over=(k, *kernel)),),
        inputs=(Access((n, k, *window), padded=True), Access((c, k, *kernel))),
        flops=(per(2, n, c, *read, k, *kernel),),
        parameters=(1,),
        local=unpadded(read, kernel),
    )


def transposed_backward_weight(call: Call) -> Description:
    """dweight[c, k, r] = Sum over n, h of x[n, c, h] * dy[n, k, h * stride - padding + r *
    dilation]; dbias[k].
    """
    _, x = call.inputs
    _no_groups(call)
    rank = len(x) - 2
    n, c, *read = axes(f"n c {IN[rank]}", x)
    k, *kernel = axes(f"k {KERNEL[rank]}", call.outputs[0][1:])
    window = windows(read, kernel, geometry(call.attrs, rank))
    over = (n, *read)
    return Description(
        outputs=(Output((c, k, *kernel), over), *(Output((k,), over) for _ in call.outputs[1:])),
        inputs=(Access((n, k, *window), padded=True), Access((n, c, *read))),
        flops=(per(2, n, c, *read, k, *kernel),),
        gradients=tuple(range(len(call.outputs))),
        local=unpadded(read, kernel),
    )


def _no_groups(call: Call) -> None:
    if int(call.attrs.get("groups", 1)) != 1:
        raise ValueError("groups of a transposed convolution are not described")


def _register() -> None:
    attributes = (
        "stride, padding, dilation (one a spatial dimension; default 1, 0, 1), groups (default 1)"
    )
    spatial = {rank: names.replace(" ", ", ") for rank, names in OUT.items()}
    for rank, made in spatial.items():
        read, kernel = IN[rank].replace(" ", ", "), KERNEL[rank].replace(" ", ", ")
        x, y = f"x[n, c, {read}]", f"y[n, k, {made}]"
        weight, bias = f"weight[k, c, {kernel}]", "bias[k] or none"
        table: list[tuple[str, Describer, str, str]] = [
            (f"conv{rank}d", convolution, f"{x}, {weight}, {bias}", y),
            (f"conv{rank}d_backward_input", backward_input, f"d{y}, {weight}", f"d{x}"),
            (
                f"conv{rank}d_backward_weight",
                backward_weight,
                f"d{y}, {x}",
                f"d{weight}, dbias[k] or none",
            ),
        ]
        flipped = weight.replace("k, c", "c, k")
        table += [
            (f"conv_transpose{rank}d", transposed, f"{x}, {flipped}, {bias}", y),
            (
                f"conv_transpose{rank}d_backward_input",
                transposed_backward_input,
                f"d{y}, {flipped}",
                f"d{x}",
            ),
            (
                f"conv_transpose{rank}d_backward_weight",
                transposed_backward_weight,
                f"d{y}, {x}",
                f"d{flipped}, dbias[k] or none",
            ),
        ]
        for name, describe, operands, outputs in table:
            register(
                name, describe, "conv", operands=operands, outputs=outputs, attributes=attributes
            )


_register()
