"""An independent judge of results: takes a TaskGraph and a Trace, and tells where they break the
execution contract.

It shares no code with the engines, and none with the trace's own memory: it re-computes everything
its own way, from the columns of the task graph and the start and finish of every task. The rules
come in layers; a layer is judged only where the ones below it hold, so that one fault is told once:

1. ``columns`` every task has one start and finish, in range; ``ran`` every task ran.
2. ``duration``, ``precedence``, ``overlap`` it is a schedule; ``data``, ``bytes`` what is read has
   arrived, and all of it (schedule.py).
3. ``order``, ``waiting`` queues serve in their order and nothing waits needlessly (queues.py);
   ``flow`` the rates of fair links are max-min, and deliver the bytes (flows.py).
4. ``bounds`` the step time lies between what it cannot beat and what it cannot exceed.

What hosts dispatch is judged from the question itself, by ``host_faults`` (hosts.py): ``dispatch``
every op has its own and starts after them, ``thread`` in their order and without delay, ``ahead``
and ``blocks`` what they wait for, ``stream`` the ops of a stream run in program order.

A new rule needs its name in ``violation.RULES`` and, where timing changes, both engines.

What the trace claims (``step``, ``peak``, ``levels``, ``overflow``, ``feasible``) is compared
wherever layer 1 holds.
"""

from __future__ import annotations

import numpy as np

from ...nouns.taskgraph import TaskGraph
from ...nouns.trace import Trace
from .claims import Claim, claim_faults
from .flows import flow_faults
from .hosts import host_faults
from .queues import queue_faults
from .schedule import bound_faults, column_faults, data_faults, schedule_faults
from .violation import RULES, Violation

__all__ = ["RULES", "Claim", "Violation", "check", "host_faults"]


def check(task_graph: TaskGraph, trace: Trace, claim: Claim | None = None) -> tuple[Violation, ...]:
    """Every breach of the execution contract, the deepest layer first; empty for a valid result.

    ``claim`` is what the trace is said to show (a saved run brings its own); by default, what the
    trace itself reports.
    """
    columns = tuple(column_faults(task_graph, trace.start, trace.finish))
    if columns:
        return columns
    start, finish = np.asarray(trace.start, np.int64), np.asarray(trace.finish, np.int64)
    faults = list(schedule_faults(task_graph, start, finish))
    if not faults:
        faults += queue_faults(task_graph, start, finish)
        faults += flow_faults(task_graph, start, finish)
    faults += data_faults(task_graph, start, finish)
    # A schedule that keeps all rules keeps these bounds: they catch what the rules overlook.
    if not faults:
        faults += bound_faults(task_graph, int((finish + task_graph.tasks.lag).max(initial=0)))
    return *faults, *claim_faults(task_graph, start, finish, claim or Claim.of(trace))
