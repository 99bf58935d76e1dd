"""Engines: one contract, one answer. ``simulate`` is the only way in."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec

from ...ground.errors import DeadlockError, InputError, install_line
from ...nouns.taskgraph import Ints, TaskGraph
from ...nouns.trace import Trace

ENGINES = ("simpy", "compiled")
# The reference engine does 150,000 tasks a second or more; loading compiled kernels takes about
# half a second.
WORTH_COMPILING = 100_000


def simulate(task_graph: TaskGraph, engine: str = "auto") -> Trace:
    """Execute a task graph.

    ``engine`` is one of ENGINES, or "auto": compiled for large graphs, where numba is there.

    Where tasks slow each other (``sharing``), the trace is that of a task graph with longer
    durations. Raises DeadlockError where fixed sequences contradict, InputError for an engine that
    is unknown or not installed.
    """
    given: object = task_graph  # a caller without types may take it for the door of scenarios
    if not isinstance(given, TaskGraph):
        raise InputError("simulate: executes a TaskGraph; simdev.run(...) answers a scenario")
    name = choose(engine, len(task_graph.tasks))
    if task_graph.sharing:
        from .slowdown import slowed

        return slowed(task_graph, partial(simulate, engine=name))
    if name == "simpy":
        from .simpy_engine import execute
    else:
        from .compiled import execute
    start, finish = execute(task_graph)
    _require_finished(task_graph, start)
    return Trace(task_graph, start, finish, name)


def choose(engine: str, tasks: int) -> str:
    """The engine that "auto" means for so many tasks; any other name as it is.

    Raises InputError.
    """
    if engine not in ("auto", *ENGINES):
        raise InputError(f'engine: must be auto or one of {", ".join(ENGINES)}, got "{engine}"')
    has_numba = find_spec("numba") is not None
    if engine == "compiled" and not has_numba:
        raise InputError(f"engine: compiled needs numba: {install_line('fast')}")
    if engine == "auto":
        return "compiled" if has_numba and tasks >= WORTH_COMPILING else "simpy"
    return engine


def _require_finished(task_graph: TaskGraph, start: Ints) -> None:
    """Raise DeadlockError naming every task without a start (-1), and what it waits for."""
    stuck = (start < 0).nonzero()[0].tolist()
    if not stuck:
        return
    tasks, resources = task_graph.tasks, task_graph.resources
    # The head of each fixed queue that is stuck; others serve whoever is ready.
    heads = [next((t for t in queue.sequence if start[t] < 0), -1) for queue in resources]
    lines = []
    for task in stuck:
        before = [p for p in task_graph.predecessors[task].tolist() if start[p] < 0]
        reasons = [f'"{tasks.name[p]}"' for p in before[:2]]
        reasons += [f"{len(before) - 2} more"] * (len(before) > 2)
        reasons += [
            f'"{tasks.name[heads[row]]}", next in "{resources[row].name}"'
            for row in tasks.resources[task].tolist()
            if heads[row] not in (-1, task)
        ]
        waits = " and for ".join(reasons) or "its other queues"
        lines.append(f'"{tasks.name[task]}" waits for {waits}')
    raise DeadlockError(lines)
