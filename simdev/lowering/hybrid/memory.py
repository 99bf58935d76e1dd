"""Buffers of a step: parameters, gradients and states throughout; activations from their forward to
their backward.
"""

from __future__ import annotations

from ...models.large import footprint
from ...models.large.roles import NO_LAYER
from ...models.large.shard import classifier_saved, classifier_workspace, embedding_saved
from ...schedules import FORWARD, WEIGHT
from ...taskgraph import PERSISTENT, Ints
from .program import Program
from .tail import buckets, owned
from .template import NONE


def add_parameters(program: Program, rank: int) -> None:
    """What lives throughout, as far as ZeRO shares it out: 16-bit parameters, their gradients, the
    optimizer's state.

    Parameters and gradients of the embedding and the classifier are whole on every replica.
    """
    p, add = program.parallelism, program.buffers.add
    layers = [number for number in buckets(program, rank) if number != NO_LAYER]
    parameters, own = owned(program, rank, layers)
    ends, own_ends = owned(program, rank, [NO_LAYER])
    add(rank, 2 * (ends + (own if p.zero == 3 else parameters)), "parameters", PERSISTENT)
    add(
        rank,
        p.gradient_bytes * (ends + (own if p.zero >= 2 else parameters)),
        "gradients",
        PERSISTENT,
    )
    if "optimizer" not in p.offload:
        add(rank, p.state_bytes * (own + own_ends), "optimizer state", PERSISTENT)


def add_activations(program: Program, stage: int) -> None:
    """What a stage keeps of each microbatch, and what passes through it."""
    received = _received(program, stage)
    for i, visit in enumerate(program.template(stage, FORWARD).visits):
        _add_layer(program, stage, i, visit.layer, received is not None and i == 0)
    back = program.template(stage, program.backward(stage))
    spaces = [footprint(program.shard, visit.layer).workspace for visit in back.visits]
    ends, (first, last) = program.base[stage, program.backward(stage)], back.computing
    rank = program.schedule.rank_of[stage]
    program.buffers.add(
        rank, max(spaces), "workspace", ends + first, *([ends + last] if first < last else [])
    )
    if received is not None:
        _add_received(program, stage, received)
    _add_ends(program, stage)
    _add_transfers(program, stage)


def _add_received(program: Program, stage: int, received: Ints) -> None:
    """The input of a stage: there for the backward, too, unless it is offloaded."""
    back, there = program.backward(stage), program.template(stage, FORWARD).visits[0]
    readers = [program.base[stage, back] + program.template(stage, back).visits[-1].last]
    if back != program.gradient(stage):
        readers.append(
            program.base[stage, WEIGHT] + program.template(stage, WEIGHT).visits[-1].last
        )
    one = footprint(program.shard, there.layer)
    if there.send != NONE and one.moved == one.entry:
        readers = [program.base[stage, FORWARD] + row for row in (there.last, there.send)]
    rank = program.schedule.rank_of[stage]
    program.buffers.add(rank, program.shard.rows_bytes, "received copies", received, *readers)


def _add_ends(program: Program, stage: int) -> None:
    """What the embedding and the classifier keep."""
    rank, add, shard = program.schedule.rank_of[stage], program.buffers.add, program.shard
    forward, back = program.template(stage, FORWARD), program.backward(stage)
    starts, ends = program.base[stage, FORWARD], program.base[stage, back]
    if "embedding" in forward.ends:
        reader = _end_gradient(program, stage, "embedding")
        add(rank, embedding_saved(shard), "activations", starts + forward.ends["embedding"], reader)
    if "classifier" in forward.ends:
        filler, reader = (
            starts + forward.ends["classifier"],
            ends + program.template(stage, back).ends["classifier"],
        )
        add(rank, classifier_saved(shard), "activations", filler, reader)
        add(rank, classifier_workspace(shard), "workspace", reader)
        if back != program.gradient(stage):  # its input, and the gradient of its output
            kept = shard.rows_bytes + 2 * shard.words * shard.vocabulary
            add(rank, kept, "activations", reader, _end_gradient(program, stage, "classifier"))


