"""Matrix products: 2 m n k operations."""

from __future__ import annotations

from ..description import Access, Call, Description, Entry, Output, Shape, axes, per
from ..index import Axis
from ..registry import register
from ..traits import Traits
from .common import broadcast, broadcast_read

_BATCH = {0: "", 1: "b", 2: "b h"}


def _lead(shape: Shape) -> tuple[Axis, ...]:
    """Axes of the dimensions before the matrix."""
    names = _BATCH.get(len(shape)) or " ".join(f"b{i}" for i in range(len(shape)))
    return axes(names, shape)


def matmul(call: Call) -> Description:
    """out[.., m, n] = Sum over k of a[.., m, k] * b[.., k, n]; transposed, they are [.., k, m] and [.., n, k]."""
    first, second = call.inputs
    out = call.outputs[0]
    inner = first[-2] if call.attrs.get("transpose_a") else first[-1]
    lead = _lead(out[:-2])
    m, n, k = axes("m n k", (*out[-2:], inner))
    left = (k, m) if call.attrs.get("transpose_a") else (m, k)
    right = (n, k) if call.attrs.get("transpose_b") else (k, n)
    return Description(
        outputs=(Output((*lead, m, n), over=(k,)),),
        inputs=(
            Access((*broadcast(first[:-2], lead), *left)),
            Access((*broadcast(second[:-2], lead), *right)),
        ),
        flops=(per(2, *lead, m, n, k),),
    )


def linear(call: Call) -> Description:
    """y[.., m, n] = Sum over k of x[.., m, k] * weight[n, k], plus bias[n]; weight is [k, n] without transpose_b."""
    x = call.inputs[0]
    out = call.outputs[0]
    flipped = bool(call.attrs.get("transpose_a"))
    inner = x[-2] if flipped else x[-1]
    lead = _lead(out[:-2])
    *rows, n, k = axes("m n k" if len(out) > 1 else "n k", (*out[-2:], inner))
    across: tuple[Entry, ...] = (k, *rows) if flipped else (*rows, k)
    reads = [Access((*lead, *across)), Access((n, k) if call.attrs.get("transpose_b") else (k, n))]
    reads += [broadcast_read(bias, (*lead, *rows, n)) for bias in call.inputs[2:]]
    return Description(
        outputs=(Output((*lead, *rows, n), over=(k,)),),
        inputs=tuple(reads),
        flops=(per(2, *lead, *rows, n, k),),
        parameters=(1, 2)[: len(call.inputs) - 1],
    )


def baddbmm(call: Call) -> Description:
    """out[b, m, n] = c[b, m, n] + Sum over k of a[b, m, k] * b[b, k, n]."""
    inner = matmul(Call(call.attrs, call.inputs[1:], call.outputs))
    points = [entry for entry in inner.outputs[0].index if isinstance(entry, Axis)]
    return Description(inner.outputs, (broadcast_read(call.inputs[0], points), *inner.inputs), inner.flops)


def outer(call: Call) -> Description:
    """A matrix by a vector, or two vectors: out[m] or out[] = Sum over k of a[.., k] * b[k]."""
    k = Axis("k", call.inputs[1][0])
    rows = axes("m", call.outputs[0]) if call.outputs[0] else ()
    inputs = (Access((*rows, k)), Access((k,)))
    return Description((Output(rows, over=(k,)),), inputs, (per(2, *rows, k),))


TRANSPOSES = Traits(transposes=("transpose_a", "transpose_b"))

register(
    "matmul",
    matmul,
    "gemm",
    traits=TRANSPOSES,
    operands="a[.., m, k], b[.., k, n]",
    outputs="y[.., m, n]",
    attributes="transpose_a (a is [.., k, m]), transpose_b (b is [.., n, k])",
)
register(
    "batch_matmul",
    matmul,
    "gemm",
    traits=TRANSPOSES,
    operands="a[b, m, k] or a[b, h, m, k], b likewise [.., k, n]",
    outputs="y[b, m, n] or y[b, h, m, n]",
    attributes="transpose_a, transpose_b",
)
register(
    "linear",
    linear,
    "gemm",
    traits=TRANSPOSES,
    operands="x[.., m, k], weight[n, k] with transpose_b (else [k, n]), bias[n] or none",
    outputs="y[.., m, n]",
    attributes="transpose_b, transpose_a",
)
register("baddbmm", baddbmm, "gemm", operands="c[b, m, n], a[b, m, k], b[b, k, n]", outputs="y[b, m, n]")
register("mv", outer, "gemm", operands="a[m, k], b[k]", outputs="y[m]")
register("dot", outer, "gemm", operands="a[k], b[k]", outputs="y[]")
