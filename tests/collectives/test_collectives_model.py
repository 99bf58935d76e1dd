"""The model of collectives: tables inside nodes, forms between them, bad questions."""

from __future__ import annotations

from fractions import Fraction

import pytest

from collective_clusters import TABLE, bus
from simdev.costs.collectives import (
    COLLECTIVES,
    CollectiveModel,
    CollectiveTable,
    collective_model,
)
from simdev.files import read_preset
from simdev.files.collectives import read_collectives
from simdev.ground.errors import InputError
from simdev.nouns.cluster import Cluster, Device, Link


def test_the_model_takes_the_table_of_its_node_and_ranks() -> None:
    model = collective_model(read_preset("dgx-h100"))
    cost = model.cost("all_reduce", range(8), 512)
    assert (cost.algorithm, cost.rung, cost.ps) == ("table", "measured", 15_590_000)
    between = model.cost("all_reduce", [0, 1, 2, 3, 4, 5], 2**24)
    ends = [model.cost("all_reduce", range(n), 2**24).seconds for n in (4, 8)]
    assert (between.algorithm, between.rung, between.seconds) == (
        "table",
        "interpolated",
        sum(ends) / 2,
    )
    assert model.cost("broadcast", range(8), 2**24).rung == "roofline"
    assert model.cost("all_reduce", [3], 2**24).seconds == 0
    assert model.cost("p2p", [0, 5], 0).seconds == Fraction(76, 10**7)


def test_across_nodes_the_form_has_two_levels() -> None:
    model = collective_model(read_preset("p4d-24xlarge", 2))
    gpus = [i for i, device in enumerate(model.cluster.devices) if device.runs_ops]
    cost = model.cost("all_reduce", gpus, 2**30)
    assert cost.algorithm == "hierarchical"
    # 57 GB/s are measured on two nodes.
    assert bus("all_reduce", 16, 2**30, cost.seconds) == pytest.approx(57, rel=0.05)
    assert model.cost("all_reduce", [gpus[0], gpus[8]], 2**30).algorithm == "ring"
    inside = model.cost("all_reduce", gpus[:8], 2**30).seconds
    assert inside < cost.seconds


@pytest.mark.parametrize("collective", COLLECTIVES[:-1])
@pytest.mark.parametrize("name", ["dgx-1v", "l40s-8x", "flexflow-p100", "tofu-8x-k80"])
def test_every_collective_has_a_time_that_grows(collective: str, name: str) -> None:
    cluster = read_preset(name)
    model = CollectiveModel(cluster)
    devices = [i for i, device in enumerate(cluster.devices) if device.runs_ops]
    times = [model.cost(collective, devices, size).seconds for size in (0, 1000, 10**6, 10**9)]
    assert times == sorted(times)
    assert times[0] > 0
    assert times[-1] > 2 * times[0]


def test_between_tables_the_nearest_of_fewer_and_more_ranks_tell() -> None:
    cluster = Cluster.all_to_all("c", [Device(f"gpu:{i}") for i in range(9)], bandwidth=1)
    seconds = {2: 10, 4: 20, 6: 60, 8: 1000}
    tables = [
        CollectiveTable("all_reduce", n, ((1, Fraction(s)), (2, Fraction(2 * s))))
        for n, s in seconds.items()
    ]
    model = CollectiveModel(cluster, tuple(tables))
    measured = {n: model.cost("all_reduce", range(n), 1).seconds for n in range(2, 9)}
    assert measured == {2: 10, 3: 15, 4: 20, 5: 40, 6: 60, 7: 530, 8: 1000}


def test_the_slowest_node_counts() -> None:
    devices = [
        Device(f"{node}{i}", transit=False, node=k) for k, node in enumerate("ab") for i in range(2)
    ]
    links = [Link((f"{node}0", f"{node}1"), rate) for node, rate in (("a", 10**11), ("b", 10**9))]
    links += [Link((device.name, "s"), 10**10) for device in devices]
    cluster = Cluster("c", (*devices, Device("s", "switch", node=2)), tuple(links), "link")
    costs = [
        CollectiveModel(cluster).cost("all_gather", names.split(), 10**9)
        for names in ("a0 a1 b0 b1", "b0 b1 a0 a1")
    ]
    assert costs[0] == costs[1]
    assert costs[0].seconds > Fraction(1, 2)  # half of the bytes over the slow link


