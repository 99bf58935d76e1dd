"""Everything that follows from the graph of a training step alone: conventions of names, orders,
weights with their gradients and updates, the forward op of each backward op (its *mate*),
colocation groups and layers. Cluster, strategy and costs play no part.

The passes of ``simdev/lowering/``, the searches of ``simdev/search/``, ``simdev/oracle/`` and
``simdev/nouns/strategy/placement.py`` read graphs by this module. Rules of names belong to the
first part: ``PREFIXES`` is written by models (``simdev/nouns/models/builder.py`` and
``backward.py``) and by captures (``simdev/measure/capture.py``, ``simdev/measure/traces/step.py``),
and read back by ``forward_name`` and ``scope_of``. ``simdev/nouns/semantics/`` says which kinds are
linear, parameters, layers or the backward of another kind. Only ``op_splits`` raises InputError.
Tests: ``tests/structure/test_structure.py``, ``tests/models/test_models_backward.py`` (mates of
built graphs).
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

# Names of ops as graphs of training steps write them: a prefix for the phase, a scope, and the step
# of an unrolled op. Only searches, mates and placements of blocks use names, where an op has no
# attribute that says more.

PREFIXES = {"forward": "", "backward": "grad/", "update": "update/"}
"""The prefix by phase of names that derive from the name of a forward op."""

_ROOTS = (*PREFIXES.values(), "gradients/")  # the last is TensorFlow's
# The step of an unrolled op may be inside a name: "lstm@3/matmul" is one of the ops of step 3.
_STEP = re.compile(r"@[0-9]+")


def forward_name(name: str) -> str:
    """The name without the prefix of its phase: "a/b" of "grad/a/b"."""
    for root in _ROOTS:
        name = name.removeprefix(root)
    return name


def scope_of(name: str) -> str:
    """The scope of an op, equal to its forward op's: "a/b" of "grad/a/b/matmul"."""
    return forward_name(name).rpartition("/")[0]


OUTSIDE = "loss"
"""The scope of ops that a training script computes outside of its modules."""
_RANK = re.compile(r"rank [0-9]+/")


def rank_module(name: str) -> str | None:
    """The module of an op of a rank: "layers/0/wq" of "rank 3/grad/layers/0/wq/matmul", "" for the
    whole model, OUTSIDE for ops outside of modules. None for an op without a rank.
    """
    rank = _RANK.match(name)
    return None if rank is None else scope_of(name[rank.end() :])


def is_of_ranks(graph: Graph) -> bool:
    """Whether a graph joins the ops of several ranks (captured, traced, or from Chakra)."""
    return bool(graph.ops) and rank_module(graph.ops[0].name) is not None


def module_pattern(module: str) -> re.Pattern[str]:
    """A pattern that the names of all ops of a module match, in every phase and step.

    "blocks.2" (or "blocks/2") gives a pattern of "blocks/2/linear", "grad/blocks/2/matmul" and
    "update/blocks/2/weight".
    """
    roots = "|".join(re.escape(root) for root in _ROOTS if root)
    steps = [re.escape(part) + f"(?:{_STEP.pattern})?" for part in re.split("[./]", module)]
    return re.compile(f"/?(?:{roots})*{'[./]'.join(steps)}[./]")


def part_of(name: str) -> str:
    """The number of the part in the name of a split op: "2" of "conv/conv2d#2"; else ""."""
    return name.rpartition("#")[2] if "#" in name else ""


def unrolled(name: str) -> str:
    """The name without the steps of unrolled ops: "lstm/matmul" of "lstm@3/matmul"."""
    return _STEP.sub("", name) if "@" in name else name


# Topological order: producers before their readers.

Rule = Literal["ready", "branch"]


