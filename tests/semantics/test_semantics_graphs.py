"""Semantics of the ops of graphs: the captured ones that are shipped, and which of their tensors
are weights.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from math import prod
from pathlib import Path

import pytest

from simdev.files.graph import read_graph
from simdev.ground.errors import InputError
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.semantics import (
    boxes,
    op_class,
    op_semantics,
    op_work,
    operand_shapes,
    shard_of,
    shard_work,
    splits,
)
from simdev.nouns.structure import op_splits, weights_of
from worlds.graphs import tensor

GRAPHS = sorted((Path(__file__).parents[2] / "profiles" / "graphs").glob("*.json*"))
WITHOUT_SEMANTICS: dict[str, str] = {}
"""Kinds of the captured graphs without semantics, each with the reason."""


@cache
def graph_of(path: Path) -> Graph:
    return read_graph(path)


@pytest.fixture(params=GRAPHS, ids=lambda path: path.name.split(".")[0])
def graph(request: pytest.FixtureRequest) -> Graph:
    return graph_of(request.param)


def distinct(graph: Graph) -> list[int]:
    """One op of each kind and shapes."""
    seen = {}
    for i, op in enumerate(graph.ops):
        made = tuple(tensor.shape for tensor in op.outputs)
        seen.setdefault((op.kind, operand_shapes(graph, i), made, str(sorted(op.attrs.items()))), i)
    return list(seen.values())


def test_every_op_of_the_captured_graphs_has_semantics(graph: Graph) -> None:
    for i in distinct(graph):
        kind = graph.ops[i].kind
        if kind in WITHOUT_SEMANTICS:
            with pytest.raises(InputError, match="no semantics"):
                op_semantics(graph, i)
        else:
            assert op_semantics(graph, i).op_class == op_class(kind)
            assert (op_class(kind) == "other") == (kind in ("parameter", "input"))


def test_products_and_convolutions_of_the_captured_graphs_are_their_closed_forms(
    graph: Graph,
) -> None:
    seen = Counter[str]()
    for i in distinct(graph):
        op, shapes = graph.ops[i], operand_shapes(graph, i)
        if op_class(op.kind) not in ("gemm", "conv"):
            continue
        first, second = (tuple(shape or ()) for shape in shapes[:2])
        made = op.outputs[0].shape or ()
        if op_class(op.kind) == "gemm":
            expected = 2 * prod(made) * (first[-2] if op.attrs.get("transpose_a") else first[-1])
        elif op.kind.endswith("backward_weight"):
            expected = 2 * prod(first) * prod(made[1:])
        else:
            expected = (
                2 * prod(first if op.kind.endswith("backward_input") else made) * prod(second[1:])
            )
        assert op_work(graph, i).flops == expected, op.name
        seen[op.kind] += 1
    assert seen


def test_bytes_of_the_captured_graphs_are_those_of_their_tensors_at_most(graph: Graph) -> None:
    for i in distinct(graph):
        op = graph.ops[i]
        counted = op_work(graph, i)
        if op.kind in ("parameter", "input"):
            assert (counted.flops, counted.bytes_read, counted.bytes_written) == (0, 0, 0)
        elif op.phase != "update":
            assert counted.bytes_written == sum(tensor.bytes for tensor in op.outputs), op.name
            stated = operand_shapes(graph, i)
            sizes = [4 if tensor.dtype == "float32" else 8 for tensor in graph.operands[i]]
            assert counted.bytes_read <= sum(
                prod(s or ()) * size for s, size in zip(stated, sizes, strict=True)
            )


def test_sample_shards_of_the_captured_graphs_are_described_again(graph: Graph) -> None:
    """Two halves of the sample axis do the work of the op, and each half is an op of its own."""
    for i in distinct(graph):
        semantics = op_semantics(graph, i)
        sample = [
            split for split in splits(semantics) if split.kind == "sample" and split.size % 2 == 0
        ]
        for split in sample:
            parts = boxes(semantics, {split.axis: 2})
            total = sum(shard_work(semantics, part).flops for part in parts)
            whole = shard_work(semantics, {}).flops
            assert whole - 1 <= total <= whole
            shards = [shard_of(semantics, part) for part in parts]
            assert shards[0].outputs == shards[1].outputs


WEIGHTED = Graph(
    "weighted",
    (
        Op("x", "input", outputs=(tensor(8, 6),)),
        Op("w", "parameter", outputs=(tensor(4, 6),), param_bytes=96),
        Op("low", "cast", inputs=("w",), outputs=(tensor(4, 6),)),
        Op(
            "y",
            "linear",
            inputs=("x", "low"),
            outputs=(tensor(8, 4),),
            attrs={"transpose_b": True},
        ),
        Op("dx", "matmul", "backward", ("y", "low"), outputs=(tensor(8, 6),)),
        Op(
            "dw",
            "matmul",
            "backward",
            ("y", "x"),
            outputs=(tensor(4, 6),),
            attrs={"transpose_a": True},
        ),
        Op("both", "add", "backward", ("dw", "dw"), outputs=(tensor(4, 6),)),
        Op("update", "adam_update", "update", ("w", "both")),
        Op("odd", "unheard_of", inputs=("x",), outputs=(tensor(8, 6),)),
        Op("bare", "relu", inputs=("x",), outputs=(Tensor(4),)),
    ),
)
"""x -> linear -> relu -> loss-like sum, with the backward of the linear, an added gradient and
an update."""


def test_the_graph_tells_weights_and_their_gradients() -> None:
    graph = WEIGHTED
    weights = weights_of(graph)
    names = {
        kind: {graph.ops[i].name for i, _ in getattr(weights, kind)}
        for kind in ("parameters", "gradients")
    }
    assert names == {"parameters": {"w", "low"}, "gradients": {"dw", "both"}}

    def words(name: str) -> dict[str, str]:
        return {split.axis: split.kind for split in op_splits(graph, graph.index[name], weights)}

    assert words("y") == {"m": "sample", "n": "parameter", "k": "reduction"}
    assert words("dx") == {"m": "sample", "n": "parameter", "k": "reduction"}
    assert words("dw") == {"m": "parameter", "n": "parameter", "k": "reduction"}
    assert words("both") == words("update") == words("w") == {"d0": "parameter", "d1": "parameter"}


def test_weights_are_found_in_whatever_order_ops_are_listed() -> None:
    graph = WEIGHTED
    back = Graph("back", graph.ops[::-1])

    def names(graph: Graph) -> tuple[set[tuple[str, int]], ...]:
        weights = weights_of(graph)
        return tuple(
            {(graph.ops[i].name, k) for i, k in weight}
            for weight in (weights.parameters, weights.gradients)
        )

    assert names(back) == names(graph) == ({("w", 0), ("low", 0)}, {("both", 0), ("dw", 0)})


def test_ops_without_semantics_or_shapes_are_named() -> None:
    graph = WEIGHTED
    with pytest.raises(InputError, match='op "odd": no semantics for kind "unheard_of"'):
        op_semantics(graph, graph.index["odd"])
    with pytest.raises(InputError, match='op "bare": kind "relu": output 0 has no shape'):
        op_work(graph, graph.index["bare"])


@pytest.mark.parametrize(
    ("attrs", "reason"),
    [
        ({"in": 5}, r'op "y": attrs\.in: must be a list of shapes, got 5'),
        ({"in": [5]}, r'op "y": attrs\.in: must be a list of shapes, got \[5\]'),
        (
            {"in": [["a", "b"]]},
            r'^op "y": attrs\.in: must be a list of shapes, got \[\["a", "b"\]\]',
        ),
        ({"dt": 3}, r'op "y": attrs\.dt: must be a list of dtypes, got 3'),
        ({"dt": [7]}, r'op "y": attrs\.dt: must be a list of dtypes, got \[7\]'),
    ],
)
def test_operands_told_wrong_are_named(attrs: dict[str, object], reason: str) -> None:
    made = (Tensor(64, (4, 4), "float32"),)
    graph = Graph(
        "told",
        (Op("x", "input", outputs=made), Op("y", "relu", inputs=("x",), outputs=made, attrs=attrs)),
    )
    with pytest.raises(InputError, match=reason):
        op_work(graph, 1)


@pytest.mark.parametrize("strides", [5, [[1]], ["a"], [None], [[4, 1, 1]]])
def test_strides_that_tell_nothing_are_no_strides(strides: object) -> None:
    made = (Tensor(64, (4, 4), "float32"),)
    ops = (
        Op("x", "input", outputs=made),
        Op("y", "relu", inputs=("x",), outputs=made, attrs={"strides": strides}),
    )
    assert op_work(Graph("told", ops), 1).bytes_read == 64


def test_weights_of_a_captured_graph_are_split_by_their_readers() -> None:
    graph = graph_of(next(path for path in GRAPHS if path.name.startswith("inception")))
    weights = weights_of(graph)
    by_kind: dict[str, set[str]] = {}
    for i in distinct(graph):
        for split in op_splits(graph, i, weights):
            by_kind.setdefault(graph.ops[i].kind, set()).add(f"{split.axis} {split.kind}")
    assert {"n sample", "k parameter", "p attribute", "c reduction"} <= by_kind["conv2d"]
    assert {"n reduction", "k parameter", "c parameter"} <= by_kind["conv2d_backward_weight"]
    assert by_kind["sgd_momentum_update"] == {f"d{i} parameter" for i in range(4)}
