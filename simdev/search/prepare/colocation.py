"""Which ops go together: TensorFlow's colocation, Baechi's co-placement, forward ops with their
backward, and groups that are restored after a free placement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...ground.errors import InputError
from ...lowering.collective import is_collective
from ...nouns.graph import Graph, Op
from ...nouns.semantics import traits_of
from ...nouns.structure import Groups, declared, mates, regrouped
from ...nouns.taskgraph import Floats, Ints
from ..holding import persistent_bytes
from .grouped import Grouped


def colocate(graph: Graph) -> Grouped:
    """The groups that the graph itself declares, by ``colocate`` or by TensorFlow's classes in its
    attributes.
    """
    return Grouped.of(regrouped(graph, declared(graph)))


def coplace(graph: Graph) -> Grouped:
    """Co-placement: an op whose output has one consumer joins the group of that consumer.

    Starts from the declared groups (Jeon et al., SoCC 2020, section 3.1). What counts is how many
    ops read the op, not how many tensors they read; control inputs count too.
    What a collective over ranks reads stands on its rank, and does not join it. Backward and update
    ops that share a group with a forward op (``pair``, or so declared) follow it: the forward graph
    alone is co-placed then. Else the backward of one layer, read by the next alone, would weld all
    layers together.
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
    """Whether each op is a backward or update op in a group with a forward one, other than a leaf.

    An update that is only declared to stand with its parameter is matched with nothing.
    """
    led = {
        op.colocate
        for op in graph.ops
        if op.phase == "forward" and traits_of(op.kind).leaf is None and op.colocate is not None
    }
    return [op.phase != "forward" and op.colocate in led for op in graph.ops]


def pair(graph: Graph) -> Grouped:
    """Each backward or update op goes with its forward op (``mates``), parameters with what reads
    them first.

    That is the first forward op that does; the declared groups hold too.
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
    """The graph of the forward ops alone; the others go where their forward op goes (``mates``).

    What it is planned by covers the forward pass only (Jeon et al., SoCC 2020, section 3.1).
    Colocation groups hold: those of followers bind the ops that they follow. An op whose forward op
    cannot be told is planned too, and so are collectives over ranks and what they read, which
    stands on its rank. A graph in which nothing follows is left as it is.
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
    """The op without what it reads of ops that are not ``kept``."""
    return replace(
        op,
        inputs=tuple(text for text in op.inputs if graph.resolve(text)[0] in kept),
        control_inputs=tuple(
            name for name in op.control_inputs if graph.index[name.removeprefix("^")] in kept
        ),
    )


def _bound(graph: Graph, ops: Sequence[Op], members: Sequence[tuple[int, ...]]) -> tuple[Op, ...]:
    """The ops with colocation groups that hold for all that goes with each."""
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
"""The rules of Baechi's adjusters by name; of two devices alike the smaller."""


@dataclass(frozen=True)
class Adjusted(Grouped):
    """A graph without colocation groups, whose way back restores them.

    A group goes to the device that ``rule`` chooses: that of its first op (``first``), on which
    most of its ops stand (``frequent``), of its op with most memory or time (``memory``, ``time``),
    or on which the ops have most of either together (``memory-sum``, ``time-sum``). ``weights`` by
    op.
    """

    rule: str = "memory-sum"
    weights: tuple[float, ...] = ()

    def back(self, placement: Sequence[int] | Ints) -> Ints:
        """The placement of ``original``, its groups each on one device."""
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

    Memory is what an op keeps and what it works with, ``times`` is by op, in any unit. Raises
    InputError for a rule that is not there, and for one by time without ``times``.
    """
    if rule not in RULES:
        raise InputError(f'prepare: adjust: must be one of {", ".join(RULES)}, got "{rule}"')
    if times is None and rule.startswith("time"):
        raise InputError(f'prepare: adjust: "{rule}" needs the times of the ops')
    weights: Sequence[float] = [persistent_bytes(op) + op.workspace_bytes for op in graph.ops]
    if times is not None and rule.startswith("time"):
        weights = times
    original = regrouped(graph, declared(graph))
    free = Graph(graph.name, tuple(replace(op, colocate=None) for op in original.ops))
    runs = Grouped.of(graph).runs
    return Adjusted(free, original, runs, (), rule, tuple(map(float, weights)))
