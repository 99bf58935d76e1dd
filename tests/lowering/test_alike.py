"""Groups of devices that cost the same, and those that must not be taken for them."""

from __future__ import annotations

from dataclasses import replace

from simdev.lowering.symmetry import Alike
from simdev.nouns.cluster import Cluster, Device, Link


def nodes(slow: str = "", bent: bool = False) -> Cluster:
    """Two nodes of three GPUs on a switch, each with a network adapter that leads outside; the
    ``slow`` device's adapter is slower, or (``bent``) hangs on a switch of its own.
    """
    devices, links = [Device("outside", "switch", node=2)], list[Link]()
    for node in range(2):
        devices += [Device(f"{node}.{i}", node=node) for i in range(3)]
        devices += [Device(f"{node}.nic{i}", "switch", node=node) for i in range(3)]
        devices.append(Device(f"{node}.s", "switch", node=node))
        for i in range(3):
            is_slow = i == 1 and slow == "adapter"
            links.append(Link((f"{node}.{i}", f"{node}.s"), 100))
            links.append(Link((f"{node}.{i}", f"{node}.nic{i}"), 5 if is_slow else 10))
            links.append(Link((f"{node}.nic{i}", "outside"), 5 if i == 1 and bent else 10))
    return Cluster("two nodes", tuple(devices), tuple(links))


def patterns(cluster: Cluster) -> list[object]:
    """Of the first, second and third devices of both nodes."""
    alike, index = Alike(cluster), cluster.index
    return [alike.pattern([[(index[f"0.{i}"], index[f"1.{i}"])]]) for i in range(3)]


def test_devices_with_an_adapter_each_are_twins() -> None:
    first, second, third = patterns(nodes())
    assert first == second == third


def test_what_differs_in_or_behind_its_adapter_is_no_twin() -> None:
    for cluster in (nodes("adapter"), nodes(bent=True)):
        first, second, third = patterns(cluster)
        assert first == third != second


def test_no_pattern_is_shared_between_nodes_that_differ() -> None:
    cluster = nodes()
    last = replace(cluster.devices[-1], transit=False)
    odd = replace(cluster, devices=(*cluster.devices[:-1], last))
    first, second, _ = patterns(odd)
    assert first != second


def switched(count: int, cores: int = 1) -> Cluster:
    """So many nodes of three GPUs on a switch, which leads to each of the cores outside."""
    devices = [Device(f"core{i}", "switch", node=count + i) for i in range(cores)]
    links = list[Link]()
    for node in range(count):
        devices += [Device(f"{node}.{i}", node=node) for i in range(3)]
        devices.append(Device(f"{node}.s", "switch", node=node))
        links += [Link((f"{node}.{i}", f"{node}.s"), 100) for i in range(3)]
        links += [Link((f"{node}.s", f"core{i}"), 10) for i in range(cores)]
    return Cluster("switched", tuple(devices), tuple(links))


def test_devices_of_a_switch_that_leads_outside_are_twins() -> None:
    first, second, third = patterns(switched(2))
    assert first == second == third


def test_devices_of_a_node_alone_are_twins() -> None:
    cluster = switched(1)
    alike, (first, second, third) = Alike(cluster), (cluster.index[f"0.{i}"] for i in range(3))
    assert alike.pattern([[(first, second)]]) == alike.pattern([[(third, first)]])
    chain, fan = [(first, second), (second, third)], [(first, second), (first, third)]
    assert alike.pattern([chain]) != alike.pattern([fan])


def test_nodes_are_neighbourhoods_of_their_own_where_all_meet_in_one_device() -> None:
    one, two = switched(2), switched(2, cores=2)
    for cluster, told in ((one, [0, 0, 0, 1, 1, 1]), (two, [0] * 6)):
        alike = Alike(cluster)
        gpus = [cluster.index[f"{node}.{i}"] for node in range(2) for i in range(3)]
        assert [alike.neighbourhood(gpu) for gpu in gpus] == told
    first, second, _ = patterns(two)
    assert first != second


def test_one_odd_node_of_three_keeps_all_patterns_apart() -> None:
    cluster = switched(3)
    slow = tuple(
        replace(link, bandwidth=5) if "2.0" in link.ends else link for link in cluster.links
    )
    first, second, _ = patterns(replace(cluster, links=slow))
    assert first != second
