"""The schedule of a strategy's pipeline, and the pass that turns a schedule and the times of its
stages into tasks.

Every action is a task of its rank's compute queue, whose order is fixed by the table. A tensor that
goes to a stage of another rank is a transfer. From times alone it takes the latency between the two
and holds nothing: transfers never wait. On a cluster (Site) it is bytes on their way there.

``simdev pipeline`` and PipeDream's planner call ``pipeline_task_graph``; pipelines over graphs
(stages.py) and large models (hybrid) take ``schedule_of`` alone and write their own tasks. For what
an action waits is told by ``nouns.schedules`` (NEEDS, READERS); large models read it there, too.
Over a graph the tensors tell it.
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

# By kind of action; a whole backward is a backward too.
KINDS = {FORWARD: "forward", BACKWARD: "backward", INPUT: "backward", WEIGHT: "weight gradient"}
UPDATING = (BACKWARD, WEIGHT)  # the kinds after which an asynchronous schedule updates weights


def schedule_of(p: Parallelism, large: bool = False) -> Schedule:
    """The schedule that a parallelism names or holds, of a graph with ops or a ``large`` model:
    that may run in two directions and do some backwards whole and some in two, and one of SEARCHED
    has its shape alone (``named_schedule``). Raises InputError.
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
    # An op belongs to one kind of action of its stage: it cannot be whole here and in two there.
    for stage, kinds in enumerate(schedule.kinds):
        if {BACKWARD, INPUT} <= kinds:
            yield f"table: stage {stage} does some backwards whole and some in two; do all alike"


@dataclass(frozen=True, slots=True)
class Site:
    """The cluster on which a pipeline runs: the device (index) of each rank, and bytes.

    ``forth[s]`` goes from stage s to stage s + 1 for each microbatch, ``back[s]`` comes from there.
    By stage ``states`` are held throughout beside the weights, ``gradients`` from a backward to its
    update, and ``workspace`` throughout, once.
    """

    prepared: Prepared
    devices: tuple[int, ...]
    forth: tuple[int, ...]
    back: tuple[int, ...]
    states: tuple[int, ...]
    gradients: tuple[int, ...]
    workspace: tuple[int, ...]


WRAPAROUNDS = ("every", "first")
"""Which microbatches of a round of p wait for what the last rank sends to the first."""


def pipeline_task_graph(
    schedule: Schedule, times: StageTimes, site: Site | None = None, wraparound: str = "every"
) -> TaskGraph:
    """The task graph of a pipeline: first a task for each of ``schedule.actions``, in their order,
    then for each round of a stage with replicas their synchronisation, then the transfers.

    A synchronisation holds the replicas' queues together: it begins when the last of them has gone
    backward, and none goes on before it ends. Without a ``site`` each rank is a device, and
    transfers take the latencies of ``times``; on a site they take the cluster's routes in its queue
    mode. Where chunks go around from the last rank to the first, ``wraparound`` says which
    microbatches wait for that transfer and the one back (WRAPAROUNDS): "first" is how Zero Bubble's
    script rates interleaved 1F1B. Raises InputError where times together exceed what a task graph
    may hold, where they are of another schedule, or no route joins two devices.
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
        # Two that overlap begin with the first of them and end with the second.
        self.pairs = {} if times.overlapped is None else schedule.pairs
        self.begins = self.rows | {last: self.rows[first] for first, last in self.pairs.items()}
        self.ends = self.rows | {first: self.rows[last] for first, last in self.pairs.items()}
        self.comm = list(map(picoseconds, times.comm))
        self.updates: dict[Action, int] = {}  # the synchronisation that a backward waits for
        self.flushes: list[tuple[list[int], int]] = []  # devices, and what they sum up at the end

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
        # Unlimited: a schedule and its times tell of no devices.
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
        """Ps of actions that overlap: together the time of both, each in proportion to its own."""
        alone, durations = self.times.ps(), dict[Action, int]()
        for first, last in self.pairs.items():
            assert self.times.overlapped is not None
            both = picoseconds(self.times.overlapped[self.schedule.rank(first)])
            parts = [alone[each.kind][self.schedule.replica(each)] for each in (first, last)]
            durations[first] = both * parts[0] // (sum(parts) or 1)
            durations[last] = both - durations[first]
        return durations

    def _add_synchronisations(self) -> None:
        """Tasks in which the replicas of a stage synchronise, after a backward of each or after
        all.
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
        """Let the readers of an action wait for it: on its rank directly, on another one behind a
        transfer.
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
            # A link is told by the stage before it, whichever way it is crossed.
            link = min(action.stage, waiting.stage)
            latency, ends = self.comm[link], (source, destination)
            op = self.rows[action]
            send = self.columns.task(label, TRANSFER, ends, op=op, output=0, duration=latency)
            self.columns.release(before, [send])
            if self._waits(link, action.microbatch):
                self.columns.release(send, [after])

    def _waits(self, link: int, microbatch: int) -> bool:
        """Whether a microbatch waits for what comes over the link behind a stage."""
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
        # A stage goes backward through what it read.
        ends = (FORWARD, *UPDATING) if forth else (BACKWARD, INPUT)
        rows = (self.rows.get(waiting._replace(kind=kind)) for kind in ends)
        here = [row for row in rows if row is not None]
        columns.buffer(label, destination, size, "received copies", arrives[0], here)

    def _add_weights(self) -> None:
        """The weights of every replica, of which asynchronous schedules stash several versions, and
        what is held beside them.
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
        """The activations of a forward: until the whole backward, or one part until each half of
        it.
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
