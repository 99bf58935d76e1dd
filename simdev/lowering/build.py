"""The pass that turns placed ops and their transfers into tasks, resources and buffers.

``lower_step`` and pipelines over graphs (stages.py) build every step here. The kernels of
``oracle.placements`` (step.py: times, evaluator.py: memory) and ``oracle.splits`` compute the same
integers without a task graph, so a change of tasks, transfers or buffers must be made there too.
The end of this module gives a lowered step other times; a new kind of task with a duration must be
handled there, or be refused by ``can_be_retimed``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..ground.errors import refuse
from ..nouns.fabric import transfer_ps
from ..nouns.graph import Op
from ..nouns.strategy import Strategy, Sync
from ..nouns.structure import TensorOf, hands_out_parameters
from ..nouns.taskgraph import (
    COLLECTIVE,
    PERSISTENT,
    STREAM_PREFIX,
    TRANSFER,
    Ints,
    Rows,
    Sharing,
    TaskGraph,
    Tasks,
)
from .collective import Ring, add_steps
from .columns import NONE, Columns
from .prepare import Prepared
from .sharing import computing, slows
from .steps import LoweredStep
from .transfer import (
    Transfer,
    add_hops,
    add_reserves,
    chunks_of,
    machine_columns,
    on_cluster,
    resources,
    transfers,
)

STATE_OF, GRADIENT_OF = "state of ", "gradient of "
"""Prefixes of the names of a parameter's buffers: its optimizer state, and its gradient."""


class Built(NamedTuple):
    """The task graph of a placement, with fifo queues; its first tasks are the ops.

    ``consumers`` are the ops that each transfer task serves; ``buffer_of`` is the buffer of each
    output (a view has that of its base; NONE: it has no bytes); ``ends`` are the last messages of
    each expanded collective, by its op; ``streams`` are pairs of a last task and the first op of a
    stream.
    """

    task_graph: TaskGraph
    consumers: Mapping[int, tuple[int, ...]]
    buffer_of: Mapping[TensorOf, int]
    ends: Mapping[int, tuple[int, ...]]
    streams: tuple[tuple[int, int], ...]


def build(prepared: Prepared, placement: list[int]) -> Built:
    """The task graph of a placement. Raises InputError, MissingCostError."""
    prepared.require_costs(placement)
    _require_ranks(prepared, placement)
    tasks = _Tasks(prepared, placement)
    add_reserves(tasks.columns, prepared, set(placement))
    tasks.add_ops()
    for transfer in transfers(prepared, placement):
        tasks.add_transfer(transfer)
    tasks.expand_until(len(placement))
    ends = {op: tuple(last) for (op, output), last in tasks.arrivals.items() if output == NONE}
    streams = tuple(tasks.chain_streams())
    return Built(tasks.task_graph(), tasks.consumers, tasks.buffer_of, ends, streams)


def _require_ranks(prepared: Prepared, placement: list[int]) -> None:
    """Raise InputError unless every input of a collective op is on its rank."""
    graph, names = prepared.graph, [device.name for device in prepared.cluster.devices]
    homes = (
        (i, j, text, prepared.home(*graph.resolve(text), placement), rank)
        for i, ring in prepared.rings.items()
        for j, (text, rank) in enumerate(zip(graph.ops[i].inputs, ring.inputs_on, strict=True))
    )
    refuse(
        f'ops[{i}].inputs[{j}]: "{text}" lies on {names[home]}, rank {j} is {names[rank]}'
        for i, j, text, home, rank in homes
        if home != rank
    )


