"""The use of devices, queues and links: how much of a step each device computes and each queue or
link carries.

Four parts tile the step of a device. *Busy*: it computes (its gaps do not count). *Exposed*
communication: it computes nothing while a transfer from or to it, or a collective that it takes
part in, is in flight, from its start to its release (finish + lag). *Waiting for its host*:
neither, while the thread that dispatches its ops dispatches any. The *bubble*: none of these; it
waits for others' computing. Exposed communication is the figure that Holistic Trace Analysis counts
on each rank (communication that no computing overlaps). If transfers take no time, the bubble is
GPipe's, (p - 1) / (m + p - 1) on p equal stages. All parts but the first are *idle* time.

A queue or link is busy while it carries a transfer (``carriers``, which what-ifs and the load of
the page use too). Memory comes from the trace (``nouns/trace.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ...ground.units import PS_PER_SECOND, format_bytes, format_ps
from ...lowering.symmetry import IDLE, Symmetry
from ...nouns.taskgraph import COLLECTIVE, DISPATCH, Bools, Ints, Rows, TaskGraph, distinct
from ...nouns.trace import PERSISTENT_BUFFERS, DeviceMemory, Overflow, Trace
from ..table import BYTES, COUNT, LIMIT, SHARE, TEXT, TIME, Json, Table, fields_json, shorten
from .section import Facts, Places, Section, Step
from .spans import (  # fmt: skip
    Window,
    apart,
    computing,
    computing_mask,
    group,
    is_compute_stream,
    is_stream,
    is_thread,
    sent_mask,
    shown_devices,
    transfer_mask,
)
from .spread import sent_bytes

DEVICES_SHOWN = 16
LIVE_SHOWN = 10  # the largest live buffers at the first overflow that are shown


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """The use of a device over the step: the number of ``ops``, the four parts that tile the step
    in ps, ``utilization`` = busy / step, and its memory.
    """

    name: str
    ops: int
    busy_ps: int
    exposed_ps: int
    hosted_ps: int
    bubble_ps: int
    utilization: float
    memory: DeviceMemory

    def to_json(self) -> Json:
        """One entry of ``devices``."""
        memory = self.memory
        return {
            "ops": self.ops,
            "busy_s": self.busy_ps / PS_PER_SECOND,
            "utilization": self.utilization,
            "exposed_communication_s": self.exposed_ps / PS_PER_SECOND,
            "waiting_for_host_s": self.hosted_ps / PS_PER_SECOND,
            "bubble_s": self.bubble_ps / PS_PER_SECOND,
            "peak_bytes": memory.peak,
            "peak_time_s": memory.peak_ps / PS_PER_SECOND,
            "capacity_bytes": memory.capacity,
            "peak_by_kind": dict(memory.at_peak),
            "overflow": None if memory.overflow is None else _overflow_json(memory.overflow),
        }


@dataclass(frozen=True, slots=True)
class LinkUse:
    """The use of a queue or link over the step: number of ``transfers`` and their ``bytes``,
    ``busy_ps``, ``utilization`` = busy / step.

    Transfers that hold no queue and share no link are named by their ends, ``gpu:0 -> gpu:1``.
    """

    name: str
    transfers: int
    bytes: int
    busy_ps: int
    utilization: float


def _overflow_json(overflow: Overflow) -> Json:
    live = overflow.live[:LIVE_SHOWN]
    return {
        "time_s": overflow.time_ps / PS_PER_SECOND,
        "task": overflow.task,
        "excess_bytes": overflow.excess,
        "live": [{"buffer": name, "bytes": size} for name, size in live],
    }


def device_use(
    trace: Trace, window: Window, memories: Sequence[DeviceMemory]
) -> tuple[DeviceUse, ...]:
    """The use of every device, in the order of the cluster."""
    runs, moves = computing(trace.task_graph), transfer_mask(trace.task_graph)
    touches = group(*_ends(trace, np.flatnonzero(moves)), len(runs))
    launches = _launches(trace.task_graph)
    # One sort for all devices: a search for each would cost devices x tasks.
    return tuple(
        _device(trace, window, *of_device)
        for of_device in zip(runs, touches, launches, memories, strict=True)
    )


def _launches(task_graph: TaskGraph) -> list[Ints]:
    """By device all tasks of the threads that dispatch its ops."""
    sent, tasks = np.flatnonzero(task_graph.of_kind(DISPATCH)), task_graph.tasks
    thread = tasks.resources.ids[tasks.resources.ptr[sent]]
    by_thread = group(thread, sent, len(task_graph.resources))
    pairs = np.unique(np.stack((tasks.source[sent], thread), axis=1), axis=0)
    launches = [np.zeros(0, np.int64)] * len(task_graph.devices)
    for device, resource in pairs.tolist():
        launches[device] = np.concatenate((launches[device], by_thread[resource]))
    return launches


def _device(
    trace: Trace, window: Window, run: Ints, touch: Ints, launch: Ints, memory: DeviceMemory
) -> DeviceUse:
    """The use of a device, from the tasks that compute there (``run``), the transfers from or to it
    (``touch``), and the tasks of its host's thread (``launch``).
    """
    tasks, covered = np.concatenate((run, touch, launch)), [0]
    released = trace.finish[tasks] + trace.task_graph.tasks.lag[tasks]
    released[: len(run)] = trace.finish[run]
    # Each union contains the one before; the difference is time that nothing earlier covers.
    for count in (len(run), len(run) + len(touch), len(tasks)):
        covered.append(window.covered_ps(trace.start[tasks[:count]], released[:count]))
    # Cumulative sums are divided by the steps, so that the rounded parts tile the step.
    a_step = [window.a_step(ps) for ps in (*covered, window.length_ps)]
    busy, exposed, hosted, bubble = (after - before for before, after in pairwise(a_step))
    ops, utilization = window.mean(len(run)), window.share(covered[1])
    return DeviceUse(memory.device, ops, busy, exposed, hosted, bubble, utilization, memory)


def _ends(trace: Trace, transfers: Ints) -> tuple[Ints, Ints]:
    """Pairs (device, transfer) for both ends of each transfer, the devices whose queues it holds,
    and the devices whose buffers it fills.

    A multicast, or a collective of one task, has more than two ends.
    """
    tasks, resources = trace.task_graph.tasks, trace.task_graph.resources
    buffers = trace.task_graph.buffers
    holder, held = tasks.resources.owners(), tasks.resources.ids
    device = np.array([resource.device for resource in resources], np.int64)[held]
    queued = (device >= 0) & np.isin(holder, transfers)
    filled = np.isin(buffers.filler, transfers)
    ends = tasks.source[transfers], tasks.destination[transfers]
    ranks, collective = _ranks(trace)
    devices = np.concatenate((*ends, device[queued], buffers.device[filled], ranks))
    rows = transfers, transfers, holder[queued], buffers.filler[filled], collective
    return devices, np.concatenate(rows)


def _ranks(trace: Trace) -> tuple[Ints, Ints]:
    """Pairs (device, collective) where one queue serves all ranks of a group: its ranks are the
    devices of computing tasks directly before or after its collectives.

    In a chain of collectives only the ends have such neighbours, so all collectives of a queue get
    the same ranks.
    """
    tasks, count = trace.task_graph.tasks, len(trace.task_graph.resources)
    grouped = trace.task_graph.of_kind(COLLECTIVE) & (np.diff(tasks.resources.ptr) == 1)
    rows = np.flatnonzero(grouped)
    queue = np.full(len(grouped), -1, np.int64)
    queue[rows] = tasks.resources.ids[tasks.resources.ptr[rows]]
    before, after = tasks.successors.owners(), tasks.successors.ids
    computes = computing_mask(trace.task_graph)
    into, out = grouped[after] & computes[before], grouped[before] & computes[after]
    queues = np.concatenate((queue[after[into]], queue[before[out]]))
    devices = np.concatenate((tasks.source[before[into]], tasks.source[after[out]]))
    number = len(trace.task_graph.devices)
    # Each pair as one number, so that pairs are sorted by queue, then by device.
    pairs = distinct(queues * number + devices)
    ranks = Rows(np.searchsorted(pairs // number, np.arange(count + 1)), pairs % number)
    # For each collective the ranks of its queue: the begin of each list, and the offsets in it.
    size = np.diff(ranks.ptr)[queue[rows]]
    first = np.cumsum(size) - size
    at = np.arange(int(size.sum())) + np.repeat(ranks.ptr[queue[rows]] - first, size)
    return ranks.ids[at], np.repeat(rows, size)


def exposed_ps(trace: Trace, window: Window) -> tuple[Ints, Ints]:
    """By task the number of computing devices that take part in it, and the ps that these wait for
    it together. A device waits for a transfer that is in flight while it computes nothing; of
    several transfers, for the one that began first.
    """
    tasks, released = trace.task_graph.tasks, trace.finish + trace.task_graph.tasks.lag
    runs = computing(trace.task_graph)
    touches = group(*_ends(trace, np.flatnonzero(transfer_mask(trace.task_graph))), len(runs))
    count, exposed = np.zeros((2, len(tasks)), np.int64)
    for run, both in zip(runs, touches, strict=True):
        touch = np.unique(both) if len(run) else both[:0]
        start = np.maximum(trace.start[touch], window.begin_ps)
        order, begin, length = apart(start, np.minimum(released[touch], window.end_ps))
        _, *busy = apart(trace.start[run], trace.finish[run])
        hidden = _covered(begin + length, *busy) - _covered(begin, *busy)
        count[touch] += 1
        exposed[touch[order]] += length - hidden
    return count, exposed


def _covered(time: Ints, begin: Ints, length: Ints) -> Ints:
    """The part of the time before each of ``time`` that is covered by spans without overlap."""
    if not len(begin):
        return np.zeros(len(time), np.int64)
    before = np.searchsorted(begin, time, side="right")
    last = np.maximum(before - 1, 0)
    so_far = np.concatenate(([0], np.cumsum(length)))[last]
    covered: Ints = so_far + np.clip(time - begin[last], 0, length[last])
    return covered


@dataclass(frozen=True, slots=True, eq=False)
class Carrier:
    """A carrier of transfers: a queue, a half-link or a pair of devices; ``start`` has the instant
    at which each task enters it (ps).
    """

    name: str
    tasks: Ints
    start: Ints


def link_use(trace: Trace, window: Window) -> tuple[LinkUse, ...]:
    """The use of every queue for transfers, then of every half-link that flows share, then of the
    pairs of devices whose transfers hold no queue.
    """
    uses = []
    for carrier in carriers(trace):
        carried = int(trace.task_graph.tasks.bytes[carrier.tasks].sum())
        busy = window.covered_ps(carrier.start, trace.finish[carrier.tasks])
        count, size = window.mean(len(carrier.tasks)), window.mean(carried)
        use = LinkUse(carrier.name, count, size, window.a_step(busy), window.share(busy))
        uses.append(use)
    return tuple(uses)


def carriers(trace: Trace) -> Iterator[Carrier]:
    """The carriers that ``link_use`` measures, in its order."""
    yield from _queues(trace)
    yield from _half_links(trace)
    yield from _unqueued(trace)


def _queues(trace: Trace) -> Iterator[Carrier]:
    task_graph = trace.task_graph
    rows = task_graph.tasks.resources
    holder = rows.owners()
    sends = transfer_mask(task_graph)[holder]
    holders = group(rows.ids[sends], holder[sends], len(task_graph.resources))
    for resource, held in zip(task_graph.resources, holders, strict=True):
        runs_ops = is_compute_stream(task_graph, resource) or is_stream(resource)
        if not (runs_ops or is_thread(resource)):
            yield Carrier(resource.name, held, trace.start[held])


def _half_links(trace: Trace) -> Iterator[Carrier]:
    tasks, names = trace.task_graph.tasks, trace.task_graph.links
    if not tasks.flow.any():
        return
    crossing = group(tasks.links.ids, tasks.links.owners(), len(names))
    for name, flows in zip(names, crossing, strict=True):
        # A flow's duration is its held latency, after which it enters its links (rule 5).
        enters = np.minimum(trace.start[flows] + tasks.duration[flows], trace.finish[flows])
        yield Carrier(name, flows, enters)


def _unqueued(trace: Trace) -> Iterator[Carrier]:
    tasks, devices = trace.task_graph.tasks, trace.task_graph.devices
    # Flows hold no queue but share links: ``_half_links`` counts them.
    free: Bools = (np.diff(tasks.resources.ptr) == 0) & (np.diff(tasks.links.ptr) == 0)
    rows = np.flatnonzero(sent_mask(trace.task_graph) & free)
    ends = tasks.source[rows] * len(devices) + tasks.destination[rows]
    pairs, where = np.unique(ends, return_inverse=True)
    members = group(where.astype(np.int64), rows, len(pairs))
    for pair, tasks_between in zip(pairs.tolist(), members, strict=True):
        source, destination = divmod(pair, len(devices))
        name = f"{devices[source]} -> {devices[destination]}"
        yield Carrier(name, tasks_between, trace.start[tasks_between])


def every_device(uses: Sequence[DeviceUse], symmetry: Symmetry) -> tuple[DeviceUse, ...]:
    """The use of every device of the cluster, copied from the device that was simulated in its
    place; buffers keep their names from there.
    """
    # Written out, since replace would look at every field, for thousands of devices.
    return tuple(
        DeviceUse(
            name, use.ops, use.busy_ps, use.exposed_ps, use.hosted_ps, use.bubble_ps,
            use.utilization, _memory(use.memory, name),
        )
        for name, use in symmetry.spread(uses)
    )  # fmt: skip


def _memory(memory: DeviceMemory, name: str) -> DeviceMemory:
    overflow = memory.overflow and replace(memory.overflow, device=name)
    return replace(memory, device=name, overflow=overflow)


def every_link(uses: Sequence[LinkUse], symmetry: Symmetry) -> tuple[LinkUse, ...]:
    """The use of every queue of transfers, copied from the queue that was simulated in its place,
    then of transfers that hold no queue.
    """
    unused, count = LinkUse("", 0, 0, 0, 0.0), int(symmetry.classes.max(initial=IDLE)) + 1
    queues = zip(symmetry.queues, symmetry.classes.tolist(), strict=True)
    used = (replace(unused if row == IDLE else uses[row], name=name) for name, row in queues)
    return (*used, *uses[count:])


@dataclass(frozen=True, slots=True)
class Devices(Section):
    """The use of every device of the cluster; ``shown`` marks the devices that get a row of the
    table (``shown_devices``). Each device represents ``copies`` devices; ``members`` is the number
    of ranks of the largest process group that is only partly simulated (0: there is none).
    """

    name = "devices"
    places = Places(entries=30, facts=30, tables=10, notes=30)

    uses: tuple[DeviceUse, ...]
    shown: Bools
    copies: int
    detailed: bool
    members: int

    @classmethod
    def of_step(cls, step: Step) -> Devices:
        """The devices of any step."""
        uses = device_use(step.paced, step.window, step.trace.memory)
        shown = shown_devices(step.trace.task_graph)
        if step.alike is not None:
            uses, shown = every_device(uses, step.alike), shown[step.alike.stands]
        members = max(step.trace.task_graph.groups.values(), default=0)
        return cls(uses, shown, step.copies, step.outcome.large is None, members)

    @property
    def working(self) -> tuple[DeviceUse, ...]:
        """The devices that run any op."""
        return tuple(device for device in self.uses if device.ops)

    def facts(self) -> Facts:
        """The number of devices that compute, and of their ops."""
        working, every = (len(uses) * self.copies for uses in (self.working, self.uses))
        others = f"; they stand for groups of up to {self.members:,}" if self.members else ""
        yield "devices that compute", f"{working:,} of {every:,}{others}"
        ops = sum(device.ops for device in self.working)
        yield "ops", f"{ops:,}{stands_for(self.copies, len(self.uses))}"

    def tables(self) -> Iterator[Table]:
        """The devices, a row each, the ``shown`` ones first; where a terminal cannot show all, the
        devices that run ops or hold memory first. A large model's step has tables of its own.
        """
        if not self.detailed:
            return
        count = int(self.shown.sum())
        many = count > DEVICES_SHOWN
        order = sorted(
            zip(self.uses, self.shown.tolist(), strict=True),
            key=lambda pair: (
                not pair[1], many and not pair[0].ops, many and not pair[0].memory.peak
            ),
        )  # fmt: skip
        rows = tuple(
            (
                device.name, device.ops, device.busy_ps, device.utilization, device.exposed_ps,
                device.memory.peak, device.memory.peak_ps, device.memory.capacity,
                device.memory.peak / device.memory.capacity if device.memory.capacity else None,
            )
            for device, _ in order
        )  # fmt: skip
        columns = {
            "device": TEXT, "ops": COUNT, "busy": TIME, "of step": SHARE, "exposed": TIME,
            "peak memory": BYTES, "peak at": TIME, "capacity": LIMIT, "used": SHARE,
        }  # fmt: skip
        note = "Exposed: a transfer from or to the device is under way while it computes nothing."
        yield Table("Devices", columns, rows, note, min(count, DEVICES_SHOWN))

    def notes(self) -> Iterator[str]:
        """The number of devices that stand for the ranks of their process groups."""
        if self.members:
            count = len(self.working)
            simulated = "1 device is" if count == 1 else f"{count:,} devices are"
            yield (
                f"{simulated} simulated for groups of up to "
                f"{self.members:,} ranks: collectives take as long as among all of these."
            )

    def to_json(self) -> Json:
        """The figures of each device, by name."""
        return {use.name: use.to_json() for use in self.uses}


def stands_for(copies: int, devices: int) -> str:
    """The words after a figure of the simulated devices, where they represent others."""
    return f" on the {devices:,} that stand for all" if copies > 1 else ""


@dataclass(frozen=True, slots=True)
class Memory(Section):
    """Whether the step fits, and the memory that devices hold at their peaks; each device
    represents ``copies`` devices.
    """

    name = "memory of devices"
    places = Places(entries=11, facts=80, asides=20, tables=11)

    trace: Trace
    memories: tuple[DeviceMemory, ...]
    copies: int
    detailed: bool
    in_terminal: bool

    @classmethod
    def of_step(cls, step: Step) -> Memory:
        """The memory of all devices over the whole trace."""
        memories = tuple(use.memory for use in step[Devices].uses)
        detailed, in_terminal = step.outcome.large is None, bool(step.outcome.memory.changes)
        return cls(step.trace, memories, step.copies, detailed, in_terminal)

    @property
    def overflows(self) -> tuple[tuple[DeviceMemory, Overflow], ...]:
        """The devices that exceed their memory, each with the first moment at which it does."""
        return tuple((m, m.overflow) for m in self.memories if m.overflow is not None)

    def asides(self) -> Iterator[str]:
        """The devices that exceed their memory, with the time and the task."""
        for _, overflow in self.overflows:
            first = format_ps(overflow.time_ps)
            excess = format_bytes(overflow.excess)
            yield f"{overflow.device}: {excess} over at {first}, with {overflow.task}."

    def facts(self) -> Facts:
        """The largest peak."""
        yield "largest peak", format_bytes(max((m.peak for m in self.memories), default=0))

    def tables(self) -> Iterator[Table]:
        """The bytes that devices hold at their peaks, by kind of buffer; empty devices are left
        out. A large model's step has tables of its own.
        """
        if not self.detailed:
            return
        held = [memory for memory in self.memories if memory.peak]
        kinds = list(dict.fromkeys(k for m in held for k, size in m.at_peak.items() if size))
        rows = tuple((m.device, *(m.at_peak.get(kind, 0) for kind in kinds)) for m in held)
        columns = {"device": TEXT} | dict.fromkeys(kinds, BYTES)
        shown = DEVICES_SHOWN if self.in_terminal else 0
        yield Table("Held at the peak", columns, rows, shown=shown)

    def entries(self) -> Json:
        """Whether the step fits, and the largest excess over a capacity in bytes."""
        return {
            "feasible": self.trace.feasible,
            "memory_excess_bytes": self.trace.memory_excess,
        }

    def verdict(self) -> Iterator[str]:
        """Whether the step fits; else the devices that exceed their memory, the time and the
        excess.
        """
        over = self.overflows
        if not over:
            limited = any(memory.capacity is not None for memory in self.memories)
            reason = "no device has a memory limit"
            if limited:
                reason = "every device stays within its memory"
            yield f"FITS: {reason}."
            return
        count, every = (self.copies * len(devices) for devices in (over, self.memories))
        yield f"DOES NOT FIT: {count:,} of {every:,} devices exceed their memory."
        for memory, overflow in over[:DEVICES_SHOWN]:
            yield from _overflow_lines(memory, overflow)
        if len(over) > DEVICES_SHOWN:
            yield f"  ... and {count - self.copies * DEVICES_SHOWN:,} more devices"


def _overflow_lines(memory: DeviceMemory, overflow: Overflow) -> Iterator[str]:
    first, peak = map(format_ps, (overflow.time_ps, memory.peak_ps))
    moment = f"when {shorten(overflow.task)} starts"
    if overflow.task == PERSISTENT_BUFFERS:
        moment = "by what is held throughout the step"
    yield (
        f"  {shorten(memory.device)}: {overflow.excess:,} bytes ({format_bytes(overflow.excess)}) "
        f"over at {first}, {moment}."
    )
    yield (
        f"    Its peak is {format_bytes(memory.peak)} of {format_bytes(memory.capacity or 0)}, at "
        f"{peak}. The largest buffers at that first moment:"
    )
    shown = LIVE_SHOWN // 2
    for name, size in overflow.live[:shown]:
        yield f"    {format_bytes(size):>12}  {shorten(name, 64)}"
    rest = [size for _, size in overflow.live[shown:]]
    if rest:
        yield f"    {format_bytes(sum(rest)):>12}  in {len(rest):,} more"


@dataclass(frozen=True, slots=True)
class Links(Section):
    """The use of every queue or link; a step has ``count`` transfers of ``bytes`` in all. Each of
    ``devices`` devices represents ``copies``.
    """

    name = "links"
    places = Places(entries=40, facts=40, tables=60)

    uses: tuple[LinkUse, ...]
    count: int
    bytes: int
    copies: int
    devices: int

    @classmethod
    def of_step(cls, step: Step) -> Links:
        """The queues and links of any step."""
        uses = link_use(step.paced, step.window)
        if step.alike is not None:
            uses = every_link(uses, step.alike)
        graph = step.trace.task_graph
        # Counts cover the whole trace, whose rounds (mostly single steps) have equal tasks.
        count = step.window.mean(int(np.count_nonzero(sent_mask(graph))))
        size = step.window.mean(sent_bytes(graph, step.alike))
        return cls(uses, count, size, step.copies, len(step[Devices].uses))

    def facts(self) -> Facts:
        """The number and the bytes of transfers."""
        where = stands_for(self.copies, self.devices)
        yield "transfers", f"{self.count:,} of {format_bytes(self.bytes)}{where}"

    def tables(self) -> Iterator[Table]:
        """The queues and links that carry anything, the busiest first."""
        used = sorted(
            (link for link in self.uses if link.transfers), key=lambda link: -link.busy_ps
        )
        rows = tuple(
            (link.name, link.transfers, link.bytes, link.busy_ps, link.utilization) for link in used
        )
        columns = {
            "queue or link": TEXT, "transfers": COUNT, "carried": BYTES, "busy": TIME,
            "of step": SHARE,
        }  # fmt: skip
        title = f"Transfers: {self.count:,} of {format_bytes(self.bytes)} in all"
        yield Table(title, columns, rows)

    def entries(self) -> Json:
        """All transfers together, and each queue or link by its name."""
        links = {link.name: fields_json(link, "name") for link in self.uses}
        return {"transfers": {"count": self.count, "bytes": self.bytes}, "links": links}
