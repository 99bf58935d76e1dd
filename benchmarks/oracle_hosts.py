"""How fast the oracle answers on clusters with hosts, beside program order without: rows of
``benchmarks.oracle``.

Hosts put every device in program order, so that is what they are compared with. Where no dispatch
waits for an op, hosts are a release time an op; a host that is soon too far ahead, and ops that
block it, make dispatches wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks.common import in_turns, layered, random_placements
from benchmarks.figures import Figure
from simdev.lowering import Prepared
from simdev.nouns.cluster import Host
from simdev.nouns.graph import Graph
from simdev.nouns.strategy import Order
from simdev.oracle import Oracle

MOST = 1.03  # times as long as without hosts
HOST_TIME = "8 us"  # of an op: eager PyTorch on a fast processor
SHORT = "1 us"  # so that ops begin much as they would without hosts
OPS, DEVICES = 380, 8  # of repeated steps
BLOCKS = 50  # every so many ops one that blocks


def with_hosts(
    prepared: Prepared, host: Host | None, blocks: int = 0, host_time: str = HOST_TIME
) -> tuple[Any, ...]:
    """The graph, cluster and costs of a question with such hosts; one op of so many blocks (0:
    none).
    """
    ops = tuple(
        replace(op, host_time=host_time, blocks_host=blocks > 0 and i % blocks == 0)
        for i, op in enumerate(prepared.graph.ops)
    )
    cluster = replace(prepared.cluster, host=host)
    return Graph(prepared.graph.name, ops), cluster, prepared.costs


def hosts(prepared: Prepared, passes: int) -> list[Figure]:
    """Evaluations on a cluster with hosts over those in program order without."""
    program = Order("program")
    oracles = {
        "program order, no hosts": Oracle(*with_hosts(prepared, None), program, cache=0),
        "a thread a device": Oracle(*with_hosts(prepared, Host()), cache=0),
        f"a thread a device, {SHORT} an op": Oracle(
            *with_hosts(prepared, Host(), host_time=SHORT), cache=0
        ),
        "a thread a node": Oracle(*with_hosts(prepared, Host(threads="node")), cache=0),
        "graphs": Oracle(*with_hosts(prepared, Host("graph")), cache=0),
        "at most 16 launches ahead": Oracle(*with_hosts(prepared, Host(ahead=16)), cache=0),
        f"one op of {BLOCKS} blocks": Oracle(*with_hosts(prepared, Host(), BLOCKS), cache=0),
    }
    placements = random_placements(prepared)
    for oracle in oracles.values():
        assert oracle.in_full(oracle.strategy(placements[0])) == oracle(placements[0])
    part = f"hosts, GNMT, 4 devices, {prepared.cluster.queues}"
    figures = []
    for label, asked in (("step time only", _steps), ("with memory", _whole)):
        seconds = in_turns([asked(oracle) for oracle in oracles.values()], placements, passes)
        times = dict(zip(oracles, seconds, strict=True))
        first, without = next(iter(times.items()))
        figures.append(Figure(part, f"{label}: {first}", 1 / without, "/s"))
        for name, time in list(times.items())[1:]:
            never_waits = name.startswith(("a thread", "graphs"))
            figures.append(
                Figure(
                    part,
                    f"{label}: {name} / no hosts",
                    time / without,
                    "x",
                    MOST if never_waits else None,
                    least=False,
                )
            )
    return figures + _repeated(prepared.cluster.queues)


def _repeated(queues: str) -> list[Figure]:
    """Steps that follow one another, which go the long way with hosts and without."""
    prepared = layered(OPS, DEVICES, queues)
    placement, figures = random_placements(prepared, 1)[0], []
    for name, host in (("no hosts", None), ("hosts", Host())):
        question = with_hosts(prepared, host)
        oracle = Oracle(*question, Order("program"), cache=0, steps="repeated")
        (seconds,) = in_turns([oracle.step_ps], [placement], 3)
        part = f"repeated steps, layered {OPS:,} ops, {DEVICES} devices, {queues}"
        figures.append(Figure(part, f"the long way: program order, {name}", seconds * 1e3, "ms"))
    return figures


def _steps(oracle: Oracle) -> Callable[[Any], object]:
    return oracle.step_ps


def _whole(oracle: Oracle) -> Callable[[Any], object]:
    return oracle
