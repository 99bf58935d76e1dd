"""Scenarios on changed machines: wider links, larger memories, faster devices or hosts, more
microbatches.

A factor of 1 returns the scenario itself. Changed links remember the bandwidth and latency at which
collectives were measured over them, so that measured times are scaled (``collectives.Crossing``).
``report.whatif`` and the sliders of ``commands/explorer`` call these functions. A new resource of
what-ifs is a row of RESOURCES; a new slider is also a knob of ``commands/explorer/knobs.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from ..costs import DeviceSpec
from ..ground.units import MAX_BYTES, MAX_FLOPS
from ..nouns.cluster import Cluster, Device, Link
from ..nouns.models.large import Transformer
from .scenario import Scenario

Factor = int | Fraction
LINKS, NETWORK, MEMORY, FLOPS, HOSTS = (
    "links inside nodes", "network", "device memory", "FLOP/s", "hosts",
)  # fmt: skip
OF_NETWORK = ("nic", "network")
"""Kinds of the links that join nodes, as presets name them."""
MOST_MEMORY = 10**18  # bytes/s of a datasheet


def with_links(
    cluster: Cluster,
    wider: Factor = 1,
    later: Factor = 1,
    rows: Collection[int] | None = None,
) -> Cluster:
    """The cluster with ``wider`` times the bandwidth and ``later`` times the latency of the links
    at the positions ``rows`` (None: all links). Bandwidths stop at the most that a file may give.
    """
    if wider == later == 1 or (rows is not None and not rows):
        return cluster
    links = tuple(
        link.changed(wider, later) if rows is None or row in rows else link
        for row, link in enumerate(cluster.links)
    )
    return replace(cluster, links=links)


def links_of(cluster: Cluster, network: bool) -> list[int]:
    """The positions of the links that join nodes (``network``), or else of all other links."""
    return [row for row, link in enumerate(cluster.links) if _joins_nodes(cluster, link) == network]


def kinds_of(cluster: Cluster, resource: str) -> list[str]:
    """The kinds of the links of a resource (LINKS or NETWORK), sorted; empty for any other."""
    rows = links_of(cluster, resource == NETWORK) if resource in (LINKS, NETWORK) else []
    return sorted({kind for row in rows if (kind := cluster.links[row].kind)} - {resource})


def _joins_nodes(cluster: Cluster, link: Link) -> bool:
    nodes = {cluster.devices[cluster.index[end]].node for end in link.ends}
    return link.kind in OF_NETWORK or len(nodes) > 1


def with_memories(cluster: Cluster, larger: Factor) -> Cluster:
    """The cluster with ``larger`` times the memory of every device that has a limit."""
    if larger == 1:
        return cluster
    return replace(cluster, devices=tuple(_with_memory(d, larger) for d in cluster.devices))


def _with_memory(device: Device, larger: Factor) -> Device:
    if device.memory is None:
        return device
    return replace(device, memory=min(int(Fraction(device.memory) * larger), MAX_BYTES))


def with_launches(cluster: Cluster, faster: Factor) -> Cluster:
    """The cluster with hosts that launch the graph of a step ``faster`` times as fast."""
    devices = tuple(
        device
        if (host := cluster.host_of(d)) is None
        else replace(device, host=replace(host, launch=Fraction(host.launch) / faster))
        for d, device in enumerate(cluster.devices)
    )
    return replace(cluster, devices=devices)


def with_hosts(scenario: Scenario, faster: Factor) -> Scenario:
    """The scenario of a large model with dispatching threads and links to host memory ``faster``
    times as fast.
    """
    model, strategy = scenario.graph, scenario.strategy
    if faster == 1:
        return scenario
    assert isinstance(model, Transformer)
    pipeline = strategy.pipeline
    if pipeline is not None and pipeline.host_bandwidth is not None:
        rate = min(pipeline.host_rate * faster, Fraction(MAX_BYTES))
        strategy = replace(strategy, pipeline=replace(pipeline, host_bandwidth=rate))
    times = {phase: Fraction(time) / faster for phase, time in model.host_time.items()}
    cluster = with_launches(scenario.cluster, faster)
    return replace(
        scenario, graph=replace(model, host_time=times), strategy=strategy, cluster=cluster
    )


def with_datasheets(scenario: Scenario, computing: Factor = 1, moving: Factor = 1) -> Scenario:
    """The scenario with ``computing`` times the FLOP/s of devices, and ``moving`` times the
    bandwidth of their memory.
    """
    if computing == moving == 1:
        return scenario
    costs = scenario.costs
    specs = tuple(replace(spec, **_rates(spec, computing, moving)) for spec in costs.specs)
    return replace(scenario, costs=replace(costs, specs=specs))


def _rates(spec: DeviceSpec, computing: Factor, moving: Factor) -> Mapping[str, Any]:
    """The changed fields of a datasheet: its rates in FLOP/s by dtype (``flops``, ``sustained``,
    ``burst``) and its memory bandwidth.
    """
    peaks = {name: getattr(spec, name) for name in ("flops", "sustained", "burst")}
    rates: dict[str, Any] = {
        name: {d: min(rate * computing, Fraction(MAX_FLOPS)) for d, rate in of_dtype.items()}
        for name, of_dtype in peaks.items()
    }
    return rates | {"memory_bandwidth": min(spec.memory_bandwidth * moving, Fraction(MOST_MEMORY))}


def with_microbatches(scenario: Scenario, count: int) -> Scenario:
    """The scenario with ``count`` microbatches; as in a sweep, the global batch grows with it."""
    pipeline = scenario.strategy.pipeline
    if pipeline is None or count == pipeline.microbatches:
        return scenario
    spread = replace(pipeline, microbatches=count, global_batch=None)
    return replace(scenario, strategy=replace(scenario.strategy, pipeline=spread))


def _with_wider(scenario: Scenario, factor: Factor, network: bool) -> Scenario:
    rows = links_of(scenario.cluster, network)
    cluster = with_links(scenario.cluster, factor, rows=rows)
    return scenario if cluster is scenario.cluster else replace(scenario, cluster=cluster)


RESOURCES: Mapping[str, Callable[[Scenario, Factor], Scenario]] = {
    LINKS: lambda scenario, factor: _with_wider(scenario, factor, network=False),
    NETWORK: lambda scenario, factor: _with_wider(scenario, factor, network=True),
    MEMORY: lambda scenario, factor: with_datasheets(scenario, moving=factor),
    FLOPS: lambda scenario, factor: with_datasheets(scenario, computing=factor),
    HOSTS: with_hosts,
}
"""For each resource of what-ifs, the function that returns the scenario with that resource
``factor`` times as fast.
"""
