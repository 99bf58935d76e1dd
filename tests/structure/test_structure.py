"""Structure of a step: topological orders, units of placement, mates, weights with their gradients
and updates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simdev.nouns import models
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.models import backward
from simdev.nouns.structure import (
    before_of,
    first_made,
    mates,
    op_splits,
    order_of,
    topological,
    units,
    updates_of,
    weight_of_gradients,
    weights_of,
)

MODELS: dict[str, dict[str, Any]] = {
    "lenet": {},
    "alexnet": {},
    "resnet-50": {},
    "inception-v3": {},
    "nasnet-mobile": {},
    "rnnlm": {},
    "nmt": {},
    "gnmt-2": {},
    "transformer-base": {"layers": 2},
    "bert-base": {"layers": 2},
    "gpt2-small": {"layers": 2},
    "llama2-7b": {"layers": 2},
}


# Topological order


@st.composite
def dags(draw: st.DrawFn) -> list[set[int]]:
    """For each node those before it; nodes are numbered in no topological order."""
    count = draw(st.integers(1, 12))
    number = draw(st.permutations(range(count)))
    pairs = [(a, b) for b in range(count) for a in range(b)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    return before_of(count, [(number[a], number[b]) for a, b in edges])


@given(dags())
def test_every_rule_gives_each_node_once_after_those_before_it(before):
    for rule in ("ready", "branch", [-len(one) for one in before]):
        order = topological(before, rule)
        place = {node: at for at, node in enumerate(order)}
        assert sorted(order) == list(range(len(before)))
        assert all(place[one] < place[node] for node, those in enumerate(before) for one in those)


@given(dags(), st.data())
def test_each_rule_takes_the_node_it_names_of_those_that_are_ready(before, data):
    keys = data.draw(st.lists(st.integers(0, 3), min_size=len(before), max_size=len(before)))
    for rule in ("ready", "branch", keys):
        order, done = topological(before, rule), set[int]()
        since: dict[int, int] = {node: 0 for node, those in enumerate(before) if not those}
        for at, node in enumerate(order):
            ready = [one for one in since if one not in done]
            if rule == "ready":
                assert node == min(ready, key=lambda one: (since[one], one))
            elif rule == "branch":
                assert node == min(ready, key=lambda one: (-since[one], one))
            else:
                assert node == min(ready, key=lambda one: (keys[one], one))
            done.add(node)
            for one, those in enumerate(before):
                if one not in since and those <= done:
                    since[one] = at + 1


def test_nodes_on_a_cycle_and_after_it_are_left_out():
    before = [{3}, set(), {1, 4}, {4}, {3}]
    assert (
        topological(before) == topological(before, "branch") == topological(before, [0] * 5) == [1]
    )


# Colocation


def test_units_are_groups_and_ops_alone_by_their_first_op():
    ops = [Op("a"), Op("b", colocate="g"), Op("c"), Op("d", colocate="g"), Op("g")]
    assert units(Graph("g", tuple(ops))) == ((0,), (1, 3), (2,), (4,))


# Mates


@pytest.fixture(scope="module", params=MODELS)
def derived(request) -> Iterator[tuple[Graph, Mapping[int, int]]]:
    """A training step, and of each op of its backward the forward op whose rule wrote it."""
    truth: dict[int, int] = {}

    class Rules(dict[str, backward.Rule]):
        def __getitem__(self, kind: str) -> backward.Rule:
            rule = super().__getitem__(kind)

            def recorded(call, made):
                step, first = call.outputs[0].step, len(call.outputs[0].step.ops)
                found = list(rule(call, made))
                wrote = range(first, len(step.ops))
                truth.update(dict.fromkeys(wrote, call.outputs[0].source[0]))
                return iter(found)

            return recorded

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backward, "RULES", Rules(backward.RULES))
        yield models.build(request.param, **MODELS[request.param]), truth


def test_mates_lie_in_the_layer_whose_backward_they_are(derived):
    graph, truth = derived
    found, names = mates(graph), [models.layer_of(op.name) for op in graph.ops]
    assert all(found[i] == i for i, op in enumerate(graph.ops) if op.phase == "forward")
    assert [i for i, forward in truth.items() if names[found[i]] != names[forward]] == []
    assert sum(found[i] == forward for i, forward in truth.items()) >= 0.92 * len(truth)


def test_mates_without_names_are_found_by_what_ops_read_and_make(derived):
    graph, truth = derived
    found, names = mates(unnamed(graph)), [models.layer_of(op.name) for op in graph.ops]
    right = sum(names[found[i]] == names[forward] for i, forward in truth.items())
    assert right >= (0.88 if graph.name.startswith("llama") else 0.94) * len(truth)


def test_what_adds_up_gradients_of_several_readers_stays_with_the_last_of_them():
    graph = models.build("gpt2-small", layers=2)
    found = {graph.ops[i].name: graph.ops[mate].name for i, mate in enumerate(mates(graph))}
    for part in ("key", "query"):
        assert "layer_1/attention" in found[f"grad/layer_1/attention/{part}/add"]


def test_the_backward_of_a_tied_classifier_belongs_to_the_classifier():
    """Its weight is read first by the embedding, to which short forms gave it."""
    graph = models.build("gpt2-small", layers=1)
    found = mates(graph)
    for name in ("grad/classifier/matmul", "grad/classifier/matmul_1"):
        assert graph.ops[found[graph.index[name]]].name.startswith("classifier/")


def unnamed(graph: Graph) -> Graph:
    """The graph with numbers for names, and no groups."""
    new = {op.name: f"op {i}" for i, op in enumerate(graph.ops)}

    def reference(text: str) -> str:
        producer, output = graph.resolve(text)
        return f"{new[graph.ops[producer].name]}:{output}"

    ops = (
        Op(
            new[op.name],
            op.kind,
            op.phase,
            tuple(map(reference, op.inputs)),
            outputs=op.outputs,
            attrs=op.attrs,
        )
        for op in graph.ops
    )
    return Graph(graph.name, tuple(ops))


# Weights


def test_each_update_has_its_parameter_and_its_gradient(derived):
    graph, _ = derived
    weights = weights_of(graph)
    of_gradient = weight_of_gradients(graph, weights)
    for update in updates_of(graph, weights):
        (leaf,), (gradient,) = update.parameters, update.gradients
        assert graph.ops[update.op].name == f"update/{graph.ops[leaf].name}"
        assert of_gradient[gradient] == (leaf, 0)
        for tensor in first_made(graph, weights, gradient):
            assert of_gradient[tensor] == (leaf, 0)
            assert tensor in weights.gradients


def test_a_gradient_is_followed_through_views_products_with_a_number_and_other_shapes():
    """The bias gradients of unrolled cells are [1, n] and summed to [n]; so they were no gradients
    before.
    """
    row, flat = Tensor(16, (1, 4), "float32"), Tensor(16, (4,), "float32")
    wide = Tensor(32, (2, 4), "float32")
    ops = (
        Op("x", "input", outputs=(wide,)),
        Op("b", "parameter", outputs=(flat,)),
        Op("y", "add", inputs=("x", "b"), outputs=(wide,)),
        *(
            Op(
                f"sum {k}",
                "sum",
                "backward",
                ("y",),
                outputs=(row,),
                attrs={"dim": [0], "keepdim": True},
            )
            for k in range(2)
        ),
        Op(
            "total",
            "add",
            "backward",
            ("sum 0", "sum 1"),
            outputs=(flat,),
            attrs={"in": [[4], [4]]},
        ),
        Op("mean", "div", "backward", ("total",), outputs=(flat,), attrs={"other": 2}),
        Op("flat", "view", "backward", ("mean",), outputs=(flat,)),
        Op("update", "sgd_update", "update", ("b", "flat")),
    )
    graph = Graph("g", ops)
    weights = weights_of(graph)
    gradients = {graph.ops[i].name for i, _ in weights.gradients}
    assert gradients == {"sum 0", "sum 1", "total", "mean", "flat"}
    found = first_made(graph, weights, (graph.index["flat"], 0))
    assert [graph.ops[i].name for i, _ in found] == ["sum 0", "sum 1"]
    kinds = {one.axis: one.kind for one in op_splits(graph, graph.index["sum 0"], weights)}
    assert kinds == {"d1": "parameter", "d0": "reduction"}


def test_order_of_a_graph_counts_control_inputs():
    ops = (Op("a", control_inputs=("c",)), Op("b"), Op("c"))
    assert order_of(Graph("g", ops)) == [1, 2, 0]
