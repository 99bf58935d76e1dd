"""Graph preparation: what is placed in place of single ops, and the way back."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given

from simdev import Oracle
from simdev.costs import CostModel
from simdev.ground.errors import InputError
from simdev.lowering import Prepared
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.structure import mates
from simdev.search import METHODS, confirm, prepare, search
from simdev.search.instance import Instance, held_of
from simdev.search.prepare import RULES, Grouped, adjust, colocate, coplace, forward, fuse, pair
from worlds.clusters import joined
from worlds.graphs import dag, op
from worlds.tape import drawn


def groups_of(graph: Graph) -> list[list[str]]:
    return [
        [graph.ops[i].name for i in members]
        for members in graph.groups.values()
        if len(members) > 1
    ]


def test_tensorflow_classes_are_united_over_ops_that_declare_several():
    ops = [
        op("a", 1, attrs={"_class": ["loc:@x"]}),
        op("b", 1, attrs={"_class": ["loc:@x", "loc:@y"]}),
        op("c", 1, attrs={"_class": ["loc:@y"]}),
        op("d", 1, attrs={"_class": ["loc:@e"]}),
        op("e", 1),
        op("f", 1),
    ]
    found = colocate(Graph("tf", tuple(ops))).graph
    assert groups_of(found) == [["a", "b", "c"], ["d", "e"]]
    assert found.ops[5].colocate is None


def test_united_groups_take_the_shortest_then_first_name():
    ops = [
        op("a", 1, colocate="long"),
        op("b", 1, colocate="long", attrs={"_class": ["loc:@c"]}),
        op("c", 1, colocate="zz"),
    ]
    assert {one.colocate for one in colocate(Graph("g", tuple(ops))).graph.ops} == {"zz"}


def test_an_op_with_one_consumer_joins_it():
    """a is read twice by b (one consumer), b by c and d, c by d alone."""
    ops = [
        Op("a", outputs=(Tensor(1), Tensor(1)), time="1 ps"),
        op("b", 1, "a:0", "a:1"),
        op("c", 1, "b"),
        op("d", 1, "b", "c"),
    ]
    assert groups_of(coplace(Graph("g", tuple(ops))).graph) == [["a", "b"], ["c", "d"]]


def test_a_control_input_counts_as_a_consumer():
    ops = [op("a", 1), op("b", 1, "a"), op("c", 1, control_inputs=("a",))]
    assert groups_of(coplace(Graph("g", tuple(ops))).graph) == []


TRAINING = Graph(
    "training",
    (
        op("w", 1, kind="parameter", param_bytes=4, size=4),
        op("l1/matmul", 2, "w", size=1),
        op("l2/relu", 1, "l1/matmul", size=1),
        op("grad/l2/relu_backward", 1, "l2/relu", phase="backward", size=1),
        op("grad/l1/matmul_1", 2, "grad/l2/relu_backward", "w", phase="backward", size=4),
        op("update/w", 1, "w", "grad/l1/matmul_1", phase="update", attrs={"forward": "w"}),
    ),
)
"""Two layers with names as builders give them, their backward and an update."""


def test_backward_ops_go_with_their_forward_ops():
    graph = TRAINING
    assert [graph.ops[i].name for i in mates(graph)] == [
        "w",
        "l1/matmul",
        "l2/relu",
        "l2/relu",
        "l1/matmul",
        "w",
    ]
    assert groups_of(pair(graph).graph) == [
        # parameters go with what reads them first
        ["w", "l1/matmul", "grad/l1/matmul_1", "update/w"],
        ["l2/relu", "grad/l2/relu_backward"],
    ]


def test_forward_placement_plans_forward_ops_and_brings_the_others_back():
    found = forward(TRAINING)
    assert [one.name for one in found.graph.ops] == ["w", "l1/matmul", "l2/relu"]
    assert found.back([0, 1, 0]).tolist() == [0, 1, 0, 0, 1, 0]
    instance = Instance(Prepared(TRAINING, joined(2), CostModel()), found)
    assert instance.duration[:, 0].tolist() == [1, 2, 1]  # the forward pass only
    assert held_of(instance).persistent.tolist() == [4, 0, 1]  # what the backward reads is kept


def test_what_has_no_forward_op_is_placed_by_itself():
    ops = [
        op("a", 1),
        op("b", 1, "a"),
        op("back", 1, phase="backward"),
        op("more", 1, "back", phase="backward"),
    ]
    found = forward(Graph("g", tuple(ops)))
    assert [one.name for one in found.graph.ops] == ["a", "b", "back", "more"]
    assert found.back([0, 1, 0, 1]).tolist() == [0, 1, 0, 1]


def test_what_a_collective_reads_follows_no_forward_op():
    """One forward op, whose gradients two devices reduce: each stands on its rank."""
    ops = [op("f", 1, size=4)]
    ops += [op(f"grad/f_{k}", 1, "f", phase="backward", size=4) for k in range(2)]
    ranks = {"ranks": ["g0", "g1"]}
    inputs = ("grad/f_0", "grad/f_1")
    made = (Tensor(4), Tensor(4))
    ops.append(Op("r", "all_reduce", phase="backward", inputs=inputs, outputs=made, attrs=ranks))
    oracle = Oracle(Graph("g", tuple(ops)), joined(2))
    found = search(oracle, "m-etf")
    assert [found.strategy.placement[name] for name in inputs] == ["g0", "g1"]


@given(drawn(dag))
def test_placing_by_the_forward_changes_nothing_where_all_is_forward(graph):
    found, plain = prepare(graph, METHODS["m-etf"].prepare), prepare(graph, ["coplace", "fuse"])
    assert found.runs == plain.runs
    assert found.graph == plain.graph


def two_layers() -> Graph:
    """Two layers of two ops each, the second op of each read by both a sum and a tanh; the backward
    is one chain.
    """
    ops = [op("x", 1, size=1)]
    for layer, source in (("l0", "x"), ("l1", "l0/sum")):
        ops += [
            op(f"{layer}/linear", 1, source, size=1),
            op(f"{layer}/tanh", 1, f"{layer}/linear", size=1),
        ]
        ops += [op(f"{layer}/sum", 1, f"{layer}/linear", f"{layer}/tanh", size=1)]
    ops += [op("end", 1, "l1/sum", "l0/sum")]
    source = "end"
    for name in [one.name for one in ops[-2:0:-1]]:
        back = f"grad/{name}"
        ops.append(op(back, 1, source, name, phase="backward", size=1, attrs={"forward": name}))
        source = back
    return Graph("two layers", tuple(ops))


def test_matched_ops_follow_the_co_placement_of_the_forward():
    """Each backward op is read by the next alone: co-placed as well, they would weld both layers
    into one group.
    """
    found = groups_of(prepare(two_layers(), ["pair", "coplace"]).graph)
    forwards = [[name for name in members if not name.startswith("grad/")] for members in found]
    assert forwards == [
        ["x", "l0/linear"],
        ["l0/tanh", "l0/sum"],
        ["l1/linear"],
        ["l1/tanh", "l1/sum", "end"],
    ]
    for members, names in zip(found, forwards, strict=True):
        assert {f"grad/{name}" for name in names} - {"grad/x", "grad/end"} <= set(members)
    assert groups_of(prepare(two_layers(), ["forward", "coplace"]).graph) == [
        f for f in forwards if len(f) > 1
    ]


def test_an_update_declared_to_stand_with_its_parameter_is_still_a_reader():
    """Co-placed alone, a weight's gradient joins its one reader, the update."""
    ops = [op("w", 1, kind="parameter", param_bytes=4, size=4, colocate="w")]
    ops += [op("f", 1, "w"), op("g", 1, "f")]
    ops.append(op("grad/f", 1, "f", phase="backward", size=4))
    ops.append(op("update/w", 1, "w", "grad/f", phase="update", colocate="w"))
    assert groups_of(coplace(Graph("g", tuple(ops))).graph) == [["w", "grad/f", "update/w"]]


