"""Everything that follows from the graph of a training step alone: conventions of names, orders,
weights with their gradients and updates, the forward op of each backward op (its mate), colocation
groups and layers. Cluster, strategy and costs play no part.

Lowering, searches, the oracle and captures of PyTorch share it. A rule of names belongs to the
first part alone: ``PREFIXES`` is written by models (``simdev/nouns/models/builder.py``) and by
captures (``simdev/measure``), and read back by ``forward_name`` and ``scope_of``.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import Any, Literal

from .graph import Graph, Op
from .semantics import (
    Split,
    backward_of,
    is_linear,
    op_class,
    op_semantics,
    splits,
    traits_of,
)

# Names of ops as graphs of training steps write them: the phase before, the scope, the step of an
# unrolled op. Nothing but searches, mates and placements of blocks reads them, where an op says
# nothing better.

PREFIXES = {"forward": "", "backward": "grad/", "update": "update/"}
"""By phase the prefix of the names that derive from the name of a forward op."""

_ROOTS = (*PREFIXES.values(), "gradients/")  # the last is TensorFlow's
# A step may be told inside of a name, too: "lstm@3/matmul" is one of the ops of a step.
_STEP = re.compile(r"@[0-9]+")


def forward_name(name: str) -> str:
    """The name without what tells its phase: "a/b" of "grad/a/b"."""
    for root in _ROOTS:
        name = name.removeprefix(root)
    return name


def scope_of(name: str) -> str:
    """The path of an op's scope, that of its forward op: "a/b" of "grad/a/b/matmul"."""
    return forward_name(name).rpartition("/")[0]


def module_pattern(module: str) -> re.Pattern[str]:
    """A pattern of the names of all ops of a module, of every phase and step: those of "blocks.2"
    (or "blocks/2") are "blocks/2/linear", "grad/blocks/2/matmul" and "update/blocks/2/weight".
    """
    roots = "|".join(re.escape(root) for root in _ROOTS if root)
    steps = [re.escape(part) + f"(?:{_STEP.pattern})?" for part in re.split("[./]", module)]
    return re.compile(f"/?(?:{roots})*{'[./]'.join(steps)}[./]")


def part_of(name: str) -> str:
    """Which part of a split op it is: "2" of "conv/conv2d#2", "" of an op that is whole."""
    return name.rpartition("#")[2] if "#" in name else ""


def unrolled(name: str) -> str:
    """The name without the steps of unrolled ops: "lstm/matmul" of "lstm@3/matmul"."""
    return _STEP.sub("", name) if "@" in name else name


# Topological order: producers before what reads them.

Rule = Literal["ready", "branch"]


def topological(
    before: Sequence[Collection[int]], rule: Rule | Sequence[Any] = "ready"
) -> list[int]:
    """The nodes 0, 1, .. in an order in which each comes after those ``before`` it (distinct ones).

    Where several nodes may be next, the rule chooses. ``ready``: first come, first served, of one
    moment by number (Kahn, CACM 1962). ``branch``: last come, first served, so that the order stays
    on a branch as long as it can. A sequence of keys, one a node: the smallest key, then the
    smallest number. Nodes on a cycle, and all that comes after them, are left out.
    """
    waiting = [len(nodes) for nodes in before]
    after: list[list[int]] = [[] for _ in before]
    for node, nodes in enumerate(before):
        for other in nodes:
            after[other].append(node)
    sign = {"ready": 1, "branch": -1}[rule] if isinstance(rule, str) else 0
    keys = [0] * len(before) if isinstance(rule, str) else rule
    frontier, order = [(keys[node], node) for node, count in enumerate(waiting) if not count], []
    heapify(frontier)
    while frontier:
        order.append(heappop(frontier)[1])
        for other in after[order[-1]]:
            waiting[other] -= 1
            if not waiting[other]:
                heappush(frontier, (sign * len(order) or keys[other], other))
    return order


def before_of(count: int, edges: Iterable[tuple[int, int]]) -> list[set[int]]:
    """For each of ``count`` nodes those before it, from edges (before, after)."""
    before: list[set[int]] = [set() for _ in range(count)]
    for first, second in edges:
        before[second].add(first)
    return before


def order_of(graph: Graph, rule: Rule | Sequence[Any] = "ready") -> list[int]:
    """The ops of a graph, producers and ops that are waited for first (``topological``)."""
    return topological([{producer for producer, _ in reads} for reads in graph.reads], rule)


