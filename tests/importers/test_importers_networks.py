"""Graphs of networkx: attributes and units, refusals."""

from __future__ import annotations

import json
from fractions import Fraction

import networkx as nx
import pytest

from foreign import network
from simdev import load_scenario
from simdev.formats import Machine, import_file, network_scenario, parse_network, write_imported
from simdev.ground.errors import InputError
from simdev.report import run

TEXTS = {
    "links": lambda graph: json.dumps(nx.node_link_data(graph, edges="links")),
    "edges": lambda graph: json.dumps(nx.node_link_data(graph, edges="edges")),
    "graphml": lambda graph: "\n".join(nx.generate_graphml(graph)),
}


@pytest.mark.parametrize("form", TEXTS)
def test_attributes_of_nodes_and_edges_become_ops(form):
    imported = network_scenario(parse_network(TEXTS[form](network())), Machine(), "net")
    a, b, c = imported.graph.ops
    assert (a.kind, a.time, [t.bytes for t in a.outputs]) == (
        "matmul",
        Fraction(12, 10**6),
        [100, 1000],
    )
    assert (b.inputs, b.control_inputs, b.time, b.param_bytes) == (
        ("a:0",),
        (),
        Fraction(2, 1000),
        10,
    )
    # Nothing tells what b hands to c: c only waits.
    assert (c.inputs, c.control_inputs, c.phase, c.time) == (
        ("a:1",),
        ("b",),
        "backward",
        Fraction(1, 1000),
    )
    assert a.attrs == {"layer": 3}
    assert c.attrs == {"weight": 0.5}
    assert imported.notes == ("kept as attributes, not interpreted: layer, weight",)


def test_an_imported_network_runs(tmp_path):
    (tmp_path / "net.graphml").write_text(TEXTS["graphml"](network()))
    imported = import_file(tmp_path / "net.graphml", devices=2, bandwidth="1 MB/s")
    write_imported(imported, tmp_path / "s.json")
    scenario = load_scenario(tmp_path / "s.json")
    assert (scenario.graph, scenario.cluster) == (imported.graph, imported.cluster)
    assert run(scenario).step_ps == 3_012 * 10**6


def test_times_by_kind_of_device_and_sizes_of_nodes():
    value = {
        "nodes": [
            {"id": 1, "time_ms": {"gpu": 1, "cpu": "5 s"}, "output_bytes": 7.0},
            {"id": 2, "time": 0},
        ],
        "links": [{"source": 1, "target": 2, "weight": 3}],
    }
    imported = network_scenario(parse_network(json.dumps(value)), Machine())
    assert imported.graph.ops[0].time == {"gpu": Fraction(1, 1000), "cpu": Fraction(5)}
    assert imported.graph.ops[1].inputs == ("1:0",)
    assert imported.graph.ops[0].outputs[0].bytes == 7
    assert "left out attributes of edges: weight" in imported.notes


def test_parallel_edges_are_one():
    graph = nx.MultiDiGraph()
    graph.add_edge("a", "b", bytes=3)
    graph.add_edge("a", "b", bytes=4)
    imported = network_scenario(parse_network(TEXTS["links"](graph)), Machine())
    assert [t.bytes for t in imported.graph.ops[0].outputs] == [7]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<graphml><x", "line 1, column 9: not XML"),
        ('<!DOCTYPE x [<!ENTITY a "b">]><graphml/>', "declares XML entities: refused"),
        ("<graphml/>", "not GraphML"),
        ('{"nodes": [], "links": []}', "the graph has no nodes"),
        ('{"nodes": 3, "links": []}', "not node-link JSON"),
        ('{"graph": 3, "nodes": [{"id": 1}], "links": []}', "graph: must be an object"),
        ('{"nodes": [{"id": 1}, {"id": 1}], "links": []}', "nodes[1].id: 1 stands twice"),
        ('{"nodes": [{"id": [1]}], "links": []}', "nodes[0].id: must be a text or a whole number"),
        (
            '{"nodes": [{"id": 1}], "links": [{"source": 1, "target": 3}]}',
            "links[0].target: no node with the id 3",
        ),
        (
            '{"nodes": [{"id": 1, "time": "3 apples"}], "links": []}',
            'node 1: time: has the unknown unit "apples"',
        ),
        (
            '{"nodes": [{"id": 1, "time": 1, "time_us": 1}], "links": []}',
            "node 1: time_us: the time is told twice",
        ),
        (
            '{"nodes": [{"id": 1, "bytes": 1.5}], "links": []}',
            "node 1: bytes: must be a whole number of bytes",
        ),
        ('{"nodes": [{"id": 1, "phase": "x"}], "links": []}', "phase: must be one of forward"),
        ('{"directed": false, "nodes": [{"id": 1}], "links": []}', "the graph is not directed"),
        ('{"nodes": [{"id": 1}], "links": [{"source": 1, "target": 1}]}', "cycle: 1 -> 1"),
    ],
)
def test_broken_networks_are_refused(text, problem):
    with pytest.raises(InputError) as caught:
        network_scenario(parse_network(text), Machine())
    assert problem in str(caught.value)
