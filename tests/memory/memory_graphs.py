"""Graphs and allocators that the tests of memory share."""

from __future__ import annotations

from typing import Any

from bad.scenarios import scenario
from simdev.costs import CostModel
from simdev.execution.engine import simulate
from simdev.lowering import lower
from simdev.nouns.memory import MemoryModel
from simdev.nouns.trace import Trace
from worlds.scenarios import World

KiB, MiB = 2**10, 2**20


PYTORCH = MemoryModel(rounding="pytorch")


def traced(world: World, memory: MemoryModel, engine: str = "simpy") -> Trace:
    task_graph = lower(world.graph, world.cluster, CostModel(), world.strategy, memory)
    return simulate(task_graph, engine)


def asked(memory: Any, **changes: Any) -> str:
    return scenario(options={"memory": memory}, **changes)
