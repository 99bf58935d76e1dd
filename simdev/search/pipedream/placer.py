"""The method "pipedream" of ``search.methods``: plan (``plan.py``), place a pipeline with one
device per stage, execute the plan.

The plan is executed like any other pipeline: its order is ``nouns.schedules.round_robin``, its
tasks come from ``lowering.pipeline``, its figures from ``report.measures.pipeline``. A new rule of
pipelines goes there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial
from itertools import pairwise
from math import lcm
from typing import Any

import numpy as np

from ...execution.engine import simulate
from ...ground.errors import InputError
from ...ground.units import PS_PER_SECOND
from ...lowering.pipeline import Site, pipeline_task_graph
from ...nouns.schedules import Schedule, StageTimes, round_robin
from ...nouns.structure import hands_out_parameters
from ...nouns.taskgraph import Bools, Ints
from ...nouns.trace import Trace
from ...oracle import Oracle
from ...report.measures.pipeline import PipelineUse, pipeline_use
from ..fitting import repair
from ..ideals import Due, unhurried
from ..trial import Trial
from .plan import Level, Partition, Stage, levels_of, machines_of, partition, profile_of

# Execution of a plan: asynchronous 1F1B over the replicas of each stage, with versions of weights
# and the links of the cluster, until it is steady (sections 3.2 and 3.3).

ROUNDS = (4, 8, 16, 32, 64)  # to simulate beside the minibatches in flight, tried in turn
MOST_ACTIONS = 40_000  # of a simulation, which then takes some seconds


@dataclass(frozen=True, slots=True)
class Execution:
    """The figures of an executed plan; times of a minibatch in seconds.

    ``alone_s`` is the period of its slowest stage by itself. ``in_turn_s`` is the period of all
    stages in 1F1B-RR with free transfers, where replicas never wait for one another; ``together_s``
    where they wait and synchronise. ``use`` and ``trace`` belong to the pipeline on the cluster.
    """

    use: PipelineUse
    trace: Trace
    alone_s: float
    in_turn_s: float
    together_s: float

    @property
    def period_s(self) -> float:
        """The steady period."""
        return _period(self.use, self.trace)

    def to_json(self) -> dict[str, Any]:
        """Plain numbers and texts."""
        schedule = self.use.schedule
        return {
            "period_s": self.period_s,
            "steady": self.use.period is not None and self.use.period.repeats,
            "alone_s": self.alone_s,
            "in_turn_s": self.in_turn_s,
            "together_s": self.together_s,
            "first_s": self.use.latency_ps / PS_PER_SECOND,
            "replicas": list(schedule.replicas),
            "in_flight": self.use.versions[0],
            "weight_versions": list(self.use.versions),
            "peak_bytes": [memory.peak for memory in self.trace.memory],
            "fits": self.trace.feasible,
            "memory_excess_bytes": self.trace.memory_excess,
        }


def executed(
    oracle: Oracle,
    stages: Sequence[Stage],
    devices: Sequence[int],
    due: Due = unhurried,
) -> Execution:
    """A plan executed on the devices (index by machine) of the oracle's cluster.

    The forward of a stage is its forward ops, the backward all its others; each takes the time of
    its ops on its device, and the gaps between them. A tensor for a later stage is handed on from
    stage to stage. To synchronise a round of a stage's replicas takes as long as the planner
    assumes, and holds no link. ``due`` is called before each simulation, and may raise. Raises
    InputError where no route joins two devices.
    """
    homes = [tuple(devices[machine] for machine in stage.machines) for stage in stages]
    for source, destination in (pair for home in homes for pair in pairwise(home)):
        oracle.prepared.segments(source, destination)  # replicas must reach one another, too
    of_op = np.zeros(len(oracle.graph.ops), np.int64)
    for number, stage in enumerate(stages):
        for group in stage.groups:
            of_op[list(oracle.groups[group])] = number
    parts = _Parts(oracle, of_op)
    every = [(stage, device) for stage, home in enumerate(homes) for device in home]
    forward, backward = (
        tuple(parts.seconds(chosen, *replica) for replica in every)
        for chosen in (parts.forward, ~parts.forward)
    )
    kept, weights = parts.kept(), parts.sums([op.param_bytes for op in parts.ops])
    none, sizes = Fraction(0), tuple(kept[stage] for stage, _ in every)
    columns = (
        forward, backward, (none,) * len(every), (none,) * (len(stages) - 1), sizes, sizes,
        tuple(weights[stage] for stage, _ in every),
    )  # fmt: skip
    sync = tuple(Fraction(stage.sync_seconds) for stage in stages)
    site = parts.site(tuple(device for _, device in every))
    # To check a schedule takes as long as to simulate it.
    table = cache(partial(round_robin, tuple(map(len, homes))))
    runs = list[tuple[PipelineUse, Trace]]()
    for summed, place in ((None, None), (sync, None), (sync, site)):
        due()
        runs.append(_steady(table, [*map(len, homes)], StageTimes(*columns, summed), place))
    times = zip(every, forward, backward, strict=True)
    alone = float(max((f + b) / len(homes[stage]) for (stage, _), f, b in times))
    # Replicas of a single stage do not wait: rounds begin at the pace of the fast replicas, but end
    # at the pace of the slowest.
    in_turn = max(_period(*runs[0]), alone)
    return Execution(*runs[2], alone, in_turn, _period(*runs[1]))


def _steady(
    table: Callable[[int], Schedule], replicas: Sequence[int], times: StageTimes, site: Site | None
) -> tuple[PipelineUse, Trace]:
    """The pipeline with as many minibatches as it takes until it repeats, or as MOST_ACTIONS allow;
    ``table`` makes the schedule of a number of minibatches.
    """
    most = max(MOST_ACTIONS // (2 * len(replicas)), *replicas)
    for rounds in ROUNDS:
        # Further ones for the start, which are at most the minibatches in flight in all stages.
        wanted = rounds * lcm(*replicas) + 2 * sum(replicas)
        schedule = table(min(wanted, most))
        trace = simulate(pipeline_task_graph(schedule, times, site))
        use = pipeline_use(schedule, trace)
        if wanted >= most or (use.period is not None and use.period.repeats):
            break
    return use, trace


def _period(use: PipelineUse, trace: Trace) -> float:
    """The steady period in seconds; where a round is too long to repeat, the mean over the later
    half of the minibatches.
    """
    if use.period_ps is not None:
        return float(use.period_ps / PS_PER_SECOND)
    starts: list[int] = trace.start.tolist()
    actions = zip(use.schedule.actions, starts, strict=False)
    begins = sorted(start for action, start in actions if (action.stage, action.kind) == (0, "F"))
    later = begins[len(begins) // 2 :]
    return (later[-1] - later[0]) / max(len(later) - 1, 1) / PS_PER_SECOND


class _Parts:
    """A graph cut into stages: the time, memory and transfers of each stage."""

    def __init__(self, oracle: Oracle, of_op: Ints) -> None:
        """``of_op``: the stage of each op."""
        self.prepared, self.of_op = oracle.prepared, of_op
        self.ops = oracle.prepared.graph.ops
        self.count = int(of_op.max()) + 1
        self.forward = np.array([op.phase == "forward" for op in self.ops])

    def sums(self, sizes: Sequence[int]) -> list[int]:
        """Sums by stage of a number by op."""
        sums = np.zeros(self.count, np.int64)
        np.add.at(sums, self.of_op, np.array(sizes, np.int64))
        return sums.tolist()

    def seconds(self, chosen: Bools, stage: int, device: int) -> Fraction:
        """Seconds of the chosen ops of a stage, run in sequence on a device."""
        duration = self.prepared.duration[chosen & (self.of_op == stage), device]
        gaps = int(self.prepared.gap_ps[device]) * int((duration > 0).sum())
        return Fraction(int(duration.sum()) + gaps, PS_PER_SECOND)

    def _read(self) -> Iterator[tuple[int, int, Ints]]:
        """Producer and output of each tensor that some op reads, and its readers."""
        reads = self.prepared.reads
        keys = zip(reads.producer.tolist(), reads.output.tolist(), strict=True)
        for (producer, output), readers in zip(keys, reads.consumers.each(), strict=True):
            if output >= 0:
                yield producer, output, np.array(readers, np.int64)

    def kept(self) -> list[int]:
        """Bytes by stage of the forward's outputs that a backward, or a later stage, reads."""
        held = set[tuple[int, int]]()
        for producer, output, readers in self._read():
            op = self.ops[producer]
            here = self.forward[readers] & (self.of_op[readers] == self.of_op[producer])
            if self.forward[producer] and not here.all() and not hands_out_parameters(op):
                base = op.outputs[output].view_of
                held.add((producer, output if base is None else base))
        sizes = [0] * len(self.ops)
        for producer, output in held:
            sizes[producer] += self.ops[producer].outputs[output].bytes
        return self.sums(sizes)

    def site(self, devices: tuple[int, ...]) -> Site:
        """The cluster under the stages, with ``devices`` by rank."""
        crossing = np.zeros((2, self.count), np.int64)  # forth and back, behind each stage
        gradients = [0] * len(self.ops)
        for producer, output, readers in self._read():
            home, size = int(self.of_op[producer]), self.ops[producer].outputs[output].bytes
            there = self.of_op[readers]
            crossing[0, home : max(int(there.max()), home)] += size
            crossing[1, min(int(there.min()), home) : home] += size
            updated = any(self.ops[reader].phase == "update" for reader in readers.tolist())
            if self.ops[producer].phase == "backward" and updated:
                gradients[producer] += size
        space = np.zeros(self.count, np.int64)
        np.maximum.at(space, self.of_op, [op.workspace_bytes for op in self.ops])
        columns = (
            *crossing[:, :-1].tolist(),
            self.sums([op.grad_bytes + op.state_bytes for op in self.ops]),
            self.sums(gradients),
            space.tolist(),
        )
        return Site(self.prepared, devices, *map(tuple, columns))


