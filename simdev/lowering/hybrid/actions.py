"""The rows of the schedule's actions, rank by rank, with their edges to other ranks, and the rows
after the last microbatch.

``lower_hybrid`` calls these functions in turn. templates.py writes the rows of an action. An
optimizer's memory is in three places: its persistent buffers in buffers.py, its transfers from the
host in ``_updates`` here, its bytes for each parameter in ``Parallelism.state_bytes``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, pairwise, product

import numpy as np

from ...nouns.models.large import roles, update
from ...nouns.models.large.roles import NO_LAYER
from ...nouns.models.large.shard import sums_late
from ...nouns.schedules import BACKWARD, READERS, WEIGHT
from ...nouns.taskgraph import Ints
from .program import (
    ENDS,
    FROM_HOST,
    NONE,
    PARAMETER_BYTES,
    TO_HOST,
    TO_NEXT,
    Ends,
    Placed,
    Program,
    Template,
    Turn,
    elsewhere,
)
from .templates import Writer, template_of


def add_actions(program: Program, rank: int) -> None:
    """Add the rows of a rank's actions; main rows form a chain, or two where actions overlap."""
    schedule, placed = program.schedule, program.placed
    actions = schedule.orders[rank]
    parts = list(map(schedule.part, actions))
    distinct = list(dict.fromkeys(parts))
    for part in distinct:
        base = np.full(schedule.microbatches, NONE, np.int64)
        placed[part] = Placed(template_of(program, part), base)
    templates = [placed[part].template for part in parts]
    lengths = np.array([len(template.rows) for template in templates], np.int64)
    bases = (program.rows + np.cumsum(lengths) - lengths).tolist()
    for action, part, base in zip(actions, parts, bases, strict=True):
        placed[part].base[action.microbatch] = base
    # A device does one thing at a time, so its main rows form a chain, whatever the actions need.
    _chain(program, templates, bases, [action in schedule.pairs for action in actions])
    program.last.append(int(templates[-1].main[-1]) + bases[-1])
    program.runs.append(list(zip(parts, bases, strict=True)))
    program.gradients.append([placed[part] for part in distinct if part[2] in (BACKWARD, WEIGHT)])
    for each in (placed[part] for part in distinct):
        base = each.base[each.base != NONE]
        for source, target in each.template.edges:
            program.edge(base + source, base + target)
    _gate(program, templates, bases)
    _hold_back(program, templates, bases)
    table = np.concatenate([template.table for template in templates])
    program.add_table(table, rank, np.repeat(program.numbers(rank), lengths))


