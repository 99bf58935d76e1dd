"""What a large model's step means: its time by what it is spent on, the use of the devices' peak, memory by stage.

The time of each rank of the pipeline is tiled: what it computes, then what was in flight while it computed nothing
(collectives of tp, of experts, of the replicas, copies to the host, activations on their way to it, the first of these
that applies), and the rest, the bubble. MFU is the share of the devices' peak that the products of the model alone
would need; HFU counts what is computed twice, too (Korthikanti et al. 2022, section 5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..models.large.plan import COMPUTES, DATA, EXPERT, HOST, PIPELINE, ROLES, TENSOR, Plan
from ..profile import DeviceSpec
from ..profile.roofline import peak_flops
from ..taskgraph import Ints
from ..trace import DeviceMemory, Trace
from ..units import format_bytes, format_seconds
from .table import Table, table_text

BUBBLE = "bubble"
TERMS = (*ROLES, BUBBLE)
EXPOSED = (TENSOR, EXPERT, DATA, HOST, PIPELINE)
"""What may be in flight while nothing is computed, in the order in which it is told."""
ROWS_SHOWN = 32


@dataclass(frozen=True, slots=True)
class StageUse:
    """A rank of the pipeline: its device, its layers by stage, its time in ps by TERMS, and its memory."""

    device: str
    layers: tuple[tuple[int, ...], ...]
    terms: Mapping[str, int]
    memory: DeviceMemory

    @property
    def exposed_ps(self) -> int:
        """Communication that no computing hides."""
        return sum(self.terms[ROLES[role]] for role in EXPOSED)


@dataclass(frozen=True)
class TrainingReport:
    """The analysis of a training step; times in ps, rates by second, shares 0 to 1."""

    trace: Trace = field(repr=False, compare=False)
    plan: Plan = field(repr=False, compare=False)
    step_ps: int
    stages: tuple[StageUse, ...]
    mfu: float
    hfu: float

    @property
    def seconds(self) -> float:
        """The step time."""
        return self.step_ps / 1e12

    @property
    def feasible(self) -> bool:
        """Whether every device stays within its memory."""
        return all(stage.memory.overflow is None for stage in self.stages)

    @property
    def memory_excess(self) -> int:
        """The largest excess over a capacity in bytes, 0 where everything fits."""
        return max(0, *(stage.memory.excess or 0 for stage in self.stages))

    @property
    def bubble(self) -> float:
        """The share of the time of all ranks in which nothing is computed, sent or received."""
        return self._share(sum(stage.terms[BUBBLE] for stage in self.stages))

    @property
    def exposed(self) -> float:
        """The share of the time of all ranks that goes to communication which nothing hides."""
        return self._share(sum(stage.exposed_ps for stage in self.stages))

    @property
    def terms(self) -> dict[str, float]:
        """Seconds by TERMS, the mean over the ranks; they add up to the step time."""
        return {term: sum(one.terms[term] for one in self.stages) / len(self.stages) / 1e12 for term in TERMS}

    def _share(self, ps: int) -> float:
        return ps / (self.step_ps * len(self.stages)) if self.step_ps else 0.0

    def to_json(self) -> dict[str, Any]:
        """What ``simdev simulate --json`` prints, ready for ``json.dumps``."""
        plan, p = self.plan, self.plan.parallelism
        return {
            "step_time_s": self.seconds,
            "step_time_ps": self.step_ps,
            "feasible": self.feasible,
            "memory_excess_bytes": self.memory_excess,
            "engine": self.trace.engine,
            "model": plan.model.name,
            "devices": p.devices,
            "samples": p.samples,
            "tokens_per_s": self.tokens_per_second,
            "mfu": self.mfu,
            "hfu": self.hfu,
            "bubble": self.bubble,
            "exposed_communication": self.exposed,
            "terms_s": self.terms,
            "stages": [_stage_json(stage) for stage in self.stages],
            "tasks": len(self.trace.start),
            "symmetry": {
                "collapsed": plan.collapsed,
                "copies": plan.copies,
                "tasks_of_all": plan.counted,
                "why_not": plan.why,
            },
            "costs": {"roofline": 1.0},
        }

    @property
    def tokens_per_second(self) -> float:
        """Words trained on by second, on all devices."""
        return self.plan.parallelism.samples * self.plan.model.length / self.seconds if self.step_ps else 0.0

    def __str__(self) -> str:
        return training_text(self)

    def __repr__(self) -> str:
        fits = "feasible" if self.feasible else f"{self.memory_excess} bytes over"
        return f"TrainingReport({self.seconds:.9g} s, {fits}, MFU {self.mfu:.1%}, {len(self.stages)} ranks)"


def analyze_training(trace: Trace, plan: Plan, specs: Mapping[str, DeviceSpec]) -> TrainingReport:
    """The report of a step's trace; ``specs`` are datasheets by kind of device."""
    peak = sum(float(peak_flops(specs[kind], "bfloat16")) * count for kind, count in plan.kinds.items())
    samples, p = plan.parallelism.samples, plan.parallelism
    per_step = peak * trace.step_ps / 1e12
    own, again = (
        plan.model.flops(samples),
        plan.model.flops_again(samples, "full" if p.recompute == "full" else _core(plan)),
    )
    stages = tuple(_stage(trace, plan, rank, device) for rank, device in enumerate(plan.first))
    share = (own / per_step, (own + again) / per_step) if per_step else (0.0, 0.0)
    return TrainingReport(trace, plan, trace.step_ps, stages, *share)


def _core(plan: Plan) -> str:
    return "selective" if plan.parallelism.recompute == "selective" and not plan.parallelism.flash else "none"


