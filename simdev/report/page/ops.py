"""The ops of two steps beside each other, by module and by kind; and a renaming of a traced step's
ops, which have no modules, after the ops of a predicted step.

``step.py`` shows the tables, ``simdev compare`` renames the ops of traces.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...nouns.graph import Graph
from ...nouns.structure import rank_module, scope_of
from ...nouns.taskgraph import COLLECTIVE
from ..report import Report
from ..table import CHANGE, TEXT, TIME, Table, change

WHOLE = "(none)"
Key = tuple[str, str, str]
"""(device, phase, kind) of an op; the device of a collective is "", for all devices."""
Known = tuple[Report, Mapping[str, str]]
"""A step, and the kinds of its ops by name."""
ROWS_SHOWN = 12  # in a terminal


def time_table(
    title: str, column: str, first: Mapping[str, int], second: Mapping[str, int]
) -> Table:
    """A table of times in ps by name, without names that take no time in both steps."""
    pairs = [(name, first.get(name, 0), second.get(name, 0)) for name in {**first, **second}]
    rows = tuple((name, a, b, b - a, change(a, b)) for name, a, b in pairs if a or b)
    columns = {column: TEXT, "A": TIME, "B": TIME, "added": TIME, "change": CHANGE}
    return Table(title, columns, rows, shown=ROWS_SHOWN)


def a_step(report: Report) -> slice:
    """The range of the tasks of one step (of a round where steps differ). Where steps repeat, it is
    the last step of the window.
    """
    graph, steady = report.trace.task_graph, report.steady
    each = graph.first_dispatch // graph.rounds
    counted = 0 if steady is None else len(steady.periods_ps) // steady.round
    return slice(counted * each, (counted + 1) * each)


def step_tasks(report: Report) -> dict[str, tuple[str, int, int]]:
    """(device, start in the step, length), in ps, of each task of a step by name."""
    graph, rows = report.trace.task_graph, a_step(report)
    start, finish = report.trace.start[rows], report.trace.finish[rows]
    places = np.array(graph.devices, dtype=object)[graph.tasks.source[rows]].tolist()
    # A single step begins at 0, a step of several with its first task.
    begin = 0 if report.steady is None or not len(start) else start.min()
    times = zip(places, (start - begin).tolist(), (finish - start).tolist(), strict=True)
    return dict(zip(graph.tasks.name[: len(start)], times, strict=True))


def op_tables(first: Known, second: Known) -> Iterator[Table]:
    """Tables of the times of ops, summed over all devices, by module and by kind; the largest
    differences come first.
    """
    for title, column, part in (
        ("Ops by module", "module", lambda name, key: module_of(name)),
        ("Ops by kind", "phase and kind", lambda name, key: _label(key)),
    ):
        a, b = (_times(known, part) for known in (first, second))
        order = sorted({**a, **b}, key=lambda name: -abs(b[name] - a[name]))
        yield time_table(title, column, {name: a[name] for name in order}, b)


def module_of(name: str) -> str:
    """The module of an op by its name: "layers/0" of "rank 0/grad/layers/0/linear"."""
    module = rank_module(name)
    return (scope_of(name) if module is None else module) or WHOLE


def _label(key: Key) -> str:
    _, phase, kind = key
    # An update is one op a parameter here, several operators over all of them in PyTorch.
    return phase if phase == "update" else f"{phase} {kind}"


def _times(known: Known, part: Callable[[str, Key], str]) -> Counter[str]:
    times = Counter[str]()
    for name, key, length in _ops(*known):
        times[part(name, key)] += length
    return times


def _ops(report: Report, kinds: Mapping[str, str]) -> Iterator[tuple[str, Key, int]]:
    """(name, key, ps) of the ops of a step that take time, in program order."""
    tasks = report.trace.task_graph.tasks
    phases = dict(zip(tasks.name, tasks.kind, strict=True))
    for name, (device, _, length) in step_tasks(report).items():
        if length and name in kinds:
            together = phases[name] == COLLECTIVE
            yield name, ("" if together else device, phases[name], kinds[name]), length


def named_like(
    graph: Graph, placement: Mapping[str, str], devices: Sequence[str], predicted: Known
) -> tuple[Graph, Mapping[str, str]]:
    """The graph of a trace, renamed after the ops of a predicted step, and the new name of each op.
    On each device the k-th op of a phase and kind gets the name of the predicted step's k-th; so
    does the k-th collective of a kind. Other ops keep their names, marked where they are taken.
    """
    known = [(name, key) for name, key, _ in _ops(*predicted)]
    numbers = _numbered(predicted[0].trace.task_graph.devices, (key[0] for _, key in known))
    names: defaultdict[tuple[int, str, str], list[str]] = defaultdict(list)
    for name, (device, phase, kind) in known:
        names[numbers[device], phase, kind].append(name)
    left = {key: iter(listed) for key, listed in names.items()}
    places = _numbered(devices, placement.values())
    renamed, taken = {}, {name for name, _ in known}
    for op in graph.ops:
        joint = "ranks" in op.attrs
        place = places["" if joint else placement[op.name]]
        key = place, COLLECTIVE if joint else op.phase, op.kind
        alone = f"{op.name} (trace)" if op.name in taken else op.name
        renamed[op.name] = next(left.get(key, iter(())), alone) if op.time else alone
    return _renamed(graph, renamed), renamed


def _numbered(devices: Sequence[str], used: Iterable[str]) -> dict[str, int]:
    """A number for each device that is used, in their order, from 1 on; 0 for collectives ("")."""
    working = set(used)
    return {name: i for i, name in enumerate(["", *(d for d in devices if d in working)])}


def _renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    def of(text: str) -> str:
        name, colon, output = text.rpartition(":")
        return names[text] if text in names else f"{names[name]}{colon}{output}"

    return Graph(
        graph.name,
        tuple(
            replace(
                op,
                name=names[op.name],
                inputs=tuple(map(of, op.inputs)),
                control_inputs=tuple(names[name] for name in op.control_inputs),
            )
            for op in graph.ops
        ),
    )