def _add_transfers(program: Program, stage: int) -> None:
    """The output until it has been sent, and its gradient from its arrival on."""
    rank, size, back = (
        program.schedule.rank_of[stage],
        program.shard.rows_bytes,
        program.backward(stage),
    )
    for kind in (FORWARD, back):
        template, base = program.template(stage, kind), program.base[stage, kind]
        if template.transfer != NONE:
            made, sent = base + template.computing[1], base + template.transfer
            program.buffers.add(rank, size, "activations", made, sent)
    if program.template(stage, FORWARD).transfer != NONE:
        after = program.backward(stage + 1)
        sent = program.base[stage + 1, after] + program.template(stage + 1, after).transfer
        reader = program.base[stage, back] + program.template(stage, back).computing[0]
        program.buffers.add(rank, size, "received copies", sent, reader)


def _end_gradient(program: Program, stage: int, which: str) -> Ints:
    kind = program.gradient(stage)
    return program.base[stage, kind] + program.template(stage, kind).ends[which]


def _received(program: Program, stage: int) -> Ints | None:
    """The rows that bring a stage its input; None where no other rank sends it."""
    if not stage or program.template(stage - 1, FORWARD).transfer == NONE:
        return None
    return program.base[stage - 1, FORWARD] + program.template(stage - 1, FORWARD).transfer


def _add_layer(program: Program, stage: int, i: int, number: int, is_received: bool) -> None:
    """One layer: what its forward saves (but for an input that was received), and what the backward
    makes again.

    What is offloaded is freed when it has been sent, and there again from when it is fetched.
    """
    rank, add = program.schedule.rank_of[stage], program.buffers.add
    one, back = footprint(program.shard, number), program.backward(stage)
    there = program.template(stage, FORWARD).visits[i]
    here = next(visit for visit in program.template(stage, back).visits if visit.layer == number)
    filler, base = program.base[stage, FORWARD] + there.last, program.base[stage, back]
    readers = [base + here.last]
    if back != program.gradient(stage):
        visit = next(
            visit for visit in program.template(stage, WEIGHT).visits if visit.layer == number
        )
        readers.append(program.base[stage, WEIGHT] + visit.last)
    if there.send != NONE:
        kept = one.saved - one.moved
        if not is_received or kept:  # else it is the input that was received
            add(rank, one.moved, "activations", filler, program.base[stage, FORWARD] + there.send)
        add(rank, one.moved, "activations", base + here.fetch, *readers)
        if not is_received:
            add(rank, kept, "activations", filler, *readers)
    else:
        add(rank, one.saved - one.entry * is_received, "activations", filler, *readers)
    if here.first == here.last:
        add(rank, one.again, "workspace", base + here.last)
    else:
        add(rank, one.again, "activations", base + here.first, *readers)
    _add_shared(program, stage, number)


def _add_shared(program: Program, stage: int, number: int) -> None:
    """Parameters that were gathered for one use, and whole gradients until they are reduced (ZeRO 2
    and 3).
    """
    p, rank = program.parallelism, program.schedule.rank_of[stage]
    if p.zero < 2:
        return
    sizes = [size for size, replicas in zip(
        program.maker.bucket(rank, number), (program.maker.replicas, program.maker.expert_replicas),
        strict=True
    ) if size and replicas > 1]  # fmt: skip
    for kind in dict.fromkeys((FORWARD, program.backward(stage), program.gradient(stage))):
        base = program.base[stage, kind]
        for visit in program.template(stage, kind).visits:
            if visit.layer != number:
                continue
            for size, row in zip(sizes, visit.gathers, strict=False):
                program.buffers.add(rank, 2 * size, "parameters", base + row, base + visit.last)
            for size, row in zip(sizes, visit.reduced, strict=False):
                program.buffers.add(
                    rank, p.gradient_bytes * size, "gradients", base + visit.last, base + row
                )