def longest_behind(graph: Graph, lengths: Iterable[int]) -> list[int]:
    """By op its length plus the longest path after it."""
    whole, longest = list(lengths), [0] * len(graph.ops)
    for op in reversed(order_of(graph)):
        length = whole[op] = whole[op] + longest[op]
        for producer, _ in graph.reads[op]:
            longest[producer] = max(longest[producer], length)
    return whole


def readers_of(graph: Graph) -> list[list[int]]:
    """By op (position) those that read or wait for it, each once, in program order."""
    readers: list[list[int]] = [[] for _ in graph.ops]
    for reader, reads in enumerate(graph.reads):
        for producer in {producer for producer, _ in reads}:
            readers[producer].append(reader)
    return readers


def components(count: int, edges: Iterable[tuple[int, int]]) -> list[int]:
    """The strongly connected component of each of ``count`` nodes, numbered in a topological order.

    Where the order leaves a choice, components come by their smallest node.
    """
    # Loaded where it is used, for it takes long: `import simdev` must stay fast.
    import networkx as nx

    graph: nx.DiGraph[int] = nx.DiGraph(edges)
    graph.add_nodes_from(range(count))
    condensed = nx.condensation(graph)
    members = [condensed.nodes[block]["members"] for block in range(len(condensed))]
    order = topological(before_of(len(members), condensed.edges), list(map(min, members)))
    number = {node: place for place, block in enumerate(order) for node in members[block]}
    return [number[node] for node in range(count)]


# Weights, their gradients and their updates.

TensorOf = tuple[int, int]
"""A tensor of a graph: position of its op, index of the output."""


@dataclass(frozen=True, slots=True)
class Update:
    """An op of phase ``update`` that reads tensors: the parameters that it writes, the gradients
    that it reads.

    ``op`` and ``parameters`` are positions in the graph, the latter of leaves.
    """

    op: int
    parameters: tuple[int, ...]
    gradients: tuple[TensorOf, ...]


@dataclass(frozen=True, slots=True)
class Weights:
    """The tensors of a graph that are weights (parameters, their casts and views), and the tensors
    that are gradients of weights.
    """

    parameters: frozenset[TensorOf]
    gradients: frozenset[TensorOf]


def weights_of(graph: Graph) -> Weights:
    """Which tensors of a graph are weights and gradients of weights, in whatever order its ops are
    listed.

    A weight is the output of a parameter leaf, or a cast or move of it. A gradient is a tensor that
    an update reads besides its weight, or an input of a linear op (sum, copy, view, product with a
    number) that makes a gradient.
    """
    # A cast of a weight is a weight: mixed precision computes with such copies.
    moved: dict[TensorOf, list[int]] = {}
    for i, op in enumerate(graph.ops):
        if len(op.inputs) == 1 and op_class(op.kind) == "data_movement":
            moved.setdefault(graph.resolve(op.inputs[0]), []).append(i)
    parameters, gradients = set[TensorOf](), set[TensorOf]()
    sources = [i for i, op in enumerate(graph.ops) if _is_parameter(op)]
    while sources:
        i = sources.pop()
        made = {(i, k) for k in range(len(graph.ops[i].outputs))} - parameters
        parameters |= made
        sources += [reader for tensor in made for reader in moved.get(tensor, ())]
    read = {tensor for i in updated(graph) for tensor in _read(graph, i)}
    waiting = list(read - parameters)
    while waiting:
        tensor = waiting.pop()
        if tensor not in gradients:
            gradients.add(tensor)
            waiting += _read(graph, tensor[0]) if is_linear(graph.ops[tensor[0]]) else ()
    return Weights(frozenset(parameters), frozenset(gradients))


def _is_parameter(op: Op) -> bool:
    return traits_of(op.kind).leaf == "parameter"


def _read(graph: Graph, position: int) -> list[TensorOf]:
    return list(map(graph.resolve, graph.ops[position].inputs))


def updates_of(graph: Graph, weights: Weights) -> tuple[Update, ...]:
    """The updates that read tensors, in program order."""
    return tuple(
        Update(i, parameters, tuple(t for t in graph.reads[i] if t in weights.gradients))
        for i, parameters in updated(graph).items()
    )


