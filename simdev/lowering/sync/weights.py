"""The gradients to synchronise, and the graph without their synchronisation.

A gradient to synchronise is an all-reduce over devices that hold partial results, made by the
partition (``conv1#sync0``) or written in the graph. It is taken out of the graph: each worker gets
a *gate* in its place, a leaf of length zero with the same tensor on the worker's device, which the
updates read instead. A policy (exchange.py) decides how a gradient gets from the op that makes it
to the gate. ``lowering.splitting`` calls ``gated``. A gate is of kind ``input`` but not part of a
batch: code that looks for the inputs of a step (``loaded``) must leave gates out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

from ...ground.errors import refuse
from ...nouns.cluster import Cluster
from ...nouns.graph import Graph, Op, Tensor
from ...nouns.strategy import Order, Origin, Strategy, Sync, resolve_placement
from ...nouns.structure import TensorOf, readers_of, updated
from ..collective import ALL_REDUCE, collective_problems, is_collective
from ..prepare import device_problems

ELEMENT = 4  # bytes of a parameter of unknown shape: float32, as in the papers' models


@dataclass(frozen=True, slots=True)
class Weight:
    """A gradient to synchronise. By worker (``ranks``, device indices): ``gradients`` are its
    partial results as (op, output), ``gates`` the ops that wait for it, all as positions in the
    gated graph.

    ``size`` is in bytes, those of the parameters where these are averaged. ``order`` is its place
    in the order in which the forward reads the parameters, ``made`` its place in the order in which
    gradients are made.
    """

    name: str
    size: int
    parameters: int
    ranks: tuple[int, ...]
    gradients: tuple[TensorOf, ...]
    gates: tuple[int, ...]
    order: int
    made: int


def gated(
    graph: Graph, cluster: Cluster, strategy: Strategy, origins: Mapping[str, Origin], sync: Sync
) -> tuple[Graph, Strategy, dict[str, Origin], tuple[Weight, ...]]:
    """A split graph with gates in place of its synchronisations, its strategy and origins with
    those of the gates, and the weights that are synchronised. Raises InputError.
    """
    taken = dict(_reduced_gradients(graph, cluster, origins))
    alone = dict(_lone_gradients(graph, cluster, strategy, sync, taken))
    gates = _Gates(graph, cluster, taken, alone)
    kept = {op.name for i, op in enumerate(graph.ops) if i not in taken}
    placement = {name: device for name, device in strategy.placement.items() if name in kept}
    origin_of = {name: origin for name, origin in origins.items() if name in kept}
    for gate, op in gates.made_for.items():
        if op in origins:
            origin_of[gate] = origins[op]
    opened = Graph(graph.name, tuple(gates.ops))
    order = _order(strategy.order, gates.made_for, kept)
    strategy = replace(strategy, placement=placement | gates.placement, order=order)
    averages = sync.every is not None
    return opened, strategy, origin_of, tuple(_weights(opened, gates.sums, averages))


def server_devices(sync: Sync, cluster: Cluster) -> tuple[int, ...] | None:
    """The machines that serve, where the policy names them. Raises InputError."""
    if isinstance(sync.servers, str):
        return None
    refuse(p for name in sync.servers for p in device_problems(cluster, "sync.servers", name))
    return tuple(cluster.index[name] for name in sync.servers)


def _reduced_gradients(
    graph: Graph, cluster: Cluster, origins: Mapping[str, Origin]
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The all-reduces of gradients, with their ranks: those that the partition made for this, and
    all-reduces of the given graph that only updates read.
    """
    phases: defaultdict[int, set[str]] = defaultdict(set)
    for op, reads in zip(graph.ops, graph.reads, strict=True):
        for producer, _ in reads:
            phases[producer].add(op.phase)
    problems: list[str] = []
    for i, op in enumerate(graph.ops):
        if op.kind != ALL_REDUCE or not is_collective(op):
            continue
        origin = origins.get(op.name)
        if origin.role == "sync" if origin is not None else phases[i] == {"update"}:
            wrong = [f"ops[{i}].{text}" for text in collective_problems(graph, cluster, i)]
            problems += wrong
            yield i, () if wrong else tuple(cluster.index[name] for name in op.attrs["ranks"])
    refuse(problems)


