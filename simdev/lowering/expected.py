"""The expected errors of the durations of a task graph, by the costs that each task depends on.

Ops depend on the cost ladder, dispatches on that of hosts, messages and collectives on their links.
Exact are given times, measured rows without an error, sums of servers and the launch of a replayed
graph. ``oracle/draws.py`` draws durations from these errors; ``origins.py`` adds them up for
reports.
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

TABLED = KNOWN[-1]  # the rung of times from a table of measured collectives
NONE = -1  # in place of the kind of a task that takes no time

Mix = tuple[tuple[ErrorSource, float], ...]
"""The sources of error of a time, each with the share of the time that it affects; empty: exact."""


@dataclass(frozen=True, eq=False)
class ExpectedErrors:
    """The expected errors of tasks. ``mix`` is the number of each task's mix: the row ``mix[task]``
    of ``parts`` lists the ``sources`` of error of its time, and ``share`` (parallel to
    ``parts.ids``) the share that each affects.
    """

    sources: tuple[ErrorSource, ...]
    parts: Rows
    share: Floats
    mix: Ints

    @classmethod
    def of(cls, rows: Ints, mix_of: Callable[..., Mix]) -> ExpectedErrors:
        """Expected errors of tasks, each described by a row of numbers; ``mix_of`` makes the mix of
        a row.
        """
        kinds, which = distinct_rows(rows)
        mixes = [mix_of(*row) for row in kinds.tolist()]
        number = {mix: i for i, mix in enumerate(dict.fromkeys(mixes))}
        place: dict[ErrorSource, int] = {}
        parts = [[place.setdefault(s, len(place)) for s, _ in mix] for mix in number]
        share = np.array([share for _, share in chain.from_iterable(number)])
        mix = np.array([number[mix] for mix in mixes], np.int64)[which]
        return cls(tuple(place), Rows.of(parts), share, mix)

    def factors(self, drawn: Floats) -> Floats:
        """The factor of each task for the factors ``drawn`` of the sources; exactly 1 where these
        are 1.
        """
        more = self.share * (drawn[self.parts.ids] - 1)
        mixed: Floats = np.bincount(self._owners, more, len(self.parts)).astype(np.float64)
        # Errors are added: two of a share of 1, both far below 1, would make a negative factor.
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
    # A message is described by its ends and its bytes, any other task by its op and its device.
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
    """The expected errors of the tasks of a large model's step, each of which depends on several
    kernels. Messages are described by their role and bytes; a share of the time of each comes from
    tables.
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
    """The expected error of a cost. Where ``rel_err`` is None: 0 for a given or measured time, the
    error of the datasheet rung for an estimate.
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
    """The kind of the slowest link of a message. Links of a kind share an error at any bandwidth,
    so that a sweep over bandwidths compares common random numbers.
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
        """The mix of an op's time on a device; empty for an exact time."""
        cost, kind = self.prepared.cost(op, device), self.prepared.cluster.devices[device].kind
        if cost is None or not (error := error_of(cost.rung, cost.rel_err)):
            return ()
        alone = ErrorSource(f"{self._class(op, cost)} on {kind}", self._key(op, kind), error)
        if cost.rung not in KNOWN:
            return ((alone, 1.0),)
        # Rows were measured alone, so in a step they err together.
        error = CPU_STEP_ERROR if kind in self._cpus else STEP_ERROR
        return (alone, 1.0), (ErrorSource(f"steps on {kind}", f"steps on {kind}", error), 1.0)

    def of_host(self, op: int, device: int) -> Mix:
        """The mix of a dispatch's time; empty for an exact time, as of a replayed graph."""
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
