"""What the ops of a grouped graph hold, for placers that plan: an estimate from above, which the
oracle then judges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..graph import Graph
from ..structure import TensorOf
from ..taskgraph import Ints
from .instance import Instance
from .prepare.grouped import inner_peak, own_outputs


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """Bytes.

    ``own`` by tensor between nodes: what its producer holds until the last reader has run.

    ``made`` by node: the sum of these; ``scratch`` by node: the peak beside them while it runs.
    ``persistent`` by group: parameters, gradients, states, and the outputs that ops which are not
    planned read (``forward``: what the backward reads). ``kept`` by tensor between nodes, 0 or 1:
    whether it is such an output; its ``own`` is 0 then, and copies of it are never given back.
    ``reserve`` by group: the most that one of its nodes makes and needs.
    """

    own: Ints
    made: Ints
    scratch: Ints
    persistent: Ints
    kept: Ints
    reserve: Ints


def held_of(instance: Instance) -> Held:
    """What is held where.

    In training all that the backward reads counts as persistent at who makes it, as Baechi's
    PyTorch version counts it (chiragcshetty/BaechiPyTorch): between forward and backward it is held
    anyway.
    """
    prepared, grouped = instance.prepared, instance.grouped
    graph, rounded = prepared.graph, prepared.memory.rounded
    kept, reads = _kept(instance), prepared.reads
    rows = [(int(reads.producer[row]), int(reads.output[row])) for row in instance.tensors[0]]
    own = [0 if _base(graph, key) in kept else rounded(_own_bytes(graph, key)) for key in rows]
    nodes, groups = len(grouped.graph.ops), len(instance.groups)
    made, scratch = np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)
    persistent, reserve = np.zeros(groups, np.int64), np.zeros(groups, np.int64)
    for (producer, _), size in zip(rows, own, strict=True):
        made[instance.run_by[producer]] += size
    for key in kept:
        group = instance.group_of[instance.run_by[key[0]]]
        persistent[group] += rounded(_own_bytes(graph, key))
    leaving = kept.union(rows)
    for node, (ops, members) in enumerate(zip(grouped.runs, grouped.members, strict=True)):
        late = (_going_back(instance, i) for i in members if instance.run_by[i] < 0)
        scratch[node] = max(inner_peak(graph, ops, leaving, rounded), *late, 0)
        group = instance.group_of[node]
        for i in members:
            op = graph.ops[i]
            persistent[group] += sum(map(rounded, (op.param_bytes, op.grad_bytes, op.state_bytes)))
        reserve[group] = max(reserve[group], made[node] + scratch[node])
    column = np.array([_base(graph, key) in kept for key in rows], np.int64)
    return Held(np.array(own, np.int64), made, scratch, persistent, column, reserve)


def _kept(instance: Instance) -> set[TensorOf]:
    """The tensors, made by planned ops, that others read: not views of them."""
    reads, run_by = instance.prepared.reads, instance.run_by
    late = np.zeros(len(reads.producer), bool)
    late[reads.consumers.owners()[run_by[reads.consumers.ids] < 0]] = True
    late &= (run_by[reads.producer] >= 0) & (reads.output >= 0)
    pairs = zip(reads.producer[late].tolist(), reads.output[late].tolist(), strict=True)
    return {_base(instance.prepared.graph, key) for key in pairs}


def _going_back(instance: Instance, i: int) -> int:
    """What an op that is not planned holds while it runs, beside what is kept for it."""
    graph, rounded = instance.prepared.graph, instance.prepared.memory.rounded
    read = {_base(graph, key) for key in graph.reads[i] if instance.run_by[key[0]] < 0}
    sizes = [_own_bytes(graph, key) for key in read]
    sizes += [size for _, size in own_outputs(graph.ops[i])]
    return sum(map(rounded, (*sizes, graph.ops[i].workspace_bytes)))


def _base(graph: Graph, key: TensorOf) -> TensorOf:
    """The output that a tensor is a view of, else itself."""
    op, output = key
    view_of = graph.ops[op].outputs[output].view_of if output >= 0 else None
    return key if view_of is None else (op, view_of)


def _own_bytes(graph: Graph, key: TensorOf) -> int:
    """What a tensor adds at its producer: views and what parameter ops hand out are counted
    elsewhere.
    """
    return dict(own_outputs(graph.ops[key[0]])).get(key[1], 0)
