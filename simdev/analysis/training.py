"""The section of a report that only a large model's step has: time by what it goes to, use of the
peak, memory by rank.

The step of a rank of the pipeline is tiled as that of any device (see ``usage``): computing,
exposed communication, and the bubble. Exposed communication is told by what it is for (collectives
of tp, of experts, of the replicas, copies to the host, what goes to or comes from other ranks: the
first of these in flight). MFU is the share of the devices' peak that the products of the model
alone would need; HFU counts what is computed twice, too (Korthikanti et al. 2022, section 5).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..models.large.roles import COMPUTES, DATA, EXPERT, HOST, PIPELINE, ROLES, TENSOR, LargeStep
from ..taskgraph import Ints
from ..trace import DeviceMemory, Trace
from ..units import format_bytes, format_seconds
from .table import Table

BUBBLE = "bubble"
TERMS = (*ROLES, BUBBLE)
EXPOSED = (TENSOR, EXPERT, DATA, HOST, PIPELINE)
"""What may be in flight while nothing is computed, in the order in which it is told."""
ROWS_SHOWN = 32


@dataclass(frozen=True, slots=True)
class StageUse:
    """A rank of the pipeline: its device, its layers by stage, its time in ps by TERMS, and its
    memory.
    """

    device: str
    layers: tuple[tuple[int, ...], ...]
    terms: Mapping[str, int]
    memory: DeviceMemory

    @property
    def exposed_ps(self) -> int:
        """Communication that no computing hides."""
        return sum(self.terms[ROLES[role]] for role in EXPOSED)


@dataclass(frozen=True)
class Training:
    """The section of a report that only a large model's step has; times in ps, shares 0 to 1.

    ``stages`` holds a device of each rank of the pipeline. ``mfu`` is the share of the devices'
    peak that the products of the model alone would need, ``hfu`` that of all products made;
    ``tokens_per_s`` are words trained on by second, on all devices.
    """

    plan: LargeStep = field(repr=False, compare=False)
    stages: tuple[StageUse, ...]
    mfu: float
    hfu: float
    tokens_per_s: float

    @property
    def terms(self) -> dict[str, float]:
        """Seconds by TERMS, the mean over the ranks; they add up to the step time."""
        count = len(self.stages)
        return {term: sum(one.terms[term] for one in self.stages) / count / 1e12 for term in TERMS}

    def to_json(self) -> dict[str, Any]:
        """What ``simdev simulate --json`` prints under ``training``."""
        plan, p = self.plan, self.plan.parallelism
        return {
            "model": plan.model.name,
            "devices": p.devices,
            "samples": p.samples,
            "tokens_per_s": self.tokens_per_s,
            "mfu": self.mfu,
            "hfu": self.hfu,
            "terms_s": self.terms,
            "stages": [_stage_json(stage) for stage in self.stages],
            "symmetry": {
                "collapsed": plan.collapsed,
                "copies": plan.copies,
                "tasks": len(plan.role),
                "tasks_of_all": plan.counted,
                "why_not": plan.why,
            },
        }


def training_of(trace: Trace, plan: LargeStep) -> Training:
    """The section of a large model's step."""
    p, seconds = plan.parallelism, trace.end_ps / 1e12
    again = "full" if p.recompute == "full" else _core(plan)
    once, twice = plan.model.flops(p.samples), plan.model.flops_again(p.samples, again)
    stages = tuple(_stage(trace, plan, rank, device) for rank, device in enumerate(plan.first))
    if not seconds:
        return Training(plan, stages, 0.0, 0.0, 0.0)
    most = plan.peak_flops * seconds
    return Training(
        plan, stages, once / most, (once + twice) / most, p.samples * plan.model.length / seconds
    )


def _core(plan: LargeStep) -> str:
    return (
        "selective"
        if plan.parallelism.recompute == "selective" and not plan.parallelism.flash
        else "none"
    )


def tiles(trace: Trace, plan: LargeStep, rank: int) -> tuple[Ints, Ints, Ints]:
    """The step of a rank of the pipeline cut into spans: what each goes to (TERMS), its start and
    its finish in ps.

    They tile the step. Neighbours that go to the same thing are one.
    """
    tasks, device = trace.task_graph.tasks, plan.first[rank]
    rows = np.flatnonzero((tasks.source == device) | (tasks.destination == device))
    role, start, finish = plan.role[rows], trace.start[rows], trace.finish[rows] + tasks.lag[rows]
    times = np.unique(np.concatenate((start, finish, [0, trace.end_ps])))
    label = np.full(len(times) - 1, TERMS.index(BUBBLE), np.int64)
    for one in (*EXPOSED[::-1], *range(COMPUTES)):
        own = role == one
        change = np.zeros(len(times), np.int64)
        np.add.at(change, np.searchsorted(times, start[own]), 1)
        np.add.at(change, np.searchsorted(times, finish[own]), -1)
        label[np.cumsum(change)[:-1] > 0] = one
    first = (
        np.flatnonzero(np.concatenate(([True], label[1:] != label[:-1])))
        if len(label)
        else np.zeros(0, np.int64)
    )
    return (
        label[first],
        times[first],
        np.append(times[first[1:]], times[-1:]) if len(first) else times[:0],
    )


