"""Placement: the device of every op."""

from __future__ import annotations

from collections.abc import Mapping

from ..cluster import Cluster
from ..errors import InputError
from ..graph import Graph
from .named import named

NOWHERE = -1


def resolve_placement(graph: Graph, cluster: Cluster, placement: Mapping[str, str]) -> list[int]:
    """The device index of every op.

    An op's own name wins over its colocation group, the group over patterns; among patterns the one
    with the most literal characters wins. Raises InputError with every problem at once: unknown
    devices, entries that match nothing, ops without a device, patterns that disagree, groups split
    over devices.
    """
    return _resolved(graph, cluster, placement, True)


def placed(graph: Graph, cluster: Cluster, placement: Mapping[str, str]) -> list[int]:
    """The same where ops may be left out: NOWHERE (-1) for an op without an entry.

    Raises InputError.
    """
    return _resolved(graph, cluster, placement, False)


def _resolved(
    graph: Graph, cluster: Cluster, placement: Mapping[str, str], complete: bool
) -> list[int]:
    problems = _entry_problems(cluster, placement)
    found = named(graph, placement)
    # Ahead of the ops without a device: a misspelt entry is why there are any.
    problems += [
        (f'placement["{key}"]: no op and no colocation group is called or matched by this')
        for key in found.unused
    ]
    clashes = {op: (key, other) for op, key, other in found.clashes}
    for op, key in zip(graph.ops, found.keys, strict=True):
        if op.name in clashes:
            one, other = clashes[op.name]
            problems.append(
                f'placement: "{op.name}" matches "{one}" and "{other}", which name '
                "different devices"
            )
        if key is None and complete:
            problems.append(f'placement: op "{op.name}" has no device')
    devices = [
        NOWHERE if key is None else cluster.index.get(placement[key], NOWHERE) for key in found.keys
    ]
    problems += _split_groups(graph, cluster, devices) if not problems else []
    if problems:
        raise InputError(problems)
    return devices


def _entry_problems(cluster: Cluster, placement: Mapping[str, str]) -> list[str]:
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
        names = sorted({cluster.devices[devices[i]].name for i in members if devices[i] != NOWHERE})
        if len(names) > 1:
            problems.append(
                f'placement: colocation group "{group}" is split over {", ".join(names)}'
            )
    return problems
