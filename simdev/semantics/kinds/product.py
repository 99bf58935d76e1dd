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
    """out[.., m, n] = Sum over k of a[.., m, k] * b[.., k, n]; transposed, they are [.., k, m] and
    [.., n, k].
    """
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
    """y[.., m, n] = Sum over k of x[.., m, k] * weight[n, k], plus bias[n]; weight is [k, n]
    without transpose_b.
    """
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
    return Description(
        inner.outputs, (broadcast_read(call.inputs[0], points), *inner.inputs), inner.flops
    )


def outer(call: Call) -> Description:
    """A matrix by a vector, or two vectors: out[m] or out[] = Sum over k of a[.., k] * b[k]."""
    k = Axis("k", call.inputs[1][0])
    rows = axes("m", call.outputs[0]) if call.outputs[0] else ()
    inputs = (Access((*rows, k)), Access((k,)))
    return Description((Output(rows, over=(k,)),), inputs, (per(2, *rows, k),))


def bilinear(call: Call) -> Description:
    """y[n, o] = Sum over i, j of x[n, i] * weight[o, i, j] * z[n, j], plus bias[o].

    Operations are those of one product with the weight, which each of the three ops of a layer's
    step has once or twice; the second, of an extent less, is left out.
    """
    n, o, i, j = axes("n o i j", (*call.outputs[0], call.inputs[0][1], call.inputs[1][1]))
    reads = (
        Access((n, i)),
        Access((n, j)),
        Access((o, i, j)),
        *(Access((o,)) for _ in call.inputs[3:]),
    )
    return Description(
        outputs=(Output((n, o), over=(i, j)),),
        inputs=reads,
        flops=(per(2, n, o, i, j),),
        parameters=(2, 3)[: len(call.inputs) - 2],
    )


def bilinear_backward_input(call: Call) -> Description:
    """dx[n, i] and dz[n, j] from dy, x, z and weight: sums over outputs and the other operand."""
    n, o, i, j = axes("n o i j", (*call.inputs[0], *call.inputs[3][1:]))
    return Description(
        outputs=(Output((n, i), over=(o, j)), Output((n, j), over=(o, i))),
        inputs=(Access((n, o)), Access((n, i)), Access((n, j)), Access((o, i, j))),
        flops=(per(4, n, o, i, j),),
        parameters=(3,),
    )


def bilinear_backward_weight(call: Call) -> Description:
    """dweight[o, i, j] = Sum over n of dy[n, o] * x[n, i] * z[n, j], and dbias[o]."""
    n, o, i, j = axes("n o i j", (*call.inputs[0], call.inputs[1][1], call.inputs[2][1]))
    bias = (Output((o,), over=(n,)) for _ in call.outputs[1:])
    return Description(
        outputs=(Output((o, i, j), over=(n,)), *bias),
        inputs=(Access((n, o)), Access((n, i)), Access((n, j))),
        flops=(per(2, n, o, i, j),),
        gradients=tuple(range(len(call.outputs))),
    )


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
register(
    "baddbmm", baddbmm, "gemm", operands="c[b, m, n], a[b, m, k], b[b, k, n]", outputs="y[b, m, n]"
)
register("mv", outer, "gemm", operands="a[m, k], b[k]", outputs="y[m]")
register("dot", outer, "gemm", operands="a[k], b[k]", outputs="y[]")
register(
    "bilinear",
    bilinear,
    "gemm",
    operands="x[n, i], z[n, j], weight[o, i, j], bias[o] or none",
    outputs="y[n, o]",
)
register(
    "bilinear_backward_input",
    bilinear_backward_input,
    "gemm",
    operands="dy[n, o], x[n, i], z[n, j], weight[o, i, j]",
    outputs="dx[n, i], dz[n, j]",
)
register(
    "bilinear_backward_weight",
    bilinear_backward_weight,
    "gemm",
    operands="dy[n, o], x[n, i], z[n, j]",
    outputs="dweight[o, i, j], dbias[o] or none",
)
