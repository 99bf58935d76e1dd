"""Graphs of networkx and Chakra traces: attributes and units, what is sent between ranks,
refusals.
"""

from __future__ import annotations

import json
from fractions import Fraction

import networkx as nx
import pytest

from simdev import load_scenario
from simdev.errors import InputError
from simdev.importers import Machine, import_file, network_scenario, parse_network, write_imported
from simdev.report import run

# networkx


def network() -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_node("a", time_us=12, op_type="matmul", layer=3)
    graph.add_node("b", time="2 ms", param_bytes=10, colocate="pair")
    graph.add_node("c", duration=0.001, phase="backward", colocate="pair", weight=0.5)
    graph.add_edge("a", "b", bytes=100)
    graph.add_edge("a", "c", size="1 kB")
    graph.add_edge("b", "c")
    return graph


TEXTS = {
    "links": lambda graph: json.dumps(nx.node_link_data(graph, edges="links")),
    "edges": lambda graph: json.dumps(nx.node_link_data(graph, edges="edges")),
    "graphml": lambda graph: "\n".join(nx.generate_graphml(graph)),
}


@pytest.mark.parametrize("form", TEXTS)
def test_attributes_of_nodes_and_edges_become_ops(form):
    found = network_scenario(parse_network(TEXTS[form](network())), Machine(), "net")
    a, b, c = found.graph.ops
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
    assert found.notes == ("kept as attributes, not interpreted: layer, weight",)


def test_an_imported_network_runs(tmp_path):
    (tmp_path / "net.graphml").write_text(TEXTS["graphml"](network()))
    found = import_file(tmp_path / "net.graphml", devices=2, bandwidth="1 MB/s")
    write_imported(found, tmp_path / "s.json")
    scenario = load_scenario(tmp_path / "s.json")
    assert (scenario.graph, scenario.cluster) == (found.graph, found.cluster)
    assert run(scenario).step_ps == 3_012 * 10**6


def test_times_by_kind_of_device_and_sizes_of_nodes():
    value = {
        "nodes": [
            {"id": 1, "time_ms": {"gpu": 1, "cpu": "5 s"}, "output_bytes": 7.0},
            {"id": 2, "time": 0},
        ],
        "links": [{"source": 1, "target": 2, "weight": 3}],
    }
    found = network_scenario(parse_network(json.dumps(value)), Machine())
    assert found.graph.ops[0].time == {"gpu": Fraction(1, 1000), "cpu": Fraction(5)}
    assert found.graph.ops[1].inputs == ("1:0",)
    assert found.graph.ops[0].outputs[0].bytes == 7
    assert "left out attributes of edges: weight" in found.notes


def test_parallel_edges_are_one():
    graph = nx.MultiDiGraph()
    graph.add_edge("a", "b", bytes=3)
    graph.add_edge("a", "b", bytes=4)
    found = network_scenario(parse_network(TEXTS["links"](graph)), Machine())
    assert [t.bytes for t in found.graph.ops[0].outputs] == [7]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<graphml><x", "line 1, column 9: not XML"),
        ('<!DOCTYPE x [<!ENTITY a "b">]><graphml/>', "declares XML entities: refused"),
        ("<graphml/>", "not GraphML"),
        ('{"nodes": [], "links": []}', "the graph has no nodes"),
        ('{"nodes": 3, "links": []}', "not node-link JSON"),
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


# Chakra

COMP, SEND, RECV, COLL = 4, 5, 6, 7
ALL_REDUCE, REDUCE, ALL_GATHER, GATHER, SCATTER = 0, 1, 2, 3, 4
BROADCAST, ALL_TO_ALL, REDUCE_SCATTER, BARRIER = 5, 6, 7, 9


def varint(value: int) -> bytes:
    found = b""
    while value >= 0x80:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])


