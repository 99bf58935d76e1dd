"""What follows the last microbatch: gradients over the replicas, the optimizer's step, parameters
back.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from ...errors import InputError
from ...models.large import roles, update
from ...models.large.roles import NO_LAYER
from .program import Program
from .template import COMPUTE, FROM_HOST, TO_HOST, TO_NEXT, Template


def add_tail(program: Program, rank: int) -> None:
    """The rows of a rank after its last action.

    With ``overlap`` a layer's gradient is reduced once its last microbatch has made it, else all
    after the last action; from ZeRO 2 on that was done microbatch by microbatch, but for the
    embedding and the classifier.
    """
    p, tail, first = program.parallelism, Template(), program.rows
    waits: list[int] = []
    pairs: list[tuple[int, int]] = []
    for number in reversed(buckets(program, rank)):
        made, reduced = _gradients(program, rank, number)
        waits += reduced
        if p.zero < 2 or number == NO_LAYER:
            rows = [row + first for row in program.maker.reduce(tail, rank, number)]
            waits += rows
            ready = made if p.overlap else [program.main[rank]]
            pairs += [(one, row) for one in ready for row in rows]
    updates = _updates(program, rank, tail)
    pairs += [(one, updates[0] + first) for one in dict.fromkeys([*waits, program.main[rank]])]
    pairs += [(one + first, other + first) for one, other in pairwise(updates)]
    for number in buckets(program, rank):
        pairs += [
            (updates[-1] + first, row + first) for row in program.maker.publish(tail, rank, number)
        ]
    program.append(tail, rank)
    program.edges(pairs)
    program.updates.append(tuple(one + first for one in updates))


def buckets(program: Program, rank: int) -> list[int]:
    """The layers of a rank, and NO_LAYER where it has the embedding or the classifier."""
    found = [number for stage in program.stages(rank) for number in program.stage_layers[stage]]
    return found + [NO_LAYER] * (program.maker.bucket(rank, NO_LAYER)[0] > 0)


def _gradients(program: Program, rank: int, number: int) -> tuple[list[int], list[int]]:
    """The rows with which a layer's gradient is complete, and those that reduced its last
    microbatch's.

    A queue serves in order: what reduced the microbatches before is over by then.
    """
    made, reduced = [], []
    for stage in program.stages(rank):
        kind = program.gradient(stage)
        template, last = program.template(stage, kind), int(program.base[stage, kind].max())
        if number == NO_LAYER:
            made += [row + last for row in template.ends.values()]
        for visit in template.visits:
            if visit.layer == number:
                made.append(visit.last + last)
                reduced += [row + last for row in visit.reduced]
    return made, reduced


def owned(program: Program, rank: int, numbers: list[int]) -> tuple[int, int]:
    """Parameters of some buckets here, and those that this replica brings up to date."""
    sizes = [program.maker.bucket(rank, number) for number in numbers]
    dense, experts = sum(one for one, _ in sizes), sum(one for _, one in sizes)
    shared = program.parallelism.zero > 0
    over, experts_over = (
        (program.maker.replicas, program.maker.expert_replicas) if shared else (1, 1)
    )
    return dense + experts, -(-dense // over) - (-experts // experts_over)


def _updates(program: Program, rank: int, tail: Template) -> list[int]:
    """The optimizer's step: one row, or one for each bucket whose state comes from host memory and
    goes back.

    Two buckets are in flight at once: the next one's state comes while this one is brought up to
    date.
    """
    p, numbers = program.parallelism, buckets(program, rank)
    compute = program.maker.costs.compute

    def loads(some: list[int]) -> tuple[int, int]:
        parameters, own = owned(program, rank, some)
        cost = compute(rank, update(program.shard, parameters, own, p.state_bytes))
        return tail.add(
            roles.UPDATE, COMPUTE, cost, 0, some[0] if len(some) == 1 else NO_LAYER
        ), own

    if "optimizer" not in p.offload:
        return [loads(numbers)[0]]
    updates: list[int] = []
    for number in numbers:
        size = owned(program, rank, [number])[1] * p.state_bytes
        cost = program.maker.costs.host(rank, size, p.host_rate)
        fetched = tail.add(roles.HOST, FROM_HOST, cost, size, number, False)
        updates.append(loads([number])[0])
        back = tail.add(roles.HOST, TO_HOST, cost, size, number, False)
        tail.edges += [(fetched, updates[-1]), (updates[-1], back)]
        tail.edges += [(updates[-3], fetched)] if len(updates) > 2 else []
        first = program.rows
        program.buffers.add(rank, size, "optimizer state", fetched + first, back + first)
    first_two = [row for row, item in enumerate(tail.items) if item.queue == FROM_HOST][:2]
    program.edges((program.main[rank], row + program.rows) for row in first_two)
    return updates


def tie(program: Program) -> None:
    """The gradients of an embedding that the first and the last stage both have are added up
    between them.
    """
    schedule, shard, p = program.schedule, program.shard, program.parallelism
    ends = schedule.rank_of[0], schedule.rank_of[-1]
    if not shard.model.tied or ends[0] == ends[1]:
        return
    size = shard.model.hidden * shard.vocabulary * p.gradient_bytes
    # A ring over two ranks sends half there and back, twice.
    cost = program.maker.costs.transfer(*ends, size)
    tail = Template()
    tail.add(roles.PIPELINE, TO_NEXT, cost, size, ends[1], False)
    row = program.append(tail, ends[0])
    for rank in ends:
        made, _ = _gradients(program, rank, NO_LAYER)
        program.edges([(one, row) for one in made])
        program.edges([(row, program.updates[rank][0])])


def even_layers(layers: int, stages: int) -> tuple[int, ...]:
    """As even as they come; the stages in the middle take what is left over, for the outer ones
    have the ends.

    Raises InputError where a stage would have none.
    """
    each, more = divmod(layers, stages)
    if not each:
        raise InputError(
            f"pp: {stages} stages for {layers} layers: stage {layers} would be without op"
        )
    order = np.argsort(np.abs(np.arange(stages) - (stages - 1) / 2), kind="stable")
    found = np.full(stages, each)
    found[order[:more]] += 1
    return tuple(found.tolist())
