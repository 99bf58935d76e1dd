"""ResNet (He et al., "Deep residual learning for image recognition", 2015), with the stride in the
3x3 convolution.

The paper puts the stride into the first 1x1; the field has moved it, at the same number of
parameters: 25,557,032, 44,549,160 and 60,192,808 for 50, 101 and 152 layers. Widened (``widen``
times the channels of every convolution) it is the WResNet of Tofu (Wang et al., EuroSys 2019,
section 7).
"""

from __future__ import annotations

from ..errors import InputError
from ..graph import Graph
from .checking import model
from .images import classified, images
from .ops import batch_norm, conv2d, flat, global_avg_pool, linear, max_pool2d, relu
from .step import Step, Value

BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
"""Bottlenecks of each stage, by depth."""
EXPANSION = 4


@model
def resnet(
    batch: int = 64,
    depth: int = 50,
    widen: int = 1,
    classes: int = 1000,
    size: int = 224,
    dtype: str = "float32",
    optimizer: str = "momentum",
) -> Graph:
    """Classifies ``batch`` images of 3 x ``size`` x ``size``; ``depth`` 50, 101 or 152.

    Raises InputError.
    """
    if depth not in BLOCKS:
        raise InputError(f"depth: must be 50, 101 or 152, got {depth}")
    name = f"resnet-{depth}" if widen == 1 else f"wresnet-{depth}-{widen}"
    step = Step(f"{name}-b{batch}", dtype, optimizer)
    x = images(step, batch, size)
    with step.scope("stem"):
        x = max_pool2d(relu(batch_norm(conv2d(x, 64 * widen, 7, 2, 3))), 3, 2, 1)
    for stage, count in enumerate(BLOCKS[depth], 1):
        for i in range(count):
            stride = 2 if i == 0 and stage > 1 else 1
            with step.scope(f"stage_{stage}_{i}"):
                x = _bottleneck(x, 64 * widen * 2 ** (stage - 1), stride)
    with step.scope("head"):
        x = global_avg_pool(x)
    return classified(linear(flat(x), classes, "fc"))


def _bottleneck(x: Value, width: int, stride: int) -> Value:
    """1x1, 3x3 and 1x1 convolution beside a shortcut, which is a convolution where the shape
    changes.
    """
    out = EXPANSION * width
    y = relu(_unit(x, width, 1, 1, "unit_1"))
    y = relu(_unit(y, width, 3, stride, "unit_2"))
    y = _unit(y, out, 1, 1, "unit_3")
    shortcut = x if stride == 1 and x.shape[1] == out else _unit(x, out, 1, stride, "shortcut")
    return relu(y + shortcut)


def _unit(x: Value, channels: int, kernel: int, stride: int, name: str) -> Value:
    with x.step.scope(name):
        return batch_norm(conv2d(x, channels, kernel, stride, kernel // 2))
