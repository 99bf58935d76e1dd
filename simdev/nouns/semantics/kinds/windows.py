"""Convolutions and pools: windows with stride, padding, dilation and groups, in one, two or three
dimensions, and their gradients.

y[n, k, p] = Sum over c, r of x[n, c, p * stride - padding + r * dilation] * weight[k, c, r], where
p and r have one index for each spatial dimension. With G groups, output channel k reads the input
channels of its group k // (K / G). The operations are 2 N K P Q C R S for the forward and for each
half of the backward (C: channels of one group).

A pool counts one operation for each element of each window. Its window is never split, since a
maximum comes with its place; batch, channels and positions can be.

The extents by which estimates compare convolutions are counted in
``simdev/nouns/semantics/keys.py``, which recognises their gradients by the ends of their names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import partial
from math import prod
from typing import Any, NamedTuple

from ..description import (
    Access,
    Axis,
    Box,
    ByExtents,
    Call,
    Describer,
    Description,
    Entry,
    Index,
    Output,
    Shape,
    axes,
    per,
)
from ..registry import register
from . import Local, each, extent, sized

MADE = {1: "p", 2: "p q", 3: "o p q"}
READ = {1: "h", 2: "h w", 3: "d h w"}
KERNEL = {1: "r", 2: "r s", 3: "t r s"}
"""Names of the spatial axes by their number: of outputs, of inputs, and inside a window."""


class Geometry(NamedTuple):
    """The stride, padding and other settings of windows, one value for each spatial dimension."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]


class Roles(NamedTuple):
    """Names of the axes of a convolution: channels that it makes (``outer``) and reads (``inner``),
    and positions that it makes and reads.
    """

    outer: str
    inner: str
    made: Mapping[int, str]
    read: Mapping[int, str]


CONVOLUTION = Roles("k", "c", MADE, READ)
# A transposed convolution is the input gradient of a convolution, and vice versa: its kinds are the
# same three sums with the names of the axes exchanged.
TRANSPOSED = Roles("c", "k", READ, MADE)


def geometry(attrs: Mapping[str, Any], rank: int, stride: Sequence[int] | None = None) -> Geometry:
    """The geometry by the attributes; ``stride`` is its default (None: 1).

    Raises ValueError where an attribute has other values.
    """
    unit, zero = (1,) * rank, (0,) * rank
    return Geometry(
        each(attrs, "stride", rank, stride or unit, 1),
        each(attrs, "padding", rank, zero),
        each(attrs, "dilation", rank, unit, 1),
    )


def require_fit(
    read: Sequence[int], made: Sequence[int], kernel: Sequence[int], how: Geometry
) -> None:
    """Raises ValueError where an input of extents ``read`` does not make outputs of extents
    ``made``.
    """
    fitting = [
        (size + 2 * pad - step * (taps - 1) - 1) // stride + 1
        for size, taps, stride, pad, step in zip(read, kernel, *how, strict=True)
    ]
    if list(made) != fitting:
        raise ValueError(f"windows over {list(read)} make {fitting}, not {list(made)}")


def windows(made: Sequence[Axis], kernel: Sequence[Axis], how: Geometry) -> tuple[Index, ...]:
    """The positions read by an output's window: p * stride - padding + r * dilation."""
    return tuple(
        Index(((p, s), (r, d)), -pad) for p, r, s, pad, d in zip(made, kernel, *how, strict=True)
    )


def reached(read: Sequence[Axis], kernel: Sequence[Axis], how: Geometry) -> tuple[Index, ...]:
    """The windows that read a position: (h + padding - r * dilation) / stride, where whole."""
    parts = zip(read, kernel, *how, strict=True)
    return tuple(Index(((h, 1), (r, -d)), pad).exact_div(s) for h, r, s, pad, d in parts)


