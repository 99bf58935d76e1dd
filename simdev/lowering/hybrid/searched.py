"""Schedules that are made from the times of the stages: ZB-1p and ZB-2p of a large model."""

from __future__ import annotations

from fractions import Fraction

from ...ground.units import PS_PER_SECOND
from ...nouns.models.large import footprint
from ...nouns.models.large.shard import classifier_kept, classifier_saved, embedding_saved
from ...nouns.schedules import (
    FORWARD,
    INPUT,
    SEARCHED,
    WEIGHT,
    Schedule,
    StageTimes,
    searched_schedule,
)
from .program import NONE, Program, Template
from .templates import template_of


def searched(program: Program) -> Schedule:
    """The schedule of a program that has none of its actions yet, by the times of its stages.

    They are what computes and what tp and the experts exchange, and how long a message takes to the
    next stage; what is gathered, reduced or offloaded beside them is not counted. Raises
    InputError.
    """
    p, stages = program.parallelism, range(program.schedule.stages)
    if program.schedule.name not in SEARCHED or p.table is not None:
        return program.schedule
    templates = {
        kind: [template_of(program, stage, kind) for stage in stages]
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
    """What some rows take one after the other, where the groups differ the slowest."""
    durations = template.durations
    numbers = template.table[rows, 2].tolist()
    ps = sum(int(durations.columns[n].max()) + int(durations.lags[n].max()) for n in numbers)
    return Fraction(ps, PS_PER_SECOND)


def _saved(program: Program, stage: int) -> tuple[int, int]:
    """Bytes that a microbatch leaves on a stage from its forward on, and after the input's
    gradient until that of the weights: of the layers all, of the classifier what it made since.
    """
    shard = program.shard
    size = sum(footprint(shard, layer).saved for layer in program.stage_layers[stage])
    size += embedding_saved(shard) * (stage == 0)
    if stage < program.schedule.stages - 1:
        return size, size
    return size + classifier_saved(shard), size + classifier_kept(shard)