class _Tasks:
    """The columns of a placement while they grow.

    ``expanded`` are the collectives whose messages are still to be written, in program order, with
    the readers of their outputs on the same device: pairs (output, or -1 for a control input;
    readers). ``arrivals`` are the tasks after which an output of an expanded collective is there.
    """

    def __init__(self, prepared: Prepared, placement: Sequence[int]) -> None:
        self.prepared, self.placement, self.rings = prepared, placement, prepared.rings
        self.columns = Columns(prepared.memory, resources(prepared.fabric))
        self.holders = prepared.holders
        self.consumers: dict[int, tuple[int, ...]] = {}
        self.buffer_of: dict[TensorOf, int] = {}
        self.expanded: dict[int, list[tuple[int, list[int]]]] = {
            i: [] for i, ring in self.rings.items() if ring.expanded
        }
        self.arrivals: dict[TensorOf, list[int]] = {}
        self._stream_queues: dict[tuple[int, str], int] = {}
        self._names = [device.name for device in prepared.cluster.devices]
        # Plain lists: each transfer looks its tensor up, and numpy's scalars are slow there.
        reads = prepared.reads
        numbers = (reads.producer, reads.output, reads.bytes)
        self._producer, self._output, self._bytes = (column.tolist() for column in numbers)
        self._by_consumer = prepared.cluster.transfer == "per-consumer"

    def add_ops(self) -> None:
        """Write the task of every op, in the row of its position, and the edges within devices."""
        prepared, placement = self.prepared, self.placement
        readers = self._local_readers()
        rows = np.arange(len(placement))
        durations = prepared.duration_at(rows, np.array(placement, np.int64)).tolist()
        gaps = prepared.gap_ps.tolist()
        # Ops are the first tasks, in file order: ids break ties, and the row identifies the op.
        for i, op in enumerate(prepared.graph.ops):
            if i in self.rings:
                self._add_collective(op, i, self.rings[i], readers)
                continue
            device = placement[i]
            self.columns.task(
                op.name,
                op.phase,
                (device, device),
                op=i,
                duration=durations[i],
                # No gap follows an op that takes no time: nothing was launched.
                gap=gaps[device] if durations[i] > 0 else 0,
                held=self._streams(i) or (device,),
            )
            self._add_buffers(op, i, device, readers)

    def _streams(self, i: int) -> list[int]:
        """The queues of an op's stream on all devices that run it; empty without a stream."""
        stream, queues = self.prepared.graph.ops[i].stream, self._stream_queues
        if stream is None:
            return []
        devices = self.rings[i].ranks if i in self.rings else (self.placement[i],)
        for device in devices:
            if (device, stream) not in queues:
                name = f"{STREAM_PREFIX}{stream} {self._names[device]}"
                queues[device, stream] = self.columns.queue(name, device=device)
        return [queues[device, stream] for device in devices]

    def chain_streams(self) -> Iterator[tuple[int, int]]:
        """Let every op of a stream wait for the op before it in the program, under any policy of
        queues; returns pairs of the last tasks and the first op of each stream.

        A collective is in the streams of all of its ranks. Since these edges fix the order, the
        policy of a stream's queue decides nothing, and a collective can hold it together with
        queues of transfers.
        """
        first, last = dict[int, int](), dict[int, Sequence[int]]()
        for i in self.prepared.graph.streamed:
            for queue in self._streams(i):
                self.columns.wait(i, last.get(queue, ()))
                first.setdefault(queue, i)
                last[queue] = self.arrivals.get((i, NONE), (i,))
        for queue, i in first.items():
            yield from ((task, i) for task in last[queue])

    def _local_readers(self) -> dict[TensorOf, list[int]]:
        """The readers of each tensor on its device, or all of its readers where the memory model
        counts them; edges to readers on the device are added.
        """
        prepared, placement = self.prepared, self.placement
        reads = prepared.reads
        outputs_only = prepared.memory.model == "outputs_only"
        readers: dict[TensorOf, list[int]] = {}
        keys = zip(
            reads.producer.tolist(), reads.output.tolist(), reads.consumers.each(), strict=True
        )
        for producer, output, consumers in keys:
            here = [c for c in consumers if prepared.reads_there(producer, output, c, placement)]
            if producer in self.expanded:
                self.expanded[producer].append((output, here))
            else:
                self.columns.release(producer, here)
            readers[producer, output] = consumers if outputs_only else here
        return readers

    def _add_collective(
        self, op: Op, i: int, ring: Ring, readers: Mapping[TensorOf, list[int]]
    ) -> None:
        """Write the task of a collective op, which for an expanded one only starts its messages,
        and its outputs on their ranks.
        """
        # Flows and expanded collectives hold no stream.
        streams = [] if ring.expanded or self.prepared.fabric.shares_rates else self._streams(i)
        self.columns.task(
            op.name,
            op.phase if ring.expanded else COLLECTIVE,
            (ring.ranks[0], ring.ranks[0 if ring.expanded else -1]),
            op=i,
            duration=ring.duration_ps,
            size=0 if ring.expanded else ring.bytes,
            held=(*ring.resources, *streams),
            links=ring.half_links,
            flow=self.prepared.fabric.shares_rates and not ring.expanded,
        )
        self._add_outputs(op, i, ring.outputs_on, readers)

    def _add_buffers(
        self, op: Op, i: int, device: int, readers: Mapping[TensorOf, list[int]]
    ) -> None:
        buffer = self.columns.buffer
        buffer(op.name, device, op.param_bytes, "parameters", PERSISTENT)
        buffer(f"{GRADIENT_OF}{op.name}", device, op.grad_bytes, "gradients", PERSISTENT)
        buffer(f"{STATE_OF}{op.name}", device, op.state_bytes, "optimizer state", PERSISTENT)
        space, needed = op.workspace_bytes, self.prepared.costed.updating.get(i)
        buffer(f"workspace of {op.name}", device, space, "workspace", i, requested=needed)
        # The output of a parameter is the parameter itself, which is counted above.
        if not (hands_out_parameters(op) and self.prepared.memory.model == "full"):
            self._add_outputs(op, i, (device,) * len(op.outputs), readers)

    def _add_outputs(
        self, op: Op, i: int, devices: Sequence[int], readers: Mapping[TensorOf, list[int]]
    ) -> None:
        """Write the buffers of the outputs; ``devices`` has the device of each. A reader of a view
        reads the buffer of its base.
        """
        for output, tensor in enumerate(op.outputs):
            if tensor.view_of is None:
                row = self.columns.buffer(
                    f"{op.name}:{output}", devices[output], tensor.bytes, "activations", i
                )
            else:
                row = self.buffer_of[i, tensor.view_of]
            self.buffer_of[i, output] = row
            self.columns.read(row, readers.get((i, output), ()))
            if (i, output) in self.holders and (i, output) in readers:
                self.columns.read(row, (self.holders[i, output],))

    # Messages and transfers

    def expand_until(self, producer: int) -> None:
        """Write the messages of the expanded collectives up to this op (position); readers wait
        until their rank is done, and the messages read the buffers until then.
        """
        while self.expanded and next(iter(self.expanded)) <= producer:
            position = next(iter(self.expanded))
            self._expand(position, self.expanded.pop(position))

    def _expand(self, position: int, readers: Iterable[tuple[int, list[int]]]) -> None:
        op, ring, columns = self.prepared.graph.ops[position], self.rings[position], self.columns

        def send(
            source: int, destination: int, size: int, number: int
        ) -> tuple[list[int], list[int]]:
            segments = self.prepared.segments(source, destination)
            chunks = chunks_of(self.prepared, size, segments)
            message = Transfer(-1, (destination,), (position,), segments, chunks)
            label = f"{op.name}[{number}] {self._names[source]}>{self._names[destination]}"
            return self._add_hops(message, (position, NONE, COLLECTIVE), label)

        done = add_steps(ring.steps, position, send, columns.wait)
        for text, rank in zip(op.inputs, ring.inputs_on, strict=True):
            columns.read(self.buffer_of.get(self.prepared.graph.resolve(text), NONE), done[rank])
        for output, rank in enumerate(ring.outputs_on):
            self.arrivals[position, output] = done[rank]
            if op.outputs[output].view_of is None:
                columns.read(self.buffer_of[position, output], done[rank])
        everything = dict.fromkeys(task for rank in ring.ranks for task in done[rank])
        self.arrivals[position, NONE] = list(everything)
        for output, consumers in readers:
            for task in self.arrivals[position, output]:
                columns.release(task, consumers)

    def add_transfer(self, transfer: Transfer) -> None:
        """Write the tasks of a transfer, piece by piece and chunk by chunk, and the buffers that
        they fill.
        """
        columns, placement = self.columns, self.placement
        tensor = self._producer[transfer.tensor], self._output[transfer.tensor]
        if self.expanded:
            # Ids follow producers: the messages of a collective come before transfers of it.
            self.expand_until(tensor[0])
        label = self._label(transfer, *tensor)
        begins, arrives = self._add_hops(transfer, (*tensor, TRANSFER), label)
        for before in self.arrivals.get(tensor, tensor[:1]):
            columns.release(before, begins)
        for task in arrives:
            columns.release(task, transfer.consumers)
        columns.read(self.buffer_of.get(tensor, NONE), begins)
        size, several = self._bytes[transfer.tensor], len(transfer.destinations) > 1
        for device in transfer.destinations:
            readers = [c for c in transfer.consumers if placement[c] == device]
            name = f"{label} on {self._names[device]}" if several else label
            # The first chunk to arrive fills the buffer: an allocator takes all of it at once.
            columns.buffer(name, device, size, "received copies", arrives[0], readers)

    def _label(self, transfer: Transfer, producer: int, output: int) -> str:
        """The name ``op:output>device``, with ``/consumer`` where each consumer has a transfer."""
        ops, consumer = self.prepared.graph.ops, ""
        names = ",".join([self._names[device] for device in transfer.destinations])
        if self._by_consumer:
            consumer = f"/{ops[transfer.consumers[0]].name}"
        return f"{ops[producer].name}:{output}>{names}{consumer}"

    def _add_hops(
        self, transfer: Transfer, sent: tuple[int, int, str], label: str
    ) -> tuple[list[int], list[int]]:
        """Write the tasks of a transfer; ``sent`` are their op, output and kind. Returns the tasks
        of the first and of the last piece of its route.
        """
        first, fabric = self.columns.next_task, self.prepared.fabric
        ends = add_hops(self.columns, fabric, transfer.segments, transfer.chunks, sent, label)
        for task in range(first, self.columns.next_task):
            self.consumers[task] = transfer.consumers
        return ends

    def task_graph(self) -> TaskGraph:
        """The finished task graph."""
        task_graph = on_cluster(self.columns, self.prepared)
        groups = {i: ring.members for i, ring in self.rings.items() if ring.members}
        return replace(task_graph, sharing=self._sharing(task_graph.tasks), groups=groups)

    def _sharing(self, tasks: Tasks) -> tuple[Sharing, ...]:
        """The devices on which each task computes, and those on which it is part of a collective
        (all ranks of an op, the two ends of a message), where computation and collectives slow each
        other; else nothing.
        """
        slowdown = self.prepared.collectives.slowdown
        if slowdown == 1 or not self.rings:
            return ()
        devices: list[tuple[int, ...]] = []
        for row, kind in enumerate(tasks.kind):
            ends = int(tasks.source[row]), int(tasks.destination[row])
            ranks = self.rings[row].ranks if row in self.rings else ends
            devices.append(ranks if kind == COLLECTIVE else ())
        return (Sharing(slowdown, computing(tasks), Rows.of(devices)),)


