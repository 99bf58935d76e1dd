"""OptCNN's cost tables (Jia et al., ICML 2018, section 4): the cost of each configuration of a
layer, and of each pair of layers. The method "optcnn" of ``search.methods``.

- ``t_C``: the time of a layer's ops, forward and backward, on its busiest device: parts are equal,
  so it is the time of the first part, of its own shape, on the slowest of the devices used.
- ``t_S``: the time to synchronise the gradients of its weights, under the ``sync`` of the strategy.
- ``t_X``: the time to move a layer's outputs to a reader in another layer, and the same bytes back
  for the gradients: the time of the busiest queue of the cluster (a link, a port).

Nothing overlaps in this model, and no two layers run at once; updates are left out. Part p of a
layer runs on the p-th device. ``elimination.py`` finds the least sum. A new way to synchronise
gradients (``nouns.strategy.sync``) counts as an all-reduce until ``Wires`` knows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import inf, prod
from time import process_time

import numpy as np

from ...costs import PHASE_CODES, profile_key
from ...ground.units import PS_PER_SECOND
from ...lowering import Prepared
from ...lowering.collective import ALL_REDUCE
from ...lowering.partition.geometry import Box, Reading, part
from ...nouns.graph import Tensor
from ...nouns.semantics import effects_of, operand_dtypes, shard_of
from ...nouns.strategy import Strategy
from ...nouns.structure import TensorOf, first_made, updates_of
from ...nouns.taskgraph import Floats
from ..elimination import Term, minimise
from ..trial import Trial
from .layers import (
    Boxes,
    Cut,
    Degrees,
    Layer,
    Layers,
    Spread,
    first_box,
    made_boxes,
    read_boxes,
    spreads,
    strategy_of,
)

LAYOUT = ("in", "dt", "strides")
MOST = 2_000_000  # overlaps that are computed at once


def optcnn(trial: Trial) -> None:
    """OptCNN (ICML 2018): the configuration of every layer that is best in additive cost tables,
    simulated once.

    The tables know no overlap, no two layers at once and no memory. Layers run on the first
    devices, perhaps not on all. The objective ``estimate_s`` is the sum of the tables. ``details``
    has the configurations, the number of layers left by node and edge elimination, whether the
    answer is exact, and the CPU seconds for tables and elimination.
    """
    problem, best = trial.problem, trial.best
    began = process_time()
    layers = Layers(problem.whole.graph, problem.whole.cluster)
    tables = tables_of(layers, problem.whole.prepared, _sync_of(problem.given))
    built = process_time()
    solved = minimise([len(choices) for choices in tables.choices], tables.terms)
    chosen = [choices[at] for choices, at in zip(tables.choices, solved.values, strict=True)]
    ended = process_time()
    best.objectives["estimate_s"] = solved.cost
    best.details |= {
        "layers": {
            layer.name: named(layer, degrees)
            for layer, degrees in zip(layers.all, chosen, strict=True)
        },
        "space": prod(len(choices) for choices in tables.choices),
        "left": solved.left,
        "exact": solved.exact,
        "tables_s": built - began,
        "elimination_s": ended - built,
    }
    configurations = [layers.configuration(degrees) for degrees in chosen]
    trial.try_strategy(strategy_of(layers, configurations, problem.given))


def _sync_of(strategy: Strategy) -> str:
    """The synchronisation that the cost tables assume for a strategy."""
    sync = strategy.sync
    return sync if isinstance(sync, str) and sync != "bucketed" else "all-reduce"


def named(layer: Layer, degrees: Degrees) -> dict[str, int]:
    """Degrees by axis, with the sample axis named "sample"."""
    names = {axis.axis: axis.kind if axis.kind == "sample" else axis.axis for axis in layer.axes}
    return {names[axis]: degree for axis, degree in degrees}


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """Seconds over the ``choices`` of each layer: ``compute`` (t_C) and ``sync`` (t_S).

    ``move`` (t_X) is over the choices of two layers, the earlier first.
    """

    choices: tuple[tuple[Degrees, ...], ...]
    compute: tuple[Floats, ...]
    sync: tuple[Floats, ...]
    move: Mapping[tuple[int, int], Floats]

    @property
    def terms(self) -> list[Term]:
        """All tables as terms of the elimination."""
        pairs = zip(self.compute, self.sync, strict=True)
        terms = [Term((layer,), compute + sync) for layer, (compute, sync) in enumerate(pairs)]
        # Transfers within a layer first: sums of floats depend on their order.
        for (a, b), table in sorted(self.move.items(), key=lambda item: item[0][0] != item[0][1]):
            terms.append(Term((a, b), table) if a != b else Term((a,), table.diagonal()))
        return terms


def tables_of(layers: Layers, prepared: Prepared, sync: str) -> Tables:
    """The tables of every layer, over its ``layers.degrees``."""
    builder = _Builder(layers, prepared, sync)
    return Tables(builder.choices, builder.compute(), builder.synced(), builder.moves())


class _Builder:
    def __init__(self, layers: Layers, prepared: Prepared, sync: str) -> None:
        self.layers, self.prepared, self.sync = layers, prepared, sync
        self.dataflow, self.graph = layers.dataflow, layers.graph
        self.dtypes = [operand_dtypes(self.graph, i) for i in range(len(self.graph.ops))]
        self.choices = tuple(layers.degrees(layer) for layer in layers.all)
        # For each layer the first identical one (equal ops joined in the same way), and for each op
        # its twin there: tables of identical layers are made once.
        first: dict[object, int] = {}
        self.like = [
            first.setdefault(self._signature(layer), number)
            for number, layer in enumerate(layers.all)
        ]
        self.twin: dict[int, int] = {}
        for layer, like in zip(layers.all, self.like, strict=True):
            self.twin.update(zip(layer.members, layers.all[like].members, strict=True))
        self.spreads = {
            number: [
                spreads(layers, layers.all[number], degrees) for degrees in self.choices[number]
            ]
            for number in dict.fromkeys(self.like)
        }
        self.wires = Wires(prepared, layers.devices)
        self.kinds = sorted({prepared.cluster.devices[d].kind for d in layers.devices})

    def _signature(self, layer: Layer) -> object:
        place, dataflow = {i: at for at, i in enumerate(layer.members)}, self.dataflow
        signature: list[object] = [len(layer.ops)]
        for i in layer.members:
            op = self.graph.ops[i]
            operands = tuple(
                (
                    place.get(p, -1),
                    k,
                    (p, k) in dataflow.touched[i],
                    self.graph.ops[p].phase,
                    p in dataflow.on_demand,
                )
                for p, k in dataflow.read[i]
            )
            # An op with a given time is identical to no other op.
            timed = i if op.time is not None else -1
            signature.append((dataflow.readings[i], op.phase, self.dtypes[i], timed, operands))
        return tuple(signature)

    def _spreads(self, i: int) -> tuple[Spread, ...]:
        """The spread of an op, by choice of its layer."""
        like = self.like[self.layers.layer_of[i]]
        return tuple([of_op[self.twin[i]] for of_op, _ in self.spreads[like]])

    def _cuts(self, tensor: TensorOf) -> tuple[Cut, ...]:
        """The cut of a tensor that a layer makes, by choice of the layer."""
        like = self.like[self.layers.layer_of[tensor[0]]]
        return tuple([cuts[self.twin[tensor[0]], tensor[1]] for _, cuts in self.spreads[like]])

    # t_C

    def compute(self) -> tuple[Floats, ...]:
        """Seconds of a layer's ops by choice; equal layers and equal shards are priced once."""
        prices: dict[object, float] = {}
        tables: dict[int, Floats] = {}
        for number in self.spreads:
            columns = [self._column(i, prices) for i in self.layers.all[number].members]
            tables[number] = np.array([np.array(row).sum() for row in zip(*columns, strict=True)])
        return tuple(tables[like] for like in self.like)

    def _column(self, i: int, prices: dict[object, float]) -> list[float]:
        """Seconds of the part of an op on the first device, by choice, on the slowest kind of
        device.
        """
        op, reading = self.graph.ops[i], self.dataflow.readings[i]
        shared: object = i
        if reading.semantics is not None and op.time is None:
            shared = reading, op.phase, self.dtypes[i]
        column = []
        for spread in self._spreads(i):
            box = first_box(reading, spread)
            if (shared, box) not in prices:
                prices[shared, box] = max([self._seconds(i, box, kind) for kind in self.kinds])
            column.append(prices[shared, box])
        return column

    def _seconds(self, i: int, box: Box, kind: str) -> float:
        """Seconds of a part of an op, by itself, on a kind of device; inf where its cost is
        unknown.
        """
        op, costs = self.graph.ops[i], self.prepared.costs
        given = op.seconds_on(kind)
        if given is not None:
            return float(given * part(self.dataflow.readings[i], box).share)
        if box:
            cost = costs.cost_of_key(self._key(i, box, kind), op.kind, kind)
        else:
            cost = costs.cost(self.graph, i, kind)
        return inf if cost is None else float(cost.seconds)

    def _key(self, i: int, box: Box, kind: str) -> str:
        """The profile key of a proper part of an op."""
        op, semantics, dtypes = (
            self.graph.ops[i],
            self.dataflow.readings[i].semantics,
            self.dtypes[i],
        )
        assert semantics is not None
        shard = shard_of(semantics, dict(box))
        attrs = {name: value for name, value in shard.attrs.items() if name not in LAYOUT}
        kept = [dtypes[k] if k < len(dtypes) else None for k in shard.operands]
        phase = PHASE_CODES[op.phase]
        return profile_key(op.kind, attrs, shard.inputs, kept, shard.outputs, phase, kind)

    # t_S

    def synced(self) -> tuple[Floats, ...]:
        """Seconds to add up the gradients of a layer's weights, by choice."""
        seconds, weights = (
            [np.zeros(len(choices)) for choices in self.choices],
            self.dataflow.weights,
        )
        for update in updates_of(self.graph, weights):
            for gradient in update.gradients:
                # Gradients of several steps are added up on each device, and synchronised once, so
                # the first gradient stands for the whole sum.
                i, k = first_made(self.graph, weights, gradient)[0]
                layer = self.layers.layer_of[i]
                if layer >= 0:
                    seconds[layer] += [self._sync(i, k, spread) for spread in self._spreads(i)]
        return tuple(seconds)

    def _sync(self, i: int, k: int, spread: Spread) -> float:
        """Seconds to add up one gradient over the first group of devices whose parts make partial
        results of the same region.
        """
        semantics = self.dataflow.readings[i].semantics
        if semantics is None:
            return 0.0
        ranks, parts = [0], 1
        for axis, degree, stride in spread:
            effect = effects_of(semantics, axis)[k]
            if effect == "reduce":
                ranks = [rank + at * stride for rank in ranks for at in range(degree)]
            elif effect == "concatenate":
                parts *= degree
        return self.wires.sync(self.sync, ranks, -(-self.graph.ops[i].outputs[k].bytes // parts))

    # t_X

    def moves(self) -> dict[tuple[int, int], Floats]:
        """Seconds to move tensors, and their gradients back, by pair of layers."""
        moves: dict[tuple[int, int], Floats] = {}
        tables: dict[object, Floats] = {}
        for tensor, reader, operand in self._edges():
            pair = self.layers.layer_of[tensor[0]], self.layers.layer_of[reader]
            made, reading = (
                self.graph.ops[tensor[0]].outputs[tensor[1]],
                self.dataflow.readings[reader],
            )
            key = made, reading, operand, self._cuts(tensor), self._spreads(reader)
            if key not in tables:
                tables[key] = 2 * self._moved(*key)
            table = tables[key]
            if pair[0] > pair[1]:
                pair, table = pair[::-1], table.T
            moves[pair] = moves[pair] + table if pair in moves else table
        return moves

    def _edges(self) -> Iterator[tuple[TensorOf, int, int]]:
        """The tensors that pass between forward ops of layers: each tensor, a reader, and the
        reader's operand number.
        """
        layer_of, dataflow = self.layers.layer_of, self.dataflow
        followers = {i for layer in self.layers.all for i in layer.followers}
        for i, op in enumerate(self.graph.ops):
            if op.phase != "forward" or layer_of[i] < 0:
                continue
            for tensor in dict.fromkeys(dataflow.read[i]):
                source = layer_of[tensor[0]]
                if tensor not in dataflow.touched[i] or source < 0:
                    continue
                shape = self.graph.ops[tensor[0]].outputs[tensor[1]].shape
                inside = source == layer_of[i] and i in followers
                if not inside and shape and prod(shape) > 1:
                    yield tensor, i, dataflow.read[i].index(tensor)

    def _moved(
        self,
        tensor: Tensor,
        reader: Reading,
        operand: int,
        haves: Sequence[Cut],
        needs: Sequence[Spread],
    ) -> Floats:
        """Seconds to move a tensor, by its cut and its reader's spread."""
        shape, count = tensor.shape or (), self.wires.count
        read = [read_boxes(reader, operand, spread, count) for spread in needs]
        have = np.array([made_boxes(shape, cut, count) for cut in haves])
        need = np.array([np.zeros_like(have[0]) if boxes is None else boxes for boxes in read])
        seconds = np.zeros((len(have), len(need)))
        step = max(MOST // max(need[..., 0].size * count, 1), 1)
        for at in range(0, len(have), step):
            volumes = _overlaps(have[at : at + step], need)
            seconds[at : at + step] = self.wires.seconds(volumes * (tensor.bytes / prod(shape)))
        return seconds


def _overlaps(have: Boxes, need: Boxes) -> Floats:
    """Elements that device p holds and device q reads, by the choices of both layers: [choices,
    choices, p, q].
    """
    low = np.maximum(have[:, None, :, None, :, 0], need[None, :, None, :, :, 0])
    high = np.minimum(have[:, None, :, None, :, 1], need[None, :, None, :, :, 1])
    return np.asarray(np.prod(np.maximum(high - low, 0), axis=-1, dtype=np.float64))


class Wires:
    """The devices that run ops, numbered in this order, and the loads that transfers put
    on queues.
    """

    def __init__(self, prepared: Prepared, devices: Sequence[int]) -> None:
        self.prepared, self.devices, self.count = prepared, tuple(devices), len(devices)
        self._loads, self._lags = self._columns()
        self._syncs: dict[tuple[str, tuple[int, ...], int], float] = {}

    def _columns(self) -> tuple[Floats, Floats]:
        """Seconds per byte by queue and pair of devices, and latency by pair; where the cluster has
        no queues, each leg of a pair is a queue of its own.
        """
        rows: dict[int, dict[int, float]] = {}
        lags = np.zeros(self.count**2)
        for (p, source), (q, destination) in permutations(enumerate(self.devices), 2):
            pair = p * self.count + q
            for at, leg in enumerate(self.prepared.segments(source, destination)):
                lags[pair] += (leg.held_ps + leg.lag_ps + leg.gap_ps) / 1e12
                # Without queues each leg of a pair (they are less than 8) is a queue of its own.
                for queue in leg.resources or leg.flow_links or (-1 - pair * 8 - at,):
                    row = rows.setdefault(queue, {})
                    row[pair] = row.get(pair, 0.0) + 1 / float(leg.route.bandwidth)
        loads = np.zeros((max(len(rows), 1), self.count**2))
        for at, row in enumerate(rows.values()):
            loads[at, list(row)] = list(row.values())
        return loads, lags

    def seconds(self, sent: Floats) -> Floats:
        """The time to send ``sent[..., p, q]`` bytes between devices: the busiest queue's time, and
        the latency.
        """
        flat = sent.reshape(*sent.shape[:-2], -1)
        busiest: Floats = (flat @ self._loads.T).max(axis=-1)
        lag: Floats = np.where(flat > 0, self._lags, 0.0).max(axis=-1)
        return busiest + lag

    def sync(self, how: str, ranks: Sequence[int], size: int) -> float:
        """Seconds to add up ``size`` bytes from each of some devices, and to send the sum back to
        all.

        ``how`` is a strategy's ``sync``: one ring, a server on the first device, or a share of the
        sum on each.
        """
        key = how, tuple(ranks), size
        if key not in self._syncs:
            self._syncs[key] = self._sync(*key) if len(ranks) > 1 else 0.0
        return self._syncs[key]

    def _sync(self, how: str, ranks: Sequence[int], size: int) -> float:
        sent = np.zeros((self.count, self.count))
        if how == "parameter-server":
            sent[list(ranks[1:]), ranks[0]] = size
            return float(self.seconds(sent) + self.seconds(sent.T))
        if how == "sharded":
            sent[np.ix_(ranks, ranks)] = size / len(ranks)
            np.fill_diagonal(sent, 0.0)
            return 2 * float(self.seconds(sent))
        devices = [self.devices[rank] for rank in ranks]
        return self.prepared.communicators.alone_ps(ALL_REDUCE, devices, size) / PS_PER_SECOND
