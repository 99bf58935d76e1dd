"""What an optimizer does to one parameter: the update op, its state, and the same work as calls of
PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..ground.errors import InputError


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An optimizer: kind of its update op, tensors of state a parameter has, the update, and
    PyTorch's own.
    """

    kind: str
    states: int
    update: Callable[..., None]
    make: Callable[[Any], torch.optim.Optimizer]


def optimizer_named(name: str) -> Optimizer:
    """The optimizer of this name: ``sgd-momentum`` or ``adam``. Raises InputError."""
    if name not in OPTIMIZERS:
        raise InputError(f'optimizer: must be one of {", ".join(OPTIMIZERS)}, got "{name}"')
    return OPTIMIZERS[name]


# The updates below are what PyTorch's single-tensor paths run (``foreach=False``): its fused paths
# update many parameters at once, which a placement could not tear apart.


def sgd_momentum_update(parameter: Tensor, gradient: Tensor, momentum: Tensor) -> None:
    """A parameter's step of SGD with momentum 0.9, in place."""
    momentum.mul_(0.9).add_(gradient)
    parameter.add_(momentum, alpha=-1e-3)


def adam_update(parameter: Tensor, gradient: Tensor, first: Tensor, second: Tensor) -> None:
    """A parameter's step of Adam, in place."""
    first.lerp_(gradient, 0.1)
    second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
    denominator = (second.sqrt() / 0.5).add_(1e-8)
    parameter.addcdiv_(first, denominator, value=-1e-3)


SGD = partial(torch.optim.SGD, lr=1e-3, momentum=0.9, foreach=False)
ADAM = partial(torch.optim.Adam, lr=1e-3, foreach=False)
OPTIMIZERS = {
    "sgd-momentum": Optimizer("sgd_momentum_update", 1, sgd_momentum_update, SGD),
    "adam": Optimizer("adam_update", 2, adam_update, ADAM),
}
