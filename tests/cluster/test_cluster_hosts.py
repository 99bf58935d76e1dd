"""Hosts as nouns: which devices have one, what is refused, and the way to files and back."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from simdev.costs import CostModel, HostCost
from simdev.files import read_cluster, read_graph, read_preset, write_cluster, write_graph
from simdev.files.reading import read_json
from simdev.ground.errors import InputError
from simdev.lowering import Prepared
from simdev.nouns.cluster import Cluster, Device, Host
from simdev.nouns.graph import Graph, Op
from simdev.search.sweep.fields import with_field

EIGHT = Host(ahead=8)


def mixed(host: Host | None = EIGHT) -> Cluster:
    """Two GPUs, one of which replays graphs, a third without a host, a CPU and a switch."""
    devices = (
        Device("gpu:0"),
        Device("gpu:1", host=Host("graph", launch="3 us")),
        Device("gpu:2", host=Host("none")),
        Device("cpu", "host-cpu"),
        Device("switch", "switch"),
    )
    return Cluster("mixed", devices, host=host)


def test_the_nearer_host_wins_and_switches_and_cpus_inherit_none() -> None:
    hosts = [mixed().host_of(i) for i in range(5)]
    assert hosts == [Host(ahead=8), Host("graph", launch="3 us"), None, None, None]
    assert mixed().hosted == (0, 1)
    assert mixed(None).hosted == (1,)
    own = replace(mixed().devices[3], host=Host())
    assert Cluster("cpu", (own,)).host_of(0) == Host()


def test_a_host_by_default_is_eager_and_ahead_by_a_thousand_launches() -> None:
    host = Host()
    assert (host.mode, host.ahead, host.threads) == ("eager", 1024, "device")
    assert host.launch == Fraction(10, 10**6)


def test_what_no_host_can_be_is_refused() -> None:
    with pytest.raises(InputError) as error:
        Cluster("c", (Device("d", host=Host("soon", True, "process")),), host=Host(ahead=0))
    assert error.value.problems == (
        'devices[0].host.mode: must be one of eager, graph, none, got "soon"',
        'devices[0].host.threads: must be one of device, node, got "process"',
        "devices[0].host.ahead: must be a whole number > 0, got True",
        "host.ahead: must be a whole number > 0, got 0",
    )
    with pytest.raises(InputError, match="launch: must not be negative"):
        Host(launch="-1 us")
    with pytest.raises(InputError, match="host_time: must not be negative"):
        Op("a", host_time=-1)
    with pytest.raises(InputError, match=r"ops\[0\].launches: must be a whole number, got -2"):
        Graph("g", (Op("a", launches=-2),))


def test_clusters_with_hosts_come_back_from_files(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    write_cluster(mixed(), path)
    assert '"launch": "3 us"' in path.read_text()
    assert read_cluster(path) == mixed()


def test_a_kind_of_device_may_have_a_host() -> None:
    fields = {
        "device_kinds": {"gpu": {"host": {"ahead": 2}}},
        "devices": [{"name": "a"}, {"name": "b", "kind": "gpu"}, {"name": "c", "kind": "tpu"}],
        "host": {"mode": "graph"},
    }
    # Where a device leaves out its kind it is of the default one, like any other.
    assert [read_cluster(fields).host_of(i) for i in range(3)] == [
        Host(ahead=2),
        Host(ahead=2),
        Host("graph"),
    ]


def test_a_kind_counts_for_devices_that_leave_theirs_out() -> None:
    kinds = {"gpu": {"memory": "4 B", "gap": "1 us"}}
    cluster = read_cluster({"device_kinds": kinds, "devices": [{"name": "g0"}]})
    assert cluster.devices == (Device("g0", memory=4, gap="1 us"),)


def test_kinds_that_nothing_is_of_are_checked_all_the_same() -> None:
    devices = [{"name": "a"}, {"name": "b", "kind": "cpu"}]
    kinds = {
        "gpu": {"host": {"mode": "soon"}},
        "tpu": {"host": {"ahead": 0}, "chunk": "4 B"},
        "switch": {"beside_copies": "1.1"},
    }
    links = {"nvlink": {"lanes": 0}, "pcie 5": {"both_ways": "1.2", "duplex": "half"}}
    with pytest.raises(InputError) as error:
        read_cluster({"devices": devices, "device_kinds": kinds, "link_kinds": links})
    assert error.value.problems == (
        "device_kinds.tpu.chunk: only a staging device cuts transfers into chunks",
        "device_kinds.tpu.host.ahead: must be a whole number > 0, got 0",
        "device_kinds.switch.beside_copies: a switch computes nothing beside its copies",
        "link_kinds.nvlink.lanes: must be a whole number > 0, got 0",
        'link_kinds["pcie 5"].both_ways: only a full-duplex link has two ways, this one is half',
        'devices[0].host.mode: must be one of eager, graph, none, got "soon"',
    )


def test_a_host_is_a_setting_of_presets_and_no_preset_has_one_by_itself() -> None:
    assert read_preset("dgx-h100").hosted == ()
    cluster = read_cluster({"preset": "dgx-h100", "nodes": 2, "host": {"ahead": 16}})
    assert cluster.name == "dgx-h100, nodes 2, host eager"
    gpus = tuple(i for i, device in enumerate(cluster.devices) if device.runs_ops)
    assert cluster.hosted == gpus
    assert cluster == read_preset("dgx-h100", 2, host=Host(ahead=16))


def test_a_sweep_sets_the_host_of_a_preset() -> None:
    there = with_field({"cluster": "dgx-h100"}, "cluster.host.ahead", 4, ".", read_json)
    assert read_cluster(there["cluster"]).host == Host(ahead=4)


def test_what_ops_say_of_hosts_comes_back_from_files_and_networkx(tmp_path: Path) -> None:
    ops = (
        Op("a", host_time={"gpu": "20 us", "tpu": 1}, launches=0),
        Op("b", host_time="1.5 us", launches=3, blocks_host=True),
        Op("c"),
    )
    graph = Graph("g", ops)
    write_graph(graph, tmp_path / "g.json")
    assert read_graph(tmp_path / "g.json") == graph
    assert Graph.from_networkx(graph.to_networkx(), "g") == graph
    assert [op.host_seconds_on("tpu") for op in ops] == [1, Fraction(15, 10**7), None]


def test_what_the_graph_says_is_given_and_the_rest_unknown() -> None:
    ops = Op("a", host_time={"gpu": "20 us"}), Op("b", launches=3, host_time=0), Op("c")
    graph, costs = Graph("g", ops), CostModel()
    assert costs.host_cost(graph, 0, "gpu") == HostCost(Fraction(20, 10**6), 1, "given")
    assert costs.host_cost(graph, 1, "gpu") == HostCost(Fraction(0), 3, "given")
    assert costs.host_cost(graph, 0, "tpu") is costs.host_cost(graph, 2, "gpu") is None
    assert [costs.launches(graph, i, "gpu") for i in range(3)] == [1, 3, 1]


def test_prepared_tables_tell_of_eager_devices_only() -> None:
    ops = Op("a", time=1, host_time="2 us", blocks_host=True), Op("b", time=1, launches=4)
    prepared = Prepared(Graph("g", ops), mixed(), CostModel())
    assert prepared.host_ps.tolist() == [[2_000_000, 0, 0, 0, 0], [0] * 5]
    assert prepared.launches.tolist() == [[1, 0, 0, 0, 0], [4, 0, 0, 0, 0]]
    assert prepared.blocks.tolist() == [True, False]
