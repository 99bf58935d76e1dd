"""The rows of the schedule's actions, rank by rank, and what they wait for on other ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, product

import numpy as np

from ...nouns.models.large.roles import NO_LAYER
from ...nouns.schedules import FORWARD, Action
from ...nouns.taskgraph import Ints
from .program import BACKWARDS, ENDS, NONE, Placed, Program, Template, Turn
from .templates import template_of


def add_actions(program: Program, rank: int) -> None:
    """The rows of a rank's actions: main ones in a chain, in two where actions overlap."""
    schedule, placed = program.schedule, program.placed
    actions = [action for action in schedule.rows[rank] if action is not None]
    keys = [(program.way(action.microbatch), action.stage, action.kind) for action in actions]
    kinds = dict.fromkeys(keys)
    for way, stage, kind in kinds:
        base = np.full(schedule.microbatches, NONE, np.int64)
        placed[way, stage, kind] = Placed(template_of(program, stage, kind, way), base)
    templates = [placed[key].template for key in keys]
    lengths = np.array([len(template.rows) for template in templates], np.int64)
    bases = (program.rows + np.cumsum(lengths) - lengths).tolist()
    for action, key, base in zip(actions, keys, bases, strict=True):
        placed[key].base[action.microbatch] = base
    # A device does one thing at a time, so its main rows form a chain, whatever the actions need.
    _chain(program, templates, bases, [action in schedule.pairs for action in actions])
    program.last.append(int(templates[-1].main[-1]) + bases[-1])
    for key in kinds:
        base = placed[key].base[placed[key].base != NONE]
        for source, target in placed[key].template.edges:
            program.edge(base + source, base + target)
    _gate(program, templates, bases)
    _hold_back(program, templates, bases)
    before = sum(action is not None for row in schedule.rows[:rank] for action in row)
    numbers = np.arange(before, before + len(actions))
    table = np.concatenate([template.table for template in templates])
    program.add_table(table, rank, np.repeat(numbers, lengths))


def _chain(
    program: Program, templates: Sequence[Template], bases: Sequence[int], overlaps: Sequence[bool]
) -> None:
    """The main rows of actions one after the other; those of one that overlaps and those of the
    next each by themselves, so that what one computes hides what the other exchanges.
    """
    if not any(overlaps):
        main = np.concatenate([template.main for template in templates])
        main += np.repeat(bases, [len(template.main) for template in templates])
        program.edge(main[:-1], main[1:])
        return
    mains = [template.main + base for template, base in zip(templates, bases, strict=True)]
    before: list[int] = []
    together: list[Ints] = []
    for main, overlapping in zip(mains, overlaps, strict=True):
        program.edge(main[:-1], main[1:])
        together.append(main)
        if not overlapping:
            heads, tails = ([int(main[end]) for main in together] for end in (0, -1))
            program.edges(product(before, heads))
            before, together = tails, []


def _gate(program: Program, templates: Sequence[Template], bases: Sequence[int]) -> None:
    """What a turn fetches ahead waits for the turn that stands ``prefetch`` + 1 before it."""
    p, ahead = program.parallelism, 1 + program.parallelism.prefetch
    if p.zero < 3 and "activations" not in p.offload:
        return

    def fetching(template: Template) -> list[Turn]:
        # Else the ends fetch nothing.
        every = p.zero == 3 and p.replicas > 1
        return [turn for turn in template.turns if every or turn.layer != NO_LAYER]

    def fetched(template: Template) -> list[list[int]]:
        rows = [[*(s.row for s in turn.gathers), turn.fetch] for turn in fetching(template)]
        return [[row for row in each if row != NONE] for each in rows]

    last, _ = _of_turns(templates, bases, lambda t: [[turn.last] for turn in fetching(t)])
    row, turn = _of_turns(templates, bases, fetched)
    late = turn >= ahead
    program.edge(last[turn[late] - ahead], row[late])


def _hold_back(program: Program, templates: Sequence[Template], bases: Sequence[int]) -> None:
    """A turn that makes gradients waits until all but ``in_flight`` before it are reduced."""
    p = program.parallelism
    behind = 1 + p.in_flight * p.overlap

    def reducing(template: Template) -> list[Turn]:
        return [turn for turn in template.turns if turn.reduced]

    first, _ = _of_turns(templates, bases, lambda t: [[turn.first] for turn in reducing(t)])
    row, turn = _of_turns(
        templates, bases, lambda t: [[sent.row for sent in turn.reduced] for turn in reducing(t)]
    )
    early = turn + behind < len(first)
    program.edge(row[early], first[turn[early] + behind])
    if templates and program.tied_table(templates[0].rank):
        _hold_back_table(program, templates, bases)


def _of_turns(
    templates: Sequence[Template],
    bases: Sequence[int],
    rows_of: Callable[[Template], list[list[int]]],
) -> tuple[Ints, Ints]:
    """The rows that ``rows_of`` tells of each turn of a template, of all actions one after another,
    and beside each the number of its turn.
    """
    known: dict[int, tuple[Ints, Ints, int]] = {}
    for template in templates:
        if id(template) not in known:
            rows = rows_of(template)
            turns = np.repeat(np.arange(len(rows)), list(map(len, rows)))
            known[id(template)] = np.array(list(chain(*rows)), np.int64), turns, len(rows)
    each = [known[id(template)] for template in templates]
    lengths, counts = [len(rows) for rows, _, _ in each], np.array([n for _, _, n in each])
    row = np.concatenate([rows for rows, _, _ in each]) + np.repeat(bases, lengths)
    before = np.cumsum(counts) - counts
    return row, np.concatenate([turns for _, turns, _ in each]) + np.repeat(before, lengths)


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
    for way, kind in product(range(program.ways), (FORWARD, *BACKWARDS)):
        sender = program.placed.get((way, stage, kind))
        if sender is None or sender.template.transfer == NONE:
            continue
        kinds, other = ((FORWARD,), stage + 1) if kind == FORWARD else (BACKWARDS, stage - 1)
        sent = np.flatnonzero(sender.base != NONE)
        transfer = sender.base[sent] + sender.template.transfer
        # Not the last row that computes: tp's sum behind it must be there before it is sent.
        program.edge(sender.base[sent] + sender.template.main[-1], transfer)
        program.edge(transfer, program.at(way, other, kinds, sent, _head))


def _head(template: Template) -> int:
    return int(template.main[0])


def join_pairs(program: Program) -> None:
    """Two actions that overlap begin when both may, and send when both are over, as DeepSeek's
    published code does (``_forward_backward_chunk``).
    """
    for pair in program.schedule.pairs.items():
        for action, other in (pair, pair[::-1]):
            template, first = program.template(action)
            beside, base = program.template(other)
            if template.transfer != NONE:
                program.edge(base + beside.main[-1], first + template.transfer)
            arrival = _arrival(program, action)
            if arrival != NONE:
                program.edge(arrival, base + beside.main[0])


def _arrival(program: Program, action: Action) -> int:
    """The row that brings what an action reads from another rank; NONE where nothing does."""
    forward = action.kind == FORWARD
    other, kinds = (action.stage - 1, (FORWARD,)) if forward else (action.stage + 1, BACKWARDS)
    way, microbatch = program.way(action.microbatch), np.array([action.microbatch])
    sent = program.at(way, other, kinds, microbatch, lambda template: template.transfer)
    return int(sent[0])