def updated(graph: Graph) -> dict[int, tuple[int, ...]]:
    """For each update that reads tensors the parameters that it writes: the leaves among its
    operands.
    """
    return {
        i: tuple(dict.fromkeys(p for p, _ in graph.reads[i] if _is_parameter(graph.ops[p])))
        for i, op in enumerate(graph.ops)
        if op.phase == "update" and op.inputs
    }


def hands_out_parameters(op: Op) -> bool:
    """Whether the output of an op is the memory of the parameters that it owns, so that these bytes
    count once.
    """
    return _is_parameter(op) and op.param_bytes > 0


def addends_of(graph: Graph, weights: Weights, gradient: TensorOf) -> tuple[TensorOf, ...]:
    """The gradients that a gradient is the sum of (or a copy, a view, ..); none where it is first
    made.
    """
    if not is_linear(graph.ops[gradient[0]]):
        return ()
    return tuple(tensor for tensor in _read(graph, gradient[0]) if tensor in weights.gradients)


def first_made(graph: Graph, weights: Weights, gradient: TensorOf) -> list[TensorOf]:
    """The gradients that add up to one, where they are first made; itself where it is no sum."""
    parts, waiting = list[TensorOf](), [gradient]
    # No recursion: over a thousand steps of an unrolled layer sums are a thousand deep.
    while waiting:
        tensor = waiting.pop()
        addends = addends_of(graph, weights, tensor)
        waiting += reversed(addends)
        if not addends:
            parts.append(tensor)
    return parts


def weight_of_gradients(graph: Graph, weights: Weights) -> Mapping[TensorOf, TensorOf]:
    """By gradient the weight that it belongs to: what an update reads with its parameter, and what
    adds up to it.
    """
    weight_of: dict[TensorOf, TensorOf] = {}
    for update in updates_of(graph, weights):
        read = (tensor for tensor in _read(graph, update.op) if tensor in weights.parameters)
        for weight in list(read)[:1]:
            waiting = list(update.gradients)
            while waiting:
                tensor = waiting.pop()
                # The weight of the last update stays, where several share a gradient.
                if weight_of.get(tensor) != weight:
                    weight_of[tensor] = weight
                    waiting += addends_of(graph, weights, tensor)
    return weight_of


def op_splits(graph: Graph, position: int, weights: Weights) -> tuple[Split, ...]:
    """The axes along which one op of a graph may be split, in SOAP's words.

    Raises InputError that names the op.
    """

    def trained(tensor: TensorOf) -> bool:
        return tensor in weights.parameters or tensor in weights.gradients

    read = [i for i, tensor in enumerate(_read(graph, position)) if trained(tensor)]
    outputs = range(len(graph.ops[position].outputs))
    made = [i for i in outputs if trained((position, i))]
    return splits(op_semantics(graph, position), read, made)


# Mates: the forward op that a backward or update op belongs to.

NOBODY = -1
"""The mate of an op that has none."""


def mates(graph: Graph) -> list[int]:
    """For each op its forward op: itself for a forward op, -1 where none can be told.

    In this order: the attribute ``forward`` (a name); the last forward op of its colocation group;
    the forward op, no leaf, with most evidence (``_Evidence.best``). A linear op that sums
    gradients of activations gets the last mate of the ops that make these: summed where they are
    made, they are sent on once. An op without evidence gets the mate of a reader.
    """
    evidence = _Evidence(graph)
    mate_of = [i if op.phase == "forward" else NOBODY for i, op in enumerate(graph.ops)]
    order, readers = order_of(graph), readers_of(graph)
    for i in order:
        op = graph.ops[i]
        if op.phase == "forward":
            continue
        group = () if op.colocate is None else graph.groups[op.colocate]
        grouped = [member for member in group if evidence.forward[member]]
        named = graph.index.get(str(op.attrs.get("forward", "")), NOBODY)
        if named != NOBODY and evidence.forward[named]:
            mate_of[i] = named
        else:
            mate_of[i] = grouped[-1] if grouped else evidence.best(i, mate_of)
    # Readers first, so that a mate passes backwards through a chain of ops.
    for i in reversed(order):
        if mate_of[i] == NOBODY:
            mate_of[i] = max((mate_of[other] for other in readers[i]), default=NOBODY)
    return mate_of


