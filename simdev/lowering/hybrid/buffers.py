"""Buffers of a step: parameters, gradients and states throughout; activations between uses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from ...nouns.models.large import Shard, footprint
from ...nouns.models.large.roles import NO_LAYER
from ...nouns.models.large.shard import (
    classifier_kept,
    classifier_saved,
    classifier_workspace,
    embedding_saved,
    stand_in_parameters,
)
from ...nouns.schedules import BACKWARD, FORWARD, INPUT, WEIGHT, Part
from ...nouns.taskgraph import PERSISTENT, Ints
from .program import NONE, Placed, Program, Visit
from .templates import PARAMETER_BYTES


def add_parameters(program: Program, rank: int) -> None:
    """What lives throughout."""
    layers = [number for number in program.buckets(rank) if number != NO_LAYER]
    for kind, size in persistent_bytes(program, rank, layers).items():
        program.add_buffers(rank, size, kind, PERSISTENT)


def persistent_bytes(program: Program, rank: int, layers: list[int]) -> dict[str, int]:
    """What a rank with these layers and its ends holds throughout, as far as ZeRO shares it out.

    16-bit parameters, their gradients, the optimizer's state.
    """
    p = program.parallelism
    parameters, updated = program.updated(rank, layers)
    ends, updated_ends = program.updated(rank, [NO_LAYER])
    whole, shared = ends + parameters, updated_ends + updated
    sizes = {
        "parameters": PARAMETER_BYTES * (shared if p.zero == 3 else whole),
        "gradients": p.gradient_bytes * (shared if p.zero >= 2 else whole),
    }
    if "optimizer" not in p.offload:
        sizes["optimizer state"] = p.state_bytes * shared
    # Of Megatron-LM, and since it has fused attention: FSDP and DeepSpeed have gradients.
    if program.shard.flash and not p.reduces_by_bucket:
        sizes["workspace"] = PARAMETER_BYTES * stand_in_parameters(program.shard, layers)
    return sizes


@dataclass(frozen=True, slots=True)
class _Stage:
    """A stage's actions for some of its microbatches, all with a backward of one kind; ``weight``
    computes its gradients, in a whole backward the ``back``.
    """

    program: Program
    part: Part
    microbatches: Ints
    forward: Placed
    back: Placed
    weight: Placed

    @property
    def shard(self) -> Shard:
        return self.program.shard

    @property
    def is_split(self) -> bool:
        """Whether the backward is done in two actions."""
        return self.weight is not self.back

    def add(self, size: int, kind: str, filler: Ints, *readers: Ints) -> None:
        rank = self.forward.template.rank
        self.program.add_buffers(rank, size, kind, filler, *readers)

    def backward_rows(self, layer: int) -> list[Ints]:
        """The last rows that read what a layer's forward saved."""
        actions = (self.back, self.weight) if self.is_split else (self.back,)
        return [placed.base + placed.template.visits[layer].last for placed in actions]


def add_activations(program: Program, number: int) -> None:
    """What a stage keeps of each microbatch, and what passes through it."""
    for way, kind in product(range(program.ways), (BACKWARD, INPUT)):
        part = way, number, kind
        if part not in program.placed:
            continue
        some = np.flatnonzero(program.placed[part].base != NONE)
        kinds = dict.fromkeys((FORWARD, kind, BACKWARD if kind == BACKWARD else WEIGHT))
        placed = [program.placed[way, number, each] for each in kinds]
        actions = [replace(each, base=each.base[some]) for each in placed]
        _add_stage(_Stage(program, part, some, actions[0], actions[1], actions[-1]))


def _add_stage(stage: _Stage) -> None:
    way, number, _ = stage.part
    rows = stage.program.arrivals((way, number, FORWARD), stage.microbatches)
    received = None if rows[0] == NONE else rows  # no other rank sends it
    visits = list(stage.forward.template.visits.values())
    for visit in visits:
        _add_layer(stage, visit, received is not None and visit is visits[0])
    back = stage.back.template
    # One workspace for a whole backward: its layers run one after the other.
    space = max(footprint(stage.shard, layer).workspace for layer in back.visits) if visits else 0
    first, last = back.computing
    readers = [stage.back.base + last] if first < last else []
    stage.add(space, "workspace", stage.back.base + first, *readers)
    # Without a sender the input comes from the stage before on this rank, which counts it.
    if received is not None and visits:
        _add_received(stage, visits[0], received)
    _add_ends(stage, None if visits else received)
    _add_shared(stage)
    _add_transfers(stage)


