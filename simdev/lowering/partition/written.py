"""Strategies written out: what ops follow into, as configurations of their own, so that a change
moves them alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ...cluster import Cluster
from ...costs import CostModel
from ...graph import Graph
from ...semantics import traits_of
from ...strategy import Configuration, Strategy
from .geometry import parts
from .plan import Placed, Question
from .sharding import Sharding
from .short import expanded


def written_out(
    graph: Graph,
    cluster: Cluster,
    strategy: Strategy,
    costs: CostModel,
    phases: Sequence[str] = ("forward",),
) -> Strategy:
    """The same strategy with a configuration of its own for each op of these phases that followed
    into one.

    Leaves, updates, and what goes on with partial results keep following. Raises InputError.
    """
    strategy = expanded(graph, cluster, strategy, costs)
    question = Question(graph, cluster, strategy)
    sharding = Sharding(question)
    found = {}
    for i, op in enumerate(graph.ops):
        followed = question.free[i] and i not in question.on_demand and i not in question.updates
        shared = op.name in graph.groups  # an entry would hold for the group too
        if followed and op.phase in phases and not traits_of(op.kind).leaf and not shared:
            one = _configuration(question, i, sharding.parts[i], sharding.divided.get(i))
            if one is not None:
                found[op.name] = one
    return replace(strategy, partition={**strategy.partition, **found})


def _configuration(
    question: Question, i: int, placed: Sequence[Placed], time: str | None
) -> Configuration | None:
    """The configuration that means these parts on these devices; None where there is none."""
    op = question.readings[i]
    degrees = {
        axis: len({dict(one.part.box)[axis] for one in placed}) for axis, _ in placed[0].part.box
    }
    if prod(degrees.values()) != len(placed) or any(one.addend is not None for one in placed):
        return None
    sizes = {axis.name: axis.size for axis in op.semantics.axes} if op.semantics is not None else {}
    if any(sizes[axis] % degree for axis, degree in degrees.items()):
        return None
    if parts(op, tuple(degrees.items())) != tuple(one.part for one in placed):
        return None
    devices = list(dict.fromkeys(one.device for one in placed))
    count = len(devices)
    if len(placed) % count or any(
        one.device != devices[k * count // len(placed)] for k, one in enumerate(placed)
    ):
        return None
    return Configuration(
        degrees, tuple(question.cluster.devices[device].name for device in devices), time
    )
