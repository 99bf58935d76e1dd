"""Presets: what they tell of their numbers (lint), that they simulate, several nodes, the verb,
picture, documents.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from preset_rules import (
    lint_cluster,
    lint_collectives,
    lint_device,
    lint_families,
    lint_presets,
)
from simdev.cli import main
from simdev.cli.clusters import device_table, preset_rows, preset_table
from simdev.cluster import Cluster, Device, Link
from simdev.costs import CostModel
from simdev.engine import simulate
from simdev.errors import InputError
from simdev.fabric import Routes
from simdev.files import (
    collective_model,
    device_names,
    device_presets,
    preset_names,
    read_cluster,
    read_device,
    read_graph,
    read_preset,
    read_scenario,
    write_cluster,
)
from simdev.files.cluster import CLUSTERS
from simdev.files.collectives import COLLECTIVE_PRESETS, collective_names
from simdev.files.device import DEVICE_PRESETS
from simdev.files.reading import read_json
from simdev.graph import Graph
from simdev.lowering import lower
from simdev.report.figures.cluster import cluster_figure, cluster_picture
from simdev.strategy import Strategy
from simdev.units import parse_flops

ROOT = Path(__file__).parents[2]
Changes = Callable[[dict[str, Any]], Any]

# The NVLinks between two GPUs of a DGX-1V (NVIDIA/nccl issue 671).
MESH = (
    "01122000",
    "10210200",
    "12020010",
    "21200001",
    "20000112",
    "02001021",
    "00101202",
    "00012120",
)


def test_the_shipped_presets_are_in_order() -> None:
    assert lint_presets() == []


@pytest.mark.parametrize("name", preset_names())
def test_every_cluster_passes_the_lint_and_has_its_devices_and_routes(name: str) -> None:
    assert list(lint_cluster(name, read_json(CLUSTERS / f"{name}.json"))) == []
    cluster = read_preset(name)
    running = [i for i, device in enumerate(cluster.devices) if device.runs_ops]
    assert {cluster.devices[i].kind for i in running} <= set(device_names())
    routes = Routes(cluster)
    for there in running[1:]:
        assert routes.route(running[0], there) is not None
        assert routes.route(there, running[0]) is not None
    collective_model(cluster)


@pytest.mark.parametrize("name", device_names())
def test_every_device_passes_the_lint(name: str) -> None:
    assert list(lint_device(name, read_json(DEVICE_PRESETS / f"{name}.json"))) == []
    assert read_device(name).kind == name


@pytest.mark.parametrize("name", collective_names())
def test_every_collection_of_collectives_passes_the_lint(name: str) -> None:
    assert list(lint_collectives(name, read_json(COLLECTIVE_PRESETS / f"{name}.json"))) == []


def test_memory_of_a_preset_is_that_of_its_kind_of_device_or_says_otherwise() -> None:
    known = {spec.kind: spec.memory for spec in device_presets()}
    differing = set()
    for name in preset_names():
        for device in read_preset(name).devices:
            if (
                device.runs_ops
                and known[device.kind] is not None
                and device.memory != known[device.kind]
            ):
                differing.add((name, device.kind))
    # The DGX-2 has the larger V100; p2.8xlarge tells the memory of its host.
    assert differing == {("dgx-2", "v100"), ("tofu-8x-k80", "host-cpu")}


def at(value: dict[str, Any], path: str, new: Any) -> None:
    *inner, last = path.split("/")
    for key in inner:
        value = value[key]
    if new is None:
        del value[last]
    else:
        value[last] = new


BROKEN_CLUSTERS = [
    (
        "provenance/links.nvlink-x1.bandwidth",
        None,
        "provenance: links.nvlink-x1.bandwidth: missing",
    ),
    (
        "provenance/links.nvlink-x1.bandwidth/source",
        "",
        "provenance: links.nvlink-x1.bandwidth: source missing",
    ),
    (
        "provenance/links.nvlink-x1.bandwidth/kind",
        "guessed",
        "kind must be one of measured, datasheet, fitted",
    ),
    (
        "provenance/links.nvlink-x1.bandwidth/date",
        "last year",
        "date must be like 2026-09, got last year",
    ),
    (
        "provenance/links.nvlink-x1.bandwidth/value",
        "21.7 MB/s",
        "tells of 21.7 MB/s, the number is 21.7 GB/s",
    ),
    (
        "provenance/links.nvlink-x1.bandwidth/specification/value",
        "20 GB/s",
        "more than 1.05 times the specification",
    ),
    (
        "provenance/links.ether.bandwidth",
        {"value": "1 GB/s"},
        "tells of a number that is not there",
    ),
    (
        "link_kinds/nvlink-x1/bandwidth",
        21.7e9,
        "links.nvlink-x1.bandwidth: must be text with a unit",
    ),
    ("link_kinds/nvlink-x1/lanes", 2, "devices.gpu:0: 8 lanes of nvlink, but 6 ports"),
    ("link_kinds/nvlink-x1/duplex", None, "links.nvlink-x1.duplex: must be stated"),
    ("link_kinds/nvlink-x1/duplex", "simplex", "links.nvlink-x1: one direction only"),
    ("network/duplex", None, "network.duplex: must be stated"),
    ("network/efficiency", 0.5, "network.efficiency: tells of 0.76, the number is 0.5"),
    ("title", "", "title: missing"),
    ("name", "dgx", "name: must be that of the file"),
]


@pytest.mark.parametrize(("path", "new", "problem"), BROKEN_CLUSTERS)
def test_the_lint_finds_what_is_wrong_with_a_cluster(path: str, new: Any, problem: str) -> None:
    value = copy.deepcopy(read_json(CLUSTERS / "dgx-1v.json"))
    at(value, path, new)
    assert any(problem in one for one in lint_cluster("dgx-1v", value))


BROKEN_DEVICES = [
    ("provenance/flops.bfloat16", None, "provenance: flops.bfloat16: missing"),
    ("measured/flops/bfloat16", "1100 TFLOP/s", "is more than 1.05 times 989 TFLOP/s"),
    ("measured/flops/int4", "1 TFLOP/s", "measured.flops.int4: measured, but not specified"),
    ("efficiency/gemm/compute", 1.2, "efficiency.gemm.compute: must be in (0, 1.1], got 1.2"),
    ("efficiency/gemm/overhead", 3, "efficiency.gemm.overhead: must be text with a unit"),
    ("memory", 80, "memory: must be text with a unit"),
    ("kind", "h100", "kind: must be the name of the file"),
]


@pytest.mark.parametrize(("path", "new", "problem"), BROKEN_DEVICES)
def test_the_lint_finds_what_is_wrong_with_a_device(path: str, new: Any, problem: str) -> None:
    value = copy.deepcopy(read_json(DEVICE_PRESETS / "h100-sxm.json"))
    at(value, path, new)
    assert any(problem in one for one in lint_device("h100-sxm", value))


def test_the_lint_finds_the_memory_bandwidth_of_another_card() -> None:
    """As PyTorch's table gave an L4 the 3,350 GB/s of an H100."""
    devices = {name: read_json(DEVICE_PRESETS / f"{name}.json") for name in device_names()}
    assert list(lint_families(devices)) == []
    devices["t4"]["memory_bandwidth"] = "3350 GB/s"
    assert any(
        "devices/t4.json: " in one and "bytes per FLOP" in one for one in lint_families(devices)
    )
    del devices["t4"]["family"]
    assert "devices/t4.json: family: missing" in list(lint_families(devices))


