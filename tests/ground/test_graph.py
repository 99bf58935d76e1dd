"""Graph: names, references, cycles, and the way to networkx and back."""

from __future__ import annotations

import pickle
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest

from simdev.ground.errors import InputError
from simdev.nouns.graph import Graph, Op, Tensor, find_cycle


def layered() -> Graph:
    """x feeds a twice and b; c waits for b and reads both outputs of a."""
    return Graph(
        "layered",
        (
            Op("x", outputs=(Tensor(4, (2, 2), "int8"),)),
            Op(
                "a",
                "matmul",
                inputs=("x", "x:0"),
                outputs=(Tensor(8), Tensor(2)),
                attrs={"transpose_b": True},
            ),
            Op("b", phase="backward", inputs=("x",), colocate="g", time="12 us"),
            Op(
                "c",
                inputs=("a:1", "a"),
                control_inputs=("^b", "b"),
                colocate="g",
                time={"gpu": 1, "cpu": "2 ms"},
            ),
        ),
    )


def test_reads_are_distinct_and_sorted() -> None:
    assert layered().reads == ((), ((0, 0),), ((0, 0),), ((1, 0), (1, 1), (2, -1)))


def test_operands_keep_the_order_of_the_inputs() -> None:
    assert [[tensor.bytes for tensor in tensors] for tensors in layered().operands] == [
        [],
        [4, 4],
        [4],
        [2, 8],
    ]


def test_groups_list_their_members_in_program_order() -> None:
    assert layered().groups == {"g": (2, 3)}


def test_times_are_exact_and_may_depend_on_the_kind_of_device() -> None:
    graph = layered()
    assert graph.ops[2].seconds_on("anything") == Fraction(12, 10**6)
    assert graph.ops[3].seconds_on("cpu") == Fraction(2, 1000)
    assert graph.ops[3].seconds_on("tpu") is None
    assert graph.ops[0].seconds_on("cpu") is None


def test_an_op_may_have_a_name_with_colons() -> None:
    ops = (Op("scope:a", outputs=(Tensor(1), Tensor(1))), Op("b", inputs=("scope:a", "scope:a:1")))
    assert Graph("g", ops).reads[1] == ((0, 0), (0, 1))


def test_to_networkx_and_back() -> None:
    graph = layered()
    there = graph.to_networkx()
    assert there.edges["a", "c"] == {"outputs": [0, 1], "bytes": 10}
    assert there.edges["b", "c"] == {"outputs": [-1], "bytes": 0}
    assert nx.is_directed_acyclic_graph(there)
    assert Graph.from_networkx(there, "layered") == graph


def test_a_bare_networkx_graph_gets_inputs_from_its_edges() -> None:
    bare: nx.DiGraph[str] = nx.DiGraph()
    bare.add_node("b", time=1)
    bare.add_edge("a", "b", bytes=7)
    bare.add_edge("a", "c", outputs=[-1])
    graph = Graph.from_networkx(bare)
    assert [op.name for op in graph.ops] == ["b", "a", "c"]
    assert graph.ops[0].inputs == ("a:0",)
    assert graph.ops[2].control_inputs == ("a",)
    assert graph.ops[1].outputs == (Tensor(7),)


def test_an_unknown_attribute_of_a_node_is_refused() -> None:
    bare: nx.DiGraph[str] = nx.DiGraph()
    bare.add_node("a", colour="red")
    with pytest.raises(InputError, match="unknown attributes colour"):
        Graph.from_networkx(bare)


def test_parallel_edges_are_refused() -> None:
    several: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    several.add_edge("a", "b", bytes=3)
    assert [t.bytes for t in Graph.from_networkx(several).ops[0].outputs] == [3]
    several.add_edge("a", "b", bytes=4)
    with pytest.raises(InputError, match="edges: of several between two nodes make one"):
        Graph.from_networkx(several)


def test_a_kind_is_a_text() -> None:
    with pytest.raises(InputError, match=r"ops\[0\].kind: must be a text, got '3'"):
        Graph("g", (Op("a", kind=3),))  # type: ignore[arg-type]


