"""Hypothesis strategies for programs full of ties, which is where schedulers go wrong.

``task_graphs`` draws the intermediate form directly, ``worlds`` whole questions. Times are ps,
sizes bytes, and 1 byte takes 1 ps at the bandwidth ``UNIT``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
from hypothesis import strategies as st

from sequences import fixed, in_line
from simdev.costs import CostModel
from simdev.execution.engine import simulate
from simdev.lowering import lower
from simdev.nouns.cluster import QUEUES, TRANSFERS, Cluster, Device, Link
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.strategy import Order, Strategy
from simdev.nouns.taskgraph import (
    BUFFER_KINDS,
    PERSISTENT,
    Buffers,
    Resource,
    Rows,
    TaskGraph,
    Tasks,
)
from simdev.nouns.trace import Trace

UNIT = 10**12
POLICIES = ("fifo", "priority", "fixed")
TAPE = 320
COLUMNS = [
    "op",
    "output",
    "source",
    "destination",
    "duration",
    "lag",
    "gap",
    "priority",
    "bytes",
    "flow",
]
Choice = TypeVar("Choice")


class Tape:
    """Choices read from random bytes: one draw for a whole program is ten times faster than one for
    each number.

    A byte of zero, or the end of the tape, means the first choice, so that Hypothesis shrinks
    towards first choices.
    """

    def __init__(self, content: bytes) -> None:
        self.content, self.position = content, 0

    def number(self, limit: int) -> int:
        """From 0 to under ``limit``."""
        self.position += 1
        return self.content[self.position - 1] % limit if self.position <= len(self.content) else 0

    def pick(self, *choices: Choice) -> Choice:
        return choices[self.number(len(choices))]

    def column(self, count: int, *choices: int) -> np.ndarray:
        return np.array([self.pick(*choices) for _ in range(count)], np.int64)

    def some(self, most: int, limit: int) -> list[int]:
        """Up to ``most`` distinct numbers under ``limit``, sorted."""
        return sorted({self.number(limit) for _ in range(self.number(most + 1))})


def drawn(build: Callable[..., Choice], *arguments: object) -> st.SearchStrategy[Choice]:
    """A strategy of what ``build(tape, *arguments)`` makes of a random tape."""
    return st.binary(min_size=TAPE, max_size=TAPE).map(
        lambda content: build(Tape(content), *arguments)
    )


def op(name: str, ps: int, *inputs: str, size: int = 0, **fields: object) -> Op:
    """An op of one output of ``size`` bytes."""
    return Op(name, inputs=inputs, outputs=(Tensor(size),), time=f"{ps} ps", **fields)


@dataclass(frozen=True)
class World:
    """A whole question: what is run, where, and in which order."""

    graph: Graph
    cluster: Cluster
    strategy: Strategy

    @classmethod
    def of(
        cls, ops: Sequence[Op], cluster: Cluster, placement: Sequence[int], order: Order = Order()
    ) -> World:
        """``placement`` holds the device index of each op."""
        names = {one.name: cluster.devices[d].name for one, d in zip(ops, placement, strict=True)}
        return cls(Graph("world", tuple(ops)), cluster, Strategy(names, order))

    @cached_property
    def task_graph(self) -> TaskGraph:
        return lower(self.graph, self.cluster, CostModel(), self.strategy)

    @cached_property
    def trace(self) -> Trace:
        return simulate(self.task_graph, engine="simpy")

    @property
    def step(self) -> int:
        return self.trace.end_ps

    def but(self, **changes: object) -> World:
        """The same question with another graph, cluster or strategy."""
        return replace(self, **changes)

    def ordered(self, order: Order) -> World:
        return self.but(strategy=replace(self.strategy, order=order))

    def with_ops(self, change: Callable[[Op], Op]) -> World:
        return self.but(graph=Graph(self.graph.name, tuple(map(change, self.graph.ops))))

    def with_links(self, **fields: object) -> World:
        links = tuple(replace(link, **fields) for link in self.cluster.links)
        return self.but(cluster=replace(self.cluster, links=links))


def _edges(tape: Tape, count: int) -> list[list[int]]:
    """Successors: any, a chain, a star, or none."""
    shape = tape.pick("any", "any", "any", "chain", "star", "none")
    if shape == "chain":
        return [[task + 1] if task + 1 < count else [] for task in range(count)]
    if shape == "star":
        return [list(range(1, count)) if task == 0 else [] for task in range(count)]
    found: list[set[int]] = [set() for _ in range(count)]
    for _ in range(tape.number(2 * count) if count > 1 and shape == "any" else 0):
        a, b = tape.number(count), tape.number(count)
        if a != b:
            found[min(a, b)].add(max(a, b))
    return [sorted(one) for one in found]


def _buffers(tape: Tape, successors: Sequence[Sequence[int]]) -> Buffers:
    """A buffer of about every second task, read by successors, and one that lives throughout."""
    rows: list[tuple[int, int, tuple[int, ...]]] = [(0, PERSISTENT, ())]
    for task, later in enumerate(successors):
        if tape.number(2):
            rows.append((tape.number(2), task, tuple(later[: tape.pick(0, 1, 9)])))
    sizes = tape.column(len(rows), 0, 1, 2)
    device, filler = (np.array([row[i] for row in rows], np.int64) for i in (0, 1))
    kind = np.full(len(rows), BUFFER_KINDS.index("activations"))
    readers = Rows.of(readers for _, _, readers in rows)
    return Buffers(tuple(f"b{i}" for i in range(len(rows))), device, sizes, kind, filler, readers)


def _tasks(
    tape: Tape, count: int, queues: int, flows: bool, successors: Sequence[Sequence[int]]
) -> Tasks:
    flow = tape.column(count, 0, 1).astype(bool) if flows else np.zeros(count, bool)
    zeros = np.zeros(count, np.int64)
    return Tasks(
        name=tuple(f"t{i}" for i in range(count)),
        kind=("compute",) * count,
        op=zeros - 1,
        output=zeros - 1,
        source=zeros,
        destination=zeros,
        duration=tape.column(count, 0, 0, 1, 2, 3),
        lag=tape.column(count, 0, 0, 1, 2),
        gap=tape.column(count, 0, 0, 1, 2) * ~flow,
        priority=tape.column(count, 0, 1, 2),
        bytes=tape.column(count, 0, 1, 2, 3, 5) * flow,
        flow=flow,
        resources=Rows.of([] if is_flow else tape.some(2, queues) for is_flow in flow),
        links=Rows.of(
            sorted({tape.number(3), tape.number(3)}) if is_flow else [] for is_flow in flow
        ),
        successors=Rows.of(successors),
    )


def make_task_graph(tape: Tape, policies: Sequence[str], flows: bool) -> TaskGraph:
    """See ``task_graphs``."""
    count, queues, policy = tape.number(13), 1 + tape.number(3), tape.pick(*policies)
    successors = _edges(tape, count)
    found = TaskGraph(
        _tasks(tape, count, queues, flows, successors),
        tuple(
            Resource(f"q{i}", "priority" if policy == "priority" else "fifo") for i in range(queues)
        ),
        _buffers(tape, successors),
        ("d0", "d1"),
        tape.column(2, -1, -1, 0, 2, 4),
        ("l0", "l1", "l2"),
        tape.column(3, 1, 2, 3) * float(UNIT),
    )
    return fixed(found, tape.column(count, 0, 1, 2, 3).tolist()) if policy == "fixed" else found


def repeated(task_graph: TaskGraph, copies: int) -> TaskGraph:
    """Disjoint copies side by side, buffers left out."""
    tasks, count = task_graph.tasks, len(task_graph.tasks)

    def rows(one: Rows, shift: int) -> Rows:
        return Rows.of([i + c * shift for i in held] for c in range(copies) for held in one.lists())

    columns = {name: np.tile(getattr(tasks, name), copies) for name in COLUMNS}
    return replace(
        task_graph,
        tasks=Tasks(
            name=tuple(f"{name}/{c}" for c in range(copies) for name in tasks.name),
            kind=tasks.kind * copies,
            **columns,
            resources=rows(tasks.resources, len(task_graph.resources)),
            links=rows(tasks.links, len(task_graph.links)),
            successors=rows(tasks.successors, count),
        ),
        resources=tuple(
            replace(queue, name=f"{queue.name}/{c}")
            for c in range(copies)
            for queue in task_graph.resources
        ),
        buffers=Buffers((), *np.zeros((4, 0), np.int64), Rows.of([])),
        links=tuple(f"{link}/{c}" for c in range(copies) for link in task_graph.links),
        bandwidth=np.tile(task_graph.bandwidth, copies),
    )


def task_graphs(
    policies: Sequence[str] = POLICIES, flows: bool = False
) -> st.SearchStrategy[TaskGraph]:
    """Up to 12 tasks of 0 to 3 ps on up to 3 queues of one policy; with ``flows`` half of them are
    flows.
    """
    return drawn(make_task_graph, policies, flows)


def make_graph(tape: Tape) -> Graph:
    """Ops of 0 to 3 ps with two outputs of 0 to 2 bytes, listed in either direction."""
    ops: list[Op] = []
    for i in range(1 + tape.number(8)):
        reads = (
            {(tape.number(i), tape.pick(0, 0, 1, -1)) for _ in range(tape.number(4))}
            if i
            else set()
        )
        extra = tape.pick(0, 0, 0, 1, 2)
        ops.append(
            Op(
                f"o{i}",
                inputs=tuple(f"o{p}:{k}" for p, k in sorted(reads) if k >= 0),
                control_inputs=tuple(f"o{p}" for p, k in sorted(reads) if k < 0),
                outputs=(Tensor(tape.pick(0, 1, 1, 2)), Tensor(tape.pick(0, 1, 2))),
                time=f"{tape.pick(0, 1, 1, 2, 3)} ps",
                param_bytes=extra,
                grad_bytes=extra,
                workspace_bytes=tape.pick(0, 0, 2),
            )
        )
    return Graph("random", tuple(ops[::-1] if tape.pick(0, 0, 1) else ops))


def _links(tape: Tape, names: Sequence[str], shape: str) -> list[Link]:
    """All to all, or a star around a switch or host of the last name."""
    pairs = [
        (a, b)
        for i, a in enumerate(names)
        for b in names[i + 1 :]
        if shape == "all" or b == names[-1]
    ]
    hold, duplex = tape.pick(True, False), tape.pick("full", "full", "half")
    return [
        Link(
            pair,
            bandwidth=tape.pick(1, 1, 2) * UNIT,
            latency=f"{tape.pick(0, 0, 1, 2)} ps",
            gap=f"{tape.pick(0, 0, 1)} ps",
            duplex=duplex,
            hold_latency=hold,
        )
        for pair in pairs
    ]


def make_cluster(tape: Tape, queues: Sequence[str], transfers: Sequence[str]) -> Cluster:
    """One to four devices that run ops, joined all to all, through a switch or over a staging
    host.
    """
    count, shape = 1 + tape.number(4), tape.pick("all", "all", "switch", "host")
    modes = [mode for mode in transfers if (mode, shape) != ("multicast", "host")] or [
        "once-per-device"
    ]
    memory = tape.pick(None, None, 2, 6)
    devices = [Device(f"g{d}", gap=f"{tape.pick(0, 0, 1)} ps", memory=memory) for d in range(count)]
    if shape == "switch":
        devices.append(Device("hub", "switch"))
    if shape == "host":
        devices.append(Device("hub", "cpu", staging=True, chunk=tape.pick(None, 1)))
    links = _links(tape, [device.name for device in devices], shape)
    return Cluster("c", tuple(devices), tuple(links), tape.pick(*queues), tape.pick(*modes))


def fixed_order(world: World, keys: Sequence[int]) -> Order:
    """A sequence for every queue, from one line of all tasks; ``keys`` are used over and over."""
    task_graph = world.ordered(Order()).task_graph
    names = task_graph.tasks.name
    sequences = in_line(task_graph, [keys[i % len(keys)] for i in range(len(names))])
    pairs = zip(task_graph.resources, sequences, strict=True)
    return Order(
        "fixed",
        sequence={queue.name: tuple(names[task] for task in tasks) for queue, tasks in pairs},
    )


def make_world(
    tape: Tape, policies: Sequence[str], queues: Sequence[str], transfers: Sequence[str]
) -> World:
    """See ``worlds``."""
    policy = tape.pick(*policies)
    graph, cluster = make_graph(tape), make_cluster(tape, queues, transfers)
    hosts = [d for d, device in enumerate(cluster.devices) if device.runs_ops]
    world = World.of(graph.ops, cluster, [tape.pick(*hosts) for _ in graph.ops])
    if policy == "priority":
        return world.ordered(Order("priority", {one.name: tape.number(3) for one in graph.ops}))
    if policy == "fixed":
        return world.ordered(fixed_order(world, tape.column(24, 0, 1, 2, 3).tolist()))
    # listed backwards, program order would deadlock
    if policy == "program" and graph.ops[0].name == "o0":
        return world.ordered(Order("program"))
    return world


def worlds(
    policies: Sequence[str] = ("fifo", "fifo", "priority", "fixed", "program"),
    queues: Sequence[str] = QUEUES,
    transfers: Sequence[str] = TRANSFERS,
) -> st.SearchStrategy[World]:
    """Up to 8 ops on up to 4 devices, placed at random, under one order of its queues."""
    return drawn(make_world, policies, queues, transfers)


def rename(mapping: Mapping[str, str], text: str) -> str:
    """A tensor reference with its op renamed."""
    name, colon, output = text.partition(":")
    return mapping[name] + colon + output


def dag(tape: Tape) -> Graph:
    """Up to 9 ops in some groups; sizes and times full of ties, zeros among them."""
    count = 2 + tape.number(8)
    ops = []
    for i in range(count):
        before = [f"o{j}" for j in tape.some(3, i)] if i else []
        group = tape.pick(None, None, "x", "y")
        fields = {"param_bytes": tape.pick(0, 0, 2), "workspace_bytes": tape.pick(0, 0, 3)}
        ops.append(
            op(
                f"o{i}",
                tape.pick(1, 2, 5, 0),
                *before,
                size=tape.pick(1, 0, 4),
                colocate=group,
                **fields,
            )
        )
    return Graph("dag", tuple(ops))


def two(memory: int | None = None, queues: str = "half-duplex") -> Cluster:
    """Two devices, with UNIT between them."""
    return Cluster.all_to_all(
        "two", [Device(f"g{d}", memory=memory) for d in range(2)], queues, bandwidth=UNIT
    )
