"""Stragglers of a cluster: devices below the speed of their kind, and links below theirs."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from simdev import Cluster, Device, Graph, InputError, Link, Oracle, Strategy, run
from simdev.costs import CostModel
from simdev.execution.check import check
from simdev.execution.scenario import Scenario, execute, graph_of, load_scenario
from simdev.files import read_cluster
from simdev.files.cluster import cluster_object, read_preset
from simdev.nouns.graph import Op, Tensor
from simdev.report.measures.disturbed import Disturbed

LARGE: dict[str, Any] = {
    "graph": {"model": "gpt-1.7b", "layers": 4, "length": 512},
    "cluster": {"preset": "dgx-h100"},
    "strategy": {"pipeline": {"dp": 8, "microbatches": 4, "microbatch": 2}},
}


def ranks(count: int, speeds: dict[int, Any], seconds: float = 0.01) -> Scenario:
    """An op of equal time on each of some devices, and an all_reduce behind all of them."""
    devices = [Device(f"g{d}", speed=speeds.get(d, 1)) for d in range(count)]
    cluster = Cluster.all_to_all("ranks", devices, bandwidth="1 GB/s")
    ops = [Op(f"work{d}", "work", outputs=(Tensor(0),), time=seconds) for d in range(count)]
    made = {"ranks": [device.name for device in devices]}
    inputs, outputs = tuple(op.name for op in ops), (Tensor(0),) * count
    ops.append(Op("sum", "all_reduce", inputs=inputs, outputs=outputs, attrs=made))
    placement = {f"work{d}": f"g{d}" for d in range(count)} | {"sum": "g0"}
    return Scenario(Graph("ranks", tuple(ops)), cluster, CostModel(()), Strategy(placement))


def test_a_synchronous_step_is_as_slow_as_its_slowest_device() -> None:
    even, slow = (execute(ranks(4, speeds)).trace for speeds in ({}, {2: 0.8}))
    assert (even.end_ps, slow.end_ps) == (10**10, 10**10 * 10 // 8)
    assert not check(slow.task_graph, slow)


def test_times_of_stragglers_round_up() -> None:
    trace = execute(ranks(2, {0: Fraction(1, 3), 1: "0.7"}, 1e-12)).trace
    assert (trace.finish - trace.start)[:2].tolist() == [3, 2]


@pytest.mark.parametrize("seed", range(3))
def test_the_oracle_knows_stragglers(seed: int) -> None:
    scenario = ranks(3, {seed: 0.5})
    ops = scenario.graph.ops[:3]  # type: ignore[union-attr]
    graph = Graph("chain", (ops[0], replace(ops[1], inputs=("work0",)), ops[2]))
    placement = {f"work{k}": f"g{(k + seed) % 3}" for k in range(3)}
    oracle = Oracle(graph, scenario.cluster, CostModel(()))
    simulated = run(replace(scenario, graph=graph, strategy=Strategy(placement)))
    assert oracle(placement).step_ps == simulated.step_ps


def test_the_oracle_of_splits_knows_stragglers() -> None:
    question = {
        "graph": {"model": "lenet", "batch": 64},
        "cluster": {"preset": "dgx-h100", "slow": {"gpu:3": 0.5}},
        "strategy": {"short": "data-parallel", "devices": names(4)},
    }
    scenario = load_scenario(question)
    oracle = Oracle(graph_of(scenario), scenario.cluster, scenario.costs)
    assert oracle(scenario.strategy).step_ps == execute(scenario).trace.end_ps


def test_a_large_model_waits_for_its_straggler() -> None:
    even = run(LARGE)
    slow = run(LARGE | {"cluster": {"preset": "dgx-h100", "slow": {"gpu:3": 0.8}}})
    assert even.training is not None
    assert slow.training is not None
    assert (even.training.large.collapsed, slow.training.large.collapsed) == (True, False)
    # Computing is all but the sums of gradients: these go on beside it, but for the last.
    ratio = slow.seconds / even.seconds
    assert 1.2 < ratio < 1.25
    alike = run(LARGE | {"cluster": {"preset": "dgx-h100", "slow": dict.fromkeys(names(8), 0.8)}})
    assert alike.training is not None
    assert alike.training.large.collapsed
    assert alike.step_ps == pytest.approx(slow.step_ps, rel=1e-3)


def names(count: int) -> list[str]:
    return [f"gpu:{d}" for d in range(count)]


def test_symmetry_keeps_stragglers_apart() -> None:
    question = {
        "graph": {"model": "lenet", "batch": 192},
        "cluster": {"preset": "dgx-h100", "nodes": 3, "slow": {"gpu:7": 0.5}},
        "strategy": {"short": "data-parallel", "devices": names(24)},
    }
    scenario = load_scenario(question)
    with_symmetry, without = (
        execute(replace(scenario, symmetry=symmetry)).trace.end_ps for symmetry in (True, False)
    )
    even = load_scenario(question | {"cluster": {"preset": "dgx-h100", "nodes": 3}})
    assert with_symmetry == without > execute(even).trace.end_ps


def test_files_name_stragglers() -> None:
    cluster = read_preset("dgx-h100", 2, slow={"gpu:9": 0.8, "nic:3": Fraction(1, 2)})
    assert {d.name: d.speed for d in cluster.devices if d.speed != 1} == {"gpu:9": Fraction(4, 5)}
    even = read_preset("dgx-h100", 2)
    changed = [
        (link.ends, link.bandwidth / was.bandwidth)
        for link, was in zip(cluster.links, even.links, strict=True)
        if link != was
    ]
    assert all("nic:3" in ends and share == Fraction(1, 2) for ends, share in changed)
    assert len(changed) == 2
    # It is written device by device, and read again.
    assert read_cluster(cluster_object(cluster)) == cluster
    assert replace(cluster.without_stragglers, name=even.name) == even
    assert even.without_stragglers is even


def test_a_slow_link_has_the_step_of_sound_ones_beside_it() -> None:
    question = {
        "graph": {"model": "lenet", "batch": 64},
        "cluster": {"preset": "dgx-h100", "slow": {"gpu:3 - nvswitch:0": 0.25}},
        "strategy": {"short": "data-parallel", "devices": names(4)},
    }
    slow, even = run(question), run(question | {"cluster": {"preset": "dgx-h100"}})
    assert even.get(Disturbed) is None
    section = slow.get(Disturbed)
    assert section is not None
    assert section.undisturbed_ps == even.step_ps < slow.step_ps


def test_a_link_is_named_by_its_ends() -> None:
    fields = {
        "devices": [{"name": "a"}, {"name": "b"}, {"name": "c"}],
        "links": [{"ends": ["a", "b"], "bandwidth": 100}, {"ends": ["b", "c"], "bandwidth": 100}],
        "slow": {"b - a": 0.25},
    }
    assert [link.bandwidth for link in read_cluster(fields).links] == [25, 100]


@pytest.mark.parametrize(
    ("slow", "problem"),
    [
        ({"gpu:99": 0.5}, 'slow["gpu:99"]: no device of this name'),
        ({"gpu:0 - gpu:1": 0.5}, 'slow["gpu:0 - gpu:1"]: no device of this name'),
        ({"gpu:0 - gpu:0": 0.5}, 'slow["gpu:0 - gpu:0"]: no device of this name'),
        ({"gpu:0": 1.5}, 'slow["gpu:0"]: must be > 0 and at most 1, got 1.5'),
        ({"gpu:0": 0}, 'slow["gpu:0"]: must be > 0 and at most 1, got 0'),
    ],
)
def test_impossible_stragglers_are_told(slow: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError) as caught:
        read_cluster({"preset": "dgx-h100", "slow": slow})
    assert str(caught.value).startswith(problem)
    with pytest.raises(InputError, match="speed: a switch computes nothing"):
        Cluster("c", (Device("s", "switch", speed=0.5),), (Link(("s", "s"), 1),))
