"""NASNet-A (Zoph et al., "Learning transferable architectures for scalable image recognition",
2018), and networks of any cell of that kind, as ENAS samples them (Pham et al., "Efficient neural
architecture search via parameter sharing", ICML 2018, section 2.4).

The cells are those of the paper's figure 4, the frame (stem of two reductions, three groups of
normal cells) that of its ImageNet networks. Left out: the auxiliary head and scheduled drop path.
"""

from __future__ import annotations

from ...ground.errors import InputError
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
OPERATIONS = ("identity", "separable_3", "separable_5", "average_3", "max_3")
"""Those of ENAS's cells (section 2.4)."""


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
            frame = STRIDE[pairs], JOINED[pairs]
            states.append(_cell(states[-1], before, width, pairs, frame, first=name == "stem_0"))
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


@model("enas-images-{cells}-{filters}-b{batch}", "momentum")
def enas_images(
    step: StepBuilder,
    batch: int = 128,
    cell: str = "separable_3 0 identity 1, separable_5 0 average_3 1, max_3 2 separable_3 0",
    cells: int = 3,
    filters: int = 36,
    classes: int = 10,
    size: int = 32,
) -> Value:
    """Classifies ``batch`` images of 3 x ``size`` x ``size`` (CIFAR-10's) by ``cells`` equal cells.

    ``cell`` has a node for each comma: two operations and the states that they read, 0 this cell's
    input, 1 the one before, 2 the first node; states that none reads leave the cell. Operations are
    separable_3, separable_5, average_3, max_3 and identity, as in ENAS. Behind each cell but the
    last, images are halved by a pooling and filters doubled by the next cell (ours; ENAS samples a
    second cell for that).
    """
    pairs = cell_of(cell)
    read = {state for _, a, _, b in pairs for state in (a, b)}
    joined = tuple(state for state in range(2 + len(pairs)) if state not in read)
    with step.scope("conv_0"):
        x = before = batch_norm(conv2d(images(step, batch, size), filters, 3, 1, 1))
    for i in range(cells):
        with step.scope(f"cell_{i}"):
            y = _cell(x, before, filters * 2**i, pairs, (1, joined), first=i == 0)
        before = x
        with step.scope(f"pool_{i}"):
            x = avg_pool2d(y, 3, 2, 1) if i + 1 < cells else y
    with step.scope("head"):
        x = dropout(global_avg_pool(relu(x)))
    return prediction_loss(linear(flat(x), classes, "fc"))


def cell_of(text: str) -> tuple[Pair, ...]:
    """The pairs of a cell that is written out. Raises InputError."""
    pairs = list[Pair]()
    for node, part in enumerate(text.split(",")):
        words = part.split()
        known = len(words) == 4 and all(name in OPERATIONS for name in words[::2])
        if not known or any(state not in map(str, range(node + 2)) for state in words[1::2]):
            raise InputError(
                f'cell: must be nodes like "max_3 0 identity 1", of {", ".join(OPERATIONS)} and of '
                f'states before, got "{part.strip()}"'
            )
        pairs.append((words[0], int(words[1]), words[2], int(words[3])))
    return tuple(pairs)


def _cell(
    x: Value,
    before: Value,
    width: int,
    pairs: tuple[Pair, ...],
    frame: tuple[int, tuple[int, ...]],
    first: bool,
) -> Value:
    """Pairs of operations over the states of this cell and the one before; ``frame`` is their
    stride on the two inputs, and the states that leave the cell.
    """
    stride, joined = frame
    states = [_squeeze(x, width, "squeeze"), _adjusted(before, x, width, first)]
    for i, (left, a, right, b) in enumerate(pairs):
        steps = [stride if state < 2 else 1 for state in (a, b)]
        y = _operation(states[a], left, width, steps[0], f"left_{i}")
        states.append(y + _operation(states[b], right, width, steps[1], f"right_{i}"))
    return concat([states[i] for i in joined], 1)


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
