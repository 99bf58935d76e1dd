"""What a trace tells of a scenario's parameters: rows of linear equations, and waits that are gaps
or latencies.

Under the execution contract a task starts at the latest of its predecessors' releases and, on each
resource that it holds, the finish + gap of the task before it. So a task that was ready when the
one before it finished waited for the gap alone; and one that found its resources idle when a
transfer to it finished waited for the transfer's lag alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from operator import attrgetter
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...lowering import Prepared, lower_prepared, split
from ...lowering.transfer import transfers
from ...nouns.cluster import Cluster, Device, Link
from ...nouns.fabric import Route
from ...nouns.strategy import Strategy, resolve_placement
from ...nouns.taskgraph import COLLECTIVE, TRANSFER, Ints, TaskGraph
from .measured import Measured, MeasuredSteps, matched
from .solve import Floats

UNKNOWN = -1
# Of the neighbours on serial resources; beyond it the ends of spans are not believed
MOST_OVERLAP = 0.02


Member = TypeVar("Member", Device, Link)


@dataclass(frozen=True, slots=True)
class Alike(Generic[Member]):
    """Devices or links with equal numbers: ``rows`` of the cluster, and the first of them."""

    name: str
    member: Member
    rows: tuple[int, ...]


def _alike(
    members: Mapping[int, Member],
    key: Callable[[Member], object],
    title: Callable[[Member, int], str],
) -> tuple[Alike[Member], ...]:
    """Members with one key are one class, named by their kind where no other class is of it."""
    groups: defaultdict[object, list[int]] = defaultdict(list)
    for row, member in members.items():
        groups[key(member)].append(row)
    counts = Counter(members[rows[0]].kind for rows in groups.values())
    classes = []
    for rows in groups.values():
        first = members[rows[0]]
        alone = first.kind and counts[first.kind] == 1
        classes.append(Alike(first.kind if alone else title(first, len(rows)), first, tuple(rows)))
    return tuple(classes)


def link_classes(cluster: Cluster) -> tuple[Alike[Link], ...]:
    """Links of one kind, bandwidth, latency, gap, duplex and treatment of latency are one class."""

    def title(link: Link, count: int) -> str:
        others = f" and {count - 1} more" if count > 1 else ""
        return f"{link.kind} {link.ends[0]} - {link.ends[1]}{others}".strip()

    key = attrgetter("kind", "bandwidth", "latency", "gap", "duplex", "hold_latency")
    return _alike(dict(enumerate(cluster.links)), key, title)


def device_classes(cluster: Cluster) -> tuple[Alike[Device], ...]:
    """Devices that run ops, of one kind and gap, are one class."""
    devices = {row: device for row, device in enumerate(cluster.devices) if device.runs_ops}
    return _alike(
        devices, attrgetter("kind", "gap"), lambda device, _: f"{device.kind} ({device.name}, ...)"
    )


@dataclass(frozen=True)
class Scene:
    """A scenario's task graph beside the measured steps; all times are ps.

    ``prepared`` and ``strategy`` are those of the shards, where the scenario splits ops.
    """

    prepared: Prepared
    strategy: Strategy
    task_graph: TaskGraph
    steps: MeasuredSteps

    @cached_property
    def moves(self) -> Ints:
        """The tasks that are transfers."""
        return np.flatnonzero(self.task_graph.of_kind(TRANSFER))

    @cached_property
    def routes(self) -> dict[int, tuple[Route, ...]]:
        """The routes of each transfer task: one, or those of all destinations of a multicast."""
        placement = resolve_placement(
            self.prepared.graph, self.prepared.cluster, self.strategy.placement
        )
        crossed: list[tuple[Route, ...]] = []
        reads = self.prepared.reads
        for transfer in transfers(self.prepared, placement):
            row = transfer.tensor
            source = self.prepared.home(int(reads.producer[row]), int(reads.output[row]), placement)
            pieces: list[tuple[Route, ...]] = [(segment.route,) for segment in transfer.segments]
            if len(transfer.destinations) > 1:
                ends = transfer.destinations
                pieces = [tuple(self.prepared.segments(source, end)[0].route for end in ends)]
            # Chunks of a piece follow one another; all of them take its route.
            crossed += [routes for routes in pieces for _ in transfer.chunks]
        return dict(zip(self.moves.tolist(), crossed, strict=True))

    @cached_property
    def links(self) -> tuple[Alike[Link], ...]:
        """The classes of the cluster's links."""
        return link_classes(self.prepared.cluster)

    @cached_property
    def class_of_half_link(self) -> tuple[int, ...]:
        """The link class of every half-link."""
        by_ends = {
            self.prepared.cluster.links[row].ends: k
            for k, links in enumerate(self.links)
            for row in links.rows
        }
        return tuple(by_ends[half.link.ends] for half in self.prepared.cluster.half_links)

    @cached_property
    def overlap(self) -> float:
        """The share of the neighbours on serial resources of which the second starts before the
        first has finished.
        """
        pairs = overlaps = 0
        for start, finish in zip(self.steps.start, self.steps.finish, strict=True):
            for task, before in _before(self, start, finish.astype(np.float64)).items():
                pairs += len(before or ())
                overlaps += sum(start[task] < finish[other] for other in before or ())
        return overlaps / pairs if pairs else 0.0

    @cached_property
    def idle(self) -> NDArray[np.bool_]:
        """Whether nothing is lost where the trace lacks a task: it takes no time and waits for
        nothing.
        """
        tasks = self.task_graph.tasks
        instant = (tasks.duration == 0) & (self.task_graph.predecessor_count == 0) & ~tasks.flow
        return np.asarray(instant, np.bool_)


