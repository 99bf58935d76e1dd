"""Graph preparation: ops grouped or merged before they are placed, and the way back to single ops.

Each preparation is a function Graph -> Grouped. ``prepare`` applies several, each to the graph that
the previous one made; run.py calls it. PREPARATIONS is the only list of them, and methods.py names
the defaults of each method.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from ..ground.errors import InputError
from ..lowering.collective import is_collective
from ..nouns.graph import Graph, Op, Tensor
from ..nouns.semantics import traits_of
from ..nouns.structure import Groups, declared, mates, order_of, regrouped
from ..nouns.taskgraph import Floats, Ints
from .space import inner_peak, persistent_bytes

if TYPE_CHECKING:
    import networkx as nx

# Grouped: a graph made smaller for a placer, and the way back to the original.


@dataclass(frozen=True)
class Grouped:
    """A graph, each of whose ops stands for one or several ops of ``original``.

    ``runs[i]`` are the positions in ``original`` of the ops that op i of ``graph`` runs, in their
    order; ``follows[i]`` the positions of ops that go to its device but are not planned (backward
    ops, where only forward ops are placed). Each op of ``original`` occurs once. Ops of ``graph``
    with one ``colocate`` go to one device, as everywhere.
    """

    graph: Graph
    original: Graph
    runs: tuple[tuple[int, ...], ...]
    follows: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, graph: Graph) -> Grouped:
        """The graph as it is: each op stands for itself."""
        return cls(graph, graph, tuple((i,) for i in range(len(graph.ops))))

    @cached_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """The ops of ``original`` that go to the device of each op: ``runs``, then ``follows``."""
        if not self.follows:
            return self.runs
        return tuple(run + more for run, more in zip(self.runs, self.follows, strict=True))

    @cached_property
    def node_of(self) -> Ints:
        """The op of ``graph`` that stands for each op of ``original`` (in ``runs`` or
        ``follows``).
        """
        nodes = np.empty(len(self.original.ops), np.int64)
        for node, members in enumerate(self.members):
            nodes[list(members)] = node
        return nodes

    def back(self, placement: Sequence[int] | Ints) -> Ints:
        """The placement of ``original`` (device by op) that follows from a placement of
        ``graph``.
        """
        return np.asarray(placement, np.int64)[self.node_of]

    @cached_property
    def colocated(self) -> Graph:
        """``original`` with colocation groups that keep the ops of each op of ``graph``
        together.
        """
        ops = list(self.original.ops)
        for node, members in enumerate(self.members):
            group = self.graph.ops[node].colocate
            if group is None and len(members) > 1:
                group = self.graph.ops[node].name
            for i in members:
                ops[i] = replace(ops[i], colocate=group)
        return Graph(self.original.name, tuple(ops))

    def __repr__(self) -> str:
        return f"Grouped({len(self.graph.ops)} ops for {self.original!r})"


# Operator fusion: ops of one colocation group become one op, where that cannot close a cycle.


def fuse(graph: Graph) -> Grouped:
    """Fuse along the edges inside each colocation group, groups and edges first in, first out.

    The conservative rule (Jeon et al., SoCC 2020, section 3.1): the second op of an edge joins the
    first unless the first has several successors and the second several predecessors: then another
    path might join them, and a cycle close. The fused op has the position of its first op: times
    and persistent bytes add up, its workspace is the peak needed inside, its outputs are the
    tensors that other ops read.
    """
    import networkx as nx

    # Neighbours keep the order in which their edges were made: it decides which ops fuse first.
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
    """Merge the second op of an edge into the first; returns the new edges."""
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
        launches=_launches(members),
        blocks_host=any(op.blocks_host for op in members),
    )


def _launches(members: Sequence[Op]) -> int | None:
    """The sum of the kernels that the ops launch, 1 for an op without a number; None where no op
    has one.
    """
    if all(op.launches is None for op in members):
        return None
    return sum(1 if op.launches is None else op.launches for op in members)


def _sum_of(members: Sequence[Op], name: str) -> Fraction | Mapping[str, Fraction] | None:
    """The sum of the ops' times of this name, by kind of device where an op has its time by kind;
    None where an op has no time.
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


# Groups of ops: TensorFlow's colocation, Baechi's co-placement, forward ops with their backward,
# and groups that are restored after a free placement.


def colocate(graph: Graph) -> Grouped:
    """The groups that the graph itself declares, by ``colocate`` or by TensorFlow's classes in its
    attributes.
    """
    return Grouped.of(regrouped(graph, declared(graph)))


