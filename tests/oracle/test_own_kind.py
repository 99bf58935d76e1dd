"""A kind of op and its traits, from registration to search: PyTorch's bilinear layer, and kinds of
one's own.
"""

from __future__ import annotations

import pytest

from simdev import Oracle
from simdev.costs import CostModel
from simdev.files import read_device, read_preset
from simdev.nouns.graph import Graph, Op
from simdev.nouns.semantics import Access, Call, Description, Output, Traits, axes, per, register
from simdev.nouns.strategy import Strategy
from simdev.nouns.structure import first_made, mates, updates_of, weights_of
from simdev.search import search
from worlds.graphs import tensor

N, I, J, O = 64, 96, 128, 160  # noqa: E741 (the letters of the formula)


def step() -> Graph:
    """Two bilinear layers, the second of the first and the batch, with the backward and the
    updates.
    """
    big, small = (O, I, J), (I, O, J)
    back, weight = "bilinear_backward_input", "bilinear_backward_weight"
    ops = (
        Op("x", "input", outputs=(tensor(N, I),)),
        Op("z", "input", outputs=(tensor(N, J),)),
        *(
            Op(f"w{k}", "parameter", outputs=(tensor(*s),), param_bytes=4 * O * I * J)
            for k, s in ((1, big), (2, small))
        ),
        Op("y1", "bilinear", inputs=("x", "z", "w1"), outputs=(tensor(N, O),)),
        Op("r1", "relu", inputs=("y1",), outputs=(tensor(N, O),)),
        Op("y2", "bilinear", inputs=("r1", "z", "w2"), outputs=(tensor(N, I),)),
        Op("dw2", weight, "backward", ("y2", "r1", "z"), outputs=(tensor(*small),)),
        Op("dx2", back, "backward", ("y2", "r1", "z", "w2"), outputs=(tensor(N, O), tensor(N, J))),
        Op("dr1", "relu_backward", "backward", ("dx2", "r1"), outputs=(tensor(N, O),)),
        Op("dw1", weight, "backward", ("dr1", "x", "z"), outputs=(tensor(*big),)),
        Op("u1", "sgd_update", "update", ("w1", "dw1")),
        Op("u2", "sgd_update", "update", ("w2", "dw2")),
    )
    return Graph("bilinear", ops)


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    cluster = read_preset("c4140-4x-v100")
    costs = CostModel(
        specs=tuple(read_device(kind) for kind in {d.kind for d in cluster.devices if d.runs_ops})
    )
    return Oracle(step(), cluster, costs)


def test_a_new_kind_has_mates_by_its_name():
    graph = step()
    found = {
        op.name: graph.ops[mate].name for op, mate in zip(graph.ops, mates(graph), strict=True)
    }
    told = {"dw2": "y2", "dx2": "y2", "dr1": "r1", "dw1": "y1", "u1": "y1", "u2": "y2"}
    assert {name: found[name] for name in told} == told


@pytest.mark.parametrize("short", ["data-parallel", "owt", "model-parallel"])
def test_a_new_kind_runs_under_short_forms(oracle, short):
    """Data parallelism computes a fourth on each device and adds both gradients up; owt cuts
    outputs instead.
    """
    trace = oracle.trace(Strategy(short=short))
    names = trace.task_graph.tasks.name
    parts = sum(name == "y1" or name.startswith("y1#") for name in names)
    assert parts == (1 if short == "model-parallel" else 4)
    assert any("#sync" in name or "bucket" in name for name in names) == (short == "data-parallel")


@pytest.mark.parametrize("method", ["tofu", "optcnn"])
def test_planners_cut_a_new_kind(oracle, method):
    found = search(oracle, method)
    alone = oracle(Strategy({"*": oracle.cluster.devices[oracle.cluster.workers[0]].name}))
    assert max(found.cost.peaks) < max(alone.peaks) / 3
    assert method == "tofu" or found.cost.step_ps < alone.step_ps  # Tofu weighs bytes, not time
    assert any(
        one.split
        for name, one in found.strategy.partition.items()
        if name in ("y1", "y2", "dw1", "dw2")
    )


def test_a_kind_of_ones_own_has_all_traits():
    """A halving that is linear, a leaf of weights, and a backward with another name than its
    forward's.
    """

    def pointwise(call: Call) -> Description:
        points = axes("a b", call.outputs[0])
        return Description(
            (Output(points),), tuple(Access(points) for _ in call.inputs), (per(1, *points),)
        )

    def leaf(call: Call) -> Description:
        return Description((Output(axes("a b", call.outputs[0])),), (), gradients=(0,), moves=False)

    register("my_half", pointwise, "elementwise", traits=Traits(linear="scale"))
    register("my_weight", leaf, traits=Traits(leaf="parameter"))
    register("my_gate", pointwise, "elementwise")
    register("my_ungate", pointwise, "elementwise", traits=Traits(backward_of="my_gate"))
    one = tensor(8, 8)
    ops = (
        Op("x", "input", outputs=(one,)),
        Op("w", "my_weight", outputs=(one,), param_bytes=256),
        Op("a", "my_gate", inputs=("x", "w"), outputs=(one,)),
        Op("b", "mul", inputs=("a", "x"), outputs=(one,)),
        Op("db", "mul", "backward", ("b", "x"), outputs=(one,)),
        Op("dw", "my_ungate", "backward", ("db", "a"), outputs=(one,)),
        Op("half", "my_half", "backward", ("dw",), outputs=(one,)),
        Op("u", "sgd_update", "update", ("w", "half")),
    )
    graph = Graph("own", ops)
    weights = weights_of(graph)
    assert weights.parameters == {(1, 0)}
    assert first_made(graph, weights, (graph.index["half"], 0)) == [(graph.index["dw"], 0)]
    assert mates(graph)[graph.index["dw"]] == graph.index["a"]
    assert updates_of(graph, weights)[0].parameters == (1,)
