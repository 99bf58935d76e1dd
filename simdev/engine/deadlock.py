"""What the tasks that never started wait for, from the starts alone: one message for every
engine.
"""

from __future__ import annotations

from ..errors import DeadlockError
from ..taskgraph import Ints, TaskGraph


def require_finished(task_graph: TaskGraph, start: Ints) -> None:
    """Raise DeadlockError naming every task without a start (-1)."""
    stuck = (start < 0).nonzero()[0].tolist()
    if not stuck:
        return
    names = task_graph.tasks.name
    heads = {}
    for row, resource in enumerate(task_graph.resources):
        heads[row] = next((task for task in resource.sequence if start[task] < 0), -1)
    lines = []
    for task in stuck:
        before = [p for p in task_graph.predecessors[task].tolist() if start[p] < 0]
        reasons = [f'"{names[p]}"' for p in before[:2]] + [f"{len(before) - 2} more"] * (
            len(before) > 2
        )
        for row in task_graph.tasks.resources[task].tolist():
            if heads[row] not in (-1, task):
                reasons.append(f'"{names[heads[row]]}", next in "{task_graph.resources[row].name}"')
        lines.append(f'"{names[task]}" waits for {" and for ".join(reasons) or "its other queues"}')
    raise DeadlockError(lines)
