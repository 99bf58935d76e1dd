"""Scaled dot-product attention as one op, forward and backward.

out[b, h, s, e] = Sum over t of softmax over t(q[b, h, s, :] . k[b, h, t, :]) * v[b, h, t, e]. With
fewer heads of k and v than of q (grouped queries), heads h * j .. h * j + j - 1 of q share head h.
Operations: 2 s t (d + e) a head and 5 s t for the softmax; backward 2 s t (3 d + 2 e), the scores
computed again, and 9 s t. A causal mask saves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..description import ALL, Access, Call, Description, Entry, Output, Shape, axes, per
from ..index import Axis
from ..registry import register
from .common import dimension


class _Heads:
    """The axes of one attention."""

    def __init__(self, q: Shape, k: Shape, v: Shape, split_keys: bool) -> None:
        if q[1] % max(1, k[1]):
            raise ValueError(f"{q[1]} heads of q are no multiple of {k[1]} heads of k")
        self.b, self.h, self.j = axes("b h j", (q[0], k[1], q[1] // max(1, k[1])))
        self.s = Axis("s", q[2])
        self.t = Axis("t", k[2], split_keys)
        self.d, self.e = axes("d e", (q[3], v[3]), split=False)
        self.of_q: Entry = self.h * self.j.size + self.j if self.j.size > 1 else self.h
        self.queries: tuple[Entry, ...] = (self.b, self.of_q, self.s)
        self.keys: tuple[Entry, ...] = (self.b, self.h, self.t)
        self.scores = (
            (self.b, self.h, self.j, self.s, self.t)
            if self.j.size > 1
            else (self.b, self.h, self.s, self.t)
        )

    def extra(self, shape: Shape) -> tuple[Entry, ...]:
        """A mask (aligned at the end of [b, heads, s, t]), a value a row of the scores, or
        something else, whole.
        """
        rows = (self.b.size, self.h.size * self.j.size, self.s.size)
        if shape == rows:
            return self.queries
        full = ((self.b, rows[0]), (self.of_q, rows[1]), (self.s, rows[2]), (self.t, self.t.size))
        aligned = full[dimension(-len(shape), 4) :] if 0 < len(shape) <= 4 else ()
        if shape and len(aligned) == len(shape):
            found: Sequence[Entry] = [
                entry if extent == size else 0 if extent == 1 else ALL
                for (entry, size), extent in zip(aligned, shape, strict=True)
            ]
            return tuple(found)
        return (ALL,) * len(shape)


def attention(call: Call) -> Description:
    """The forward: the keys stay whole, for the softmax runs over them."""
    q, k, v = call.inputs[:3]
    a = _Heads(q, k, v, split_keys=False)
    scores = a.scores
    return Description(
        outputs=(
            Output((*a.queries, a.e)),
            *(Output(_row(a, shape)) for shape in call.outputs[1:]),
        ),
        inputs=(
            Access((*a.queries, a.d)),
            Access((*a.keys, a.d)),
            Access((*a.keys, a.e)),
            *(Access(a.extra(shape)) for shape in call.inputs[3:]),
        ),
        flops=(per(2, *scores, a.d), per(2, *scores, a.e), per(5, *scores)),
    )


def _row(a: _Heads, shape: Shape) -> tuple[Entry, ...]:
    return a.queries if shape == (a.b.size, a.h.size * a.j.size, a.s.size) else (ALL,) * len(shape)


def attention_backward(call: Call) -> Description:
    """Gradients of q, k, v from dout, q, k, v, out and each row's log of its sum of exponentials.

    With that number each block of keys is on its own; without it the keys stay whole.
    """
    q, k, v = call.inputs[1:4]
    a = _Heads(q, k, v, split_keys=len(call.inputs) > 5)
    scores = a.scores
    over_queries = (a.s, a.j) if a.j.size > 1 else (a.s,)
    over_keys = (a.t,) if a.t.split else ()
    made = [
        Output((*a.queries, a.d), over_keys),
        Output((*a.keys, a.d), over_queries),
        Output((*a.keys, a.e), over_queries),
    ]
    out = [Access((*a.queries, a.e)) for _ in call.inputs[4:5]]
    return Description(
        outputs=tuple(made),
        inputs=(
            Access((*a.queries, a.e)),
            Access((*a.queries, a.d)),
            Access((*a.keys, a.d)),
            Access((*a.keys, a.e)),
            *out,
            *(Access(a.extra(shape)) for shape in call.inputs[5:]),
        ),
        flops=(per(6, *scores, a.d), per(4, *scores, a.e), per(9, *scores)),
    )


_FORWARD = (
    "attention",
    "scaled_dot_product_attention",
    "scaled_dot_product_flash_attention",
    "scaled_dot_product_flash_attention_for_cpu",
    "scaled_dot_product_efficient_attention",
)
for _name in _FORWARD:
    register(
        _name,
        attention,
        "attention",
        operands="q[b, h, s, d], k[b, h, t, d], v[b, h, t, e], mask[b, h, s, t] or none",
        outputs="y[b, h, s, e], lse[b, h, s] or none",
        attributes="is_causal",
    )
    register(
        f"{_name}_backward",
        attention_backward,
        "attention",
        operands="dy, q, k, v, y, lse[b, h, s] or none, mask or none",
        outputs="dq, dk, dv",
        attributes="is_causal",
    )
