"""The same machine, but faster: what-if lines, sliders, sweeps and the scenario itself have one
answer; and no part of a machine that is slower makes the step of a large model faster.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Any

import pytest

import simdev
from simdev.commands.explorer import explorer_of
from simdev.costs.collectives import collective_model
from simdev.execution.changes import (
    FLOPS,
    LINKS,
    MEMORY,
    NETWORK,
    RESOURCES,
    links_of,
    with_links,
    with_memories,
)
from simdev.execution.scenario import Scenario, load_scenario
from simdev.files import read_cluster, read_preset
from simdev.files.cluster import cluster_object
from simdev.ground.errors import InputError
from simdev.ground.units import PS_PER_SECOND
from simdev.report import run
from simdev.report.whatif import what_ifs
from simdev.search.sweep import sweep

CLUSTERS = ("dgx-h100", "dgx-a100-80", "l40s-8x", "dgx-b200", "mi300x-8x")
MODELS = ("gpt-1.7b", "llama3.2-1b", "mixtral-8x7b")
SLOWER = (LINKS, NETWORK, MEMORY, FLOPS)
SEEDS = range(8)


def question(seed: int) -> dict[str, Any]:
    """A large model of two layers on one or two nodes, spread in any way."""
    chance = Random(seed)
    cluster: dict[str, Any] = {"preset": chance.choice(CLUSTERS), "nodes": chance.choice((1, 1, 2))}
    workers = len(read_cluster(cluster).workers)
    tp = chance.choice((1, 2, 4, 8))
    pp = chance.choice([pp for pp in (1, 1, 2) if workers % (tp * pp) == 0] or [1])
    tp = tp if workers % (tp * pp) == 0 else 1
    pipeline: dict[str, Any] = {
        "tp": tp,
        "pp": pp,
        "dp": workers // (tp * pp),
        "zero": chance.choice((0, 1, 2, 3)) if pp == 1 else chance.choice((0, 1)),
        "microbatches": pp * chance.choice((1, 2)),
        "overlap": chance.choice((True, False)),
        "sequence_parallel": chance.choice((True, False)),
    }
    graph = {"model": chance.choice(MODELS), "layers": 2, "length": chance.choice((8, 256, 1024))}
    if chance.random() < 0.3 and graph["model"] == "mixtral-8x7b" and pipeline["dp"] % 2 == 0:
        pipeline["ep"] = 2
    return {"version": 1, "graph": graph, "cluster": cluster, "strategy": {"pipeline": pipeline}}


def large(seed: int) -> Scenario:
    """The first question from a seed on that can be simulated."""
    while True:
        try:
            scenario = load_scenario(question(seed))
            run(scenario)
        except InputError:
            seed += 1
        else:
            return scenario


def step_ps(scenario: Scenario) -> int:
    return run(scenario).step_ps


def explored(scenario: Scenario, **settings: float) -> int:
    step = explorer_of(scenario, "law").page(settings, tables=False)["timeline"]["step"]
    assert isinstance(step, int)
    return step


@pytest.mark.parametrize("seed", SEEDS)
def test_slower_parts_never_give_a_faster_step_and_once_faster_changes_nothing(seed: int) -> None:
    check_slower(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_door_has_one_answer_for_a_large_model(seed: int) -> None:
    check_doors(seed)


@pytest.mark.slow
def test_a_thousand_random_large_models() -> None:
    for seed in range(1000):
        check_slower(seed) if seed % 2 else check_doors(seed)


def check_slower(seed: int) -> None:
    scenario = large(seed)
    slower = Random(seed).choice((Fraction(1, 2), Fraction(1, 3), Fraction(1, 64)))
    now, cluster = step_ps(scenario), scenario.cluster
    for name in SLOWER:
        assert RESOURCES[name](scenario, 1) is scenario
        changed = RESOURCES[name](scenario, slower)
        assert step_ps(RESOURCES[name](scenario, 1 / slower)) <= now <= step_ps(changed), name
    links = [with_links(cluster, later=later) for later in (slower, 1 / slower)]
    links += [with_links(cluster, wider=wider) for wider in (1 / slower, slower)]
    steps = [step_ps(replace(scenario, cluster=there)) for there in links]
    assert steps[0] <= now <= steps[1]
    assert steps[2] <= now <= steps[3]
    assert with_links(cluster) is with_memories(cluster, 1) is cluster
    # There and back is where it was: tables hold as they were measured.
    there_and_back = with_links(with_links(cluster, slower, slower), 1 / slower, 1 / slower)
    assert there_and_back == cluster
    assert step_ps(replace(scenario, cluster=with_memories(cluster, slower))) == now


def check_doors(seed: int) -> None:
    scenario, wider = large(seed), Random(seed).choice((2, 4, 0.5, 1, 1.25))
    exact = Fraction(wider)
    expected = step_ps(replace(scenario, cluster=with_links(scenario.cluster, exact)))
    assert explored(scenario, bandwidth=wider) == expected
    later = step_ps(replace(scenario, cluster=with_links(scenario.cluster, later=exact)))
    assert explored(scenario, latency=wider) == later
    if exact == 1:
        assert expected == later == step_ps(scenario)
    if exact.denominator == 1 and exact != 1:
        lines = {
            case.name: case.step_ps
            for case in what_ifs(run(scenario), None, scenario, factor=int(exact))
            if case.kind == "resource"
        }
        assert lines == {name: step_ps(RESOURCES[name](scenario, exact)) for name in RESOURCES}
        if not links_of(scenario.cluster, network=True):
            assert lines[LINKS] == expected


@pytest.mark.parametrize(("preset", "nodes"), [("dgx-h100", 1), ("l40s-8x", 1), ("dgx-h100", 2)])
@pytest.mark.parametrize("field", ["bandwidth", "latency"])
def test_a_sweep_of_links_is_the_slider(preset: str, nodes: int, field: str) -> None:
    asked = {
        "version": 1,
        "graph": {"model": "gpt-1.7b", "layers": 2, "length": 512},
        "cluster": {"preset": preset, "nodes": nodes},
        "strategy": {"pipeline": {"tp": 4, "dp": 2 * nodes}},
    }
    scenario = load_scenario(asked)
    listed = asked | {"cluster": cluster_object(scenario.cluster)}
    knob = {"bandwidth": "wider", "latency": "later"}[field]
    for factor in (1, 2, Fraction(1, 2)):
        cluster = with_links(scenario.cluster, **{knob: factor})
        links = enumerate(cluster_object(cluster)["links"])
        grid = {f"cluster.links[{i}].{field}": [link.get(field, 0)] for i, link in links}
        expected = explored(scenario, **{field: float(factor)})
        assert step_ps(replace(scenario, cluster=cluster)) == expected
        assert sweep(listed, grid)["step_time_s"].tolist() == [expected / PS_PER_SECOND], factor


def test_a_sweep_keeps_what_kinds_and_shorthands_said_when_collectives_were_measured() -> None:
    asked = {
        "version": 1,
        "graph": {"model": "gpt-1.7b", "layers": 2, "length": 512},
        "cluster": "dgx-h100",
        "strategy": {"pipeline": {"tp": 8}},
    }
    expected = explored(load_scenario(asked), bandwidth=2)
    fields = (
        "cluster.bandwidth",
        "cluster.links[*].bandwidth",
        "cluster.link_kinds.nvlink.bandwidth",
    )
    for field in fields:
        steps = sweep(asked, {field: ["361 GB/s", "722 GB/s"]})["step_time_s"].tolist()
        assert steps == [run(load_scenario(asked)).seconds, expected / PS_PER_SECOND], field
    # Set twice, they are still measured at what the preset says.
    twice = {fields[2]: ["100 GB/s"], fields[0]: ["722 GB/s"], "cluster.latency": ["3.8 us"]}
    assert sweep(asked, twice)["step_time_s"].tolist() == [expected / PS_PER_SECOND]


def test_measured_collectives_follow_the_links_that_they_cross() -> None:
    cluster = read_preset("dgx-h100")
    model = collective_model(cluster)

    def seconds(there: simdev.Cluster, ranks: range, size: int = 2**28) -> Fraction:
        return collective_model(there).cost("all_reduce", ranks, size).seconds

    least = model.cost("all_reduce", range(8), 1).seconds
    whole = model.cost("all_reduce", range(8), 2**28).seconds
    twice = with_links(cluster, 2)
    assert seconds(twice, range(8)) == least + (whole - least) / 2
    assert seconds(with_links(cluster, later=2), range(8)) == 2 * least + (whole - least)
    (row,) = (i for i, link in enumerate(cluster.links) if "gpu:7" in link.ends)
    slow = with_links(cluster, Fraction(1, 4), rows=[row])
    assert seconds(slow, range(8)) == least + 4 * (whole - least)
    assert seconds(slow, range(4)) == seconds(cluster, range(4))
    # One link that is faster than the others helps nobody.
    assert seconds(with_links(cluster, 4, rows=[row]), range(8)) == whole
    # A file keeps what was measured.
    assert read_cluster(cluster_object(slow)) == slow


def test_links_that_had_no_latency_add_that_which_they_get() -> None:
    cluster = read_preset("dgx-h100")
    links = [replace(link, latency="1 us", measured_latency=0) for link in cluster.links]
    now, then = (
        collective_model(there).cost("all_reduce", range(8), 2**28).seconds
        for there in (replace(cluster, links=tuple(links)), cluster)
    )
    assert now == then + Fraction(2, 10**6)
    none = collective_model(with_links(cluster, later=0))
    least = collective_model(cluster).cost("all_reduce", range(8), 1).seconds
    assert none.cost("all_reduce", range(8), 2**28).seconds == then - least
