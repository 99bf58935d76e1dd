"""Products of two tensors told by letters: "bshd,bthd->bhst" sums over d, which is in no output.

Written-out attention takes these: scores and context read the heads where the projections left
them.
"""

from __future__ import annotations

from ..description import Access, Call, Description, Output, Shape, per
from ..index import Axis
from ..registry import register


def letters_of(equation: str) -> tuple[str, str, str]:
    """Letters of the two operands and of the output. Raises ValueError."""
    operands, arrow, made = equation.replace(" ", "").partition("->")
    first, comma, second = operands.partition(",")
    words = first, second, made
    if (
        not arrow
        or not comma
        or not all(word.isalpha() and len(set(word)) == len(word) for word in words)
    ):
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
    axes: dict[str, Axis] = {}
    for word, shape in zip((made, first, second), (call.outputs[0], *call.inputs), strict=True):
        axes |= {axis.name: axes.get(axis.name, axis) for axis in _axes(word, shape)}
    over = tuple(axis for name, axis in axes.items() if name not in made)
    return Description(
        outputs=(Output(tuple(axes[name] for name in made), over),),
        inputs=tuple(Access(tuple(axes[name] for name in word)) for word in (first, second)),
        flops=(per(2, *axes.values()),),
    )


def _axes(word: str, shape: Shape) -> tuple[Axis, ...]:
    if len(word) != len(shape):
        raise ValueError(
            f'equation: "{word}" has {len(word)} letters, the tensor has {len(shape)} dimensions'
        )
    return tuple(Axis(name, size) for name, size in zip(word, shape, strict=True))


register(
    "einsum",
    einsum,
    "gemm",
    operands="a, b",
    outputs="y",
    attributes='equation ("bshd,bthd->bhst")',
)
