"""Whether collectives send what they must: each rank gets at least what it lacks, and the bytes
sent in all are those of a known algorithm (ring, tree, two levels), where one applies.

What a collective is, the columns do not tell; what it reads and leaves on each device does. One
task tells the bytes sent for each result that is left; the messages of an expanded collective
(tasks of the kind of collectives whose op is the task that starts them) tell their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from ...nouns.taskgraph import BUFFER_KINDS, COLLECTIVE, TRANSFER, TaskGraph
from .violation import Violation

Sizes = dict[int, int]  # bytes by device
# Of a group whose rings run over lanes of their own.
MOST_RANKS_OF_RINGS, MOST_RINGS = 16, 32


def collective_faults(task_graph: TaskGraph) -> Iterator[Violation]:
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
        needs, forms = _needs(sizes, read[op]), _known_totals(sizes, read[op])
        if messages == [op]:
            by_rank = {-(-total // len(sizes)) for total in forms}
            yield from _task_faults(task_graph, op, max(needs.values(), default=0), by_rank)
        else:
            yield from _expanded_faults(task_graph, name, messages, needs)
            # What a host between the ranks passes on is sent to it first.
            sent = sum(int(tasks.bytes[task]) for task in messages if task not in passing)
            yield from _total_faults(name, sent, forms)


def _members(task_graph: TaskGraph) -> dict[int, list[int]]:
    """The tasks of each collective, by the task that leaves its buffers: itself, or that which
    starts its messages.

    Where steps follow one another the columns tell the op of the first: the n-th part of its
    messages is the n-th step's.
    """
    kinds, ops = list(task_graph.tasks.kind), task_graph.tasks.op.tolist()
    members: dict[int, list[int]] = {}
    messages: dict[int, list[int]] = defaultdict(list)
    for task, op in enumerate(ops):
        # Without an op no column says what the collective reads and leaves.
        if kinds[task] == COLLECTIVE and 0 <= op < len(ops):
            if kinds[op] == COLLECTIVE:
                members[task] = [task]
            else:
                messages[op].append(task)
    starts: dict[int, list[int]] = {op: [] for op in messages}
    for task, op in enumerate(ops):
        if op in starts and kinds[task] not in (COLLECTIVE, TRANSFER):
            starts[op].append(task)
    for op, sent in messages.items():
        steps = starts[op] or [op]
        share = -(-len(sent) // len(steps))
        members |= {start: sent[k * share : (k + 1) * share] for k, start in enumerate(steps)}
    return members


def _operands(
    task_graph: TaskGraph, ops: dict[int, list[int]]
) -> tuple[dict[int, list[tuple[int, int]]], dict[int, Sizes]]:
    """By collective the buffers (device, bytes) that it leaves, and by device the bytes that it
    reads.
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


def _needs(left: Sizes, read: Sizes) -> Sizes:
    """The bytes that each device must get at least.

    What it is left with and did not read; of a sum, or an exchange of equal parts, all but one part
    in n.
    """
    ranks = len({*left, *read})
    return {
        device: size - read.get(device, 0)
        if size > read.get(device, 0)
        else size - -(-size // max(ranks, 1))
        for device, size in left.items()
    }


def _known_totals(left: Sizes, read: Sizes) -> set[int]:
    """The bytes that n ranks may send in all, a number for each known algorithm, where each reads
    something and is left with something; else empty.

    Of parts that make a whole, or the other way, each rank all but its own (padded to the largest).
    Where all is S bytes: all-reduce by ring (or directly) each rank 2 (n-1) ceil(S / n), by a tree
    2 (n-1) S in all; all-to-all half of the former; in two levels of m ranks on n / m nodes the
    sums of their parts. Several rings pad their shares.
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
    # Who reads a view reads the whole of which it is a part: what looks scattered may be a sum of
    # views.
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
    """Each rank's part goes to all others: by one ring or several, in one level or two."""
    forms = {count * (count - 1) * shares for shares in _shares(part, count)}
    for local, nodes in _two_levels(count):
        inside = _shares(nodes * part, local)
        forms |= {count * ((nodes - 1) * part + (local - 1) * shares) for shares in inside}
    return forms


def _two_levels(count: int) -> Iterator[tuple[int, int]]:
    """Ranks on a node and nodes, where there are several of both."""
    return ((local, count // local) for local in range(2, count // 2 + 1) if count % local == 0)


def _shares(part: int, ranks: int) -> set[int]:
    """What a part becomes that rings share evenly, each share rounded up; only few ranks have
    several rings.
    """
    return {
        rings * -(-part // rings)
        for rings in range(1, MOST_RINGS + 1 if ranks <= MOST_RANKS_OF_RINGS else 2)
    }


def _task_faults(
    task_graph: TaskGraph, task: int, least: int, forms: set[int]
) -> Iterator[Violation]:
    """A collective of one task, whose bytes are those of a rank, which must get ``least``.

    The bytes of a flow are such that it takes its time, and only bounded.
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


def _total_faults(name: str, sent: int, forms: set[int]) -> Iterator[Violation]:
    if forms and sent not in forms:
        known = ", ".join(map(str, sorted(forms)[:6]))
        text = f'"{name}" sends {sent} bytes; a ring or tree sends one of {known}'
        yield Violation("bytes", (name,), text)


def _expanded_faults(
    task_graph: TaskGraph, name: str, messages: list[int], needs: Sizes
) -> Iterator[Violation]:
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
