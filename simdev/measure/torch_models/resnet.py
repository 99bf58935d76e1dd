"""ResNet-50 (He et al., "Deep residual learning for image recognition", 2015), with the stride in
the 3x3 convolution.

The paper puts the stride into the first 1x1; the field has moved it, at the same number of
parameters.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from .images import image_batch

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
"""Width and number of bottlenecks of each stage."""
EXPANSION = 4


def _unit(channels: int, out: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Convolution and batch norm."""
    unit = nn.Sequential()
    unit.add_module("conv", nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=False))
    unit.add_module("bn", nn.BatchNorm2d(out))
    return unit


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolution beside a shortcut, which is a convolution where the shape
    changes.
    """

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = width * EXPANSION
        self.unit_1 = _unit(channels, width, 1)
        self.unit_2 = _unit(width, width, 3, stride)
        self.unit_3 = _unit(width, out, 1)
        self.shortcut = _unit(channels, out, 1, stride) if stride > 1 or channels != out else None
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, channels, H, W) to (N, 4 width, H', W')."""
        out = self.unit_3(self.relu(self.unit_2(self.relu(self.unit_1(x)))))
        out = out + (x if self.shortcut is None else self.shortcut(x))
        found: torch.Tensor = self.relu(out)
        return found


def resnet_50(
    batch: int = 64, classes: int = 1000, size: int = 224
) -> tuple[nn.Module, tuple[torch.Tensor, ...], Callable[..., torch.Tensor]]:
    """Classifies ``batch`` images of 3 x ``size`` x ``size`` into ``classes``."""
    module, channels = nn.Sequential(), 64
    stem = _unit(3, channels, 7, 2)
    stem.add_module("relu", nn.ReLU(inplace=True))
    stem.add_module("pool", nn.MaxPool2d(3, stride=2, padding=1))
    module.add_module("stem", stem)
    for number, (width, count) in enumerate(STAGES, 1):
        for i in range(count):
            stride = 2 if i == 0 and number > 1 else 1
            module.add_module(f"stage_{number}_{i}", Bottleneck(channels, width, stride))
            channels = width * EXPANSION
    module.add_module("avgpool", nn.AdaptiveAvgPool2d(1))
    module.add_module("flatten", nn.Flatten())
    module.add_module("fc", nn.Linear(channels, classes))
    return module, *image_batch(batch, classes, size)
