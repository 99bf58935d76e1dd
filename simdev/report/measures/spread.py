"""Sections on the spread of a step over devices: the stages of its pipeline, the cost of splitting
each op, the synchronisation of gradients, the model of collectives, and the devices that were
simulated in place of others.

Origins of shards are made in ``lowering/partition`` (their ROLES are named in
``nouns/strategy/placement.py``), symmetries in ``lowering/symmetry``; both come with the outcome.
``sent_bytes`` counts the bytes of a step for all reports and sweeps.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...costs.collectives import shipped_tables
from ...execution.scenario import Outcome, Stage
from ...ground.units import MAX_BYTES, PS_PER_SECOND
from ...lowering.symmetry import Expanded, Symmetry
from ...nouns.semantics import traits_of
from ...nouns.strategy import Origin, Sync, settled_cost
from ...nouns.strategy.sync import BUCKET, FIRST_BUCKET
from ...nouns.taskgraph import COLLECTIVE, TRANSFER, Ints, TaskGraph, distinct
from ..table import BYTES, COUNT, SHARE, TEXT, TIME, Json, Table, fields_json
from .section import Places, Section, Step
from .spans import sent_mask


@dataclass(frozen=True, slots=True)
class SplitCost:
    """The cost of an op that is split or whose partial results are added up, or of an unsplit op
    that computes beside such ops.

    ``split`` has its degrees by axis. ``whole_ps`` is the time of the unsplit op (None: not known),
    ``summed_ps`` and ``longest_ps`` the times of its parts. ``bytes_in`` are sent to its parts (a
    tensor counts for the first op that reads it), ``sync_bytes`` are sent to add up its partial
    results and to distribute the sum.
    """

    op: str
    kind: str
    parts: int
    split: Mapping[str, int]
    whole_ps: int | None
    summed_ps: int
    longest_ps: int
    bytes_in: int
    sync_bytes: int

    @property
    def stays_whole(self) -> bool:
        """Whether it runs on one device though others of the step are split."""
        return self.parts == 1 and not self.sync_bytes


def split_costs(
    task_graph: TaskGraph,
    kinds: Mapping[str, str],
    origins: Mapping[str, Origin],
    whole_ps: Mapping[str, int],
    symmetry: Symmetry | None = None,
) -> tuple[SplitCost, ...]:
    """The costs of the ops that were split, and of the ops that take time and stay whole, in
    program order.

    ``kinds`` has the kind of each op of the original graph, in its order; ``origins`` the origin of
    each op of the sharded graph, ``whole_ps`` the times of unsplit ops. Under a ``symmetry`` a
    shard counts once for each device that its device represents.
    """
    tasks = task_graph.tasks
    of_task = [
        origins.get(tasks.name[task]) if op == task else None
        for task, op in enumerate(tasks.op.tolist())
    ]
    copies = copies_of(task_graph, symmetry)
    durations = _durations(task_graph, of_task, copies)
    degrees = _degrees(origins, None if symmetry is None else symmetry.replicas)
    shards = {origin.op for origin in origins.values() if origin.role == "shard"}
    bytes_in, sync_bytes = _bytes(task_graph, of_task, copies)
    costs = []
    for name, kind in kinds.items():
        parts = durations.get(name, [])
        summed, number = (sum(column) for column in zip(*parts, strict=True)) if parts else (0, 0)
        # Ops that cannot be split, or take no time, would only fill the table.
        whole = number < 2 and not sync_bytes[name]
        if traits_of(kind).leaf or (whole and not (name in shards and summed)):
            continue
        longest = max((ps // count for ps, count in parts), default=0)
        cost = SplitCost(
            name, kind, number, degrees.get(name, {}), whole_ps.get(name), summed, longest,
            bytes_in[name], sync_bytes[name],
        )  # fmt: skip
        costs.append(cost)
    return tuple(costs)


def _durations(
    task_graph: TaskGraph, of_task: Sequence[Origin | None], copies: Ints
) -> dict[str, list[tuple[int, int]]]:
    """By op a list of (total ps of equal parts, number of these parts)."""
    durations: dict[str, list[tuple[int, int]]] = {}
    number = copies[task_graph.tasks.source]
    together = (task_graph.tasks.duration * number).tolist()
    for origin, duration, count in zip(of_task, together, number.tolist(), strict=True):
        if origin is not None and not origin.adds_up:
            durations.setdefault(origin.op, []).append((duration, count))
    return durations


def _degrees(origins: Mapping[str, Origin], replicas: int | None) -> dict[str, dict[str, int]]:
    """The number of intervals that each op is cut into, by axis (``replicas`` where given)."""
    cuts: dict[str, dict[str, set[tuple[int, int]]]] = {}
    for origin in origins.values():
        for axis, interval in origin.box:
            cuts.setdefault(origin.op, {}).setdefault(axis, set()).add(interval)
    return {
        op: {axis: replicas or len(intervals) for axis, intervals in axes.items()}
        for op, axes in cuts.items()
    }


def _bytes(
    task_graph: TaskGraph, of_task: Sequence[Origin | None], copies: Ints
) -> tuple[dict[str, int], dict[str, int]]:
    """(bytes sent to the parts of each op, bytes sent to add up its partial results)."""
    tasks = task_graph.tasks
    columns = zip(
        tasks.kind, tasks.op.tolist(), tasks.bytes.tolist(), tasks.successors.lists(), strict=True
    )
    bytes_in, sync_bytes = defaultdict[str, int](int), defaultdict[str, int](int)
    ranks = dict(zip(*(column.tolist() for column in ranks_of(task_graph, copies)), strict=True))
    for task, (kind, op, size, successors) in enumerate(columns):
        origin = of_task[task]
        if kind == COLLECTIVE and origin is not None:
            sync_bytes[origin.op] += size * ranks[task]
        readers = [reader for reader in successors if tasks.kind[reader] != TRANSFER]
        if kind != TRANSFER or not readers:
            continue
        # A tensor that several ops read counts for the first of these ops.
        ends = of_task[op], of_task[min(readers)]
        adding = next((end for end in ends if end is not None and end.adds_up), None)
        if adding is not None:
            sync_bytes[adding.op] += size
        elif ends[1] is not None:
            bytes_in[ends[1].op] += size
    return bytes_in, sync_bytes


def copies_of(task_graph: TaskGraph, symmetry: Symmetry | None) -> Ints:
    """The number of devices that each device represents; without a symmetry only itself."""
    return np.ones(len(task_graph.devices), np.int64) if symmetry is None else symmetry.copies


def ranks_of(task_graph: TaskGraph, copies: Ints) -> tuple[Ints, Ints]:
    """The collectives, and the number of devices on which each leaves a buffer (at least 1);
    ``copies`` has the number of devices that each device represents.
    """
    buffers, count = task_graph.buffers, max(len(task_graph.devices), 1)
    collectives = np.flatnonzero(task_graph.of_kind(COLLECTIVE))
    filled = np.isin(buffers.filler, collectives)
    # A device counts once, however many buffers it receives.
    places = distinct(buffers.filler[filled] * count + buffers.device[filled])
    by_task = np.zeros(len(task_graph.tasks), np.int64)
    np.add.at(by_task, places // count, copies[places % count])
    return collectives, np.maximum(by_task[collectives], 1)


def sent_bytes(task_graph: TaskGraph, symmetry: Symmetry | None = None) -> int:
    """Bytes of all transfers, counting a message once whatever the number of its queues, and the
    bytes that all ranks of collectives send.
    """
    moves, size = sent_mask(task_graph), task_graph.tasks.bytes
    collectives, ranks = ranks_of(task_graph, copies_of(task_graph, symmetry))
    # A collective is a transfer too, so one rank's bytes are counted already.
    return int(size[moves].sum()) + int((size[collectives] * (ranks - 1)).sum())


@dataclass(frozen=True, slots=True)
class Splits(Section):
    """The cost of splitting each op (``splits``), and the ops that take time and stay whole
    (``whole``).
    """

    name = "splits"
    places = Places(entries=140, lines=70, asides=70, tables=80)

    splits: tuple[SplitCost, ...]
    whole: tuple[SplitCost, ...]
    step_ps: int

    @classmethod
    def of_step(cls, step: Step) -> Splits | None:
        """The section of a step whose ops were split."""
        if step.outcome.splitting is None:
            return None
        costs = split_costs(*step.outcome.splitting)
        return cls(
            tuple(cost for cost in costs if not cost.stays_whole),
            tuple(cost for cost in costs if cost.stays_whole),
            step.step_ps,
        )

    def lines(self) -> Iterator[str]:
        """The share of the step in ops that stay whole while others are split, and the kinds with
        most of it; nothing below half a per cent.
        """
        of_kind = Counter[str]()
        for cost in self.whole:
            of_kind[cost.kind] += cost.summed_ps
        share = of_kind.total() / max(self.step_ps, 1)
        if share < 0.005:
            return
        largest = [f"{kind} {ps / max(self.step_ps, 1):.1%}" for kind, ps in of_kind.most_common(3)]
        more = [f"{len(of_kind) - 3} more kinds"] if len(of_kind) > 3 else []
        # Several unsplit ops may run side by side, so the sum may exceed the step.
        yield f"{min(share, 1):.0%} of the step is not split: {', '.join([*largest, *more])}."

    def tables(self) -> Iterator[Table]:
        """Split ops, by the bytes that they send, then by their time; and ops that stay whole
        although others are split, the longest first.
        """
        ordered = sorted(self.splits, key=lambda c: (-c.bytes_in - c.sync_bytes, -c.summed_ps))
        rows = tuple(
            (
                cost.op, " ".join(f"{axis}={degree}" for axis, degree in cost.split.items()) or "-",
                cost.parts, cost.whole_ps, cost.summed_ps, cost.longest_ps, cost.bytes_in,
                cost.sync_bytes,
            )
            for cost in ordered
        )  # fmt: skip
        columns = {
            "op": TEXT, "split": TEXT, "parts": COUNT, "whole": TIME, "summed": TIME,
            "longest": TIME, "fetched": BYTES, "added up": BYTES,
        }  # fmt: skip
        yield Table("What splitting costs", columns, rows)
        longest = sorted(self.whole, key=lambda cost: -cost.summed_ps)
        step = max(self.step_ps, 1)
        kept = tuple((c.op, c.kind, c.summed_ps, c.summed_ps / step) for c in longest)
        total = sum(cost.summed_ps for cost in longest) / step
        title = f"Stays whole although it computes: {total:.1%} of the step"
        columns = {"op": TEXT, "kind": TEXT, "time": TIME, "of the step": SHARE}
        yield Table(title, columns, kept)

    def entries(self) -> Json:
        """The ops of both kinds, where there are any."""
        step = self.step_ps
        whole = [
            {"op": cost.op, "kind": cost.kind, "time_s": cost.summed_ps / PS_PER_SECOND,
             "share": cost.summed_ps / step if step else 0.0}
            for cost in self.whole
        ]  # fmt: skip
        both = {"whole": whole, "splits": [fields_json(cost) for cost in self.splits]}
        return {name: costs for name, costs in both.items() if costs}


@dataclass(frozen=True, slots=True)
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
        """The stages, a row each."""
        columns = {"device": TEXT, "first op": TEXT, "last op": TEXT, "ops": COUNT}
        yield Table("Stages of the pipeline", columns, self.stages)


@dataclass(frozen=True, slots=True)
class Synchronisation(Section):
    """The number of gradients that a policy synchronises (None: there is no policy), and sentences
    on the policy and on the model of collectives.
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
        """A note where a policy has nothing to synchronise."""
        if self.synchronised == 0:
            yield "No gradient is synchronised: the strategy makes none on several devices."

    def notes(self) -> Iterator[str]:
        """The sentences."""
        yield from self.assumptions

    def to_json(self) -> int | None:
        """The number of gradients."""
        return self.synchronised


