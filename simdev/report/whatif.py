"""What if a device, a link or a class of ops were faster: how much does the step gain, by simulating it again.

A faster device takes its share of the time for every op, its gaps stay. A faster link has more bandwidth, its latency
stays, and routes are chosen anew; only a scenario tells its links. Of a saved run only the queues are known: there,
everything that is sent through a queue takes its share of the time, latency that it holds included, which is the most
that a faster link could bring. Collectives that a measured table costs keep its times. Nothing is extrapolated: each
answer is the step time of a simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..analysis import Carrier, Report, Steady, carriers, covered_ps, steady_state, transfer_mask
from ..cluster import Cluster, Link
from ..engine import choose, simulate
from ..scenario import Scenario, execute
from ..taskgraph import COLLECTIVE, Ints, TaskGraph
from ..trace import Trace
from ..units import MAX_BYTES

FACTOR = 2
MOST = 48  # so many devices and queues, the busiest
MOST_LINKS = 16  # so many links, the busiest where that is known: each needs a lowering of its own
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One answer: ``what`` (device, links, link, queue, op class, phase) of this name made faster.

    ``busy_ps`` is the time in which it works in the step as it is (None: not known), ``step_ps`` the step time with it
    faster, ``gain`` the share of the step time that this saves (below 0 where the step gets longer).
    """

    what: str
    name: str
    busy_ps: int | None
    step_ps: int
    gain: float


@dataclass(frozen=True, slots=True)
class _Case:
    """Something to make faster, and the step time (ps) with it, by an engine."""

    what: str
    name: str
    busy_ps: int | None
    step_ps: Callable[[str], int]


def what_ifs(
    report: Report,
    kinds: Mapping[str, str] | None = None,
    scenario: Scenario | None = None,
    factor: int = FACTOR,
    watch: Callable[[Sequence[Any]], Sequence[Any]] = lambda cases: cases,
) -> tuple[WhatIf, ...]:
    """Every device, link and class of ops made ``factor`` times faster, one at a time; the largest gain first.

    ``kinds`` are the kinds of the ops by name, None where they are not known (then the phases are the classes);
    ``scenario`` is what the report answers, None for a saved run; ``watch`` may show how far it is. Where the trace
    holds several steps, step times are periods. Raises InputError.
    """
    cases = list(_cases(report, kinds, scenario, factor))
    engine = choose("auto", len(report.trace.task_graph.tasks) * (len(cases) + 1))
    # What is compared is simulated alike: a saved run may claim any step time.
    base = _again(report, report.trace.task_graph, engine)
    found = []
    for case in watch(cases):
        step = case.step_ps(engine)
        found.append(WhatIf(case.what, case.name, case.busy_ps, step, (base - step) / base if base else 0.0))
    return tuple(sorted(found, key=lambda one: -one.gain))


def period_ps(trace: Trace, steady: Steady | None) -> int:
    """The step time of a trace in ps, or the period of the steps that it holds."""
    return trace.step_ps if steady is None else round(steady.period_ps)


def _again(report: Report, task_graph: TaskGraph, engine: str) -> int:
    """The step time of a changed task graph."""
    trace = simulate(task_graph, engine)
    return period_ps(trace, report.steady and steady_state(trace, report.steady.iterations))


def _cases(report: Report, kinds: Mapping[str, str] | None, scenario: Scenario | None, factor: int) -> Iterator[_Case]:
    yield from _devices(report, factor)
    if scenario is None:
        yield from _queues(report, factor)
    else:
        yield from _links(report, scenario, factor)
    yield from _classes(report, kinds, factor)


