"""OptCNN's cost tables (Jia et al., ICML 2018, section 4): what each configuration of a layer
costs, and each pair.

- ``t_C``: the time of a layer's ops, forward and backward, on its busiest device: parts are equal,
  so that of the first part, of its own shape, on the slowest of the devices used.
- ``t_S``: the time to synchronise the gradients of its weights, under the ``sync`` of the strategy.
- ``t_X``: the time to move what one layer makes to where another reads it, and the same bytes back
  for the gradients: the most that any queue of the cluster (a link, a port) has to carry.

Nothing overlaps in this model, and no two layers run at once; updates are left out. Part p of a
layer runs on the p-th device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf, prod

import numpy as np

from ...costs import PHASE_CODES, profile_key
from ...graph import Tensor
from ...lowering import Prepared
from ...lowering.partition.geometry import Box, Reading, part
from ...semantics import effects_of, executed, operand_dtypes
from ...structure import TensorOf, first_made, updates_of
from ..elimination import Floats, Term
from .layers import Degrees, Layer, Layers
from .spread import Boxes, Cut, Spread, first_box, made_boxes, read_boxes, spreads
from .wires import Wires

LAYOUT = ("in", "dt", "strides")
Plan = tuple[dict[int, Spread], dict[TensorOf, Cut]]
MOST = 2_000_000  # overlaps that are computed at once


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """Seconds over the ``choices`` of each layer: ``compute`` (t_C) and ``sync`` (t_S).

    ``move`` (t_X) is over those of two layers, the earlier first.
    """

    choices: tuple[tuple[Degrees, ...], ...]
    compute: tuple[Floats, ...]
    sync: tuple[Floats, ...]
    move: Mapping[tuple[int, int], Floats]

    @property
    def terms(self) -> list[Term]:
        """All of them, for elimination."""
        alone = [
            Term((i,), c + s) for i, (c, s) in enumerate(zip(self.compute, self.sync, strict=True))
        ]
        loops = [Term((a,), table.diagonal()) for (a, b), table in self.move.items() if a == b]
        return (
            alone
            + loops
            + [Term(pair, table) for pair, table in self.move.items() if pair[0] != pair[1]]
        )


def tables_of(layers: Layers, prepared: Prepared, sync: str) -> Tables:
    """The tables of every layer, over ``layers.degrees`` of each."""
    builder = _Builder(layers, prepared, sync)
    return Tables(builder.choices, builder.compute(), builder.synced(), builder.moves())


class _Builder:
    def __init__(self, layers: Layers, prepared: Prepared, sync: str) -> None:
        self.layers, self.prepared, self.sync = layers, prepared, sync
        self.question, self.graph = layers.question, layers.graph
        self.dtypes = [operand_dtypes(self.graph, i) for i in range(len(self.graph.ops))]
        self.choices = tuple(layers.degrees(layer) for layer in layers.all)
        self.like = self._alike()
        self.twin = dict(self._twins())
        self.plans = {number: self._plans(number) for number in dict.fromkeys(self.like)}
        self.wires = Wires(prepared, layers.devices)
        self.kinds = sorted({prepared.cluster.devices[d].kind for d in layers.devices})

    def _alike(self) -> list[int]:
        """For each layer the first that is like it: equal ops, joined in the same way."""
        first: dict[object, int] = {}
        return [
            first.setdefault(self._signature(layer), number)
            for number, layer in enumerate(self.layers.all)
        ]

    def _signature(self, layer: Layer) -> object:
        place = {i: at for at, i in enumerate(layer.members)}
        found: list[object] = [len(layer.ops)]
        for i in layer.members:
            op, reads = self.graph.ops[i], self.question.read[i]
            wires = tuple(
                (
                    place.get(p, -1),
                    k,
                    (p, k) in self.question.touched[i],
                    self.graph.ops[p].phase,
                    p in self._leaves,
                )
                for p, k in reads
            )
            found.append(
                (
                    self.question.readings[i],
                    op.phase,
                    self.dtypes[i],
                    i if op.time is not None else -1,
                    wires,
                )
            )
        return tuple(found)

    @cached_property
    def _leaves(self) -> frozenset[int]:
        return self.question.on_demand

    def _twins(self) -> Iterator[tuple[int, int]]:
        """Each op of a layer with the op that it is like in the first layer that this one is
        like.
        """
        for layer, like in zip(self.layers.all, self.like, strict=True):
            yield from zip(layer.members, self.layers.all[like].members, strict=True)

    def _plans(self, number: int) -> list[Plan]:
        """How the ops of a layer lie, by choice."""
        return [spreads(self.layers, self.layers.all[number], one) for one in self.choices[number]]

    def _spreads(self, i: int) -> tuple[Spread, ...]:
        """How an op lies, by choice of its layer."""
        return tuple(
            [plan[self.twin[i]] for plan, _ in self.plans[self.like[self.layers.layer_of[i]]]]
        )

    def _cuts(self, tensor: TensorOf) -> tuple[Cut, ...]:
        """How a tensor that a layer makes lies, by choice of the layer."""
        twin = self.twin[tensor[0]], tensor[1]
        return tuple(
            [cuts[twin] for _, cuts in self.plans[self.like[self.layers.layer_of[tensor[0]]]]]
        )

    # t_C

    def compute(self) -> tuple[Floats, ...]:
        """Seconds of a layer's ops by choice; equal layers and equal shards are priced once."""
        known: dict[object, float] = {}
        tables: dict[int, Floats] = {}
        for number in self.plans:
            columns = [self._column(i, known) for i in self.layers.all[number].members]
            tables[number] = np.array([np.array(row).sum() for row in zip(*columns, strict=True)])
        return tuple(tables[like] for like in self.like)

    def _column(self, i: int, known: dict[object, float]) -> list[float]:
        """Seconds of the shard of an op that the first device runs, by choice, on the slowest kind
        of device.
        """
        op, reading = self.graph.ops[i], self.question.readings[i]
        alike = reading.semantics is not None and op.time is None
        shared = (reading, op.phase, self.dtypes[i]) if alike else i
        found = []
        for spread in self._spreads(i):
            box = first_box(reading, spread)
            price = known.get((shared, box))
            if price is None:
                price = known[shared, box] = max(
                    [self._seconds(i, box, kind) for kind in self.kinds]
                )
            found.append(price)
        return found

    def _seconds(self, i: int, box: Box, kind: str) -> float:
        """Seconds of a part of an op, by itself, on a kind of device; inf where nobody knows
        them.
        """
        op, costs = self.graph.ops[i], self.prepared.costs
        given = op.seconds_on(kind)
        if given is not None:
            return float(given * part(self.question.readings[i], box).share)
        known = (
            costs.cost_of_key(self._key(i, box, kind), op.kind, kind)
            if box
            else costs.cost(self.graph, i, kind)
        )
        return inf if known is None else float(known.seconds)

    def _key(self, i: int, box: Box, kind: str) -> str:
        """The profile key of a proper part of an op."""
        op, semantics, dtypes = (
            self.graph.ops[i],
            self.question.readings[i].semantics,
            self.dtypes[i],
        )
        assert semantics is not None
        own = executed(semantics, dict(box))
        attrs = {name: value for name, value in own.attrs.items() if name not in LAYOUT}
        kept = [dtypes[k] if k < len(dtypes) else None for k in own.operands]
        return profile_key(
            op.kind, attrs, own.inputs, kept, own.outputs, PHASE_CODES[op.phase], kind
        )

    # t_S

    def synced(self) -> tuple[Floats, ...]:
        """Seconds to add up the gradients of a layer's weights, by choice."""
        found = [np.zeros(len(own)) for own in self.choices]
        for i, k in self._gradients():
            layer = self.layers.layer_of[i]
            if layer >= 0:
                found[layer] += [self._seconds_to_sync(i, k, spread) for spread in self._spreads(i)]
        return tuple(found)

    def _gradients(self) -> list[TensorOf]:
        """One of each sum that updates read, where it is first made.

        Gradients of several steps are added up on each device, and synchronised once.
        """
        weights = self.question.weights
        read = (tensor for update in updates_of(self.graph, weights) for tensor in update.gradients)
        return [first_made(self.graph, weights, tensor)[0] for tensor in read]

    def _seconds_to_sync(self, i: int, k: int, spread: Spread) -> float:
        """Of one gradient: over the devices whose parts make partial results of one region, the
        first such group.
        """
        semantics = self.question.readings[i].semantics
        if semantics is None:
            return 0.0
        addends = [one for one in spread if effects_of(semantics, one[0])[k] == "reduce"]
        cut = prod(n for axis, n, _ in spread if effects_of(semantics, axis)[k] == "concatenate")
        ranks = [0]
        for _, degree, stride in addends:
            ranks = [rank + at * stride for rank in ranks for at in range(degree)]
        return self.wires.sync(self.sync, ranks, -(-self.graph.ops[i].outputs[k].bytes // cut))

    # t_X

    def moves(self) -> dict[tuple[int, int], Floats]:
        """Seconds to move tensors, and their gradients back, by pair of layers."""
        found: dict[tuple[int, int], Floats] = {}
        known: dict[object, Floats] = {}
        for tensor, reader, operand in self._edges():
            layers = self.layers.layer_of[tensor[0]], self.layers.layer_of[reader]
            made, haves, needs = (
                self.graph.ops[tensor[0]].outputs[tensor[1]],
                self._cuts(tensor),
                self._spreads(reader),
            )
            key = made, self.question.readings[reader], operand, haves, needs
            if key not in known:
                known[key] = 2 * self._moved(*key)
            pair = min(layers), max(layers)
            table = known[key] if pair == layers else known[key].T
            found[pair] = found[pair] + table if pair in found else table
        return found

    def _edges(self) -> list[tuple[TensorOf, int, int]]:
        """The tensors that pass between forward ops of layers, each with its readers and which
        operand it is.
        """
        layer_of, found = self.layers.layer_of, []
        followers = {i for layer in self.layers.all for i in layer.followers}
        for i, op in enumerate(self.graph.ops):
            if op.phase != "forward" or layer_of[i] < 0:
                continue
            seen: set[TensorOf] = set()
            for operand, tensor in enumerate(self.question.read[i]):
                fresh = (
                    tensor not in seen
                    and tensor in self.question.touched[i]
                    and layer_of[tensor[0]] >= 0
                )
                same = layer_of[tensor[0]] == layer_of[i] and i in followers
                shape = self.graph.ops[tensor[0]].outputs[tensor[1]].shape
                if fresh and not same and shape and prod(shape) > 1:
                    found.append((tensor, i, operand))
                seen.add(tensor)
        return found

    def _moved(
        self,
        tensor: Tensor,
        reader: Reading,
        operand: int,
        haves: tuple[Cut, ...],
        needs: tuple[Spread, ...],
    ) -> Floats:
        """Seconds to move one tensor, by how it lies and how its reader is cut."""
        shape, count = tensor.shape or (), self.wires.count
        read = [read_boxes(reader, operand, spread, count) for spread in needs]
        have = np.array([made_boxes(shape, cut, count) for cut in haves])
        need = np.array([np.zeros_like(have[0]) if one is None else one for one in read])
        found = np.zeros((len(have), len(need)))
        step = max(MOST // max(need[..., 0].size * count, 1), 1)
        for at in range(0, len(have), step):
            volumes = _overlaps(have[at : at + step], need)
            found[at : at + step] = self.wires.seconds(volumes * (tensor.bytes / prod(shape)))
        return found


def _overlaps(have: Boxes, need: Boxes) -> Floats:
    """Elements that device p holds and device q reads, by choice of both: (choices, choices, p,
    q).
    """
    found = np.ones((len(have), len(need), have.shape[1], need.shape[1]))
    for dimension in range(have.shape[2]):
        a, b = have[:, None, :, None, dimension], need[None, :, None, :, dimension]
        found *= np.maximum(np.minimum(a[..., 1], b[..., 1]) - np.maximum(a[..., 0], b[..., 0]), 0)
    return found
