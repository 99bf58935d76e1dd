"""What the image classifiers share: a batch and its loss."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


def cross_entropy(module: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss of a classifier: images (N, 3, H, W), labels (N) whole numbers."""
    return F.cross_entropy(module(images), labels)


def image_batch(
    batch: int, classes: int, size: int
) -> tuple[tuple[torch.Tensor, torch.Tensor], Callable[..., torch.Tensor]]:
    """``batch`` random images of 3 x ``size`` x ``size`` with labels, and the loss."""
    return (torch.randn(batch, 3, size, size), torch.randint(classes, (batch,))), cross_entropy
