"""Graph preparation: what is placed in place of single ops, and the way back.

Each preparation is a function Graph -> Grouped. ``prepare`` applies several, one on what the one
before it made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...ground.errors import InputError
from ...nouns.graph import Graph
from .colocation import RULES, Adjusted, adjust, colocate, coplace, forward, pair
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
    grouped = Grouped.of(graph)
    for name in names:
        if isinstance(grouped, Adjusted):
            raise InputError('prepare: "adjust" must be the last')
        kind, _, rule = name.partition(":")
        if kind == "adjust":
            then: Grouped = adjust(grouped.graph, rule or "memory-sum", times)
        else:
            then = PREPARATIONS[kind](grouped.graph)
        grouped = _after(grouped, then)
    return grouped


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
    follows_of = before.follows or ((),) * len(before.runs)
    runs = tuple(tuple(i for node in run for i in before.runs[node]) for run in then.runs)
    rest = tuple(
        (
            *(i for node in run for i in follows_of[node]),
            *(i for node in more for i in before.members[node]),
        )
        for run, more in zip(then.runs, then.follows or ((),) * len(then.runs), strict=True)
    )
    return Grouped(then.graph, before.original, runs, rest if any(rest) else ())