def field(number: int, value: object) -> bytes:
    """One field of a protobuf message, written by hand from the format's own definition."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def node(
    number: int,
    kind: int,
    waits: tuple[int, ...] = (),
    us: int = 0,
    name: str = "",
    **attrs: object,
) -> bytes:
    body = field(1, number) + field(2, name or f"n{number}") + field(3, kind)
    body += b"".join(field(5, other) for other in waits)
    # start and inputs, which nothing reads
    body += field(6, 5) + field(7, us) + field(8, field(1, "[]"))
    for key, value in attrs.items():
        if isinstance(value, bool):
            told = field(27, int(value))
        elif isinstance(value, int):
            told = field(9, value)
        elif isinstance(value, list):
            told = field(10, field(1, b"".join(map(varint, value))))  # packed
        else:
            told = field(29, value)
        body += field(10, field(1, key) + told)
    return body


def write(path, *nodes: bytes) -> str:
    messages = (field(1, "0.0.4"), *nodes)
    path.write_bytes(b"".join(varint(len(one)) + one for one in messages))
    return str(path)


@pytest.fixture
def proto():
    pytest.importorskip("google.protobuf")


def simulated(found, tmp_path) -> Fraction:
    """Microseconds of the step."""
    write_imported(found, tmp_path / "scenario.json")
    scenario = load_scenario(tmp_path / "scenario.json")
    assert scenario.graph == found.graph
    return Fraction(run(scenario).step_ps, 10**6)


def test_one_rank_is_a_graph_of_its_computations(proto, tmp_path):
    file = write(
        tmp_path / "t.et",
        node(1, COMP, us=100, name="fwd"),
        node(2, 1, (1,), name="process_group"),
        node(3, COMP, (2,), us=50, name="fwd"),
    )
    found = import_file(file, device="a100-80")
    assert [(op.name, op.time, op.control_inputs) for op in found.graph.ops] == [
        ("rank0/fwd", Fraction(1, 10**4), ()),
        ("rank0/fwd #3", Fraction(5, 10**5), ("rank0/fwd",)),
    ]
    assert "1 nodes of METADATA_NODE left out" in found.notes
    assert simulated(found, tmp_path) == 150


def test_an_all_reduce_meets_on_all_ranks_and_leaves_the_devices_free(proto, tmp_path):
    def rank(first: int) -> tuple[bytes, ...]:
        return (
            node(0, COMP, us=first),
            node(1, COLL, (0,), comm_type=ALL_REDUCE, comm_size=10**6),
            node(2, COMP, (0,), us=300),
            node(3, COMP, (1, 2), us=10),
        )

    files = [write(tmp_path / f"t.{r}.et", *rank(100 + 20 * r)) for r in range(2)]
    found = import_file(files, bandwidth="1 GB/s")
    (ring,) = [op for op in found.graph.ops if op.kind == "all_reduce"]
    assert ring.attrs["ranks"] == ("gpu:0", "gpu:1")
    # Ring of two: 2 (n-1) steps of half a MB at 1 GB/s, beside the 300 us of computation.
    assert simulated(found, tmp_path) == 120 + 1000 + 10


@pytest.mark.parametrize(
    ("kind", "size", "microseconds"),
    [
        (ALL_GATHER, 10**6, 3000),  # each rank sends three shares
        (REDUCE_SCATTER, 4 * 10**6, 3000),
        (ALL_TO_ALL, 4 * 10**6, 3000),
        (BROADCAST, 256 * 10**4, 2580),  # along a chain, in 256 chunks
        (REDUCE, 256 * 10**4, 2580),
        (GATHER, 10**6, 3000),
        (SCATTER, 4 * 10**6, 3000),
        (BARRIER, 0, 0),
    ],
)
def test_what_collectives_send(proto, tmp_path, kind, size, microseconds):
    """ASTRA-sim's comm_size: a rank's share of an all-gather, else the whole buffer."""
    file = write(
        tmp_path / "t.et",
        node(0, COMP, us=10),
        node(1, COLL, (0,), comm_type=kind, comm_size=size),
        node(2, COMP, (1,), us=5),
    )
    found = import_file(file, devices=4, bandwidth="1 GB/s")
    assert "all 4 ranks run the one trace" in found.notes
    assert simulated(found, tmp_path) == 15 + microseconds


def test_what_does_not_divide_is_scattered_all_the_same(proto, tmp_path):
    file = write(
        tmp_path / "t.et",
        node(0, COMP, us=1),
        node(1, COLL, (0,), comm_type=REDUCE_SCATTER, comm_size=10),
    )
    found = import_file(file, devices=4, bandwidth="1 GB/s")
    (op,) = [op for op in found.graph.ops if op.kind == "reduce_scatter"]
    assert [tensor.bytes for tensor in op.outputs] == [3, 3, 2, 2]
    assert simulated(found, tmp_path) > 1


def test_sends_meet_their_receives(proto, tmp_path):
    files = [
        write(
            tmp_path / "a.0.et",
            node(0, COMP, us=10),
            node(1, SEND, (0,), comm_dst=1, comm_tag=7, comm_size=1000),
        ),
        write(
            tmp_path / "a.1.et",
            node(0, COMP, us=2),
            node(1, RECV, (0,), comm_src=0, comm_tag=7, comm_size=1000),
            node(2, COMP, (1,), us=1),
        ),
    ]
    for order in files, files[::-1]:  # the names tell the ranks
        assert simulated(import_file(order, bandwidth="1 GB/s"), tmp_path) == 10 + 1 + 1


def test_groups_of_ranks_meet_apart(proto, tmp_path):
    files = []
    for r in range(4):
        group = str(r // 2)
        files.append(
            write(
                tmp_path / f"t.{r}.et",
                node(0, COMP, us=10 * r),
                node(1, COLL, (0,), comm_type=ALL_REDUCE, comm_size=1000, pg_name=group),
            )
        )
    found = import_file(files, bandwidth="1 GB/s")
    assert [op.attrs["ranks"] for op in found.graph.ops if op.kind == "all_reduce"] == [
        ("gpu:0", "gpu:1"),
        ("gpu:2", "gpu:3"),
    ]


def test_ops_of_the_host_run_on_it(proto, tmp_path):
    file = write(
        tmp_path / "t.et",
        node(0, COMP, us=30, is_cpu_op=True),
        node(1, COMP, (0,), us=7, is_cpu_op=False),
        node(2, COMP, us=20, is_cpu_op=True),
        node(3, COLL, (2,), us=3, is_cpu_op=True),
    )
    found = import_file(file)
    assert [found.strategy.placement[op.name] for op in found.graph.ops] == [
        "cpu:0",
        "gpu:0",
        "cpu:0",
        "cpu:0",
    ]
    assert simulated(found, tmp_path) == 53  # 30 + 20 + 3 on the host, the GPU's 7 beside them


def test_times_that_are_missing_are_reckoned_from_a_datasheet(proto, tmp_path):
    file = write(tmp_path / "t.et", node(0, COMP, num_ops=624 * 10**9, tensor_size=10**6))
    with pytest.raises(InputError, match=r"t\.et: rank 0, node 0: tells num_ops and no time"):
        import_file(file)
    found = import_file(file, device="a100-80")
    assert found.graph.ops[0].time == Fraction(2, 1000)  # 312 TFLOP/s
    assert any("num_ops" in note for note in found.notes)


def test_the_json_forms_say_the_same(proto, tmp_path):
    binary = write(
        tmp_path / "t.et",
        node(0, COMP, us=10),
        node(1, COLL, (0,), comm_type=ALL_GATHER, comm_size=8),
        node(2, COMP, (1,), us=5),
    )
    jsonizer = [
        {"version": "0.0.4"},
        {"id": "0", "name": "n0", "type": "COMP_NODE", "durationMicros": "10"},
        {
            "id": "1",
            "name": "n1",
            "type": "COMM_COLL_NODE",
            "dataDeps": ["0"],
            "attr": [
                {"name": "comm_type", "int64Val": "2"},
                {"name": "comm_size", "int64Val": "8"},
            ],
        },
        {"id": "2", "name": "n2", "type": "COMP_NODE", "dataDeps": ["1"], "durationMicros": "5"},
    ]
    (tmp_path / "j.json").write_text("".join(json.dumps(one, indent=2) for one in jsonizer))
    feeder = {
        "workload_graph": [
            {"Id": 0, "Name": "n0", "NodeType": 4, "runtime": 10, "data_deps": []},
            {
                "Id": 1,
                "Name": "n1",
                "NodeType": 7,
                "comm_type": 2,
                "comm_size": 8,
                "data_deps": [0],
            },
            {"Id": 2, "Name": "n2", "NodeType": 4, "runtime": 5, "data_deps": [1]},
        ]
    }
    (tmp_path / "f.json").write_text(json.dumps(feeder))
    files = [binary, tmp_path / "j.json", tmp_path / "f.json"]
    first, *others = [
        import_file(file, devices=3, bandwidth="1 GB/s", name="x").graph for file in files
    ]
    assert all(other == first for other in others)


def test_provenance_names_every_file(proto, tmp_path):
    files = [write(tmp_path / f"t.{r}.et", node(0, COMP, us=1)) for r in range(2)]
    write_imported(import_file(files, bandwidth="1 GB/s"), tmp_path / "s.json")
    told = json.loads((tmp_path / "s.json").read_text())["provenance"]
    assert [one["file"] for one in told["files"]] == ["t.0.et", "t.1.et"]
    assert told["units"] == "times in whole us, sizes in bytes"


def reduce_of(**told: object) -> bytes:
    return node(0, COLL, comm_type=ALL_REDUCE, **{"comm_size": 8, **told})


@pytest.mark.parametrize(
    ("ranks", "problem"),
    [
        ([[node(0, COMP, (9,))]], "nodes[0]: no node with the id 9"),
        ([[node(0, COMP), node(0, COMP)]], "nodes[1].id: 0 is already that of nodes[0]"),
        ([[node(0, 77)]], "nodes[0].type: must be one of METADATA_NODE"),
        ([[node(0, COMP, (1,)), node(1, COMP, (0,))]], "rank 0: nodes 0, 1 wait for each other"),
        ([[b"\x07\xff\xff"]], "not a message of a Chakra node"),
        ([[]], "no nodes: not a Chakra trace"),
        ([[reduce_of()], [node(0, COMP)]], "rank 1: takes no part in the collectives of all ranks"),
        (
            [[reduce_of()], [reduce_of(comm_size=9)]],
            "rank 1, node 0: all_reduce of 9 bytes, but all_reduce of 8 bytes on rank 0",
        ),
        (
            [[reduce_of(), node(1, COLL, comm_type=0)], [reduce_of()]],
            "rank 1: 1 collectives of all ranks, but 2 on rank 0",
        ),
        (
            [[node(0, COLL, comm_type=33)], [node(0, COLL, comm_type=33)]],
            "comm_type: must be from 0 to 9",
        ),
        (
            [[node(0, SEND, comm_dst=1, comm_size=1)], [node(0, COMP)]],
            "1 sends from rank 0 to 1 with tag 0, 0 receives",
        ),
    ],
)
def test_broken_traces_are_refused(proto, tmp_path, ranks, problem):
    files = [write(tmp_path / f"t.{r}.et", *nodes) for r, nodes in enumerate(ranks)]
    with pytest.raises(InputError) as caught:
        import_file(files, "chakra", bandwidth="1 GB/s")
    assert problem in str(caught.value)


def test_a_trace_that_is_cut_off_is_refused_at_every_byte(proto, tmp_path):
    whole = write(tmp_path / "t.et", node(0, COMP, us=1), node(1, COMP, (0,), us=2))
    data = (tmp_path / "t.et").read_bytes()
    complete = {len(data)}
    for end in range(len(data)):
        (tmp_path / "cut.et").write_bytes(data[:end])
        try:
            found = import_file(tmp_path / "cut.et", "chakra")
        except InputError:
            continue
        complete.add(end)
        assert len(found.graph.ops) == 1
    assert len(complete) == 2  # whole, and behind the first node
    assert len(import_file(whole).graph.ops) == 2
