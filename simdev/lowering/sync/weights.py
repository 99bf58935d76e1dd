"""Which gradients are synchronised, and the graph in which what happens between them is left open.

A gradient to synchronise is an all-reduce over devices that hold partial results, as the partition
makes it (``conv1#sync0``) or as the graph writes it. It is taken out of the graph: each worker gets
a *gate* in its place, a leaf of length zero with the same tensor on the worker's device, which the
updates read instead. What goes on between the op that makes a gradient and the gate is what a
policy decides (messages.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from ...cluster import Cluster
from ...errors import InputError
from ...graph import Graph, Op, Tensor
from ...strategy import Order, Origin, Strategy, Sync, resolve_placement
from ...structure import updated
from ..collective import ALL_REDUCE, collective_problems, is_collective

ELEMENT = 4  # bytes of a parameter whose shape nobody tells


@dataclass(frozen=True, slots=True)
class Weight:
    """A gradient to synchronise: by worker (``ranks``, device indices) who makes it, and the gate
    that waits for it.

    ``gradients`` are (op, output), ``gates`` ops, all positions in the gated graph. ``order`` is
    its place in the order in which the forward reads the parameters, ``made`` in that in which
    gradients are made.
    """

    name: str
    size: int
    parameters: int
    ranks: tuple[int, ...]
    gradients: tuple[tuple[int, int], ...]
    gates: tuple[int, ...]
    order: int
    made: int


@dataclass(frozen=True, slots=True)
class Gated:
    """A graph with gates, the placement that goes with it, and the weights that are
    synchronised.
    """

    graph: Graph
    strategy: Strategy
    origins: Mapping[str, Origin]
    weights: tuple[Weight, ...]


def gated(
    graph: Graph, cluster: Cluster, strategy: Strategy, origins: Mapping[str, Origin], sync: Sync
) -> Gated:
    """The question with gates in place of its synchronisations. Raises InputError."""
    taken = dict(_reduced_gradients(graph, cluster, origins))
    alone = dict(_lone_gradients(graph, cluster, strategy, sync, set(taken)))
    gates = _Gates(graph, cluster, taken, alone)
    placement = {
        name: device for name, device in strategy.placement.items() if name not in gates.removed
    }
    placement |= gates.placement
    more = {name: replace(origins[old]) for name, old in gates.made_for.items() if old in origins}
    own = {name: origin for name, origin in origins.items() if name not in gates.removed} | more
    found = Graph(graph.name, tuple(gates.ops))
    order = _order(strategy.order, gates)
    return Gated(
        found,
        replace(strategy, placement=placement, order=order),
        own,
        tuple(_weights(graph, found, gates)),
    )


def server_devices(sync: Sync, cluster: Cluster) -> tuple[int, ...] | None:
    """The machines that serve, where the policy names them. Raises InputError."""
    if isinstance(sync.servers, str):
        return None
    problems = []
    for name in sync.servers:
        if name not in cluster.index:
            problems.append(f'sync.servers: no device named "{name}"')
        elif not cluster.devices[cluster.index[name]].runs_ops:
            problems.append(f'sync.servers: "{name}" is a switch')
    if problems:
        raise InputError(problems)
    return tuple(cluster.index[name] for name in sync.servers)


def _reduced_gradients(
    graph: Graph, cluster: Cluster, origins: Mapping[str, Origin]
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """All-reduces of gradients: those that the partition calls so, else those that only updates
    read.
    """
    readers: dict[int, set[str]] = {}
    for op, reads in zip(graph.ops, graph.reads, strict=True):
        for producer, _ in reads:
            readers.setdefault(producer, set()).add(op.phase)
    problems: list[str] = []
    for i, op in enumerate(graph.ops):
        if op.kind != ALL_REDUCE or not is_collective(op):
            continue
        origin = origins.get(op.name)
        if origin.role == "sync" if origin is not None else readers.get(i) == {"update"}:
            wrong = list(collective_problems(graph, cluster, i))
            problems += [f"ops[{i}].{problem}" for problem in wrong]
            yield i, () if wrong else tuple(cluster.index[name] for name in op.attrs["ranks"])
    if problems:
        raise InputError(problems)


def _lone_gradients(
    graph: Graph, cluster: Cluster, strategy: Strategy, sync: Sync, taken: set[int]
) -> Iterator[tuple[tuple[int, int], int]]:
    """Gradients that one worker alone makes: (op, output) -> device.

    Only a server elsewhere takes them.
    """
    machines = server_devices(sync, cluster)
    if machines is None or sync.transport != "server":
        return
    placement = resolve_placement(graph, cluster, strategy.placement)
    for i, op in enumerate(graph.ops):
        if op.phase != "update":
            continue
        for producer, output in graph.reads[i]:
            made = producer not in taken and output >= 0 and graph.ops[producer].phase == "backward"
            if made and placement[producer] == placement[i] and placement[i] not in machines:
                yield (producer, output), placement[i]


class _Gates:
    """The ops of the gated graph, while they are written."""

    def __init__(
        self,
        graph: Graph,
        cluster: Cluster,
        taken: Mapping[int, tuple[int, ...]],
        alone: Mapping[tuple[int, int], int],
    ) -> None:
        self.names = set(graph.index)
        self.removed = {graph.ops[i].name for i in taken}
        self.ops: list[Op] = []
        self.placement: dict[str, str] = {}
        self.made_for: dict[str, str] = {}  # gate -> the op whose origin is its own
        # (name, workers, gradients as texts, gates)
        self.found: list[tuple[str, tuple[int, ...], list[str], list[str]]] = []
        self._devices = [device.name for device in cluster.devices]
        # Readers may stand before what they read: every gate is there before the first op is
        # written.
        self._instead: dict[tuple[int, int], str] = {}
        # gates, by the op in whose place or before which they stand
        self._standing: dict[int, list[Op]] = {}
        for i, ranks in taken.items():
            self._open(graph, i, ranks)
        for i, op in enumerate(graph.ops):
            for key in graph.reads[i] if op.phase == "update" else ():
                if key in alone and key not in self._instead:
                    self._open_alone(graph, i, key, alone[key])
        for i in range(len(graph.ops)):
            self.ops += self._standing.get(i, ())
            if i not in taken:
                self.ops.append(_reading(graph, i, self._instead, set(taken)))

    def _open(self, graph: Graph, i: int, ranks: tuple[int, ...]) -> None:
        """Gates in place of an all-reduce."""
        op = graph.ops[i]
        outputs = [k for k, tensor in enumerate(op.outputs) if tensor.view_of is None]
        gates = [
            self._gate(i, op.name, op, k, rank) for k, rank in zip(outputs, ranks, strict=True)
        ]
        self._instead |= {(i, k): gate for k, gate in zip(outputs, gates, strict=True)}
        self.found.append((op.name, ranks, list(op.inputs), gates))

    def _open_alone(self, graph: Graph, i: int, key: tuple[int, int], device: int) -> None:
        """A gate for a gradient that one worker alone makes, before the update that reads it."""
        op, output = graph.ops[key[0]], key[1]
        gate = self._gate(i, f"{op.name}#sync{output}", op, output, device)
        self._instead[key] = gate
        self.found.append((gate, (device,), [f"{op.name}:{output}"], [gate]))

    def _gate(self, before: int, name: str, op: Op, output: int, device: int) -> str:
        tensor = op.outputs[output]
        gate = f"{name}.{output}"
        while gate in self.names:
            gate += "'"
        self.names.add(gate)
        whole = Tensor(tensor.bytes, tensor.shape, tensor.dtype)
        self._standing.setdefault(before, []).append(
            Op(gate, "input", "update", outputs=(whole,), time=0)
        )
        self.placement[gate] = self._devices[device]
        self.made_for[gate] = op.name
        return gate


def _reading(graph: Graph, i: int, instead: Mapping[tuple[int, int], str], taken: set[int]) -> Op:
    """An op that reads gates in place of what was taken out."""
    op = graph.ops[i]
    if op.phase != "update" and not any(producer in taken for producer, _ in graph.reads[i]):
        return op
    inputs = []
    for text in op.inputs:
        producer, output = graph.resolve(text)
        base = graph.ops[producer].outputs[output].view_of
        inputs.append(
            instead.get((producer, output if base is None or producer not in taken else base), text)
        )
    waits = [name for name in op.control_inputs if graph.index[name.removeprefix("^")] not in taken]
    return replace(op, inputs=tuple(inputs), control_inputs=tuple(waits))


def _order(order: Order, gates: _Gates) -> Order:
    """A priority of what was taken out is that of its gates."""
    if not order.priority:
        return order
    given = {name: value for name, value in order.priority.items() if name not in gates.removed}
    given |= {
        gate: order.priority[old] for gate, old in gates.made_for.items() if order.priority.get(old)
    }
    return replace(order, priority=given)


def _weights(graph: Graph, found: Graph, gates: _Gates) -> Iterator[Weight]:
    needed = _first_needed(found)
    never = len(found.ops)
    rows = []
    for name, ranks, gradients, own in gates.found:
        places = tuple(found.index[gate] for gate in own)
        made = tuple(found.resolve(text) for text in gradients)
        first = min(
            (needed.get(place, (never, -made[0][0])) for place in places), default=(never, 0)
        )
        rows.append((name, ranks, made, places, first))
    by_need = sorted(range(len(rows)), key=lambda k: (rows[k][4], k))
    by_making = sorted(
        range(len(rows)), key=lambda k: (max(op for op, _ in rows[k][2]), rows[k][2])
    )
    order, making = ({k: place for place, k in enumerate(one)} for one in (by_need, by_making))
    for k, (name, ranks, made, places, _) in enumerate(rows):
        tensor = found.ops[places[0]].outputs[0]
        parameters = prod(tensor.shape) if tensor.shape is not None else -(-tensor.bytes // ELEMENT)
        yield Weight(name, tensor.bytes, parameters, ranks, made, places, order[k], making[k])


def _first_needed(graph: Graph) -> dict[int, tuple[int, int]]:
    """By gate when its parameter is first read: (the first forward op that reads it, the parameter
    itself).
    """
    first: dict[int, int] = {}
    for i, op in enumerate(graph.ops):
        if op.phase == "forward":
            for producer, _ in graph.reads[i]:
                first.setdefault(producer, i)
    found: dict[int, tuple[int, int]] = {}
    for update, leaves in updated(graph).items():
        for leaf in leaves:
            for producer, _ in graph.reads[update]:
                if producer not in leaves and leaf in first:
                    found[producer] = min(
                        found.get(producer, (len(graph.ops), 0)), (first[leaf], leaf)
                    )
    return found
