"""HTML of a graph, a cluster or a strategy for notebooks: a headline and small tables.

Colours are the notebook's, which may be light or dark; every text is escaped. Nouns, which stand on
a lower floor, reach it by the name ``html_of`` in ``ground/registry.py``.
"""

from __future__ import annotations

from collections import Counter
from html import escape
from typing import Any

from ..ground.units import format_bandwidth, format_bytes, format_seconds
from ..nouns.cluster import Cluster, Link
from ..nouns.graph import PHASES, Graph
from ..nouns.strategy import Strategy, Sync
from .table import BYTES, COUNT, LIMIT, TEXT, Table, table_html

SHOWN = 8  # rows of a table
NAMES = 3  # entries that are named in a cell


def html_of(noun: object) -> str:
    """A graph, a cluster or a strategy as HTML. Raises TypeError for anything else."""
    if isinstance(noun, Graph):
        return _html(_graph_line(noun), _kinds(noun))
    if isinstance(noun, Cluster):
        return _html(_cluster_line(noun), _devices(noun), _links(noun))
    if isinstance(noun, Strategy):
        return _html(_strategy_line(noun), _placement(noun), _partition(noun))
    raise TypeError(f"nothing is known of how to show a {type(noun).__name__}")


def _html(headline: str, *tables: Table) -> str:
    shown = "".join(table_html(table) for table in tables if table.rows)
    return f"<div><p><b>{escape(headline)}</b></p>{shown}</div>"


def _graph_line(graph: Graph) -> str:
    phases = Counter(op.phase for op in graph.ops)
    counts = ", ".join(f"{phases[phase]:,} {phase}" for phase in PHASES if phases[phase])
    held = sum(op.param_bytes for op in graph.ops)
    return (
        f"Graph {graph.name}: {len(graph.ops):,} ops"
        + f" ({counts})" * (len(phases) > 1)
        + f", {format_bytes(held)} of parameters" * bool(held)
    )


def _kinds(graph: Graph) -> Table:
    """The kinds of ops, a row each, the most frequent first."""
    parameters, outputs, counts = Counter[str](), Counter[str](), Counter[str]()
    for op in graph.ops:
        counts[op.kind] += 1
        parameters[op.kind] += op.param_bytes
        outputs[op.kind] += sum(tensor.bytes for tensor in op.made)
    rows = [(kind, n, parameters[kind], outputs[kind]) for kind, n in counts.most_common()]
    columns = {"kind": TEXT, "ops": COUNT, "parameters": BYTES, "outputs": BYTES}
    return Table("Ops by kind", columns, tuple(rows), shown=SHOWN)


def _cluster_line(cluster: Cluster) -> str:
    nodes = len({device.node for device in cluster.devices})
    return (
        f"Cluster {cluster.name}: {len(cluster.devices):,} devices"
        + f" on {nodes:,} nodes" * (nodes > 1)
        + f", {len(cluster.links):,} links, queues {cluster.queues}, transfer {cluster.transfer}"
        + (f", host {cluster.host.mode}" if cluster.host else "")
    )


def _devices(cluster: Cluster) -> Table:
    """The devices, with a row for all devices of equal kind and memory."""
    alike: dict[tuple[str, Any], list[str]] = {}
    for device in cluster.devices:
        alike.setdefault((device.kind, device.memory), []).append(device.name)
    rows = [(kind, len(all_), size, _named(all_)) for (kind, size), all_ in alike.items()]
    columns = {"kind": TEXT, "devices": COUNT, "memory": LIMIT, "names": TEXT}
    return Table("Devices", columns, tuple(rows), shown=SHOWN)


def _links(cluster: Cluster) -> Table:
    """The links, with a row for all links of equal properties, the most frequent first."""
    counts = Counter(map(_link, cluster.links))
    rows = tuple((*quantities, count) for quantities, count in counts.most_common())
    columns = dict.fromkeys(("link", "bandwidth", "latency", "duplex"), TEXT) | {"links": COUNT}
    return Table("Links", columns, rows, shown=SHOWN)


def _link(link: Link) -> tuple[str, str, str, str]:
    bandwidth = format_bandwidth(float(link.bandwidth))
    return link.kind or "link", bandwidth, format_seconds(float(link.latency)), link.duplex


def _strategy_line(strategy: Strategy) -> str:
    sync = strategy.sync.policy if isinstance(strategy.sync, Sync) else strategy.sync
    parts = [strategy.short] if strategy.short else []
    if strategy.pipeline is not None:
        pipeline = strategy.pipeline
        degrees = pipeline.degrees
        experts = degrees.pop("ep")
        factors = [f"{name} {n}" for name, n in degrees.items() if name != "cp" or n > 1]
        parts.append(f"pipeline of {' x '.join(factors)}")
        parts += [f"ep {experts}"] if experts > 1 else []
        parts += [f"etp {pipeline.etp}"] if pipeline.is_folded else []
        groups = pipeline.dp_replicate
        parts += [f"dp_replicate {groups}"] if groups > 1 else []
    parts += [f"order {strategy.order.policy}", f"sync {sync}"]
    parts += [f"{strategy.accumulate} microbatches"] if strategy.accumulate > 1 else []
    return f"Strategy: {', '.join(parts)}"


def _placement(strategy: Strategy) -> Table:
    """The entries of a placement, with a row a device, in the order of the entries."""
    entries: dict[str, list[str]] = {}
    for key, device in strategy.placement.items():
        entries.setdefault(device, []).append(key)
    rows = tuple((device, len(keys), _named(keys)) for device, keys in entries.items())
    columns = {"device": TEXT, "entries": COUNT, "ops, groups, modules, patterns": TEXT}
    return Table("Placement", columns, rows, shown=SHOWN)


def _partition(strategy: Strategy) -> Table:
    rows = tuple(
        (key, " x ".join(f"{axis} {parts}" for axis, parts in configuration.split.items()) or "-",
         _named(list(configuration.devices)))
        for key, configuration in strategy.partition.items()
    )  # fmt: skip
    columns = {"entry": TEXT, "split": TEXT, "devices": TEXT}
    return Table("Partition", columns, rows, shown=SHOWN)


def _named(names: list[str]) -> str:
    """The first few names as a text, and the number of the others."""
    more = f", {len(names) - NAMES:,} more" if len(names) > NAMES else ""
    return ", ".join(names[:NAMES]) + more
