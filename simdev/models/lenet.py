"""LeNet-5 (LeCun et al., "Gradient-based learning applied to document recognition", 1998), fully
connected throughout.

The field's form: every map of the second convolution reads all of the first, and a softmax ends it:
61,706 parameters.
"""

from __future__ import annotations

from ..graph import Graph
from .checking import model
from .images import classified, images
from .ops import avg_pool2d, conv2d, flat, linear, tanh
from .step import Step


@model
def lenet(
    batch: int = 64,
    classes: int = 10,
    size: int = 32,
    dtype: str = "float32",
    optimizer: str = "momentum",
) -> Graph:
    """Classifies ``batch`` gray images of ``size`` x ``size`` into ``classes``.

    Raises InputError.
    """
    step = Step(f"lenet-b{batch}", dtype, optimizer)
    x = images(step, batch, size, channels=1)
    for i, channels in enumerate((6, 16), 1):
        with step.scope(f"conv_{i}"):
            x = avg_pool2d(tanh(conv2d(x, channels, 5, bias=True)), 2, 2)
    x = flat(x)
    for i, features in enumerate((120, 84), 3):
        with step.scope(f"block_{i}"):
            x = tanh(linear(x, features, "fc"))
    return classified(linear(x, classes, "fc_5"))