def topological(
    before: Sequence[Collection[int]], rule: Rule | Sequence[Any] = "ready"
) -> list[int]:
    """The nodes 0, 1, .. in an order in which each comes after all nodes that are ``before`` it.

    ``before`` has no node twice in one collection. Where several nodes may be next, the rule
    chooses. ``ready``: the node that was ready first, of one moment the smallest number (Kahn, CACM
    1962). ``branch``: the node that was ready last, so that the order stays on a branch as long as
    it can. A sequence with a key for each node: the smallest key, then the smallest number. Nodes
    on a cycle and all nodes after them are left out.
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
    """For each of ``count`` nodes the nodes before it, from edges (before, after)."""
    before: list[set[int]] = [set() for _ in range(count)]
    for first, second in edges:
        before[second].add(first)
    return before


def order_of(graph: Graph, rule: Rule | Sequence[Any] = "ready") -> list[int]:
    """The ops of a graph in a topological order; ``rule`` as in ``topological``."""
    return topological([{producer for producer, _ in reads} for reads in graph.reads], rule)


def longest_behind(graph: Graph, lengths: Iterable[int]) -> list[int]:
    """The length of each op plus the longest path after it."""
    whole, longest = list(lengths), [0] * len(graph.ops)
    for op in reversed(order_of(graph)):
        length = whole[op] = whole[op] + longest[op]
        for producer, _ in graph.reads[op]:
            longest[producer] = max(longest[producer], length)
    return whole


def readers_of(graph: Graph) -> list[list[int]]:
    """The ops (positions) that read or wait for each op, each once, in program order."""
    readers: list[list[int]] = [[] for _ in graph.ops]
    for reader, reads in enumerate(graph.reads):
        for producer in {producer for producer, _ in reads}:
            readers[producer].append(reader)
    return readers


def components(count: int, edges: Iterable[tuple[int, int]]) -> list[int]:
    """The strongly connected component of each of ``count`` nodes, numbered in a topological order.

    Where the order leaves a choice, components come by their smallest node.
    """
    # Imported here, since it is slow: `import simdev` must stay fast.
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
    """An op of phase ``update`` that reads tensors.

    ``op`` is its position in the graph; ``parameters`` are the positions of the leaves that it
    writes, ``gradients`` the tensors that it reads beside them.
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
    """The weights of a graph, and the gradients of weights.

    A weight is the output of a parameter leaf, or a cast, copy or view of a weight. A gradient is a
    tensor that an update reads beside its weight, or an operand of a linear op (sum, copy, view,
    product with a number) that makes a gradient. The order of the ops in the graph plays no part.
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
    """For each update with operands, the parameters that it writes: the parameter leaves among its
    operands.
    """
    return {
        i: tuple(dict.fromkeys(p for p, _ in graph.reads[i] if _is_parameter(graph.ops[p])))
        for i, op in enumerate(graph.ops)
        if op.phase == "update" and op.inputs
    }


def hands_out_parameters(op: Op) -> bool:
    """Whether the output of an op is the memory of its parameters itself, so that output and
    parameters count once.
    """
    return _is_parameter(op) and op.param_bytes > 0


def addends_of(graph: Graph, weights: Weights, gradient: TensorOf) -> tuple[TensorOf, ...]:
    """The gradients that a gradient sums, copies or views; none where it is first made."""
    if not is_linear(graph.ops[gradient[0]]):
        return ()
    return tuple(tensor for tensor in _read(graph, gradient[0]) if tensor in weights.gradients)


def first_made(graph: Graph, weights: Weights, gradient: TensorOf) -> list[TensorOf]:
    """The first-made gradients that add up to a gradient; for such a gradient, itself."""
    parts, waiting = list[TensorOf](), [gradient]
    # No recursion: over a thousand steps of an unrolled layer, sums are a thousand deep.
    while waiting:
        tensor = waiting.pop()
        addends = addends_of(graph, weights, tensor)
        waiting += reversed(addends)
        if not addends:
            parts.append(tensor)
    return parts


def weight_of_gradients(graph: Graph, weights: Weights) -> Mapping[TensorOf, TensorOf]:
    """The weight of each gradient.

    A weight's gradients are the tensors read by its update, and their addends.
    """
    weight_of: dict[TensorOf, TensorOf] = {}
    for update in updates_of(graph, weights):
        read = (tensor for tensor in _read(graph, update.op) if tensor in weights.parameters)
        for weight in list(read)[:1]:
            waiting = list(update.gradients)
            while waiting:
                tensor = waiting.pop()
                # Where several updates share a gradient, it belongs to the weight of the last one.
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
    """For each op its forward op: itself for a forward op, NOBODY where it is unknown.

    The mate of another op is the first of these that there is: the op that its attribute
    ``forward`` names; the last forward op of its colocation group; the forward op with most
    evidence (``_Evidence``), which is never a leaf; the mate of one of its readers. A linear op
    that sums gradients of activations gets the last mate of the ops that make them: gradients that
    are summed where they are made are sent on once.
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
    # Readers come first, so that a chain of ops without evidence gets the mate of its end.
    for i in reversed(order):
        if mate_of[i] == NOBODY:
            mate_of[i] = max((mate_of[other] for other in readers[i]), default=NOBODY)
    return mate_of


