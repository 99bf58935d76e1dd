"""A large model's step on machines of which one resource is faster: lowered anew and simulated.

Symmetry counts as for the step itself, so a case takes as long as that did. Collectives inside a
node that a measured table costs take of the bandwidth's part of their time, what they take beyond
the table's smallest message, a share (ours); what a profile costs keeps its
times, measured rows that ship follow their datasheet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

from ..cluster import Cluster, Link
from ..collectives import CollectiveModel, CollectiveTable, collective_model
from ..costs import DeviceSpec
from ..engine import simulate
from ..lowering.hybrid import lower_hybrid
from ..models.large import Transformer
from ..scenario import Scenario
from ..units import MAX_BYTES, MAX_FLOPS
from .faster import with_hosts

LINKS, NETWORK, MEMORY, FLOPS, HOSTS = (
    "links inside nodes", "network", "device memory", "FLOP/s", "hosts",
)  # fmt: skip
OF_NETWORK = ("nic", "network")
"""Kinds of the links that join nodes, as presets name them."""
MOST_MEMORY = 10**18  # bytes/s of a datasheet


def resources(scenario: Scenario, factor: int) -> Mapping[str, Callable[[str], int]]:
    """By the name of each resource the step time (ps) with it so many times faster, by an engine.

    Raises InputError.
    """
    changes: Mapping[str, Callable[[], tuple[Scenario, CollectiveModel]]] = {
        LINKS: lambda: _with_links(scenario, factor, network=False),
        NETWORK: lambda: _with_links(scenario, factor, network=True),
        MEMORY: lambda: _with_specs(
            scenario,
            lambda spec: {"memory_bandwidth": min(spec.memory_bandwidth * factor, MOST_MEMORY)},
        ),
        FLOPS: lambda: _with_specs(scenario, lambda spec: _computing(spec, factor)),
        HOSTS: lambda: _with_hosts(scenario, factor),
    }
    return {name: partial(_changed_ps, change) for name, change in changes.items()}


def kinds_of(cluster: Cluster, name: str) -> list[str]:
    """The kinds of the links that a resource is; none of what is no links."""
    if name not in (LINKS, NETWORK):
        return []
    links = (link for link in cluster.links if _joins_nodes(cluster, link) == (name == NETWORK))
    return sorted({link.kind for link in links if link.kind} - {name})


def _changed_ps(change: Callable[[], tuple[Scenario, CollectiveModel]], engine: str) -> int:
    scenario, collectives = change()
    model, pipeline = scenario.graph, scenario.strategy.pipeline
    assert isinstance(model, Transformer)
    assert pipeline is not None
    graph, _ = lower_hybrid(model, pipeline, collectives, scenario.costs, scenario.symmetry)
    return simulate(graph, engine).end_ps


def _with_links(scenario: Scenario, factor: int, network: bool) -> tuple[Scenario, CollectiveModel]:
    """With the bandwidth of links of the network, or of all others; latencies stay."""
    cluster, model = scenario.cluster, collective_model(scenario.cluster)
    links = tuple(
        _wider(link, factor) if _joins_nodes(cluster, link) == network else link
        for link in cluster.links
    )
    tables = model.tables if network else tuple(_wider_table(t, factor) for t in model.tables)
    wider = replace(cluster, links=links)
    return replace(scenario, cluster=wider), CollectiveModel(wider, tables, model.algorithm)


def _joins_nodes(cluster: Cluster, link: Link) -> bool:
    nodes = {cluster.devices[cluster.index[end]].node for end in link.ends}
    return link.kind in OF_NETWORK or len(nodes) > 1


def _wider(link: Link, factor: int) -> Link:
    return replace(link, bandwidth=min(Fraction(link.bandwidth) * factor, Fraction(MAX_BYTES)))


def _wider_table(table: CollectiveTable, factor: int) -> CollectiveTable:
    least = table.anchors[0][1]
    anchors = ((size, least + (seconds - least) / factor) for size, seconds in table.anchors)
    return replace(table, anchors=tuple(anchors))


def _computing(spec: DeviceSpec, factor: int) -> dict[str, Any]:
    """All that a datasheet says of how fast it computes: peaks, and what products reach of them."""
    rates = {name: getattr(spec, name) for name in ("flops", "sustained", "burst")}
    return {
        name: {dtype: min(rate * factor, Fraction(MAX_FLOPS)) for dtype, rate in of_dtype.items()}
        for name, of_dtype in rates.items()
    }


def _with_specs(
    scenario: Scenario, change: Callable[[DeviceSpec], Mapping[str, Any]]
) -> tuple[Scenario, CollectiveModel]:
    costs = scenario.costs
    specs = tuple(replace(spec, **change(spec)) for spec in costs.specs)
    changed = replace(scenario, costs=replace(costs, specs=specs))
    return changed, collective_model(scenario.cluster)


def _with_hosts(scenario: Scenario, factor: int) -> tuple[Scenario, CollectiveModel]:
    """With threads that dispatch, and links to host memory, so many times faster."""
    model, strategy = scenario.graph, scenario.strategy
    assert isinstance(model, Transformer)
    pipeline = strategy.pipeline
    if pipeline is not None and pipeline.host_bandwidth is not None:
        rate = min(pipeline.host_rate * factor, Fraction(MAX_BYTES))
        strategy = replace(strategy, pipeline=replace(pipeline, host_bandwidth=rate))
    times = {phase: Fraction(time) / factor for phase, time in model.host_time.items()}
    cluster = with_hosts(scenario.cluster, factor)
    graph = replace(model, host_time=times)
    changed = replace(scenario, graph=graph, strategy=strategy, cluster=cluster)
    return changed, collective_model(cluster)
