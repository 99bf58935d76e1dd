"""The scale of a question, estimated before it is lowered: its tasks, time and memory; and the
limit beyond which it is refused.

Counts are upper bounds from the sizes of the question, or typical numbers where only lowering
knows; times and bytes were measured on one core of an AMD EPYC. A guess may be off by a factor of
three.

Scenarios, the oracle and ``simdev pipeline`` estimate before they lower, and refuse by
``Scale.require``. A pass of lowering that makes many more tasks has to be counted here, too;
nothing else compares the two.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

from ..ground.errors import InputError
from ..ground.units import Number, format_bytes, format_seconds, parse_time
from .cluster import Cluster
from .graph import Graph
from .models.large import Transformer, all_buckets, shard_of
from .semantics import traits_of
from .strategy import Configuration, Parallelism, Strategy, Sync

NO_LIMIT = "none"
LIMIT = "60 s"
"""The most estimated time of a question, unless more is allowed."""
# Each is (seconds, bytes) for one: READ, an op read from a file; WORKER, a worker of a cluster with
# its links and its row of a report; SHARD, a part of a split op; TASK, a task; ACTION, an action of
# a pipeline; LAYER, a layer of a large model; ROW, a task of that layer; COPY, the same task on one
# more device; SLOWED, a task simulated several times because others slow it.
READ, WORKER = (90e-6, 2000), (0.65e-3, 10_000)
SHARD, TASK = (210e-6, 3500), (75e-6, 2500)
ACTION, ROW, COPY = (45e-6, 1500), (5e-6, 800), (1.2e-6, 400)
LAYER, SLOWED = (0.5e-3, 2000), (18e-6, 400)
STEPS = 6  # as many steps as repeated ones mostly take until they repeat
TASKS_OF_LAYER = 8  # of a large model: computing, collectives and copies of both directions
TASKS_OF_BUCKET = {2: 3, 3: 5}  # beside the first of a layer, by ZeRO: parts and collectives


@dataclass(frozen=True, slots=True)
class Scale:
    """The approximate number of tasks of a question, and its seconds and bytes."""

    tasks: int
    seconds: float
    bytes: int

    @classmethod
    def of(cls, tasks: int, *parts: tuple[int, tuple[float, int]]) -> Scale:
        """The scale of ``tasks``; ``parts`` are pairs (number of things, seconds and bytes of
        each).
        """
        seconds = sum(count * each[0] for count, each in parts)
        return cls(tasks, seconds, sum(count * each[1] for count, each in parts))

    def __str__(self) -> str:
        time, memory = format_seconds(self.seconds, 3), format_bytes(self.bytes)
        return f"about {self.tasks:,} tasks, {time} and {memory}"

    def require(self, limit: float) -> None:
        """Raises InputError where the question takes longer than ``limit`` seconds, or more memory
        than this machine has; never for an infinite limit.
        """
        if limit == math.inf:
            return
        over = ""
        if self.seconds > limit:
            over = f"the limit is {format_seconds(limit, 3)}"
        elif (memory := memory_bytes()) is not None and self.bytes > memory:
            over = f"this machine has {format_bytes(memory)}"
        if over:
            raise InputError(f"options.limit: the step needs {self}; {over} (none: no limit)")


def memory_bytes() -> int | None:
    """RAM of this machine in bytes, whatever a container may use; None where the system does not
    say.
    """
    if not hasattr(os, "sysconf"):  # Windows
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def parse_limit(value: Number | str) -> float:
    """Seconds, infinite for NO_LIMIT. Raises ValueError."""
    return math.inf if value == NO_LIMIT else float(parse_time(value))


def scale_to_read(ops: int, devices: int) -> Scale:
    """The least scale of reading, lowering and simulating this number of ops and devices."""
    return Scale.of(max(ops, devices), (ops, READ), (devices, WORKER), (ops, TASK))


def scale_of_devices(cluster: Cluster) -> Scale:
    """The scale of a cluster alone, whatever runs there."""
    return Scale.of(0, (len(cluster.workers), WORKER))


def scale_of(graph: Graph, cluster: Cluster, strategy: Strategy, repeats: bool = False) -> Scale:
    """The scale of a strategy of a graph, every device expanded; ``repeats``: of several steps."""
    pipeline, ops, devices = strategy.pipeline, len(graph.ops), len(cluster.workers)
    times = strategy.accumulate if pipeline is None else pipeline.microbatches
    if isinstance(strategy.sync, Sync):
        times *= STEPS * (strategy.sync.every or 1)
    elif repeats:
        times *= STEPS
    edges = sum(len(reads) for reads in graph.reads)
    if not strategy.splits:
        spread = len(set(strategy.placement.values())) > 1 or pipeline is not None
        tasks = (ops + spread * edges // 2) * times
        return Scale.of(tasks, (devices, WORKER), (tasks, TASK))
    parts = _parts(graph, cluster, strategy)
    shards, sent = sum(parts), 0
    for op, reads in enumerate(graph.reads):
        for producer, _ in reads:
            # Operands that are cut in another way are fetched in pieces from several parts.
            if parts[producer] != parts[op] or _keys(graph, strategy, producer, op):
                most = max(parts[producer], parts[op])
                sent += most * max(1, math.isqrt(most)) if most > 1 else 0
    sent += _synchronising(graph, strategy, max(parts, default=1))
    tasks = (shards + sent) * times
    return Scale.of(tasks, (devices, WORKER), (shards, SHARD), (tasks, TASK))


def _keys(graph: Graph, strategy: Strategy, first: int, second: int) -> bool:
    """Whether two ops both have a configuration and these differ."""
    ways = [strategy.partition.get(graph.ops[op].name) for op in (first, second)]
    return None not in ways and ways[0] != ways[1]


def _parts(graph: Graph, cluster: Cluster, strategy: Strategy) -> list[int]:
    """The parts of every op: as configured, else the largest number of parts of any op."""
    partition: Mapping[str, Configuration] = strategy.partition
    by_key = {key: math.prod(each.split.values()) for key, each in partition.items()}
    most = max(by_key.values(), default=1)
    if strategy.short is not None and strategy.short != "model-parallel":
        most = max(most, len(strategy.devices) or len(cluster.workers))
    return [by_key.get(op.name, most) for op in graph.ops]


def _synchronising(graph: Graph, strategy: Strategy, replicas: int) -> int:
    """The number of tasks that add up gradients of weights over replicas."""
    weights = sum(traits_of(op.kind).leaf == "parameter" or op.param_bytes > 0 for op in graph.ops)
    if isinstance(strategy.sync, Sync) or strategy.sync == "parameter-server":
        return 2 * weights * replicas
    if strategy.sync == "sharded":
        return weights * replicas**2
    expanded = strategy.collectives.cost == "expanded"
    return weights * (2 * replicas * (replicas - 1) if expanded else 1)


def scale_of_pipeline(turns: int, split: bool) -> Scale:
    """The scale of a schedule of stage times alone, with ``turns`` turns of a microbatch on a
    stage; ``split``: gradients of weights are separate actions.
    """
    actions = turns * (3 if split else 2)
    return Scale.of(2 * actions, (actions, ACTION), (actions, ACTION))


def scale_of_large(model: Transformer, p: Parallelism, cluster: Cluster, symmetry: bool) -> Scale:
    """The scale of a large model; with ``symmetry`` one device of each rank of the pipeline is
    simulated.

    Raises InputError where the degrees do not divide the model.
    """
    copies = 1 if symmetry else p.devices // max(p.pp, 1)
    actions = 2 * p.microbatches * p.pp * p.chunks
    rows = TASKS_OF_LAYER * model.layers * p.microbatches + 2 * actions
    cut = 0
    if p.zero in TASKS_OF_BUCKET:
        more = all_buckets(shard_of(model, p), p) - model.layers
        cut = TASKS_OF_BUCKET[p.zero] * more * p.microbatches
    workers = len(cluster.workers), WORKER
    tasks = (rows + cut) * copies
    parts = workers, (actions, ACTION), (rows, ROW), (cut, TASK), (tasks, COPY)
    return Scale.of(tasks, *parts, (model.layers, LAYER), (tasks * (p.slowdown != 1), SLOWED))
