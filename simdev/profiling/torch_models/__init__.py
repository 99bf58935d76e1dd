"""Training steps to measure, each a function (batch, sizes) -> (module, inputs, loss).

``inputs`` are the tensors of one batch and ``loss(module, *inputs)`` gives the scalar that the step minimises.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from .gnmt import gnmt
from .inception import inception_v3
from .mlp import mlp

Builder = Callable[..., tuple[nn.Module, tuple[torch.Tensor, ...], Callable[..., torch.Tensor]]]

MODELS: dict[str, tuple[Builder, int, str]] = {
    "inception-v3": (inception_v3, 16, "sgd-momentum"),
    "gnmt": (gnmt, 64, "adam"),
    "mlp": (mlp, 32, "sgd-momentum"),
}
"""Name -> (builder, batch, optimizer) of the models that ``simdev profile --list`` shows."""

__all__ = ["MODELS", "gnmt", "inception_v3", "mlp"]
