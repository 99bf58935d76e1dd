"""The expected errors of the durations of a task graph, task by task: which costs each rests on.

Ops rest on the cost ladder, dispatches on that of hosts, messages and collectives on their links.
Exact are times that were given, measured rows that tell no error, sums of servers and the launch of
a replayed graph. ``oracle/draws.py`` draws durations from these errors; ``origins.py`` adds them up
for reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain

import numpy as np

from ..costs import KNOWN, MEMORY_PASS, ROOFLINE, OpCost, op_key
from ..costs.dispatch import ESTIMATED_ERROR, RUN_ERROR
from ..costs.drawn import CPU_STEP_ERROR, LINE_ERROR, STEP_ERROR, TABLE_ERROR, ErrorSource
from ..costs.roofline import ROOFLINE_ERROR
from ..nouns.fabric import Fabric
from ..nouns.models.large.roles import COMPUTES, ROLES, LargeStep, Share
from ..nouns.models.large.roles import DISPATCH as DISPATCHING
from ..nouns.semantics import op_class
from ..nouns.taskgraph import (
    COLLECTIVE,
    DISPATCH,
    SYNC,
    TRANSFER,
    Floats,
    Ints,
    Rows,
    TaskGraph,
    distinct_rows,
)
from .prepare import Prepared

TABLED = KNOWN[-1]  # the rung of what a table of measured collectives tells
NONE = -1  # in place of the kind of a task that takes no time

Mix = tuple[tuple[ErrorSource, float], ...]
"""The errors that a time rests on, with the share of it that each concerns; empty: it is exact."""


@dataclass(frozen=True, eq=False)
class ExpectedErrors:
    """By task the number of its mix: row ``mix[task]`` of ``parts`` lists the ``sources`` that its
    time rests on, and ``share`` (beside ``parts.ids``) by how much.
    """

    sources: tuple[ErrorSource, ...]
    parts: Rows
    share: Floats
    mix: Ints

    @classmethod
    def of(cls, rows: Ints, mix_of: Callable[..., Mix]) -> ExpectedErrors:
        """Of tasks that are told by a row of numbers each; ``mix_of`` makes the mix of one."""
        kinds, which = distinct_rows(rows)
        mixes = [mix_of(*row) for row in kinds.tolist()]
        number = {mix: i for i, mix in enumerate(dict.fromkeys(mixes))}
        place: dict[ErrorSource, int] = {}
        parts = [[place.setdefault(s, len(place)) for s, _ in mix] for mix in number]
        share = np.array([share for _, share in chain.from_iterable(number)])
        mix = np.array([number[mix] for mix in mixes], np.int64)[which]
        return cls(tuple(place), Rows.of(parts), share, mix)

    def factors(self, drawn: Floats) -> Floats:
        """The factor of each task where those of the sources are ``drawn``; exactly 1 where theirs
        are.
        """
        more = self.share * (drawn[self.parts.ids] - 1)
        mixed: Floats = np.bincount(self._owners, more, len(self.parts)).astype(np.float64)
        # Two whole errors of one time are added: both far below, they would be less than nothing.
        return np.maximum(1 + mixed, 0.0)[self.mix]

    @cached_property
    def _owners(self) -> Ints:
        return self.parts.owners()


def errors_of_graph(prepared: Prepared, task_graph: TaskGraph) -> ExpectedErrors:
    """The expected errors of the tasks of any number of steps; ``prepared`` is the graph whose ops
    are the first tasks of a step.
    """
    tasks, codes = task_graph.tasks, task_graph.kinds
    sends = task_graph.of_kind(TRANSFER, COLLECTIVE)
    lasts = (tasks.duration > 0) | (tasks.lag > 0) | tasks.flow
    # A message is told by its ends and its bytes, all else by its op and its device.
    what = np.where(sends, tasks.bytes, tasks.op)
    ring = np.where(task_graph.of_kind(COLLECTIVE), tasks.op, NONE)
    code = np.where(lasts, codes.codes.astype(np.int64), NONE)
    rows = np.stack((code, what, tasks.source, tasks.destination, ring), axis=1)
    sources = _Sources(prepared)

    def mix_of(code: int, number: int, source: int, destination: int, op: int) -> Mix:
        kind = SYNC if code == NONE else codes.labels[code]
        if kind in (TRANSFER, COLLECTIVE):
            rung = prepared.rings[op].rung if op in prepared.rings else ROOFLINE
            link = _link(prepared.fabric, source, destination)
            return _whole(_sent(link, kind, number, rung))
        if kind == DISPATCH:
            return sources.of_host(number, source)
        if kind == SYNC or not 0 <= number < len(prepared.graph.ops):
            return ()
        return sources.of_op(number, source)

    return ExpectedErrors.of(rows, mix_of)


def errors_of_large(task_graph: TaskGraph, large: LargeStep) -> ExpectedErrors:
    """The expected errors of the tasks of a large model's step, where each rests on several
    kernels. Its messages are told by their role and bytes; of each a share is told by tables.
    """
    role = large.role.astype(np.int64)
    size = np.where(role < COMPUTES, 0, task_graph.tasks.bytes)

    def mix_of(role: int, number: int, size: int) -> Mix:
        if role < COMPUTES:
            return _mixed(large.shares.get(number, ()), large.device)
        if role == DISPATCHING:
            return ()
        tabled = large.tabled.get(number, 0.0)
        sent = partial(_sent, ROLES[role], COLLECTIVE, size)
        parts = (sent(TABLED), tabled), (sent(ROOFLINE), 1 - tabled)
        return tuple((source, share) for source, share in parts if share)

    return ExpectedErrors.of(np.stack((role, large.cost, size), axis=1), mix_of)


def _mixed(shares: Iterable[Share], device: str) -> Mix:
    shares = tuple(shares)
    total = sum(share.seconds for share in shares)
    seconds: dict[ErrorSource, float] = {}
    for share in shares if total else ():
        error = error_of(share.rung, share.rel_err)
        source = ErrorSource(f"{share.op_class} on {device}", share.name, error)
        seconds[source] = seconds.get(source, 0.0) + share.seconds
    return tuple((source, part / total) for source, part in seconds.items() if source.rel_err)


def error_of(rung: str, rel_err: float | None) -> float:
    """The error to expect of a cost: 0 of what is no estimate and tells none; of an estimate of
    which nothing tells it, that of the datasheet rung.
    """
    if rel_err is None:
        return 0.0 if rung in KNOWN else ROOFLINE_ERROR
    return rel_err


def _whole(source: ErrorSource | None) -> Mix:
    return () if source is None or not source.rel_err else ((source, 1.0),)


def _sent(link: str, kind: str, size: int, rung: str = ROOFLINE) -> ErrorSource:
    error = {"given": 0.0, ROOFLINE: LINE_ERROR}.get(rung, TABLE_ERROR)
    by = " by table" if error == TABLE_ERROR else ""
    return ErrorSource(f"link {link}{by}", f"{kind} of {size} bytes over {link}{by}", error)


def _link(fabric: Fabric, source: int, destination: int) -> str:
    """The kind of the link that a message is bound by. All of a kind err alike, however wide they
    are: so a sweep over bandwidths compares them by common random numbers.
    """
    pieces = fabric.segments(source, destination) if source != destination else None
    cluster = fabric.cluster
    crossed = [cluster.half_links[h].link for p in pieces or () for h in p.route.half_links]
    if not crossed:
        return "of no route"
    return min(crossed, key=lambda link: link.bandwidth).kind or "of no kind"


class _Sources:
    """The sources of errors in the times of a graph's ops and of their dispatches."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        specs = prepared.costed.costs.specs
        self._cpus = {spec.kind for spec in specs if spec.family == "cpu"}

    def of_op(self, op: int, device: int) -> Mix:
        """Empty for an exact time."""
        cost, kind = self.prepared.cost(op, device), self.prepared.cluster.devices[device].kind
        if cost is None or not (error := error_of(cost.rung, cost.rel_err)):
            return ()
        alone = ErrorSource(f"{self._class(op, cost)} on {kind}", self._key(op, kind), error)
        if cost.rung not in KNOWN:
            return ((alone, 1.0),)
        # The rows of a step, each measured alone, are off together.
        error = CPU_STEP_ERROR if kind in self._cpus else STEP_ERROR
        return (alone, 1.0), (ErrorSource(f"steps on {kind}", f"steps on {kind}", error), 1.0)

    def of_host(self, op: int, device: int) -> Mix:
        """Empty for an exact time, as that of a graph that is replayed is."""
        cluster = self.prepared.cluster
        kind, host = cluster.devices[device].kind, cluster.host_of(device)
        if host is None or host.mode != "eager":
            return ()
        cost = self.prepared.costed.host_cost(op, kind)
        if cost is None or cost.rung in KNOWN:
            return ()
        error = ESTIMATED_ERROR if cost.rel_err is None else cost.rel_err
        alone = ErrorSource(f"host of {kind}", f"dispatch {self._key(op, kind)}", error)
        run = ErrorSource(f"runs of hosts of {kind}", f"runs of hosts of {kind}", RUN_ERROR)
        return (alone, 1.0), (run, 1.0)

    def _class(self, op: int, cost: OpCost) -> str:
        kind = self.prepared.graph.ops[op].kind
        return f"{kind} as a pass" if cost.rung == MEMORY_PASS else op_class(kind)

    def _key(self, op: int, kind: str) -> str:
        return op_key(self.prepared.graph, op, kind)
