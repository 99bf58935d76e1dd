"""Sums of products: matrix products, bilinear layers, an LSTM's step, einsum, and attention as one
op, with rotary embeddings.

2 m n k operations for a matrix product. One step of an LSTM is one op, its backward comes in two
halves: gates[n, g, d] = Sum over i of x[n, i] * w_ih[g, d, i] + Sum over j of h[n, j] * w_hh[g, d,
j] + bias[g, d], for the four gates g; then c' = f c + i g and h' = o tanh(c'). Its weights have the
gate first, so that a part along d is one block of each gate; the sums stay whole, since they pass
through nonlinear functions.

Scaled dot-product attention: out[b, h, s, e] = Sum over t of softmax over t(q[b, h, s, :] . k[b, h,
t, :]) * v[b, h, t, e]. With fewer heads of k and v than of q (grouped queries), heads h * j .. h *
j + j - 1 of q share head h. Operations: 2 s t (d + e) a head and 5 s t for the softmax; backward 2
s t (3 d + 2 e), the scores computed again, and 9 s t. A causal mask saves nothing here; the tiles
that its kernels skip are left out of the load (``keys.Load``). FlashAttention lays sequences out as
[b, s, h, d], heads after positions, so that the heads of a projection are a reshape of it, without
a transposition (Dao et al., "FlashAttention", NeurIPS 2022); so do rotary embeddings (Su et al.,
"RoFormer", 2021).

The extents by which estimates compare such kernels are counted in
``simdev/nouns/semantics/keys.py``, which knows attention and its backward by their names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from ..description import (
    ALL,
    Access,
    Axis,
    Call,
    Describer,
    Description,
    Entry,
    Output,
    Shape,
    axes,
    per,
)
from ..registry import Traits, register
from . import broadcast, broadcast_reads, dimension, made, numbered, register_each

T = TypeVar("T")
_BATCH = {0: "", 1: "b", 2: "b h"}
TRANSPOSES = Traits(transposes=("transpose_a", "transpose_b"))


def matmul(call: Call) -> Description:
    """out[.., m, n] = Sum over k of a[.., m, k] * b[.., k, n]; transposed operands are [.., k, m]
    and [.., n, k].
    """
    first, second = call.inputs
    out = call.outputs[0]
    flipped, turned = (call.attrs.get(name) for name in TRANSPOSES.transposes)
    names = _BATCH.get(len(out) - 2) or " ".join(f"b{i}" for i in range(len(out) - 2))
    lead = axes(names, out[:-2])
    # A vector times a matrix has no rows, but is the same kind.
    names = "m n k" if len(out) > 1 else "n k"
    *rows, n, k = axes(names, (*out[-2:], first[-2] if flipped else first[-1]))
    left: tuple[Entry, ...] = (k, *rows) if flipped else (*rows, k)
    right: tuple[Entry, ...] = (n, k) if turned else (k, n)
    return Description(
        outputs=(Output((*lead, *rows, n), over=(k,)),),
        inputs=(
            Access((*broadcast(first[:-2], lead), *left)),
            Access((*broadcast(second[:-2], lead), *right)),
        ),
        flops=(per(2, *lead, *rows, n, k),),
    )


def linear(call: Call) -> Description:
    """y[.., m, n] = Sum over k of x[.., m, k] * weight[n, k], plus bias[n]; weight is [k, n]
    without transpose_b.
    """
    product = matmul(Call(call.attrs, call.inputs[:2], call.outputs))
    biases = broadcast_reads(call.inputs[2:], _points(product))
    parameters = tuple(range(1, len(call.inputs)))
    return replace(product, inputs=(*product.inputs, *biases), parameters=parameters)


def baddbmm(call: Call) -> Description:
    """out[b, m, n] = c[b, m, n] + Sum over k of a[b, m, k] * b[b, k, n]."""
    product = matmul(Call(call.attrs, call.inputs[1:], call.outputs))
    added = broadcast_reads(call.inputs[:1], _points(product))
    return replace(product, inputs=(*added, *product.inputs))


def _points(description: Description) -> list[Axis]:
    return [entry for entry in description.outputs[0].index if isinstance(entry, Axis)]


def letters_of(equation: str) -> tuple[str, str, str]:
    """The letters of both operands and of the output of an einsum equation. Raises ValueError."""
    operands, arrow, made = equation.replace(" ", "").partition("->")
    first, comma, second = operands.partition(",")
    words = first, second, made
    once = all(word.isalpha() and len(set(word)) == len(word) for word in words)
    if not arrow or not comma or not once:
        raise ValueError(
            f'equation: must read as "ij,jk->ik", each letter once an operand, got "{equation}"'
        )
    if not set(made) <= set(first) | set(second):
        raise ValueError(f'equation: "{made}" has letters that no operand has')
    return words


def einsum(call: Call) -> Description:
    """y[output letters] = Sum over all other letters of a[..] * b[..]: 2 operations for each point
    of all letters.
    """
    first, second, made = letters_of(str(call.attrs["equation"]))
    named = _bound((made, first, second), (call.outputs[0], *call.inputs))
    over = tuple(axis for name, axis in named.items() if name not in made)
    return Description(
        outputs=(Output(tuple(named[name] for name in made), over),),
        inputs=tuple(Access(tuple(named[name] for name in word)) for word in (first, second)),
        flops=(per(2, *named.values()),),
    )


def _bound(
    words: Sequence[Sequence[str]], shapes: Sequence[Shape], whole: Sequence[str] = ()
) -> Mapping[str, Axis]:
    """The axes named in the words of each tensor, with the extent of their first place."""
    named: dict[str, Axis] = {}
    for word, shape in zip(words, shapes, strict=True):
        if len(word) != len(shape):
            raise ValueError(
                f'equation: "{"".join(word)}" has {len(word)} letters, the tensor has {len(shape)} '
                "dimensions"
            )
        for name, size in zip(word, shape, strict=True):
            named.setdefault(name, Axis(name, size, name not in whole))
    return named


# A tensor in the notation of the table of kinds: "dbias[o] over n or none".
_TENSOR = re.compile(
    r"[\w']+\[(?P<index>[\w, ]*)\]"
    r"(?: over (?P<over>\w\b(?: \w\b)*))?(?P<repeated> or none| \(none.*\))?"
)


@dataclass(frozen=True, slots=True)
class _Tensor:
    """The names of a tensor's axes and of the axes that it is summed over; ``repeated``: the tensor
    may be left out, or come several times.
    """

    index: tuple[str, ...]
    over: tuple[str, ...]
    repeated: bool


def _tensors(text: str) -> list[_Tensor]:
    return [
        _Tensor(
            tuple(match["index"].replace(",", "").split()),
            tuple((match["over"] or "").split()),
            match["repeated"] is not None,
        )
        for match in _TENSOR.finditer(text)
    ]


def _each(tensors: Sequence[_Tensor], count: int) -> Sequence[_Tensor]:
    """``count`` tensors: the last one is repeated as often as necessary, where it may be."""
    *first, last = tensors
    return [*first, *[last] * (count - len(first))] if last.repeated else tensors


def contraction(
    operands: str,
    outputs: str,
    operations: Mapping[str, int],
    whole: str = "",
    weights: int | None = None,
    gradients: bool = False,
) -> Describer:
    """Describer of sums of products, from the notation of the table of kinds.

    ``operations`` are at each point of some axes; ``whole`` names the axes that cannot be split;
    operands from number ``weights`` on are weights; with ``gradients`` all outputs are gradients of
    weights.
    """
    read, made = _tensors(operands), _tensors(outputs)

    def describe(call: Call) -> Description:
        reads, makes = _each(read, len(call.inputs)), _each(made, len(call.outputs))
        named = _bound([tensor.index for tensor in reads], call.inputs, whole)

        def points(names: Sequence[str]) -> tuple[Axis, ...]:
            return tuple([named[name] for name in names])

        return Description(
            outputs=tuple([Output(points(tensor.index), points(tensor.over)) for tensor in makes]),
            inputs=tuple([Access(points(tensor.index)) for tensor in reads]),
            flops=tuple([per(count, *points(text.split())) for text, count in operations.items()]),
            parameters=() if weights is None else tuple(range(weights, len(reads))),
            gradients=tuple(range(len(makes))) if gradients else (),
        )

    return describe


def _register(
    name: str,
    op_class: str,
    operands: str,
    outputs: str,
    operations: Mapping[str, int],
    **settings: Any,
) -> None:
    register(
        name, contraction(operands, outputs, operations, **settings), op_class, operands, outputs
    )


_ROWS = "transpose_a (a is [.., k, m]), transpose_b (b is [.., n, k])"
_LAYER = "x[.., m, k], weight[n, k] with transpose_b (else [k, n]), bias[n] or none"
_STACK = "a[b, m, k] or a[b, h, m, k], b likewise [.., k, n]"
for _name, _describe, _operands, _outputs, _attributes in (
    ("matmul", matmul, "a[.., m, k], b[.., k, n]", "y[.., m, n]", _ROWS),
    ("batch_matmul", matmul, _STACK, "y[b, m, n] or y[b, h, m, n]", "transpose_a, transpose_b"),
    ("linear", linear, _LAYER, "y[.., m, n]", "transpose_b, transpose_a"),
):
    register(_name, _describe, "gemm", _operands, _outputs, _attributes, TRANSPOSES)
register("baddbmm", baddbmm, "gemm", "c[b, m, n], a[b, m, k], b[b, k, n]", "y[b, m, n]")
register("einsum", einsum, "gemm", "a, b", "y", 'equation ("bshd,bthd->bhst")')

_register("mv", "gemm", "a[m, k], b[k]", "y[m] over k", {"m k": 2})
_register("dot", "gemm", "a[k], b[k]", "y[] over k", {"k": 2})
# A bilinear layer counts one product with the weight, as each half of its backward does for each of
# its outputs; the second product, smaller by an extent, is left out.
_register(
    "bilinear",
    "gemm",
    "x[n, i], z[n, j], weight[o, i, j], bias[o] or none",
    "y[n, o] over i j",
    {"n o i j": 2},
    weights=2,
)
_register(
    "bilinear_backward_input",
    "gemm",
    "dy[n, o], x[n, i], z[n, j], weight[o, i, j]",
    "dx[n, i] over o j, dz[n, j] over o i",
    {"n o i j": 4},
    weights=3,
)
_register(
    "bilinear_backward_weight",
    "gemm",
    "dy[n, o], x[n, i], z[n, j]",
    "dweight[o, i, j] over n, dbias[o] over n or none",
    {"n o i j": 2},
    gradients=True,
)

_GATES = {"n g d i": 2, "n g d j": 2}
# Four activations of 1 to 4 operations, two tanh, and the products and sums, bias included.
_LSTM_POINTWISE = 25
_LSTM_POINTWISE_BACKWARD = 32
_register(
    "lstm_cell",
    "recurrent",
    "x[n, i], h[n, j], c[n, d], w_ih[g, d, i], w_hh[g, d, j], bias[g, d] (none, one or two)",
    "h'[n, d], c'[n, d], gates[n, g, d] or none",
    _GATES | {"n d": _LSTM_POINTWISE},
    whole="g i j",
    weights=3,
)
_register(
    "lstm_cell_backward_input",
    "recurrent",
    "dh'[n, d], dc'[n, d], c[n, d], c'[n, d], gates[n, g, d], w_ih[g, d, i], w_hh[g, d, j]",
    "dx[n, i] over g d, dh[n, j] over g d, dc[n, d], dgates[n, g, d]",
    _GATES | {"n d": _LSTM_POINTWISE_BACKWARD},
    whole="g i j",
    weights=5,
)
_register(
    "lstm_cell_backward_weight",
    "recurrent",
    "dgates[n, g, d], x[n, i], h[n, j]",
    "dw_ih[g, d, i] over n, dw_hh[g, d, j] over n, dbias[g, d] over n or none",
    _GATES,
    whole="g i j",
    gradients=True,
)


def lstm_layer(call: Call, backward: bool) -> Description:
    """A layer of an LSTM over a whole sequence in one direction, as PyTorch runs it on a CPU, with
    the steps of ``lstm_cell``.

    Only the samples can be split: each step reads the whole previous state, and all gates.
    """
    (steps, samples, features), hidden = call.inputs[0], call.inputs[2][1]
    (n,) = axes("n", (samples,))
    t, i, g, d = axes("t i g d", (steps, features, call.inputs[1][0], hidden), False)
    weights = (g, i), (g, d), (g,), (g,)
    state = Output((n, d))
    # States and their gradients; gradients that are not given and the workspace are of any size.
    rest: dict[int, tuple[Entry, ...]] = {3: (t, n, d), 2: (n, d), 1: (ALL,)}
    if backward:
        gradients = [Output(index, (t, n)) for index in weights]
        outputs = Output((t, n, i)), *gradients, state, state
    else:
        outputs = Output((t, n, d)), state, state, *(Output((ALL,)) for _ in call.outputs[3:])
    products, pointwise = (4, _LSTM_POINTWISE_BACKWARD) if backward else (2, _LSTM_POINTWISE)
    read = (t, n, i), *weights, *(rest[len(shape)] for shape in call.inputs[5:])
    return Description(
        outputs=outputs,
        inputs=tuple(map(Access, read)),
        flops=(per(products, t, n, g, i), per(products, t, n, g, d), per(pointwise, t, n, d)),
        parameters=(1, 2, 3, 4),
        gradients=(1, 2, 3, 4) if backward else (),
        sample="n",
    )


_OF_LAYER = "x[t, n, i], w_ih[g, i], w_hh[g, d], b_ih[g], b_hh[g], h[n, d], c[n, d]"
register(
    "mkldnn_rnn_layer",
    partial(lstm_layer, backward=False),
    "recurrent",
    _OF_LAYER,
    "y[t, n, d], h'[n, d], c'[n, d], workspace",
)
register(
    "mkldnn_rnn_layer_backward",
    partial(lstm_layer, backward=True),
    "recurrent",
    f"{_OF_LAYER}, y[t, n, d], h'[n, d], c'[n, d], dy, dh', dc' (as given), workspace",
    "dx[t, n, i], dw_ih[g, i], dw_hh[g, d], db_ih[g], db_hh[g], dh[n, d], dc[n, d]",
)


class _Heads:
    """The axes of one attention, and the indices of its tensors by them."""

    def __init__(self, q: Shape, k: Shape, v: Shape, split_keys: bool) -> None:
        if q[1] % max(1, k[1]):
            raise ValueError(f"{q[1]} heads of q are no multiple of {k[1]} heads of k")
        b, h, j = axes("b h j", (q[0], k[1], q[1] // max(1, k[1])))
        s, t = Axis("s", q[2]), Axis("t", k[2], split_keys)
        d, e = axes("d e", (q[3], v[3]), split=False)
        # An axis of one point would only be another to cut, so heads that share nothing have no j.
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
        """The index of a value for each row of the scores; of another tensor, all of it."""
        if shape == (*self.row_shape, 1):
            # The form that cuDNN's attention returns.
            return (*self.rows, 0)
        return self.rows if shape == self.row_shape else (ALL,) * len(shape)

    def extra(self, shape: Shape) -> tuple[Entry, ...]:
        """The index of an extra operand: a value for each row of the scores, a mask (aligned at the
        end of [b, heads, s, t]), or any other tensor, whole.
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
    """The forward of attention; the keys stay whole, since the softmax runs over them."""
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
    """Gradients of q, k, v from dout, q, k, v, out and the log of each row's sum of exponentials.

    With this logarithm each block of keys is independent; without it the keys stay whole.
    """
    _, q, k, v, *others = call.inputs
    heads = _Heads(q, k, v, split_keys=len(others) > 1)
    scores = heads.scores
    over_queries = (heads.s, *heads.shared)
    # A block of keys makes partial sums of dq, but its dk and dv completely.
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
    """[b, s, h, d] as [b, h, s, d] and back; other ranks are unchanged."""
    return (items[0], items[2], items[1], items[3]) if len(items) == 4 else tuple(items)