def coplace(graph: Graph) -> Grouped:
    """Co-placement: an op whose output has one consumer joins the group of that consumer.

    Starts from the declared groups (Jeon et al., SoCC 2020, section 3.1). A consumer is an op,
    however many tensors it reads; control inputs count too. An op that a collective over ranks
    reads does not join the collective: it stays on its own rank. Backward and update ops in a group
    with a forward op (``pair``, or declared) follow the forward op: then only the forward graph is
    co-placed. Otherwise the backward of one layer, read only by the next, would weld all layers
    together.
    """
    groups, follows = declared(graph), _following(graph)
    readers: list[set[int]] = [set() for _ in graph.ops]
    for reader, reads in enumerate(graph.reads):
        for producer, _ in reads if not follows[reader] else ():
            readers[producer].add(reader)
    for i, those in enumerate(readers):
        if len(those) == 1 and not follows[i]:
            (reader,) = those
            if not is_collective(graph.ops[reader]):
                groups.unite([(i, reader)])
    return Grouped.of(regrouped(graph, groups))


def _following(graph: Graph) -> list[bool]:
    """Whether each op is a backward or update op in a group with a forward op, other than a leaf.

    An update whose group has only its parameter follows no op.
    """
    led = {
        op.colocate
        for op in graph.ops
        if op.phase == "forward" and traits_of(op.kind).leaf is None and op.colocate is not None
    }
    return [op.phase != "forward" and op.colocate in led for op in graph.ops]


def pair(graph: Graph) -> Grouped:
    """Each backward or update op goes with its forward op (``mates``), each parameter with its
    first reader among the forward ops.

    The declared groups hold too.
    """
    groups = declared(graph)
    groups.unite((i, mate) for i, mate in enumerate(mates(graph)) if mate >= 0)
    reader_of: dict[int, int] = {}
    for reader, reads in enumerate(graph.reads):
        for producer, _ in reads if graph.ops[reader].phase == "forward" else ():
            if traits_of(graph.ops[producer].kind).leaf == "parameter":
                reader_of.setdefault(producer, reader)
    groups.unite(reader_of.items())
    return Grouped.of(regrouped(graph, groups))


def forward(graph: Graph) -> Grouped:
    """The graph of the forward ops alone; other ops go where their forward op goes (``mates``).

    So placers plan by the forward pass only (Jeon et al., SoCC 2020, section 3.1). Colocation
    groups hold: the groups of followers bind the ops that they follow. Three sorts of other ops are
    planned too: ops whose forward op is unknown, collectives over ranks, and the ops that these
    read, each of which is on its rank. A graph without followers is left as it is.
    """
    ranked = {i for i, op in enumerate(graph.ops) if is_collective(op)}
    ranked |= {producer for i in ranked for producer, _ in graph.reads[i]}
    lead = [i if mate < 0 or i in ranked else mate for i, mate in enumerate(mates(graph))]
    follows: dict[int, list[int]] = {i: [] for i, other in enumerate(lead) if other == i}
    if len(follows) == len(lead):
        return Grouped.of(graph)
    for i, other in enumerate(lead):
        if other != i:
            follows[other].append(i)
    ops = tuple(_without_inputs(graph, graph.ops[i], follows) for i in follows)
    members = [(i, *more) for i, more in follows.items()]
    bound = Graph(f"{graph.name}, forward", _bound(graph, ops, members))
    return Grouped(
        bound, graph, tuple((i,) for i in follows), tuple(tuple(more) for more in follows.values())
    )


def _without_inputs(graph: Graph, op: Op, kept: Mapping[int, object]) -> Op:
    """The op without inputs from ops that are not ``kept``."""
    return replace(
        op,
        inputs=tuple(text for text in op.inputs if graph.resolve(text)[0] in kept),
        control_inputs=tuple(
            name for name in op.control_inputs if graph.index[name.removeprefix("^")] in kept
        ),
    )


def _bound(graph: Graph, ops: Sequence[Op], members: Sequence[tuple[int, ...]]) -> tuple[Op, ...]:
    """The ops with colocation groups that also bind the ops that follow each of them
    (``members``).
    """
    groups, first = Groups(len(ops)), dict[str, int]()
    for node, together in enumerate(members):
        names = [graph.ops[i].colocate for i in together]
        groups.unite([(node, first.setdefault(name, node)) for name in names if name is not None])
    # Of the names of one group the first stays: the dict is filled from the last one on.
    name_of = {groups.find(node): name for name, node in reversed(first.items())}
    return tuple(replace(op, colocate=name_of.get(groups.find(i))) for i, op in enumerate(ops))


Choice = Callable[[Ints, Floats], int]
"""The device of a group, from the device and the weight of each of its ops."""


