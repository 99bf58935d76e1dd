"""GDP: an encoder that knows no order, segments that remember, and one policy for many graphs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch

from simdev import Oracle
from simdev.learn import train
from simdev.learn.gdp import Attention, Network, inputs_of
from simdev.learn.rules import Proximal
from simdev.learn.settings import GDPSettings as Settings
from simdev.nouns.cluster import Device
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.search import search
from simdev.search.features import features_of
from toys import RANDOM_MEDIAN, TIMES, WITHIN, curve, toy, unprepared, until_optima
from worlds import measured_gnmt
from worlds.clusters import joined

SMALL = {"width": 8, "heads": 2, "hops": 2, "layers": 1, "segment": 4, "memory": 4, "samples": 8}
searched = partial(unprepared, "gdp", settings=SMALL, warm="random")
QUICK = SMALL | {"width": 16, "hops": 1, "samples": 10, "rate": 0.01, "epochs": 2, "decodes": 20}
QUICK |= {"entropy": 5.0, "divergence": 2.0, "superposition": False, "segment": 128, "memory": 128}


def network_of(oracle: Oracle, **settings: Any) -> tuple[Network, list[torch.Tensor]]:
    """A network for a question, and what it reads of it."""
    chosen = replace(Settings(), **SMALL | settings)
    inputs = inputs_of(oracle, chosen.harmonics)
    devices = len(oracle.cluster.devices)
    network = Network(inputs.rows.shape[1], devices, chosen, seed=0)
    return network, [torch.from_numpy(x) for x in (inputs.rows, inputs.source, inputs.target)]


def test_single_ops_are_placed_without_any_group():
    graph = measured_gnmt.gnmt()
    alone = Graph("alone", tuple(replace(op, colocate=None) for op in graph.ops))
    oracle = Oracle(alone, measured_gnmt.cluster("parallel"))
    result = searched(oracle, 7, settings=SMALL | {"segment": 128, "memory": 128, "samples": 2})
    assert result.policy is not None
    assert (result.policy.groups, result.policy.graph) == (2494, "")


def test_rows_tell_how_dear_transfers_are():
    """A tensor that takes 3 ps passes from an op of 3 ps to one of 1 ps."""
    ops = (Op("a", time="3 ps", outputs=(Tensor(3),)), Op("b", time="1 ps", inputs=("a",)))
    cluster = joined([Device("x", "x"), Device("y", "x")])
    oracle = Oracle(Graph("pair", ops), cluster)
    begin = len(features_of(oracle).columns)
    read, sent, whole = inputs_of(oracle, 0).rows[:, begin : begin + 3].T
    assert read == pytest.approx([0, 3 / 4])
    assert sent == pytest.approx([3 / 6, 0])
    assert whole == pytest.approx([3 / 7, 3 / 7])


def test_nodes_that_change_places_change_vectors():
    network, (rows, source, target) = network_of(toy())
    encoded = network.encoded(rows, source, target)
    turn = torch.tensor([3, 0, 5, 1, 4, 2])  # which node is where
    where = turn.argsort()
    turned = network.encoded(rows[turn], where[source], where[target])
    assert torch.allclose(turned, encoded[turn], atol=1e-6)
    assert not torch.allclose(encoded[0], encoded[1], atol=1e-3)


def test_messages_go_along_edges_in_both_directions():
    network, (rows, source, target) = network_of(toy(), hops=1)
    changed = rows.clone()
    changed[0] += 1.0  # the source, which two ops read
    before, after = (network.encoded(x, source, target) for x in (rows, changed))
    reached = ((before - after).abs().amax(1) > 1e-6).tolist()
    assert reached == [True, True, True, False, False, False]
    changed = rows.clone()
    changed[5] += 1.0  # the sink, which reads two
    after = network.encoded(changed, source, target)
    reached = ((before - after).abs().amax(1) > 1e-6).tolist()
    assert reached == [False, False, False, True, True, True]


@pytest.mark.parametrize("memory", [2, 3, 9, 20])
def test_segments_read_themselves_and_what_they_remember(memory):
    torch.manual_seed(0)
    layer, rows, graph = Attention(8, 2, False), torch.randn(10, 8), torch.zeros(8)
    out = layer(rows, graph, 3, memory)
    for begin in range(0, 10, 3):  # one segment after another, each with its own full attention
        kept = rows[max(begin - memory, 0) : begin + 3]
        size = min(3, 10 - begin)
        whole = layer(kept, graph, len(kept), 1)
        assert torch.allclose(out[begin : begin + size], whole[-size:], atol=1e-5)


def test_no_gradient_flows_through_memory():
    torch.manual_seed(0)
    layer, graph = Attention(8, 2, False), torch.zeros(8)
    rows = torch.randn(6, 8, requires_grad=True)
    layer(rows, graph, 3, 3)[3:].square().sum().backward()
    assert rows.grad is not None
    assert not rows.grad[:3].any()
    assert rows.grad[3:].any()


def test_without_attention_no_node_reads_another_but_along_edges():
    """What changes at the source reaches two of the other nodes after a hop, with attention all."""
    for attention, reached in ((True, 6), (False, 3)):
        network, (rows, source, target) = network_of(
            toy(), hops=1, attention=attention, superposition=False, segment=128
        )
        torch.nn.init.eye_(network.exit.dense.weight)  # else nothing comes out at first
        changed = rows.clone()
        changed[0] += 1.0
        before, after = (network(x, source, target) for x in (rows, changed))
        assert ((before - after).abs().amax(1) > 1e-6).sum() == reached


def test_superposition_gates_every_dense_layer_by_the_graph():
    network, read = network_of(toy())
    plain, _ = network_of(toy(), superposition=False)
    assert not [name for name, _ in plain.named_parameters() if "gate" in name]
    torch.nn.init.eye_(plain.exit.dense.weight)  # else nothing comes out at first
    shared = plain.state_dict()
    network.load_state_dict(shared, strict=False)
    assert torch.equal(network(*read), plain(*read))  # gates of 1 at first
    gates = [p for name, p in network.named_parameters() if name.endswith("gate.weight")]
    assert len(gates) == 6  # five in the layer of attention, and the last
    for gate in gates:
        with torch.no_grad():
            gate[:, 0] = 1.0
        assert not torch.equal(network(*read), plain(*read))
        with torch.no_grad():
            gate.zero_()


def test_a_policy_places_graphs_of_other_sizes():
    whole = toy()
    policy = searched(whole, 60).policy
    assert policy is not None
    fewer = [op for op in whole.graph.ops if op.name in ("source", "a", "c")]
    other = Oracle(Graph("fewer", tuple(fewer)), whole.cluster)
    placed = search(other, "gdp", 5, prepare=(), policy=policy, train=False)
    assert placed.policy is not None
    assert placed.policy.groups == 3 < len(TIMES)
    for name, weights in policy.weights.items():
        assert np.array_equal(weights, placed.policy.weights[name])


def test_the_optimum_is_met_before_random_search_would():
    met = until_optima("gdp", WITHIN, warm="random", settings=QUICK)
    assert None not in met
    assert median(met) < RANDOM_MEDIAN


def test_a_policy_learns_from_several_graphs_at_once():
    whole = toy()
    fewer = [op for op in whole.graph.ops if op.name in ("source", "a", "c")]
    other = Oracle(Graph("fewer", tuple(fewer)), whole.cluster)
    trained = train("gdp", [whole, other], 40, prepare=(), settings=SMALL | {"samples": 5})
    assert [graph.groups for graph in trained.graphs] == [6, 3]
    assert all(graph.evaluations > 10 for graph in trained.graphs)
    assert trained.policy.graph == ""
    placed = search(other, "gdp", 12, prepare=(), policy=trained.policy)  # goes on learning
    assert placed.policy is not None
    first, last = (
        policy.weights["network.entry.weight"] for policy in (trained.policy, placed.policy)
    )
    assert not np.array_equal(first, last)


def test_what_was_learned_elsewhere_is_evaluated_before_it_changes():
    oracle = toy()
    policy = searched(oracle, 60).policy
    kept = search(oracle, "gdp", 1, prepare=(), policy=policy, train=False)
    assert search(oracle, "gdp", 1, prepare=(), policy=policy).cost == kept.cost


def test_every_device_is_as_likely_as_the_others_at_first():
    network, read = network_of(toy())
    assert not network(*read).any()


def test_the_same_seed_gives_the_same_curve():
    curves = [curve(searched(toy(), 20, seed)) for seed in (1, 1, 2)]
    assert curves[0] == curves[1] != curves[2]


def test_the_baseline_is_the_mean_of_all_earlier_rewards():
    rule = Proximal(Settings(baseline="earlier"))
    assert rule.advantages(np.array([1.0, 3.0])).tolist() == [1.0, -1.0]  # the first batch: its own
    assert rule.advantages(np.array([0.0, 8.0])).tolist() == [0.5, -1.5]  # 2, and 4 apart
    assert rule.advantages(np.array([3.0, 3.0])).tolist() == [0.0, 0.0]
    assert rule.advantages(np.array([2.0, 4.0])).tolist() == [1.0, -1.0]  # 18 / 6 = 3
    batch = Proximal(Settings(baseline="batch"))
    batch.advantages(np.array([9.0, 9.0]))
    assert batch.advantages(np.array([0.0, 8.0])).tolist() == [1.0, -1.0]
