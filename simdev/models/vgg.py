"""VGG-16 and VGG-19 (Simonyan and Zisserman, "Very deep convolutional networks for large-scale
image recognition").

Configurations D and E of the paper's table 1: 138,357,544 and 143,667,240 parameters.
"""

from __future__ import annotations

from ..errors import InputError
from ..graph import Graph
from .checking import model
from .images import classified, images
from .ops import conv2d, dropout, flat, linear, max_pool2d, relu
from .step import Step

CHANNELS = (64, 128, 256, 512, 512)
CONVOLUTIONS = {16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
"""Number of 3x3 convolutions of each block, by depth."""


@model
def vgg(
    batch: int = 64,
    depth: int = 16,
    classes: int = 1000,
    size: int = 224,
    dtype: str = "float32",
    optimizer: str = "momentum",
) -> Graph:
    """Classifies ``batch`` images of 3 x ``size`` x ``size``; ``depth`` 16 or 19.

    Raises InputError.
    """
    if depth not in CONVOLUTIONS:
        raise InputError(f"depth: must be 16 or 19, got {depth}")
    step = Step(f"vgg-{depth}-b{batch}", dtype, optimizer)
    x = images(step, batch, size)
    for block, (channels, count) in enumerate(zip(CHANNELS, CONVOLUTIONS[depth], strict=True), 1):
        with step.scope(f"block_{block}"):
            for i in range(count):
                x = relu(conv2d(x, channels, 3, padding=1, bias=True, name=f"conv_{i}"))
            x = max_pool2d(x, 2, 2)
    x = flat(x)
    for i in (6, 7):
        with step.scope(f"fc_{i}"):
            x = dropout(relu(linear(x, 4096, "fc")))
    return classified(linear(x, classes, "fc_8"))
