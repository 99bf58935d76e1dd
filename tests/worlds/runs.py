"""Runs on which both engines agree and which the checker accepts, and figures of their traces."""

from __future__ import annotations

from collections.abc import Iterable

from simdev.execution.check import Violation, check
from simdev.execution.engine import simulate
from simdev.execution.period import Steady, steady_state
from simdev.execution.scenario import Outcome, Scenario, execute
from simdev.nouns.trace import Trace


def spans(trace: Trace) -> tuple[list[int], list[int]]:
    """The starts and the finishes of the tasks, in ps."""
    return trace.start.tolist(), trace.finish.tolist()


def agreed(trace: Trace) -> Trace:
    """The trace; asserts that the other engine gives the same one and the checker accepts it."""
    engine = "compiled" if trace.engine == "simpy" else "simpy"
    assert spans(simulate(trace.task_graph, engine)) == spans(trace)
    assert check(trace.task_graph, trace) == ()
    return trace


def executed(scenario: Scenario) -> Outcome:
    """The outcome on which both engines and the checker agree."""
    outcome = execute(scenario)
    agreed(outcome.trace)
    return outcome


def steady_of(trace: Trace) -> Steady:
    """How the steps of a trace follow one another."""
    steady = steady_state(trace)
    assert steady is not None
    return steady


def repeated(trace: Trace) -> Steady:
    """How the steps of a trace repeat; asserts that they do."""
    steady = steady_of(trace)
    assert steady.repeats
    return steady


def rules(faults: Iterable[Violation]) -> set[str]:
    """The rules that the violations break."""
    return {fault.rule for fault in faults}
