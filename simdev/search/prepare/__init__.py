"""Graph preparation: what is placed in place of single ops, and the way back.

Each preparation is a function Graph -> Grouped. ``prepare`` applies several, one on what the one
before it made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...errors import InputError
from ...graph import Graph
from ...structure import mates
from .adjust import RULES, Adjusted, adjust
from .colocation import colocate, coplace, pair
from .forward import forward
from .fusion import fuse
from .grouped import Grouped

__all__ = [
    "PREPARATIONS",
    "RULES",
    "Adjusted",
    "Grouped",
    "adjust",
    "colocate",
    "coplace",
    "forward",
    "fuse",
    "mates",
    "pair",
    "prepare",
]

PREPARATIONS: Mapping[str, Callable[[Graph], Grouped]] = {
    "colocate": colocate,
    "coplace": coplace,
    "pair": pair,
    "fuse": fuse,
    "forward": forward,
    "adjust": adjust,
}


def prepare(
    graph: Graph, names: Sequence[str] = (), times: Sequence[float] | None = None
) -> Grouped:
    """The graph after these preparations, in their order.

    ``adjust`` can only be the last, and not after ``fuse`` or ``forward``. A rule of it is named
    like ``adjust:time-sum`` (RULES; else ``memory-sum``); rules by time need ``times`` by op.
    Raises InputError for these, and for a name that is not in PREPARATIONS.
    """
    unknown = [name for name in names if name.partition(":")[0] not in PREPARATIONS]
    unknown += [name for name in names if ":" in name and not name.startswith("adjust:")]
    if unknown:
        raise InputError(
            [f'prepare: must be of {", ".join(PREPARATIONS)}, got "{name}"' for name in unknown]
        )
    found = Grouped.of(graph)
    for name in names:
        if isinstance(found, Adjusted):
            raise InputError('prepare: "adjust" must be the last')
        kind, _, rule = name.partition(":")
        then = (
            PREPARATIONS[kind](found.graph)
            if kind != "adjust"
            else adjust(found.graph, rule or "memory-sum", times)
        )
        found = _after(found, then)
    return found


def _after(before: Grouped, then: Grouped) -> Grouped:
    """Two preparations as one.

    Where the first left the ops as they are, the second is one of the original.
    """
    if before.graph is before.original:
        return then
    if isinstance(then, Adjusted):
        raise InputError(
            'prepare: "adjust" places single ops; it follows neither "fuse" nor "forward"'
        )
    run_by = [set(run) for run in before.runs]
    runs = tuple(tuple(i for node in run for i in before.runs[node]) for run in then.runs)
    rest = [
        tuple(i for node in run for i in before.members[node] if i not in run_by[node])
        + tuple(i for node in more for i in before.members[node])
        for run, more in zip(then.runs, then.follows or ((),) * len(then.runs), strict=True)
    ]
    return Grouped(then.graph, before.original, runs, tuple(rest) if any(rest) else ())