def scene_of(prepared: Prepared, strategy: Strategy, measured: Measured) -> Scene:
    """Raises InputError where the scenario cannot be lowered, or the trace tells of none of its
    tasks.
    """
    sharded, placed, _ = split(prepared, strategy)
    task_graph = lower_prepared(sharded, placed)
    return Scene(sharded, placed, task_graph, matched(measured, task_graph))


@dataclass(frozen=True, slots=True)
class Waits:
    """Tasks that waited for one thing: ``before`` is the task waited for, one entry a wait.

    ``length`` is how long after its finish, in ps; ``scale`` what the error of that is proportional
    to; ``believed`` whether finishes are what the model makes of starts.
    """

    before: Ints
    length: Floats
    scale: Floats
    believed: bool

    def of(self, chosen: Ints) -> Waits:
        """Some of them."""
        return Waits(self.before[chosen], self.length[chosen], self.scale[chosen], self.believed)


@dataclass(frozen=True, slots=True)
class Beliefs:
    """What is held true of every task while waits are told apart: ps by task."""

    duration: Floats
    lag: Floats
    gap: Floats


def waits(scene: Scene, beliefs: Beliefs) -> tuple[Waits, Waits]:
    """(for gaps, for lags): what tasks waited for, in all steps.

    Gaps follow transfers and ops that take time. Where the trace lacks a task that held a resource,
    nothing is concluded from that resource, for the missing task may have run in between. Where the
    spans of serial resources overlap, starts are taken as measured and finishes as start + duration
    as believed.
    """
    gaps: list[tuple[int, float, float]] = []
    lags: list[tuple[int, float, float]] = []
    believed = scene.overlap > MOST_OVERLAP
    for start, finish in zip(scene.steps.start, scene.steps.finish, strict=True):
        ends = start + beliefs.duration if believed else finish.astype(np.float64)
        before = _before(scene, start, ends)
        for task in np.flatnonzero(scene.steps.known).tolist():
            cause = _cause(scene, beliefs, before, ends, task)
            if cause is not None:
                other, is_gap = cause
                # A believed end errs as its duration does, a measured end as the clock.
                scale = max(float(beliefs.duration[other]), 1.0) if believed else 1.0
                (gaps if is_gap else lags).append((other, float(start[task] - ends[other]), scale))
    return _waits(gaps, believed), _waits(lags, believed)


