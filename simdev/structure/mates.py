"""Mates: which forward op a backward or update op belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..graph import Graph
from ..semantics import backward_of, is_linear, traits_of
from .names import scope_of
from .order import order_of, readers_of
from .weights import TensorOf, weight_of_gradients, weights_of

Evidence = tuple[bool, bool, bool, int, int, int]


def mates(graph: Graph) -> list[int]:
    """For each op its forward op: itself for a forward op, -1 where none can be told.

    Told by the attribute ``forward`` (a name) or by a colocation group that holds forward ops (the
    last of them); else the forward op, no leaf, for which most speaks (``_Evidence``). What adds up
    gradients that are no weight's goes with the last of the mates of those who make them: added up
    where they are made, they are sent on once. An op for which nothing speaks goes with a reader.
    """
    evidence = _Evidence(graph)
    grouped = {
        name: [i for i in members if evidence.forward[i]] for name, members in graph.groups.items()
    }
    mate_of = [i if is_forward else -1 for i, is_forward in enumerate(evidence.forward)]
    order = order_of(graph)
    for i in order:
        op = graph.ops[i]
        if evidence.forward[i]:
            continue
        named = graph.index.get(str(op.attrs.get("forward", "")), -1)
        if named >= 0 and evidence.forward[named]:
            mate_of[i] = named
        elif op.colocate is not None and grouped[op.colocate]:
            mate_of[i] = grouped[op.colocate][-1]
        else:
            mate_of[i] = evidence.best(i, mate_of)
    _give_back(graph, mate_of, reversed(order))
    return mate_of


class _Evidence:
    """What speaks for a forward op as the mate of an op that goes back.

    First that it reads a weight of which the op makes the gradient, then that the op's kind is the
    backward of its kind, then that both have one scope, then how many tensors both touch (and
    whether the gradient comes from where it would, and has the shape of something it reads), then
    that it feeds the mates of those who hand the gradient on, rather than being one of them; of two
    alike the later.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.forward = [op.phase == "forward" for op in graph.ops]
        self.leaf = [traits_of(op.kind).leaf is not None for op in graph.ops]
        self.before = [sorted({producer for producer, _ in reads}) for reads in graph.reads]
        self.readers = self._forward_readers()
        self.shapes = [{tensor.shape for tensor in read} for read in graph.operands]
        self.weights: dict[int, list[TensorOf]] = {}
        for gradient, weight in weight_of_gradients(graph, weights_of(graph)).items():
            self.weights.setdefault(gradient[0], []).append(weight)

    def best(self, i: int, mate_of: Sequence[int]) -> int:
        """The forward op for which most speaks, -1 where nothing speaks for any."""
        if self._adds_up(i):
            return max(mate_of[p] for p in self.before[i])
        shared, hands = self._shared(i), self._neighbours(i, mate_of)
        makes = {o for weight in self.weights.get(i, ()) for o in self.readers.get(weight, ())}
        op = self.graph.ops[i]
        kind, scope, made = backward_of(op.kind), scope_of(op.name), {t.shape for t in op.outputs}

        def speaks(other: int) -> Evidence:
            candidate, near = self.graph.ops[other], hands.get(other, 0)
            fits = not made.isdisjoint(self.shapes[other])
            touched = shared.get(other, 0) + bool(near) + fits
            here = bool(scope) and scope_of(candidate.name) == scope
            return other in makes, candidate.kind == kind, here, touched, near, other

        return max(shared.keys() | hands.keys() | makes, key=speaks, default=-1)

    def _adds_up(self, i: int) -> bool:
        """Whether an op does nothing but add up gradients of what several forward ops read."""
        several = len(self.before[i]) > 1 and not any(self.forward[p] for p in self.before[i])
        return several and is_linear(self.graph.ops[i]) and i not in self.weights

    def _forward_readers(self) -> Mapping[TensorOf, list[int]]:
        readers: dict[TensorOf, list[int]] = {}
        for i, reads in enumerate(self.graph.reads):
            for key in reads if self.forward[i] else ():
                readers.setdefault(key, []).append(i)
        return readers

    def _shared(self, i: int) -> dict[int, int]:
        """By forward op how many tensors it makes or reads that op ``i`` reads, too."""
        count: dict[int, int] = {}
        for key in self.graph.reads[i]:
            if self.forward[key[0]]:
                for other in (key[0], *self.readers.get(key, ())):
                    if not self.leaf[other]:
                        count[other] = count.get(other, 0) + 1
        return count

    def _neighbours(self, i: int, mate_of: Sequence[int]) -> dict[int, int]:
        """1: the mates of ops whose gradients op ``i`` reads; 2: the forward ops that feed
        these.
        """
        mates = [mate_of[p] for p in self.before[i] if not self.forward[p] and mate_of[p] >= 0]
        near = dict.fromkeys(mates, 1)
        return near | {p: 2 for mate in mates for p in self.before[mate] if not self.leaf[p]}


def _give_back(graph: Graph, mate_of: list[int], order: Iterable[int]) -> None:
    """Give ops without a mate that of an op that reads them."""
    readers = readers_of(graph)
    for i in order:
        if mate_of[i] < 0:
            mate_of[i] = max((mate_of[other] for other in readers[i]), default=-1)
