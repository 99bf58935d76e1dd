"""What follows the last microbatch: gradients summed over replicas, the update, parameters back."""

from __future__ import annotations

from itertools import pairwise

from ...models.large import roles, update
from ...models.large.roles import NO_LAYER
from .program import FROM_HOST, TO_HOST, TO_NEXT, Program, Template
from .replicas import gather, reduce


def add_tail(program: Program, rank: int) -> None:
    """The rows of a rank after its last action.

    With ``overlap`` a layer's gradient is reduced once its last microbatch has computed it, else
    all after the last action; from ZeRO 2 on that was done microbatch by microbatch.
    """
    p, first, last = program.parallelism, program.rows, program.last[rank]
    tail = Template(rank, program.durations)
    waits: list[int] = [row for rows in _reduced(program, rank).values() for row in rows]
    pairs: list[tuple[int, int]] = []
    # In the order in which the backward completes them, so that the first can go at once.
    for number in reversed(program.buckets(rank)) if p.zero < 2 else ():
        sent = reduce(program, tail, program.bucket(rank, number), number)
        rows = [row + first for row, _ in sent]
        waits += rows
        ready = _computed(program, rank, number) if p.overlap else [last]
        pairs += [(before, row) for before in ready for row in rows]
    updates = [row + first for row in _updates(program, tail)]
    # The update needs the norm of all gradients (clipping), so it waits for every one.
    pairs += [(row, updates[0]) for row in dict.fromkeys([*waits, last])]
    pairs += pairwise(updates)
    # ZeRO 3 gathers what was updated when it uses it.
    for number in program.buckets(rank) if p.zero in (1, 2) else ():
        sent = gather(program, tail, program.bucket(rank, number), number)
        pairs += [(updates[-1], row + first) for row, _ in sent]
    program.append(tail)
    program.edges(pairs)
    program.updates.append(tuple(updates))


def _computed(program: Program, rank: int, number: int) -> list[int]:
    """The rows that complete the gradient of a layer, or of the ends (NO_LAYER)."""
    computed: list[int] = []
    for stage in program.stages(rank):
        placed = program.placed[stage, program.gradient(stage)]
        template, last = placed.template, int(placed.base.max())
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
    for stage in program.stages(rank):
        placed = program.placed[stage, program.gradient(stage)]
        last = int(placed.base.max())
        for turn in placed.template.turns:
            rows = [sent.row + last for sent in turn.reduced]
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
    """Adds up the gradients of an embedding that both the first and the last stage have.

    From ZeRO 2 on a replica has a share of it, once it is reduced.
    """
    schedule, shard, p = program.schedule, program.shard, program.parallelism
    ends = schedule.rank_of[0], schedule.rank_of[-1]
    if not shard.model.tied or ends[0] == ends[1]:
        return
    tail, shares = Template(ends[0], program.durations), p.replicas if p.zero >= 2 else 1
    # A ring over two ranks sends half there and back, twice: as long as one transfer.
    parameters = -(-shard.model.hidden * shard.vocabulary // shares)
    tail.send(TO_NEXT, ends[1], parameters * p.gradient_bytes)
    row = program.append(tail)
    for rank in ends:
        reduced = _reduced(program, rank).get(NO_LAYER)
        ready = reduced or _computed(program, rank, NO_LAYER)
        program.edges((before, row) for before in ready)
        program.edges([(row, program.updates[rank][0])])