def unpadded(
    made: Sequence[Axis],
    kernel: Sequence[Axis],
    reach: Sequence[int] = (),
    groups: tuple[Axis, int] | None = None,
) -> Local:
    """The attributes of a shard: along a spatial dimension that is cut, the padding becomes part of
    the operand.

    A gradient of the input (with ``reach``, its dilation) is instead padded by the reach of its
    kernel. ``groups``: the axis of grouped channels and the number of channels in a group.
    """
    rank = len(made)
    steps = tuple(reach) or (0,) * rank

    def local(attrs: Mapping[str, Any], box: Box) -> Mapping[str, Any]:
        changed = dict(attrs)
        whole = each(attrs, "padding", rank, (0,) * rank)
        padding = tuple(
            step * (extent(r, box) - 1) if p.name in box or r.name in box else pad
            for p, r, step, pad in zip(made, kernel, steps, whole, strict=True)
        )
        if padding != whole:
            changed["padding"] = list(padding)
        if groups is not None and groups[0].name in box and "groups" in attrs:
            changed["groups"] = max(1, extent(groups[0], box) // groups[1])
            # Captures leave out the attribute where it is 1, and it is part of the key of a
            # profile's row.
            if changed["groups"] == 1:
                del changed["groups"]
        return changed

    return ByExtents(local)


def _groups(call: Call, roles: Roles) -> int:
    groups = int(call.attrs.get("groups", 1))
    if groups != 1 and roles is TRANSPOSED:
        raise ValueError("groups of a transposed convolution are not described")
    return groups


class _Sum(NamedTuple):
    """A sum over windows: its axes, the indices of y, weight and x by them, and its fields of a
    Description.
    """

    y: tuple[Axis, ...]
    weight: tuple[Axis, ...]
    x: Access
    fields: dict[str, Any]


def _sum(call: Call, roles: Roles, x: Shape, weight: Shape, y: Shape) -> _Sum:
    """The sum that makes y from x and the weight; the forward and the weight gradient of a
    convolution share it.
    """
    rank, groups = len(weight) - 2, _groups(call, roles)
    how = geometry(call.attrs, rank)
    # Not of a transposed one: an output padding of its stride or more leaves positions unread.
    if roles is CONVOLUTION:
        require_fit(x[2:], y[2:], weight[2:], how)
    n, k, *made = axes(f"n {roles.outer} {roles.made[rank]}", y)
    c, kernel = Axis(roles.inner, weight[1], groups == 1), axes(KERNEL[rank], weight[2:])
    size = k.size // groups
    # Channel k reads the channels c of its group.
    channel: Entry = c if groups == 1 else (k // size) * c.size + c
    flops = (per(2, n, k, *made, c, *kernel),)
    return _Sum(
        (n, k, *made),
        (k, c, *kernel),
        Access((n, channel, *windows(made, kernel, how)), padded=True),
        {"flops": flops, "local": unpadded(made, kernel, groups=(k, size))},
    )


def convolution(call: Call, roles: Roles = CONVOLUTION) -> Description:
    """A sum over windows: the forward of a convolution, or the input gradient of a
    transposed one.
    """
    x, weight, *biases = call.inputs
    of = _sum(call, roles, x, weight, call.outputs[0])
    return Description(
        outputs=(Output(of.y, over=of.weight[1:]),),
        inputs=(of.x, Access(of.weight), *(Access(of.weight[:1]) for _ in biases)),
        parameters=tuple(range(1, len(call.inputs))),
        **of.fields,
    )


def input_gradient(call: Call, roles: Roles = CONVOLUTION) -> Description:
    """dx[n, c, h] = Sum over k, r of dy[n, k, (h + padding - r * dilation) / stride] * weight[k, c,
    r]: the input gradient of a convolution, or the forward of a transposed one.
    """
    gradient, weight = call.inputs[:2]
    rank, groups = len(weight) - 2, _groups(call, roles)
    how = geometry(call.attrs, rank)
    n, c, *read = axes(f"n {roles.inner} {roles.read[rank]}", call.outputs[0])
    k = Axis(roles.outer, weight[0] // groups, groups == 1)
    kernel = axes(KERNEL[rank], weight[2:])
    channel: Entry = k if groups == 1 else (c // weight[1]) * k.size + k
    # Of all (position, tap) pairs only those that meet a window count, as many as in the forward.
    share = Fraction(prod(gradient[2:]), max(1, prod(axis.size for axis in read)))
    return Description(
        outputs=(Output((n, c, *read), over=(k, *kernel)),),
        inputs=(
            Access((n, channel, *reached(read, kernel, how)), padded=True),
            Access((channel, c if groups == 1 else c % weight[1], *kernel)),
            *(Access((c,)) for _ in call.inputs[2:]),
        ),
        flops=(per(2 * share, n, c, *read, k, *kernel),),
        parameters=tuple(range(1, len(call.inputs))),
        local=unpadded(read, kernel, how.dilation, (c, weight[1])),
    )


def weight_gradient(call: Call, roles: Roles = CONVOLUTION) -> Description:
    """dweight[k, c, r] = Sum over n, p of dy[n, k, p] * x[n, c, p * stride - padding + r *
    dilation]; dbias sums dy over everything but its channels.

    In a transposed convolution the windows read dy.
    """
    is_forth = roles is CONVOLUTION
    y, x = call.inputs if is_forth else call.inputs[::-1]
    of = _sum(call, roles, x, call.outputs[0], y)
    (n, _, *made), (k, c, *_) = of.y, of.weight
    over, reads = (n, *made), (Access(of.y), of.x)
    biased = k if is_forth else c
    return Description(
        outputs=(Output(of.weight, over), *(Output((biased,), over) for _ in call.outputs[1:])),
        inputs=reads if is_forth else reads[::-1],
        gradients=tuple(range(len(call.outputs))),
        **of.fields,
    )


def _lead(shape: Shape, rank: int) -> tuple[Axis, ...]:
    """The axes of batch and channels, or of channels alone."""
    return axes("n c" if len(shape) - rank == 2 else "c", shape[: len(shape) - rank])


def _window(call: Call, rank: int) -> tuple[tuple[Axis, ...], Geometry]:
    """The axes of a pool's window, and its geometry; by default windows do not overlap."""
    kernel = axes(KERNEL[rank], each(call.attrs, "kernel_size", rank, (), 1), split=False)
    return kernel, geometry(call.attrs, rank, [axis.size for axis in kernel])


def _adaptive(made: Sequence[Axis], read: Sequence[Axis]) -> tuple[tuple[Index, ...], int]:
    """The positions that the windows of an adaptive pool read, and the number of elements in a
    window.

    The window of output o of O is floor(o H / O) to ceil((o + 1) H / O): (o H + r) // O for r in
    [0, H). With H and O exchanged, the formula gives the outputs whose windows hold a position.
    """
    inside = [Axis(f"in_{o.name}", h.size, False) for o, h in zip(made, read, strict=True)]
    pairs = list(zip(made, inside, strict=True))
    width = prod(-(-r.size // max(1, o.size)) for o, r in pairs)
    return tuple((o * r.size + r) // max(1, o.size) for o, r in pairs), width


def pool(call: Call, rank: int, adaptive: bool) -> Description:
    """y[n, c, p] = max or mean over r of x[n, c, p * stride - padding + r * dilation]; adaptive:
    over the p-th of equal windows.
    """
    lead = _lead(call.outputs[0], rank)
    made = axes(MADE[rank], call.outputs[0][len(lead) :])
    if adaptive:
        index, width = _adaptive(made, axes(READ[rank], call.inputs[0][len(lead) :]))
        operations, local = per(width, *lead, *made), sized(output_size=made)
    else:
        kernel, how = _window(call, rank)
        index = windows(made, kernel, how)
        operations, local = per(1, *lead, *made, *kernel), unpadded(made, kernel)
    places = (Output((*lead, *made), dtype="int64") for _ in call.outputs[1:])
    return Description(
        outputs=(Output((*lead, *made)), *places),
        inputs=(Access((*lead, *index), padded=not adaptive),),
        flops=(operations,),
        local=local,
    )


def pool_backward(call: Call, rank: int, adaptive: bool, largest: bool) -> Description:
    """dx[n, c, h] = Sum of dy over the windows that hold h (for a maximum: whose maximum is at h).
    Of x only the shape is used.
    """
    lead = _lead(call.outputs[0], rank)
    read = axes(READ[rank], call.outputs[0][len(lead) :])
    positions = call.inputs[0][len(lead) :]
    count: int | Fraction
    if adaptive:
        index, count = _adaptive(read, axes(MADE[rank], positions))
        local = sized()
    else:
        kernel, how = _window(call, rank)
        index, local = reached(read, kernel, how), unpadded(read, kernel, how.dilation)
        # The gradient of a maximum goes to one element of its window, the gradient of a mean to
        # all.
        width = 1 if largest else prod(axis.size for axis in kernel)
        count = width * Fraction(prod(positions), max(1, prod(axis.size for axis in read)))
    holding = Access((*lead, *index), padded=not adaptive)
    return Description(
        outputs=(Output((*lead, *read)),),
        inputs=(holding, Access((*lead, *read), read=False), *([holding] if largest else [])),
        flops=(per(count, *lead, *read),),
        local=local,
    )


def _register_convolutions(rank: int, read: str, made: str, kernel: str) -> None:
    attributes = (
        "stride, padding, dilation (one a spatial dimension; default 1, 0, 1), groups (default 1)"
    )
    x, y, bias = f"x[n, c, {read}]", f"y[n, k, {made}]", "bias[k] or none"
    forms: tuple[tuple[str, str, Describer, Describer, Describer], ...] = (
        ("conv", "k, c", convolution, input_gradient, weight_gradient),
        (
            "conv_transpose",
            "c, k",
            partial(input_gradient, roles=TRANSPOSED),
            partial(convolution, roles=TRANSPOSED),
            partial(weight_gradient, roles=TRANSPOSED),
        ),
    )
    for form, channels, forward, by_input, by_weight in forms:
        name, weight = f"{form}{rank}d", f"weight[{channels}, {kernel}]"
        register(name, forward, "conv", f"{x}, {weight}, {bias}", y, attributes)
        register(f"{name}_backward_input", by_input, "conv", f"d{y}, {weight}", f"d{x}", attributes)
        outputs = f"d{weight}, d{bias}"
        register(f"{name}_backward_weight", by_weight, "conv", f"d{y}, {x}", outputs, attributes)


def _register_pools(rank: int, read: str, made: str) -> None:
    window = "kernel_size, stride (default: kernel_size), padding, dilation"
    x, y = f"x[n, c, {read}]", f"y[n, c, {made}]"
    for form, largest in (("avg_pool", False), ("max_pool", True)):
        place, back = (", index (int64) or none", ", index") if largest else ("", "")
        for prefix, forward, backward in (("", window, window), ("adaptive_", "output_size", "")):
            settings: dict[str, Any] = {"rank": rank, "adaptive": bool(prefix)}
            name, describe = f"{prefix}{form}{rank}d", partial(pool, **settings)
            register(name, describe, "pooling", x, y + place, forward)
            gradient = partial(pool_backward, largest=largest, **settings)
            register(f"{name}_backward", gradient, "pooling", f"d{y}, {x}{back}", f"d{x}", backward)


for _rank in MADE:
    _read, _made, _kernel = (names[_rank].replace(" ", ", ") for names in (READ, MADE, KERNEL))
    _register_convolutions(_rank, _read, _made, _kernel)
    _register_pools(_rank, _read, _made)