def test_what_the_backward_reads_is_held_from_the_forward_on():
    """x (8) is read by the backward, y (4) is not; while the backward op runs it holds its gradient
    (2) and scratch.
    """
    ops = [op("x", 1, size=8), op("y", 1, "x", size=4), op("z", 1, "y", size=1)]
    ops.append(op("grad/z", 1, "z", phase="backward", size=2, attrs={"forward": "z"}))
    back = {"phase": "backward", "attrs": {"forward": "x"}, "workspace_bytes": 3}
    ops.append(op("grad/x", 1, "x", "grad/z", size=5, **back))
    graph = Graph("g", tuple(ops))
    held = held_of(Instance(Prepared(graph, joined(2), CostModel()), forward(graph)))
    assert held.persistent.tolist() == [8, 0, 1]
    assert held.made.tolist() == [0, 4, 0]
    assert held.scratch.tolist() == [5 + 2 + 3, 0, 2]
    assert held.kept.tolist() == [1, 0]


def test_fusion_leaves_what_could_close_a_cycle():
    r"""All one group but c: a -> b -> d and a -> c -> d.

    Fusing a with d would close a cycle; a with b is safe.
    """
    ops = [
        op("a", 1, size=2, colocate="g", workspace_bytes=5),
        op("b", 2, "a", size=3, colocate="g"),
        op("c", 3, "a", size=4),
        op("d", 4, "b", "c", "a", colocate="g"),
    ]
    found = fuse(Graph("g", tuple(ops)))
    assert [one.name for one in found.graph.ops] == ["a", "c", "d"]
    assert found.runs == ((0, 1), (2,), (3,))
    first = found.graph.ops[0]
    assert (first.seconds_on("gpu"), [t.bytes for t in first.outputs], first.workspace_bytes) == (
        Fraction(3, 10**12),
        [2, 3],
        5,
    )
    assert found.graph.ops[2].inputs == ("a:0", "a:1", "c:0")
    assert found.back([0, 1, 0]).tolist() == [0, 0, 1, 0]