def assumptions(outcome: Outcome) -> Iterator[str]:
    """Sentences on the synchronisation of gradients and on the model of collectives."""
    strategy, splitting = outcome.strategy, outcome.splitting
    if strategy is None:
        return
    sync, collectives = strategy.sync, strategy.collectives
    roles = {origin.role for origin in splitting.origins.values()} if splitting else set()
    if isinstance(sync, Sync):
        if outcome.synchronised != 0:
            yield _of_policy(sync)
    elif roles & {"sync", "sum"}:
        # The first bucket is smaller, so that the first messages leave early (PyTorch's DDP).
        buckets = f", the first bucket of {FIRST_BUCKET:,} bytes, further ones of {BUCKET:,}"
        yield f"Gradients are synchronised by {sync}{buckets if sync == 'bucketed' else ''}."
    if outcome.trace.task_graph.of_kind(COLLECTIVE).any() or collectives.cost == "expanded":
        tables, cluster = collectives.tables, outcome.scenario and outcome.scenario.cluster
        if cluster and not tables:
            tables = shipped_tables(cluster.collectives)
        basis = {
            "closed": "closed forms",
            "table": f"{len(tables)} measured tables, closed forms where these end",
            "expanded": "their messages one by one",
            "given": "the times that their ops tell",
        }[settled_cost(collectives.cost, collectives.algorithm, bool(tables))]
        slower = f", slowed {float(collectives.slowdown):g} times beside computing"
        yield (
            f"Collectives rest on {basis} (algorithm {collectives.algorithm})"
            f"{slower if collectives.slowdown != 1 else ''}."
        )


def _of_policy(sync: Sync) -> str:
    """A sentence on the way a policy synchronises gradients, or averages parameters."""
    parts = {
        "buckets of {:,} bytes": sync.bucket,
        "slices of {:,} parameters": sync.slice_parameters,
        "an even piece a server from {:,} parameters": sync.even_parameters,
    }
    sizes = (part.format(size) for part, size in parts.items() if size is not None)
    cut = next(sizes, "whole gradients")
    if sync.every is None:
        return f"Gradients are synchronised by {sync.policy} ({sync.transport}), in {cut}."
    pieces = "all at once" if sync.bucket == MAX_BYTES else f"in {cut}"
    after = "every step" if sync.every == 1 else f"each round of {sync.every} steps"
    return f"Parameters are averaged by {sync.policy} after {after}, {pieces}."


@dataclass(frozen=True, slots=True)
class Alike(Section):
    """The devices simulated in place of others, or the reason why all were simulated."""

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
        """The number of devices that were simulated, or the reason why all were."""
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
    """The number of devices of the whole cluster that run each task or a task like it."""
    if isinstance(symmetry, Symmetry):
        return symmetry.counts(task_graph)
    return np.ones(len(task_graph.tasks), np.int64)
