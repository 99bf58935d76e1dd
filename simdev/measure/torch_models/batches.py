"""Random batches with their losses, which turn a module into a training step.

Every model of this folder uses one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TrainingStep = tuple[nn.Module, tuple[Tensor, ...], Callable[..., Tensor]]
"""(module, inputs, loss): ``loss(module, *inputs)`` gives the scalar that the step minimises."""

Part = TypeVar("Part", bound=nn.Module)


def numbered(parent: nn.Module, name: str, parts: list[Part]) -> list[Part]:
    """Registers the parts with a module as ``name_0``, ``name_1``, ...; returns them."""
    # nn.ModuleList would name them "layers.0", but the names of ops, on which existing graphs and
    # placements rely, have "layer_0".
    for i, part in enumerate(parts):
        parent.add_module(f"{name}_{i}", part)
    return parts


# The arguments of a loss name the inputs of the captured graph.


def image_step(module: nn.Module, batch: int, classes: int, size: int) -> TrainingStep:
    """A classifier on ``batch`` random images of 3 x ``size`` x ``size``."""

    def loss(module: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(module(images), labels)

    return module, (torch.randn(batch, 3, size, size), torch.randint(classes, (batch,))), loss


def next_word_step(module: nn.Module, vocabulary: int, shape: tuple[int, int]) -> TrainingStep:
    """A language model on random tokens (``shape``), which scores each next token."""

    def loss(module: nn.Module, words: Tensor, following: Tensor) -> Tensor:
        return F.cross_entropy(module(words).flatten(0, 1), following.flatten())

    return module, (torch.randint(vocabulary, shape), torch.randint(vocabulary, shape)), loss


def translation_step(
    module: nn.Module, vocabulary: int, shape: tuple[int, int], label_smoothing: float = 0.0
) -> TrainingStep:
    """A translator on random sentences, with source and target of the same ``shape``."""

    def loss(module: nn.Module, source: Tensor, target: Tensor, labels: Tensor) -> Tensor:
        scores = module(source, target).flatten(0, 1)
        return F.cross_entropy(scores, labels.flatten(), label_smoothing=label_smoothing)

    return module, tuple(torch.randint(vocabulary, shape) for _ in range(3)), loss
