"""Steps that follow one another, simulated until they repeat."""

from __future__ import annotations

from .analysis import COUNTS, steady_state
from .engine import simulate
from .engine.credit import Sent, decisions
from .lowering import Step, credited, iterated
from .lowering import iterations as limits
from .strategy import Sync
from .taskgraph import TaskGraph
from .trace import Trace


def simulate_steps(step: Step, engine: str, sync: Sync | None = None) -> Trace:
    """The trace of several steps: as many as it takes until they repeat, or as there may be (``COUNTS``).

    ``analysis.steady_state`` tells their period. ``sync`` is the policy whose credit the step is under. Raises
    InputError, DeadlockError.
    """
    few = [count for count in COUNTS if len(step.task_graph.tasks) * count <= limits.MAX_TASKS]
    for count in few or COUNTS[:1]:
        graph = iterated(step, count)
        trace = _under_credit(step, graph, sync, engine) if step.pushes and sync else simulate(graph, engine)
        steady = steady_state(trace)
        if steady is not None and steady.repeats:
            break
    return trace


def _under_credit(step: Step, graph: TaskGraph, sync: Sync, engine: str) -> Trace:
    """The trace of several steps whose workers have a credit."""
    limit, skip = int(sync.credit or 0), sync.credit_rule == "skip"
    return credited(
        step,
        graph,
        sync,
        lambda changed: simulate(changed, engine),
        lambda free, sent: decisions(free, (Sent(*message) for message in sent), limit, skip),
    )