class _Evidence:
    """Evidence for a forward op as the mate of a backward or update op.

    Candidates are compared by these, in this order:

    - it reads the weight of which the op makes the gradient;
    - the op's kind is the backward of its kind;
    - both have one scope;
    - the number of tensors that both touch, one more where the gradient comes from the mate of a
      neighbour, and one more where a shape matches;
    - it feeds the mate of a producer, rather than being one;
    - the later place.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.forward = [op.phase == "forward" for op in graph.ops]
        self.leaf = [traits_of(op.kind).leaf is not None for op in graph.ops]
        self.before = [sorted({producer for producer, _ in reads}) for reads in graph.reads]
        self.shapes = [{tensor.shape for tensor in read} for read in graph.operands]
        self.readers: dict[TensorOf, list[int]] = defaultdict(list)  # forward ops by tensor
        for i, reads in enumerate(graph.reads):
            for key in reads if self.forward[i] else ():
                self.readers[key].append(i)
        self.weights: dict[int, list[TensorOf]] = defaultdict(list)  # by op that makes gradients
        for gradient, weight in weight_of_gradients(graph, weights_of(graph)).items():
            self.weights[gradient[0]].append(weight)

    def best(self, i: int, mate_of: Sequence[int]) -> int:
        """The forward op for which most speaks, -1 where nothing speaks for any.

        A sum of several ops' gradients goes with the last of their mates.
        """
        op, before, weights = self.graph.ops[i], self.before[i], self.weights.get(i, ())
        several = len(before) > 1 and not any(self.forward[p] for p in before)
        if several and not weights and is_linear(op):
            return max(mate_of[p] for p in before)  # it adds up gradients of what several ops read
        shared, near = self._shared(i), self._neighbours(i, mate_of)
        makes = {reader for weight in weights for reader in self.readers.get(weight, ())}
        kind, scope, made = backward_of(op.kind), scope_of(op.name), {t.shape for t in op.outputs}

        def speaks(other: int) -> tuple[int, ...]:
            candidate, handed = self.graph.ops[other], near.get(other, 0)
            fits = not made.isdisjoint(self.shapes[other])
            touched = shared[other] + bool(handed) + fits
            here = bool(scope) and scope_of(candidate.name) == scope
            return other in makes, candidate.kind == kind, here, touched, handed, other

        return max(shared.keys() | near.keys() | makes, key=speaks, default=NOBODY)

    def _shared(self, i: int) -> Counter[int]:
        """By forward op how many tensors it makes or reads that op ``i`` reads, too."""
        return Counter(
            other
            for key in self.graph.reads[i]
            if self.forward[key[0]]
            for other in (key[0], *self.readers.get(key, ()))
            if not self.leaf[other]
        )

    def _neighbours(self, i: int, mate_of: Sequence[int]) -> dict[int, int]:
        """1: the mates of ops whose gradients op ``i`` reads; 2: forward ops that feed these."""
        producers = (p for p in self.before[i] if not self.forward[p])
        mates = [mate_of[p] for p in producers if mate_of[p] != NOBODY]
        near = dict.fromkeys(mates, 1)
        return near | {p: 2 for mate in mates for p in self.before[mate] if not self.leaf[p]}


# Colocation: ops that belong on one device, as a graph says it, as TensorFlow declares it, and as
# sets united.

# attributes in which graphs exported from TensorFlow declare it
DECLARED = ("_class", "colocation")
PREFIX = "loc:@"


class Groups:
    """Disjoint sets of numbers, each represented by its smallest."""

    def __init__(self, count: int) -> None:
        self._above = list(range(count))

    def find(self, number: int) -> int:
        """The smallest of its set."""
        above = self._above
        while above[number] != number:
            # Halving the path keeps the next search short (Tarjan, van Leeuwen, JACM 1984).
            above[number] = above[above[number]]
            number = above[number]
        return number

    def unite(self, pairs: Iterable[tuple[int, int]]) -> bool:
        """Unite the sets of each pair; whether anything changed."""
        changed = False
        for a, b in pairs:
            low, high = sorted((self.find(a), self.find(b)))
            changed |= low != high
            self._above[high] = low
        return changed

    def roots(self) -> list[int]:
        """The set of each number."""
        return [self.find(number) for number in range(len(self._above))]


def units(graph: Graph) -> tuple[tuple[int, ...], ...]:
    """The units of placement: positions of the ops of each colocation group, and of each op without
    one.

    In the order of their first op.
    """
    groups = graph.groups
    sets = ((i,) if op.colocate is None else groups[op.colocate] for i, op in enumerate(graph.ops))
    return tuple(dict.fromkeys(sets))


def unit_of(graph: Graph) -> list[int]:
    """The number of each op's unit (``units``)."""
    numbers = [0] * len(graph.ops)
    for number, members in enumerate(units(graph)):
        for i in members:
            numbers[i] = number
    return numbers


