"""What learners see of a question, as arrays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from forks import forks
from simdev import Oracle
from simdev.nouns.cluster import Device
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.semantics import kinds, register
from simdev.search.features import KINDS, Nodes, ancestors_of, features_of
from simdev.search.space import choices
from worlds.clusters import joined
from worlds.graphs import op
from worlds.scenarios import worlds


def small() -> Oracle:
    """A group of two ops with a third between them, and an op that runs on one kind of device."""
    ops = (
        Op("a", "relu", outputs=(Tensor(8, (2, 4)), Tensor(4, (1,), view_of=0)), time=1),
        Op("b", "mine", inputs=("a",), outputs=(Tensor(6, (1, 2, 3, 2, 5)),), time=2),
        Op("c", "relu_backward", "backward", ("a", "a:1", "b"), time={"gpu": 3}),
        Op("d", "sgd_update", "update", ("c0",), ("a",), param_bytes=3, state_bytes=4, time=1),
    )
    middle = replace(ops[2], name="c0", outputs=(Tensor(5),), workspace_bytes=9)
    ops = (ops[0], ops[1], middle, ops[3])
    ops = tuple(replace(one, colocate="pair") if one.name in "ac0" else one for one in ops)
    devices = (Device("g0"), Device("x0", "cpu"))
    return Oracle(Graph("small", ops), joined(devices))


def single(oracle: Oracle) -> Oracle:
    """The question with every op in a group of its own."""
    ops = tuple(replace(each, colocate=None) for each in oracle.graph.ops)
    return Oracle(Graph(oracle.graph.name, ops), oracle.cluster)


def edges(nodes: Nodes) -> list[tuple[int, int, float]]:
    return list(
        zip(nodes.source.tolist(), nodes.target.tolist(), nodes.edge_bytes.tolist(), strict=True)
    )


def test_features_of_a_small_graph_by_hand():
    groups, ops = features_of(small()), features_of(single(small()))
    assert (ops.names, groups.names) == (("a", "b", "c0", "d"), ("pair", "b", "d"))
    relu, other = KINDS.index("relu"), KINDS.index("other")
    assert groups.kind[:, [relu, other, KINDS.index("sgd_update")]].tolist() == [
        [2, 0, 0],
        [0, 1, 0],
        [0, 0, 1],
    ]
    assert groups.kind.sum() == 4
    assert groups.phase.tolist() == [[1, 1, 0], [1, 0, 0], [0, 0, 1]]
    assert ops.seconds.tolist() == [[1, 1], [2, 2], [3, 0], [1, 1]]
    assert groups.seconds.tolist() == [[4, 0], [2, 2], [1, 1]]
    assert groups.able.tolist() == [[True, False], [True, True], [True, True]]
    assert groups.output_bytes.tolist() == [13, 6, 0]
    assert ops.shape.tolist() == [[2, 4, 0, 0], [1, 2, 3, 10], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert groups.persistent_bytes.tolist() == [0, 0, 7]
    assert groups.workspace_bytes.tolist() == [9, 0, 0]
    assert edges(ops) == [(0, 1, 8), (0, 2, 12), (0, 3, 0), (1, 2, 6), (2, 3, 5)]
    assert edges(groups) == [(0, 1, 8), (0, 2, 5), (1, 0, 6)]
    assert (ops.order.tolist(), groups.order.tolist()) == ([0, 1, 2, 3], [0, 1, 2])


def test_a_tensor_that_a_group_reads_twice_counts_once():
    ops = (op("a", 1, size=7), op("b", 1, "a"), op("c", 1, "a"))
    ops = tuple(replace(one, colocate=None if one.name == "a" else "both") for one in ops)
    oracle = Oracle(Graph("twice", ops), joined("gh"))
    assert features_of(oracle).edge_bytes.tolist() == [7]
    assert features_of(single(oracle)).edge_bytes.tolist() == [7, 7]


def test_a_group_whose_first_op_comes_early_still_follows_what_it_reads():
    """The order of first ops alone would number the group before the op that it reads."""
    ops = (op("a", 1), op("b", 1, size=1), op("c", 1, "b"))
    ops = tuple(replace(one, colocate=None if one.name == "b" else "both") for one in ops)
    oracle = Oracle(Graph("late", ops), joined("gh"))
    assert features_of(oracle).order.tolist() == [1, 0]


def test_ancestors_lead_to_a_node_and_those_of_a_cycle_to_each_other():
    """The pair of the small graph reads what reads it; the last op reads the pair alone."""
    assert ancestors_of(features_of(small())).astype(int).tolist() == [
        [0, 1, 0],
        [1, 0, 0],
        [1, 1, 0],
    ]
    leads = ancestors_of(features_of(single(forks())))
    assert leads.sum(axis=1).tolist() == [0, 1, 2, 3, 1, 2, 3, 7]


def test_columns_depend_on_the_number_of_devices_alone():
    few, many = features_of(forks()), features_of(single(small()))
    assert few.columns == many.columns
    for nodes in (few, many, features_of(small()), features_of(single(forks()))):
        table = nodes.scaled()
        assert (table.shape, table.dtype) == ((len(nodes), len(nodes.columns)), np.float32)
        assert (table.min(), table.max()) == (0, 1)
    sent = few.scaled()[:, few.columns.index("bytes sent")]
    assert sent.tolist() == [1, 0.5, 0.5, 0.5, 0.5, 0.5, 0]
    seconds = many.columns.index("seconds 0")
    assert many.scaled()[:, seconds : seconds + 2] == pytest.approx(many.seconds / 3)


def test_kinds_of_ones_own_change_no_column():
    register("mine", kinds()["relu"].describe)
    assert "mine" in kinds()
    assert "mine" not in KINDS
    assert features_of(small()).kind[1, KINDS.index("other")] == 1


@settings(max_examples=60)
@given(worlds())
def test_edges_and_places_are_those_of_the_question(world):
    oracle = Oracle(world.graph, world.cluster)
    for question in (oracle, single(oracle)):
        nodes, units = features_of(question), question.groups
        row = {i: at for at, members in enumerate(units) for i in members}
        bytes_of: dict[tuple[int, int], dict[tuple[int, int], int]] = {}
        for reader, reads in enumerate(world.graph.reads):
            for producer, output in reads:
                if row[producer] != row[reader]:
                    size = world.graph.ops[producer].outputs[output].bytes if output >= 0 else 0
                    tensors = bytes_of.setdefault((row[producer], row[reader]), {})
                    tensors[producer, output] = size
        sums = [(*edge, sum(sizes.values())) for edge, sizes in sorted(bytes_of.items())]
        assert edges(nodes) == sums
        assert sorted(nodes.order.tolist()) == list(range(len(nodes)))
    assert (nodes.order[nodes.source] < nodes.order[nodes.target]).all()
    able = features_of(oracle).able
    if able.any(axis=1).all():
        places = [np.flatnonzero(row).tolist() for row in able]
        assert places == [devices.tolist() for devices in choices(oracle)]
