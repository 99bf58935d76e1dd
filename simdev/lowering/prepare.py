"""What lowering needs of graph, cluster and costs whatever the placement: made once, used for many
placements.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cluster import Cluster
from ..collectives import CollectiveCall, CollectiveModel, CollectiveTable
from ..costs import CostModel, OpCost, op_key
from ..errors import InputError, MissingCostError
from ..fabric import Fabric, Segment
from ..graph import Graph
from ..memory import MemoryModel, with_training_state
from ..strategy import Collectives
from ..taskgraph import Ints, Rows
from ..units import picoseconds
from .collective import KINDS, Ring, is_collective, ring_of, rings

UNKNOWN = -1  # duration of an op whose cost nobody knows


@dataclass(frozen=True, slots=True)
class Reads:
    """The tensors that some op reads, by producer and output; a control input is the output -1, of
    0 bytes.
    """

    producer: Ints
    output: Ints
    bytes: Ints
    consumers: Rows


def tensors_read(graph: Graph) -> Reads:
    """Every tensor of the graph that is read, with its distinct consumers in program order."""
    consumers: dict[tuple[int, int], list[int]] = {}
    for consumer, reads in enumerate(graph.reads):
        for key in reads:
            consumers.setdefault(key, []).append(consumer)
    keys = sorted(consumers)
    sizes = [graph.ops[p].outputs[k].bytes if k >= 0 else 0 for p, k in keys]
    table = np.array(keys, np.int64).reshape(-1, 2)
    return Reads(
        table[:, 0], table[:, 1], np.array(sizes, np.int64), Rows.of(consumers[key] for key in keys)
    )


@dataclass(frozen=True)
class Prepared:
    """A graph on a cluster with its costs, before any op has a place.

    ``graph`` holds the training state that ``memory`` asks for; ``collectives`` tells how those
    collective ops run that do not say it themselves. Raises InputError where that cannot be told.
    """

    graph: Graph
    cluster: Cluster
    costs: CostModel
    memory: MemoryModel = MemoryModel()
    collectives: Collectives = Collectives()

    def __post_init__(self) -> None:
        object.__setattr__(self, "graph", with_training_state(self.graph, self.memory))

    def on(self, cluster: Cluster, fabric: Fabric | None = None) -> Prepared:
        """The same question on another cluster, whose ``fabric`` may be there already.

        What hangs on graph and costs alone is shared, found early or late. Raises InputError.
        """
        if cluster is self.cluster:
            return self
        there = replace(self, cluster=cluster)
        shared = "reads", "shards", "_costs", "_distinct", "_durations"
        vars(there).update({name: getattr(self, name) for name in shared})
        if fabric is not None:
            vars(there)["fabric"] = fabric
        return there

    def of(self, graph: Graph, collectives: Collectives) -> Prepared:
        """Another graph on the same cluster, its routes found once, at the same costs."""
        there = replace(self, graph=graph, collectives=collectives)
        vars(there)["fabric"] = self.fabric
        if collectives.tables == self.collectives.tables:
            vars(there)["model"] = self.model
        return there

    def lasting(self, duration: Ints) -> Prepared:
        """Where ops take other times, the question else as it is: ps by op and device, or
        UNKNOWN.
        """
        there = copy(self)  # with all that was found: routes and collectives hang on no times
        vars(there)["duration"] = duration
        return there

    @cached_property
    def reserves(self) -> tuple[tuple[int, int], ...]:
        """Bytes of the context and of the communication buffers, by device."""
        reserved = (
            self.memory.context_bytes(self.cluster),
            self.memory.communication_bytes(self.cluster),
        )
        return tuple(zip(*reserved, strict=True))

    @cached_property
    def reads(self) -> Reads:
        """The tensors that are read."""
        return tensors_read(self.graph)

    @cached_property
    def last_split(self) -> dict[str, Any]:
        """What ``lowering.split`` answered last."""
        return {}

    @cached_property
    def shards(self) -> dict[str, Any]:
        """What ``lowering.split`` cut last, on this cluster or another."""
        return {}

    def running(self, collectives: Collectives) -> Prepared:
        """The same question with other collectives; where no op is one, nothing depends on them."""
        if collectives == self.collectives or not any(map(is_collective, self.graph.ops)):
            return self
        known = self.last_split.get("collectives")
        if known is None or known[0] != collectives:
            known = self.last_split["collectives"] = collectives, self.of(self.graph, collectives)
        found: Prepared = known[1]
        return found

    @cached_property
    def rings(self) -> dict[int, Ring]:
        """The collective ops by position. Raises InputError."""
        return rings(self.graph, self.cluster, self.collectives, self._costed)

    def collective(
        self,
        kind: str,
        ranks: Sequence[int],
        size: int,
        algorithm: str | None = None,
        cost: str | None = None,
    ) -> Ring:
        """What a collective among these devices (indices, in the order of their ranks) costs, and
        what it holds.

        ``size`` is in bytes, as nccl-tests counts them. Raises InputError.
        """
        own = self.collectives
        question = CollectiveCall(kind, tuple(ranks), size, algorithm or own.algorithm, own.chunks)
        return self._costed(question, cost or own.cost)

    def _costed(self, question: CollectiveCall, cost: str) -> Ring:
        key = question, cost
        if key not in self._rings:
            self._rings[key] = ring_of(question, cost, self.model)
        return self._rings[key]

    @cached_property
    def _rings(self) -> dict[tuple[CollectiveCall, str], Ring]:
        return {}

    @cached_property
    def model(self) -> CollectiveModel:
        """The model of collectives, with the tables that these name."""
        named = self.collectives.tables
        tables = (
            CollectiveTable(one.collective, one.ranks, one.anchors, one.source) for one in named
        )
        model = CollectiveModel(self.cluster, tuple(tables))
        vars(model)["fabric"] = self.fabric  # its routes are found once
        return model

    def home(self, producer: int, output: int, placement: Sequence[int]) -> int:
        """The device on which a tensor lies: its producer's, or for a collective op the rank of
        this output.
        """
        ring = self.rings.get(producer)
        if ring is None:
            return placement[producer]
        return ring.outputs_on[output] if output >= 0 else ring.ranks[0]

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of device, in the order of their first device."""
        return tuple(dict.fromkeys(device.kind for device in self.cluster.devices))

    @cached_property
    def kind_of_device(self) -> Ints:
        """Row of ``kinds`` for each device."""
        return np.array(
            [self.kinds.index(device.kind) for device in self.cluster.devices], np.int64
        )

    @cached_property
    def gap_ps(self) -> Ints:
        """The gap of each device, after ops of positive duration."""
        return np.array([picoseconds(device.gap) for device in self.cluster.devices], np.int64)  # type: ignore[arg-type]

    @cached_property
    def _costs(self) -> dict[tuple[int, str], OpCost | None]:
        return {}

    def cost(self, op: int, device: int) -> OpCost | None:
        """The cost of an op on a device; None where nobody knows it. Equal costs are one object."""
        key = op, self.cluster.devices[device].kind
        if key not in self._costs:
            alone = not is_collective(self.graph.ops[op])
            found = self.costs.cost(self.graph, op, key[1]) if alone else None
            self._costs[key] = self._distinct.setdefault(found, found)
        return self._costs[key]

    @cached_property
    def _distinct(self) -> dict[OpCost | None, OpCost | None]:
        return {}

    @cached_property
    def _durations(self) -> dict[str, Ints]:
        return {}

    def _durations_on(self, device: int) -> Ints:
        """Duration in ps of every op on devices of this one's kind."""
        kind = self.cluster.devices[device].kind
        if kind not in self._durations:
            costs = (self.cost(i, device) for i in range(len(self.graph.ops)))
            found = [UNKNOWN if cost is None else picoseconds(cost.seconds) for cost in costs]
            self._durations[kind] = np.array(found, np.int64)
        return self._durations[kind]

    @cached_property
    def duration(self) -> NDArray[np.int64]:
        """Duration in ps by op and device; UNKNOWN where no cost is known."""
        table = np.full((len(self.graph.ops), len(self.kinds)), UNKNOWN, np.int64)
        for k, kind in enumerate(self.kinds):
            device = next(d for d, one in enumerate(self.cluster.devices) if one.kind == kind)
            if self.cluster.devices[device].runs_ops:
                table[:, k] = self._durations_on(device)
        for i, ring in self.rings.items():
            table[i] = ring.duration_ps
        return table[:, self.kind_of_device]

    def require_costs(self, placement: list[int]) -> None:
        """Raise MissingCostError naming every op whose cost on its device is not known."""
        ops = np.arange(len(placement))
        missing = (
            np.flatnonzero(self.duration[ops, placement] == UNKNOWN).tolist() if placement else []
        )
        if missing:
            raise MissingCostError(self._missing_line(i, placement[i]) for i in missing)

    def _missing_line(self, op: int, device: int) -> str:
        kind = self.cluster.devices[device].kind
        key = op_key(self.graph, op, kind)
        why, name = self.costs.why_unknown(key, kind), self.graph.ops[op].name
        if self.graph.ops[op].kind in KINDS:
            why = "a collective names its devices in attrs.ranks"
        wanted = "given or measured time" if self.costs.strict else "time"
        hint = f"{why}; key {key[:200]}" if why else f"key {key[:200]}"
        return f'ops[{op}]: no {wanted} for "{name}" on a device of kind "{kind}" ({hint})'

    @cached_property
    def fabric(self) -> Fabric:
        """What transfers hold between any two devices."""
        return Fabric(self.cluster)

    def segments(self, source: int, destination: int) -> tuple[Segment, ...]:
        """The pieces of the route between two devices. Raises InputError where there is none."""
        segments = self.fabric.segments(source, destination)
        if segments is None:
            first, last = (self.cluster.devices[d].name for d in (source, destination))
            why = "but no route joins them"
            raise InputError(f'placement: tensors must go from "{first}" to "{last}", {why}')
        return segments