def _chain(
    program: Program, templates: Sequence[Template], bases: Sequence[int], overlaps: Sequence[bool]
) -> None:
    """Chain the main rows of actions one after the other; two actions that overlap form two chains,
    so that one computes while the other communicates.
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
    """Let the fetches of a turn wait for the turn ``prefetch`` + 1 before it."""
    p, ahead = program.parallelism, 1 + program.parallelism.prefetch
    if p.zero < 3 and "activations" not in p.offload:
        return
    every = p.zero == 3 and p.reduces_by_bucket  # else the ends fetch nothing

    def fetching(turn: Turn) -> bool:
        return every or turn.layer != NO_LAYER

    def fetched(turn: Turn) -> list[int]:
        return [row for row in (*(sent.row for sent in turn.gathers), turn.fetch) if row != NONE]

    last, _ = _of_turns(templates, bases, fetching, lambda turn: [turn.last])
    row, turn = _of_turns(templates, bases, fetching, fetched)
    late = turn >= ahead
    program.edge(last[turn[late] - ahead], row[late])


def _hold_back(program: Program, templates: Sequence[Template], bases: Sequence[int]) -> None:
    """Let a turn that makes gradients wait until all gradients but the last ``in_flight`` before it
    are reduced.
    """
    p = program.parallelism
    behind = 1 + p.in_flight * p.overlap

    def reducing(turn: Turn) -> bool:
        return bool(turn.reduced)

    first, _ = _of_turns(templates, bases, reducing, lambda turn: [turn.first])
    row, turn = _of_turns(templates, bases, reducing, lambda turn: [s.row for s in turn.reduced])
    early = turn + behind < len(first)
    program.edge(row[early], first[turn[early] + behind])
    if program.tied_table(templates[0].rank):
        _hold_back_table(program, templates, bases)


def _of_turns(
    templates: Sequence[Template],
    bases: Sequence[int],
    chosen: Callable[[Turn], bool],
    rows_of: Callable[[Turn], list[int]],
) -> tuple[Ints, Ints]:
    """The rows of the ``chosen`` turns of all actions, one after another, and the number of the
    turn of each row.
    """
    known: dict[int, tuple[Ints, Ints, int]] = {}
    for template in templates:
        if id(template) not in known:
            rows = [rows_of(turn) for turn in template.turns if chosen(turn)]
            turns = np.repeat(np.arange(len(rows)), list(map(len, rows)))
            known[id(template)] = np.array(list(chain(*rows)), np.int64), turns, len(rows)
    row, turn, count = zip(*(known[id(template)] for template in templates), strict=True)
    lengths, before = list(map(len, row)), np.cumsum(count) - count
    return (
        np.concatenate(row) + np.repeat(bases, lengths),
        np.concatenate(turn) + np.repeat(before, lengths),
    )


def _hold_back_table(program: Program, templates: Sequence[Template], bases: Sequence[int]) -> None:
    """Let the classifier begin the gradient of a tied table when the last one is reduced.

    So at most one gradient is kept; this is our choice, for no source describes it.
    """
    done: list[int] = []
    for template, base in zip(templates, bases, strict=True):
        embedding, classifier = (template.ends.get(end) for end in ENDS)
        if classifier is not None and classifier.reduced:
            program.edges((row, classifier.first + base) for row in done)
        if embedding is not None and embedding.reduced:
            done = [sent.row + base for sent in embedding.reduced]


def add_sends(program: Program) -> None:
    """Add the edges to other ranks: activations forward, gradients back."""
    for part, sender in program.placed.items():
        if sender.template.transfer != NONE:
            sent = np.flatnonzero(sender.base != NONE)
            transfer = sender.base[sent] + sender.template.transfer
            # From the last main row, not the last computing one: tp's sum after it is sent, too.
            program.edge(sender.base[sent] + sender.template.main[-1], transfer)
            readers = elsewhere(part, READERS)
            program.edge(transfer, program.at(readers, sent, lambda reader: int(reader.main[0])))


def join_pairs(program: Program) -> None:
    """Let two actions that overlap begin when both may, and send when both are over, as in
    DeepSeek's published code (``_forward_backward_chunk``).
    """
    for pair in program.schedule.pairs.items():
        parts = [program.schedule.part(action) for action in pair]
        placed = [program.placed[part] for part in parts]
        rows = [int(p.base[action.microbatch]) for p, action in zip(placed, pair, strict=True)]
        for here, other in ((0, 1), (1, 0)):
            template, beside = placed[here].template, placed[other].template
            if template.transfer != NONE:
                program.edge(rows[other] + beside.main[-1], rows[here] + template.transfer)
            (arrival,) = program.arrivals(parts[here], np.array([pair[here].microbatch]))
            if arrival != NONE:
                program.edge(arrival, rows[other] + beside.main[0])


# After the last microbatch: sums of gradients over replicas, the update, parameters back.


def add_tail(program: Program, rank: int) -> None:
    """Add the rows of a rank after its last action.

    With ``overlap`` a layer's gradient is reduced once its last microbatch has computed it, else
    all gradients after the last action. From ZeRO 2 on, gradients are already reduced in each
    microbatch, except for sums over groups of replicas that wait for the last one.
    """
    p, first, last = program.parallelism, program.rows, program.last[rank]
    tail = Writer(program, rank)
    reduced, is_late = _reduced(program, rank), sums_late(program.shard, p)
    waits: list[int] = [row for rows in reduced.values() for row in rows]
    pairs: list[tuple[int, int]] = []
    complete: dict[int, list[int]] = {}
    # In the order in which the backward completes gradients, so that the first can go at once.
    for number in reversed(program.buckets(rank)) if p.zero < 2 or is_late else ():
        size = program.bucket(rank, number)
        sent = tail.sum_groups(size, number, ()) if is_late else tail.reduce(size, number)
        ends = [each.end + first for each in sent]
        waits += ends
        ready = _computed(program, rank, number) if p.overlap else [last]
        ready += reduced.get(number, [])
        pairs += [(before, each.row + first) for before in ready for each in sent]
        complete[number] = ends or ready
    updates = [row + first for row in _updates(program, tail)]
    # The update needs the norm of all gradients (clipping), so it waits for every one.
    pairs += [(row, updates[0]) for row in dict.fromkeys([*waits, last])]
    pairs += pairwise(updates)
    # ZeRO 3 gathers updated parameters only when it uses them.
    gathers = [
        sent.row + first
        for number in (program.buckets(rank) if p.zero in (1, 2) else ())
        for sent in tail.gather(program.bucket(rank, number), number)
    ]
    pairs += [(updates[-1], row) for row in gathers]
    program.append(tail)
    program.edges(pairs)
    program.ends.append(Ends(tuple(updates), complete, gathers))


def _computed(program: Program, rank: int, number: int) -> list[int]:
    """The rows that complete the gradient of a layer, or of the ends (NO_LAYER)."""
    computed: list[int] = []
    for placed in program.gradients[rank]:
        template, last = placed.template, placed.last
        if number == NO_LAYER:
            computed += [turn.last + last for turn in template.ends.values()]
        elif number in template.visits:
            computed.append(template.visits[number].last + last)
    return computed


def _reduced(program: Program, rank: int) -> dict[int, list[int]]:
    """The rows that reduce the gradients of the last microbatch (ZeRO 2 and 3), by layer.

    A queue serves in order: the sums of the microbatches before are over by then.
    """
    reduced: dict[int, list[int]] = {}
    for placed in program.gradients[rank]:
        for turn in placed.template.turns:
            rows = [sent.end + placed.last for sent in turn.reduced]
            reduced.setdefault(turn.layer, []).extend(rows)
    return reduced


def _updates(program: Program, tail: Template) -> list[int]:
    """Add the optimizer's step: a row, or, where its state is in host memory, a row for each
    bucket; returns these rows.

    Two buckets are in flight at once: the state of the next arrives while one is updated.
    """
    p, rank, layers = program.parallelism, tail.rank, program.buckets(tail.rank)

    def step(some: list[int]) -> int:
        loads = update(program.shard, *program.updated(rank, some), p.state_bytes, some)
        return tail.compute(roles.UPDATE, loads, some[0] if len(some) == 1 else NO_LAYER)

    if "optimizer" not in p.offload:
        return [step(layers)]
    updates: list[int] = []
    fetches: list[int] = []
    for layer in layers:
        size = program.updated(rank, [layer])[1] * p.state_bytes
        fetches.append(tail.copy(FROM_HOST, size, layer))
        updates.append(step([layer]))
        back = tail.copy(TO_HOST, size, layer)
        tail.edges += [(fetches[-1], updates[-1]), (updates[-1], back)]
        tail.edges += [(before, fetches[-1]) for before in updates[-3:-2]]
        first = program.rows
        program.add_buffers(rank, size, "optimizer state", fetches[-1] + first, back + first)
    program.edges((program.last[rank], row + program.rows) for row in fetches[:2])
    return updates


def tie(program: Program) -> None:
    """Add up the gradients of a tied table whose embedding and classifier are on two ranks.

    A rank with both stages (DualPipe, DualPipeV, a folded table) accumulates the gradient as it
    computes it, and the two copies of DualPipe are joined as for any other gradient
    (``join_copies``). From ZeRO 2 on a replica has only its share, once the gradient is reduced.
    """
    schedule, shard, p = program.schedule, program.shard, program.parallelism
    ends = schedule.rank_of[0], schedule.rank_of[-1]
    if not shard.model.tied or program.tied_table(ends[0]):
        return
    tail, shares = Template(ends[0], program.durations), p.sharers[0] if p.zero >= 2 else 1
    # A ring over two ranks sends half there and back, twice: as long as one transfer.
    parameters = -(-shard.model.hidden * shard.vocabulary // shares)
    row = tail.send(TO_NEXT, ends[1], parameters * p.gradient_bytes)
    row += program.append(tail)
    for rank in ends:
        reduced = program.ends[rank].complete.get(NO_LAYER) if p.zero >= 2 else None
        reduced = reduced or _reduced(program, rank).get(NO_LAYER)
        ready = reduced or _computed(program, rank, NO_LAYER)
        program.edges((before, row) for before in ready)
        program.edges([(row, program.ends[rank].updates[0])])


def join_copies(program: Program) -> None:
    """Add up the gradients of the two copies of each stage, and send updated parameters.

    Both ranks have reduced gradients over their replicas before. With ZeRO 1 each rank sends half
    of its share, updates the other half and sends it (a ring over two, after that of the replicas:
    our choice); with ZeRO 0 each sends and updates all.
    """
    if program.ways == 1:
        return
    p = program.parallelism
    for rank in range(program.schedule.ranks):
        mirror, first = program.schedule.ranks - 1 - rank, program.rows
        tail, here, there = (
            Template(rank, program.durations),
            program.ends[rank],
            program.ends[mirror],
        )
        for number, ready in here.complete.items():
            size = program.updated(rank, [number])[1] * p.reduced_bytes
            row = tail.swap(mirror, size, number) + first
            program.edges((before, row) for before in ready)
            program.edges([(row, there.updates[0])])
        if p.zero:
            size = program.updated(rank, list(here.complete))[1] * PARAMETER_BYTES
            row = tail.swap(mirror, size, NO_LAYER) + first
            program.edges([(here.updates[-1], row)])
            program.edges((row, gathered) for gathered in there.gathers)
        program.append(tail)
