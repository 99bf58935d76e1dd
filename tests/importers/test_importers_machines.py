"""Topologies of nvidia-smi and logs of nccl-tests: trees, switches, tables, refusals."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreign import alike, log, matrix
from simdev.costs.collectives import bus_factor
from simdev.files import read_cluster, read_collectives
from simdev.formats import (
    Machine,
    import_file,
    imported_text,
    log_tables,
    parse_log,
    parse_topology,
    topology_cluster,
    write_imported,
)
from simdev.ground.errors import InputError
from simdev.nouns.fabric import Routes

MESH = [
    [0, 1, 1, 2, 2, 0, 0, 0],
    [1, 0, 2, 1, 0, 2, 0, 0],
    [1, 2, 0, 2, 0, 0, 1, 0],
    [2, 1, 2, 0, 0, 0, 0, 1],
    [2, 0, 0, 0, 0, 1, 1, 2],
    [0, 2, 0, 0, 1, 0, 2, 1],
    [0, 0, 1, 0, 1, 2, 0, 2],
    [0, 0, 0, 1, 2, 1, 2, 0],
]


CUBE = [[f"NV{n}" if n else "SYS" for n in row] for row in MESH]


def links_of(cluster) -> dict[tuple[str, str], str]:
    return {link.ends: link.kind for link in cluster.links}


def test_a_hybrid_cube_mesh_has_the_links_of_the_preset():
    text = matrix(CUBE, ["0-19\t0"] * 4 + ["20-39\t1"] * 4, titles="CPU Affinity\tNUMA Affinity")
    imported = topology_cluster(parse_topology(text), Machine(device="v100")).cluster
    preset = read_cluster({"preset": "dgx-1v"})
    read, known = (
        {link.ends: link.lanes for link in cluster.links if link.lanes}
        for cluster in (imported, preset)
    )
    assert read == known
    # NCCL's rate
    assert all(link.bandwidth == 20 * 10**9 * link.lanes for link in imported.links if link.lanes)
    # What no NVLink joins goes over the sockets, and no route leads through a GPU.
    route = Routes(imported).route(imported.index["gpu:0"], imported.index["gpu:5"])
    assert [imported.devices[d].name for d in route.devices] == [
        "gpu:0",
        "socket:0",
        "socket:1",
        "gpu:5",
    ]
    assert route.bandwidth == 10 * 10**9
    assert imported.devices[0].memory == 16 * 10**9


@pytest.mark.parametrize(
    ("kind", "count", "device", "switch"),
    [
        ("NV12", 8, "a100-80", True),
        ("NV18", 8, "h100-sxm", True),
        ("NV2", 4, "v100", False),
        ("NV4", 4, "a100-40", False),
        ("NV12", 2, "a100-80", False),
        ("NV6", 16, "v100", True),
    ],
)
def test_more_nvlinks_than_a_gpu_has_mean_a_switch(kind, count, device, switch):
    text = matrix(alike(count, kind), ["0-63\t0\tN/A"] * count)
    cluster = topology_cluster(parse_topology(text), Machine(device=device)).cluster
    assert ("nvswitch:0" in cluster.index) == switch
    assert len(cluster.links) == (count if switch else count * (count - 1) // 2)
    route = Routes(cluster).route(0, 1)
    assert len(route.half_links) == 1 + switch
    lane = {"v100": 20, "a100-80": 20, "a100-40": 20, "h100-sxm": Fraction("20.6")}[device]
    assert route.bandwidth == lane * int(kind[2:]) * 10**9


def test_pcie_becomes_a_tree_of_what_is_near():
    kinds = [
        ["X", "PIX", "PHB", "NODE", "SYS"],
        ["PIX", "X", "PHB", "NODE", "SYS"],
        ["PHB", "PHB", "X", "NODE", "SYS"],
        ["NODE", "NODE", "NODE", "X", "SYS"],
        ["SYS", "SYS", "SYS", "SYS", "X"],
    ]
    cluster = topology_cluster(
        parse_topology(matrix(kinds, ["a"] * 5)), Machine(device="t4")
    ).cluster

    def passed(a: int, b: int) -> list[str]:
        return [cluster.devices[d].name for d in Routes(cluster).route(a, b).devices][1:-1]

    assert passed(0, 1) == ["pcie:0"]
    assert passed(0, 2) == ["pcie:0", "host-bridge:0"]
    assert passed(1, 3) == ["pcie:0", "host-bridge:0", "socket:0"]
    assert passed(3, 4) == ["socket:0", "system:0"]
    # Two GPUs behind one switch share its way up.
    assert Routes(cluster).route(0, 2).half_links[1] == Routes(cluster).route(1, 2).half_links[1]
    assert Routes(cluster).route(0, 1).bandwidth == 12 * 10**9  # a T4 stands on PCIe 3


def test_adapters_tell_which_gpus_share_a_bridge_and_are_left_out():
    kinds = [["X", "SYS", "PIX"], ["SYS", "X", "PIX"], ["PIX", "PIX", "X"]]
    kinds[0][1] = kinds[1][0] = "NV4"
    # A third GPU without NVLink makes the PCIe matter.
    kinds = [
        [*kinds[0][:2], "PHB", kinds[0][2]],
        [*kinds[1][:2], "PHB", kinds[1][2]],
        ["PHB", "PHB", "X", "PHB"],
        ["PIX", "PIX", "PHB", "X"],
    ]
    imported = topology_cluster(
        parse_topology(matrix(kinds, ["0"] * 3, ("mlx5_0",))), Machine(device="a100-40")
    )
    assert any("mlx5_0" in note for note in imported.notes)
    assert (
        links_of(imported.cluster)["gpu:0", "pcie:0"]
        == links_of(imported.cluster)["gpu:1", "pcie:0"]
        == "pcie"
    )
    assert [device.name for device in imported.cluster.devices] == [
        "gpu:0",
        "gpu:1",
        "gpu:2",
        "pcie:0",
        "host-bridge:0",
    ]


def test_the_matrix_is_found_in_a_log_and_rates_can_be_set(tmp_path):
    path = tmp_path / "log.txt"
    path.write_text(
        "host$ nvidia-smi topo -m\n" + matrix(alike(2, "PHB"), ["", ""]) + "\nhost$ exit\n"
    )
    imported = import_file(path, device="my-gpu", bandwidth="25 GB/s", memory="10 GB")
    assert Routes(imported.cluster).route(0, 1).bandwidth == 25 * 10**9
    assert imported.cluster.devices[0].memory == 10**10
    assert any("my-gpu" in note for note in imported.notes)


def test_a_cluster_is_written_with_an_origin_for_every_number(tmp_path):
    path = tmp_path / "topo.txt"
    path.write_text(matrix(CUBE, ["0"] * 8))
    imported = import_file(path, device="v100")
    write_imported(imported, tmp_path / "c.json")
    back = read_cluster(tmp_path / "c.json")
    assert back == imported.cluster
    origin = back.provenance["imported"]
    assert (origin["file"], origin["format"], len(origin["sha256"])) == (
        "topo.txt",
        "nvidia-smi-topo",
        64,
    )
    assert "date" not in origin
    kinds = {link.kind for link in back.links}
    assert {f"links.{kind}.{part}" for kind in kinds for part in ("bandwidth", "latency")} <= set(
        back.provenance
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("GPU1 GPU2", "no matrix"),
        (
            matrix(alike(2, "NVX"), ["", ""]),
            'line 2: GPU0, column GPU1: must be one of NV#, PIX, PXB, PHB, NODE, SYS, got "NVX"',
        ),
        (
            matrix([["X", "PIX"], ["PHB", "X"]], ["", ""]),
            "GPU0 to GPU1 is PIX, GPU1 to GPU0 is PHB",
        ),
        (
            "\n".join(matrix(alike(2, "PIX"), ["", ""]).splitlines()[:2]),
            "the row of GPU1 is missing",
        ),
        ("\tGPU0\tGPU1\nGPU0\t X \nGPU1\tPIX\t X ", "line 2: GPU0 has 1 of 2 columns"),
        ("\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU7\tPIX\t X ", 'line 3: "GPU7" is no column'),
    ],
)
def test_broken_matrices_are_refused(text, problem):
    with pytest.raises(InputError) as caught:
        parse_topology(text)
    assert problem in str(caught.value)


def test_what_the_gpus_are_must_be_told():
    topology = parse_topology(matrix(alike(2, "PIX"), ["", ""]))
    with pytest.raises(InputError, match="--device: missing"):
        topology_cluster(topology, Machine())
    with pytest.raises(InputError, match="--devices: the matrix tells it"):
        topology_cluster(topology, Machine(device="t4", devices=2))
    with pytest.raises(InputError, match="--bandwidth"):
        topology_cluster(topology, Machine(device="t4", bandwidth="fast"))


@given(st.integers(2, 7), st.data())
@settings(max_examples=30, deadline=None)
def test_a_route_climbs_as_far_as_the_matrix_says_and_no_farther(count, data):
    """For any nesting of places on PCIe."""
    order = ("PIX", "PXB", "PHB", "NODE", "SYS")
    names = {"pcie": 0, "bridges": 1, "host-bridge": 2, "socket": 3, "system": 4}
    places = [data.draw(st.lists(st.integers(0, 1), min_size=4, max_size=4)) for _ in range(count)]

    def far(a: int, b: int) -> int:
        """Places are told from the socket down: the first that differs tells how far apart two
        are.
        """
        return next((4 - i for i in range(4) if places[a][i] != places[b][i]), 0)

    kinds = [["X" if a == b else order[far(a, b)] for b in range(count)] for a in range(count)]
    cluster = topology_cluster(parse_topology(matrix(kinds, [])), Machine(device="t4")).cluster
    routes = Routes(cluster)
    for a in range(count):
        for b in set(range(count)) - {a}:
            route = routes.route(a, b)
            heights = [
                names[cluster.devices[d].name.partition(":")[0]] for d in route.devices[1:-1]
            ]
            crossed = any(cluster.half_links[h].link.kind == "socket" for h in route.half_links)
            assert (4 if crossed else max(heights)) == far(a, b)


def tables(text: str, **machine: object):
    return log_tables(parse_log(text), Machine(**machine))


@pytest.mark.parametrize(
    ("name", "redop", "collective"),
    [
        ("all_reduce", "sum", "all_reduce"),
        ("all_gather", "none", "all_gather"),
        ("reduce_scatter", "sum", "reduce_scatter"),
        ("alltoall", "none", "all_to_all"),
        ("broadcast", "none", "broadcast"),
    ],
)
def test_a_log_becomes_a_table_with_its_units(name, redop, collective):
    imported = tables(log(name, redop=redop, root="0" if name == "broadcast" else "-1"))
    (table,) = imported.tables
    assert (table.collective, table.ranks) == (collective, 8)
    factor = float(bus_factor(collective, 8))
    for size in (2**12, 2**21, 2**29):
        assert float(table.seconds(size)) == pytest.approx(20e-6 + size * factor / 200e9, rel=0.03)
    fit = imported.provenance["fits"][f"{collective} over 8 ranks"]
    assert float(fit["latency"].split()[0]) == pytest.approx(20, rel=0.02)
    assert float(fit["bus_bandwidth"].split()[0]) == pytest.approx(200, rel=0.02)


def test_collective_and_ranks_are_told_by_the_bandwidths_alone():
    for ranks in (2, 3, 4, 8, 16):
        (table,) = tables(log(ranks=ranks, title=False, listed=False)).tables
        assert (table.collective, table.ranks) == ("all_reduce", ranks)
    (table,) = tables(log("reduce_scatter", ranks=4, title=False, listed=False)).tables
    assert (table.collective, table.ranks) == ("reduce_scatter", 4)
    (table,) = tables(log("broadcast", redop="none", root="0", title=False)).tables
    assert table.collective == "broadcast"
    with pytest.raises(InputError, match="cannot tell which collective"):
        tables(log("all_gather", redop="none", title=False))
    with pytest.raises(InputError, match="tell their number by --devices"):
        tables(log("broadcast", redop="none", root="0", listed=False))
    (table,) = tables(log("broadcast", redop="none", root="0", listed=False), devices=8).tables
    assert table.ranks == 8


def test_several_tests_of_one_log_with_the_tags_of_mpirun(tmp_path):
    path = tmp_path / "nccl.log"
    info = "host:1:1 [0] NCCL INFO comm 0x55 rank 0 nranks 8\n"
    path.write_text(
        info
        + log(tag="[1,0]<stdout>:")
        + info
        + log("all_gather", redop="none", tag="[1,0]<stdout>:")
    )
    imported = import_file(path)
    assert [table.collective for table in imported.tables] == ["all_reduce", "all_gather"]
    write_imported(imported, tmp_path / "tables.json")
    assert read_collectives(tmp_path / "tables.json") == imported.tables
    origin = json.loads((tmp_path / "tables.json").read_text())["provenance"]
    assert (origin["file"], origin["format"], origin["units"]) == (
        "nccl.log",
        "nccl-tests",
        "sizes in bytes, times in us, bandwidths in GB/s",
    )


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda text: "hello", "no table of nccl-tests"),
        (lambda text: "\n".join(text.splitlines()[:14]), "no sizes under this header"),
        (lambda text: text.replace("      0 ", "      3 ", 1), "3 wrong results"),
        (lambda text: text.replace("float     sum", "float", 1), "columns of line"),
        (
            lambda text: text.replace("   20.00 ", "     nan ", 1),
            "must hold numbers of bytes, us and GB/s, got nan",
        ),
        (lambda text: text + text, "2 tests of all_reduce over 8 ranks: keep one"),
        (
            lambda text: text.replace("all_reduce_perf", "all_gather_perf"),
            "busbw is 1.75 times algbw, for all_gather over 8",
        ),
        (
            lambda text: text.replace("all_reduce_perf", "scatter_perf"),
            "scatter_perf: no collective that simdev knows",
        ),
        (lambda text: log(ranks=1, bus=1), "nothing is sent"),
    ],
)
def test_broken_logs_are_refused(change, problem):
    with pytest.raises(InputError) as caught:
        tables(
            change(log())
            if problem != "nothing is sent"
            else log(ranks=2).replace("#  Rank  1", "#  Bank  1")
        )
    assert problem in str(caught.value)


def test_tables_text_is_the_same_for_the_same_log():
    imported = tables(log())
    assert imported_text(imported) == imported_text(tables(log()))
