"""Steps of large models: data, tensor, sequence, expert, pipeline parallelism, ZeRO, offload.

A step is built as rows of numpy columns, one for each task of a rank of the pipeline; ``expand``
turns them into the tasks of all devices, or, where all replicas and parts of tp cost the same, into
those of one device for each rank. ``execution.scenario`` and ``simdev plan`` call ``lower_hybrid``.
A degree or setting is a field of ``nouns.strategy.parallelism``; templates.py, actions.py and
buffers.py write its rows, and the bounds of plans (``search.plan.bounds`` and ``pieces``) must stay
below its cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import accumulate, pairwise

import numpy as np

from ...costs import RUNGS, CostModel
from ...costs.collectives import CollectiveModel
from ...costs.roofline import ROOFLINE_ERROR, no_peak, peak_flops, peak_name
from ...ground.errors import InputError, refuse
from ...ground.units import PS_PER_SECOND
from ...nouns.models.large import Shard, Transformer, all_buckets, shard_of
from ...nouns.models.large.precision import FORMATS
from ...nouns.models.large.roles import LargeStep
from ...nouns.models.large.shard import classifier_kept, classifier_saved, embedding_saved
from ...nouns.models.large.software import DISPATCHERS, dispatcher_of
from ...nouns.schedules import (
    FORWARD,
    INPUT,
    SEARCHED,
    WEIGHT,
    Schedule,
    StageTimes,
    searched_schedule,
)
from ...nouns.strategy.parallelism import Parallelism
from ...nouns.taskgraph import MAX_TASKS, Ints, TaskGraph
from ..pipeline import schedule_of
from .actions import add_actions, add_sends, add_tail, join_copies, join_pairs, tie
from .buffers import add_activations, add_parameters
from .dispatch import add_dispatches
from .durations import Durations, Timings
from .expand import expand
from .program import NONE, QUEUES, Program, Template
from .templates import template_of

# Schedules that are made from the times of the stages: ZB-1p and ZB-2p of a large model.


def searched(program: Program) -> Schedule:
    """The schedule of a program without actions yet; one of SEARCHED is made from the times of its
    stages.

    These include computation, the exchanges of tp and of experts, and the message to the next
    stage, but not gathering, reducing and offloading beside them. Raises InputError.
    """
    p, stages = program.parallelism, range(program.schedule.stages)
    if program.schedule.name not in SEARCHED or p.table is not None:
        return program.schedule
    templates = {
        kind: [template_of(program, (0, stage, kind)) for stage in stages]
        for kind in (FORWARD, INPUT, WEIGHT)
    }
    forward, backward, weight = (
        tuple(_seconds(template, template.main.tolist()) for template in column)
        for column in templates.values()
    )
    sends = (template for template in templates[FORWARD] if template.transfer != NONE)
    comm = tuple(_seconds(template, [template.transfer]) for template in sends)
    saved, kept = zip(*(_saved(program, stage) for stage in stages), strict=True)
    times = StageTimes(forward, backward, weight, comm, saved, kept, (0,) * len(stages))
    return searched_schedule(p.schedule, times, p.microbatches)


def _seconds(template: Template, rows: list[int]) -> Fraction:
    """The seconds of rows one after the other; where groups differ, of the slowest group."""
    durations = template.durations
    numbers = template.table[rows, 2].tolist()
    ps = sum(int(durations.columns[n].max()) + int(durations.lags[n].max()) for n in numbers)
    return Fraction(ps, PS_PER_SECOND)


def _saved(program: Program, stage: int) -> tuple[int, int]:
    """The bytes that a microbatch keeps on a stage from its forward on, and those that it keeps
    between the input's and the weights' gradient: all of the layers, and ``classifier_kept``.
    """
    shard = program.shard
    size = sum(program.footprint(layer).saved for layer in program.stage_layers[stage])
    size += embedding_saved(shard) * (stage == 0)
    if stage < program.schedule.stages - 1:
        return size, size
    return size + classifier_saved(shard), size + classifier_kept(shard)


__all__ = ["Timings", "even_layers", "lower_hybrid"]


def lower_hybrid(
    model: Transformer,
    parallelism: Parallelism,
    collectives: CollectiveModel,
    costs: CostModel,
    symmetry: bool = True,
    timings: Timings | None = None,
) -> tuple[TaskGraph, LargeStep]:
    """The task graph of a step on ``collectives.cluster``, and the description of its tasks.

    With ``symmetry`` one device represents all devices of its pipeline rank, where all devices and
    groups cost the same: then no copy can run differently, because groups share only tasks for
    which all of them wait. The times of layers come from ``costs``, by ops that resemble their
    kernels, or without profiles from datasheets. Steps on a cluster with the same ``collectives``
    and ``costs`` may share ``timings``. Raises InputError.
    """
    # Checked before building: every layer has at least a forward and a backward.
    _require_size(2 * model.layers * parallelism.microbatches)
    program = _program(model, parallelism, timings or Timings(collectives, costs))
    durations, schedule, columns = program.durations, program.schedule, program.columns()
    grid, why = durations.grid, _difference(durations)
    # Counted for all devices whichever way it is lowered: reports compare the two.
    collapsed = symmetry and not why
    counted = int(np.array([grid.count(queue.groups) for queue in QUEUES])[columns["queue"]].sum())
    _require_size(program.rows if collapsed else counted)
    used = grid.collapsed if collapsed else grid
    task_graph, row = expand(program, used, collectives.cluster)
    microbatches = np.array([action.microbatch for action in schedule.actions] + [NONE], np.int32)
    return task_graph, LargeStep(
        model,
        parallelism,
        schedule,
        tuple(map(len, program.stage_layers)),
        columns["role"].astype(np.int8)[row],
        microbatches[columns["action"]][row],
        tuple(rank * used.copies for rank in range(schedule.ranks)),
        grid.copies,
        collapsed,
        why,
        counted,
        *_peak(durations, FORMATS[model.precision].dtype),
        "none" if (host := durations.host(0)) is None else host.mode,
        *_sources(durations, columns["duration"]),
        _borrowed(durations, model),
        " and ".join(_kinds(durations)),
        columns["duration"][row],
        durations.parts,
        durations.tabled,
    )


def _program(model: Transformer, parallelism: Parallelism, timings: Timings) -> Program:
    """All rows, edges and buffers of a step."""
    schedule = schedule_of(parallelism, large=True)
    counts = parallelism.stage_layers or even_layers(model.layers, schedule.stages)
    if len(counts) != schedule.stages:
        raise InputError(
            f"stage_layers: tell of {len(counts)} stages, the schedule has {schedule.stages}"
        )
    if not counts[0] and any(INPUT in kinds for kinds in schedule.kinds):
        raise InputError("stage_layers[0]: the embedding alone has no backward to be split")
    layers = tuple(tuple(range(a, b)) for a, b in pairwise(accumulate(counts, initial=0)))
    if parallelism.zero == 3 and parallelism.pp > 1 and not parallelism.reshard_after_forward:
        reason = "ranks of a pipeline keep what they gathered for all microbatches: zero 2"
        raise InputError(f"reshard_after_forward: {reason}")
    shard = shard_of(model, parallelism)
    _require_size(2 * all_buckets(shard, parallelism) * parallelism.microbatches, "bucket")
    durations = Durations(parallelism, timings, any(model.host_time.values()))
    refuse(_device_problems(durations, shard))
    program = Program(shard, parallelism, schedule, layers, durations)
    program.schedule = searched(program)
    for rank in range(schedule.ranks):
        add_actions(program, rank)
        add_tail(program, rank)
        add_parameters(program, rank)
    tie(program)
    join_copies(program)
    add_sends(program)
    for stage in range(schedule.stages):
        add_activations(program, stage)
    join_pairs(program)
    add_dispatches(program)
    return program


def _device_problems(durations: Durations, shard: Shard) -> Iterator[str]:
    """Problems of devices that lack the products, or the way to send tokens, of the model."""
    model, p = shard.model, durations.parallelism
    sheets = [durations.specs[kind] for kind in _kinds(durations)]
    if model.is_narrow:
        # A device without such products would compute them as fast as it does wider ones.
        dtype = FORMATS[model.precision].dtype
        yield from (no_peak(s, dtype) for s in sheets if dtype not in s.flops)
    needs = DISPATCHERS[dispatcher_of(model.runs_on, p)].needs if p.ep > 1 else ""
    for sheet in sheets if needs else ():
        # A datasheet's name begins with the maker's, where it has one.
        if needs not in sheet.flops or sheet.name.startswith("AMD "):
            reason = f'is for GPUs of NVIDIA with {needs}, not for "{sheet.kind}"'
            yield f"token_dispatcher: {dispatcher_of(model.runs_on, p)} {reason}"


def even_layers(layers: int, stages: int) -> tuple[int, ...]:
    """The number of layers of each stage; a remainder goes to the stages in the middle, for the
    outer ones have the embedding and the classifier.

    With one more stage than layers, the last stage has only the classifier; with two more, the
    first also has only the embedding, as in Megatron-LM
    (``account_for_embedding_in_pipeline_split`` and ``account_for_loss_in_pipeline_split``; 126
    layers of Llama 3 405B on 128 stages). Raises InputError where another stage would have none.
    """
    alone = stages - layers
    if layers and 0 < alone <= 2:
        return *[0] * (alone - 1), *[1] * layers, 0
    each, more = divmod(layers, stages)
    if not each:
        raise InputError(
            f"pp: {stages} stages for {layers} layers: stage {layers} would be without op"
        )
    inner_first = np.argsort(np.abs(np.arange(stages) - (stages - 1) / 2), kind="stable")
    counts = np.full(stages, each)
    counts[inner_first[:more]] += 1
    return tuple(counts.tolist())


def _require_size(tasks: int, field: str = "microbatches") -> None:
    if tasks > MAX_TASKS:
        raise InputError(f"{field}: the step lowers to more than {MAX_TASKS:,} tasks")


def _peak(durations: Durations, dtype: str) -> tuple[float, str]:
    """The FLOP/s of all devices together in a dtype, by their datasheets, and the names of these
    peaks.
    """
    kinds = [(durations.specs[kind], count) for kind, count in _kinds(durations).items()]
    total = sum(float(peak_flops(spec, dtype)) * count for spec, count in kinds)
    names = dict.fromkeys(peak_name(spec, dtype) or dtype for spec, _ in kinds)
    return total, " and ".join(names)


def _borrowed(durations: Durations, model: Transformer) -> str:
    """A remark on narrow products whose efficiency is known in other dtypes alone; "" for none."""
    dtype = FORMATS[model.precision].dtype
    kinds = (durations.specs[kind] for kind in _kinds(durations) if model.is_narrow)
    others = {spec.kind: spec.other_dtypes("gemm", dtype) for spec in kinds}
    known = [
        f"of {kind} that of {' and '.join(names)} is" for kind, names in others.items() if names
    ]
    if not known:
        return ""
    reached = f"Products in {model.precision} reach the class default of the {dtype} peak"
    return f"{reached}: their efficiency is not known, {', '.join(known)}."


def _kinds(durations: Durations) -> Counter[str]:
    """The number of computing devices of each kind."""
    devices = durations.cluster.devices
    return Counter(devices[d].kind for ranks in durations.grid.devices for d in ranks)


def _sources(durations: Durations, numbers: Ints) -> tuple[dict[str, float], float]:
    """The share of the computing time by rung, and its expected error."""
    totals, error = dict.fromkeys(RUNGS, 0.0), 0.0
    counts = np.bincount(numbers, minlength=len(durations.columns))
    for number, parts in durations.parts.items():
        for part in parts:
            seconds = part.seconds * int(counts[number])
            totals[part.rung] += seconds
            error += seconds * (ROOFLINE_ERROR if part.rel_err is None else part.rel_err)
    total = sum(totals.values()) or 1.0
    return {rung: time / total for rung, time in totals.items() if time}, error / total


def _difference(durations: Durations) -> str:
    """The reason why the copies of a rank differ; "" where they do not."""
    devices = durations.cluster.devices
    for rank, copies in enumerate(durations.grid.devices):
        if len({(devices[d].kind, devices[d].memory, devices[d].speed) for d in copies}) > 1:
            return f"the devices of rank {rank} of the pipeline are of several kinds or speeds"
    if not durations.alike:
        return "some groups of devices communicate over slower links than others"
    return ""
