"""Sums of products: matrix products, bilinear layers, an LSTM's step, and products told by letters.

2 m n k operations for a matrix product. One step of an LSTM is one op, its backward comes in two
halves: gates[n, g, d] = Sum over i of x[n, i] * w_ih[g, d, i] + Sum over j of h[n, j] * w_hh[g, d,
j] + bias[g, d], for the four gates g; then c' = f c + i g and h' = o tanh(c'). Its weights have the
gate first, so that a split along d is one block of each; the sums stay whole, for what follows them
is not linear.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..description import ALL, Access, Call, Describer, Description, Entry, Output, Shape, axes, per
from ..index import Axis
from ..registry import register
from ..traits import Traits
from .common import broadcast, broadcast_reads

_BATCH = {0: "", 1: "b", 2: "b h"}
TRANSPOSES = Traits(transposes=("transpose_a", "transpose_b"))


def matmul(call: Call) -> Description:
    """out[.., m, n] = Sum over k of a[.., m, k] * b[.., k, n]; transposed, they are [.., k, m] and
    [.., n, k].
    """
    first, second = call.inputs
    out = call.outputs[0]
    flipped, turned = (call.attrs.get(name) for name in TRANSPOSES.transposes)
    names = _BATCH.get(len(out) - 2) or " ".join(f"b{i}" for i in range(len(out) - 2))
    lead = axes(names, out[:-2])
    # A vector times a matrix has no rows; a matrix without rows is no other kind.
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
    """Letters of the two operands and of the output. Raises ValueError."""
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
    """y[made] = Sum over the letters that are not made of a[first] * b[second]: 2 operations a
    point of all letters.
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
    """The axes that the words of tensors name, each of the extent of its first place."""
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


# A tensor as the table of kinds has it: "dbias[o] over n or none".
_TENSOR = re.compile(
    r"[\w']+\[(?P<index>[\w, ]*)\]"
    r"(?: over (?P<over>\w\b(?: \w\b)*))?(?P<repeated> or none| \(none.*\))?"
)


@dataclass(frozen=True, slots=True)
class _Tensor:
    """Names of a tensor's axes and of those that it is summed over; ``repeated``: it may be left
    out, or stand there several times.
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
    """So many tensors: the last stands there as often as it has to, where it may be repeated."""
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
    """Describer of sums of products, from the words of the table of kinds.

    ``operations`` at each point of some axes; ``whole`` names the axes that cannot be split; the
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
# its outputs; the second product, of an extent less, is left out.
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
    """A layer of an LSTM over a whole sequence in one direction, as PyTorch runs it on a CPU: its
    steps are those of ``lstm_cell``.

    Only the samples can be split: each step reads all of the state before, and all gates.
    """
    (steps, samples, features), hidden = call.inputs[0], call.inputs[2][1]
    (n,) = axes("n", (samples,))
    t, i, g, d = axes("t i g d", (steps, features, call.inputs[1][0], hidden), False)
    weights = (g, i), (g, d), (g,), (g,)
    state = Output((n, d))
    # States and gradients of states; gradients that nobody gave and the workspace are of any size.
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
