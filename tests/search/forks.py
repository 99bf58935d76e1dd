"""Small graphs that several tests of search use."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import gymnasium

import simdev.learn.env  # noqa: F401 (registers the environment)
from simdev import Oracle
from simdev.costs import CostModel
from simdev.execution.scenario import Scenario
from simdev.nouns.cluster import Cluster, Device, Link
from simdev.nouns.graph import Graph, Op
from simdev.nouns.strategy import Strategy
from simdev.oracle import Cost
from simdev.search import METHODS
from worlds.clusters import joined
from worlds.graphs import chain, op

PLACERS = [name for name, method in METHODS.items() if not method.splits]
FLAT = ("pipedream", "dnn-contiguous", "dnn-ip", "dnn-latency")
"""Placers with a separate model, in which an op runs on a single device."""


def forks(memory: int | None = None) -> Oracle:
    """Two chains of three ops between a source and a sink; on two devices they are faster apart
    than on one.
    """
    ops = [op("source", 1, size=1, param_bytes=2)]
    for name in "ab":
        ops += [op(f"{name}{i}", 4, f"{name}{i - 1}" if i else "source", size=1) for i in range(3)]
    ops.append(op("sink", 1, "a2", "b2"))
    ops = [replace(one, colocate="a01") if one.name in ("a0", "a1") else one for one in ops]
    return Oracle(Graph("forks", tuple(ops)), joined(2, memory=memory))


def ring(ops: int = 8, devices: int = 2, memory: int | None = None, **dims: int) -> Oracle:
    """A chain of ops of 4 ps, each with 2 bytes for the next."""
    return Oracle(chain(*[4] * ops, **{"size": 2, **dims}), joined(devices, memory=memory))


def best_of_all(oracle: Oracle) -> Cost:
    found = map(oracle, product((0, 1), repeat=len(oracle.groups)))
    return min(found, key=lambda cost: (cost.memory_excess, cost.step_ps))


def mixed() -> Oracle:
    ops = [Op("a", time={"gpu": 1}), Op("b", time={"cpu": 1}), Op("c", time={"gpu": 2, "cpu": 1})]
    devices = (Device("g0"), Device("c0", "cpu"), Device("hub", "switch"))
    links = (Link(("g0", "hub"), 1), Link(("c0", "hub"), 1))
    return Oracle(Graph("mixed", tuple(ops)), Cluster("mixed", devices, links))


def choosy() -> Oracle:
    """An op that only a GPU can run, and an op that a CPU runs faster."""
    ops = (Op("a", time={"gpu": 1}), Op("b", time={"gpu": 3, "cpu": 2}))
    machine = joined([Device("g0"), Device("c0", "cpu")], bandwidth=1)
    return Oracle(Graph("choosy", ops), machine)


def fork() -> Scenario:
    """Two ops of 100 ps between two of 1 ps; the scenario places them apart, which co-placement
    would not.
    """
    ops = (op("s", 1), op("a", 100, "s"), op("b", 100, "s"), op("t", 1, "a", "b"))
    machine = joined(2)
    return Scenario(Graph("fork", ops), machine, CostModel(), Strategy({"*": "g0", "b": "g1"}))


def environment(name: str, oracle: Oracle, **options: Any) -> gymnasium.Env:
    """The environment of this name, which places the ops of the oracle."""
    return gymnasium.make(name, oracle=oracle, **options)
