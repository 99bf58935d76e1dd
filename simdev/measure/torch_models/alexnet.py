"""AlexNet in its one-column form (Krizhevsky, "One weird trick for parallelizing convolutional
networks", 2014).

The form that the papers on parallelization use: no groups and no response normalization.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from .images import image_batch


def alexnet(
    batch: int = 256, classes: int = 1000, size: int = 224
) -> tuple[nn.Module, tuple[torch.Tensor, ...], Callable[..., torch.Tensor]]:
    """Classifies ``batch`` images of 3 x ``size`` x ``size`` into ``classes``."""
    module = nn.Sequential()
    for i, (channels, out, kernel, stride, padding) in enumerate(
        [
            (3, 64, 11, 4, 2),
            (64, 192, 5, 1, 2),
            (192, 384, 3, 1, 1),
            (384, 256, 3, 1, 1),
            (256, 256, 3, 1, 1),
        ],
        1,
    ):
        block = nn.Sequential()
        block.add_module("conv", nn.Conv2d(channels, out, kernel, stride, padding))
        block.add_module("relu", nn.ReLU())
        if i in (1, 2, 5):
            block.add_module("pool", nn.MaxPool2d(3, stride=2))
        module.add_module(f"conv_{i}", block)
    module.add_module("avgpool", nn.AdaptiveAvgPool2d(6))
    module.add_module("flatten", nn.Flatten())
    module.add_module("fc_6", nn.Sequential(nn.Dropout(0.5), nn.Linear(256 * 36, 4096), nn.ReLU()))
    module.add_module("fc_7", nn.Sequential(nn.Dropout(0.5), nn.Linear(4096, 4096), nn.ReLU()))
    module.add_module("fc_8", nn.Linear(4096, classes))
    return module, *image_batch(batch, classes, size)
