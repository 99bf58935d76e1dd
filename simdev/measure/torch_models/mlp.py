"""A small multi-layer perceptron, measured in seconds: to try the tool."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


def mlp(
    batch: int = 32, width: int = 256, layers: int = 3, classes: int = 10
) -> tuple[nn.Module, tuple[torch.Tensor, ...], Callable[..., torch.Tensor]]:
    """Classifies ``batch`` rows of ``width`` features through ``layers`` hidden layers of that
    width.
    """
    parts = [
        (f"layer_{i}", nn.Sequential(nn.Linear(width, width), nn.ReLU())) for i in range(layers)
    ]
    module = nn.Sequential()
    for name, part in [*parts, ("classifier", nn.Linear(width, classes))]:
        module.add_module(name, part)

    def loss(module: nn.Module, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(module(features), labels)

    return module, (torch.randn(batch, width), torch.randint(classes, (batch,))), loss
