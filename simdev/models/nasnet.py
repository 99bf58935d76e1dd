"""NASNet-A (Zoph et al., "Learning transferable architectures for scalable image recognition",
2018).

The cells are those of the paper's figure 4, the frame (stem of two reductions, three groups of
normal cells) that of its ImageNet networks. Left out: the auxiliary head and scheduled drop path.
"""

from __future__ import annotations

from ..errors import InputError
from .builder import StepBuilder, Value
from .ops import (
    avg_pool2d,
    batch_norm,
    concat,
    conv2d,
    dropout,
    flat,
    global_avg_pool,
    linear,
    max_pool2d,
    pad,
    relu,
)
from .training import images, model, prediction_loss

Pair = tuple[str, int, str, int]
"""Two operations whose results are added, each with the state it reads: 0 this cell's input, 1 the
one before, 2 ...
"""

NORMAL: tuple[Pair, ...] = (
    ("separable_5", 0, "separable_3", 1),
    ("separable_5", 1, "separable_3", 1),
    ("average_3", 0, "identity", 1),
    ("average_3", 1, "average_3", 1),
    ("separable_3", 0, "identity", 0),
)
REDUCTION: tuple[Pair, ...] = (
    ("separable_5", 0, "separable_7", 1),
    ("max_3", 0, "separable_7", 1),
    ("average_3", 0, "separable_5", 1),
    ("identity", 3, "average_3", 2),
    ("separable_3", 2, "max_3", 0),
)
# Only operations on the two input states stride: the others read what has been halved.
STRIDE = {NORMAL: 1, REDUCTION: 2}
JOINED = {NORMAL: (1, 2, 3, 4, 5, 6), REDUCTION: (3, 4, 5, 6)}
"""States that no pair reads leave the cell, joined by channels."""


@model("nasnet-b{batch}", "momentum")
def nasnet(
    step: StepBuilder,
    batch: int = 128,
    filters: int = 44,
    repeats: int = 4,
    stem: int = 32,
    skip: bool = False,
    classes: int = 1000,
    size: int = 224,
) -> Value:
    """Classifies ``batch`` images of 3 x ``size`` x ``size``.

    The defaults are NASNet-A (4 @ 1056), the mobile one.

    ``filters`` of the first group, ``repeats`` of the normal cell in each, ``stem`` channels of the
    first convolution. ``skip``: a cell behind a reduction reads, as the one before, what stood
    before that.
    """
    if filters < 4:
        raise InputError(
            f"filters: must be at least 4, for the stem has a quarter of them; got {filters}"
        )
    # Named as in the paper: by repeats and the channels of the last cell.
    step.name = f"nasnet-{repeats}-{24 * filters}-b{batch}"
    with step.scope("conv_0"):
        x = batch_norm(conv2d(images(step, batch, size), stem, 3, 2))
    states, last = [x, x], ""
    for name, width, pairs in _frame(filters, repeats):
        # The released large network has it so (TF-slim's skip_reduction_layer_input).
        before = states[-3 if skip and last.startswith("reduction") else -2]
        with step.scope(name):
            states.append(_cell(states[-1], before, width, pairs, first=name == "stem_0"))
        last = name
    with step.scope("head"):
        x = dropout(global_avg_pool(relu(states[-1])))
    return prediction_loss(linear(flat(x), classes, "fc"))


def _frame(filters: int, repeats: int) -> list[tuple[str, int, tuple[Pair, ...]]]:
    """Name, width and pairs of every cell."""
    cells = [("stem_0", filters // 4, REDUCTION), ("stem_1", filters // 2, REDUCTION)]
    for group in range(3):
        width = filters * 2**group
        if group:
            cells.append((f"reduction_{group}", width, REDUCTION))
        cells += [(f"cell_{group * repeats + i}", width, NORMAL) for i in range(repeats)]
    return cells


def _cell(x: Value, before: Value, width: int, pairs: tuple[Pair, ...], first: bool) -> Value:
    """Five pairs of operations over the states of this cell and the one before."""
    stride = STRIDE[pairs]
    states = [_squeeze(x, width, "squeeze"), _adjusted(before, x, width, first)]
    for i, (left, a, right, b) in enumerate(pairs):
        steps = [stride if state < 2 else 1 for state in (a, b)]
        y = _operation(states[a], left, width, steps[0], f"left_{i}")
        states.append(y + _operation(states[b], right, width, steps[1], f"right_{i}"))
    return concat([states[i] for i in JOINED[pairs]], 1)


def _adjusted(before: Value, x: Value, width: int, first: bool) -> Value:
    """The state before, at the extent of x and the width of the cell; the very first stays as it
    is.
    """
    if before.shape[2] != x.shape[2]:
        return _halve(before, width)
    return before if first else _squeeze(before, width, "before")


def _squeeze(x: Value, width: int, name: str) -> Value:
    with x.step.scope(name):
        return batch_norm(conv2d(relu(x), width, 1))


def _halve(x: Value, width: int) -> Value:
    """Half the extent: two grids, a pixel apart, of half the channels each."""
    with x.step.scope("before"):
        x = relu(x)
        even = conv2d(avg_pool2d(x, 1, 2), width // 2, 1, name="even")
        odd = conv2d(avg_pool2d(pad(x, -1, 1, -1, 1), 1, 2), width - width // 2, 1, name="odd")
        return batch_norm(concat([even, odd], 1))


def _operation(x: Value, name: str, width: int, stride: int, scope: str) -> Value:
    kind, _, kernel = name.partition("_")
    with x.step.scope(scope):
        if kind == "separable":
            return _separable(x, width, int(kernel), stride)
        if kind == "average":
            return avg_pool2d(x, 3, stride, 1)
        return max_pool2d(x, 3, stride, 1) if kind == "max" else x


def _separable(x: Value, width: int, kernel: int, stride: int) -> Value:
    """ReLU, depthwise and pointwise convolution, batch norm; twice, the stride in the first."""
    for i, by in enumerate((stride, 1)):
        inner = x.shape[1]
        y = conv2d(relu(x), inner, kernel, by, kernel // 2, groups=inner, name=f"depthwise_{i}")
        x = batch_norm(conv2d(y, width, 1, name=f"pointwise_{i}"), f"bn_{i}")
    return x
