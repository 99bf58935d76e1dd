"""Pooling, plain and adaptive, and its gradients: one operation an element of each window.

A window is never split (its maximum comes with the place where it stands). Batch, channels and
positions are.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod

from ..description import Access, Call, Describer, Description, Output, Shape, axes, per
from ..index import Axis, Index
from ..registry import register
from .common import each, sized
from .convolution import IN, KERNEL, OUT, geometry, reached, unpadded, windows


def _lead(shape: Shape, rank: int) -> tuple[Axis, ...]:
    """Batch and channels, or channels alone."""
    return axes("n c" if len(shape) - rank == 2 else "c", shape[: len(shape) - rank])


def _window(call: Call, rank: int) -> tuple[Axis, ...]:
    sizes = each(call.attrs, "kernel_size", rank, (), 1)
    return axes(KERNEL[rank], sizes, split=False)


def pool(rank: int) -> Describer:
    """y[n, c, p] = max or mean over r of x[n, c, p * stride - padding + r * dilation]."""

    def describe(call: Call) -> Description:
        kernel = _window(call, rank)
        how = geometry(call.attrs, rank, [axis.size for axis in kernel])
        lead = _lead(call.outputs[0], rank)
        made = axes(OUT[rank], call.outputs[0][len(lead) :])
        return Description(
            outputs=(
                Output((*lead, *made)),
                *(Output((*lead, *made), dtype="int64") for _ in call.outputs[1:]),
            ),
            inputs=(Access((*lead, *windows(made, kernel, how)), padded=True),),
            flops=(per(1, *lead, *made, *kernel),),
            local=unpadded(made, kernel),
        )

    return describe


def pool_backward(rank: int, largest: bool) -> Describer:
    """dx[n, c, h] = Sum of dy over the windows that hold h (for a maximum: whose place is h). x:
    its shape only.
    """

    def describe(call: Call) -> Description:
        kernel = _window(call, rank)
        how = geometry(call.attrs, rank, [axis.size for axis in kernel])
        lead = _lead(call.outputs[0], rank)
        read = axes(IN[rank], call.outputs[0][len(lead) :])
        windows_of = Access((*lead, *reached(read, kernel, how)), padded=True)
        share = Fraction(
            prod(call.inputs[0][len(lead) :]), max(1, prod(axis.size for axis in read))
        )
        each_window = 1 if largest else prod(axis.size for axis in kernel)
        return Description(
            outputs=(Output((*lead, *read)),),
            inputs=(
                windows_of,
                Access((*lead, *read), read=False),
                *([windows_of] if largest else []),
            ),
            flops=(per(each_window * share, *lead, *read),),
            local=unpadded(read, kernel, how[2]),
        )

    return describe


def _adaptive(made: Sequence[Axis], read: Sequence[Axis]) -> tuple[Index, ...]:
    """The window of output o of O is floor(o H / O) to ceil((o + 1) H / O): (o H + r) // O for r in
    [0, H).

    The same with H and O exchanged are the outputs whose windows hold a position.
    """
    names = [
        Axis(f"in_{axis.name}", other.size, False) for axis, other in zip(made, read, strict=True)
    ]
    return tuple((o * r.size + r) // max(1, o.size) for o, r in zip(made, names, strict=True))


def _widths(made: Sequence[Axis], read: Sequence[Axis]) -> int:
    return prod(-(-h.size // max(1, o.size)) for o, h in zip(made, read, strict=True))


def adaptive(rank: int) -> Describer:
    """y[n, c, p] = mean or max over the p-th of equal windows."""

    def describe(call: Call) -> Description:
        lead = _lead(call.outputs[0], rank)
        made = axes(OUT[rank], call.outputs[0][len(lead) :])
        read = axes(IN[rank], call.inputs[0][len(lead) :])
        return Description(
            outputs=(
                Output((*lead, *made)),
                *(Output((*lead, *made), dtype="int64") for _ in call.outputs[1:]),
            ),
            inputs=(Access((*lead, *_adaptive(made, read))),),
            flops=(per(_widths(made, read), *lead, *made),),
            local=sized(output_size=made),
        )

    return describe


def adaptive_backward(rank: int, largest: bool) -> Describer:
    """dx[n, c, h] = Sum of dy over the windows that hold h. x: its shape only."""

    def describe(call: Call) -> Description:
        lead = _lead(call.outputs[0], rank)
        read = axes(IN[rank], call.outputs[0][len(lead) :])
        made = axes(OUT[rank], call.inputs[0][len(lead) :])
        windows_of = Access((*lead, *_adaptive(read, made)))
        return Description(
            outputs=(Output((*lead, *read)),),
            inputs=(
                windows_of,
                Access((*lead, *read), read=False),
                *([windows_of] if largest else []),
            ),
            flops=(per(_widths(read, made), *lead, *read),),
        )

    return describe


def _register() -> None:
    window = "kernel_size, stride (default: kernel_size), padding, dilation"
    for rank, names in OUT.items():
        x, y = f"x[n, c, {IN[rank].replace(' ', ', ')}]", f"y[n, c, {names.replace(' ', ', ')}]"
        for form, largest in (("avg_pool", False), ("max_pool", True)):
            place, back = (", index (int64) or none", ", index") if largest else ("", "")
            table = (
                (f"{form}{rank}d", pool(rank), x, y + place, window),
                (
                    f"{form}{rank}d_backward",
                    pool_backward(rank, largest),
                    f"d{y}, {x}{back}",
                    f"d{x}",
                    window,
                ),
                (f"adaptive_{form}{rank}d", adaptive(rank), x, y + place, "output_size"),
                (
                    f"adaptive_{form}{rank}d_backward",
                    adaptive_backward(rank, largest),
                    f"d{y}, {x}{back}",
                    f"d{x}",
                    "",
                ),
            )
            for name, describe, operands, outputs, attributes in table:
                register(
                    name,
                    describe,
                    "pooling",
                    operands=operands,
                    outputs=outputs,
                    attributes=attributes,
                )


_register()