def test_all_problems_come_at_once() -> None:
    ops = (
        Op("a", phase="sideways", param_bytes=-1),
        Op("a", inputs=("z", "a:5"), control_inputs=("y",)),
        Op("b:0", outputs=(Tensor(1, (-1,)),)),
    )
    with pytest.raises(InputError) as error:
        Graph("g", ops)
    assert [problem.partition(": ")[0] for problem in error.value.problems] == [
        "ops[0].phase",
        "ops[0].param_bytes",
        "ops[2].name",
        "ops[2].outputs[0].shape",
        "ops[1].name",
        "ops[1].inputs[0]",
        "ops[1].inputs[1]",
        "ops[1].control_inputs[0]",
    ]


def test_a_wrong_time_is_refused_by_the_op() -> None:
    with pytest.raises(InputError, match="time: must not be negative, got -1"):
        Op("a", time=-1)


def test_a_cycle_is_told_along_its_edges() -> None:
    ops = (
        Op("a", control_inputs=("c",)),
        Op("b", control_inputs=("a",)),
        Op("c", control_inputs=("b",)),
    )
    with pytest.raises(InputError, match="ops: cycle: b -> c -> a -> b"):
        Graph("g", ops)


def test_a_long_chain_is_no_cycle_and_no_recursion() -> None:
    assert find_cycle([[], *([i] for i in range(100_000))]) == []
    assert len(find_cycle([[i + 1] for i in range(9_999)] + [[0]])) == 10_000


def test_graphs_are_values() -> None:
    graph = layered()
    assert graph == layered()
    assert pickle.loads(pickle.dumps(graph)) == graph
    assert repr(graph) == "Graph('layered', 4 ops)"


@pytest.mark.parametrize(
    ("node", "edge"),
    [
        ({"seconds": 0.002, "nbytes": 10}, {}),
        ({"time_ms": 2}, {"weight": 10.0}),
        ({"duration_us": 2000, "size": "10 B"}, {"weight": 10}),
        ({"time": "2 ms", "op_type": "op"}, {"nbytes": 10}),
        ({"time_us": np.int64(2000)}, {"weight": np.int64(10)}),
        ({"duration_ms": np.float32(2)}, {"weight": np.float32(10)}),
    ],
)
def test_attributes_of_networkx_have_the_names_of_the_field(node: dict, edge: dict) -> None:
    net: nx.DiGraph[str] = nx.DiGraph()
    net.add_node("a", **node)
    net.add_edge("a", "b", **edge)
    graph = Graph.from_networkx(net)
    assert graph.ops[0] == Op("a", time="2 ms", outputs=(Tensor(10),))
    assert graph.ops[1] == Op("b", inputs=("a:0",))


@pytest.mark.parametrize(
    ("node", "edge", "problem"),
    [
        ({"seconds": 1, "time": 1}, {}, r"nodes\['a'\]: seconds: the time is told twice"),
        ({"nbytes": 1, "size": 1}, {}, "size: the size of its output is told twice, beside nbytes"),
        ({"nbytes": 1, "outputs": [Tensor(1)]}, {}, "told twice, beside outputs"),
        ({"kind": "relu", "type": "relu"}, {}, "type: the kind is told twice, beside kind"),
        ({}, {"weight": 1, "bytes": 1}, r"edges\['a', 'b'\]: weight: the size is told twice"),
        ({"nbytes": 9}, {"weight": 1}, "weight: 1 bytes, but the node tells 9"),
        ({}, {"weight": 0.5}, r"edges\['a', 'b'\]: weight: must be a whole number of bytes"),
        ({"seconds": -1}, {}, r"nodes\['a'\]: seconds: must not be negative"),
    ],
)
def test_what_networkx_tells_twice_is_refused(node: dict, edge: dict, problem: str) -> None:
    net: nx.DiGraph[str] = nx.DiGraph()
    net.add_node("a", **node)
    net.add_edge("a", "b", **edge)
    with pytest.raises(InputError, match=problem):
        Graph.from_networkx(net)


def test_a_graph_whose_edges_have_no_direction_is_refused() -> None:
    with pytest.raises(InputError, match=r"edges: must have a direction"):
        Graph.from_networkx(nx.Graph([("a", "b")]))