def tiles(trace: Trace, plan: Plan, rank: int) -> tuple[Ints, Ints, Ints]:
    """The step of a rank of the pipeline cut into spans: what each goes to (TERMS), its start and its finish in ps.

    They tile the step. Neighbours that go to the same thing are one.
    """
    tasks, device = trace.task_graph.tasks, plan.first[rank]
    here = (tasks.source == device) | (tasks.destination == device)
    # A microbatch's tensor sent to another rank holds nobody up here; for the gradient of a tied table both wait.
    sent = (plan.role == PIPELINE) & (tasks.destination != device) & (plan.microbatch >= 0)
    rows = np.flatnonzero(here & ~sent)
    role, start, finish = plan.role[rows], trace.start[rows], trace.finish[rows] + tasks.lag[rows]
    times = np.unique(np.concatenate((start, finish, [0, trace.step_ps])))
    label = np.full(len(times) - 1, TERMS.index(BUBBLE), np.int64)
    for one in (*EXPOSED[::-1], *range(COMPUTES)):
        own = role == one
        change = np.zeros(len(times), np.int64)
        np.add.at(change, np.searchsorted(times, start[own]), 1)
        np.add.at(change, np.searchsorted(times, finish[own]), -1)
        label[np.cumsum(change)[:-1] > 0] = one
    first = np.flatnonzero(np.concatenate(([True], label[1:] != label[:-1]))) if len(label) else np.zeros(0, np.int64)
    return label[first], times[first], np.append(times[first[1:]], times[-1:]) if len(first) else times[:0]


def _stage(trace: Trace, plan: Plan, rank: int, device: int) -> StageUse:
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


def training_text(report: TrainingReport) -> str:
    """The report for a person at a terminal."""
    parts = [_headline(report), _verdict(report), table_text(_time_table(report)), table_text(_memory_table(report))]
    return "\n\n".join([*parts, _notes(report)])


def _headline(report: TrainingReport) -> str:
    plan, p = report.plan, report.plan.parallelism
    lines = [
        f"{plan.model.name}: dp {p.dp} x tp {p.tp} x pp {p.pp}" + f" x ep {p.ep}" * (p.ep > 1)
        + f", {p.microbatches} microbatches of {p.microbatch} ({p.samples:,} samples a step), {plan.schedule.name}",
        f"Step time {format_seconds(report.seconds)}  ({report.step_ps:,} ps, engine {report.trace.engine})",
        f"MFU {report.mfu:.1%}, HFU {report.hfu:.1%}; {report.tokens_per_second:,.0f} tokens/s",
        f"Bubble {report.bubble:.1%}, exposed communication {report.exposed:.1%} of the time of all ranks",
    ]  # fmt: skip
    return "\n".join(lines)


def _verdict(report: TrainingReport) -> str:
    over = [stage for stage in report.stages if stage.memory.overflow is not None]
    if not over:
        limited = any(stage.memory.capacity is not None for stage in report.stages)
        return "FITS: every device stays within its memory." if limited else "FITS: no device has a memory limit."
    worst = max(over, key=lambda stage: stage.memory.excess or 0)
    return (
        f"DOES NOT FIT: {len(over)} of {len(report.stages)} ranks of the pipeline exceed their memory; {worst.device} "
        f"by {format_bytes(worst.memory.excess or 0)}."
    )


def _time_table(report: TrainingReport) -> Table:
    used = [term for term in TERMS if any(stage.terms[term] for stage in report.stages)]
    body = tuple(
        (stage.device, _layers(stage), *(format_seconds(stage.terms[term] / 1e12) for term in used))
        for stage in report.stages[:ROWS_SHOWN]
    )
    head = ("<device", "<layers", *used)
    title = "Time by rank: computing, what nothing hides of communication, and the bubble"
    return Table(title, head, body, max(0, len(report.stages) - ROWS_SHOWN))


def _layers(stage: StageUse) -> str:
    return ", ".join(f"{one[0]}-{one[-1]}" for one in stage.layers)


def _memory_table(report: TrainingReport) -> Table:
    kinds = [kind for kind in report.stages[0].memory.at_peak if any(s.memory.at_peak[kind] for s in report.stages)]
    body = tuple(
        (
            stage.device, format_bytes(stage.memory.peak),
            "unlimited" if stage.memory.capacity is None else format_bytes(stage.memory.capacity),
            *(format_bytes(stage.memory.at_peak[kind]) for kind in kinds),
        )
        for stage in report.stages[:ROWS_SHOWN]
    )  # fmt: skip
    head = ("<device", "peak", "capacity", *kinds)
    return Table("Memory at the peak of each rank", head, body, max(0, len(report.stages) - ROWS_SHOWN))


def _notes(report: TrainingReport) -> str:
    plan, count = report.plan, len(report.trace.start)
    if plan.collapsed and plan.copies > 1:
        told = (
            f"One device stands for the {plan.copies} of its rank of the pipeline, which are alike: exact, with "
            f"{count:,} tasks instead of {plan.counted:,}."
        )
    elif plan.why:
        told = f"All {plan.counted:,} tasks were simulated: {plan.why}."
    else:
        told = f"{count:,} tasks were simulated."
    if plan.parallelism.recompute == "selective" and plan.parallelism.flash:
        told += '\nrecompute "selective" changes nothing with flash attention, which never keeps its scores.'
    return (
        told + "\nTimes of layers are the datasheet's roofline with its stated efficiencies; collectives are modelled."
    )


__all__ = ["BUBBLE", "EXPOSED", "TERMS", "StageUse", "TrainingReport", "analyze_training", "tiles", "training_text"]