def test_the_lint_finds_tables_told_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value = copy.deepcopy(read_json(COLLECTIVE_PRESETS / "h100-sxm.json"))
    value["tables"][1]["anchors"] = value["tables"][0]["anchors"]
    assert list(lint_collectives("h100-sxm", value)) == [
        "tables.all_reduce.4: the same anchors as tables.all_reduce.2"
    ]
    value["tables"][1] |= {"anchors": [[512, "1 us"]], "source": "fitted"}
    problems = list(lint_collectives("h100-sxm", value))
    assert any("its source is fitted, its provenance says measured" in one for one in problems)
    assert any("anchors without units" in one for one in problems)
    for name in ("a100-40", "copy"):
        fields = {**read_json(DEVICE_PRESETS / "a100-40.json"), "kind": name}
        (tmp_path / f"{name}.json").write_text(json.dumps(fields, default=float))
    for module in ("preset_rules", "simdev.files.device"):
        monkeypatch.setattr(f"{module}.DEVICE_PRESETS", tmp_path)
    assert any("copy.json: the same as a100-40.json" in one for one in lint_presets())


@cache
def model() -> tuple[Graph, CostModel]:
    return read_graph(ROOT / "profiles" / "graphs" / "inception-v3-b16.json"), CostModel(
        specs=device_presets()
    )


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_simulates_a_shipped_model(name: str) -> None:
    """Inception-V3 cut into as many parts as there are devices, its ops timed by the datasheets
    alone.
    """
    graph, costs = model()
    cluster = read_preset(name)
    devices = [
        device.name for device in cluster.devices if device.runs_ops and device.kind != "host-cpu"
    ]
    first: dict[str, int] = {}
    for i, op in enumerate(graph.ops):
        first.setdefault(op.colocate or op.name, i)
    place = {
        op.name: devices[first[op.colocate or op.name] * len(devices) // len(graph.ops)]
        for op in graph.ops
    }
    trace = simulate(lower(graph, cluster, costs, Strategy(place)))
    assert 10**9 < trace.end_ps < 60 * 10**12
    assert trace.feasible
    assert (
        sum(task.startswith("link ") or ">" in task for task in trace.task_graph.tasks.name)
        > len(devices) - 2
    )


def test_faster_machines_take_less() -> None:
    graph, costs = model()
    alone = {}
    for name in ("p3-4x-p4000", "dgx-1v", "dgx-a100-80", "dgx-h100", "dgx-b200"):
        place = {op.name: "gpu:0" for op in graph.ops}
        alone[name] = simulate(lower(graph, read_preset(name), costs, Strategy(place))).end_ps
    assert list(alone.values()) == sorted(alone.values(), reverse=True)


def test_the_mesh_of_a_dgx_1v() -> None:
    cluster = read_preset("dgx-1v")
    lanes = {
        frozenset(link.ends): link.lanes for link in cluster.links if link.kind.startswith("nvlink")
    }
    for a in range(8):
        for b in range(8):
            assert lanes.get(frozenset((f"gpu:{a}", f"gpu:{b}")), 0) == int(MESH[a][b])
    route = Routes(cluster).route(0, 5)
    assert route is not None
    names = [cluster.devices[i].name for i in route.devices]
    assert names == ["gpu:0", "pcie:0", "socket:0", "socket:1", "pcie:2", "gpu:5"]


def test_nodes_are_numbered_on_and_joined_by_the_network() -> None:
    cluster = read_preset("dgx-h100", 3, network="200 Gbit/s")
    assert cluster.name == "dgx-h100, nodes 3, network 25 GB/s"
    gpus = [device for device in cluster.devices if device.runs_ops]
    assert [device.name for device in gpus] == [f"gpu:{i}" for i in range(24)]
    assert [device.node for device in gpus] == [i // 8 for i in range(24)]
    route = Routes(cluster).route(cluster.index["gpu:3"], cluster.index["gpu:17"])
    assert route is not None
    names = [cluster.devices[i].name for i in route.devices]
    assert names == ["gpu:3", "nic:3", "network", "nic:17", "gpu:17"]
    assert route.bandwidth == 25 * 10**9 * Fraction("0.728")
    assert (route.held, route.lag) == (0, Fraction("18.9e-6"))
    inside = Routes(cluster).route(cluster.index["gpu:8"], cluster.index["gpu:9"])
    assert inside is not None
    assert [cluster.devices[i].name for i in inside.devices] == ["gpu:8", "nvswitch:1", "gpu:9"]
    assert cluster.provenance["network.bandwidth"]["kind"] == "setting"


@pytest.mark.parametrize(
    "name", [name for name in preset_names() if "network" in read_json(CLUSTERS / f"{name}.json")]
)
def test_routes_within_a_node_do_not_leave_it(name: str) -> None:
    one, two = read_preset(name, 1), read_preset(name, 2)
    running = [device.name for device in one.devices if device.runs_ops]
    for there in running[1:]:
        routes = [
            Routes(cluster).route(cluster.index[running[0]], cluster.index[there])
            for cluster in (one, two)
        ]
        assert routes[0] is not None
        assert routes[1] is not None
        alone, among = (
            [c.devices[i].name for i in r.devices]
            for c, r in zip((one, two), routes, strict=True)
            if r
        )
        assert alone == among
    across = Routes(two).route(0, two.index[f"{running[0].partition(':')[0]}:{len(running)}"])
    assert across is not None
    assert "network" in [two.devices[i].name for i in across.devices]


def test_large_presets_load_with_few_links() -> None:
    racks = read_preset("gb200-nvl72", 4)
    assert sum(device.runs_ops for device in racks.devices) == 288
    assert len(racks.links) == 3 * 288


def test_a_scenario_names_a_preset_with_settings(tmp_path: Path) -> None:
    question = {
        "version": 1,
        "graph": {"ops": []},
        "strategy": {},
        "cluster": {"preset": "p3-4x-p4000", "nodes": 8},
    }
    (tmp_path / "s.json").write_text(json.dumps(question))
    assert (
        sum(device.runs_ops for device in read_scenario(tmp_path / "s.json").cluster.devices) == 8
    )
    settings = {
        "version": 1,
        "preset": "dgx-h100",
        "nodes": 2,
        "network": "100 Gbit/s",
        "queues": "fair",
    }
    (tmp_path / "c.json").write_text(json.dumps(settings))
    cluster = read_cluster(tmp_path / "c.json")
    assert cluster == read_preset("dgx-h100", 2, network="100 Gbit/s", queues="fair")
    assert cluster.queues == "fair"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"preset": "dgx-h10"}, 'preset: no preset "dgx-h10"; did you mean "dgx-h100"?'),
        ({"preset": "dgx-h100", "nodes": 0}, "nodes: must be > 0, got 0"),
        (
            {"preset": "dgx-h100", "nodes": 10**6},
            "nodes: 1000000 make more than 100000 devices or 1000000 links",
        ),
        ({"preset": "dgx-h100", "nodes": -1}, "nodes: must be a whole number, got -1"),
        ({"preset": "dgx-h100", "nodes": 2.5}, "nodes: must be a whole number, got 2.5"),
        ({"preset": "dgx-h100", "nodes": "2 kB"}, 'nodes: must be a whole number, got "2 kB"'),
        ({"preset": "dgx-h100", "node": 2}, 'node: unknown key; did you mean "nodes"?'),
        ({"preset": "dgx-h100", "network": "5 GB"}, 'network: has the unknown unit "GB"'),
        (
            {"preset": "4x-rtx-2080", "nodes": 2},
            "nodes: several nodes need a network that joins them",
        ),
        (
            {"preset": "4x-rtx-2080", "network": 1},
            "network: the preset has none whose bandwidth could be set",
        ),
        ({"preset": "dgx-h100", "queues": "serial"}, "queues: must be one of parallel"),
        ({"preset": 5}, "preset: must be text, got 5"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError) as error:
        read_cluster(settings)
    assert any(one.startswith(problem) for one in error.value.problems), error.value.problems


