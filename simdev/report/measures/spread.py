"""How a step is spread over devices: the stages of its pipeline, how gradients are synchronised and
collectives modelled, and the devices that were simulated in place of others that run alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...costs.collectives import shipped_tables
from ...execution.scenario import Outcome, Stage
from ...lowering.symmetry import Expanded, Symmetry
from ...nouns.strategy import Sync, settled_cost
from ...nouns.strategy.sync import BUCKET, FIRST_BUCKET
from ...nouns.taskgraph import COLLECTIVE, Ints, TaskGraph
from ..table import COUNT, TEXT, Table
from .section import Places, Section, Step


@dataclass(frozen=True)
class Stages(Section):
    """The stages of a pipeline over a graph."""

    name = "stages"
    places = Places(tables=30)

    stages: tuple[Stage, ...]

    @classmethod
    def of_step(cls, step: Step) -> Stages | None:
        """The stages, where there are any."""
        return cls(step.outcome.stages) if step.outcome.stages else None

    def tables(self) -> Iterator[Table]:
        """A row a stage."""
        columns = {"device": TEXT, "first op": TEXT, "last op": TEXT, "ops": COUNT}
        yield Table("Stages of the pipeline", columns, self.stages)


@dataclass(frozen=True)
class Synchronisation(Section):
    """How many gradients a policy synchronises (None: there is no policy), and sentences on how,
    and on what collectives rest on.
    """

    name = "synchronised_gradients"
    places = Places(entries=110, lines=60, asides=60, notes=20)

    synchronised: int | None
    assumptions: tuple[str, ...]

    @classmethod
    def of_step(cls, step: Step) -> Synchronisation:
        """The synchronisation of any step."""
        return cls(step.outcome.synchronised, tuple(assumptions(step.outcome)))

    def lines(self) -> Iterator[str]:
        """That a policy has nothing to synchronise, where it is so."""
        if self.synchronised == 0:
            yield "No gradient is synchronised: the strategy makes none on several devices."

    def notes(self) -> Iterator[str]:
        """The sentences."""
        yield from self.assumptions

    def to_json(self) -> int | None:
        """The number of gradients."""
        return self.synchronised


def assumptions(outcome: Outcome) -> Iterator[str]:
    """How gradients are synchronised, and what collectives rest on, where there are any."""
    strategy, splitting = outcome.strategy, outcome.splitting
    if strategy is None:
        return
    sync, collectives = strategy.sync, strategy.collectives
    roles = {origin.role for origin in splitting.origins.values()} if splitting else set()
    if isinstance(sync, Sync):
        parts = {
            f"buckets of {sync.bucket} bytes": sync.bucket,
            f"slices of {sync.slice_parameters} parameters": sync.slice_parameters,
            f"an even piece a server from {sync.even_parameters} parameters": sync.even_parameters,
        }
        cut = next((part for part, size in parts.items() if size is not None), "whole gradients")
        yield f"Gradients are synchronised by {sync.policy} ({sync.transport}), in {cut}."
    elif roles & {"sync", "sum"}:
        # The first bucket is smaller, so that the first messages leave early (PyTorch's DDP).
        sizes = f", the first bucket of {FIRST_BUCKET} bytes, further ones of {BUCKET}"
        yield f"Gradients are synchronised by {sync}{sizes if sync == 'bucketed' else ''}."
    if outcome.trace.task_graph.of_kind(COLLECTIVE).any() or collectives.cost == "expanded":
        tables, cluster = collectives.tables, outcome.scenario and outcome.scenario.cluster
        if cluster and not tables:
            tables = shipped_tables(cluster.collectives)
        basis = {
            "closed": "closed forms",
            "table": f"{len(tables)} measured tables, closed forms where these end",
            "expanded": "their messages one by one",
        }[settled_cost(collectives.cost, collectives.algorithm, bool(tables))]
        slower = f", slowed {float(collectives.slowdown):g} times beside computing"
        yield (
            f"Collectives rest on {basis} (algorithm {collectives.algorithm})"
            f"{slower if collectives.slowdown != 1 else ''}."
        )


@dataclass(frozen=True)
class Alike(Section):
    """The devices simulated in place of others that run alike, or why all were simulated."""

    name = "symmetry"
    places = Places(entries=100, notes=30)

    symmetry: Symmetry | Expanded
    task_graph: TaskGraph

    @classmethod
    def of_step(cls, step: Step) -> Alike | None:
        """The symmetry, where some devices look alike."""
        symmetry = step.outcome.symmetry
        return None if symmetry is None else cls(symmetry, step.trace.task_graph)

    def notes(self) -> Iterator[str]:
        """How many devices were simulated, or why all were."""
        symmetry, graph = self.symmetry, self.task_graph
        if isinstance(symmetry, Expanded):
            yield f"Every device was simulated: {symmetry.why}."
            return
        steps, there = graph.steps, int(np.count_nonzero(symmetry.copies))
        yield (
            f"{there} devices stand for {len(symmetry.devices):,}, of which {symmetry.replicas:,} "
            f"run alike: exact, with {len(graph.tasks) // steps:,} tasks a step instead of "
            f"{symmetry.counted(graph) // steps:,}."
        )

    def to_json(self) -> Any:
        """The classes of devices, None where all were simulated."""
        if isinstance(self.symmetry, Expanded):
            return None
        return self.symmetry.to_json(self.task_graph)


def task_counts(task_graph: TaskGraph, symmetry: Symmetry | Expanded | None) -> Ints:
    """By task on how many of all devices an alike task runs."""
    if isinstance(symmetry, Symmetry):
        return symmetry.counts(task_graph)
    return np.ones(len(task_graph.tasks), np.int64)
