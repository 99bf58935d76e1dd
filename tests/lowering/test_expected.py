"""Expected errors: which sources the time of a task rests on, and by how much each."""

from __future__ import annotations

from typing import Any

import pytest

from simdev import (
    Cluster,
    CostModel,
    Device,
    Graph,
    Op,
    Scenario,
    Strategy,
    load_scenario,
)
from simdev.costs.collectives import CollectiveCall, collective_model
from simdev.costs.dispatch import DATASHEET_ERROR, RUN_ERROR
from simdev.costs.drawn import LINE_ERROR, STEP_ERROR, TABLE_ERROR, ErrorSource
from simdev.execution.scenario import lowered
from simdev.lowering import iterated
from simdev.lowering.expected import ExpectedErrors
from simdev.nouns.cluster import Host
from worlds.costs import row_of
from worlds.graphs import leaf, tensor

SIZE = 2**26


def question(nodes: int) -> dict[str, Any]:
    pipeline = {"dp": 8 * nodes, "microbatches": 2, "zero": 1}
    return {
        "graph": {"model": "llama3.2-1b", "layers": 2, "length": 256},
        "cluster": {"preset": "dgx-h100", "nodes": nodes}, "strategy": {"pipeline": pipeline},
    }  # fmt: skip


def collectives_of(nodes: int) -> list[dict[ErrorSource, float]]:
    """The sources of the collectives of a large model's data parallelism, with their shares."""
    step = lowered(load_scenario(question(nodes)))
    errors = step.expected_errors(iterated(step.step, 1))
    parts = [
        dict(zip((errors.sources[i] for i in ids), shares, strict=True))
        for ids, shares in mixes(errors)
    ]
    return [mix for mix in parts if any("link data" in source.of_class for source in mix)]


def mixes(errors: ExpectedErrors) -> list[tuple[list[int], list[float]]]:
    """By mix the numbers of its sources, and its shares."""
    owners = errors.parts.owners()
    return [
        (errors.parts.ids[owners == mix].tolist(), errors.share[owners == mix].tolist())
        for mix in range(len(errors.parts))
    ]


def test_a_measured_collective_errs_as_its_table_does() -> None:
    (inside, *others) = collectives_of(1)
    for mix in (inside, *others):
        assert {(source.rel_err, share) for source, share in mix.items()} == {(TABLE_ERROR, 1.0)}


def test_between_nodes_tables_tell_a_share() -> None:
    scenario = load_scenario(question(2))
    model = collective_model(scenario.cluster)
    workers = tuple(scenario.cluster.workers)
    cost, form = model.timed(CollectiveCall("all_reduce", workers, SIZE, "auto"))
    assert form.algorithm == "hierarchical"
    node = workers[:8]
    inside = sum(
        model.cost(level.collective, node, level.size).seconds
        for level in form.levels
        if level.inside
    )
    assert cost.tabled == pytest.approx(float(inside / cost.seconds))
    assert 0.1 < cost.tabled < 0.9
    for mix in collectives_of(2):
        assert {source.rel_err for source in mix} == {TABLE_ERROR, LINE_ERROR}
        assert sum(mix.values()) == pytest.approx(1)


def sources_of(source: str, host: Host | None = None) -> set[float]:
    """The errors of a step of one op, whose row errs by 0.3."""
    row = row_of("relu", [[8]], [[8]], 10**6, dev="h100-sxm", src=source, rel_err=0.3)
    graph = Graph("one", (leaf("x", 8), Op("a", "relu", inputs=("x",), outputs=(tensor(8),))))
    cluster = Cluster("one", (Device("gpu:0", "h100-sxm"),), host=host or Host("none"))
    costs = CostModel({"header": {}, "rows": [row]})
    strategy = Strategy({"*": "gpu:0"})
    question = lowered(Scenario(graph, cluster, costs, strategy))
    errors = question.expected_errors(iterated(question.step, 1))
    return {each.rel_err for each in errors.sources}


def test_rows_that_were_measured_alone_are_off_together() -> None:
    assert sources_of("measured") == {0.3, STEP_ERROR}
    assert sources_of("fitted") == {0.3}


def test_a_run_of_a_host_is_off_as_a_whole() -> None:
    # A bare dispatch is told by the datasheet.
    assert sources_of("fitted", Host("eager")) == {0.3, DATASHEET_ERROR, RUN_ERROR}