NODE: dict[str, Any] = {
    "device_kinds": {"a": {"memory": "2 GB", "gap": "1 us"}},
    "devices": [{"name": "gpu:0", "kind": "a"}, {"name": "gpu:1", "kind": "a", "memory": "1 GB"}],
    "link_kinds": {"wire": {"bandwidth": "8 GB/s", "latency": "2 us", "lanes": 3}},
    "links": [{"ends": ["gpu:0", "gpu:1"], "kind": "wire", "latency": "1 us"}],
    "nodes": 2,
    "network": {"attach": [["gpu:0", "gpu:1"]], "bandwidth": "8 Gbit/s", "latency": "10 us"},
}


def test_kinds_hold_what_their_devices_and_links_share() -> None:
    cluster = read_cluster({**NODE, "nodes": 1})
    assert [(d.memory, d.gap) for d in cluster.devices] == [
        (2 * 10**9, Fraction(1, 10**6)),
        (10**9, Fraction(1, 10**6)),
    ]
    assert cluster.links == (Link(("gpu:0", "gpu:1"), "8 GB/s", "1 us", kind="wire", lanes=3),)


def test_any_file_may_repeat_its_node() -> None:
    cluster = read_cluster(NODE)
    assert [device.name for device in cluster.devices] == [
        "gpu:0",
        "gpu:1",
        "nic:0",
        "gpu:2",
        "gpu:3",
        "nic:1",
        "network",
    ]
    assert [device.node for device in cluster.devices] == [0, 0, 0, 1, 1, 1, 2]
    short = {
        "devices": [{"name": "gpu:0"}, {"name": "gpu:1"}],
        "links": {"all_to_all": {"bandwidth": 1}},
    }
    assert len(read_cluster({**NODE, **short}).links) == 2 * (1 + 3)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"network": {**NODE["network"], "attach": ["gpu:7"]}},
            'network.attach[0]: no device named "gpu:7"',
        ),
        (
            {"network": {**NODE["network"], "attach": [[]]}},
            "network.attach[0]: must name devices, each once",
        ),
        (
            {"network": {**NODE["network"], "attach": []}},
            "network.attach: must name at least one device",
        ),
        (
            {"nodes": 1, "network": {**NODE["network"], "attach": ["x"]}},
            'network.attach[0]: no device named "x"',
        ),
        (
            {"network": {**NODE["network"], "efficiency": 1.5}},
            "network.efficiency: must be at most 1, got 1.5",
        ),
        (
            {"network": {**NODE["network"], "efficiency": 0}},
            "network.efficiency: must be a share > 0",
        ),
        (
            {"devices": [{"name": "gpu"}], "links": []},
            'devices[0].name: must end in ":" and a number',
        ),
        ({"devices": [{"name": "gpu:0", "node": 1}], "links": []}, "devices[0].node: must be 0"),
        ({"link_kinds": {"wire": {"latency": 1}}}, "links[0].bandwidth: missing"),
        (
            {"link_kinds": {"wire": {"bandwith": 1}}},
            'link_kinds.wire.bandwith: unknown key; did you mean "bandwidth"?',
        ),
        ({"nodes": 1.5}, "nodes: must be a whole number"),
        ({"collectives": "h100"}, 'collectives: no tables "h100"; there are those of a100-sxm'),
    ],
)
def test_broken_nodes_are_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError) as error:
        read_cluster({**NODE, **changes})
    assert any(one.startswith(problem) for one in error.value.problems), error.value.problems