def _lone_gradients(
    graph: Graph,
    cluster: Cluster,
    strategy: Strategy,
    sync: Sync,
    taken: Mapping[int, tuple[int, ...]],
) -> Iterator[tuple[TensorOf, int]]:
    """Gradients that a single worker makes, as ((op, output), device). They are synchronised only
    where the policy names servers, and only with a server on another device.
    """
    machines = server_devices(sync, cluster)
    if machines is None or sync.transport != "server":
        return
    placement = resolve_placement(graph, cluster, strategy.placement)
    for i, op in enumerate(graph.ops):
        if op.phase != "update" or placement[i] in machines:
            continue
        for producer, output in graph.reads[i]:
            made = producer not in taken and output >= 0 and graph.ops[producer].phase == "backward"
            if made and placement[producer] == placement[i]:
                yield (producer, output), placement[i]


class _Sum(NamedTuple):
    """A gradient to synchronise, by names: its workers, their partial results, and the gates."""

    name: str
    ranks: tuple[int, ...]
    gradients: Sequence[str]
    gates: Sequence[str]


class _Gates:
    """The ops of the gated graph, while they are written.

    ``made_for`` is by gate the op whose origin, priority and place the gate takes over.
    """

    def __init__(
        self,
        graph: Graph,
        cluster: Cluster,
        taken: Mapping[int, tuple[int, ...]],
        alone: Mapping[TensorOf, int],
    ) -> None:
        self.ops: list[Op] = []
        self.placement: dict[str, str] = {}
        self.made_for: dict[str, str] = {}
        self.sums: list[_Sum] = []
        self._graph, self._cluster, self._taken = graph, cluster, taken
        # Readers may come before their producers, so all gates are made before any op is written.
        self._instead: dict[TensorOf, str] = {}
        self._gates_at: defaultdict[int, list[Op]] = defaultdict(list)  # by the op they precede
        for i, ranks in taken.items():
            self._open(i, ranks)
        for i, op in enumerate(graph.ops):
            for key in graph.reads[i] if op.phase == "update" else ():
                if key in alone and key not in self._instead:
                    self._open_alone(i, key, alone[key])
        for i in range(len(graph.ops)):
            self.ops += self._gates_at[i]
            if i not in taken:
                self.ops.append(self._reading(i))

    def _open(self, i: int, ranks: tuple[int, ...]) -> None:
        """Gates in place of an all-reduce."""
        op = self._graph.ops[i]
        outputs = [k for k, tensor in enumerate(op.outputs) if tensor.view_of is None]
        gates = []
        for k, rank in zip(outputs, ranks, strict=True):
            gates.append(self._gate(i, op.name, (i, k), rank))
        self.sums.append(_Sum(op.name, ranks, op.inputs, gates))

    def _open_alone(self, update: int, gradient: TensorOf, device: int) -> None:
        """A gate for a gradient that a single worker makes, before the update that reads it."""
        name, output = self._graph.ops[gradient[0]].name, gradient[1]
        gate = self._gate(update, f"{name}#sync{output}", gradient, device)
        self.sums.append(_Sum(gate, (device,), [f"{name}:{output}"], [gate]))

    def _gate(self, before: int, name: str, gradient: TensorOf, device: int) -> str:
        op = self._graph.ops[gradient[0]]
        tensor, gate = op.outputs[gradient[1]], f"{name}.{gradient[1]}"
        # An op of the file may have this name already.
        while gate in self._graph.index or gate in self.placement:
            gate += "'"
        # The output may be a view, whose base the gate does not have.
        whole = Tensor(tensor.bytes, tensor.shape, tensor.dtype)
        self._gates_at[before].append(Op(gate, "input", "update", outputs=(whole,), time=0))
        self._instead[gradient] = gate
        self.placement[gate] = self._cluster.devices[device].name
        self.made_for[gate] = op.name
        return gate

    def _reading(self, i: int) -> Op:
        """An op, reading gates in place of the tensors of removed ops."""
        graph, taken, op = self._graph, self._taken, self._graph.ops[i]
        if op.phase != "update" and not any(producer in taken for producer, _ in graph.reads[i]):
            return op
        inputs = []
        for text in op.inputs:
            producer, output = graph.resolve(text)
            base = graph.ops[producer].outputs[output].view_of
            key = producer, output if base is None or producer not in taken else base
            inputs.append(self._instead.get(key, text))
        waits = ((name, graph.index[name.removeprefix("^")]) for name in op.control_inputs)
        kept = tuple(name for name, producer in waits if producer not in taken)
        return replace(op, inputs=tuple(inputs), control_inputs=kept)


