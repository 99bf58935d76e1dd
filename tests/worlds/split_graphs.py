"""Graphs whose ops are split in tests: convolutions, products and the ops around them."""

from __future__ import annotations

from functools import cache

from simdev.nouns.cluster import Cluster
from simdev.nouns.graph import Graph, Op
from simdev.nouns.models import build
from worlds.clusters import joined
from worlds.graphs import leaf, parameter, tensor, update

DEVICES = 4
PADDED = {"stride": [1, 1], "padding": [1, 1]}
WINDOW = {"kernel_size": [2, 2], "stride": [2, 2]}


def cluster(queues: str = "device", devices: int = DEVICES, **link: object) -> Cluster:
    """GPUs with a link between any two."""
    return joined(
        devices, queues, prefix="gpu:", **({"bandwidth": 10**9, "latency": "1 us"} | link)
    )


def convolutions(stride: int = 1, padding: int = 1) -> Graph:
    """Two convolutions, a pool and their backward."""
    attrs = {"stride": [stride, stride], "padding": [padding, padding]}
    middle = (8 + 2 * padding - 3) // stride + 1
    ops = [
        leaf("x", 4, 2, 8, 8),
        parameter("w1", 4, 2, 3, 3),
        parameter("w2", 4, 4, 3, 3),
        Op(
            "conv1",
            "conv2d",
            inputs=("x", "w1"),
            outputs=(tensor(4, 4, middle, middle),),
            attrs=attrs,
        ),
        Op("relu1", "relu", inputs=("conv1",), outputs=(tensor(4, 4, middle, middle),)),
        Op(
            "conv2",
            "conv2d",
            inputs=("relu1", "w2"),
            outputs=(tensor(4, 4, middle, middle),),
            attrs=PADDED,
        ),
        Op(
            "pool",
            "avg_pool2d",
            inputs=("conv2",),
            outputs=(tensor(4, 4, middle // 2, middle // 2),),
            attrs=WINDOW,
        ),
        Op(
            "dpool",
            "relu_backward",
            "backward",
            ("pool", "pool"),
            outputs=(tensor(4, 4, middle // 2, middle // 2),),
        ),
        Op(
            "dy",
            "avg_pool2d_backward",
            "backward",
            ("dpool", "conv2"),
            outputs=(tensor(4, 4, middle, middle),),
            attrs=WINDOW,
        ),
        Op(
            "dw2",
            "conv2d_backward_weight",
            "backward",
            ("dy", "relu1"),
            outputs=(tensor(4, 4, 3, 3),),
            attrs=PADDED,
        ),
        Op(
            "dx2",
            "conv2d_backward_input",
            "backward",
            ("dy", "w2"),
            outputs=(tensor(4, 4, middle, middle),),
            attrs=PADDED,
        ),
        Op(
            "dr",
            "relu_backward",
            "backward",
            ("dx2", "relu1"),
            outputs=(tensor(4, 4, middle, middle),),
        ),
        Op(
            "dw1",
            "conv2d_backward_weight",
            "backward",
            ("dr", "x"),
            outputs=(tensor(4, 2, 3, 3),),
            attrs=attrs,
        ),
        update("u1", "w1", "dw1"),
        update("u2", "w2", "dw2"),
    ]
    return Graph("convolutions", tuple(ops))


def linears() -> Graph:
    """Two linear layers with a bias, a residual and their backward; the second weight is used
    twice.
    """
    ops = [
        leaf("x", 8, 4),
        parameter("w1", 8, 4),
        parameter("b1", 8),
        parameter("w2", 8, 8),
        Op(
            "fc1",
            "linear",
            inputs=("x", "w1", "b1"),
            outputs=(tensor(8, 8),),
            attrs={"transpose_b": True},
        ),
        Op("act", "gelu", inputs=("fc1",), outputs=(tensor(8, 8),)),
        Op(
            "fc2",
            "linear",
            inputs=("act", "w2"),
            outputs=(tensor(8, 8),),
            attrs={"transpose_b": True},
        ),
        Op(
            "fc3",
            "linear",
            inputs=("fc2", "w2"),
            outputs=(tensor(8, 8),),
            attrs={"transpose_b": True},
        ),
        Op("sum", "add", inputs=("fc3", "act"), outputs=(tensor(8, 8),)),
        Op("dy", "mul", "backward", ("sum", "sum"), outputs=(tensor(8, 8),)),
        Op(
            "dw2b",
            "matmul",
            "backward",
            ("dy", "fc2"),
            outputs=(tensor(8, 8),),
            attrs={"transpose_a": True},
        ),
        Op("dfc2", "matmul", "backward", ("dy", "w2"), outputs=(tensor(8, 8),)),
        Op(
            "dw2a",
            "matmul",
            "backward",
            ("dfc2", "act"),
            outputs=(tensor(8, 8),),
            attrs={"transpose_a": True},
        ),
        Op("dw2", "add", "backward", ("dw2a", "dw2b"), outputs=(tensor(8, 8),)),
        Op("dact", "matmul", "backward", ("dfc2", "w2"), outputs=(tensor(8, 8),)),
        Op("dres", "add", "backward", ("dact", "dy"), outputs=(tensor(8, 8),)),
        Op("dfc1", "gelu_backward", "backward", ("dres", "fc1"), outputs=(tensor(8, 8),)),
        Op(
            "dw1",
            "matmul",
            "backward",
            ("dfc1", "x"),
            outputs=(tensor(8, 4),),
            attrs={"transpose_a": True},
        ),
        Op("db1", "sum", "backward", ("dfc1",), outputs=(tensor(8),), attrs={"dim": [0]}),
        update("u1", "w1", "dw1"),
        update("ub", "b1", "db1"),
        update("u2", "w2", "dw2"),
    ]
    return Graph("linears", tuple(ops))


@cache
def graphs() -> tuple[Graph, ...]:
    """Convolutions, linear layers, a transformer block and a recurrent network, all tiny."""
    block = {
        "batch": 4,
        "length": 4,
        "layers": 1,
        "width": 8,
        "inner": 8,
        "heads": 2,
        "vocabulary": 8,
    }
    return (
        convolutions(),
        convolutions(2, 0),
        linears(),
        build("transformer-base", **block, fused=False),
        build("transformer-base", **block),
        build("rnnlm", batch=4, length=2, hidden=4, layers=1, vocabulary=8),
    )
