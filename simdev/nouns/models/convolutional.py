"""Classifiers of images: LeNet-5, AlexNet, VGG, ResNet, Inception-V3, NASNet-A and similar cells.

LeNet-5: LeCun et al., "Gradient-based learning applied to document recognition", 1998, in the
field's form: every map of the second convolution reads all of the first, and a softmax ends it;
61,706 parameters. AlexNet: Krizhevsky, "One weird trick for parallelizing convolutional networks",
2014, the one-column form that the papers on parallelization use, without groups and response
normalization; 61,100,840. VGG: Simonyan and Zisserman, "Very deep convolutional networks for
large-scale image recognition", 2014, configurations D and E of table 1; 138,357,544 and
143,667,240. ResNet: He et al., "Deep residual learning for image recognition", 2015; 25,557,032,
44,549,160 and 60,192,808 for 50, 101 and 152 layers.

Inception-V3: Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", 2015,
with the field's names of blocks (mixed_5b ... mixed_7c); every convolution is convolution, batch
norm and ReLU. 23,834,568 parameters, with the auxiliary head 27,161,264.

NASNet-A: Zoph et al., "Learning transferable architectures for scalable image recognition", 2018,
and networks of any such cell, as ENAS samples them (Pham et al., "Efficient neural architecture
search via parameter sharing", ICML 2018, section 2.4). The cells are from the paper's figure 4, the
frame (stem of two reductions, three groups of normal cells) from its ImageNet networks. Left out:
the auxiliary head and scheduled drop path.

``models.MODELS`` names these builders. The same networks for PyTorch are in
``simdev/measure/torch_models/classifiers.py``; ``simdev/learn/families.py`` samples cells of
OPERATIONS.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...ground.errors import InputError
from .backward import model
from .builder import StepBuilder, Value
from .ops import (
    Size,
    avg_pool2d,
    batch_norm,
    concat,
    conv2d,
    cross_entropy,
    dropout,
    flat,
    global_avg_pool,
    images,
    linear,
    max_pool2d,
    pad,
    prediction_loss,
    relu,
    scale,
    tanh,
)

ALEXNET = ((64, 11, 4, 2), (192, 5, 1, 2), (384, 3, 1, 1), (256, 3, 1, 1), (256, 3, 1, 1))
"""Channels, kernel, stride, padding."""
# Convolutions of AlexNet, counted from 1, with a pooling after them.
POOLED = (1, 2, 5)
VGG_CHANNELS = (64, 128, 256, 512, 512)
VGG = {16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
"""Number of 3x3 convolutions of each block, by depth."""
RESNET = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
"""Bottlenecks of each stage, by depth."""
# The output of a bottleneck has four times the channels of its 3x3 convolution (table 1).
EXPANSION = 4


@model("lenet-b{batch}", "momentum")
def lenet(step: StepBuilder, batch: int = 64, classes: int = 10, size: int = 32) -> Value:
    """Classifies ``batch`` gray images of ``size`` x ``size`` into ``classes``."""
    x = images(step, batch, size, channels=1)
    for i, channels in enumerate((6, 16), 1):
        with step.scope(f"conv_{i}"):
            x = avg_pool2d(tanh(conv2d(x, channels, 5, bias=True)), 2, 2)
    x = flat(x)
    for i, features in enumerate((120, 84), 3):
        with step.scope(f"block_{i}"):
            x = tanh(linear(x, features, "fc"))
    return prediction_loss(linear(x, classes, "fc_5"))


@model("alexnet-b{batch}", "momentum")
def alexnet(step: StepBuilder, batch: int = 256, classes: int = 1000, size: int = 224) -> Value:
    """Classifies ``batch`` images of 3 x ``size`` x ``size`` into ``classes``."""
    x = images(step, batch, size)
    for i, (channels, kernel, stride, padding) in enumerate(ALEXNET, 1):
        with step.scope(f"conv_{i}"):
            x = relu(conv2d(x, channels, kernel, stride, padding, bias=True))
            if i in POOLED:
                x = max_pool2d(x, 3, 2)
    # Dropout is before the layer here and after it in VGG, as in the papers.
    x = flat(x)
    for i in (6, 7):
        with step.scope(f"fc_{i}"):
            x = relu(linear(dropout(x), 4096, "fc"))
    return prediction_loss(linear(x, classes, "fc_8"))


@model("vgg-{depth}-b{batch}", "momentum")
def vgg(
    step: StepBuilder, batch: int = 64, depth: int = 16, classes: int = 1000, size: int = 224
) -> Value:
    """Classifies ``batch`` images of 3 x ``size`` x ``size``; ``depth`` 16 or 19."""
    if depth not in VGG:
        raise InputError(f"depth: must be 16 or 19, got {depth}")
    x = images(step, batch, size)
    for block, (channels, count) in enumerate(zip(VGG_CHANNELS, VGG[depth], strict=True), 1):
        with step.scope(f"block_{block}"):
            for i in range(count):
                x = relu(conv2d(x, channels, 3, padding=1, bias=True, name=f"conv_{i}"))
            x = max_pool2d(x, 2, 2)
    x = flat(x)
    for i in (6, 7):
        with step.scope(f"fc_{i}"):
            x = dropout(relu(linear(x, 4096, "fc")))
    return prediction_loss(linear(x, classes, "fc_8"))


@model("resnet-{depth}-b{batch}", "momentum")
def resnet(
    step: StepBuilder,
    batch: int = 64,
    depth: int = 50,
    widen: int = 1,
    classes: int = 1000,
    size: int = 224,
) -> Value:
    """Classifies ``batch`` images of 3 x ``size`` x ``size``; ``depth`` 50, 101 or 152.

    ``widen`` multiplies the channels of every convolution: the WResNet of Tofu (Wang et al.,
    EuroSys 2019, section 7).
    """
    if depth not in RESNET:
        raise InputError(f"depth: must be 50, 101 or 152, got {depth}")
    if widen > 1:
        step.name = f"wresnet-{depth}-{widen}-b{batch}"
    x = images(step, batch, size)
    with step.scope("stem"):
        x = max_pool2d(relu(batch_norm(conv2d(x, 64 * widen, 7, 2, 3))), 3, 2, 1)
    for stage, count in enumerate(RESNET[depth], 1):
        for i in range(count):
            stride = 2 if i == 0 and stage > 1 else 1
            with step.scope(f"stage_{stage}_{i}"):
                x = _bottleneck(x, 64 * widen * 2 ** (stage - 1), stride)
    return prediction_loss(_scores(x, classes, drop=False))


def _bottleneck(x: Value, width: int, stride: int) -> Value:
    """1x1, 3x3 and 1x1 convolution beside a shortcut, a convolution where the shape changes."""
    out = EXPANSION * width
    y = relu(_normed(x, width, 1, name="unit_1"))
    # The paper has the stride in the first 1x1; the field moved it here, with equal parameters.
    y = relu(_normed(y, width, 3, stride, 1, "unit_2"))
    y = _normed(y, out, 1, name="unit_3")
    is_other = stride > 1 or x.shape[1] != out
    return relu(y + (_normed(x, out, 1, stride, name="shortcut") if is_other else x))


def _normed(
    x: Value, channels: int, kernel: Size, stride: int = 1, padding: Size = 0, name: str = "conv"
) -> Value:
    """Convolution and batch norm at the scope ``name``."""
    with x.step.scope(name):
        return batch_norm(conv2d(x, channels, kernel, stride, padding))


def _scores(x: Value, classes: int, drop: bool = True, active: bool = False) -> Value:
    """Images (n, c, h, w) to scores (n, classes) by the mean of each channel; ``active``: after a
    ReLU.
    """
    with x.step.scope("head"):
        x = dropout(global_avg_pool(relu(x) if active else x), drop)
    return linear(flat(x), classes, "fc")


Block = Mapping[str, Sequence[tuple[int, Size]]]
"""Parallel branches, each a chain of units (channels, kernel); ``branch_pool`` begins with a
pooling.

