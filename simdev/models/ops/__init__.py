"""The verbs that models are written with, each with the rule of its gradient beside it."""

from .attention import attend, rotary, softmax
from .convolution import avg_pool2d, conv2d, global_avg_pool, max_pool2d, pad
from .elementwise import dropout, gelu, relu, scale, sigmoid, silu, tanh
from .lookup import embedding, embedding_by, table
from .loss import cross_entropy
from .movement import concat, gather, select, split, zeros
from .norm import batch_norm, layer_norm, rms_norm
from .product import einsum, flat, linear, linear_by, split_heads
from .recurrent import Cell, State, cell, lstm, lstm_cell

__all__ = [
    "Cell",
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