# A lowered step on machines that differ only in their speeds: the same tasks with other times.
# Lowering a step of some thousands of ops takes longer than simulating it. So only times are
# computed again, by the functions that lowering calls (``Prepared.duration``,
# ``fabric.transfer_ps``).


def can_be_retimed(prepared: Prepared, strategy: Strategy) -> bool:
    """Whether each task of a step is an op, its dispatch, or a piece of a transfer between two
    devices, and the set of tasks depends on no time: no split ops, synchronised gradients, loaders,
    collectives, multicasts or tasks that slow each other. See also ``hangs_on_op_times``.
    """
    cluster = prepared.cluster
    return not (
        strategy.splits
        or strategy.loader is not None
        or isinstance(strategy.sync, Sync)
        or prepared.rings
        or cluster.transfer == "multicast"
        or slows(cluster)
    )


def hangs_on_op_times(strategy: Strategy) -> bool:
    """Whether the stages of a pipeline are cut by the times of their ops, so that other times may
    move ops to other stages.
    """
    return strategy.pipeline is not None and not strategy.pipeline.stages


def retimed(step: LoweredStep, prepared: Prepared) -> LoweredStep:
    """A step that ``can_be_retimed``, with the times of ``prepared``: the same graph on a cluster
    of the same devices and links. All bandwidths must be higher by a single factor; latencies,
    memories and op times are free (op times not where the step ``hangs_on_op_times``). Raises
    InputError.
    """
    tasks = step.task_graph.tasks
    duration, lag, gap = tasks.duration.copy(), tasks.lag.copy(), tasks.gap.copy()
    sends = step.task_graph.of_kind(TRANSFER)
    # In every microbatch ``op`` is the op's row in the graph.
    runs = np.flatnonzero(~sends)
    duration[runs] = prepared.duration_at(tasks.op[runs], tasks.source[runs])
    moved = np.flatnonzero(sends)
    duration[moved], lag[moved], gap[moved] = _transfers(tasks, moved, prepared)
    changed = replace(tasks, duration=duration, lag=lag, gap=gap)
    capacity, bandwidth = machine_columns(prepared)
    graph = replace(step.task_graph, tasks=changed, capacity=capacity, bandwidth=bandwidth)
    return replace(step, task_graph=graph)