def _add_received(stage: _Stage, visit: Visit, received: Ints) -> None:
    """The input of a stage: there for the backward, too, unless it is offloaded."""
    kept, readers = footprint(stage.shard, visit.layer), stage.backward_rows(visit.layer)
    if visit.send != NONE and kept.moved == kept.entry:
        readers = [stage.forward.base + row for row in (visit.last, visit.send)]
    stage.add(stage.shard.rows_bytes, "received copies", received, *readers)


def _add_ends(stage: _Stage, received: Ints | None) -> None:
    """What the embedding and the classifier keep; ``received`` brings a classifier that is alone on
    its stage its input.
    """
    shard, forward, back, weight = stage.shard, stage.forward, stage.back, stage.weight
    ends = forward.template.ends
    if "embedding" in ends:
        reader = weight.base + weight.template.ends["embedding"].last
        filler = forward.base + ends["embedding"].last
        stage.add(embedding_saved(shard), "activations", filler, reader)
    if "classifier" in ends:
        filler = forward.base + ends["classifier"].last
        reader = back.base + back.template.ends["classifier"].last
        stage.add(classifier_workspace(shard), "workspace", filler)
        sent = shard.rows_bytes * (received is not None)
        if received is not None:
            stage.add(sent, "received copies", received, reader)
        stage.add(classifier_saved(shard) - sent, "activations", filler, reader)
        stage.add(classifier_workspace(shard), "workspace", reader)
        if stage.is_split:
            last = weight.base + weight.template.ends["classifier"].last
            stage.add(classifier_kept(shard), "activations", reader, last)


def _add_transfers(stage: _Stage) -> None:
    """The output until it has been sent, and its gradient from its arrival on."""
    size, program = stage.shard.rows_bytes, stage.program
    for placed in (stage.forward, stage.back):
        template = placed.template
        if template.transfer != NONE:
            filler, sent = placed.base + template.computing[1], placed.base + template.transfer
            stage.add(size, "activations", filler, sent)
    if stage.forward.template.transfer != NONE:
        reader = stage.back.base + stage.back.template.computing[0]
        arrivals = program.arrivals(stage.part, stage.microbatches)
        stage.add(size, "received copies", arrivals, reader)


def _add_layer(stage: _Stage, visit: Visit, is_received: bool) -> None:
    """What a layer's forward saves (but for a received input), and what the backward repeats.

    What is offloaded is freed when it has been sent, and there again from when it is fetched.
    """
    kept, forward, back = footprint(stage.shard, visit.layer), stage.forward.base, stage.back.base
    filler, readers = forward + visit.last, stage.backward_rows(visit.layer)
    here = stage.back.template.visits[visit.layer]
    if visit.send != NONE:
        rest = kept.saved - kept.moved
        if not is_received or rest:  # else it is the input that was received
            stage.add(kept.moved, "activations", filler, forward + visit.send)
        stage.add(kept.moved, "activations", back + here.fetch, *readers)
        if not is_received:
            stage.add(rest, "activations", filler, *readers)
    else:
        stage.add(kept.saved - kept.entry * is_received, "activations", filler, *readers)
    # Alone it is repeated inside the backward's row; a row of its own keeps it from there on.
    if here.first == here.last:
        stage.add(kept.again, "workspace", back + here.last)
    else:
        stage.add(kept.again, "activations", back + here.first, *readers)


def _add_shared(stage: _Stage) -> None:
    """Parameters gathered for one turn, whole gradients until they are reduced (ZeRO 2 and 3)."""
    each = stage.program.parallelism.reduced_bytes
    for placed in (stage.forward, stage.back, *([stage.weight] if stage.is_split else [])):
        for turn in placed.template.turns:
            last = placed.base + turn.last
            for row, size in turn.gathers:
                stage.add(PARAMETER_BYTES * size, "parameters", placed.base + row, last)
            ends = turn.reduced and turn is placed.template.ends.get("embedding")
            tied = _add_tied_gradient(stage) if ends else 0
            for row, size in turn.reduced:
                stage.add(each * (size - tied), "gradients", last, placed.base + row)


def _add_tied_gradient(stage: _Stage) -> int:
    """The gradient of a table that the embedding shares with the classifier, which begins it.

    Frameworks reduce a parameter's gradient once it is complete. Returns its parameters; 0 where no
    table is shared on this rank.
    """
    program, last = stage.program, stage.program.schedule.stages - 1
    table = program.tied_table(stage.forward.template.rank)
    if table:
        parts = ((stage.part[0], last, kind) for kind in (BACKWARD, WEIGHT))
        begun = stage.microbatches, lambda template: template.ends["classifier"].last
        filler = program.at(parts, *begun)
        reader = stage.weight.base + stage.weight.template.ends["embedding"].reduced[0].row
        stage.add(program.parallelism.reduced_bytes * table, "gradients", filler, reader)
    return table