def test_a_fused_op_needs_the_peak_of_what_it_holds_inside():
    """a (8) -> b (1) -> c: while b runs, 8 + 1 bytes and its workspace of 2 are held."""
    ops = [op("a", 1, size=8), op("b", 1, "a", size=1, workspace_bytes=2), op("c", 1, "b", size=4)]
    found = fuse(Graph("g", tuple(replace(one, colocate="all") for one in ops)))
    assert (len(found.graph.ops), found.graph.ops[0].workspace_bytes) == (1, 11)


WHERE = {"first": 0, "frequent": 1, "memory": 2, "memory-sum": 1, "time": 0, "time-sum": 2}


@pytest.mark.parametrize("rule", RULES)
def test_co_adjustment_moves_a_group_to_one_device(rule):
    """Memory 1 | 4 4 | 6 and times 5 | 1 1 | 2 4 on devices 0, 1 and 2."""
    memory, times = (1, 4, 4, 6, 0), (5, 1, 1, 2, 4)
    ops = [op(f"o{i}", 1, param_bytes=size, colocate="all") for i, size in enumerate(memory)]
    graph = Graph("g", tuple(ops))
    found = adjust(graph, rule, times)
    assert all(one.colocate is None for one in found.graph.ops)
    assert found.back([0, 1, 1, 2, 2]).tolist() == [WHERE[rule]] * 5
    named = prepare(graph, [f"adjust:{rule}"], times)
    assert named.back([0, 1, 1, 2, 2]).tolist() == [WHERE[rule]] * 5


def test_co_adjustment_refuses_unknown_rules_and_must_be_last():
    graph = TRAINING
    with pytest.raises(InputError, match="adjust: must be one of first, frequent"):
        adjust(graph, "least")
    with pytest.raises(InputError, match=r'adjust: must be one of .* got "least"'):
        prepare(graph, ["adjust:least"])
    with pytest.raises(InputError, match=r'must be of colocate, .* got "pair:first"'):
        prepare(graph, ["pair:first"])
    with pytest.raises(InputError, match='"time-sum" needs the times of the ops'):
        prepare(graph, ["adjust:time-sum"])
    with pytest.raises(InputError, match='"adjust" must be the last'):
        prepare(graph, ["adjust", "fuse"])