def retimes_to_itself(step: LoweredStep, prepared: Prepared) -> bool:
    """Whether ``retimed`` gives a step its own times back, with the ``prepared`` that it was
    lowered from. A check for kinds of tasks that ``can_be_retimed`` does not know.
    """
    before, after = step.task_graph.tasks, retimed(step, prepared).task_graph.tasks
    columns = ("duration", "lag", "gap")
    return all(np.array_equal(getattr(before, name), getattr(after, name)) for name in columns)


def _transfers(tasks: Tasks, rows: Ints, prepared: Prepared) -> tuple[Ints, Ints, Ints]:
    """The columns (duration, lag, gap) in ps of transfers, each over a piece of a route. Raises
    InputError.
    """
    times: dict[tuple[int, int, int, int], tuple[int, int, int]] = {}
    ways = _ways(tasks, rows)
    columns = (column[rows].tolist() for column in (*ways, tasks.bytes))
    keys = list(zip(*columns, strict=True))
    for key in dict.fromkeys(keys):
        source, destination, piece, size = key
        segment = prepared.segments(source, destination)[piece]
        held = segment.held_ps if segment.flow_links else transfer_ps(size, segment)
        times[key] = held, segment.lag_ps, segment.gap_ps
    duration, lag, gap = np.array([times[key] for key in keys], np.int64).reshape(-1, 3).T
    return duration, lag, gap


def _ways(tasks: Tasks, transfers: Ints) -> tuple[Ints, Ints, Ints]:
    """For each transfer task, the source and destination of its whole route, and the number of its
    piece on it, from 0: a piece may differ from the route between the ends of the piece.
    """
    source, destination = tasks.source.copy(), tasks.destination.copy()
    piece, sends = np.zeros(len(tasks), np.int64), np.zeros(len(tasks), np.bool_)
    sends[transfers] = True
    before, after = tasks.successors.owners(), tasks.successors.ids
    onward = sends[before] & sends[after] & (tasks.destination[before] == tasks.source[after])
    before, after = before[onward], after[onward]
    longest = -1
    while longest < piece.max(initial=0):  # each round reaches one staging device more
        longest = piece.max(initial=0)
        piece[after] = piece[before] + 1
        source[after], destination[before] = source[before], destination[after]
    return source, destination, piece
