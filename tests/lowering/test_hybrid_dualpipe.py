"""DualPipe and DualPipeV of large models: the published bubble and memory, what pairs hide, and the
sums of two copies.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from hybrid_steps import DENSE, EXPERTS, SMALL, boxes, lowered, report_of
from simdev.execution.check import check
from simdev.execution.engine import simulate
from simdev.ground.errors import InputError
from simdev.lowering.pipeline import pipeline_task_graph
from simdev.nouns.models.large import footprint, shard_of
from simdev.nouns.models.large.roles import DATA, EXPERT, PIPELINE
from simdev.nouns.schedules import dualpipe, stage_times
from simdev.nouns.strategy.parallelism import Parallelism
from simdev.nouns.taskgraph import BUFFER_KINDS
from simdev.report.measures.pipeline import pipeline_use

# Of ends that are next to nothing, so that all stages take equally long.
EQUAL = replace(DENSE, name="equal", vocabulary=1, positions=False, tied=False, hidden=4096)
BOTH = ("DualPipe", "DualPipeV")
PLANS = [
    {"dp": 2, "pp": 2, "zero": 1},
    {"tp": 2, "pp": 4, "zero": 0, "microbatches": 10, "overlap": False},
    {"dp": 4, "pp": 2, "ep": 2, "recompute": "full", "microbatch": 2},
    {"dp": 2, "tp": 2, "pp": 2, "ep": 2, "sequence_parallel": False, "scatter_gather": True},
    {"dp": 2, "pp": 4, "ep": 2, "recompute": "selective", "recompute_modules": ["moe"]},
    {"dp": 2, "pp": 2, "offload": ["activations", "optimizer"], "host_bandwidth": "20 GB/s"},
]

CASES = [
    case if place in (0, 4, 9) else pytest.param(*case, marks=pytest.mark.slow)
    for place, case in enumerate(product(BOTH, PLANS))
]


def _plan(schedule: str, **given: object) -> Parallelism:
    return Parallelism(**{"schedule": schedule, "microbatches": 2 * given["pp"], **given})


@pytest.mark.parametrize(("schedule", "given"), CASES)
def test_one_device_stands_for_all_that_are_alike(schedule: str, given: dict[str, object]) -> None:
    """Collapsed or not: the same step, parts of its time and peaks, valid by the checker; the same
    by either engine.
    """
    model, p = EXPERTS if "ep" in given else DENSE, _plan(schedule, **given)
    one, every = report_of(model, p), report_of(model, p, False)
    assert one.training.large.collapsed > every.training.large.collapsed
    assert one.step_ps == every.step_ps
    for short, long in zip(one.training.stages, every.training.stages, strict=True):
        assert (short.layers, dict(short.terms)) == (long.layers, dict(long.terms))
        assert short.memory.peak == long.memory.peak
        assert sum(short.terms.values()) == one.step_ps
        assert len(short.layers) == 2
    for report in (one, every):
        assert check(report.trace.task_graph, report.trace) == ()
    compiled = simulate(every.trace.task_graph, "compiled")
    assert (compiled.start == every.trace.start).all()


def test_zero_by_bucket_goes_with_one_copy() -> None:
    for zero in (2, 3):
        p = _plan("DualPipeV", dp=2, pp=2, zero=zero)
        one, every = report_of(SMALL, p), report_of(SMALL, p, False)
        assert one.step_ps == every.step_ps
        assert {m.peak for m in one.memories} == {m.peak for m in every.memories}
        assert check(every.trace.task_graph, every.trace) == ()
        with pytest.raises(InputError, match=f"schedule: DualPipe .* ZeRO {zero} does not"):
            lowered(SMALL, replace(p, schedule="DualPipe", microbatches=4))


def _spans(report: object, rank: int) -> dict[str, tuple[int, int]]:
    """By action of a rank when its first task starts and its last one ends, sends left out."""
    trace, large, spans = report.trace, report.training.large, {}
    tasks = trace.task_graph.tasks
    for i in np.flatnonzero((tasks.source == rank) & (large.role != PIPELINE)).tolist():
        name = tasks.name[i].split("/")[0]
        start, finish = spans.get(name, (int(trace.start[i]), 0))
        spans[name] = min(start, int(trace.start[i])), max(finish, int(trace.finish[i]))
    return spans


@pytest.mark.parametrize("half", [1, 2, 3])
def test_the_published_bubble(half: int) -> None:
    """Idle (PP/2 - 1)(F&B + B - 3W), if F took as long as the first half of B (DeepSeek-V3, table
    2); here the idle time of the schedule with the times of stages, of which that is a law.
    """
    p = _plan("DualPipe", pp=2 * half, microbatches=4 * half + 4, microbatch=64)
    report = report_of(replace(EQUAL, layers=12), p, cluster=boxes(2 * half, 1))
    large, trace = report.training.large, report.trace
    length: Counter[str] = Counter()
    for i in np.flatnonzero((trace.task_graph.tasks.source == 0) & (large.role != PIPELINE)):
        length[trace.task_graph.tasks.name[i].split("/")[0]] += int(
            trace.finish[i] - trace.start[i]
        )
    actions = {(a.kind, a.stage): str(a) for a in filter(None, large.schedule.rows[0])}
    forward, whole, weight = (length[actions[kind, 0]] for kind in "FBW")
    sends = (large.role == PIPELINE) & (large.microbatch >= 0)
    latency = int(trace.task_graph.tasks.duration[sends].max())
    times = [Fraction(ps, 10**12) for ps in (forward, whole - weight, weight, latency)]
    schedule = dualpipe(2 * half, p.microbatches)
    # Nothing is exchanged, so a pair takes what both take.
    stages = stage_times(schedule, *times, overlapped=Fraction(forward + whole, 10**12))
    alone = pipeline_use(schedule, simulate(pipeline_task_graph(schedule, stages)))
    idle = max(alone.step_ps - rank.busy_ps for rank in alone.ranks)
    published = (half - 1) * (forward + 2 * whole - 3 * weight)
    assert published <= idle < published + 0.03 * report.step_ps
    for stage, rank in zip(report.training.stages, alone.ranks, strict=True):
        waits = stage.terms["bubble"] + stage.terms["pipeline"]
        assert waits == pytest.approx(alone.step_ps - rank.busy_ps, abs=0.02 * report.step_ps)


@pytest.mark.parametrize("pp", [2, 4])
def test_the_published_memory(pp: int) -> None:
    """Parameters twice, activations of PP + 1 microbatches; states are shared out over both."""
    model = replace(EQUAL, layers=2 * pp)
    reports = [
        report_of(model, _plan(name, dp=2, pp=pp, microbatches=4 * pp))
        for name in ("1F1B", "DualPipe")
    ]
    plain, double = (report.training.stages for report in reports)
    for single, both in zip(plain[1:-1], double[1:-1], strict=True):
        for kind in ("parameters", "gradients"):
            assert both.memory.at_peak[kind] == 2 * single.memory.at_peak[kind]
        assert both.memory.at_peak["optimizer state"] == single.memory.at_peak["optimizer state"]
    saved = 2 * footprint(shard_of(model, Parallelism()), 0).saved
    for rank, stage in enumerate(double):
        kept = stage.memory.at_peak["activations"] + stage.memory.at_peak["received copies"]
        # Of a pair one makes room while the other fills it; what is sent stands beside them.
        assert pp * saved < kept < (pp + 1) * saved + 12 * model.length * model.hidden
        live, most = 0, 0
        spans = _spans(reports[1], rank)
        begins = {(span[0], 1) for name, span in spans.items() if "F" in name}
        ends = {(span[1], -1) for name, span in spans.items() if "B" in name or "W" in name}
        for _, change in sorted(begins | ends):
            live, most = live + change, max(most, live + change)
        assert most == pp + 1


def test_a_pair_hides_what_is_exchanged() -> None:
    """Words go to their experts while the other microbatch computes."""
    model = replace(EXPERTS, name="wide", hidden=2048, expert_inner=2048)
    plans = [
        Parallelism(dp=2, ep=2, pp=2, microbatches=16, microbatch=16, schedule=name)
        for name in ("1F1B", *BOTH)
    ]
    plain, *others = (report_of(model, p) for p in plans)
    exchanged, exposed = _exchanged(plain), plain.training.terms["expert"]
    assert exchanged == exposed
    for report in others:
        assert _exchanged(report) == exchanged
        assert report.training.terms["expert"] < 0.5 * exposed


def _exchanged(report: object) -> float:
    """Seconds a rank, in the mean."""
    durations = report.trace.task_graph.tasks.duration[report.training.large.role == EXPERT]
    return int(durations.sum()) / len(report.training.stages) / 1e12


def test_pairs_begin_and_send_together() -> None:
    p = _plan("DualPipe", dp=2, ep=2, pp=2, microbatches=8)
    task_graph, large = lowered(EXPERTS, p)
    trace, names = simulate(task_graph), list(task_graph.tasks.name)
    for first, last in large.schedule.pairs.items():
        rows = [i for i, name in enumerate(names) if name.startswith((f"{first}/", f"{last}/"))]
        inside = [i for i in rows if large.role[i] != PIPELINE]
        sends = [i for i in rows if large.role[i] == PIPELINE]
        over = max(int(trace.finish[i]) for i in inside)
        assert all(int(trace.start[i]) >= over for i in sends)


@pytest.mark.parametrize("zero", [0, 1])
def test_the_copies_sum_their_gradients(zero: int) -> None:
    """Each rank sends the other what that one updates: half of a share, or with ZeRO 0 all."""
    p = _plan("DualPipe", pp=2, zero=zero)
    task_graph, large = lowered(SMALL, p)
    sent = int(task_graph.tasks.bytes[large.role == DATA].sum())
    parts = 1 + zero
    # Both ranks have all of the model, whose ends' rows are padded to 128.
    parameters = SMALL.parameters() + 2 * (1024 - SMALL.vocabulary) * SMALL.hidden
    assert sent == 2 * parameters // parts * (4 + 2 * zero)
    states = task_graph.buffers.kind == BUFFER_KINDS.index("optimizer state")
    assert set(task_graph.buffers.bytes[states]) == {12 * parameters // parts}


def test_a_tied_table_is_there_once() -> None:
    """Both ends of DualPipe have the embedding and, of the other copy, the classifier."""
    for schedule in BOTH:
        p = _plan(schedule, pp=2)
        task_graph, _ = lowered(DENSE, p)
        buffers = task_graph.buffers
        held = int(buffers.bytes[buffers.kind == BUFFER_KINDS.index("parameters")].sum())
        copies = 2 if schedule == "DualPipe" else 1
        table = (1024 - DENSE.vocabulary) * DENSE.hidden
        assert held == 2 * copies * (DENSE.parameters() + table)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"pp": 3, "microbatches": 6}, "stages: DualPipe needs an even number, got 3"),
        ({"pp": 2, "microbatches": 3}, "an even number of at least 4, got 3"),
        ({"schedule": "DualPipeV", "pp": 2, "microbatches": 3}, "of 2 ranks needs at least 4, got"),
        ({"schedule": "DualPipeV", "pp": 2, "chunks": 3}, "chunks: DualPipeV runs"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        lowered(SMALL, Parallelism(**{"schedule": "DualPipe", "microbatches": 8, **given}))
