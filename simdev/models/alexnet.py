"""AlexNet in its one-column form (Krizhevsky, "One weird trick for parallelizing convolutional
networks", 2014).

The form that the papers on parallelization use: no groups and no response normalization. 61,100,840
parameters.
"""

from __future__ import annotations

from ..graph import Graph
from .checking import model
from .images import classified, images
from .ops import conv2d, dropout, flat, linear, max_pool2d, relu
from .step import Step

CONVOLUTIONS = ((64, 11, 4, 2), (192, 5, 1, 2), (384, 3, 1, 1), (256, 3, 1, 1), (256, 3, 1, 1))
"""Channels, kernel, stride, padding."""
POOLED = (1, 2, 5)


@model
def alexnet(
    batch: int = 256,
    classes: int = 1000,
    size: int = 224,
    dtype: str = "float32",
    optimizer: str = "momentum",
) -> Graph:
    """Classifies ``batch`` images of 3 x ``size`` x ``size`` into ``classes``.

    Raises InputError.
    """
    step = Step(f"alexnet-b{batch}", dtype, optimizer)
    x = images(step, batch, size)
    for i, (channels, kernel, stride, padding) in enumerate(CONVOLUTIONS, 1):
        with step.scope(f"conv_{i}"):
            x = relu(conv2d(x, channels, kernel, stride, padding, bias=True))
            if i in POOLED:
                x = max_pool2d(x, 3, 2)
    x = flat(x)
    for i in (6, 7):
        with step.scope(f"fc_{i}"):
            x = relu(linear(dropout(x), 4096, "fc"))
    return classified(linear(x, classes, "fc_8"))
