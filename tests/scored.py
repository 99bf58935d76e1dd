"""What lowering and the reference engine say of a world, for tests of the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simdev import Oracle
from simdev.costs import CostModel
from simdev.execution.engine import simulate
from simdev.lowering import lower
from simdev.oracle import Cost
from strategies import World


def expected(world: World) -> Cost:
    """What lower and the reference engine say, from the trace."""
    trace = simulate(lower(world.graph, world.cluster, CostModel(), world.strategy), "simpy")
    peaks = tuple(memory.peak for memory in trace.memory)
    return Cost(trace.end_ps / 1e12, trace.feasible, trace.memory_excess, trace.end_ps, peaks)


def column(world: World) -> list[int]:
    """Device indices by op."""
    return [world.cluster.index[world.strategy.placement[one.name]] for one in world.graph.ops]


def oracle_of(world: World, **options: object) -> Oracle:
    return Oracle(world.graph, world.cluster, order=world.strategy.order, **options)


def placed(world: World, placement: Sequence[int]) -> World:
    names = [device.name for device in world.cluster.devices]
    by_name = {one.name: names[d] for one, d in zip(world.graph.ops, placement, strict=True)}
    return world.but(strategy=replace(world.strategy, placement=by_name))
