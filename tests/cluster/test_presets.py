"""Shipped presets: lint, devices, routes, memory, and a simulated model on each."""

from __future__ import annotations

import copy
import json
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from preset_files import ROOT
from preset_rules import (
    lint_cluster,
    lint_collectives,
    lint_device,
    lint_families,
    lint_presets,
)
from simdev.costs import CostModel
from simdev.costs.collectives import COLLECTIVE_PRESETS, collective_model, collective_names
from simdev.execution.engine import simulate
from simdev.files import (
    device_names,
    device_presets,
    preset_names,
    read_device,
    read_graph,
    read_preset,
)
from simdev.files.cluster import CLUSTERS
from simdev.files.device import DEVICE_PRESETS
from simdev.files.reading import read_json
from simdev.lowering import lower
from simdev.nouns.fabric import Routes
from simdev.nouns.graph import Graph
from simdev.nouns.strategy import Strategy

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
    ("measured/burst_flops/bfloat16", "1100 TFLOP/s", "is more than 1.05 times 989 TFLOP/s"),
    ("measured/burst_flops/bfloat16", "700 TFLOP/s", "is less than what is sustained, 795"),
    (
        "efficiency/gemm/bfloat16/compute",
        1.2,
        "efficiency.gemm.bfloat16.compute: must be in (0, 1.1], got 1.2",
    ),
    (
        "efficiency/gemm/float32/overhead",
        3,
        "efficiency.gemm.float32.overhead: must be text with a unit",
    ),
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
