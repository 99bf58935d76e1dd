"""OptCNN's cost tables (Jia et al., ICML 2018, section 4): what each configuration of a layer costs, and each pair.

- ``t_C``: the time of a layer's ops, forward and backward, on its busiest device: parts are equal, so that of the
  first part, of its own shape, on the slowest of the devices used.
- ``t_S``: the time to synchronise the gradients of its weights, under the ``sync`` of the strategy.
- ``t_X``: the time to move what one layer makes to where another reads it, and the same bytes back for the gradients:
  the most that any queue of the cluster (a link, a port) has to carry.

Nothing overlaps in this model, and no two layers run at once; updates are left out. Part p of a layer runs on the p-th
device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import inf, prod

import numpy as np

from ...graph import Graph, Op, Tensor
from ...lowering import Prepared
from ...lowering.partition.geometry import Box, Reading, executed, part
from ...lowering.partition.layout import part_of
from ...lowering.partition.plan import is_linear
from ...semantics import effects_of, operand_dtypes
from ..elimination import Floats, Term
from .layers import Degrees, Layer, Layers
from .spread import Boxes, Cut, Spread, TensorOf, first_box, made_boxes, read_boxes, spreads
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
        alone = [Term((i,), c + s) for i, (c, s) in enumerate(zip(self.compute, self.sync, strict=True))]
        loops = [Term((a,), table.diagonal()) for (a, b), table in self.move.items() if a == b]
        return alone + loops + [Term(pair, table) for pair, table in self.move.items() if pair[0] != pair[1]]


def tables_of(layers: Layers, prepared: Prepared, sync: str) -> Tables:
    """The tables of every layer, over ``layers.degrees`` of each."""
    builder = _Builder(layers, prepared, sync)
    return Tables(builder.choices, builder.compute(), builder.synced(), builder.moves())


class _Builder:
    def __init__(self, layers: Layers, prepared: Prepared, sync: str) -> None:
        self.layers, self.prepared, self.sync = layers, prepared, sync
        self.question, self.graph = layers.question, layers.graph
        self.choices = tuple(layers.degrees(layer) for layer in layers.all)
        self.like = self._alike()
        self.plans: list[list[Plan]] = []
        for number, own in enumerate(self.choices):
            self.plans.append(self._plans(number, own))
        self.wires = Wires(prepared, layers.devices)

    def _alike(self) -> list[int]:
        """For each layer the first that is like it: equal ops, joined in the same way."""
        first: dict[object, int] = {}
        return [first.setdefault(self._signature(layer), number) for number, layer in enumerate(self.layers.all)]

    def _signature(self, layer: Layer) -> object:
        place = {i: at for at, i in enumerate(layer.members)}
        found: list[object] = [len(layer.ops)]
        for i in layer.members:
            op, reads = self.graph.ops[i], self.question.read[i]
            wires = tuple(
                (place.get(p, -1), k, (p, k) in self.question.touched[i], self.graph.ops[p].phase, p in self._leaves)
                for p, k in reads
            )
            dtypes = operand_dtypes(self.graph, i)
            found.append((self.question.readings[i], op.phase, dtypes, i if op.time is not None else -1, wires))
        return tuple(found)

    @cached_property
    def _leaves(self) -> frozenset[int]:
        return self.question.on_demand

    def _plans(self, number: int, choices: Sequence[Degrees]) -> list[Plan]:
        """How the ops of a layer lie, by choice."""
        layer, like = self.layers.all[number], self.like[number]
        if like == number:
            return [spreads(self.layers, layer, one) for one in choices]
        renamed = dict(zip(self.layers.all[like].members, layer.members, strict=True))
        return [
            ({renamed[i]: one for i, one in plan.items()}, {(renamed[i], k): cut for (i, k), cut in cuts.items()})
            for plan, cuts in self.plans[like]
        ]

    # t_C

    def compute(self) -> tuple[Floats, ...]:
        """Seconds of a layer's ops by choice; equal layers and equal shards are priced once."""
        rows: dict[object, int] = {}
        ops: list[Op] = []
        wanted: dict[int, list[list[int]]] = {}
        for number in dict.fromkeys(self.like):
            plans = self.plans[number]
            wanted[number] = [[self._row(i, spread, rows, ops) for i, spread in plan.items()] for plan, _ in plans]
        prices = self._prices(ops)
        tables = {number: np.array([prices[one].sum() for one in layer]) for number, layer in wanted.items()}
        return tuple(tables[like] for like in self.like)

    def _row(self, i: int, spread: Spread, rows: dict[object, int], ops: list[Op]) -> int:
        """The number of the shard that the first device runs of an op."""
        op, reading = self.graph.ops[i], self.question.readings[i]
        box = first_box(reading, spread)
        known = op.time is None and reading.semantics is not None
        key: object = (reading, box, op.phase, operand_dtypes(self.graph, i)) if known else (i, box)
        if key not in rows:
            rows[key] = len(ops)
            ops.append(self._shard(i, box, len(ops)))
        return rows[key]

    def _shard(self, i: int, box: Box, number: int) -> Op:
        """A part of an op by itself, as the cost ladder is asked about it."""
        op, own = self.graph.ops[i], part(self.question.readings[i], box)
        outputs = tuple(part_of(op.outputs[k], region) for k, region in enumerate(own.makes) if region is not None)
        shapes, dtypes = executed(self.graph, i, own)
        if own.shard is None or not box:
            attrs = dict(op.attrs)
        else:
            attrs = {name: value for name, value in own.shard.attrs.items() if name not in LAYOUT}
        if op.inputs or "in" in op.attrs:
            attrs |= {"in": shapes, "dt": dtypes}
        return Op(str(number), op.kind, op.phase, outputs=outputs, attrs=attrs, time=_share(op, own.share))

    def _prices(self, ops: Sequence[Op]) -> Floats:
        """Seconds by shard, on the slowest kind of device; inf where nobody knows them."""
        graph, kinds = Graph("shards", tuple(ops)), {self.prepared.cluster.devices[d].kind for d in self.layers.devices}
        found = np.zeros(len(ops))
        for kind in sorted(kinds):
            costs = (self.prepared.costs.cost(graph, i, kind) for i in range(len(ops)))
            found = np.maximum(found, [inf if cost is None else float(cost.seconds) for cost in costs])
        return found

    # t_S

    def synced(self) -> tuple[Floats, ...]:
        """Seconds to add up the gradients of a layer's weights, by choice."""
        found = [np.zeros(len(own)) for own in self.choices]
        for i, k in self._gradients():
            layer = self.layers.layer_of[i]
            for at, (plan, _) in enumerate(self.plans[layer] if layer >= 0 else ()):
                found[layer][at] += self._seconds_to_sync(i, k, plan[i])
        return tuple(found)

    def _gradients(self) -> list[TensorOf]:
        """The gradients that updates read, where they are first made: before gradients of several steps are added."""
        weights, found = self.question.weights, []
        for i, op in enumerate(self.graph.ops):
            if op.phase == "update":
                for tensor in self.question.read[i]:
                    while tensor in weights.gradients and is_linear(self.graph.ops[tensor[0]]):
                        tensor = self.question.read[tensor[0]][0]
                    if tensor in weights.gradients:
                        found.append(tensor)
        return found

    def _seconds_to_sync(self, i: int, k: int, spread: Spread) -> float:
        """Of one gradient: over the devices whose parts make partial results of one region, the first such group."""
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
            haves = tuple(cuts[tensor] for _, cuts in self.plans[layers[0]])
            needs = tuple(plan[reader] for plan, _ in self.plans[layers[1]])
            key = self.graph.ops[tensor[0]].outputs[tensor[1]], self.question.readings[reader], operand, haves, needs
            if key not in known:
                known[key] = 2 * self._moved(*key)
            pair = min(layers), max(layers)
            table = known[key] if pair == layers else known[key].T
            found[pair] = found[pair] + table if pair in found else table
        return found

    def _edges(self) -> list[tuple[TensorOf, int, int]]:
        """The tensors that pass between forward ops of layers, each with its readers and which operand it is."""
        layer_of, found = self.layers.layer_of, []
        followers = {i for layer in self.layers.all for i in layer.followers}
        for i, op in enumerate(self.graph.ops):
            if op.phase != "forward" or layer_of[i] < 0:
                continue
            seen: set[TensorOf] = set()
            for operand, tensor in enumerate(self.question.read[i]):
                fresh = tensor not in seen and tensor in self.question.touched[i] and layer_of[tensor[0]] >= 0
                same = layer_of[tensor[0]] == layer_of[i] and i in followers
                shape = self.graph.ops[tensor[0]].outputs[tensor[1]].shape
                if fresh and not same and shape and prod(shape) > 1:
                    found.append((tensor, i, operand))
                seen.add(tensor)
        return found

    def _moved(
        self, tensor: Tensor, reader: Reading, operand: int, haves: tuple[Cut, ...], needs: tuple[Spread, ...]
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
    """Elements that device p holds and device q reads, by choice of both: (choices, choices, p, q)."""
    found = np.ones((len(have), len(need), have.shape[1], need.shape[1]))
    for dimension in range(have.shape[2]):
        a, b = have[:, None, :, None, dimension], need[None, :, None, :, dimension]
        found *= np.maximum(np.minimum(a[..., 1], b[..., 1]) - np.maximum(a[..., 0], b[..., 0]), 0)
    return found


def _share(op: Op, share: Fraction) -> Mapping[str, Fraction] | Fraction | None:
    """A given time, divided."""
    if isinstance(op.time, Mapping):
        return {kind: Fraction(seconds) * share for kind, seconds in op.time.items()}
    return None if op.time is None else Fraction(op.time) * share
