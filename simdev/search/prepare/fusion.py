"""Operator fusion: ops of one colocation group become one op, where that cannot close a cycle."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from ...nouns.graph import Graph, Op, Tensor
from ...nouns.structure import order_of
from ..holding import inner_peak
from .grouped import Grouped

if TYPE_CHECKING:
    import networkx as nx


def fuse(graph: Graph) -> Grouped:
    """Fuse along the edges inside each colocation group, groups and edges first in, first out.

    The conservative rule (Jeon et al., SoCC 2020, section 3.1): the second op of an edge joins the
    first unless the first has several successors and the second several predecessors, for then
    another path might join them, and a cycle close. The fused op takes the place of its first:
    times and what persists add up, its workspace is the peak that it needs inside, its outputs are
    the tensors that leave it.
    """
    import networkx as nx

    # Neighbours stand in the order in which their edges were made: it decides what is fused first.
    net: nx.DiGraph[int] = nx.DiGraph()
    net.add_nodes_from(range(len(graph.ops)))
    for consumer, reads in enumerate(graph.reads):
        net.add_edges_from((producer, consumer) for producer, _ in reads)
    fused_ops = {i: [i] for i in net}
    for members in graph.groups.values():
        inside = set(members)
        edges = deque((a, b) for a in members if a in net for b in net.adj[a] if b in inside)
        while edges:
            first, second = edges.popleft()
            if net.has_edge(first, second) and 1 in (len(net.adj[first]), len(net.pred[second])):
                new = _merge(net, first, second)
                fused_ops[first] += fused_ops.pop(second)
                edges.extend(edge for edge in new if inside.issuperset(edge))
    place = {i: at for at, i in enumerate(order_of(graph))}
    runs = tuple(tuple(sorted(fused_ops[i], key=place.__getitem__)) for i in sorted(fused_ops))
    return Grouped(_fused_graph(graph, runs), graph, runs)


def _merge(net: nx.DiGraph[int], first: int, second: int) -> list[tuple[int, int]]:
    """Merge the second of an edge into the first; the edges that are new."""
    after, before = list(net.adj[second]), list(net.pred[second])
    net.remove_node(second)
    new = [(first, other) for other in after if other not in net.adj[first]]
    new += [(other, first) for other in before if other != first and first not in net.adj[other]]
    net.add_edges_from(new)
    return new


def _fused_graph(graph: Graph, runs: Sequence[tuple[int, ...]]) -> Graph:
    """One op for each of ``runs``, with the tensors that pass between them."""
    node_of = {i: node for node, ops in enumerate(runs) for i in ops}
    crossing = {
        key for i, reads in enumerate(graph.reads) for key in reads if node_of[key[0]] != node_of[i]
    }
    leads = [graph.ops[min(ops)] for ops in runs]
    name_of: dict[tuple[int, int], str] = {}
    outputs: list[list[Tensor]] = [[] for _ in runs]
    for node, ops in enumerate(runs):
        keys = sorted((i, k) for i in ops for k in range(len(graph.ops[i].outputs)))
        for i, k in keys:
            if (i, k) in crossing or len(ops) == 1:
                name_of[i, k] = f"{leads[node].name}:{len(outputs[node])}"
                outputs[node].append(replace(graph.ops[i].outputs[k], view_of=None))
    fused = []
    for node, ops in enumerate(runs):
        outside = [key for i in ops for key in graph.reads[i] if node_of[key[0]] != node]
        inputs = dict.fromkeys(name_of[key] for key in outside if key[1] >= 0)
        waits = dict.fromkeys(leads[node_of[p]].name for p, output in outside if output < 0)
        op = leads[node]
        if len(ops) > 1:
            op = replace(_fused_op(graph, ops, op, crossing), outputs=tuple(outputs[node]))
        fused.append(replace(op, inputs=tuple(inputs), control_inputs=tuple(waits)))
    return Graph(f"{graph.name}, fused", tuple(fused))


def _fused_op(graph: Graph, ops: tuple[int, ...], lead: Op, crossing: set[tuple[int, int]]) -> Op:
    """Several ops as one, without inputs and outputs."""
    members = [graph.ops[i] for i in ops]
    return Op(
        lead.name,
        kind="fused",
        phase=lead.phase,
        param_bytes=sum(op.param_bytes for op in members),
        grad_bytes=sum(op.grad_bytes for op in members),
        state_bytes=sum(op.state_bytes for op in members),
        workspace_bytes=inner_peak(graph, ops, crossing),
        colocate=lead.colocate,
        time=_sum_of(members, "time"),
        host_time=_sum_of(members, "host_time"),
        launches=sum(counts) if (counts := _launches(members)) else None,
        blocks_host=any(op.blocks_host for op in members),
    )


def _launches(members: Sequence[Op]) -> list[int]:
    """The kernels that each launches, one where it does not say; empty where none says."""
    if all(op.launches is None for op in members):
        return []
    return [1 if op.launches is None else op.launches for op in members]


def _sum_of(members: Sequence[Op], name: str) -> Fraction | Mapping[str, Fraction] | None:
    """The sum of the times of this name that all of them tell, by kind of device where one tells it
    so.
    """
    times = [getattr(op, name) for op in members]
    if any(time is None for time in times):
        return None
    on = Op.seconds_on if name == "time" else Op.host_seconds_on
    kinds = [set(time) for time in times if isinstance(time, Mapping)]
    sums = {
        kind: sum((on(op, kind) or Fraction(0) for op in members), Fraction(0))
        for kind in sorted(set.intersection(*kinds) if kinds else {""})
    }
    return sums if kinds else sums[""]
