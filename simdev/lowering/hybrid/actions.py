"""The rows of the schedule's actions, rank by rank, and what they wait for on other ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...schedules import FORWARD
from .program import NONE, Placed, Program, Template
from .templates import template_of


def add_actions(program: Program, rank: int) -> None:
    """The rows of a rank's actions: main ones in a chain."""
    schedule, placed = program.schedule, program.placed
    actions = [action for action in schedule.rows[rank] if action is not None]
    kinds = dict.fromkeys((action.stage, action.kind) for action in actions)
    for stage, kind in kinds:
        base = np.zeros(schedule.microbatches, np.int64)
        placed[stage, kind] = Placed(template_of(program, stage, kind), base)
    templates = [placed[action.stage, action.kind].template for action in actions]
    lengths = np.array([len(template.rows) for template in templates], np.int64)
    bases = (program.rows + np.cumsum(lengths) - lengths).tolist()
    for action, base in zip(actions, bases, strict=True):
        placed[action.stage, action.kind].base[action.microbatch] = base
    # A device does one thing at a time, so its main rows form a chain, whatever the actions need.
    main = np.concatenate([t.main + base for t, base in zip(templates, bases, strict=True)])
    program.edge(main[:-1], main[1:])
    program.last.append(int(main[-1]))
    for key in kinds:
        for source, target in placed[key].template.edges:
            program.edge(placed[key].base + source, placed[key].base + target)
    _gate(program, templates, bases)
    before = sum(action is not None for row in schedule.rows[:rank] for action in row)
    numbers = np.arange(before, before + len(actions))
    table = np.concatenate([template.table for template in templates])
    program.add_table(table, rank, np.repeat(numbers, lengths))


def _gate(program: Program, templates: Sequence[Template], bases: Sequence[int]) -> None:
    """What a visit fetches ahead waits for the visit that stands ``prefetch`` + 1 before it."""
    p = program.parallelism
    if p.zero < 3 and "activations" not in p.offload:
        return
    visits = [
        (visit, base)
        for template, base in zip(templates, bases, strict=True)
        for visit in template.visits.values()
    ]
    program.edges(
        (before.last + base_before, row + base)
        for (before, base_before), (visit, base) in zip(
            visits, visits[1 + p.prefetch :], strict=False
        )
        for row in (*visit.gathers, visit.fetch)
        if row != NONE
    )


def add_sends(program: Program, stage: int) -> None:
    """What other ranks wait for: activations forward, gradients back."""
    for kind, other in ((FORWARD, stage + 1), (program.backward(stage), stage - 1)):
        sender = program.placed[stage, kind]
        if sender.template.transfer != NONE:
            reader = program.placed[other, FORWARD if kind == FORWARD else program.backward(other)]
            transfer = sender.base + sender.template.transfer
            # Not the last row that computes: tp's sum behind it must be there before it is sent.
            program.edge(sender.base + sender.template.main[-1], transfer)
            program.edge(transfer, reader.base + reader.template.main[0])
