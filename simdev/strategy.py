"""How the step is spread over the devices: a placement, and the order in which queues are served."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import translate
from typing import NamedTuple

from .cluster import Cluster
from .errors import InputError
from .graph import Graph

POLICIES = ("fifo", "program", "priority", "fixed")
WILDCARDS = "*?["


@dataclass(frozen=True, slots=True)
class Order:
    """The order of queues.

    ``fifo``: by readiness. ``program``: each device runs its ops in program order. ``priority``: smaller first, 0
    where nothing is said; a transfer takes the smallest of its consumers. ``fixed``: each queue named in ``sequence``
    ("gpu:0", "send gpu:0") serves exactly the given ops or transfers ("op:output>device"); other queues stay fifo.
    """

    policy: str = "fifo"
    priority: Mapping[str, int] = field(default_factory=dict)
    sequence: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise InputError(f'order.policy: must be one of {", ".join(POLICIES)}, got "{self.policy}"')
        for name, value in (("priority", self.priority), ("sequence", self.sequence)):
            wanted = "fixed" if name == "sequence" else name
            if value and self.policy != wanted:
                raise InputError(f'order.{name}: goes with the policy "{wanted}", not with "{self.policy}"')


@dataclass(frozen=True, slots=True)
class Strategy:
    """A placement (op, colocation group or pattern -> device) and an order (or the name of a policy)."""

    placement: Mapping[str, str] = field(default_factory=dict)
    order: Order = Order()

    def __post_init__(self) -> None:
        order: object = self.order
        if isinstance(order, str):
            order = Order(order)
            object.__setattr__(self, "order", order)
        placement: object = self.placement
        if not isinstance(placement, Mapping) or not isinstance(order, Order):
            raise InputError("strategy: needs a placement by name, and an order or the name of a policy")


def resolve_placement(graph: Graph, cluster: Cluster, placement: Mapping[str, str]) -> list[int]:
    """The device index of every op.

    An op's own name wins over its colocation group, the group over patterns; among patterns the one with the most
    literal characters wins. Raises InputError with every problem at once: unknown devices, entries that match
    nothing, ops without a device, patterns that disagree, groups split over devices.
    """
    problems = _entry_problems(graph, cluster, placement)
    patterns = _patterns(placement)
    devices: list[int] = []
    for op in graph.ops:
        key = op.name if op.name in placement else op.colocate if op.colocate in placement else None
        if key is None:
            key, clash = _most_specific(op.name, patterns, placement)
            if clash:
                problems.append(f'placement: "{op.name}" matches "{key}" and "{clash}", which name different devices')
        if key is None:
            problems.append(f'placement: op "{op.name}" has no device')
        devices.append(cluster.index.get(placement.get(key or "", ""), -1))
    matches = {pattern.key: pattern.match for pattern in patterns}
    for key in placement:
        named = key in graph.index or key in graph.groups
        if not named and not (key in matches and any(matches[key](op.name) for op in graph.ops)):
            problems.append(f'placement["{key}"]: no op and no colocation group is called or matched by this')
    problems += _split_groups(graph, cluster, devices) if not problems else []
    if problems:
        raise InputError(problems)
    return devices


class _Pattern(NamedTuple):
    """An entry with wildcards, compiled: fnmatch forgets all but the last few hundred that it was asked for."""

    literals: int
    key: str
    match: Callable[[str], object]


def _patterns(placement: Mapping[str, str]) -> list[_Pattern]:
    """The patterns of a placement, the most specific first."""
    keys = [key for key in placement if any(c in key for c in WILDCARDS)]
    found = [_Pattern(sum(c not in "*?" for c in key), key, re.compile(translate(key)).match) for key in keys]
    return sorted(found, key=lambda pattern: pattern.literals, reverse=True)


def _most_specific(name: str, patterns: list[_Pattern], placement: Mapping[str, str]) -> tuple[str | None, str]:
    """The best pattern for a name, and an equally specific one that names another device (or "")."""
    best: _Pattern | None = None
    for pattern in patterns:
        if best is not None and pattern.literals < best.literals:
            break
        if pattern.match(name):
            if best is None:
                best = pattern
            elif placement[pattern.key] != placement[best.key]:
                return best.key, pattern.key
    return (None if best is None else best.key), ""


def _entry_problems(graph: Graph, cluster: Cluster, placement: Mapping[str, str]) -> list[str]:
    problems = []
    for key, name in placement.items():
        if name not in cluster.index:
            problems.append(f'placement["{key}"]: no device named "{name}"')
        elif not cluster.devices[cluster.index[name]].runs_ops:
            problems.append(f'placement["{key}"]: "{name}" is a switch and runs no op')
    return problems


def _split_groups(graph: Graph, cluster: Cluster, devices: list[int]) -> list[str]:
    problems = []
    for group, members in graph.groups.items():
        names = sorted({cluster.devices[devices[i]].name for i in members})
        if len(names) > 1:
            problems.append(f'placement: colocation group "{group}" is split over {", ".join(names)}')
    return problems
