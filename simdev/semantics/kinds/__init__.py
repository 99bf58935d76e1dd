"""The kinds of ops that simdev knows, one family a module; each registers its own."""

from . import (
    attention,
    convolution,
    einsum,
    elementwise,
    lookup,
    loss,
    movement,
    norm,
    optimizer,
    pooling,
    product,
    recurrent,
    reduction,
    sequence,
)

__all__ = [
    "attention",
    "convolution",
    "einsum",
    "elementwise",
    "lookup",
    "loss",
    "movement",
    "norm",
    "optimizer",
    "pooling",
    "product",
    "recurrent",
    "reduction",
    "sequence",
]