RULES: dict[str, Choice] = {
    "first": lambda devices, _: int(devices[0]),
    "frequent": lambda devices, _: int(np.bincount(devices).argmax()),
    "memory": lambda devices, weights: int(devices[weights.argmax()]),
    "memory-sum": lambda devices, weights: int(np.bincount(devices, weights).argmax()),
}
RULES |= {"time": RULES["memory"], "time-sum": RULES["memory-sum"]}
"""The rules of Baechi's adjusters by name; on a tie the device of the smaller index."""


@dataclass(frozen=True)
class Adjusted(Grouped):
    """A graph without colocation groups, whose ``back`` restores them.

    ``rule`` chooses the device of a group: the device of its first op (``first``), of most of its
    ops (``frequent``), of its op with most memory or time (``memory``, ``time``), or the device
    whose ops have most memory or time together (``memory-sum``, ``time-sum``). ``weights`` are by
    op.
    """

    rule: str = "memory-sum"
    weights: tuple[float, ...] = ()

    def back(self, placement: Sequence[int] | Ints) -> Ints:
        """The placement of ``original``, each of its groups on one device."""
        devices, weights = super().back(placement), np.array(self.weights, float)
        for group in self.original.groups.values():
            members = list(group)
            devices[members] = RULES[self.rule](devices[members], weights[members])
        return devices


def adjust(
    graph: Graph, rule: str = "memory-sum", times: Sequence[float] | None = None
) -> Adjusted:
    """Place freely, adjust afterwards (Jeon et al., SoCC 2020, section 3.1, by the rules of its
    code).

    Memory is an op's persistent bytes and workspace; ``times`` are by op, in any unit. Raises
    InputError for an unknown rule, and for a rule by time without ``times``.
    """
    if rule not in RULES:
        raise InputError(f'prepare: adjust: must be one of {", ".join(RULES)}, got "{rule}"')
    weights = times
    if not rule.startswith("time"):
        weights = [persistent_bytes(op) + op.workspace_bytes for op in graph.ops]
    if weights is None:
        raise InputError(f'prepare: adjust: "{rule}" needs the times of the ops')
    original = regrouped(graph, declared(graph))
    free = Graph(graph.name, tuple(replace(op, colocate=None) for op in original.ops))
    runs = Grouped.of(graph).runs
    return Adjusted(free, original, runs, (), rule, tuple(map(float, weights)))


PREPARATIONS: Mapping[str, Callable[[Graph], Grouped]] = {
    "colocate": colocate,
    "coplace": coplace,
    "pair": pair,
    "fuse": fuse,
    "forward": forward,
    "adjust": adjust,
}


def prepare(
    graph: Graph, names: Sequence[str] = (), times: Sequence[float] | None = None
) -> Grouped:
    """The graph after the named preparations, applied in this order.

    ``adjust`` can only be the last, and not after ``fuse`` or ``forward``. Its rule is named like
    ``adjust:time-sum`` (RULES; default ``memory-sum``); rules by time need ``times`` by op. Raises
    InputError for any other combination, and for a name that is not in PREPARATIONS.
    """
    unknown = [name for name in names if name.partition(":")[0] not in PREPARATIONS]
    unknown += [name for name in names if ":" in name and not name.startswith("adjust:")]
    if unknown:
        raise InputError(
            [f'prepare: must be of {", ".join(PREPARATIONS)}, got "{name}"' for name in unknown]
        )
    grouped = Grouped.of(graph)
    for name in names:
        if isinstance(grouped, Adjusted):
            raise InputError('prepare: "adjust" must be the last')
        kind, _, rule = name.partition(":")
        function = PREPARATIONS[kind]
        if kind == "adjust":
            function = partial(adjust, rule=rule or "memory-sum", times=times)
        grouped = _after(grouped, function(grouped.graph))
    return grouped


def _after(before: Grouped, then: Grouped) -> Grouped:
    """Two preparations in sequence as one Grouped.

    Where the first one kept the ops of the original, the second is already a preparation of the
    original.
    """
    if before.graph is before.original:
        return then
    if isinstance(then, Adjusted):
        raise InputError(
            'prepare: "adjust" places single ops; it follows neither "fuse" nor "forward"'
        )
    follows_of = before.follows or ((),) * len(before.runs)
    runs = tuple(tuple(i for node in run for i in before.runs[node]) for run in then.runs)
    rest = tuple(
        (
            *(i for node in run for i in follows_of[node]),
            *(i for node in more for i in before.members[node]),
        )
        for run, more in zip(then.runs, then.follows or ((),) * len(then.runs), strict=True)
    )
    return Grouped(then.graph, before.original, runs, rest if any(rest) else ())
