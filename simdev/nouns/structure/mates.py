"""Mates: which forward op a backward or update op belongs to."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from ..graph import Graph
from ..semantics import backward_of, is_linear, traits_of
from .names import scope_of
from .order import order_of, readers_of
from .weights import TensorOf, weight_of_gradients, weights_of

NOBODY = -1


def mates(graph: Graph) -> list[int]:
    """For each op its forward op: itself for a forward op, -1 where none can be told.

    Told by the attribute ``forward`` (a name) or by a colocation group that holds forward ops (the
    last of them); else the forward op, no leaf, for which most speaks (``_Evidence``). What adds up
    gradients that are no weight's goes with the last of the mates of those who make them: added up
    where they are made, they are sent on once. An op for which nothing speaks goes with a reader.
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
    # Readers first, so that a mate is handed back over several ops.
    for i in reversed(order):
        if mate_of[i] == NOBODY:
            mate_of[i] = max((mate_of[other] for other in readers[i]), default=NOBODY)
    return mate_of


class _Evidence:
    """What speaks for a forward op as the mate of a backward or update op.

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
