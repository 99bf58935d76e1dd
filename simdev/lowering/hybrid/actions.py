"""The rows of the schedule's actions, rank by rank, and what they wait for on other ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...models.large.roles import NO_LAYER
from ...schedules import FORWARD
from .program import ENDS, NONE, Placed, Program, Template
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
    _hold_back(program, templates, bases)
    before = sum(action is not None for row in schedule.rows[:rank] for action in row)
    numbers = np.arange(before, before + len(actions))
    table = np.concatenate([template.table for template in templates])
    program.add_table(table, rank, np.repeat(numbers, lengths))


def _gate(program: Program, templates: Sequence[Template], bases: Sequence[int]) -> None:
    """What a turn fetches ahead waits for the turn that stands ``prefetch`` + 1 before it."""
    p = program.parallelism
    if p.zero < 3 and "activations" not in p.offload:
        return
    turns = [
        (turn, base)
        for template, base in zip(templates, bases, strict=True)
        for turn in template.turns
        # Else the ends fetch nothing.
        if (p.zero == 3 and p.replicas > 1) or turn.layer != NO_LAYER
    ]
    program.edges(
        (before.last + base_before, row + base)
        for (before, base_before), (turn, base) in zip(turns, turns[1 + p.prefetch :], strict=False)
        for row in (*(sent.row for sent in turn.gathers), turn.fetch)
        if row != NONE
    )


def _hold_back(program: Program, templates: Sequence[Template], bases: Sequence[int]) -> None:
    """A turn that makes gradients waits until all but ``in_flight`` before it are reduced."""
    p = program.parallelism
    turns = [
        (turn, base)
        for template, base in zip(templates, bases, strict=True)
        for turn in template.turns
        if turn.reduced
    ]
    program.edges(
        (sent.row + base_before, turn.first + base)
        for (before, base_before), (turn, base) in zip(
            turns, turns[1 + p.in_flight * p.overlap :], strict=False
        )
        for sent in before.reduced
    )
    if templates and program.tied_table(templates[0].rank):
        _hold_back_table(program, templates, bases)


def _hold_back_table(program: Program, templates: Sequence[Template], bases: Sequence[int]) -> None:
    """The classifier begins the gradient of the embedding's table when the last one is reduced.

    That keeps no more than one; ours, as nobody tells how a table is held back.
    """
    done: list[int] = []
    for template, base in zip(templates, bases, strict=True):
        embedding, classifier = (template.ends.get(end) for end in ENDS)
        if classifier is not None and classifier.reduced:
            program.edges((row, classifier.first + base) for row in done)
        if embedding is not None and embedding.reduced:
            done = [sent.row + base for sent in embedding.reduced]


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