def test_devices_are_told_by_name_or_index() -> None:
    """Names are sure on several nodes, where switches and NICs stand between the GPUs of two
    nodes.
    """
    model = collective_model(read_preset("dgx-h100", 2))
    names = [f"gpu:{i}" for i in range(16)]
    cost = model.cost("all_reduce", names, 2**20)
    assert cost == model.cost("all_reduce", [model.cluster.index[name] for name in names], 2**20)
    assert cost.algorithm == "hierarchical"


def test_an_algorithm_that_is_asked_for_is_kept_to_between_nodes() -> None:
    cluster, names = read_preset("dgx-h100", 16), [f"gpu:{i}" for i in range(128)]
    costs = [
        CollectiveModel(cluster, (), one).cost("all_reduce", names, 64).seconds
        for one in ("auto", "ring", "tree")
    ]
    assert costs[0] == costs[2] < costs[1]


def test_a_table_of_copies_answers_inside_a_node() -> None:
    table = CollectiveTable("p2p", 2, ((1, Fraction(1, 1000)), (10**6, Fraction(1, 100))))
    model = CollectiveModel(read_preset("dgx-h100", 2), (table,))
    assert model.cost("p2p", ["gpu:0", "gpu:1"], 10**6).seconds == Fraction(1, 100)
    assert model.cost("p2p", ["gpu:0", "gpu:8"], 10**6).algorithm == "p2p"


def test_bad_questions_are_refused() -> None:
    model = collective_model(read_preset("dgx-h100"))
    with pytest.raises(InputError) as error:
        model.cost("all_sum", [0, 0], -1)
    assert [problem.partition(":")[0] for problem in error.value.problems] == [
        "collective",
        "devices",
        "size",
    ]
    with pytest.raises(InputError, match="devices: p2p joins two, got 3"):
        model.cost("p2p", [0, 1, 2], 1)
    with pytest.raises(
        InputError, match=r"devices: must be names or indices below 9, each once, got .*gpu:8"
    ):
        model.cost("all_reduce", ["gpu:0", "gpu:8"], 1)
    with pytest.raises(InputError, match='devices: "nvswitch:0" is a switch'):
        model.cost("all_reduce", range(9), 1)
    with pytest.raises(InputError, match="algorithm: must be one of auto, ring, tree"):
        CollectiveModel(model.cluster, algorithm="magic")
    with pytest.raises(InputError, match=r"tables: two of all_reduce over 4 ranks"):
        CollectiveModel(model.cluster, (TABLE, TABLE)).cost("all_reduce", range(4), 1)
    with pytest.raises(InputError, match='collectives: no tables "b300"'):
        collective_model(Cluster("c", (Device("d"),), collectives="b300"))


def test_broken_tables_of_a_file_are_told_with_their_path() -> None:
    one = {
        "collective": "all_reduce",
        "ranks": 2,
        "anchors": [["512 B", "10 us"], ["1 KiB", "12 us"]],
    }
    with pytest.raises(
        InputError, match=r"tables\[1\]: all_reduce over 2 ranks stands in tables\[0\] already"
    ):
        read_collectives({"tables": [one, one]})
    for wrong, problem in (
        ({"ranks": 1}, r"tables\[0\]\.ranks: must be at least 2, got 1"),
        (
            {"anchors": [["512 B", "10 MB"], ["1 KiB", "12 us"]]},
            r'tables\[0\]\.anchors: has the unknown unit "MB"',
        ),
        (
            {"anchors": [["1 KiB", "10 us"], ["512 B", "12 us"]]},
            r"tables\[0\]\.anchors\[1\]: bytes must be > 0 and grow",
        ),
        ({"source": "guessed"}, r"tables\[0\]\.source: must be one of measured, fitted"),
    ):
        with pytest.raises(InputError, match=problem):
            read_collectives({"tables": [one | wrong]})