@given(drawn(dag))
def test_every_preparation_keeps_the_graph_and_its_groups(graph):
    for names in (
        ["colocate"],
        ["coplace"],
        ["coplace", "fuse"],
        ["fuse"],
        ["pair", "fuse"],
        ["forward"],
        ["adjust"],
    ):
        found = prepare(graph, names)
        assert sorted(i for members in found.members for i in members) == list(
            range(len(graph.ops))
        )
        devices = np.arange(len(found.graph.ops)) % 3
        for members in found.graph.groups.values():
            devices[list(members)] = devices[members[0]]
        placed = found.back(devices)
        for members in graph.groups.values():
            assert len(set(placed[list(members)].tolist())) == 1


@given(drawn(dag))
def test_fusing_keeps_what_is_between_nodes(graph):
    """Fused or not, the instance that placers read has the same edges; the sum of times stays."""
    found = fuse(graph)
    fused = Instance(Prepared(found.graph, joined(2), CostModel()), Grouped.of(found.graph))
    seen = Instance(Prepared(graph, joined(2), CostModel()), found)
    assert fused.edges == seen.edges
    assert fused.duration.tolist() == seen.duration.tolist()
    assert held_of(fused).made.tolist() == held_of(seen).made.tolist()


def test_preparations_after_a_fusion_of_nothing_keep_the_order_of_operands():
    """``fuse`` lists operands anew; what is placed are ops of the graph as it was given."""
    ops = [op("x", 1, size=1), op("y", 1, size=2), op("z", 1, "y", "x", "y", control_inputs=("x",))]
    graph = Graph("g", tuple(ops))
    for names in (["fuse", "pair"], ["fuse", "colocate", "coplace"], ["forward", "fuse", "pair"]):
        found = prepare(graph, names)
        assert found.original == graph
        assert [one.inputs for one in found.colocated.ops] == [one.inputs for one in ops]


def test_ops_that_are_placed_freely_are_those_of_the_graph():
    graph = TRAINING
    for names in (["fuse", "adjust"], ["forward", "adjust"], ["pair", "fuse", "adjust"]):
        with pytest.raises(
            InputError, match='"adjust" places single ops; it follows neither "fuse" nor "forward"'
        ):
            prepare(graph, names)
    found = prepare(graph, ["pair", "adjust"])
    assert len(found.graph.ops) == len(graph.ops)
    assert groups_of(found.original) == groups_of(pair(graph).graph)


def test_co_placement_leaves_alone_what_a_collective_reads():
    """It stands on its rank, wherever others do."""
    ops = [op("a", 1, size=4), op("b", 1, size=4)]
    ops.append(
        Op("r", "reduce", inputs=("a", "b"), outputs=(Tensor(4),), attrs={"ranks": ["g0", "g1"]})
    )
    assert groups_of(coplace(Graph("g", (*ops, op("c", 1, "r")))).graph) == [["r", "c"]]


def test_the_expert_keeps_the_groups_of_a_preparation():
    oracle = Oracle(TRAINING, joined(2))
    found = search(oracle, "expert", prepare=["coplace"])
    assert confirm(oracle, found) == ()


def test_a_fused_op_is_dispatched_as_long_as_its_members_together():
    def fused(*second: object, **first: object) -> Op:
        a = replace(op("a", 1, size=1), colocate="g", **first)
        b = replace(op("b", 1, "a"), colocate="g", **(second[0] if second else {}))
        (both,) = fuse(Graph("g", (a, b))).graph.ops
        return both

    both = fused({"host_time": "3 us", "launches": 2}, host_time="2 us", blocks_host=True)
    assert (both.host_seconds_on("gpu"), both.launches) == (Fraction(5, 10**6), 3)
    assert both.blocks_host
    # What one of them does not tell is not known of both.
    assert (fused(host_time=1).host_time, fused().launches) == (None, None)
