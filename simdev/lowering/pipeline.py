"""The schedule of a strategy's pipeline, and the pass that turns a schedule and the times of its
stages into tasks.

Every action is a task in its rank's compute queue, whose order the schedule's table fixes. A tensor
for a stage on another rank is a transfer. Without a cluster it takes the latency between the stages
and holds no queue: transfers never wait. On a cluster (Site) it is a number of bytes on a route.

``simdev pipeline`` and PipeDream's planner call ``pipeline_task_graph``; pipelines over graphs
(stages.py) and large models (hybrid) only call ``schedule_of`` and write their own tasks.
``nouns.schedules`` (NEEDS, READERS) says which actions an action waits for, also for large models.
Over a graph the tensors say it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..ground.errors import InputError, prefixed, refuse
from ..ground.units import picoseconds
from ..nouns.memory import MemoryModel
from ..nouns.schedules import (
    BACKWARD,
    BIDIRECTIONAL,
    FOLDED,
    FORWARD,
    INPUT,
    WEIGHT,
    Action,
    Schedule,
    StageTimes,
    full_name,
    named_schedule,
    read_csv,
    readers,
    weight_versions,
)
from ..nouns.strategy.parallelism import Parallelism
from ..nouns.taskgraph import PERSISTENT, SYNC, TRANSFER, TaskGraph
from .columns import Columns
from .prepare import Prepared
from .sharing import with_sharing
from .transfer import add_hops, add_reserves, chunks_of, on_cluster, resources

# The kind of task of each kind of action; a whole backward counts as a backward.
KINDS = {FORWARD: "forward", BACKWARD: "backward", INPUT: "backward", WEIGHT: "weight gradient"}
UPDATING = (BACKWARD, WEIGHT)  # the kinds after which an asynchronous schedule updates weights


def schedule_of(p: Parallelism, large: bool = False) -> Schedule:
    """The schedule that a parallelism names or contains as a table, for a graph of ops or a
    ``large`` model. Only a large model may run in two directions, or mix whole and split backwards;
    its schedule of SEARCHED has only a shape here (``named_schedule``). Raises InputError.
    """
    if p.table is None:
        name = full_name(p.schedule)
        if not large and name in (*BIDIRECTIONAL, *FOLDED):
            kind = (
                "holds two copies of the model"
                if name in BIDIRECTIONAL
                else ("does some backwards whole and some in two")
            )
            reason = f"{kind} on every rank; large models and `simdev pipeline` run it"
            raise InputError(f"schedule: {name} {reason}")
        if name in BIDIRECTIONAL and p.zero > 1:
            reason = f"of two copies sums gradients once a step, which ZeRO {p.zero} does not"
            raise InputError(f"schedule: {name} {reason}")
        schedule = named_schedule(p.schedule, p.pp, p.microbatches, p.chunks, shape=large)
    else:
        with prefixed("table: "):
            schedule = read_csv(p.table)
    refuse(_schedule_problems(schedule, p, large))
    return schedule


def _schedule_problems(schedule: Schedule, p: Parallelism, large: bool) -> Iterator[str]:
    if schedule.asynchronous:
        yield (
            f"schedule: {schedule.name} has no step whose time could be told; `simdev pipeline` "
            "runs it"
        )
    for name in ("pp", "microbatches"):
        given, count = getattr(p, name), getattr(schedule, "ranks" if name == "pp" else name)
        if given != count:
            yield f"{name}: is {given}, but the table has {count}"
    if large:
        return
    # An op belongs to one kind of action of its stage, so backwards cannot be of both kinds.
    for stage, kinds in enumerate(schedule.kinds):
        if {BACKWARD, INPUT} <= kinds:
            yield f"table: stage {stage} does some backwards whole and some in two; do all alike"


@dataclass(frozen=True, slots=True)
class Site:
    """The cluster on which a pipeline runs: the device (index) of each rank, and bytes.

    ``forth[s]`` bytes go from stage s to stage s + 1 for each microbatch, ``back[s]`` bytes come
    back. By stage, ``states`` (beside the weights) and ``workspace`` are held for the whole step,
    ``gradients`` from a backward to its update.
    """

    prepared: Prepared
    devices: tuple[int, ...]
    forth: tuple[int, ...]
    back: tuple[int, ...]
    states: tuple[int, ...]
    gradients: tuple[int, ...]
    workspace: tuple[int, ...]


WRAPAROUNDS = ("every", "first")
"""Which microbatches wait for the transfer from the last rank to the first: all, or the first of
every p."""


def pipeline_task_graph(
    schedule: Schedule, times: StageTimes, site: Site | None = None, wraparound: str = "every"
) -> TaskGraph:
    """The task graph of a pipeline: first a task for each of ``schedule.actions``, in their order,
    then the synchronisations of stages with replicas, one for each round, then the transfers.

    A synchronisation holds the queues of all replicas together: it begins when the last replica has
    gone backward, and none goes on before it ends. Without a ``site`` each rank is a device, and
    transfers take the latencies of ``times``; on a site they take the cluster's routes in its queue
    mode. Where chunks go around from the last rank to the first, ``wraparound`` says which
    microbatches wait for this transfer and the one back (WRAPAROUNDS): "first" is how Zero Bubble's
    script rates interleaved 1F1B. Raises InputError where the sum of times is too large for a task
    graph, where times are of another schedule, or no route joins two devices.
    """
    if wraparound not in WRAPAROUNDS:
        raise InputError(f'wraparound: must be {" or ".join(WRAPAROUNDS)}, got "{wraparound}"')
    if len(times.forward) != len(schedule.home):
        raise InputError(
            f"times: are of {len(times.forward)} stages, the schedule has {len(schedule.home)}"
        )
    return _Pipeline(schedule, times, site, wraparound).task_graph()


class _Pipeline:
    """The columns of a pipeline while they grow; ``rows`` are the tasks of its actions."""

    def __init__(
        self, schedule: Schedule, times: StageTimes, site: Site | None, wraparound: str
    ) -> None:
        self.schedule, self.times, self.site = schedule, times, site
        self.wraparound = wraparound
        if site is None:
            self.devices: Sequence[int] = range(schedule.ranks)
            self.names = tuple(f"rank {rank}" for rank in self.devices)
            self.columns = Columns(MemoryModel())
            for rank, name in enumerate(self.names):
                self.columns.queue(name, device=rank)
        else:
            self.devices = site.devices
            self.names = tuple(device.name for device in site.prepared.cluster.devices)
            self.columns = Columns(site.prepared.memory, resources(site.prepared.fabric))
        self.rows = schedule.number
        # A pair of overlapping actions begins with its first action and ends with its second.
        self.pairs = {} if times.overlapped is None else schedule.pairs
        self.begins = self.rows | {last: self.rows[first] for first, last in self.pairs.items()}
        self.ends = self.rows | {first: self.rows[last] for first, last in self.pairs.items()}
        self.comm = list(map(picoseconds, times.comm))
        self.updates: dict[Action, int] = {}  # the synchronisation that a backward waits for
        self.flushes: list[tuple[list[int], int]] = []  # devices, and their synchronisation

    def task_graph(self) -> TaskGraph:
        """The finished task graph."""
        self._add_actions()
        self._add_synchronisations()
        for action in self.rows:
            self._connect(action)
        self._add_weights()
        for action in self.rows:
            if action.kind == FORWARD:
                self._add_activations(action)
        self._fix_order()
        if self.site is not None:
            add_reserves(self.columns, self.site.prepared)
            graph = on_cluster(self.columns, self.site.prepared)
            return with_sharing(graph, self.site.prepared.fabric)
        # Memory is unlimited: a schedule with times has no real devices.
        capacity = np.full(self.schedule.ranks, -1, np.int64)
        tasks, buffers = self.columns.task_columns(), self.columns.buffer_columns()
        return TaskGraph(tasks, tuple(self.columns.resources), buffers, self.names, capacity)

    def _device(self, action: Action) -> int:
        return self.devices[self.schedule.rank(action)]

    def _add_actions(self) -> None:
        durations, together = self.times.ps(), self._durations_of_pairs()
        for action, row in self.rows.items():
            device, replica = self._device(action), self.schedule.replica(action)
            duration = together.get(action, durations[action.kind][replica])
            self.columns.task(
                str(action),
                KINDS[action.kind],
                (device, device),
                op=row,
                duration=duration,
                held=(device,),
            )

    def _durations_of_pairs(self) -> dict[Action, int]:
        """The ps of overlapping actions: the time of a pair is divided in proportion to their own
        times.
        """
        alone, durations = self.times.ps(), dict[Action, int]()
        for first, last in self.pairs.items():
            assert self.times.overlapped is not None
            both = picoseconds(self.times.overlapped[self.schedule.rank(first)])
            parts = [alone[each.kind][self.schedule.replica(each)] for each in (first, last)]
            durations[first] = both * parts[0] // (sum(parts) or 1)
            durations[last] = both - durations[first]
        return durations

    def _add_synchronisations(self) -> None:
        """Add the tasks in which the replicas of a stage synchronise: after a backward of each
        (asynchronous schedules), or after all backwards.
        """
        if self.times.sync is None:
            return
        rounds: dict[tuple[int, int], dict[int, Action]] = {}
        for action in self.rows:
            count = self.schedule.replicas[action.stage]
            if count > 1 and action.kind in UPDATING:
                number = action.microbatch // count if self.schedule.asynchronous else 0
                last = rounds.setdefault((action.stage, number), {})
                last[self.schedule.replica(action)] = action
        for (stage, number), lasts in sorted(rounds.items()):
            together = list(lasts.values())
            devices = [self._device(action) for action in together]
            row = self.columns.task(
                f"sync {stage}:{number}",
                SYNC,
                (devices[0], devices[-1]),
                op=self.rows[together[0]],
                duration=picoseconds(self.times.sync[stage]),
                held=devices,
            )
            if self.schedule.asynchronous:
                self.updates |= dict.fromkeys(together, row)
            else:
                self.flushes.append((devices, row))

    def _fix_order(self) -> None:
        """Give the queue of each rank the order of its row in the table."""
        queues = self.columns.resources
        for device, actions in zip(self.devices, self.schedule.orders, strict=True):
            order = list[int]()
            for action in actions:
                order.append(self.rows[action])
                if action in self.updates:
                    order.append(self.updates[action])
            order += [row for devices, row in self.flushes if device in devices]
            queues[device] = replace(queues[device], policy="fixed", sequence=tuple(order))

    def _connect(self, action: Action) -> None:
        """Let the readers of an action wait for it: directly on its rank, through a transfer on
        another.
        """
        before, source = self.ends[action], self._device(action)
        for waiting in readers(action, self.rows):
            after, destination = self.begins[waiting], self._device(waiting)
            if destination == source:
                self.columns.release(before, [after])
                continue
            label = f"{action}:0>{self.names[destination]}"
            if self.site is not None:
                self._send(action, waiting, label, self.site)
                continue
            # Links are numbered by the stage before them, in both directions.
            link = min(action.stage, waiting.stage)
            latency, ends = self.comm[link], (source, destination)
            op = self.rows[action]
            send = self.columns.task(label, TRANSFER, ends, op=op, output=0, duration=latency)
            self.columns.release(before, [send])
            if self._waits(link, action.microbatch):
                self.columns.release(send, [after])

    def _waits(self, link: int, microbatch: int) -> bool:
        """Whether a microbatch waits for the transfer over the link behind a stage."""
        homes, last = self.schedule.rank_of, self.schedule.ranks - 1
        around = (homes[link], homes[link + 1]) == (last, 0)
        return self.wraparound == "every" or not around or microbatch % self.schedule.ranks == 0

    def _send(self, action: Action, waiting: Action, label: str, site: Site) -> None:
        """Send the output of an action over the links, and keep it while its reader may need it."""
        columns, prepared, before = self.columns, site.prepared, self.rows[action]
        forth = action.kind == FORWARD
        size = site.forth[action.stage] if forth else site.back[waiting.stage]
        destination = self._device(waiting)
        segments = prepared.segments(self._device(action), destination)
        chunks, sent = chunks_of(prepared, size, segments), (before, 0, TRANSFER)
        begins, arrives = add_hops(columns, prepared.fabric, segments, chunks, sent, label)
        columns.release(before, begins)
        for task in arrives:
            columns.release(task, [self.rows[waiting]])
        # A stage needs its inputs again in the backward.
        ends = (FORWARD, *UPDATING) if forth else (BACKWARD, INPUT)
        rows = (self.rows.get(waiting._replace(kind=kind)) for kind in ends)
        here = [row for row in rows if row is not None]
        columns.buffer(label, destination, size, "received copies", arrives[0], here)

    def _add_weights(self) -> None:
        """Add the weights of every replica (asynchronous schedules stash several versions), and the
        other persistent buffers.
        """
        versions, buffer = weight_versions(self.schedule), self.columns.buffer
        for stage, count in enumerate(self.schedule.replicas):
            for number in range(count):
                replica = self.schedule.first_replica[stage] + number
                device, size = self.devices[self.schedule.home[replica]], self.times.parameters
                stash = size[replica] * (versions[stage] - 1)
                owner = f"stage {stage}" if count == 1 else f"stage {stage}, replica {number}"
                buffer(f"weights of {owner}", device, size[replica], "parameters", PERSISTENT)
                buffer(f"stash of {owner}", device, stash, "parameters", PERSISTENT)
                if self.site is not None:
                    space, states = self.site.workspace[stage], self.site.states[stage]
                    buffer(f"workspace of {owner}", device, space, "workspace", PERSISTENT)
                    buffer(f"states of {owner}", device, states, "optimizer state", PERSISTENT)

    def _add_activations(self, action: Action) -> None:
        """Add the activations of a forward, held until the whole backward, or a part until each
        half of it.
        """
        replica, device = self.schedule.replica(action), self._device(action)
        filler, buffer = self.rows[action], self.columns.buffer
        size, kept = self.times.activation[replica], self.times.kept[replica]
        whole, half, rest = (
            self.rows.get(action._replace(kind=kind)) for kind in (BACKWARD, INPUT, WEIGHT)
        )
        if whole is not None:
            buffer(f"{action}:0", device, size, "activations", filler, [whole])
        elif half is not None and rest is not None:
            buffer(f"{action}:0", device, size - kept, "activations", filler, [half])
            buffer(f"{action}:1", device, kept, "activations", filler, [half, rest])
        if self.site is not None:
            last = action._replace(kind=WEIGHT if whole is None else BACKWARD)
            update = [self.updates[last]] if last in self.updates else []
            name, size = f"gradients of {last}", self.site.gradients[action.stage]
            buffer(name, device, size, "gradients", self.rows[last], update)
