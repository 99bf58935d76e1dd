"""Jobs on a part of a cluster: so many GPUs, the first of each machine."""

from __future__ import annotations

import pytest

from simdev import load_scenario, run
from simdev.files import read_cluster, read_preset
from simdev.files.cluster import preset_fields
from simdev.ground.errors import InputError
from simdev.nouns.cluster import Cluster

PAIRS = {
    "name": "pairs",
    "devices": [{"name": f"gpu:{i}"} for i in range(4)] + [{"name": "cpu:0", "kind": "cpu"}],
    "links": {"all_to_all": {"bandwidth": 1e9}},
    "network": {"attach": [["gpu:0", "gpu:1"], ["gpu:2", "gpu:3"]], "bandwidth": 1e9},
}


def gpus_by_node(cluster: Cluster) -> list[list[str]]:
    workers = [cluster.devices[i] for i in cluster.workers]
    nodes = sorted({device.node for device in workers})
    return [[device.name for device in workers if device.node == node] for node in nodes]


def test_a_job_on_a_part_of_a_rack_has_its_first_gpus() -> None:
    cluster = read_preset("gb200-nvl72", gpus=8)
    assert gpus_by_node(cluster) == [[f"gpu:{i}" for i in range(8)]]
    assert cluster.name == "gb200-nvl72, gpus 8"
    assert {device.name for device in cluster.devices if not device.runs_ops} == {"nvswitch:0"}


@pytest.mark.parametrize(("gpus", "nodes", "each"), [(256, 4, 64), (144, 2, 72), (74, 2, 37)])
def test_the_fewest_machines_have_equally_many(gpus: int, nodes: int, each: int) -> None:
    by_node = gpus_by_node(read_cluster({"preset": "gb200-nvl72", "gpus": gpus}))
    assert [len(names) for names in by_node] == [each] * nodes
    assert [name for names in by_node for name in names] == [f"gpu:{i}" for i in range(gpus)]


def test_told_machines_are_used_all() -> None:
    by_node = gpus_by_node(read_preset("dgx-h100", 4, gpus=8))
    assert by_node == [
        ["gpu:0", "gpu:1"],
        ["gpu:2", "gpu:3"],
        ["gpu:4", "gpu:5"],
        ["gpu:6", "gpu:7"],
    ]


def test_links_and_adapters_of_other_gpus_are_left_out_and_hosts_stay() -> None:
    cluster = read_cluster({**PAIRS, "nodes": 2, "gpus": 2})
    assert gpus_by_node(cluster) == [["gpu:0"], ["gpu:1"]]
    names = [device.name for device in cluster.devices]
    assert names == ["gpu:0", "cpu:0", "nic:0", "gpu:1", "cpu:1", "nic:1", "network"]
    ends = {frozenset(link.ends) for link in cluster.links}
    assert frozenset({"gpu:0", "nic:0"}) in ends
    assert all(end in names for link in cluster.links for end in link.ends)


def test_all_gpus_are_the_whole_cluster() -> None:
    part, whole = read_preset("dgx-h100", gpus=16), read_preset("dgx-h100", 2)
    assert (part.devices, part.links) == (whole.devices, whole.links)


def test_a_step_on_a_part_of_a_rack_is_one_on_a_rack_of_that_size() -> None:
    small = preset_fields("gb200-nvl72")
    small["devices"] = [*small["devices"][:8], *small["devices"][72:]]
    small["links"], small["network"]["attach"] = small["links"][:8], small["network"]["attach"][:8]
    pipeline = {"dp": 8, "microbatches": 2}
    question = {"graph": {"model": "llama3.2-1b"}, "strategy": {"pipeline": pipeline}}
    part = run(load_scenario({**question, "cluster": {"preset": "gb200-nvl72", "gpus": 8}}))
    assert part.step_ps == run(load_scenario({**question, "cluster": small})).step_ps


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"gpus": 0}, "gpus: must be > 0, got 0"),
        ({"gpus": 73, "nodes": 1}, r"gpus: 72 are there \(1 x 72\), got 73"),
        ({"gpus": 73}, "gpus: 73 are not equally many on 2 machines"),
        ({"gpus": 10**17}, "gpus: 100000000000000000 make more than 100000 devices"),
        ({"gpus": 8, "nodes": 0}, "nodes: must be > 0, got 0"),
        ({"gpus": "many"}, "gpus: must be a whole number"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        read_cluster({"preset": "gb200-nvl72", **settings})


def test_several_machines_need_a_network() -> None:
    node = {key: value for key, value in PAIRS.items() if key != "network"}
    with pytest.raises(InputError, match="nodes: several nodes need a network"):
        read_cluster({**node, "gpus": 8})
    assert gpus_by_node(read_cluster({**node, "gpus": 3})) == [["gpu:0", "gpu:1", "gpu:2"]]
