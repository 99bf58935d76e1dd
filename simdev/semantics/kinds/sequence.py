"""Kinds over sequences as FlashAttention and rotary embeddings lay them out: [b, s, h, d], heads
after positions.

So the heads of a projection are a reshape of it, and no transposition stands between them (Dao et
al., "FlashAttention", NeurIPS 2022; Su et al., "RoFormer", 2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TypeVar

from ..description import Access, Call, Describer, Description, Entry, Output, per
from ..registry import register
from .attention import attention, attention_backward
from .common import dimension, numbered

T = TypeVar("T")


def _exchanged(items: Sequence[T]) -> tuple[T, ...]:
    """[b, s, h, d] as [b, h, s, d] and back; other ranks as they are."""
    return (items[0], items[2], items[1], items[3]) if len(items) == 4 else tuple(items)


def _positions_first(describe: Describer) -> Describer:
    """An attention over [b, h, s, d] as one over [b, s, h, d]."""

    def described(call: Call) -> Description:
        shapes = tuple(map(_exchanged, call.inputs)), tuple(map(_exchanged, call.outputs))
        inner = describe(Call(call.attrs, *shapes))
        return replace(
            inner,
            outputs=tuple(
                replace(output, index=_exchanged(output.index)) for output in inner.outputs
            ),
            inputs=tuple(
                replace(access, index=_exchanged(access.index)) for access in inner.inputs
            ),
        )

    return described


def rotary_embedding(call: Call) -> Description:
    """y[b, s, h, :] = x[b, s, h, :] turned by an angle that s tells; its gradient is turned back,
    the same op.
    """
    points = numbered(call.outputs[0], [len(call.outputs[0]) - 1])
    return Description((Output(points),), (Access(points),), (per(3, *points),))


def gather_backward(call: Call) -> Description:
    """Zeros, and dy[.., i, ..] added at index[.., i, ..] along ``dim``, which stays whole."""
    along = dimension(int(call.attrs.get("dim", 0)), len(call.outputs[0]))
    points = numbered(call.outputs[0], [along])
    index: tuple[Entry, ...] = tuple(None if i == along else axis for i, axis in enumerate(points))
    share = Fraction(call.inputs[0][along], max(1, points[along].size))
    return Description((Output(points),), (Access(index), Access(index)), (per(share, *points),))


register(
    "flash_attention",
    _positions_first(attention),
    "attention",
    operands="q[b, s, h, d], k[b, t, h, d], v[b, t, h, e]",
    outputs="y[b, s, h, e], lse[b, h, s] or none",
    attributes="is_causal",
)
register(
    "flash_attention_backward",
    _positions_first(attention_backward),
    "attention",
    operands="dy, q, k, v, y, lse[b, h, s]",
    outputs="dq, dk, dv",
    attributes="is_causal",
)
register(
    "rotary_embedding",
    rotary_embedding,
    "elementwise",
    operands="x[b, s, h, d]",
    outputs="y[b, s, h, d]",
)
register(
    "gather_backward",
    gather_backward,
    "embedding",
    operands="dy, index",
    outputs="dx",
    attributes="dim",
)