class _Evidence:
    """Evidence for forward ops (candidates) as the mate of a backward or update op.

    Candidates are compared by these criteria, the first one deciding:

    - the candidate reads the weight of which the op makes the gradient;
    - the op's kind is the backward of the candidate's kind;
    - both have the same scope;
    - the number of tensors that both touch, plus one where the candidate is a neighbour
      (``_neighbours``), plus one where the op makes a shape that the candidate reads;
    - the candidate feeds the mate of one of the op's producers, rather than being such a mate;
    - the candidate's position in the graph, the last one winning.
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
        """The forward op with most evidence, NOBODY where there is no candidate.

        A sum of the gradients of several ops gets the last of their mates.
        """
        op, before, weights = self.graph.ops[i], self.before[i], self.weights.get(i, ())
        several = len(before) > 1 and not any(self.forward[p] for p in before)
        if several and not weights and is_linear(op):
            return max(mate_of[p] for p in before)  # a sum of several ops' gradients
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
        """For each forward op, how many of the tensors that op ``i`` reads it makes or reads."""
        return Counter(
            other
            for key in self.graph.reads[i]
            if self.forward[key[0]]
            for other in (key[0], *self.readers.get(key, ()))
            if not self.leaf[other]
        )

    def _neighbours(self, i: int, mate_of: Sequence[int]) -> dict[int, int]:
        """The number 1 for each mate of a producer of op ``i``, 2 for each op that feeds a mate."""
        producers = (p for p in self.before[i] if not self.forward[p])
        mates = [mate_of[p] for p in producers if mate_of[p] != NOBODY]
        near = dict.fromkeys(mates, 1)
        return near | {p: 2 for mate in mates for p in self.before[mate] if not self.leaf[p]}


# Colocation: ops that belong on one device, because the graph or TensorFlow's attributes say so, or
# because a caller united their sets.

# attributes that declare colocation in graphs exported from TensorFlow
DECLARED = ("_class", "colocation")
PREFIX = "loc:@"


class Groups:
    """Disjoint sets of numbers, each represented by its smallest."""

    def __init__(self, count: int) -> None:
        self._above = list(range(count))

    def find(self, number: int) -> int:
        """The smallest number in the set of a number."""
        above = self._above
        while above[number] != number:
            # Halving the path keeps the next search short (Tarjan, van Leeuwen, JACM 1984).
            above[number] = above[above[number]]
            number = above[number]
        return number

    def unite(self, pairs: Iterable[tuple[int, int]]) -> bool:
        """Unites the sets of each pair; returns whether anything changed."""
        changed = False
        for a, b in pairs:
            low, high = sorted((self.find(a), self.find(b)))
            changed |= low != high
            self._above[high] = low
        return changed

    def roots(self) -> list[int]:
        """For each number the smallest of its set."""
        return [self.find(number) for number in range(len(self._above))]


def units(graph: Graph) -> tuple[tuple[int, ...], ...]:
    """The units of placement, in the order of their first ops, as positions of ops.

    A unit is a colocation group, or one op without a group.
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
    """The sets of ops that the graph wants on one device.

    Ops of a set have the same ``colocate``, or the same class in TensorFlow's attributes
    (DECLARED). Classes that one op declares together are one set; ``loc:@name`` also means the op
    of that name.
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
        # The first name met would depend on the order of ops where several groups become one.
        group = min(names[root], key=lambda name: (len(name), name), default=None)
        if group is None and sizes[root] > 1:
            group = graph.ops[root].name
        ops.append(op if op.colocate == group else replace(op, colocate=group))
    return Graph(graph.name, tuple(ops))


# Layers of the forward pass, in the two senses that papers give the word. Backward ops belong to
# the layers of their mates.


def layers_by_weight(graph: Graph, weights: Weights, ops: Iterable[int]) -> list[list[int]]:
    """The layers of ops in program order, as model parallelism cuts them over devices.

    A layer begins with an op that reads a weight; an op that reads none belongs to the layer before
    it. The steps of an unrolled op are in one layer.
    """
    # All steps of an unrolled op read one weight; separately, each would begin a layer.
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

    An op begins a layer where its kind has the trait ``layer``, where it only moves data of several
    layers together (a concatenation), where it reads no layer, or where ``alone`` says so; all of
    its unrolled steps share the layer. Any other op joins the first layer that it reads. ``ops``
    come producers first; ``touched`` are for each op the tensors whose values it needs, not only
    their shapes.
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
    """The layers that an op reads, each once, in the order of its operands."""
    read = (layer_of[producer] for producer, _ in touched)
    return list(dict.fromkeys(layer for layer in read if layer >= 0))


def is_layer(graph: Graph, i: int, before: Sequence[int]) -> bool:
    """Whether an op that reads these layers is a layer itself, such as their concatenation."""
    kind = graph.ops[i].kind
    joins = op_class(kind) == "data_movement" and len(before) > 1
    return bool(traits_of(kind).layer) or joins
