"""The pass that turns placed ops and their transfers into tasks, resources and buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..errors import InputError
from ..fabric import Fabric, Segment, transfer_ps
from ..graph import Op
from ..memory import MemoryModel
from ..structure import owns_outputs
from ..taskgraph import (
    BUFFER_KINDS,
    COLLECTIVE,
    MAX_TASKS,
    OUTSIDE,
    PERSISTENT,
    TRANSFER,
    Buffers,
    Ints,
    Resource,
    Rows,
    Sharing,
    TaskGraph,
    Tasks,
)
from .collective import Ring, add_steps
from .prepare import Prepared
from .transfer import Transfer, chunks_of, transfers

# of a collective: (output, -1 for a control input; who reads it there)
Readers = list[tuple[int, list[int]]]
_KIND = {name: row for row, name in enumerate(BUFFER_KINDS)}
SENT = (TRANSFER, COLLECTIVE)


@dataclass(slots=True)
class _Columns:
    """Columns of tasks and buffers while they grow; ``memory`` tells what of a buffer is
    counted.
    """

    memory: MemoryModel
    names: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    # op, output, source, destination, duration, lag, gap, bytes
    numbers: list[tuple[int, int, int, int, int, int, int, int]] = field(default_factory=list)
    resources: list[Sequence[int]] = field(default_factory=list)
    links: list[Sequence[int]] = field(default_factory=list)
    successors: list[list[int]] = field(default_factory=list)
    buffer_names: list[str] = field(default_factory=list)
    # device, bytes counted, kind, filler, bytes requested
    buffer_numbers: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    readers: list[list[int]] = field(default_factory=list)
    # of the buffer of (op, output)
    readers_of: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    consumers: dict[int, tuple[int, ...]] = field(default_factory=dict)  # of the transfer tasks
    # of an output of an expanded collective: the tasks after which it is there
    arrivals: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    def buffer(
        self, name: str, device: int, size: int, kind: str, filler: int, readers: list[int]
    ) -> None:
        if size:
            self.buffer_names.append(name)
            self.buffer_numbers.append(
                (device, self._counted(size, kind), _KIND[kind], filler, size)
            )
            self.readers.append(readers)

    def _counted(self, size: int, kind: str) -> int:
        if self.memory.model == "outputs_only":
            return size if kind == "activations" else 0
        return size if kind in OUTSIDE else self.memory.rounded(size)


def resources(fabric: Fabric) -> list[Resource]:
    """Every queue of the cluster, all fifo: compute by device, then what transfers hold."""
    compute = [Resource(device.name, device=d) for d, device in enumerate(fabric.cluster.devices)]
    return compute + [Resource(queue.name, device=queue.device) for queue in fabric.queues]


def build(prepared: Prepared, placement: list[int]) -> tuple[TaskGraph, dict[int, tuple[int, ...]]]:
    """The TaskGraph of a placement, with fifo queues; and the consumers (ops) of each transfer
    task.
    """
    prepared.require_costs(placement)
    _require_ranks(prepared, placement)
    columns, queues = _Columns(prepared.memory), resources(prepared.fabric)
    _add_reserves(columns, prepared)
    expanded = _add_ops(columns, prepared, placement)
    for transfer in transfers(prepared, placement):
        while expanded and next(iter(expanded)) <= prepared.reads.producer[transfer.tensor]:
            _expand_first(columns, prepared, expanded, queues)
        _add_transfer(columns, prepared, transfer, queues)
        _require_size(columns)
    while expanded:
        _expand_first(columns, prepared, expanded, queues)
    task_graph = _task_graph(columns, prepared, queues)
    sharing = _sharing(prepared, task_graph)
    return task_graph if sharing is None else replace(
        task_graph, sharing=sharing
    ), columns.consumers


def _sharing(prepared: Prepared, task_graph: TaskGraph) -> Sharing | None:
    """On which devices each task is a collective, where that slows what they compute."""
    if prepared.collectives.slowdown == 1 or not prepared.rings:
        return None
    tasks = task_graph.tasks
    columns = zip(
        tasks.kind,
        tasks.op.tolist(),
        tasks.source.tolist(),
        tasks.destination.tolist(),
        strict=True,
    )
    devices = [
        ()
        if kind != COLLECTIVE
        else prepared.rings[op].ranks
        if op == task
        else (source, destination)
        for task, (kind, op, source, destination) in enumerate(columns)
    ]
    return Sharing(prepared.collectives.slowdown, Rows.of(devices))


def _require_size(columns: _Columns) -> None:
    if len(columns.names) > MAX_TASKS:
        raise InputError(f"the step lowers to more than {MAX_TASKS} tasks")


def _add_reserves(columns: _Columns, prepared: Prepared) -> None:
    """What the framework and the communication library hold on each device, whatever runs there."""
    for d, (device, sizes) in enumerate(
        zip(prepared.cluster.devices, prepared.reserves, strict=True)
    ):
        for kind, size in zip(OUTSIDE, sizes, strict=True):
            columns.buffer(f"{kind} of {device.name}", d, size, kind, PERSISTENT, [])


def _add_ops(columns: _Columns, prepared: Prepared, placement: list[int]) -> dict[int, Readers]:
    """Every op, in rows as its position.

    Returns the expanded collectives, in program order, with their readers.
    """
    ops, reads = prepared.graph.ops, prepared.reads
    outputs_only = prepared.memory.model == "outputs_only"
    local_readers: dict[tuple[int, int], list[int]] = {}
    local: list[set[int]] = [set() for _ in ops]
    keys = zip(reads.producer.tolist(), reads.output.tolist(), reads.consumers.lists(), strict=True)
    rings = prepared.rings
    expanded: dict[int, Readers] = {i: [] for i, ring in rings.items() if ring.expanded}
    for producer, output, consumers in keys:
        home = prepared.home(producer, output, placement)
        here = [
            consumer for consumer in consumers if consumer in rings or placement[consumer] == home
        ]
        local[producer].update(here)
        if producer in expanded:
            expanded[producer].append((output, here))
        local_readers[producer, output] = consumers if outputs_only else here
    durations = prepared.duration[np.arange(len(ops)), placement].tolist() if ops else []
    for i, op in enumerate(ops):
        if i in rings:
            _add_collective(columns, op, i, rings[i], sorted(local[i]), local_readers)
            continue
        device = placement[i]
        gap = int(prepared.gap_ps[device]) if durations[i] > 0 else 0
        columns.names.append(op.name)
        columns.kinds.append(op.phase)
        columns.numbers.append((i, -1, device, device, durations[i], 0, gap, 0))
        columns.resources.append((device,))
        columns.links.append(())
        columns.successors.append(sorted(local[i]))
        _add_buffers(columns, op, i, device, local_readers)
    return expanded


def _require_ranks(prepared: Prepared, placement: list[int]) -> None:
    """Every input of a collective op lies on its rank."""
    graph, names = prepared.graph, [device.name for device in prepared.cluster.devices]
    problems = []
    for i, ring in prepared.rings.items():
        for j, (text, rank) in enumerate(zip(graph.ops[i].inputs, ring.inputs_on, strict=True)):
            home = prepared.home(*graph.resolve(text), placement)
            if home != rank:
                problems.append(
                    f'ops[{i}].inputs[{j}]: "{text}" lies on {names[home]}, rank {j} is '
                    f"{names[rank]}"
                )
    if problems:
        raise InputError(problems)


def _add_collective(
    columns: _Columns,
    op: Op,
    position: int,
    ring: Ring,
    after: list[int],
    here: dict[tuple[int, int], list[int]],
) -> None:
    """The one task of a collective op, or that which starts its messages, and its outputs on their
    ranks.
    """
    columns.names.append(op.name)
    columns.kinds.append(op.phase if ring.expanded else COLLECTIVE)
    ends = (ring.ranks[0], ring.ranks[0 if ring.expanded else -1])
    columns.numbers.append(
        (position, -1, *ends, ring.duration_ps, 0, 0, 0 if ring.expanded else ring.bytes)
    )
    columns.resources.append(ring.resources)
    columns.links.append(ring.half_links)
    columns.successors.append([] if ring.expanded else after)
    _add_outputs(columns, op, position, ring.outputs_on, here)


def _expand_first(
    columns: _Columns, prepared: Prepared, expanded: dict[int, Readers], queues: list[Resource]
) -> None:
    """The messages of the first of the collectives; its readers wait until their rank is done, its
    buffers live on.
    """
    position = next(iter(expanded))
    readers = expanded.pop(position)
    op, ring, devices = (
        prepared.graph.ops[position],
        prepared.rings[position],
        prepared.cluster.devices,
    )

    def send(source: int, destination: int, size: int, number: int) -> tuple[list[int], list[int]]:
        segments = prepared.segments(source, destination)
        message = Transfer(
            -1, (destination,), (position,), segments, chunks_of(prepared, size, segments)
        )
        label = f"{op.name}[{number}] {devices[source].name}>{devices[destination].name}"
        return _add_hops(columns, prepared, message, (position, -1, COLLECTIVE), label, queues)

    done = add_steps(
        ring.steps, position, send, lambda first, then: columns.successors[first].append(then)
    )
    _require_size(columns)
    for text, rank in zip(op.inputs, ring.inputs_on, strict=True):
        columns.readers_of.get(prepared.graph.resolve(text), []).extend(done[rank])
    for output, rank in enumerate(ring.outputs_on):
        columns.arrivals[position, output] = done[rank]
        if op.outputs[output].view_of is None:
            columns.readers_of[position, output] += done[rank]
    columns.arrivals[position, -1] = list(
        dict.fromkeys(task for rank in ring.ranks for task in done[rank])
    )
    for output, consumers in readers:
        for task in columns.arrivals[position, output]:
            columns.successors[task] = list(dict.fromkeys(columns.successors[task] + consumers))


def _add_buffers(
    columns: _Columns, op: Op, position: int, device: int, here: dict[tuple[int, int], list[int]]
) -> None:
    """The buffers of one op; ``here`` lists the readers of each tensor on the producer's own
    device.
    """
    columns.buffer(op.name, device, op.param_bytes, "parameters", PERSISTENT, [])
    columns.buffer(f"gradient of {op.name}", device, op.grad_bytes, "gradients", PERSISTENT, [])
    columns.buffer(f"state of {op.name}", device, op.state_bytes, "optimizer state", PERSISTENT, [])
    columns.buffer(f"workspace of {op.name}", device, op.workspace_bytes, "workspace", position, [])
    if owns_outputs(op) and columns.memory.model == "full":
        return  # What it hands to its readers are the parameters themselves, counted above
    _add_outputs(columns, op, position, (device,) * len(op.outputs), here)


def _add_outputs(
    columns: _Columns,
    op: Op,
    position: int,
    devices: Sequence[int],
    here: dict[tuple[int, int], list[int]],
) -> None:
    """The buffers of the outputs, by output on these devices; who reads a view reads the buffer of
    its base.
    """
    readers_of = columns.readers_of
    for output, tensor in enumerate(op.outputs):
        readers = list(here.get((position, output), ()))
        if tensor.view_of is not None:
            base = readers_of[position, tensor.view_of]
            base += [reader for reader in readers if reader not in base]
            readers_of[position, output] = base
            continue
        columns.buffer(
            f"{op.name}:{output}", devices[output], tensor.bytes, "activations", position, readers
        )
        readers_of[position, output] = readers  # transfers that read the buffer join them


def _add_transfer(
    columns: _Columns, prepared: Prepared, transfer: Transfer, queues: list[Resource]
) -> None:
    """The tasks of one transfer, piece by piece and chunk by chunk, with the buffers that they
    fill.
    """
    reads = prepared.reads
    producer, output = int(reads.producer[transfer.tensor]), int(reads.output[transfer.tensor])
    label = _label(prepared, transfer, producer, output)
    begins, arrives = _add_hops(
        columns, prepared, transfer, (producer, output, TRANSFER), label, queues
    )
    for before in columns.arrivals.get((producer, output), (producer,)):
        columns.successors[before].extend(begins)
    columns.readers_of.get((producer, output), []).extend(begins)
    for task in arrives:
        columns.successors[task].extend(transfer.consumers)
    _add_copies(columns, transfer, label, arrives[0], int(reads.bytes[transfer.tensor]), prepared)


def _add_hops(
    columns: _Columns,
    prepared: Prepared,
    transfer: Transfer,
    what: tuple[int, int, str],
    label: str,
    queues: list[Resource],
) -> tuple[list[int], list[int]]:
    """Piece by piece of the route. ``what`` is sent: op, output, kind.

    Returns first and last piece's tasks.
    """
    begins: list[int] = []
    before: list[int] = []
    for hop, segment in enumerate(transfer.segments):
        last = hop == len(transfer.segments) - 1
        stage = segment.route.devices[-1]
        name = label if last else f"{label}@{prepared.cluster.devices[stage].name}"
        tasks = _add_hop(columns, prepared, transfer, segment, name, what, queues)
        begins = begins or tasks
        for earlier, task in zip(before, tasks, strict=False):
            columns.successors[earlier].append(task)
        if not last:
            first = len(columns.names)
            for task, size in zip(tasks, transfer.chunks, strict=True):
                columns.buffer(
                    columns.names[task], stage, size, "staging", task, [task - tasks[0] + first]
                )
        before = tasks
    return begins, before


def _add_hop(
    columns: _Columns,
    prepared: Prepared,
    transfer: Transfer,
    segment: Segment,
    name: str,
    what: tuple[int, int, str],
    queues: list[Resource],
) -> list[int]:
    """One task a chunk over one segment. Returns their rows."""
    op, output, kind = what
    flows, chunks, held = bool(segment.flow_links), transfer.chunks, segment.resources
    if len(chunks) > 1 and not segment.waits:
        # Chunks of one transfer follow one another even where transfers never wait: a queue of
        # their own.
        held = (len(queues),)
        queues.append(Resource(f"lane {name}"))
    first = len(columns.names)
    ends = segment.route.devices[0], segment.route.devices[-1]
    for c, size in enumerate(chunks):
        task = len(columns.names)
        duration = segment.held_ps if flows else transfer_ps(size, segment)
        columns.names.append(name if len(chunks) == 1 else f"{name}#{c}")
        columns.kinds.append(kind)
        columns.numbers.append((op, output, *ends, duration, segment.lag_ps, segment.gap_ps, size))
        columns.resources.append(held)
        columns.links.append(segment.flow_links)
        # Flows of one transfer that shared a link would all end together: they too follow one
        # another.
        columns.successors.append([task + 1] if flows and c < len(chunks) - 1 else [])
        columns.consumers[task] = transfer.consumers
    return list(range(first, len(columns.names)))


def _label(prepared: Prepared, transfer: Transfer, producer: int, output: int) -> str:
    """``op:output>device``, and ``/consumer`` where every consumer has a transfer of its own."""
    names = ",".join(prepared.cluster.devices[d].name for d in transfer.destinations)
    label = f"{prepared.graph.ops[producer].name}:{output}>{names}"
    if prepared.cluster.transfer == "per-consumer":
        label += f"/{prepared.graph.ops[transfer.consumers[0]].name}"
    return label


def _add_copies(
    columns: _Columns, transfer: Transfer, label: str, filler: int, size: int, prepared: Prepared
) -> None:
    for destination in transfer.destinations:
        readers = [c for c in transfer.consumers if columns.numbers[c][2] == destination]
        name = (
            label
            if len(transfer.destinations) == 1
            else f"{label} on {prepared.cluster.devices[destination].name}"
        )
        columns.buffer(name, destination, size, "received copies", filler, readers)


def _task_graph(columns: _Columns, prepared: Prepared, queues: list[Resource]) -> TaskGraph:
    cluster = prepared.cluster
    op, output, source, destination, duration, lag, gap, size = _split(columns.numbers, 8)
    where, held, kind, filler, asked = _split(columns.buffer_numbers, 5)
    flows, half_links = prepared.fabric.shares_rates, prepared.fabric.flow_links
    tasks = Tasks(
        name=tuple(columns.names),
        kind=tuple(columns.kinds),
        op=op,
        output=output,
        source=source,
        destination=destination,
        duration=duration,
        lag=lag,
        gap=gap,
        priority=np.zeros(len(op), np.int64),
        bytes=size,
        flow=np.array([flows and kind in SENT for kind in columns.kinds], np.bool_),
        resources=Rows.of(columns.resources),
        links=Rows.of(columns.links),
        successors=Rows.of(columns.successors),
    )
    requested = None if (held == asked).all() else asked
    buffers = Buffers(
        tuple(columns.buffer_names), where, held, kind, filler, Rows.of(columns.readers), requested
    )
    return TaskGraph(
        tasks,
        tuple(queues),
        buffers,
        tuple(device.name for device in cluster.devices),
        np.array(
            [-1 if device.memory is None else device.memory for device in cluster.devices], np.int64
        ),
        tuple(half_link.name for half_link in half_links),
        np.array([float(half_link.link.bandwidth) for half_link in half_links], np.float64),
    )


def _split(rows: Sequence[tuple[int, ...]], width: int) -> list[Ints]:
    """The columns of a list of rows."""
    table = np.array(rows, np.int64).reshape(-1, width)
    return [table[:, column].copy() for column in range(width)]