def _waits(rows: list[tuple[int, float, float]], believed: bool) -> Waits:
    table = np.array(rows, np.float64).reshape(-1, 3)
    return Waits(table[:, 0].astype(np.int64), table[:, 1], table[:, 2], believed)


def _before(scene: Scene, start: Ints, finish: Floats) -> dict[int, list[int] | None]:
    """The tasks right before each on the resources that it holds; None where that is not known."""
    rows, known = scene.task_graph.tasks.resources, scene.steps.known
    before: dict[int, list[int] | None] = {task: [] for task in np.flatnonzero(known).tolist()}
    holders: list[list[int]] = [[] for _ in scene.task_graph.resources]
    for resource, task in zip(rows.ids.tolist(), rows.owners().tolist(), strict=True):
        holders[resource].append(task)
    for tasks in holders:
        held = np.array(tasks, np.int64)
        if (known | scene.idle)[held].all():
            held = held[known[held]]
            order = held[np.lexsort((held, finish[held], start[held]))].tolist()
            for first, second in pairwise(order):
                neighbours = before[second]
                if neighbours is not None:
                    neighbours.append(first)
        else:
            # A task that the trace lacks may have run in between: nothing is known of the queue.
            before |= {task: None for task in tasks if task in before}
    return before


def _cause(
    scene: Scene, beliefs: Beliefs, before: dict[int, list[int] | None], finish: Floats, task: int
) -> tuple[int, bool] | None:
    """What a task waited for last: (the task before it, True) for its gap, (a predecessor, False)
    for its lag.
    """
    others, predecessors = before[task], _predecessors(scene, task)
    if others is None or predecessors is None:
        return None
    free_at = {other: finish[other] + beliefs.gap[other] for other in others}
    released_at = {other: finish[other] + beliefs.lag[other] for other in predecessors}
    last = max(free_at, key=lambda other: (free_at[other], other), default=UNKNOWN)
    sent = max(released_at, key=lambda other: (released_at[other], other), default=UNKNOWN)
    if last != UNKNOWN and released_at.get(sent, -np.inf) <= finish[last]:
        return (last, True) if _leaves_gap(scene, last) else None
    if sent not in scene.routes:
        return None
    rest = [time for other, time in released_at.items() if other != sent]
    latest = max(*rest, free_at.get(last, -np.inf), -np.inf)
    return (sent, False) if latest <= finish[sent] else None


def _predecessors(scene: Scene, task: int) -> list[int] | None:
    """Those that were measured; None where one that matters was not."""
    predecessors = scene.task_graph.predecessors[task].tolist()
    known, idle = scene.steps.known, scene.idle
    if not all(known[other] or idle[other] for other in predecessors):
        return None
    return [other for other in predecessors if known[other]]


def _leaves_gap(scene: Scene, task: int) -> bool:
    """Whether a gap of a device or link may follow: not after a collective, whose length holds
    those of its steps.
    """
    tasks = scene.task_graph.tasks
    return tasks.kind[task] == TRANSFER or (
        tasks.kind[task] != COLLECTIVE and int(tasks.duration[task]) > 0
    )


def alone(scene: Scene, start: Ints, finish: Ints) -> Iterator[int]:
    """The flows that shared no link with another while they were sent; every transfer, where links
    are not shared.
    """
    tasks = scene.task_graph.tasks
    rows, known = tasks.links, scene.steps.known
    shared: set[int] = set()
    for link in range(len(scene.task_graph.links)):
        flows = [t for t in rows.owners()[rows.ids == link].tolist() if known[t]]
        # By start: only the flow that lasts longest so far can still overlap the next.
        flows.sort(key=lambda t: (start[t], finish[t]))
        latest = UNKNOWN
        for flow in flows:
            if latest != UNKNOWN and start[flow] < finish[latest]:
                shared |= {flow, latest}
            latest = flow if latest == UNKNOWN or finish[flow] > finish[latest] else latest
    yield from (task for task in scene.moves.tolist() if known[task] and task not in shared)
