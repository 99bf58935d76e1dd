"""The verbs that models are written with, each with the rule of its gradient beside it."""

from .convolution import avg_pool2d, conv2d, global_avg_pool, max_pool2d, pad
from .elementwise import dropout, gelu, relu, scale, sigmoid, silu, tanh
from .product import (
    attend,
    einsum,
    embedding,
    embedding_by,
    flat,
    linear,
    linear_by,
    rotary,
    split_heads,
    table,
)
from .reduction import batch_norm, cross_entropy, layer_norm, rms_norm, softmax
from .sequence import State, cell, concat, gather, lstm, lstm_cell, select, split, zeros

__all__ = [
    "State",
    "attend",
    "avg_pool2d",
    "batch_norm",
    "cell",
    "concat",
    "conv2d",
    "cross_entropy",
    "dropout",
    "einsum",
    "embedding",
    "embedding_by",
    "flat",
    "gather",
    "gelu",
    "global_avg_pool",
    "layer_norm",
    "linear",
    "linear_by",
    "lstm",
    "lstm_cell",
    "max_pool2d",
    "pad",
    "relu",
    "rms_norm",
    "rotary",
    "scale",
    "select",
    "sigmoid",
    "silu",
    "softmax",
    "split",
    "split_heads",
    "table",
    "tanh",
    "zeros",
]