def pipedream(trial: Trial) -> None:
    """PipeDream (SOSP 2019): stages with replicas. It places, and scores, the best pipeline without
    replicas, one device per stage.

    A minibatch passes such a pipeline one stage after another, so the step time is that of a single
    minibatch. The objective is the period in steady state of the plan with replicas: ``period_s``
    as planned, ``executed_period_s`` as executed; ``details`` has the period of the placed
    pipeline. The plan ignores memory: where the placed pipeline overflows, groups are moved
    (``details`` has the number of ``moved`` ops); the execution says whether the plan itself fits.
    """
    oracle, budget = trial.problem.oracle, trial.budget
    profile, levels = profile_of(oracle), levels_of(oracle)
    devices = sorted(set.intersection(*(set(able.tolist()) for able in trial.problem.choices)))
    if len(devices) < sum(device.runs_ops for device in oracle.cluster.devices):
        raise InputError("pipedream: every device must be able to run every op")
    flat = [Level(len(devices), levels[-1].bandwidth)]
    _place(trial, partition(profile, flat, True, budget.require_time), devices)
    plan = partition(profile, levels, due=budget.require_time)
    trial.best.objectives["period_s"] = plan.seconds
    trial.best.details |= {"exact": plan.exact, "stages": _summaries(oracle, plan)}
    _execute(trial, plan)