def _stage(trace: Trace, plan: LargeStep, rank: int, device: int) -> StageUse:
    label, start, finish = tiles(trace, plan, rank)
    totals = np.zeros(len(TERMS), np.int64)
    np.add.at(totals, label, finish - start)
    borders = np.cumsum([0, *plan.stage_layers]).tolist()
    homes = [stage for stage, home in enumerate(plan.schedule.rank_of) if home == rank]
    layers = tuple(tuple(range(borders[stage], borders[stage + 1])) for stage in homes)
    terms = dict(zip(TERMS, totals.tolist(), strict=True))
    return StageUse(trace.task_graph.devices[device], layers, terms, trace.memory_of(device))


def _stage_json(stage: StageUse) -> dict[str, Any]:
    return {
        "device": stage.device,
        "layers": [[one[0], one[-1]] for one in stage.layers],
        "terms_s": {term: ps / 1e12 for term, ps in stage.terms.items()},
        "peak_bytes": stage.memory.peak,
        "capacity_bytes": stage.memory.capacity,
        "peak_by_kind": {kind: size for kind, size in stage.memory.at_peak.items() if size},
    }


def training_lines(training: Training) -> Iterator[str]:
    """What stands above the step time, for a person at a terminal."""
    plan, p = training.plan, training.plan.parallelism
    yield (
        f"{plan.model.name}: dp {p.dp} x tp {p.tp} x pp {p.pp}" + f" x ep {p.ep}" * (p.ep > 1)
        + f", {p.microbatches} microbatches of {p.microbatch} ({p.samples:,} samples a step)"
        + f", {plan.schedule.name}"
    )  # fmt: skip
    yield f"MFU {training.mfu:.1%}, HFU {training.hfu:.1%}; {training.tokens_per_s:,.0f} tokens/s"


def training_tables(training: Training) -> Iterator[Table]:
    """Time and memory of each rank of the pipeline."""
    yield _time_table(training)
    yield _memory_table(training)


def _time_table(training: Training) -> Table:
    used = [term for term in TERMS if any(stage.terms[term] for stage in training.stages)]
    body = tuple(
        (stage.device, _layers(stage), *(format_seconds(stage.terms[term] / 1e12) for term in used))
        for stage in training.stages[:ROWS_SHOWN]
    )
    head = ("<device", "<layers", *used)
    title = "Time by rank: computing, exposed communication, and the bubble"
    return Table(title, head, body, max(0, len(training.stages) - ROWS_SHOWN))


def _layers(stage: StageUse) -> str:
    return ", ".join(f"{one[0]}-{one[-1]}" for one in stage.layers)


def _memory_table(training: Training) -> Table:
    stages = training.stages
    kinds = [
        kind for kind in stages[0].memory.at_peak if any(one.memory.at_peak[kind] for one in stages)
    ]
    body = tuple(
        (
            stage.device, format_bytes(stage.memory.peak),
            "unlimited" if stage.memory.capacity is None else format_bytes(stage.memory.capacity),
            *(format_bytes(stage.memory.at_peak[kind]) for kind in kinds),
        )
        for stage in stages[:ROWS_SHOWN]
    )  # fmt: skip
    head = ("<device", "peak", "capacity", *kinds)
    return Table("Memory at the peak of each rank", head, body, max(0, len(stages) - ROWS_SHOWN))


def training_notes(training: Training) -> Iterator[str]:
    """What has to be known to read the figures."""
    plan, count = training.plan, len(training.plan.role)
    if plan.collapsed and plan.copies > 1:
        yield (
            f"One device stands for the {plan.copies} of its rank of the pipeline, "
            "which are alike: exact, with "
            f"{count:,} tasks instead of {plan.counted:,}."
        )
    elif plan.why:
        yield f"All {plan.counted:,} tasks were simulated: {plan.why}."
    else:
        yield f"{count:,} tasks were simulated."
    if plan.parallelism.recompute == "selective" and plan.parallelism.flash:
        yield (
            'recompute "selective" changes nothing with flash attention, which never keeps '
            "its scores."
        )
    yield (
        "Times of layers are the datasheet's roofline with its stated efficiencies; "
        "collectives are modelled."
    )


__all__ = [
    "BUBBLE",
    "EXPOSED",
    "TERMS",
    "StageUse",
    "Training",
    "tiles",
    "training_lines",
    "training_notes",
    "training_of",
    "training_tables",
]
