"""The threads of hosts in steps of large models: the dispatch of each turn of a layer, and its
edges.

A layer's turn has many launches, so its first kernels run while others are still dispatched: it
begins when its dispatch begins, and the rows after it wait for both. This is the limit of n ops of
device time d / n and host time h / n for large n: the longer of d and h. A thread runs ahead of its
device, but waits for transfers from another rank (Megatron-LM synchronises there) and before the
update, for which it reads the norm of the gradients. ``lower_hybrid`` calls it last. The hosts of
graphs of ops are in ``lowering.hosts``, which has the limit of launches (``ahead_of``) for both.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from ...nouns.cluster import Host
from ...nouns.graph import PHASES
from ...nouns.models.large import roles
from ...nouns.models.large.roles import NO_LAYER
from ...nouns.schedules import FORWARD, INPUT, WEIGHT, Part
from ...nouns.taskgraph import Ints
from ..hosts import ahead_of
from .program import NONE, THREAD, TO_NEXT, TO_PREVIOUS, Program

_FORWARD, _BACKWARD, _UPDATE = PHASES
_FIRST, _LAST, _END, _LAUNCHES, _NUMBER, _LAYER = range(6)


def add_dispatches(program: Program) -> None:
    """Add the rows of all threads; called last, for they depend on the edges of all other rows."""
    rows = program.rows
    # By row: the dispatch (holds) for which successors of the row also wait, the dispatch (waits)
    # that waits for predecessors of the row, and the last row of its turn (ends).
    holds, waits = np.full(rows, NONE, np.int64), np.full(rows, NONE, np.int64)
    ends = np.full(rows, NONE, np.int64)
    for rank in range(program.schedule.ranks):
        host = program.durations.host(rank)
        if host is not None and host.mode == "graph":
            _add_replay(program, rank, host)
        elif host is not None and any(program.shard.model.host_time.values()):
            _add_thread(program, rank, host, holds, waits, ends)
    if (holds != NONE).any():
        _tie_threads(program, holds, waits, ends)


def _add_replay(program: Program, rank: int, host: Host) -> None:
    """Add a single dispatch for the whole step, for which all rows without predecessors wait."""
    number = program.durations.thread(Fraction(host.launch))
    row = program.rows
    ranks = np.concatenate([table[:, -2] for table in program.tables])
    released = np.bincount(np.concatenate(program.targets), minlength=row)[:row] > 0
    _add_rows(program, rank, np.array([number]), np.array([NO_LAYER]), np.array([NONE]))
    program.edge(row, np.flatnonzero((ranks == rank) & ~released))


def _add_rows(program: Program, rank: int, numbers: Ints, layers: Ints, actions: Ints) -> Ints:
    """Add dispatches of a rank, one after another; returns their rows."""
    columns = np.broadcast_arrays(roles.DISPATCH, THREAD, numbers, 0, layers)
    rows = program.rows + np.arange(len(numbers), dtype=np.int64)
    program.add_table(np.column_stack(columns), rank, actions)
    program.edge(rows[:-1], rows[1:])
    return rows


def _add_thread(
    program: Program, rank: int, host: Host, holds: Ints, waits: Ints, ends: Ints
) -> None:
    """Add a dispatch for each turn of a layer, and one for the update."""
    parts, bases = zip(*program.runs[rank], strict=True)
    turns_of = {part: _turns(program, part) for part in dict.fromkeys(parts)}
    lengths = [len(turns_of[part]) for part in parts]
    turns = np.concatenate([turns_of[part] for part in parts])
    turns[:, _FIRST : _END + 1] += np.repeat(bases, lengths)[:, None]
    update = program.durations.thread(_seconds(program, _UPDATE))
    rows = _add_rows(
        program,
        rank,
        np.append(turns[:, _NUMBER], update),
        np.append(turns[:, _LAYER], NO_LAYER),
        np.append(np.repeat(program.numbers(rank), lengths), NONE),
    )
    for column in (_LAST, _END):
        holds[turns[:, column]], ends[turns[:, column]] = rows[:-1], turns[:, _END]
    updates = program.ends[rank].updates
    holds[updates[-1]] = waits[updates[0]] = rows[-1]
    first = np.cumsum(lengths) - lengths
    starts = [program.placed[part].template.main[0] + base for part, base in program.runs[rank]]
    waits[starts] = rows[first]
    before, after = ahead_of(turns[:, _LAUNCHES], host.ahead)
    program.edge(turns[before, _END], rows[after])


def _seconds(program: Program, phase: str) -> Fraction:
    return Fraction(program.shard.model.host_time.get(phase, 0))


def _turns(program: Program, part: Part) -> Ints:
    """The turns of layers in a template, as columns: the first and the last computing row, the last
    main row, launches, the number of the dispatch's duration, the layer.
    """
    template = program.placed[part].template
    main, layers = template.main, template.table[template.main, -1]
    launches = np.array(template.launches)
    phase = _FORWARD if part[2] == FORWARD else _BACKWARD
    lines = []
    for number, visit in template.visits.items():
        rows = main[layers == number]
        count = int(launches[rows].sum())
        share = _share(program, part, number, count)
        duration = program.durations.thread(_seconds(program, phase) * share)
        lines.append((visit.first, visit.last, int(rows[-1]), count, duration, number))
    return np.array(lines, np.int64).reshape(-1, 6)


def _share(program: Program, part: Part, layer: int, count: int) -> Fraction:
    """The share of a layer's backward that this part dispatches: by launches where it is split."""
    way, stage, kind = part
    if kind not in (INPUT, WEIGHT):
        return Fraction(1)
    other = program.placed[way, stage, WEIGHT if kind == INPUT else INPUT].template
    rows = other.main[other.table[other.main, -1] == layer]
    return Fraction(count, count + int(np.array(other.launches)[rows].sum()))


def _tie_threads(program: Program, holds: Ints, waits: Ints, ends: Ints) -> None:
    """Add edges of threads: the rows after a turn also wait for its dispatch; the dispatch of the
    update, and of an action that waits for a transfer from another rank, waits as the action does.
    """
    rows = len(holds)
    source, target = (np.concatenate(edges) for edges in (program.sources, program.targets))
    others = (source < rows) & (target < rows)
    source, target = source[others], target[others]
    inside = (target > source) & (target <= ends[source])
    held = (holds[source] != NONE) & ~inside
    program.edge(holds[source[held]], target[held])
    queue = np.concatenate([table[:, 1] for table in program.tables])
    blocked = np.zeros(rows, np.bool_)
    blocked[target[np.isin(queue[source], (TO_NEXT, TO_PREVIOUS))]] = True
    blocked[[ends.updates[0] for ends in program.ends]] = True
    waiting = (waits[target] != NONE) & blocked[target]
    program.edge(source[waiting], waits[target[waiting]])
