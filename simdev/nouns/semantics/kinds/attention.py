"""Scaled dot-product attention as one op, forward and backward, and rotary embeddings.

out[b, h, s, e] = Sum over t of softmax over t(q[b, h, s, :] . k[b, h, t, :]) * v[b, h, t, e]. With
fewer heads of k and v than of q (grouped queries), heads h * j .. h * j + j - 1 of q share head h.
Operations: 2 s t (d + e) a head and 5 s t for the softmax; backward 2 s t (3 d + 2 e), the scores
computed again, and 9 s t. A causal mask saves nothing.

FlashAttention lays sequences out as [b, s, h, d], heads after positions, so that the heads of a
projection are a reshape of it and no transposition stands between them (Dao et al.,
"FlashAttention", NeurIPS 2022); so do rotary embeddings (Su et al., "RoFormer", 2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from ..description import ALL, Access, Call, Describer, Description, Entry, Output, Shape, axes, per
from ..index import Axis
from ..registry import register
from .common import dimension, numbered

T = TypeVar("T")


class _Heads:
    """The axes of one attention, and how its tensors are indexed by them."""

    def __init__(self, q: Shape, k: Shape, v: Shape, split_keys: bool) -> None:
        if q[1] % max(1, k[1]):
            raise ValueError(f"{q[1]} heads of q are no multiple of {k[1]} heads of k")
        b, h, j = axes("b h j", (q[0], k[1], q[1] // max(1, k[1])))
        s, t = Axis("s", q[2]), Axis("t", k[2], split_keys)
        d, e = axes("d e", (q[3], v[3]), split=False)
        # An axis of one point would be one more to cut by, so a head of its own has no j.
        self.shared = (j,) if j.size > 1 else ()
        head: Entry = h * j.size + j if self.shared else h
        self.s, self.t, self.d, self.e = s, t, d, e
        self.rows: tuple[Entry, ...] = (b, head, s)
        self.row_shape = (b.size, h.size * j.size, s.size)
        self.q: tuple[Entry, ...] = (*self.rows, d)
        self.k: tuple[Entry, ...] = (b, h, t, d)
        self.v: tuple[Entry, ...] = (b, h, t, e)
        self.out: tuple[Entry, ...] = (*self.rows, e)
        self.scores = (b, h, *self.shared, s, t)

    def row(self, shape: Shape) -> tuple[Entry, ...]:
        """A value a row of the scores, or something else, whole."""
        if shape == (*self.row_shape, 1):
            # As cuDNN's attention gives it.
            return (*self.rows, 0)
        return self.rows if shape == self.row_shape else (ALL,) * len(shape)

    def extra(self, shape: Shape) -> tuple[Entry, ...]:
        """A value a row of the scores, a mask (aligned at the end of [b, heads, s, t]), or
        something else, whole.
        """
        if shape == self.row_shape or not 0 < len(shape) <= 4:
            return self.row(shape)
        full = zip((*self.rows, self.t), (*self.row_shape, self.t.size), strict=True)
        aligned = list(full)[dimension(-len(shape), 4) :]
        return tuple(
            entry if extent == size else 0 if extent == 1 else ALL
            for (entry, size), extent in zip(aligned, shape, strict=True)
        )


def attention(call: Call) -> Description:
    """The forward: the keys stay whole, for the softmax runs over them."""
    q, k, v, *masks = call.inputs
    heads = _Heads(q, k, v, split_keys=False)
    scores = heads.scores
    return Description(
        outputs=(Output(heads.out), *(Output(heads.row(shape)) for shape in call.outputs[1:])),
        inputs=(
            *map(Access, (heads.q, heads.k, heads.v)),
            *(Access(heads.extra(shape)) for shape in masks),
        ),
        flops=(per(2, *scores, heads.d), per(2, *scores, heads.e), per(5, *scores)),
    )


def attention_backward(call: Call) -> Description:
    """Gradients of q, k, v from dout, q, k, v, out and each row's log of its sum of exponentials.

    With that number each block of keys is on its own; without it the keys stay whole.
    """
    _, q, k, v, *others = call.inputs
    heads = _Heads(q, k, v, split_keys=len(others) > 1)
    scores = heads.scores
    over_queries = (heads.s, *heads.shared)
    # A block of keys makes partial sums of dq, but all of its own dk and dv.
    over_keys = (heads.t,) if heads.t.split else ()
    return Description(
        outputs=(
            Output(heads.q, over_keys),
            Output(heads.k, over_queries),
            Output(heads.v, over_queries),
        ),
        inputs=(
            *map(Access, (heads.out, heads.q, heads.k, heads.v)),
            *(Access(heads.out) for _ in others[:1]),
            *(Access(heads.extra(shape)) for shape in others[1:]),
        ),
        flops=(per(6, *scores, heads.d), per(4, *scores, heads.e), per(9, *scores)),
    )


def _exchanged(items: Sequence[T]) -> tuple[T, ...]:
    """[b, s, h, d] as [b, h, s, d] and back; other ranks as they are."""
    return (items[0], items[2], items[1], items[3]) if len(items) == 4 else tuple(items)


def _positions_first(describe: Describer) -> Describer:
    """An attention over [b, h, s, d] as one over [b, s, h, d]."""

    def described(call: Call) -> Description:
        shapes = (tuple(map(_exchanged, shapes)) for shapes in (call.inputs, call.outputs))
        inner = describe(Call(call.attrs, *shapes))
        outputs = (replace(output, index=_exchanged(output.index)) for output in inner.outputs)
        inputs = (replace(access, index=_exchanged(access.index)) for access in inner.inputs)
        return replace(inner, outputs=tuple(outputs), inputs=tuple(inputs))

    return described


def rotary_embedding(call: Call) -> Description:
    """y[b, s, h, :] = x[b, s, h, :] turned by an angle that s tells; its gradient is turned back,
    the same op.
    """
    points = numbered(call.outputs[0], [len(call.outputs[0]) - 1])
    return Description((Output(points),), (Access(points),), (per(3, *points),))


for _name in (
    "attention",
    "scaled_dot_product_attention",
    "scaled_dot_product_cudnn_attention",
    "scaled_dot_product_flash_attention",
    "scaled_dot_product_flash_attention_for_cpu",
    "scaled_dot_product_efficient_attention",
):
    register(
        _name,
        attention,
        "attention",
        "q[b, h, s, d], k[b, h, t, d], v[b, h, t, e], mask[b, h, s, t] or none",
        "y[b, h, s, e], lse[b, h, s] or none",
        "is_causal",
    )
    register(
        f"{_name}_backward",
        attention_backward,
        "attention",
        "dy, q, k, v, y, lse[b, h, s] or none, mask or none",
        "dq, dk, dv",
        "is_causal",
    )
register(
    "flash_attention",
    _positions_first(attention),
    "attention",
    "q[b, s, h, d], k[b, t, h, d], v[b, t, h, e]",
    "y[b, s, h, e], lse[b, h, s] or none",
    "is_causal",
)
register(
    "flash_attention_backward",
    _positions_first(attention_backward),
    "attention",
    "dy, q, k, v, y, lse[b, h, s]",
    "dq, dk, dv",
    "is_causal",
)
register("rotary_embedding", rotary_embedding, "elementwise", "x[b, s, h, d]", "y[b, s, h, d]")
