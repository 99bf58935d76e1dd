"""Chakra traces: what is sent between ranks, refusals."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

from foreign import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BARRIER,
    BROADCAST,
    COLL,
    COMP,
    GATHER,
    RECV,
    REDUCE,
    REDUCE_SCATTER,
    SCATTER,
    SEND,
    node,
    write,
)
from simdev import load_scenario
from simdev.formats import import_file, write_imported
from simdev.ground.errors import InputError
from simdev.report import run
from worlds.scenarios import written


@pytest.fixture
def proto():
    pytest.importorskip("google.protobuf")


def simulated(imported, tmp_path) -> Fraction:
    """Microseconds of the step."""
    write_imported(imported, tmp_path / "scenario.json")
    scenario = load_scenario(tmp_path / "scenario.json")
    assert scenario.graph == imported.graph
    return Fraction(run(scenario).step_ps, 10**6)


def test_one_rank_is_a_graph_of_its_computations(proto, tmp_path):
    file = write(
        tmp_path / "t.et",
        node(1, COMP, us=100, name="fwd"),
        node(2, 1, (1,), name="process_group"),
        node(3, COMP, (2,), us=50, name="fwd"),
    )
    imported = import_file(file, device="a100-80")
    assert [(op.name, op.time, op.control_inputs) for op in imported.graph.ops] == [
        ("rank 0/fwd", Fraction(1, 10**4), ()),
        ("rank 0/fwd #3", Fraction(5, 10**5), ("rank 0/fwd",)),
    ]
    assert "1 nodes of METADATA_NODE left out" in imported.notes
    assert simulated(imported, tmp_path) == 150


def test_an_all_reduce_meets_on_all_ranks_and_leaves_the_devices_free(proto, tmp_path):
    def rank(first: int) -> tuple[bytes, ...]:
        return (
            node(0, COMP, us=first),
            node(1, COLL, (0,), comm_type=ALL_REDUCE, comm_size=10**6),
            node(2, COMP, (0,), us=300),
            node(3, COMP, (1, 2), us=10),
        )

    files = [write(tmp_path / f"t.{r}.et", *rank(100 + 20 * r)) for r in range(2)]
    imported = import_file(files, bandwidth="1 GB/s")
    (ring,) = [op for op in imported.graph.ops if op.kind == "all_reduce"]
    assert ring.attrs["ranks"] == ("gpu:0", "gpu:1")
    # Ring of two: 2 (n-1) steps of half a MB at 1 GB/s, beside the 300 us of computation.
    assert simulated(imported, tmp_path) == 120 + 1000 + 10


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
    imported = import_file(file, devices=4, bandwidth="1 GB/s")
    assert "all 4 ranks run the one trace" in imported.notes
    assert simulated(imported, tmp_path) == 15 + microseconds


def test_what_does_not_divide_is_scattered_all_the_same(proto, tmp_path):
    file = write(
        tmp_path / "t.et",
        node(0, COMP, us=1),
        node(1, COLL, (0,), comm_type=REDUCE_SCATTER, comm_size=10),
    )
    imported = import_file(file, devices=4, bandwidth="1 GB/s")
    (op,) = [op for op in imported.graph.ops if op.kind == "reduce_scatter"]
    assert [tensor.bytes for tensor in op.outputs] == [3, 3, 2, 2]
    assert simulated(imported, tmp_path) > 1


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
    imported = import_file(files, bandwidth="1 GB/s")
    assert [op.attrs["ranks"] for op in imported.graph.ops if op.kind == "all_reduce"] == [
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
    imported = import_file(file)
    assert [imported.strategy.placement[op.name] for op in imported.graph.ops] == [
        "cpu:0",
        "gpu:0",
        "cpu:0",
        "cpu:0",
    ]
    assert simulated(imported, tmp_path) == 53  # 30 + 20 + 3 on the host, the GPU's 7 beside them


def test_times_that_are_missing_are_reckoned_from_a_datasheet(proto, tmp_path):
    file = write(tmp_path / "t.et", node(0, COMP, num_ops=624 * 10**9, tensor_size=10**6))
    with pytest.raises(InputError, match=r"t\.et: rank 0, node 0: tells num_ops and no time"):
        import_file(file)
    imported = import_file(file, device="a100-80")
    assert imported.graph.ops[0].time == Fraction(2, 1000)  # 312 TFLOP/s
    assert any("num_ops" in note for note in imported.notes)


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
    (tmp_path / "j.json").write_text("".join(json.dumps(entry, indent=2) for entry in jsonizer))
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
    written(tmp_path / "f.json", feeder)
    files = [binary, tmp_path / "j.json", tmp_path / "f.json"]
    first, *others = [
        import_file(file, devices=3, bandwidth="1 GB/s", name="x").graph for file in files
    ]
    assert all(other == first for other in others)


def test_provenance_names_every_file(proto, tmp_path):
    files = [write(tmp_path / f"t.{r}.et", node(0, COMP, us=1)) for r in range(2)]
    write_imported(import_file(files, bandwidth="1 GB/s"), tmp_path / "s.json")
    fields = json.loads((tmp_path / "s.json").read_text())["provenance"]
    assert [entry["file"] for entry in fields["files"]] == ["t.0.et", "t.1.et"]
    assert fields["units"] == "times in whole us, sizes in bytes"


def reduce_of(**fields: object) -> bytes:
    return node(0, COLL, comm_type=ALL_REDUCE, **{"comm_size": 8, **fields})


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
            imported = import_file(tmp_path / "cut.et", "chakra")
        except InputError:
            continue
        complete.add(end)
        assert len(imported.graph.ops) == 1
    assert len(complete) == 2  # whole, and behind the first node
    assert len(import_file(whole).graph.ops) == 2