def _shorter(report: Report, chosen: Bools, factor: int, what: str, name: str) -> _Case:
    """The chosen tasks take a part of their time."""
    trace, tasks = report.trace, report.trace.task_graph.tasks

    def step_ps(engine: str) -> int:
        duration: Ints = np.where(chosen, -(-tasks.duration // factor), tasks.duration)
        return _again(report, replace(trace.task_graph, tasks=replace(tasks, duration=duration)), engine)

    return _Case(what, name, covered_ps(trace.start[chosen], trace.finish[chosen]), step_ps)


def _devices(report: Report, factor: int) -> Iterator[_Case]:
    task_graph = report.trace.task_graph
    computes, source = ~transfer_mask(task_graph), task_graph.tasks.source
    names = task_graph.devices
    working = np.unique(source[computes]).tolist()
    yield from _busiest(_shorter(report, computes & (source == d), factor, "device", names[d]) for d in working)
    if len(working) > 1:
        yield _shorter(report, computes, factor, "devices", "all")


def _classes(report: Report, kinds: Mapping[str, str] | None, factor: int) -> Iterator[_Case]:
    tasks = report.trace.task_graph.tasks
    computes, known = ~transfer_mask(report.trace.task_graph), kinds or {}
    ops = (known.get(tasks.name[op], phase) for op, phase in zip(tasks.op.tolist(), tasks.kind, strict=True))
    classes = np.array(list(ops), dtype=object)
    for name in sorted(set(classes[computes & (tasks.duration > 0)].tolist())):
        chosen: Bools = computes & (classes == name).astype(np.bool_)
        yield _shorter(report, chosen, factor, "op class" if kinds else "phase", name)
    collectives = np.fromiter((kind == COLLECTIVE for kind in tasks.kind), np.bool_, len(tasks)) & ~tasks.flow
    if collectives.any():
        yield _shorter(report, collectives, factor, "op class", "collectives")


def _queues(report: Report, factor: int) -> Iterator[_Case]:
    """The queues, half-links and pairs of devices that transfers go through; a collective goes through many at once."""
    task_graph, tasks = report.trace.task_graph, report.trace.task_graph.tasks
    sends = transfer_mask(task_graph) & np.fromiter((kind != COLLECTIVE for kind in tasks.kind), np.bool_, len(tasks))
    found = [_carrier(report, carrier, sends, factor) for carrier in carriers(report.trace)]
    cases = [case for case in found if case is not None]
    yield from _busiest(cases)
    if len(cases) > 1 and tasks.flow.any():
        yield _wider(report, list(range(len(task_graph.links))), factor, "all", None)
    elif len(cases) > 1:
        yield _shorter(report, sends, factor, "queues", "all")


def _busiest(cases: Iterable[_Case]) -> list[_Case]:
    return sorted(cases, key=lambda case: -(case.busy_ps or 0))[:MOST]


def _carrier(report: Report, carrier: Carrier, sends: Bools, factor: int) -> _Case | None:
    """None where no transfer goes through it."""
    trace, task_graph = report.trace, report.trace.task_graph
    through = carrier.tasks[sends[carrier.tasks]]
    if not len(through):
        return None
    if task_graph.tasks.flow[through].any():
        busy = covered_ps(carrier.start, trace.finish[carrier.tasks])
        return _wider(report, [task_graph.links.index(carrier.name)], factor, carrier.name, busy)
    chosen = np.zeros(len(task_graph.tasks), np.bool_)
    chosen[through] = True
    return _shorter(report, chosen, factor, "queue", carrier.name)


def _wider(report: Report, rows: list[int], factor: int, name: str, busy: int | None) -> _Case:
    """Half-links that flows share have more bandwidth."""

    def step_ps(engine: str) -> int:
        bandwidth = report.trace.task_graph.bandwidth.copy()
        bandwidth[rows] *= factor
        return _again(report, replace(report.trace.task_graph, bandwidth=bandwidth), engine)

    return _Case("link" if len(rows) == 1 else "links", name, busy, step_ps)


def _links(report: Report, scenario: Scenario, factor: int) -> Iterator[_Case]:
    """The links on the routes between devices that run ops, by kind and one by one."""
    trace, links = report.trace, scenario.cluster.links
    used = _used(trace, scenario.cluster) if transfer_mask(trace.task_graph).any() else {}
    kinds = sorted({links[i].kind for i in used})
    for kind in kinds if len(kinds) > 1 else ():
        yield _faster(scenario, [i for i in used if links[i].kind == kind], factor, "links", kind or "of no kind")
    if len(used) > 1:
        yield _faster(scenario, list(used), factor, "links", "all")
    for i in sorted(used, key=lambda one: -(used[one] or 0))[:MOST_LINKS]:
        yield _faster(scenario, [i], factor, "link", " - ".join(links[i].ends), used[i])


def _used(trace: Trace, cluster: Cluster) -> dict[int, int | None]:
    """The rows of the links on the routes between devices that run ops, and how long each is busy (None: not known).

    Where links are what transfers queue for or share, those that carry nothing are left out.
    """
    computes = ~transfer_mask(trace.task_graph)
    devices = np.unique(trace.task_graph.tasks.source[computes]).tolist()
    row = {id(link): i for i, link in enumerate(cluster.links)}
    found: dict[int, list[Carrier]] = {}
    carried = {carrier.name: carrier for carrier in carriers(trace)}
    for source, destination in permutations(devices, 2):
        for route in cluster.segments(source, destination) or ():
            for half_link in (cluster.half_links[half] for half in route.half_links):
                through = found.setdefault(row[id(half_link.link)], [])
                if half_link.name in carried and carried[half_link.name] not in through:
                    through.append(carried[half_link.name])
    if cluster.queues not in ("link", "fair"):
        return dict.fromkeys(sorted(found))
    busy = {i: _busy_ps(trace, found[i]) for i in sorted(found)}
    return {i: ps for i, ps in busy.items() if ps}


def _busy_ps(trace: Trace, through: Sequence[Carrier]) -> int:
    """The time in which a link carries anything in either direction."""
    if not through:
        return 0
    start = np.concatenate([carrier.start for carrier in through])
    return covered_ps(start, np.concatenate([trace.finish[carrier.tasks] for carrier in through]))


def _faster(
    scenario: Scenario, rows: list[int], factor: int, what: str, name: str, busy_ps: int | None = None
) -> _Case:
    def step_ps(engine: str) -> int:
        links = list(scenario.cluster.links)
        for row in rows:
            links[row] = _with_bandwidth(links[row], factor)
        cluster = replace(scenario.cluster, links=tuple(links))
        outcome = execute(replace(scenario, cluster=cluster, engine=engine))
        return period_ps(outcome.trace, outcome.steady)

    return _Case(what, name, busy_ps, step_ps)


def _with_bandwidth(link: Link, factor: int) -> Link:
    bandwidth = min(Fraction(link.bandwidth) * factor, Fraction(MAX_BYTES))  # the most that a file may tell
    return replace(link, bandwidth=bandwidth)
