"""The one way from a strategy to its trace: a step, or steps after one another until they
repeat.
"""

from __future__ import annotations

from .engine import simulate
from .lowering import LoweredStep, Prepared, credited, iterated, lower_step, most_steps
from .strategy import Strategy, Sync
from .taskgraph import TaskGraph
from .trace import Trace

STEPS = ("once", "repeated")
"""What a scenario may ask for: one step, or steps that follow one another."""


def follow_one_another(strategy: Strategy, steps: str) -> bool:
    """Whether steps are simulated one after another; a policy of synchronisation always does so."""
    return steps == "repeated" or isinstance(strategy.sync, Sync)


def simulate_strategy(
    prepared: Prepared, strategy: Strategy, engine: str = "auto", steps: str = STEPS[0]
) -> tuple[Trace, LoweredStep]:
    """The trace of a strategy, and the step that it executes, once or several times (STEPS).

    Raises InputError, MissingCostError, DeadlockError.
    """
    step = lower_step(prepared, strategy, follow_one_another(strategy, steps))
    return simulate_lowered(step, strategy, engine, steps), step


def simulate_lowered(
    step: LoweredStep, strategy: Strategy, engine: str = "auto", steps: str = STEPS[0]
) -> Trace:
    """The trace of a step as a strategy lowers to it, once or several times (STEPS).

    Raises InputError, DeadlockError.
    """
    if not follow_one_another(strategy, steps):
        return simulate(step.task_graph, engine)
    return simulate_steps(step, engine, strategy.sync if isinstance(strategy.sync, Sync) else None)


def simulate_steps(step: LoweredStep, engine: str, sync: Sync | None = None) -> Trace:
    """The trace of several steps: as many as it takes until they repeat, or as there may be.

    How many are tried ``analysis.COUNTS`` tells, their period ``analysis.steady_state``. ``sync``
    is the policy whose credit the step is under. Raises InputError, DeadlockError.
    """
    # Loaded where steps repeat: an oracle of single steps starts a quarter sooner without.
    from .analysis import COUNTS, steady_state

    for count in [count for count in COUNTS if count <= most_steps(step)] or COUNTS[:1]:
        graph = iterated(step, count)
        trace = (
            _under_credit(step, graph, sync, engine)
            if step.pushes and sync
            else simulate(graph, engine)
        )
        steady = steady_state(trace)
        if steady is not None and steady.repeats:
            break
    return trace


def _under_credit(step: LoweredStep, graph: TaskGraph, sync: Sync, engine: str) -> Trace:
    """The trace of several steps whose workers have a credit."""
    from .engine.credit import Sent, decisions

    limit, skip = int(sync.credit or 0), sync.credit_rule == "skip"
    return credited(
        step,
        graph,
        sync,
        lambda changed: simulate(changed, engine),
        lambda free, sent: decisions(free, (Sent(*message) for message in sent), limit, skip),
    )
