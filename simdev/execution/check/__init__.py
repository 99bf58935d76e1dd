"""An independent checker: takes a TaskGraph and a Trace, and lists every breach of the execution
contract.

It shares no code with the engines, and none with the memory figures of a trace: it computes
everything again in another way, from the columns of the task graph and the start and finish of
every task. The rules form layers; a layer is checked only where the layers above it in this list
hold, so that a fault is reported once:

1. ``columns``: every task has a start and a finish, in range; ``ran``: every task ran.
2. ``duration``, ``precedence``, ``overlap``: the times form a schedule; ``data``, ``bytes``: all
   data that a task reads has arrived (schedule.py).
3. ``order``, ``waiting``: queues serve in their order and no task waits needlessly (queues.py);
   ``flow``: the rates of fair links are max-min, and deliver the bytes (flows.py).
4. ``bounds``: the step time lies between its lower and upper bounds (schedule.py).

Dispatches of hosts are checked from the graph and the cluster by ``host_faults`` (hosts.py):
``dispatch``: every op has its dispatches and starts after them; ``thread``: dispatches run in order
and without delay; ``ahead``, ``blocks``: they wait for the ops they must; ``stream``: the ops of a
stream run in program order.

The figures that the trace claims (``step``, ``peak``, ``levels``, ``overflow``, ``feasible``) are
compared wherever layer 1 holds (claims.py).

A new rule needs its name in ``violation.RULES`` and, where timing changes, both engines.
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
    """Every breach of the execution contract, in the order of layers; empty for a valid result.

    ``claim`` has the figures that the trace should show (a saved run has its own claim); by
    default the figures that the trace itself reports.
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
    # A schedule that keeps all rules keeps these bounds: they catch faults that no rule sees.
    if not faults:
        faults += bound_faults(task_graph, int((finish + task_graph.tasks.lag).max(initial=0)))
    return *faults, *claim_faults(task_graph, start, finish, claim or Claim.of(trace))