@pytest.mark.parametrize("name", preset_names())
def test_clusters_come_back_with_their_provenance(name: str, tmp_path: Path) -> None:
    cluster = read_preset(name)
    write_cluster(cluster, tmp_path / "c.json")
    back = read_cluster(tmp_path / "c.json")
    assert back == cluster
    assert back.provenance == cluster.provenance
    assert back.provenance
    assert back.collectives == cluster.collectives


def test_provenance_that_is_no_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="provenance: cannot be written as JSON"):
        write_cluster(Cluster("c", (Device("d"),), provenance={"x": object()}), tmp_path / "c.json")
    assert list(tmp_path.iterdir()) == []


def test_flops_are_read_with_units() -> None:
    assert parse_flops("67 TFLOP/s") == 67 * 10**12
    assert parse_flops("2.5 PFLOP/s") == parse_flops(25 * 10**14)
    for wrong in ("67 TFLOPS", "67 TB/s", 0, -1, "1e22", True):
        with pytest.raises(ValueError, match=r"must be|unknown unit"):
            parse_flops(wrong)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"flops": {"float32": "67 TB/s"}}, 'flops.float32: has the unknown unit "TB/s"'),
        ({"flops": {}}, "flops: must name the peak of one dtype at least"),
        ({"memory_bandwidth": None}, "memory_bandwidth: must be a number or a text with a unit"),
        (
            {"efficiency": {"gemm": {"compute": 5}}},
            "efficiency.gemm.compute: must be a share > 0 and at most 4",
        ),
        (
            {"efficiency": {"gemm": {"overhead": "2 s"}}},
            "efficiency.gemm.overhead: must be from 0 to 1 second",
        ),
        ({"flop": {}}, 'flop: unknown key; did you mean "flops"?'),
        ({"kind": 3}, "kind: must be text, got 3"),
    ],
)
def test_broken_devices_are_refused(changes: dict[str, Any], problem: str) -> None:
    whole = {"kind": "x", "flops": {"float32": "1 TFLOP/s"}, "memory_bandwidth": "1 TB/s"}
    with pytest.raises(InputError) as error:
        read_device(whole | changes)
    assert any(one.startswith(problem) for one in error.value.problems), error.value.problems