def _order(order: Order, made_for: Mapping[str, str], kept: set[str]) -> Order:
    """The order with the priorities of removed ops given to their gates."""
    if not order.priority:
        return order
    taken = set(made_for.values()) - kept
    priority = {name: value for name, value in order.priority.items() if name not in taken}
    for gate, op in made_for.items():
        if order.priority.get(op):
            priority[gate] = order.priority[op]
    return replace(order, priority=priority)


def updates_behind(graph: Graph, gates: Collection[int]) -> dict[int, list[int]]:
    """For each gate, the updates after which the parameters of its gradient are there: those that
    read it together with a parameter, else all ops behind it.
    """
    readers, parameters = readers_of(graph), updated(graph)
    behind: dict[int, list[int]] = {}
    for gate in gates:
        near = [op for op in readers[gate] if parameters.get(op)]
        waiting, reached = ([] if near else [gate]), dict.fromkeys(near)
        while waiting:
            further = [op for op in readers[waiting.pop()] if op not in reached]
            waiting += further
            reached |= dict.fromkeys(further)
        behind[gate] = list(reached)
    return behind


def _weights(graph: Graph, sums: Sequence[_Sum], averages: bool) -> Iterator[Weight]:
    needed, never = _first_needed(graph), len(graph.ops)
    gates = [tuple(graph.index[gate] for gate in each.gates) for each in sums]
    made = [tuple(map(graph.resolve, each.gradients)) for each in sums]
    sizes = dict(_parameter_bytes(graph, [first for first, *_ in gates]) if averages else ())
    # Parameters that no forward op reads come last, ordered by their gradients, the latest first.
    first = [
        min(needed.get(gate, (never, -gradients[0][0])) for gate in places)
        for places, gradients in zip(gates, made, strict=True)
    ]
    order = _places([(need, k) for k, need in enumerate(first)])
    making = _places([(max(op for op, _ in gradients), gradients) for gradients in made])
    for k, (name, ranks, _, _) in enumerate(sums):
        tensor = graph.ops[gates[k][0]].outputs[0]
        parameters = prod(tensor.shape) if tensor.shape is not None else -(-tensor.bytes // ELEMENT)
        size = sizes.get(gates[k][0], tensor.bytes)
        yield Weight(name, size, parameters, ranks, made[k], gates[k], order[k], making[k])


def _parameter_bytes(graph: Graph, gates: Collection[int]) -> Iterator[tuple[int, int]]:
    """The bytes of the parameter behind each gate, where it has the shape of the gradient: under
    mixed precision its dtype may differ.
    """
    parameters = updated(graph)
    for gate, updates in updates_behind(graph, gates).items():
        leaves = (graph.ops[leaf] for update in updates for leaf in parameters.get(update, ()))
        shape = graph.ops[gate].outputs[0].shape
        for tensor in (tensor for leaf in leaves for tensor in leaf.outputs):
            if tensor.shape == shape:
                yield gate, tensor.bytes
                break


def _places(keys: Sequence[Any]) -> list[int]:
    """The place of each row in the order of these keys."""
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return sorted(range(len(keys)), key=order.__getitem__)


def _first_needed(graph: Graph) -> dict[int, tuple[int, int]]:
    """For each gradient, the first read of its parameter: (the first forward op that reads it, the
    parameter).
    """
    first: dict[int, int] = {}
    for i, op in enumerate(graph.ops):
        for producer, _ in graph.reads[i] if op.phase == "forward" else ():
            first.setdefault(producer, i)
    needed: dict[int, tuple[int, int]] = {}
    for update, leaves in updated(graph).items():
        for leaf in first.keys() & leaves:
            for producer, _ in graph.reads[update]:
                if producer not in leaves:
                    need = first[leaf], leaf
                    needed[producer] = min(needed.get(producer, need), need)
    return needed
