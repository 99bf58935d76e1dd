"""Whether the columns form a schedule: every task ran once, after its predecessors, alone on its
resources.

Each rule is a sweep over sorted columns; ``queues`` checks the rounds within an instant. The bytes
of collectives are computed here independently of ``costs/collectives/phases.py``: a new algorithm,
or other limits of rings, must be added in both.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from ...ground.units import PS_PER_SECOND
from ...nouns.taskgraph import (
    BUFFER_KINDS,
    COLLECTIVE,
    PERSISTENT,
    TRANSFER,
    Floats,
    Ints,
    TaskGraph,
)
from .violation import Faults, Violation

# Bytes of collectives: each rank must get at least the bytes that it lacks, and the sum of all
# bytes sent must be that of a known algorithm (ring, tree, two levels), where one applies.
# The columns do not name the kind of a collective, so it is inferred from the bytes that the
# collective reads and leaves (fills) on each device. A collective of a single task has the bytes
# that one rank sends; an expanded collective has messages with their bytes (tasks of kind
# COLLECTIVE, whose op is the task that starts them).

Sizes = dict[int, int]  # bytes by device
Members = dict[int, list[int]]  # tasks of a collective, by the task that fills its buffers
# Limits of groups whose several rings have lanes of their own.
MOST_RANKS_OF_RINGS, MOST_RINGS = 16, 32


def collective_faults(task_graph: TaskGraph) -> Faults:
    """Rule ``bytes`` for collectives."""
    tasks, members = task_graph.tasks, _members(task_graph)
    for task in np.flatnonzero(tasks.op >= len(tasks)).tolist():
        if tasks.kind[task] == COLLECTIVE:
            name = tasks.name[task]
            text = f'"{name}" is of task {tasks.op[task]}: there is none'
            yield Violation("bytes", (name,), text)
    if not members:
        return
    left, read = _operands(task_graph, members)
    buffers = task_graph.buffers
    passing = set(buffers.filler[buffers.kind == BUFFER_KINDS.index("staging")].tolist())
    for op, messages in members.items():
        name, sizes = tasks.name[op], dict(left[op])
        if len(sizes) < len(left[op]):
            yield Violation("bytes", (name,), f'"{name}" leaves two buffers on one device')
            continue
        if ranks := task_graph.groups.get(int(tasks.op[op])):
            sizes, read[op] = _of_group(sizes, ranks), _of_group(read[op], ranks)
        needs, forms = _needs(sizes, read[op]), _known_totals(sizes, read[op])
        if messages == [op]:
            by_rank = {-(-total // len(sizes)) for total in forms}
            yield from _task_faults(task_graph, op, max(needs.values(), default=0), by_rank)
        else:
            yield from _expanded_faults(task_graph, name, messages, needs)
            # A message through a host is two tasks: the first fills its staging, and is left out.
            sent = sum(int(tasks.bytes[task]) for task in messages if task not in passing)
            yield from _total_faults(name, sent, forms)


def _members(task_graph: TaskGraph) -> Members:
    """The tasks of each collective, by the task that fills its buffers: the collective itself, or
    the task that starts its messages.

    Where steps follow one another, the ``op`` of all messages is the task of the first step; the
    n-th part of the messages belongs to the n-th step.
    """
    kinds, ops = list(task_graph.tasks.kind), task_graph.tasks.op.tolist()
    members: Members = {}
    messages: Members = defaultdict(list)
    for task, op in enumerate(ops):
        # Without an op no column shows the buffers that the collective reads and fills.
        if kinds[task] == COLLECTIVE and 0 <= op < len(ops):
            if kinds[op] == COLLECTIVE:
                members[task] = [task]
            else:
                messages[op].append(task)
    starts: Members = {op: [] for op in messages}
    for task, op in enumerate(ops):
        if op in starts and kinds[task] not in (COLLECTIVE, TRANSFER):
            starts[op].append(task)
    for op, sent in messages.items():
        steps = starts[op] or [op]
        share = -(-len(sent) // len(steps))
        members |= {start: sent[k * share : (k + 1) * share] for k, start in enumerate(steps)}
    return members


def _operands(
    task_graph: TaskGraph, ops: Members
) -> tuple[dict[int, list[tuple[int, int]]], dict[int, Sizes]]:
    """For each collective, the buffers (device, bytes) that it fills, and the bytes that it reads
    on each device.
    """
    buffers = task_graph.buffers
    left: dict[int, list[tuple[int, int]]] = {op: [] for op in ops}
    read: dict[int, Sizes] = {op: defaultdict(int) for op in ops}
    fillers, devices = buffers.filler.tolist(), buffers.device.tolist()
    columns = zip(fillers, devices, buffers.requested_bytes.tolist(), strict=True)
    for row, (filler, device, size) in enumerate(columns):
        if filler in left:
            left[filler].append((device, size))
        for reader in buffers.readers[row].tolist():
            if reader in read and filler != reader:
                read[reader][device] += size
    return left, read


def _of_group(sizes: Sizes, ranks: int) -> Sizes:
    """The bytes of all ranks of a group. Ranks that are not simulated get negative device numbers
    and the most bytes of any other.
    """
    others = range(len(sizes) - ranks, 0) if sizes else ()
    return {**sizes, **dict.fromkeys(others, max(sizes.values(), default=0))}


def _needs(left: Sizes, read: Sizes) -> Sizes:
    """The least bytes that each device must receive.

    These are the bytes that it is left with and did not read. In a sum, or an exchange of equal
    parts, each of n ranks receives all but one part in n; so it is where nothing is read, for the
    inputs may be in place already.
    """
    ranks = len({*left, *read})
    return {
        device: size - read.get(device, 0)
        if read and size > read.get(device, 0)
        else size - -(-size // max(ranks, 1))
        for device, size in left.items()
    }


def _known_totals(left: Sizes, read: Sizes) -> set[int]:
    """The total bytes that n ranks send under each known algorithm; empty unless every rank both
    reads bytes and is left with bytes.

    In an all-gather or reduce-scatter each rank sends all parts but one, each padded to the
    largest. With S bytes on each rank, a ring (or direct) all-reduce sends 2 (n-1) ceil(S / n) from
    each rank, a tree 2 (n-1) S in all, and an all-to-all half as much as the ring. An algorithm of
    two levels, m ranks on each of n / m nodes, sends the sum of its levels. Several rings pad their
    shares.
    """
    count = len(left)
    if left.keys() != read.keys() or count < 2:
        return set()
    if set(left.values()) == {sum(read.values())}:
        return _spreading(count, max(read.values()))
    size, equal = max(left.values()), len({*left.values()}) == 1
    forms = _spreading(count, size) if set(read.values()) == {sum(left.values())} else set[int]()
    if not equal or not (forms or set(read.values()) == {size}):
        return forms
    # A task that reads a view reads its whole buffer: a seeming reduce-scatter may sum views.
    part = -(-size // count)
    forms |= {2 * (count - 1) * size, count * (count - 1) * part}
    forms |= {2 * count * (count - 1) * shares for shares in _shares(part, count)}
    for local, nodes in _two_levels(count):
        share = -(-size // local)
        between = 2 * (nodes - 1) * -(-share // nodes)
        forms |= {count * (2 * (local - 1) * shares + between) for shares in _shares(share, local)}
        forms.add(count * ((local - 1) * share + (nodes - 1) * -(-size // nodes)))
    return forms


def _spreading(count: int, part: int) -> set[int]:
    """The total bytes that send each rank's part to all others: over one ring or several, in one
    level or two.
    """
    forms = {count * (count - 1) * shares for shares in _shares(part, count)}
    for local, nodes in _two_levels(count):
        inside = _shares(nodes * part, local)
        forms |= {count * ((nodes - 1) * part + (local - 1) * shares) for shares in inside}
    return forms


def _two_levels(count: int) -> Iterator[tuple[int, int]]:
    """Pairs (ranks on a node, nodes) whose product is ``count``, both at least 2."""
    return ((local, count // local) for local in range(2, count // 2 + 1) if count % local == 0)


def _shares(part: int, ranks: int) -> set[int]:
    """The sizes of a part after rings share it evenly, with each share rounded up, for each
    possible number of rings; only small groups have several.
    """
    return {
        rings * -(-part // rings)
        for rings in range(1, MOST_RINGS + 1 if ranks <= MOST_RANKS_OF_RINGS else 2)
    }


def _task_faults(task_graph: TaskGraph, task: int, least: int, forms: set[int]) -> Faults:
    """Faults of a collective of a single task, whose bytes are those that a rank sends; a rank must
    get ``least``.

    The bytes of a flow are chosen to make its time right, so a flow is only checked for 0.
    """
    name, sent = task_graph.tasks.name[task], int(task_graph.tasks.bytes[task])
    if task_graph.tasks.flow[task]:
        if least and not sent:
            text = f'"{name}" sends nothing, but a rank must get {least} bytes'
            yield Violation("bytes", (name,), text)
    elif sent < least:
        text = f'"{name}" sends {sent} bytes a rank, but one must get {least}'
        yield Violation("bytes", (name,), text)
    else:
        yield from _total_faults(name, sent, forms)


def _total_faults(name: str, sent: int, forms: set[int]) -> Faults:
    if forms and sent not in forms:
        known = ", ".join(map(str, sorted(forms)[:6]))
        text = f'"{name}" sends {sent} bytes; a ring or tree sends one of {known}'
        yield Violation("bytes", (name,), text)


def _expanded_faults(task_graph: TaskGraph, name: str, messages: list[int], needs: Sizes) -> Faults:
    tasks = task_graph.tasks
    got = np.zeros(len(task_graph.devices), np.int64)
    np.add.at(got, tasks.destination[messages], tasks.bytes[messages])
    for device, size in needs.items():
        if got[device] < size:
            text = (
                f'"{name}" brings {got[device]} bytes to "{task_graph.devices[device]}", '
                f"which must get {size}"
            )
            yield Violation("bytes", (name,), text)


LATEST = 2**62  # ps; twice as much still fits in int64
SLACK = 1e-9  # relative, for what float64 rounds


def column_faults(task_graph: TaskGraph, start: ArrayLike, finish: ArrayLike) -> Faults:
    """Rules ``columns`` and ``ran``: one whole number from 0 to 2^62 a task, in both columns."""
    names = task_graph.tasks.name
    for label, given in (("start", start), ("finish", finish)):
        column = np.asarray(given)
        if column.shape != (len(names),):
            text = f"{label} must hold {len(names)} numbers, got shape {column.shape}"
            yield Violation("columns", (), text)
        elif len(names) and column.dtype.kind not in "iu":
            text = f"{label} must hold whole picoseconds, got {column.dtype}"
            yield Violation("columns", (), text)
        else:
            for task in np.flatnonzero(column > LATEST).tolist():
                text = f'{label} of "{names[task]}" is out of range: {column[task]}'
                yield Violation("columns", (names[task],), text)
            for task in np.flatnonzero(column < 0).tolist():
                text = f'"{names[task]}" never ran: its {label} is {column[task]}'
                yield Violation("ran", (names[task],), text)


def schedule_faults(task_graph: TaskGraph, start: Ints, finish: Ints) -> Faults:
    """Rules ``duration``, ``precedence`` and ``overlap``."""
    yield from _duration_faults(task_graph, start, finish)
    yield from _precedence_faults(task_graph, start, finish)
    yield from _overlap_faults(task_graph, start, finish)


def _duration_faults(task_graph: TaskGraph, start: Ints, finish: Ints) -> Faults:
    """Tasks that do not take their duration. A flow with bytes to send must take longer than its
    duration, which is its held latency.
    """
    tasks = task_graph.tasks
    took, sending = finish - start, tasks.flow & (tasks.carried > 0)
    wrong = np.where(sending, took <= tasks.duration, took != tasks.duration)
    for task in np.flatnonzero(wrong).tolist():
        name, least = tasks.name[task], "more than " if sending[task] else ""
        text = (
            f'"{name}" takes {took[task]} ps, from {start[task]}; it should take '
            f"{least}{tasks.duration[task]}"
        )
        yield Violation("duration", (name,), text)


def _precedence_faults(task_graph: TaskGraph, start: Ints, finish: Ints) -> Faults:
    tasks = task_graph.tasks
    before, after = tasks.successors.owners(), tasks.successors.ids
    release = (finish + tasks.lag)[before]
    for edge in np.flatnonzero(start[after] < release).tolist():
        first, second = tasks.name[before[edge]], tasks.name[after[edge]]
        text = (
            f'"{second}" starts at {start[after[edge]]}, but "{first}" releases it at '
            f"{release[edge]}"
        )
        yield Violation("precedence", (second, first), text)


def _overlap_faults(task_graph: TaskGraph, start: Ints, finish: Ints) -> Faults:
    """Tasks that overlap on a resource. Sorted by start, then end, it suffices to compare
    neighbours: if any two overlap, two neighbours do.
    """
    tasks = task_graph.tasks
    held, task = tasks.resources.ids, tasks.resources.owners()
    begin, end = start[task], (finish + tasks.gap)[task]
    order = np.lexsort((end, begin, held))
    held, task, begin, end = held[order], task[order], begin[order], end[order]
    clash = (held[1:] == held[:-1]) & (begin[1:] < end[:-1])
    for i in np.flatnonzero(clash).tolist():
        first, second = tasks.name[task[i]], tasks.name[task[i + 1]]
        resource = task_graph.resources[held[i]].name
        text = (
            f'"{resource}" serves "{first}" until {end[i]} (gap included), but "{second}" '
            f"starts at {begin[i + 1]}"
        )
        yield Violation("overlap", (first, second, resource), text)


def data_faults(task_graph: TaskGraph, start: Ints, finish: Ints) -> Faults:
    """Rules ``data`` and ``bytes``: buffers are there when tasks read them, and the bytes sent by a
    transfer or collective are those that must be received.
    """
    tasks, buffers = task_graph.tasks, task_graph.buffers
    buffer, reader = buffers.readers.owners(), buffers.readers.ids
    filler = buffers.filler[buffer]
    inside = filler != PERSISTENT
    buffer, reader, filler = buffer[inside], reader[inside], filler[inside]
    arrival = (finish + tasks.lag)[filler]
    for i in np.flatnonzero(start[reader] < arrival).tolist():
        name, read = tasks.name[reader[i]], buffers.name[buffer[i]]
        text = (
            f'"{name}" starts at {start[reader[i]]}, but the buffer "{read}" that it reads '
            f"is there at {arrival[i]}"
        )
        yield Violation("data", (name, read), text)
    yield from _bytes_faults(task_graph)
    yield from collective_faults(task_graph)


def _bytes_faults(task_graph: TaskGraph) -> Faults:
    """Transfers that send a device more or fewer bytes than the buffers they fill there, compared
    for each tensor and hop.
    """
    tasks, buffers = task_graph.tasks, task_graph.buffers
    columns = (tasks.op, tasks.output, tasks.source, tasks.destination)
    hops = zip(*(column.tolist() for column in columns), strict=True)
    hop_of = {
        task: hop
        for task, hop in enumerate(hops)
        if tasks.kind[task] == TRANSFER and min(hop[:2]) >= 0
    }
    sent, received = Counter[tuple[int, ...]](), Counter[tuple[int, ...]]()
    for task, hop in hop_of.items():
        sent[hop] += int(tasks.bytes[task])
    filled = (buffers.filler, buffers.device, buffers.requested_bytes)
    for filler, device, size in zip(*(column.tolist() for column in filled), strict=True):
        if filler in hop_of and device == hop_of[filler][3]:
            received[hop_of[filler]] += size
    first = {hop: tasks.name[task] for task, hop in reversed(hop_of.items())}
    for hop, size in sent.items():
        if len(buffers) and size != received[hop]:
            text = f'"{first[hop]}" sends {size} bytes, of which {received[hop]} are received'
            yield Violation("bytes", (first[hop],), text)


def bound_faults(task_graph: TaskGraph, step: int) -> Faults:
    """Rule ``bounds``: the step takes at least the longest path and the busy time of each resource,
    and at most the sum of all tasks, run one at a time.
    """
    tasks = task_graph.tasks
    sending = _sending_ps(task_graph)
    least = tasks.duration + np.floor(sending * (1 - SLACK)).astype(np.int64)
    path, last = longest_path(task_graph, least)
    if step < path:
        name = tasks.name[last]
        text = f'the step takes {step} ps, but the longest path, to "{name}", takes {path}'
        yield Violation("bounds", (name,), text)
    held, task = tasks.resources.ids, tasks.resources.owners()
    busy, gap = np.zeros((2, len(task_graph.resources)), np.int64)
    np.add.at(busy, held, (tasks.duration + tasks.gap)[task])
    # The step may end before the last gap of a queue does, whichever task is last.
    np.maximum.at(gap, held, tasks.gap[task])
    for resource in np.flatnonzero(step < busy - gap).tolist():
        name, needed = task_graph.resources[resource].name, busy[resource] - gap[resource]
        text = f'the step takes {step} ps, but "{name}" alone is busy for {needed}'
        yield Violation("bounds", (name,), text)
    # A flow may take 1 ps more: its end is rounded up, and its share is unused from its last byte.
    alone = np.ceil(sending * (1 + SLACK)).astype(np.int64) + tasks.flow
    most = sum((tasks.duration + alone + tasks.lag + tasks.gap).tolist())
    if step > most:
        text = f"the step takes {step} ps, but one task after another would take {most}"
        yield Violation("bounds", (), text)


def _sending_ps(task_graph: TaskGraph) -> Floats:
    """Time in ps that the bytes of each flow take alone on its links; 0 for other tasks."""
    tasks = task_graph.tasks
    slowest = np.full(len(tasks), np.inf)
    np.minimum.at(slowest, tasks.links.owners(), task_graph.bandwidth[tasks.links.ids])
    alone: Floats = np.where(tasks.flow, tasks.carried / slowest * PS_PER_SECOND, 0.0)
    return alone


def longest_path(task_graph: TaskGraph, length: Ints) -> tuple[int, int]:
    """The length in ps of the longest path, the sum of its tasks' ``length`` and lag, and the task
    at its end (-1: no tasks).
    """
    tasks = task_graph.tasks
    successors, lengths, lags = tasks.successors.lists(), length.tolist(), tasks.lag.tolist()
    missing = np.bincount(tasks.successors.ids, minlength=len(tasks)).tolist()
    ready = [task for task, count in enumerate(missing) if not count]
    begin, best, last = [0] * len(tasks), 0, -1
    while ready:
        task = ready.pop()
        release = begin[task] + lengths[task] + lags[task]
        if release >= best:
            best, last = release, task
        for successor in successors[task]:
            begin[successor] = max(begin[successor], release)
            missing[successor] -= 1
            if not missing[successor]:
                ready.append(successor)
    return best, last