def declared(graph: Graph) -> Groups:
    """The sets that the graph demands: equal ``colocate``, and TensorFlow's classes in attributes
    (``_class``).

    An op may declare several classes, which are then one set; ``loc:@name`` also means the op of
    that name.
    """
    first: dict[str, int] = {}
    groups = Groups(len(graph.ops))
    for i, op in enumerate(graph.ops):
        names = [] if op.colocate is None else [op.colocate]
        for key in DECLARED:
            classes = op.attrs.get(key, ())
            texts = [classes] if isinstance(classes, str) else classes
            names += (text for text in texts if isinstance(text, str))
        groups.unite((i, first.setdefault(name, i)) for name in names)
        meant = (name[len(PREFIX) :] for name in names if name.startswith(PREFIX))
        groups.unite((i, graph.index[name]) for name in meant if name in graph.index)
    return groups


def regrouped(graph: Graph, groups: Groups) -> Graph:
    """The graph with these sets as colocation groups.

    A set of several ops is named by the shortest, then alphabetically first of its groups' names,
    else by its first op.
    """
    roots, names = groups.roots(), defaultdict[int, set[str]](set)
    sizes = Counter(roots)
    for root, op in zip(roots, graph.ops, strict=True):
        if op.colocate is not None:
            names[root].add(op.colocate)
    ops = []
    for root, op in zip(roots, graph.ops, strict=True):
        # Not the first name met: the order of ops would decide where several groups become one.
        group = min(names[root], key=lambda name: (len(name), name), default=None)
        if group is None and sizes[root] > 1:
            group = graph.ops[root].name
        ops.append(op if op.colocate == group else replace(op, colocate=group))
    return Graph(graph.name, tuple(ops))


# Layers of the forward pass, in the two senses that papers give the word; the backward goes with
# its mates.


def layers_by_weight(graph: Graph, weights: Weights, ops: Iterable[int]) -> list[list[int]]:
    """Runs of ops, in program order, as model parallelism cuts them over devices.

    A layer begins with an op that reads a weight; what reads none belongs to the layer before it.
    The steps of an unrolled op are one.
    """
    # All steps of an unrolled op read one weight: apart, each would begin a layer.
    steps: dict[str, list[int]] = {}
    for i in ops:
        steps.setdefault(unrolled(graph.ops[i].name), []).append(i)
    layers: list[list[int]] = []
    for members in steps.values():
        if not layers or any(key in weights.parameters for i in members for key in graph.reads[i]):
            layers.append([])
        layers[-1] += members
    return layers


def layers_by_kind(
    graph: Graph,
    ops: Iterable[int],
    touched: Sequence[Sequence[TensorOf]],
    alone: Callable[[int], bool],
) -> list[int]:
    """The number of each op's layer (-1: not among ``ops``), as OptCNN and FlexFlow configure them.

    An op begins a layer where its kind has the trait ``layer``, where it joins several layers, or
    where it is ``alone``; all of its unrolled steps share the layer. Any other op joins the first
    layer that it reads. ``ops`` come producers first; ``touched`` are the tensors of which each op
    needs values and not only shapes.
    """
    layer_of, names = [-1] * len(graph.ops), dict[str, int]()
    for i in ops:
        before = layers_read(touched[i], layer_of)
        if before and not (alone(i) or is_layer(graph, i, before)):
            layer_of[i] = before[0]
        else:
            # By name: the steps of an unrolled layer are configured together.
            layer_of[i] = names.setdefault(unrolled(graph.ops[i].name), len(names))
    return layer_of


def layers_read(touched: Iterable[TensorOf], layer_of: Sequence[int]) -> list[int]:
    """The layers of which an op reads something, each once, in the order of its operands."""
    read = (layer_of[producer] for producer, _ in touched)
    return list(dict.fromkeys(layer for layer in read if layer >= 0))


def is_layer(graph: Graph, i: int, before: Sequence[int]) -> bool:
    """Whether an op that reads these layers is one by itself, or joins them."""
    kind = graph.ops[i].kind
    joins = op_class(kind) == "data_movement" and len(before) > 1
    return bool(traits_of(kind).layer) or joins
