"""The pass that adds the dispatches of hosts to a finished task graph of any number of steps.

Every op on a hosted device gets a dispatch (execution contract, rule 9): a task that holds the
host's thread and releases the op. The queues of threads and devices have fixed sequences, in the
same order. These are ordinary tasks, edges and queues, so engines need no rule for them.
``iterated`` (steps.py) calls it last; turns.py makes the order. The rules of hosts are also in the
checker (``execution.check.hosts``), the oracle's kernels (``oracle.cluster``,
``oracle.splits.hosts``), and the threads of large models (hybrid/dispatch.py, which shares
``ahead_of``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..ground.errors import InputError, refuse
from ..ground.units import picoseconds
from ..nouns.cluster import Host
from ..nouns.taskgraph import (
    DISPATCH,
    MAX_TASKS,
    NUMBERS,
    THREAD_PREFIX,
    Bools,
    Coded,
    Ints,
    Lazy,
    Resource,
    Rows,
    TaskGraph,
    Tasks,
)
from .columns import stacked, with_pairs
from .copies import Copies, in_runs, taken
from .prepare import Prepared


@dataclass(frozen=True, eq=False)
class Dispatches:
    """The dispatches of a step, in the order of its hosts.

    There is a row for each op on each hosted device (for a collective, on each rank): the released
    ``task``, its ``op`` and the ``device``. ``ends`` are the last tasks of expanded collectives, by
    the collective's task. ``prepared`` has the hosts and the times of dispatches.
    """

    prepared: Prepared
    task: Ints
    op: Ints
    device: Ints
    ends: Mapping[int, tuple[int, ...]]

    def in_copies(self, copies: Copies, late: Bools) -> Dispatches:
        """The dispatches of all copies, run after run; ``late`` as in ``copies.in_order``."""
        rows, entries = in_runs(copies, self.task, late)
        return replace(
            self,
            task=rows,
            op=self.op[entries],
            device=self.device[entries],
            ends=ends_in_copies(self.ends, copies),
        )

    @cached_property
    def hosts(self) -> Mapping[int, Host]:
        """The host of each device that has one."""
        cluster = self.prepared.cluster
        hosts = ((device, cluster.host_of(device)) for device in cluster.hosted)
        return {device: host for device, host in hosts if host is not None}

    @cached_property
    def threads(self) -> Mapping[int, str]:
        """The name of the thread that dispatches for each hosted device."""
        cluster = self.prepared.cluster
        return {device: THREAD_PREFIX + cluster.thread_of(device) for device in self.hosts}


def ends_in_copies(
    ends: Mapping[int, tuple[int, ...]], copies: Copies
) -> dict[int, tuple[int, ...]]:
    """The last tasks of expanded collectives, in every run."""
    rows: dict[int, tuple[int, ...]] = {}
    for task, last in ends.items():
        for first, *rest in copies.by_run[:, [task, *last]].tolist():
            rows[first] = tuple(rest)
    return rows


def dispatched(task_graph: TaskGraph, dispatches: Dispatches | None) -> TaskGraph:
    """The task graph of any number of steps, with the dispatches of hosts after all other tasks.

    Raises InputError where an op blocks a host that replays graphs, and for more than 10 million
    tasks.
    """
    if dispatches is None or not len(dispatches.task):
        return task_graph
    entries, steps = _Entries.of(dispatches), task_graph.steps
    count = len(task_graph.tasks) + steps * len(entries.task)
    if count > MAX_TASKS:
        raise InputError(f"{steps} steps and their dispatches lower to more than {MAX_TASKS} tasks")
    return _Writer(task_graph, dispatches, entries).task_graph()


@dataclass(frozen=True, eq=False)
class _Entries:
    """The dispatches of one step as columns, in their order.

    ``task`` is the first task that a dispatch releases, ``op`` that task's op, ``releases`` are all
    tasks that it releases, ``ends`` the last tasks of its op. ``eager`` is false for the dispatch
    of a replayed graph, which counts no launches.
    """

    task: Ints
    op: Ints
    device: Ints
    length: Ints
    launches: Ints
    blocks: Bools
    eager: Bools
    releases: Rows
    ends: Rows

    @classmethod
    def of(cls, dispatches: Dispatches) -> _Entries:
        """Raises InputError where an op blocks a host that replays graphs."""
        prepared, hosts = dispatches.prepared, dispatches.hosts
        task, op, device = dispatches.task, dispatches.op, dispatches.device
        replays = np.zeros(len(prepared.cluster.devices), np.bool_)
        launch = np.zeros(len(replays), np.int64)
        for d, host in hosts.items():
            replays[d] = host.mode == "graph"
            launch[d] = picoseconds(host.launch)  # type: ignore[arg-type]
        eager, blocks = ~replays[device], prepared.blocks[op]
        _require_eager(prepared, op[blocks & ~eager], device[blocks & ~eager])
        # A graph is dispatched once a step, in the place of its first op.
        first = eager.copy()
        first[_firsts(device, ~eager)] = True
        entry_of = np.full(len(replays), -1)
        place = np.cumsum(first) - 1
        entry_of[device[first & ~eager]] = place[first & ~eager]
        owner = np.where(eager, place, entry_of[device])
        kept = np.flatnonzero(first)
        ends = _ends(task[kept], dispatches.ends)
        length, launches = prepared.dispatches_at(op, device)
        length = np.where(eager, length, launch[device])
        return cls(
            task[kept], op[kept], device[kept], length[kept], launches[kept],
            blocks[kept], eager[kept], Rows.of_pairs(owner, task, len(kept)), ends,
        )  # fmt: skip


def _firsts(keys: Ints, among: Bools) -> Ints:
    """The first row of each key, among the marked rows."""
    rows = np.flatnonzero(among)
    _, first = np.unique(keys[rows], return_index=True)
    firsts: Ints = rows[first]
    return firsts


def _ends(task: Ints, ends: Mapping[int, tuple[int, ...]]) -> Rows:
    """The last tasks of the op that each task begins: the task itself, unless ``ends`` has it."""
    if not ends:
        return Rows(np.arange(len(task) + 1), task)
    return Rows.of([ends.get(row, (row,)) for row in task.tolist()])


def _require_eager(prepared: Prepared, ops: Ints, devices: Ints) -> None:
    """Raise InputError for ops that block a host which launches its step as one graph."""
    cluster, graph = prepared.cluster, prepared.graph
    refuse(
        f'ops[{op}].blocks_host: "{graph.ops[op].name}" makes its host wait, but '
        f'"{cluster.devices[device].name}" replays its step as one graph (host.mode "graph")'
        for op, device in zip(ops.tolist(), devices.tolist(), strict=True)
    )


def ahead_of(launches: Ints, ahead: int) -> tuple[Ints, Ints]:
    """Pairs (row before, row after) of a thread whose rows launch ``launches`` kernels each: a
    dispatch waits for the latest row such that more than ``ahead`` kernels are launched from that
    row through the dispatch.
    """
    # Python's integers where sums could overflow.
    if float(launches.sum(dtype=np.float64)) >= 2**61:
        launches = launches.astype(object)
    until, number = np.cumsum(launches), np.arange(len(launches))
    before = np.minimum(np.searchsorted(until - launches, until - ahead) - 1, number - 1)
    waits = before >= 0
    return before[waits], number[waits]


@dataclass(frozen=True, eq=False)
class _Writer:
    """Writes dispatches after the tasks of a task graph; entry e of step k is row (tasks + k x
    entries + e).
    """

    graph: TaskGraph
    dispatches: Dispatches
    entries: _Entries

    @property
    def steps(self) -> int:
        """The number of steps."""
        return self.graph.steps

    @property
    def _each(self) -> int:
        """The number of dispatches in a step."""
        return len(self.entries.task)

    @property
    def _begins(self) -> Ints:
        """The row of the first task of each step."""
        return self.graph.step_begins[:-1]

    @cached_property
    def _threads(self) -> list[tuple[str, int, Ints]]:
        """The name, the first device and the entries of each thread, in the order of devices."""
        names = self.dispatches.threads
        numbers: dict[str, int] = {}
        first = {names[d]: d for d in sorted(names, reverse=True)}
        number = np.zeros(max(names) + 1, np.int64)
        for d in sorted(names):
            number[d] = numbers.setdefault(names[d], len(numbers))
        of_entry = number[self.entries.device]
        of_thread = ((name, np.flatnonzero(of_entry == k)) for name, k in numbers.items())
        return [(name, first[name], entries) for name, entries in of_thread if len(entries)]

    def task_graph(self) -> TaskGraph:
        """The task graph with dispatches."""
        graph = self.graph
        resources, held = list(graph.resources), np.zeros(self._each, np.int64)
        for name, device, entries in self._threads:
            held[entries] = len(resources)
            sequence = tuple(self._in_steps(entries).tolist())
            resources.append(Resource(name, "fixed", sequence, device))
        return replace(
            graph,
            tasks=self._tasks(np.tile(held, self.steps)),
            resources=tuple(resources),
        )

    def _in_steps(self, entries: Ints) -> Ints:
        """The rows of these entries, step after step."""
        steps = np.arange(self.steps)[:, None] * self._each
        return (len(self.graph.tasks) + steps + entries).ravel()

    def _tasks(self, held: Ints) -> Tasks:
        tasks, entries, count = self.graph.tasks, self.entries, self.steps * self._each
        added = dict.fromkeys(NUMBERS, np.zeros(self._each, np.int64)) | {
            "op": entries.op,
            "output": np.full(self._each, -1),
            "source": entries.device,
            "destination": entries.device,
            "duration": entries.length,
        }
        columns = {
            name: np.concatenate((getattr(tasks, name), np.tile(added[name], self.steps)))
            for name in NUMBERS
        }
        none = np.zeros(count, np.int64)
        before, after = self._edges()
        return Tasks(
            name=self._names(tasks.name),
            kind=_kinds(tasks.kind, count),
            flow=np.concatenate((tasks.flow, none > 0)),
            resources=stacked(tasks.resources, Rows(np.arange(count + 1), held)),
            links=stacked(tasks.links, Rows.of_pairs(none[:0], none[:0], count)),
            successors=with_pairs([tasks.successors], before, after, len(tasks) + count),
            **columns,
        )

    def _names(self, names: Sequence[str]) -> Sequence[str]:
        """The names of all tasks; those of several steps are made when they are read."""
        count, behind = self.steps * self._each, len(names)
        if not isinstance(names, Lazy):
            return (*names, *map(self._name, range(count)))
        return Lazy(
            behind + count, lambda row: names[row] if row < behind else self._name(row - behind)
        )

    def _name(self, number: int) -> str:
        """The name of a dispatch: "dispatch" and its task's name, with the device for a rank of a
        collective.
        """
        step, e = divmod(number, self._each)
        device = self.graph.devices[self.entries.device[e]]
        if not self.entries.eager[e]:
            return f"dispatch graph@{device}" + (f"~{step}" if step else "")
        name = self.graph.tasks.name[int(self.entries.task[e] + self._begins[step])]
        in_ranks = int(self.entries.op[e]) in self.dispatches.prepared.rings
        return f"dispatch {name}@{device}" if in_ranks else f"dispatch {name}"

    # Edges, as (before, after)

    def _edges(self) -> tuple[Ints, Ints]:
        releases = self.entries.releases
        tasks = (releases.ids + self._begins[:, None]).ravel()
        edges = [(self._in_steps(releases.owners()), tasks)]
        for device, host in self.dispatches.hosts.items():
            entries = np.flatnonzero(self.entries.eager & (self.entries.device == device))
            if len(entries):
                edges.append(self._ahead(entries, host.ahead))
        edges += [self._blocked(entries) for _, _, entries in self._threads]
        before, after = (np.concatenate(column) for column in zip(*edges, strict=True))
        return before, after

    def _ahead(self, entries: Ints, ahead: int) -> tuple[Ints, Ints]:
        """Edges on a device from the ends of ops so far behind that a dispatch must wait for them
        (``ahead_of``).
        """
        before, after = ahead_of(np.tile(self.entries.launches[entries], self.steps), ahead)
        return self._after_ends(entries, before, self._in_steps(entries)[after])

    def _blocked(self, entries: Ints) -> tuple[Ints, Ints]:
        """Edges on a thread from the ends of ops that block it to the next dispatch."""
        number = np.arange(len(entries) * self.steps)
        step, place = np.divmod(number, len(entries))
        task = self.entries.task[entries][place] + self._begins[step]
        # A collective may have several dispatches on a thread: the next dispatch of another op
        # waits.
        begins = np.flatnonzero(np.append(True, task[1:] != task[:-1]))
        blocks = self.entries.blocks[entries][begins[:-1] % len(entries)]
        after = self._in_steps(entries)[begins[1:][blocks]]
        return self._after_ends(entries, begins[:-1][blocks], after)

    def _after_ends(self, entries: Ints, before: Ints, after: Ints) -> tuple[Ints, Ints]:
        """Edges to the rows ``after`` from the ends of the ops that the dispatches ``before``
        released; the latter are numbers in ``entries``, repeated by step.
        """
        step, place = np.divmod(before, len(entries))
        ends = taken(self.entries.ends, entries[place])
        owner = ends.owners()
        return ends.ids + self._begins[step[owner]], after[owner]


def _kinds(kind: Sequence[str], count: int) -> Sequence[str]:
    """The kinds of all tasks, of which the last ``count`` are dispatches."""
    if not isinstance(kind, Coded):
        return (*kind, *[DISPATCH] * count)
    codes = np.append(kind.codes, np.full(count, len(kind.labels), np.uint8))
    return Coded(codes, (*kind.labels, DISPATCH))
