"""What the replicas send each other, bucket by bucket: parameters gathered, gradients reduced.

From ZeRO 2 on gradients are reduced by bucket while the backward goes on, which waits where more
than ``in_flight`` of them are still on their way: FSDP2 has one reduce_scatter in flight
(``FSDPParamGroup.post_backward``), DeepSpeed two buckets, of which one is being filled
(``overlap_comm``; without it none is in flight). ZeRO 3 gathers ``prefetch`` buckets ahead: with
one ahead two are there, to which FSDP, too, limits them (``limit_all_gathers``). A bucket is a
layer, as FSDP is wrapped, the embedding or the classifier. A layer of more than ``bucket``
parameters is cut, for DeepSpeed's buckets hold no more (``reduce_bucket_size``); that its parts are
equal is ours.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...nouns.models.large import buckets_of
from ...nouns.models.large.roles import NO_LAYER
from ...nouns.models.large.work import Loads
from .program import DATA_QUEUE, EXPERT_DATA_QUEUE, NONE, Program, Sent, Template, Turn

PARAMETER_BYTES = 2


def add_turns(
    program: Program,
    template: Template,
    layer: int,
    role: int,
    loads: Loads,
    gathers: bool,
    sums: bool,
    fetch: int = NONE,
) -> None:
    """The turns of a layer that computes these loads, one for each of its buckets.

    ``gathers``: parameters are collected before; ``sums``: gradients are reduced after.
    """
    parts = buckets_of(program.shard, program.parallelism, layer)
    for part in range(parts):
        sizes = [
            size * (part + 1) // parts - size * part // parts
            for size in program.bucket(template.rank, layer)
        ]
        gathered = gather(program, template, sizes, layer) if gathers else ()
        row = template.compute(role, loads, layer, part, parts)
        reduced = reduce(program, template, sizes, layer) if sums else ()
        fetched = fetch if part == 0 else NONE
        add_turn(template, Turn(layer, row, row, gathered, reduced, fetched))


def add_turn(template: Template, turn: Turn) -> None:
    """A turn, and what its rows wait for."""
    template.turns.append(turn)
    template.edges += [(sent.row, turn.first) for sent in turn.gathers]
    template.edges += [(turn.last, sent.row) for sent in turn.reduced]
    if turn.fetch != NONE:
        template.edges.append((turn.fetch, turn.first))


def join_turns(template: Template) -> None:
    """Makes one of the last two turns: what was gathered for the first serves the second, too."""
    first, second = template.turns[-2:]
    joined = first._replace(last=second.last, reduced=second.reduced)
    template.turns[-2:] = [joined]


def gather(
    program: Program, template: Template, sizes: Sequence[int], layer: int = NO_LAYER
) -> tuple[Sent, ...]:
    """Parameters from all replicas."""
    return _collectives(program, template, "all_gather", sizes, PARAMETER_BYTES, layer)


def reduce(
    program: Program, template: Template, sizes: Sequence[int], layer: int = NO_LAYER
) -> tuple[Sent, ...]:
    """Gradients over all replicas; each keeps its share from ZeRO 1 on."""
    p = program.parallelism
    name = "reduce_scatter" if p.zero else "all_reduce"
    return _collectives(program, template, name, sizes, p.reduced_bytes, layer)


def _collectives(
    program: Program,
    template: Template,
    name: str,
    sizes: Sequence[int],
    each: int,
    layer: int,
) -> tuple[Sent, ...]:
    """Rows over the replicas of a layer, and over those of its experts, for so many parameters of
    ``each`` bytes.
    """
    queues = DATA_QUEUE, EXPERT_DATA_QUEUE
    return tuple(
        Sent(template.collective(queue, name, size * each, layer), size)
        for queue, size, count in zip(queues, sizes, program.parallelism.sharers, strict=False)
        if size and count > 1
    )
