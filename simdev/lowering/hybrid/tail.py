"""What follows the last microbatch: gradients summed over replicas, the update, parameters back."""

from __future__ import annotations

from itertools import pairwise

from ...nouns.models.large import roles, update
from ...nouns.models.large.roles import NO_LAYER
from .program import FROM_HOST, TO_HOST, TO_NEXT, Ends, Program, Template
from .replicas import PARAMETER_BYTES, gather, reduce


def add_tail(program: Program, rank: int) -> None:
    """The rows of a rank after its last action.

    With ``overlap`` a layer's gradient is reduced once its last microbatch has computed it, else
    all after the last action; from ZeRO 2 on that was done microbatch by microbatch.
    """
    p, first, last = program.parallelism, program.rows, program.last[rank]
    tail = Template(rank, program.durations)
    waits: list[int] = [row for rows in _reduced(program, rank).values() for row in rows]
    pairs: list[tuple[int, int]] = []
    complete: dict[int, list[int]] = {}
    # In the order in which the backward completes them, so that the first can go at once.
    for number in reversed(program.buckets(rank)) if p.zero < 2 else ():
        sent = reduce(program, tail, program.bucket(rank, number), number)
        rows = [row + first for row, _ in sent]
        waits += rows
        ready = _computed(program, rank, number) if p.overlap else [last]
        pairs += [(before, row) for before in ready for row in rows]
        complete[number] = rows or ready
    updates = [row + first for row in _updates(program, tail)]
    # The update needs the norm of all gradients (clipping), so it waits for every one.
    pairs += [(row, updates[0]) for row in dict.fromkeys([*waits, last])]
    pairs += pairwise(updates)
    # ZeRO 3 gathers what was updated when it uses it.
    gathers = [
        row + first
        for number in (program.buckets(rank) if p.zero in (1, 2) else ())
        for row, _ in gather(program, tail, program.bucket(rank, number), number)
    ]
    pairs += [(updates[-1], row) for row in gathers]
    program.append(tail)
    program.edges(pairs)
    program.ends.append(Ends(tuple(updates), complete, gathers))


def _computed(program: Program, rank: int, number: int) -> list[int]:
    """The rows that complete the gradient of a layer, or of the ends (NO_LAYER)."""
    computed: list[int] = []
    for placed in program.gradients(rank):
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
    for placed in program.gradients(rank):
        for turn in placed.template.turns:
            rows = [sent.row + placed.last for sent in turn.reduced]
            reduced.setdefault(turn.layer, []).extend(rows)
    return reduced


def _updates(program: Program, tail: Template) -> list[int]:
    """The optimizer's step: a row, or where its state lies in host memory a row for each bucket.

    Two buckets are in flight at once: the next one's state comes while this one is updated.
    """
    p, rank, layers = program.parallelism, tail.rank, program.buckets(tail.rank)

    def step(some: list[int]) -> int:
        loads = update(program.shard, *program.updated(rank, some), p.state_bytes)
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
    """Adds up the gradients of a tied table whose embedding and classifier stand on two ranks.

    Where one rank has both stages (DualPipe, DualPipeV, a folded table) it adds up the gradient as
    it computes it, and the two copies of DualPipe join it as any other (``join_copies``). From ZeRO
    2 on a replica has a share of it, once it is reduced.
    """
    schedule, shard, p = program.schedule, program.shard, program.parallelism
    ends = schedule.rank_of[0], schedule.rank_of[-1]
    if not shard.model.tied or program.tied_table(ends[0]):
        return
    tail, shares = Template(ends[0], program.durations), p.replicas if p.zero >= 2 else 1
    # A ring over two ranks sends half there and back, twice: as long as one transfer.
    parameters = -(-shard.model.hidden * shard.vocabulary // shares)
    row = tail.send(TO_NEXT, ends[1], parameters * p.gradient_bytes)
    row += program.append(tail)
    for rank in ends:
        reduced = _reduced(program, rank).get(NO_LAYER)
        ready = reduced or _computed(program, rank, NO_LAYER)
        program.edges((before, row) for before in ready)
        program.edges([(row, program.ends[rank].updates[0])])


def join_copies(program: Program) -> None:
    """Adds up the gradients of the two copies of each stage, and sends what was updated.

    Both ranks have reduced them over their replicas. With ZeRO 1 each sends half of its share,
    updates the other half and sends that (a ring over two, behind that of the replicas: ours);
    with ZeRO 0 each sends and updates all.
    """
    if program.ways == 1:
        return
    p = program.parallelism
    for rank in range(program.schedule.ranks):
        mirror, first = program.mirror(rank), program.rows
        tail, here, there = (
            Template(rank, program.durations),
            program.ends[rank],
            program.ends[mirror],
        )
        for number, ready in here.complete.items():
            size = program.updated(rank, [number])[1] * p.reduced_bytes
            row = tail.swap(TO_NEXT, mirror, size, number) + first
            program.edges((before, row) for before in ready)
            program.edges([(row, there.updates[0])])
        if p.zero:
            size = program.updated(rank, list(here.complete))[1] * PARAMETER_BYTES
            row = tail.swap(TO_NEXT, mirror, size, NO_LAYER) + first
            program.edges([(here.updates[-1], row)])
            program.edges((row, gathered) for gathered in there.gathers)
        program.append(tail)
