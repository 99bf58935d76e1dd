"""VGG-19 (Simonyan and Zisserman, "Very deep convolutional networks for large-scale image
recognition", 2015).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from .images import image_batch

BLOCKS = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))
"""Channels and number of 3x3 convolutions of each block, configuration E of the paper's table 1."""


def vgg_19(
    batch: int = 64, classes: int = 1000, size: int = 224
) -> tuple[nn.Module, tuple[torch.Tensor, ...], Callable[..., torch.Tensor]]:
    """Classifies ``batch`` images of 3 x ``size`` x ``size`` (a multiple of 32) into
    ``classes``.
    """
    module, channels = nn.Sequential(), 3
    for number, (out, count) in enumerate(BLOCKS, 1):
        block = nn.Sequential()
        for i in range(count):
            block.add_module(f"conv_{i}", nn.Conv2d(channels, out, 3, padding=1))
            block.add_module(f"relu_{i}", nn.ReLU())
            channels = out
        block.add_module("pool", nn.MaxPool2d(2))
        module.add_module(f"block_{number}", block)
    module.add_module("flatten", nn.Flatten())
    features = channels * (size // 32) ** 2
    module.add_module("fc_6", nn.Sequential(nn.Linear(features, 4096), nn.ReLU(), nn.Dropout(0.5)))
    module.add_module("fc_7", nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(0.5)))
    module.add_module("fc_8", nn.Linear(4096, classes))
    return module, *image_batch(batch, classes, size)
