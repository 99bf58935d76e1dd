"""The compiled engine: the execution contract as Numba kernels, the same integers as the reference
engine.
"""

from __future__ import annotations

from ...jit import Table
from ...taskgraph import Ints, TaskGraph
from ..deadlock import require_finished
from .kernel import run
from .state import program_of, state_for


def execute(task_graph: TaskGraph) -> tuple[Ints, Ints]:
    """Start and finish of every task in ps. Raises DeadlockError."""
    program = program_of(task_graph)
    state = state_for(program, task_graph.predecessor_count)
    run(Table.of(program).words, Table.of(state).words)
    require_finished(task_graph, state.start)
    return state.start, state.finish