def _execute(trial: Trial, plan: Partition) -> None:
    """Execute the plan, and note its figures."""
    oracle, best = trial.problem.oracle, trial.best
    try:
        execution = executed(oracle, plan.stages, machines_of(oracle), trial.budget.require_time)
    except InputError as error:  # no route joins two devices of neighbouring stages
        best.details["not_executed"] = str(error)
        return
    best.objectives["executed_period_s"] = execution.period_s
    best.details["executed_period_s"] = execution.period_s
    best.details["execution"] = execution.to_json()


def _place(trial: Trial, plan: Partition, devices: Sequence[int]) -> None:
    """Score a pipeline of one device per stage; repair it where it does not fit."""
    oracle, best = trial.problem.oracle, trial.best
    best.details["placed_stages"] = _summaries(oracle, plan)
    best.details["placed_period_s"] = plan.seconds
    placement = np.zeros(len(oracle.groups), np.int64)
    for device, stage in zip(devices, plan.stages, strict=False):
        placement[list(stage.groups)] = device
    trial.score(placement)
    repair(trial)
    if best.placement is not None:  # it can be
        best.details["moved"] = int((best.placement[0] != oracle.placement(placement)).sum())


def _summaries(oracle: Oracle, plan: Partition) -> list[dict[str, object]]:
    """The stages of a plan as plain values, each group named by its first op."""
    first = [oracle.graph.ops[members[0]].name for members in oracle.groups]
    return [
        {
            "ops": [first[group] for group in stage.groups],
            "replicas": stage.replicas,
            "seconds": stage.seconds,
            "sync_seconds": stage.sync_seconds,
        }
        for stage in plan.stages
    ]
