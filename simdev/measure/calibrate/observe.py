"""Reads a measured trace, and finds the waits in it that are gaps or latencies.

Under the execution contract a task starts at the latest of its predecessors' releases and, on each
resource that it holds, the finish + gap of the previous task. So a task that was ready when the
previous task finished waited for the gap alone; and a task whose resources were idle when a
transfer to it finished waited for the transfer's lag alone.

``fit`` uses the waits, ``calibrate`` the measured steps. The rule of starts also stands in the
engines, ``simdev.execution.check``, the oracle's kernels and ``report/measures/path.py``: a new
reason to wait has to be added to ``_cause``, or such a wait is mistaken for a gap.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from operator import attrgetter
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...execution.period import steady_state
from ...files import read_run
from ...files.reading import PathLike, label, read_json, shown
from ...ground.errors import InputError
from ...ground.units import MAX_PS
from ...lowering import Prepared, loaded, lower_prepared
from ...lowering.build import build
from ...lowering.splitting import split_gated
from ...lowering.transfer import transfers
from ...nouns.cluster import Cluster, Device, Link
from ...nouns.fabric import Route
from ...nouns.strategy import Strategy, Sync, resolve_placement
from ...nouns.taskgraph import COLLECTIVE, DISPATCH, SYNC, TRANSFER, Ints, TaskGraph
from .solve import Floats

# Measured traces: the start and finish of the tasks of a step by name, from a saved run or from
# Chrome's trace events.
#
# A trace may hold several steps: in the order of time, the k-th span of a name belongs to step k.

PS_PER_US = 10**6
LATEST = 10**24  # ps: clocks may count from 1970, or from an unknown start
MISSING = -1
Span = tuple[int, int]  # start and finish in ps


@dataclass(frozen=True, slots=True)
class Measured:
    """The spans of a trace by name, in ps. ``source`` is the name of its file; ``period_ps`` is the
    period, where the trace is a saved run of steps that follow one another.
    """

    spans: Mapping[str, tuple[Span, ...]]
    source: str = ""
    period_ps: int | None = None


@dataclass(frozen=True, eq=False)
class MeasuredSteps:
    """Start and finish of every task of a task graph in each measured step, in ps: arrays of
    [steps, tasks].

    A task that was not measured has MISSING as start and finish. ``strangers`` are spans of no
    task, ``absent`` tasks without a span, ``uneven`` tasks with more or fewer spans than most.
    """

    start: Ints
    finish: Ints
    strangers: tuple[str, ...]
    absent: tuple[str, ...]
    uneven: tuple[str, ...]

    @cached_property
    def known(self) -> NDArray[np.bool_]:
        """Whether each task was measured: [tasks]."""
        return np.asarray((self.finish != MISSING).all(axis=0), np.bool_)


def read_measured(path: PathLike) -> Measured:
    """Reads a run that ``simdev simulate --save`` wrote, or Chrome's trace events ("X": name, ts,
    dur in us).

    Raises InputError.
    """
    value = read_json(path)
    try:
        events = value if isinstance(value, list) else None
        if isinstance(value, dict):
            events = value.get("traceEvents")
        measured = _of_run(value) if events is None else Measured(_of_events(events))
    except InputError as error:
        raise error.within(label(path)) from None
    if not measured.spans:
        raise InputError("holds no spans", label(path))
    return replace(measured, source=label(path))


def _of_run(value: Any) -> Measured:
    if not isinstance(value, dict) or "spans" not in value:
        raise InputError('is neither a saved run ("spans") nor a Chrome trace ("traceEvents")')
    trace = read_run(value).trace
    times = zip(trace.start.tolist(), trace.finish.tolist(), strict=True)
    spans: defaultdict[str, list[Span]] = defaultdict(list)
    for name, span in zip(trace.task_graph.tasks.name, times, strict=True):
        spans[name].append(span)
    steady = steady_state(trace)
    return Measured(
        {name: tuple(sorted(times)) for name, times in spans.items()},
        period_ps=None if steady is None else steady.step_ps,
    )


def _of_events(events: Any) -> dict[str, tuple[Span, ...]]:
    """The spans of trace events by name. A span that is drawn in several rows (a transfer, in the
    queue of each end) counts once.
    """
    if not isinstance(events, list):
        raise InputError(f"traceEvents: must be a list, got {shown(events)}")
    spans: defaultdict[str, set[Span]] = defaultdict(set)
    problems: list[str] = []
    for i, event in enumerate(events):
        if isinstance(event, dict) and event.get("ph", "X") == "X" and "dur" in event:
            try:
                spans[_name(event)].add(_span(event))
            except InputError as error:
                problems += [f"traceEvents[{i}].{problem}" for problem in error.problems]
    if problems:
        raise InputError(problems)
    return {name: tuple(sorted(times)) for name, times in spans.items()}


def _name(event: Mapping[str, Any]) -> str:
    name = event.get("name")
    if not isinstance(name, str):
        raise InputError(f"name: must be text, got {shown(name)}")
    return name


def _span(event: Mapping[str, Any]) -> Span:
    start, length = (_picoseconds(event, key) for key in ("ts", "dur"))
    if length < 0:
        raise InputError(f"dur: must not be negative, got {shown(event['dur'])}")
    return round(start), round(start + length)


def _picoseconds(event: Mapping[str, Any], key: str) -> Fraction:
    value = event.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        raise InputError(f"{key}: must be a number of microseconds, got {shown(value)}")
    time = Fraction(value) * PS_PER_US
    if abs(time) > LATEST:
        raise InputError(f"{key}: is out of range: {shown(value)}")
    return time


def matched(measured: Measured, task_graph: TaskGraph) -> MeasuredSteps:
    """The spans of the tasks of a task graph, step by step.

    Raises InputError where no span has the name of a task.
    """
    names = task_graph.tasks.name
    # A message that passes several queues is several tasks of the same name.
    alike = Counter(names)
    present = [name for name in alike if name in measured.spans]
    first = _first_start(measured, present, names)
    counts = Counter(-(-len(measured.spans[name]) // alike[name]) for name in present)
    # The number of steps that most names have; on a tie the larger.
    steps = max(counts, key=lambda count: (counts[count], count))
    whole = {
        name: measured.spans[name]
        for name in present
        if len(measured.spans[name]) == steps * alike[name]
    }
    missing = [(MISSING, MISSING)] * steps
    rows = [
        [(start - first, finish - first) for start, finish in whole[name][number :: alike[name]]]
        if name in whole
        else missing
        for name, number in numbered(names)
    ]
    table = np.array(rows, np.int64)
    return MeasuredSteps(
        table[:, :, 0].T,
        table[:, :, 1].T,
        tuple(name for name in measured.spans if name not in alike),
        tuple(name for name in alike if name not in measured.spans),
        tuple(name for name in present if name not in whole),
    )


def _first_start(measured: Measured, present: Sequence[str], names: Sequence[str]) -> int:
    """The earliest start of a task that is present. It becomes time 0: Chrome's clock may start
    anywhere, and only differences are sure to fit into 64 bits.
    """
    if not present:
        example = next(iter(measured.spans), "")
        raise InputError(
            (
                f'no span bears the name of a task: the trace has "{example}", the '
                f'scenario "{names[0] if names else ""}"'
            ),
            measured.source or None,
        )
    first = min(measured.spans[name][0][0] for name in present)
    if max(finish for name in present for _, finish in measured.spans[name]) - first > MAX_PS:
        raise InputError(
            "the spans of the tasks lie more than 53 days apart", measured.source or None
        )
    return first


def numbered(names: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Each name with the number of its earlier occurrences."""
    seen = Counter[str]()
    for name in names:
        yield name, seen[name]
        seen[name] += 1