Where the pooling is the whole branch, the block halves the extent, and so does the last unit of
each other branch.
"""

# A 7x7 convolution as a row and a column of the window: 2/7 of the products (section 3.2).
ROW, COLUMN = (1, 7), (7, 1)
ENDS = ("branch3x3", "branch3x3dbl")
"""Branches of the last blocks that end in parallel 1x3 and 3x1 convolutions."""


def _mixed_5(pooled: int) -> Block:
    return {
        "branch1x1": [(64, 1)],
        "branch5x5": [(48, 1), (64, 5)],
        "branch3x3dbl": [(64, 1), (96, 3), (96, 3)],
        "branch_pool": [(pooled, 1)],
    }


def _mixed_6(width: int) -> Block:
    return {
        "branch1x1": [(192, 1)],
        "branch7x7": [(width, 1), (width, ROW), (192, COLUMN)],
        "branch7x7dbl": [(width, 1), (width, COLUMN), (width, ROW), (width, COLUMN), (192, ROW)],
        "branch_pool": [(192, 1)],
    }


MIXED_7: Block = {
    "branch1x1": [(320, 1)],
    "branch3x3": [(384, 1)],
    "branch3x3dbl": [(448, 1), (384, 3)],
    "branch_pool": [(192, 1)],
}
BLOCKS: Mapping[str, Block] = {
    "mixed_5b": _mixed_5(32),
    "mixed_5c": _mixed_5(64),
    "mixed_5d": _mixed_5(64),
    "mixed_6a": {
        "branch3x3": [(384, 3)],
        "branch3x3dbl": [(64, 1), (96, 3), (96, 3)],
        "branch_pool": [],
    },
    "mixed_6b": _mixed_6(128),
    "mixed_6c": _mixed_6(160),
    "mixed_6d": _mixed_6(160),
    "mixed_6e": _mixed_6(192),
    "mixed_7a": {
        "branch3x3": [(192, 1), (320, 3)],
        "branch7x7x3": [(192, 1), (192, ROW), (192, COLUMN), (192, 3)],
        "branch_pool": [],
    },
    "mixed_7b": MIXED_7,
    "mixed_7c": MIXED_7,
}


@model("inception-v3-b{batch}", "momentum")
def inception_v3(
    step: StepBuilder,
    batch: int = 32,
    classes: int = 1000,
    size: int = 299,
    auxiliary: bool = False,
) -> Value:
    """Classifies ``batch`` images of 3 x ``size`` x ``size``; ``auxiliary``: a second head."""
    x = _active(images(step, batch, size), 32, 3, 2, name="conv2d_1a")
    x = _active(_active(x, 32, 3, name="conv2d_2a"), 64, 3, padding=1, name="conv2d_2b")
    with step.scope("maxpool_3a"):
        x = max_pool2d(x, 3, 2)
    x = _active(_active(x, 80, 1, name="conv2d_3b"), 192, 3, name="conv2d_4a")
    with step.scope("maxpool_5a"):
        x = max_pool2d(x, 3, 2)
    beside = x
    for name, block in BLOCKS.items():
        with step.scope(name):
            x = _mixed(x, block, ENDS if block is MIXED_7 else ())
        # The paper's second head reads the last block of 17x17.
        beside = x if name == "mixed_6e" else beside
    scores = _scores(x, classes)
    return _with_auxiliary(scores, beside) if auxiliary else prediction_loss(scores)


def _mixed(x: Value, block: Block, forked: Sequence[str]) -> Value:
    """Branches over one input, joined by channels; the branches in ``forked`` fork at their end."""
    branches, halving = [], not block["branch_pool"]
    for name, layers in block.items():
        with x.step.scope(name):
            y = x
            if name == "branch_pool":
                y = max_pool2d(x, 3, 2) if halving else avg_pool2d(x, 3, 1, 1)
            for i, (channels, kernel) in enumerate(layers):
                # Where a block halves the extent, a branch's last unit strides without padding.
                last = halving and i == len(layers) - 1
                stride, padding = (2, 0) if last else (1, _same(kernel))
                y = _active(y, channels, kernel, stride, padding, f"conv_{i}")
            branches.append(_forked(y) if name in forked else y)
    return concat(branches, 1)


def _forked(x: Value) -> Value:
    """Parallel 1x3 and 3x1 convolutions."""
    sizes: dict[str, Size] = {"conv1x3": (1, 3), "conv3x1": (3, 1)}
    both = [_active(x, 384, size, 1, _same(size), name) for name, size in sizes.items()]
    return concat(both, 1)


def _same(kernel: Size) -> Size:
    """The padding that keeps the extents."""
    return kernel // 2 if isinstance(kernel, int) else (kernel[0] // 2, kernel[1] // 2)


def _active(
    x: Value, channels: int, kernel: Size, stride: int = 1, padding: Size = 0, name: str = "conv"
) -> Value:
    """Convolution, batch norm and ReLU at the scope ``name``."""
    with x.step.scope(name):
        return relu(batch_norm(conv2d(x, channels, kernel, stride, padding)))


def _with_auxiliary(scores: Value, beside: Value) -> Value:
    """The loss, plus 0.4 times the loss of a second head over mixed_6e."""
    step, (batch, classes) = scores.step, scores.shape
    with step.scope("auxiliary"):
        x = _active(avg_pool2d(beside, 5, 3), 128, 1, name="conv_0")
        x = global_avg_pool(_active(x, 768, 5, name="conv_1"))
        others = linear(flat(x), classes, "fc")
    labels = step.input("labels", batch, dtype="int64")
    loss = cross_entropy(scores, labels)
    with step.scope("auxiliary"):
        return loss + scale(cross_entropy(others, labels))


Pair = tuple[str, int, str, int]
"""Two operations whose results are added, each with the state that it reads: 0 the input of this
cell, 1 the input of the cell before, 2 ... the results of pairs.
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
# Only operations on the two input states have a stride: the others read halved extents.
STRIDE = {NORMAL: 1, REDUCTION: 2}
JOINED = {NORMAL: (1, 2, 3, 4, 5, 6), REDUCTION: (3, 4, 5, 6)}
"""The states that no pair reads, which are joined by channels as the cell's output."""
OPERATIONS = ("identity", "separable_3", "separable_5", "average_3", "max_3")
"""Operations of ENAS's cells (section 2.4)."""


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
    first convolution. ``skip``: a cell behind a reduction reads, as its second input, the state
    before that reduction.
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
        # As in the released large network (TF-slim's skip_reduction_layer_input).
        before = states[-3 if skip and last.startswith("reduction") else -2]
        with step.scope(name):
            frame = STRIDE[pairs], JOINED[pairs]
            states.append(_cell(states[-1], before, width, pairs, frame, first=name == "stem_0"))
        last = name
    return prediction_loss(_scores(states[-1], classes, active=True))


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
    return prediction_loss(_scores(x, classes, active=True))


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
    """The previous state at the extent of x and the width of the cell; unchanged in the very first
    cell.
    """
    if before.shape[2] != x.shape[2]:
        return _halve(before, width)
    return before if first else _squeeze(before, width, "before")


def _squeeze(x: Value, width: int, name: str) -> Value:
    with x.step.scope(name):
        return batch_norm(conv2d(relu(x), width, 1))


def _halve(x: Value, width: int) -> Value:
    """The image at half the extent: two grids, a pixel apart, of half the channels each."""
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
