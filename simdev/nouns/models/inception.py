"""Inception-V3 (Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", 2015).

Names of blocks are those of the field (mixed_5b ... mixed_7c). Every convolution is convolution,
batch norm and ReLU. 23,834,568 parameters, with the auxiliary head 27,161,264.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .builder import StepBuilder, Value
from .ops import (
    avg_pool2d,
    batch_norm,
    concat,
    conv2d,
    cross_entropy,
    dropout,
    flat,
    global_avg_pool,
    linear,
    max_pool2d,
    relu,
    scale,
)
from .ops.convolution import Size
from .training import images, model, prediction_loss

Block = Mapping[str, Sequence[tuple[int, Size]]]
"""Branches side by side, each a chain of units (channels, kernel); ``branch_pool`` begins with a
pooling.

Where that is all of it, the block halves the extent: so does the last unit of each other branch.
"""

# A 7x7 convolution as two, a row and a column of the window: 2/7 of the products (section 3.2).
ROW, COLUMN = (1, 7), (7, 1)
ENDS = ("branch3x3", "branch3x3dbl")
"""Branches of the last blocks that end in a 1x3 and a 3x1 convolution beside each other."""


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
    x = _unit(images(step, batch, size), 32, 3, 2, name="conv2d_1a")
    x = _unit(_unit(x, 32, 3, name="conv2d_2a"), 64, 3, padding=1, name="conv2d_2b")
    with step.scope("maxpool_3a"):
        x = max_pool2d(x, 3, 2)
    x = _unit(_unit(x, 80, 1, name="conv2d_3b"), 192, 3, name="conv2d_4a")
    with step.scope("maxpool_5a"):
        x = max_pool2d(x, 3, 2)
    beside = x
    for name, block in BLOCKS.items():
        with step.scope(name):
            x = _mixed(x, block, ENDS if block is MIXED_7 else ())
        # The last blocks of 17x17 are where the paper hangs its second head.
        beside = x if name == "mixed_6e" else beside
    with step.scope("head"):
        x = dropout(global_avg_pool(x))
    scores = linear(flat(x), classes, "fc")
    return _with_auxiliary(scores, beside) if auxiliary else prediction_loss(scores)


def _mixed(x: Value, block: Block, forked: Sequence[str]) -> Value:
    """Branches over one input, joined by channels; those named in ``forked`` fork at their end."""
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
                y = _unit(y, channels, kernel, stride, padding, f"conv_{i}")
            branches.append(_forked(y) if name in forked else y)
    return concat(branches, 1)


def _forked(x: Value) -> Value:
    """A 1x3 and a 3x1 convolution beside each other."""
    sizes: dict[str, Size] = {"conv1x3": (1, 3), "conv3x1": (3, 1)}
    both = [_unit(x, 384, size, 1, _same(size), name) for name, size in sizes.items()]
    return concat(both, 1)


def _same(kernel: Size) -> Size:
    """The padding that keeps the extents."""
    return kernel // 2 if isinstance(kernel, int) else (kernel[0] // 2, kernel[1] // 2)


def _unit(
    x: Value, channels: int, kernel: Size, stride: int = 1, padding: Size = 0, name: str = "conv"
) -> Value:
    with x.step.scope(name):
        return relu(batch_norm(conv2d(x, channels, kernel, stride, padding)))


def _with_auxiliary(scores: Value, beside: Value) -> Value:
    """The loss with that of a second head over mixed_6e, which counts 0.4."""
    step, (batch, classes) = scores.step, scores.shape
    with step.scope("auxiliary"):
        x = _unit(avg_pool2d(beside, 5, 3), 128, 1, name="conv_0")
        x = global_avg_pool(_unit(x, 768, 5, name="conv_1"))
        others = linear(flat(x), classes, "fc")
    labels = step.input("labels", batch, dtype="int64")
    loss = cross_entropy(scores, labels)
    with step.scope("auxiliary"):
        return loss + scale(cross_entropy(others, labels))