def period_ps(measured: Measured, tasks: Sequence[str]) -> float:
    """The period of the measured steps, from end to end: the period of a saved run, else the mean
    over the later half of the steps, without the last, which no step follows.

    Raises InputError for fewer than three steps, which have no period.
    """
    if measured.period_ps is not None:
        return measured.period_ps
    known, ends = frozenset(tasks), dict[int, int]()
    for name, spans in measured.spans.items():
        task, first = task_and_step(name, known)
        if task in known:
            for step, (_, finish) in enumerate(spans, first):
                ends[step] = max(finish, ends.get(step, finish))
    if len(ends) < 3:
        raise InputError(
            f"the steps of the scenario follow one another, and the trace holds {len(ends)}: "
            "no fewer than 3 tell a period",
            measured.source or None,
        )
    periods = np.diff([ends[step] for step in sorted(ends)])[:-1]
    return float(periods[len(periods) // 2 :].mean())


def task_and_step(name: str, tasks: Container[str]) -> tuple[str, int]:
    """The task and the step of a span: ``lowering`` names the task in step k ``task~k``."""
    task, _, step = name.rpartition("~")
    return (task, int(step)) if step.isdecimal() and name not in tasks else (name, 0)


UNKNOWN = -1
# Share of neighbours on serial resources; above it the measured ends of spans are not trusted.
MOST_OVERLAP = 0.02


Member = TypeVar("Member", Device, Link)


@dataclass(frozen=True, slots=True)
class Alike(Generic[Member]):
    """Devices or links with equal numbers: their ``rows`` in the cluster, and the first of them."""

    name: str
    member: Member
    rows: tuple[int, ...]


def _alike(
    members: Mapping[int, Member],
    key: Callable[[Member], object],
    title: Callable[[Member, int], str],
) -> tuple[Alike[Member], ...]:
    """The classes of members with equal keys, named by their kind where one class alone has it."""
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
    """The classes of links with equal quantities, kind, duplex and treatment of latency."""

    def title(link: Link, count: int) -> str:
        others = f" and {count - 1} more" if count > 1 else ""
        return f"{link.kind} {link.ends[0]} - {link.ends[1]}{others}".strip()

    key = attrgetter("kind", "bandwidth", "latency", "gap", "duplex", "hold_latency")
    return _alike(dict(enumerate(cluster.links)), key, title)


def device_classes(cluster: Cluster) -> tuple[Alike[Device], ...]:
    """The classes of devices that run ops, with equal kind and gap."""
    devices = {row: device for row, device in enumerate(cluster.devices) if device.runs_ops}
    return _alike(
        devices, attrgetter("kind", "gap"), lambda device, _: f"{device.kind} ({device.name}, ...)"
    )


RUN_MARKS = ("~", "@")  # before the number of a step, and of a microbatch in the step


@dataclass(frozen=True)
class Scene:
    """A scenario's task graph beside the measured steps; all times are ps.

    ``prepared`` holds the graph (of shards, where the scenario splits ops), and ``placement`` the
    device of each op; a loader's batch lies on the loader's device. With several microbatches or
    steps the task graph holds a task for each run of an op.
    """

    prepared: Prepared
    placement: list[int]
    task_graph: TaskGraph
    steps: MeasuredSteps

    @cached_property
    def moves(self) -> Ints:
        """The tasks that are transfers."""
        return np.flatnonzero(self.task_graph.of_kind(TRANSFER))

    @cached_property
    def routes(self) -> dict[int, tuple[Route, ...]]:
        """The routes of each task that is a transfer of the graph: a single route, or the routes to
        all destinations of a multicast. Messages of a synchronisation policy are not included.
        """
        crossed: list[tuple[Route, ...]] = []
        reads = self.prepared.reads
        for transfer in transfers(self.prepared, self.placement):
            row = transfer.tensor
            source = self.prepared.home(
                int(reads.producer[row]), int(reads.output[row]), self.placement
            )
            pieces: list[tuple[Route, ...]] = [(segment.route,) for segment in transfer.segments]
            if len(transfer.destinations) > 1:
                ends = transfer.destinations
                pieces = [tuple(self.prepared.segments(source, end)[0].route for end in ends)]
            # The chunks of a piece follow one another on the same route.
            crossed += [routes for routes in pieces for _ in transfer.chunks]
        once = build(self.prepared, self.placement).task_graph
        sent = np.flatnonzero(once.of_kind(TRANSFER)).tolist()
        by_name = {
            once.tasks.name[task]: routes for task, routes in zip(sent, crossed, strict=True)
        }
        names = ((task, self.first_run(task, by_name)) for task in self.moves.tolist())
        return {task: by_name[name] for task, name in names if name is not None}

    @cached_property
    def unrouted(self) -> frozenset[int]:
        """The transfers that are not the graph's; no latency and no gap is fitted to them."""
        return frozenset(self.moves.tolist()) - self.routes.keys()

    @cached_property
    def ops(self) -> dict[int, int]:
        """The op of each task that runs an op; collectives run as messages have no such task."""
        tasks, index = self.task_graph.tasks, self.prepared.graph.index
        runs = np.flatnonzero(~self.task_graph.of_kind(TRANSFER, SYNC, DISPATCH)).tolist()
        names = ((task, self.first_run(task, index)) for task in runs)
        rows = ((task, index[name]) for task, name in names if name is not None)
        return {task: row for task, row in rows if tasks.op[task] == row}

    def first_run(self, task: int, names: Container[str]) -> str | None:
        """The name, among ``names``, of the task's first run: its run in the third microbatch of
        the fourth step is named ``name@2~3``. None where it is not among them.
        """
        name = self.task_graph.tasks.name[task]
        for mark in RUN_MARKS:
            first, _, run = name.rpartition(mark)
            if name not in names and run.isdecimal():
                name = first
        return name if name in names else None

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
        """The share of pairs of neighbours on serial resources where the second task starts before
        the first has finished.
        """
        pairs = overlaps = 0
        for start, finish in zip(self.steps.start, self.steps.finish, strict=True):
            for task, before in _before(self, start, finish.astype(np.float64)).items():
                pairs += len(before or ())
                overlaps += sum(start[task] < finish[other] for other in before or ())
        return overlaps / pairs if pairs else 0.0

    @cached_property
    def runs(self) -> NDArray[np.bool_]:
        """Whether each task runs an op, on one device: [tasks]."""
        sends = self.task_graph.of_kind(TRANSFER, COLLECTIVE, SYNC, DISPATCH)
        return np.asarray(~sends, np.bool_)

    @cached_property
    def computing(self) -> NDArray[np.bool_]:
        """Whether each task is an op of some duration, which its device's gap follows: [tasks].
        Dispatches have no gap; a collective's duration includes the gaps of its steps.
        """
        return np.asarray(self.runs & (self.task_graph.tasks.duration > 0), np.bool_)

    @cached_property
    def idle(self) -> NDArray[np.bool_]:
        """Whether each task may be missing in the trace without loss, because it takes no time and
        waits for nothing: [tasks].
        """
        tasks = self.task_graph.tasks
        instant = (tasks.duration == 0) & (self.task_graph.predecessor_count == 0) & ~tasks.flow
        return np.asarray(instant, np.bool_)


def scene_of(prepared: Prepared, strategy: Strategy, measured: Measured) -> Scene:
    """The scene of a scenario and a trace. Raises InputError where the scenario cannot be lowered,
    or the trace has none of its tasks.
    """
    if strategy.pipeline is not None:
        raise InputError(
            "strategy.pipeline: gaps, latencies, bandwidths and efficiencies are not fitted to a "
            "pipeline"
        )
    (sharded, placed, _), weights = split_gated(prepared, strategy)
    placement = resolve_placement(sharded.graph, sharded.cluster, placed.placement)
    if strategy.loader is not None:
        gates = {gate for weight in weights for gate in weight.gates}
        sharded, placement = loaded(sharded, placement, strategy.loader, gates)
    if isinstance(strategy.sync, Sync):
        # A credit delays messages, and nothing is concluded from the times of messages.
        strategy = replace(strategy, sync=replace(strategy.sync, credit=None))
    task_graph = lower_prepared(prepared, strategy)
    return Scene(sharded, placement, task_graph, matched(measured, task_graph))


@dataclass(frozen=True, slots=True)
class Waits:
    """Waits of tasks, an entry each: ``before`` is the task waited for.

    ``length`` is the time from the finish of that task to the start of the waiting one, in ps;
    ``scale`` is proportional to the error of ``length``. With ``believed`` a finish is the measured
    start + the model's duration.
    """

    before: Ints
    length: Floats
    scale: Floats
    believed: bool

    def of(self, chosen: Ints) -> Waits:
        """The waits of these indices."""
        return Waits(self.before[chosen], self.length[chosen], self.scale[chosen], self.believed)


@dataclass(frozen=True, slots=True)
class Beliefs:
    """The assumed duration, lag and gap of every task, in ps, by which waits are classified."""

    duration: Floats
    lag: Floats
    gap: Floats


def waits(scene: Scene, beliefs: Beliefs) -> tuple[Waits, Waits]:
    """The waits for gaps, and the waits for lags, in all steps.

    Gaps follow transfers and ops that take time. Where the trace lacks a task that held a resource,
    nothing is concluded from that resource, for the missing task may have run in between. Where the
    spans on serial resources overlap, a finish is taken to be the measured start + the assumed
    duration.
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
                # An assumed end errs as much as its duration, a measured end as the clock.
                scale = max(float(beliefs.duration[other]), 1.0) if believed else 1.0
                (gaps if is_gap else lags).append((other, float(start[task] - ends[other]), scale))
    return _waits(gaps, believed), _waits(lags, believed)


def _waits(rows: list[tuple[int, float, float]], believed: bool) -> Waits:
    table = np.array(rows, np.float64).reshape(-1, 3)
    return Waits(table[:, 0].astype(np.int64), table[:, 1], table[:, 2], believed)


def _before(scene: Scene, start: Ints, finish: Floats) -> dict[int, list[int] | None]:
    """For each measured task, the previous tasks on the resources that it holds; None where they
    are not known.
    """
    rows, known = scene.task_graph.tasks.resources, scene.steps.known
    before: dict[int, list[int] | None] = {task: [] for task in np.flatnonzero(known).tolist()}
    holders: list[list[int]] = [[] for _ in scene.task_graph.resources]
    for resource, task in zip(rows.ids.tolist(), rows.owners().tolist(), strict=True):
        holders[resource].append(task)
    instant = scene.task_graph.tasks.duration == 0
    for queue, tasks in zip(scene.task_graph.resources, holders, strict=True):
        held = np.array(tasks, np.int64)
        # A task of no duration delays nobody, except where tasks take turns in a fixed order: its
        # own waits then delay the others.
        harmless = scene.idle if queue.policy == "fixed" else scene.idle | (instant & scene.runs)
        if (known | harmless)[held].all():
            held = held[known[held]]
            order = held[np.lexsort((held, finish[held], start[held]))].tolist()
            for first, second in pairwise(order):
                neighbours = before[second]
                if neighbours is not None:
                    neighbours.append(first)
        else:
            # A task that the trace lacks may have run in between: the neighbours are not known.
            before |= {task: None for task in tasks if task in before}
    return before


def _cause(
    scene: Scene, beliefs: Beliefs, before: dict[int, list[int] | None], finish: Floats, task: int
) -> tuple[int, bool] | None:
    """The cause of the last wait of a task: (the previous task on a resource, True) for a gap,
    (a predecessor, False) for a lag, None where neither alone explains it.
    """
    others, predecessors = before[task], _predecessors(scene, task)
    if others is None or predecessors is None:
        return None
    if not scene.unrouted.isdisjoint((*others, *predecessors)):
        # The gap and the lag of such a message are not known.
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
    """The measured predecessors of a task; None where one that may matter was not measured."""
    predecessors = scene.task_graph.predecessors[task].tolist()
    known, idle = scene.steps.known, scene.idle
    if not all(known[other] or idle[other] for other in predecessors):
        return None
    return [other for other in predecessors if known[other]]


def _leaves_gap(scene: Scene, task: int) -> bool:
    """Whether a gap of a device or link may follow a task."""
    return task in scene.routes or bool(scene.computing[task])


def alone(scene: Scene, start: Ints, finish: Ints) -> Iterator[int]:
    """The transfers that shared no link with another while they were sent. Where flows do not share
    links these are all transfers.
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