def test_devices_are_found_by_kind_or_file(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(
        '{"version": 1, "kind": "x", "flops": {"float32": 1e12}, "memory_bandwidth": 2e9}'
    )
    spec = read_device(tmp_path / "x.json")
    assert (spec.kind, spec.flops, spec.memory_bandwidth, spec.memory) == (
        "x",
        {"float32": 10**12},
        2 * 10**9,
        None,
    )
    assert read_device("h100-sxm").efficiency["gemm"].compute == Fraction(79, 100)
    with pytest.raises(
        InputError,
        match=r'neither a file nor a kind of device: "h100-sx"; did you mean "h100-sxm"\?',
    ):
        read_device("h100-sx")


def test_the_verb_lists_shows_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clusters"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(
        preset_names()
    )
    assert main(["clusters", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == list(preset_names())
    assert main(["clusters", "l40s-8x", "--nodes", "2", "-o", str(tmp_path / "l.svg")]) == 0
    told = capsys.readouterr().out
    assert re.search(r"2 x socket +1\.4 GB/s", told)
    assert re.search(r"all_reduce +8 +22\.6 us +2\.1 GB/s +1\.5 GB/s +1\.4 GB/s", told)
    assert re.search(r"links\.root\.bandwidth +5\.2 GB/s +fitted +2026-09 +NCCL", told)
    assert "gpu:15" in (tmp_path / "l.svg").read_text()
    assert main(["clusters", "p3-4x-p4000", "--network", "4 Gbit/s", "--json"]) == 0
    (tmp_path / "p3.json").write_text(capsys.readouterr().out)
    assert read_cluster(tmp_path / "p3.json") == read_preset("p3-4x-p4000", network="4 Gbit/s")
    assert main(["clusters", str(tmp_path / "p3.json")]) == 0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["clusters", "dgx-h10"], 'no preset "dgx-h10"; did you mean "dgx-h100"?'),
        (["clusters", "--nodes", "2"], "NAME: missing, and --nodes needs it"),
        (
            ["clusters", "dgx-h100", "-o", "x.gif"],
            "--output: x.gif: the name must end in .png or .svg or .pdf",
        ),
        (
            ["clusters", "dgx-h100", "-o", "nowhere/x.png"],
            "--output: cannot write nowhere/x.png: no such file",
        ),
        (["clusters", "dgx-h100", "--nodes", "0"], "nodes: must be > 0, got 0"),
        (["clusters", "missing.json"], "missing.json: no such file"),
        (
            ["clusters", "c.json", "--nodes", "2"],
            "--nodes, --network: are settings of a preset, not of a file",
        ),
        (
            ["clusters", "dgx-h100", "--markdown"],
            "--markdown: prints the list of presets, without NAME",
        ),
    ],
)
def test_the_verb_refuses_with_one_message(
    arguments: list[str],
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(problem)
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_picture_holds_every_device_shown_and_no_box_lies_on_another() -> None:
    for name, nodes in (
        ("dgx-1v", 1),
        ("gb200-nvl72", 1),
        ("dgx-h100", 2),
        ("l40s-8x", 3),
        ("tofu-8x-k80", None),
    ):
        cluster = read_preset(name, nodes)
        picture = cluster_picture(cluster)
        assert {box.name for box in picture.boxes} == set(cluster.index)
        drawn = [box for box in picture.boxes if box.label]
        for i, a in enumerate(drawn):
            for b in drawn[i + 1 :]:
                assert abs(a.x - b.x) >= (a.width + b.width) / 2 - 0.01 or abs(a.y - b.y) > 0.5, (
                    name,
                    a.name,
                    b.name,
                )


def test_a_picture_of_many_nodes_tells_how_many_it_leaves_out() -> None:
    picture = cluster_picture(read_preset("flexflow-k80"))
    assert (len(picture.panels), picture.hidden) == (2, 14)
    assert sum(not box.switch for box in picture.boxes) == 8


def test_a_rack_is_drawn_by_columns() -> None:
    picture = cluster_picture(read_preset("gb200-nvl72"))
    assert len(picture.wires) == 18
    assert len({box.x for box in picture.boxes if not box.switch}) == 18


def test_hostile_names_are_drawn_as_text() -> None:
    devices = (Device("<script>alert(1)</script>", "$\\alpha$"), Device("b:0", "層"))
    figure = cluster_figure(
        Cluster("$x", devices, (Link(("<script>alert(1)</script>", "b:0"), 1, kind="$\\frac"),))
    )
    figure.canvas.draw()  # type: ignore[attr-defined]
    assert cluster_figure(Cluster("one", (Device("only"),))) is not None


def generated(page: str, mark: str) -> str:
    found = re.search(
        rf"<!-- generated[^\n]*{re.escape(mark)}[^\n]*-->\n(.*?)\n<!-- end -->", page, re.DOTALL
    )
    assert found is not None
    return found[1]


def test_the_tables_of_the_documents_are_those_of_the_presets() -> None:
    page = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")
    assert generated(page, "simdev clusters --markdown") == preset_table()
    assert generated(page, "device_table") == device_table()
    assert [row[0] for row in preset_rows()] == list(preset_names())


def test_what_the_page_of_clusters_shows_works(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")
    blocks = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", page, re.DOTALL)]
    counts = [
        sum(d.runs_ops for d in read_cluster(one.get("cluster", one)).devices) for one in blocks[1:]
    ]
    assert counts == [64, 8]
    assert blocks[0]["cluster"] in preset_names()
    for source in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(source, "clusters.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed == ["2.11 ms table measured", "4.68 ms hierarchical roofline"]
    assert all(f"`{line}`" in page for line in printed)