def _positions_first(describe: Describer) -> Describer:
    """The describer of an attention over [b, s, h, d], from one over [b, h, s, d]."""

    def described(call: Call) -> Description:
        shapes = (tuple(map(_exchanged, shapes)) for shapes in (call.inputs, call.outputs))
        inner = describe(Call(call.attrs, *shapes))
        outputs = (replace(output, index=_exchanged(output.index)) for output in inner.outputs)
        inputs = (replace(access, index=_exchanged(access.index)) for access in inner.inputs)
        return replace(inner, outputs=tuple(outputs), inputs=tuple(inputs))

    return described


def rotary_embedding(call: Call) -> Description:
    """y[b, s, h, :] = x[b, s, h, :] rotated by an angle that depends on s; the gradient is the same
    op with the opposite angle.
    """
    points = numbered(call.outputs[0], [len(call.outputs[0]) - 1])
    return made(points, [points], 3)


_KINDS = (
    "attention scaled_dot_product_attention scaled_dot_product_cudnn_attention "
    "scaled_dot_product_flash_attention scaled_dot_product_flash_attention_for_cpu "
    "scaled_dot_product_efficient_attention"
)
register_each(
    _KINDS,
    attention,
    "attention",
    "q[b, h, s, d], k[b, h, t, d], v[b, h, t, e], mask[b, h, s, t] or none",
    "y[b, h, s, e], lse[b, h, s] or none",
    "is_causal",
)
register_each(
    " ".join(f"{name}_backward" for name in _KINDS.split()),
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
