"""What if a device, a link or a class of ops were faster: what the step gains, simulated again.

Of a scenario every answer is the step time of a run of the changed scenario. On a faster device
every op takes its share of the time; gaps stay, and how fast a server adds up is the policy's to
tell. A faster link has more bandwidth, its latency stays, and routes are chosen anew. Collectives,
as a class, take their share of the time, whatever costs them; where links are faster, those that a
measured table costs keep its times.

Of a saved run only the tasks and the queues are known, stretched and in the order of their credit
as they ran; a large model's step is asked about in this way, too. Everything that is sent through a
queue takes its share of the time, latency that it holds included, which is the most that a faster
link could bring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..analysis import Carrier, Report, carriers, step_time_ps, transfer_mask
from ..cluster import Link
from ..engine import choose, simulate
from ..fabric import LINK_QUEUES
from ..lowering import Prepared, lower_step
from ..scenario import Scenario
from ..strategy import Order, Sync
from ..taskgraph import COLLECTIVE, Ints
from ..units import MAX_BYTES
from .faster import Ops, Question

FACTOR = 2
MOST = 48  # so many devices and queues, the busiest
MOST_LINKS = 16  # so many links, the busiest: each needs a lowering of its own
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One answer: ``what`` (device, links, link, queue, op class, phase) of this name made faster.

    ``busy_ps`` is the time in which it works in the step as it is (None: not known), ``step_ps``
    the step time with it faster, ``gain`` the share of the step time that this saves (below 0 where
    the step gets longer).
    """

    what: str
    name: str
    busy_ps: int | None
    step_ps: int
    gain: float


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of a step: its report, and the question (None: its tasks are all there is)."""

    report: Report
    factor: int
    question: Question | None


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
    """Every device, link and class of ops made ``factor`` times faster, one at a time; the largest
    gain first.

    ``kinds`` are the kinds of the ops by name, None where they are not known (then the phases are
    the classes); ``scenario`` is what the report answers, None for a saved run and a large model;
    ``watch`` may show how far it is. Raises InputError.
    """
    question = None if scenario is None else Question.of(scenario, factor, kinds or {})
    cases = list(_cases(_Known(report, factor, question), kinds))
    engine = choose("auto", len(report.trace.task_graph.tasks) * (len(cases) + 1))
    # What is compared is simulated alike: a saved run may claim any step time.
    base = report.step_ps if question else step_time_ps(simulate(report.trace.task_graph, engine))
    found = []
    for case in watch(cases):
        step = case.step_ps(engine)
        found.append(
            WhatIf(case.what, case.name, case.busy_ps, step, (base - step) / base if base else 0.0)
        )
    return tuple(sorted(found, key=lambda one: -one.gain))


def _cases(known: _Known, kinds: Mapping[str, str] | None) -> Iterator[_Case]:
    yield from _devices(known)
    if known.question is None:
        yield from _queues(known)
    else:
        yield from _links(known.report, known.question)
    yield from _classes(known, kinds)


def _shorter(known: _Known, chosen: Bools, what: str, name: str, ops: Ops | None = None) -> _Case:
    """The chosen tasks take a part of their time; ``ops`` tells them where they are ops."""
    report, trace, question = known.report, known.report.trace, known.question

    def step_ps(engine: str) -> int:
        if question is not None:
            return question.step_ps(chosen[: len(question.step.task_graph.tasks)], ops, engine)
        tasks = trace.task_graph.tasks
        duration: Ints = np.where(chosen, -(-tasks.duration // known.factor), tasks.duration)
        changed = replace(trace.task_graph, tasks=replace(tasks, duration=duration))
        return step_time_ps(simulate(changed, engine))

    return _Case(what, name, _busy_ps(report, trace.start[chosen], trace.finish[chosen]), step_ps)


def _busy_ps(report: Report, start: Ints, finish: Ints) -> int:
    """What the spans cover together of one step, in ps."""
    return report.window.a_step(report.window.covered_ps(start, finish))


def _devices(known: _Known) -> Iterator[_Case]:
    task_graph = known.report.trace.task_graph
    computes, source = ~transfer_mask(task_graph), task_graph.tasks.source
    names = task_graph.devices
    working = np.unique(source[computes]).tolist()
    for_each = ((computes & (source == d), "device", names[d], Ops(device=d)) for d in working)
    yield from _busiest(_shorter(known, *case) for case in for_each)
    if len(working) > 1:
        yield _shorter(known, computes, "devices", "all", Ops())


def _classes(known: _Known, kinds: Mapping[str, str] | None) -> Iterator[_Case]:
    tasks = known.report.trace.task_graph.tasks
    computes, kind_of = ~transfer_mask(known.report.trace.task_graph), kinds or {}
    of_task = zip(tasks.op.tolist(), tasks.kind, strict=True)
    ops = (kind_of.get(tasks.name[op], phase) for op, phase in of_task)
    classes = np.array(list(ops), dtype=object)
    for name in sorted(set(classes[computes & (tasks.duration > 0)].tolist())):
        chosen: Bools = computes & (classes == name).astype(np.bool_)
        yield _shorter(known, chosen, "op class" if kinds else "phase", name, Ops(of_class=name))
    collectives = (
        np.fromiter((kind == COLLECTIVE for kind in tasks.kind), np.bool_, len(tasks)) & ~tasks.flow
    )
    if collectives.any():
        yield _shorter(known, collectives, "op class", "collectives")


def _queues(known: _Known) -> Iterator[_Case]:
    """The queues, half-links and pairs of devices that transfers go through; a collective goes
    through many at once.
    """
    task_graph, tasks = known.report.trace.task_graph, known.report.trace.task_graph.tasks
    sends = transfer_mask(task_graph) & np.fromiter(
        (kind != COLLECTIVE for kind in tasks.kind), np.bool_, len(tasks)
    )
    found = [_carrier(known, carrier, sends) for carrier in carriers(known.report.trace)]
    cases = [case for case in found if case is not None]
    yield from _busiest(cases)
    if len(cases) > 1 and tasks.flow.any():
        yield _wider(known, list(range(len(task_graph.links))), "all", None)
    elif len(cases) > 1:
        yield _shorter(known, sends, "queues", "all")


def _busiest(cases: Iterable[_Case]) -> list[_Case]:
    return sorted(cases, key=lambda case: -(case.busy_ps or 0))[:MOST]


def _carrier(known: _Known, carrier: Carrier, sends: Bools) -> _Case | None:
    """None where no transfer goes through it."""
    trace, task_graph = known.report.trace, known.report.trace.task_graph
    through = carrier.tasks[sends[carrier.tasks]]
    if not len(through):
        return None
    if task_graph.tasks.flow[through].any():
        busy = _busy_ps(known.report, carrier.start, trace.finish[carrier.tasks])
        return _wider(known, [task_graph.links.index(carrier.name)], carrier.name, busy)
    chosen = np.zeros(len(task_graph.tasks), np.bool_)
    chosen[through] = True
    return _shorter(known, chosen, "queue", carrier.name)


def _wider(known: _Known, rows: list[int], name: str, busy: int | None) -> _Case:
    """Half-links that flows share have more bandwidth."""

    def step_ps(engine: str) -> int:
        task_graph = known.report.trace.task_graph
        bandwidth = task_graph.bandwidth.copy()
        bandwidth[rows] *= known.factor
        return step_time_ps(simulate(replace(task_graph, bandwidth=bandwidth), engine))

    return _Case("link" if len(rows) == 1 else "links", name, busy, step_ps)


def _links(report: Report, question: Question) -> Iterator[_Case]:
    """The links that carry something, by kind and one by one."""
    scenario, prepared = question.scenario, question.prepared
    links = scenario.cluster.links
    used = _used(report, scenario, prepared) if transfer_mask(report.trace.task_graph).any() else {}

    def faster(rows: list[int], what: str, name: str, busy_ps: int | None = None) -> _Case:
        return _wired(question, rows, what, name, busy_ps)

    kinds = sorted({links[i].kind for i in used})
    for kind in kinds if len(kinds) > 1 else ():
        yield faster([i for i in used if links[i].kind == kind], "links", kind or "of no kind")
    if len(used) > 1:
        yield faster(list(used), "links", "all")
    for i in sorted(used, key=lambda one: (-used[one], one))[:MOST_LINKS]:
        busy = used[i] if prepared.fabric.links_serve else None
        yield faster([i], "link", " - ".join(links[i].ends), busy)


def _used(report: Report, scenario: Scenario, prepared: Prepared) -> dict[int, int]:
    """The rows of the links that carry something, and for how long (ps).

    Links that are no queues, and that nothing shares, are busy for as long as they were if they
    were queues.
    """
    cluster = scenario.cluster
    row = {id(link): i for i, link in enumerate(cluster.links)}
    link_of = [row[id(half_link.link)] for half_link in cluster.half_links]
    if not prepared.fabric.links_serve:
        return _used_as_queues(scenario, prepared, np.array(link_of, np.int64))
    carried, through = {one.name: one for one in carriers(report.trace)}, dict[int, list[Carrier]]()
    for half_link, i in zip(cluster.half_links, link_of, strict=True):
        if half_link.name in carried:
            through.setdefault(i, []).append(carried[half_link.name])
    busy = {i: _carrying_ps(report, found) for i, found in through.items()}
    return {i: ps for i, ps in busy.items() if ps}


def _used_as_queues(scenario: Scenario, prepared: Prepared, link_of: Ints) -> dict[int, int]:
    """The rows of links with their ps by lowering to queues of links: that tells every message what
    it passes.

    ``link_of`` is the link of each half-link.
    """
    # a sequence may name queues that are not there
    strategy = replace(scenario.strategy, order=Order())
    if isinstance(strategy.sync, Sync):
        strategy = replace(strategy, sync=replace(strategy.sync, hold="together"))
    cluster = replace(scenario.cluster, queues=LINK_QUEUES)
    tasks = lower_step(prepared.on(cluster), strategy).task_graph.tasks
    half_link, task = tasks.resources.ids - len(cluster.devices), tasks.resources.owners()
    sent = (half_link >= 0) & (half_link < len(link_of)) & (tasks.bytes[task] > 0)
    busy = np.zeros(len(cluster.links), np.int64)
    np.add.at(busy, link_of[half_link[sent]], tasks.duration[task[sent]])
    return {i: int(busy[i]) for i in np.flatnonzero(busy).tolist()}


def _carrying_ps(report: Report, through: Sequence[Carrier]) -> int:
    """The time of a step in which a link carries anything in either direction."""
    start = np.concatenate([carrier.start for carrier in through])
    return _busy_ps(
        report, start, np.concatenate([report.trace.finish[carrier.tasks] for carrier in through])
    )


def _wired(question: Question, rows: list[int], what: str, name: str, busy: int | None) -> _Case:
    """Links have more bandwidth."""

    def step_ps(engine: str) -> int:
        scenario = question.scenario
        links = list(scenario.cluster.links)
        for row in rows:
            links[row] = _with_bandwidth(links[row], question.factor)
        cluster = replace(scenario.cluster, links=tuple(links))
        step = lower_step(question.prepared.on(cluster), scenario.strategy, question.repeated)
        return step_time_ps(question.trace(step, engine))

    return _Case(what, name, busy, step_ps)


def _with_bandwidth(link: Link, factor: int) -> Link:
    # the most that a file may tell
    bandwidth = min(Fraction(link.bandwidth) * factor, Fraction(MAX_BYTES))
    return replace(link, bandwidth=bandwidth)
