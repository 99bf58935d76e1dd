"""The buffers of a step: persistent parameters, gradients and states, and activations between uses.

``lower_hybrid`` adds them rank by rank and stage by stage; plans use ``persistent_bytes`` for their
bounds. ``nouns.models.large`` has the bytes that a layer saves (``footprint``). ``_saved`` of the
package adds up those of a stage again, for schedules made from them, and ``search.plan.pieces``
bounds them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from ...nouns.models.large import Shard
from ...nouns.models.large.roles import NO_LAYER
from ...nouns.models.large.shard import (
    classifier_kept,
    classifier_saved,
    classifier_workspace,
    embedding_saved,
    narrow_copies,
    stand_in_parameters,
)
from ...nouns.schedules import BACKWARD, FORWARD, INPUT, WEIGHT, Part
from ...nouns.taskgraph import PERSISTENT, Ints
from .program import NONE, PARAMETER_BYTES, Placed, Program, Turn, Visit


def add_parameters(program: Program, rank: int) -> None:
    """Add the persistent buffers of a rank."""
    layers = [number for number in program.buckets(rank) if number != NO_LAYER]
    for kind, size in persistent_bytes(program, rank, layers).items():
        program.add_buffers(rank, size, kind, PERSISTENT)


def persistent_bytes(program: Program, rank: int, layers: list[int]) -> dict[str, int]:
    """The persistent bytes, by kind of buffer, of a rank with these layers and its ends, divided
    among replicas as ZeRO does.

    They are the 16-bit parameters (with ZeRO 0 to 2 also narrow copies of weights), their
    gradients, the optimizer's state, and workspaces.
    """
    p = program.parallelism
    parameters, updated = program.updated(rank, layers)
    ends, updated_ends = program.updated(rank, [NO_LAYER])
    whole, shared = ends + parameters, updated_ends + updated
    copies = 0 if p.zero == 3 else narrow_copies(program.shard, layers)
    sizes = {
        "parameters": PARAMETER_BYTES * (shared if p.zero == 3 else whole) + copies,
        "gradients": p.gradient_bytes * (shared if p.zero >= 2 else whole),
    }
    if "optimizer" not in p.offload:
        sizes["optimizer state"] = p.state_bytes * shared
    sizes["workspace"] = _gathering_bytes(program, ends, layers)
    # Dummy gradients of Megatron-LM, in versions with fused attention; FSDP has real ones.
    if program.shard.flash and not p.reduces_by_bucket and not program.shard.software.plain:
        sizes["workspace"] += PARAMETER_BYTES * stand_in_parameters(program.shard, layers)
    return sizes


def _gathering_bytes(program: Program, ends: int, layers: list[int]) -> int:
    """The bytes of the buffers into which FSDP2 gathers parameters before it copies them out: the
    whole root at once, or a layer while the next one arrives. PyTorch's allocator keeps them for
    the gathering stream.
    """
    p = program.parallelism
    if not program.shard.software.fsdp or p.zero < 3 or p.replicas == 1:
        return 0
    each = (
        sum(program.shard.layer_parameters(layer)) * program.gathered_bytes(layer)
        for layer in layers
    )
    return max(PARAMETER_BYTES * ends, (1 + p.prefetch) * max(each, default=0))


def add_activations(program: Program, number: int) -> None:
    """Add the buffers of a stage for each microbatch."""
    for way, kind in product(range(program.ways), (BACKWARD, INPUT)):
        part = way, number, kind
        if part in program.placed:
            some = np.flatnonzero(program.placed[part].base != NONE)
            kinds = dict.fromkeys((FORWARD, kind, BACKWARD if kind == BACKWARD else WEIGHT))
            placed = [program.placed[way, number, each] for each in kinds]
            actions = [replace(each, base=each.base[some]) for each in placed]
            _Stage(program, part, some, actions[0], actions[1], actions[-1]).add_all()


@dataclass(frozen=True, slots=True)
class _Stage:
    """A stage's actions for some of its microbatches, all with a backward of one kind. ``weight``
    computes the gradients of weights; it is ``back`` where the backward is whole.
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
    def backwards(self) -> tuple[Placed, ...]:
        """The backward: one action, or two."""
        return (self.back,) if self.weight is self.back else (self.back, self.weight)

    def add(self, size: int, kind: str, filler: Ints, *readers: Ints) -> None:
        rank = self.forward.template.rank
        self.program.add_buffers(rank, size, kind, filler, *readers)

    def add_all(self) -> None:
        way, number, _ = self.part
        rows = self.program.arrivals((way, number, FORWARD), self.microbatches)
        received = None if rows[0] == NONE else rows  # None: no other rank sends the input
        visits = list(self.forward.template.visits.values())
        for visit in visits:
            self.add_layer(visit, received is not None and visit is visits[0])
        back = self.back.template
        # One workspace for a whole backward: its layers run one after the other.
        space = max((self.program.footprint(layer).workspace for layer in back.visits), default=0)
        first, last = back.computing
        readers = [self.back.base + last] if first < last else []
        self.add(space, "workspace", self.back.base + first, *readers)
        # Without a sender the input comes from a stage on this rank, which counts its bytes.
        if received is not None and visits:
            self.add_received(visits[0], received)
        self.add_ends(None if visits else received)
        self.add_shared()
        self.add_transfers()

    def last_reads(self, layer: int) -> list[Ints]:
        """The last rows that read the activations saved by a layer's forward."""
        return [placed.base + placed.template.visits[layer].last for placed in self.backwards]

    def add_received(self, visit: Visit, received: Ints) -> None:
        """Add the input of a stage, held until the backward unless it is offloaded."""
        readers = self.last_reads(visit.layer)
        if visit.send != NONE:
            readers = [self.forward.base + row for row in (visit.last, visit.send)]
        self.add(self.shard.rows_bytes, "received copies", received, *readers)

    def add_ends(self, received: Ints | None) -> None:
        """Add the buffers of the embedding and the classifier; ``received`` are the transfers of
        the input of a classifier that is alone on its stage (else None).
        """
        shard, ends = self.shard, self.forward.template.ends
        if "embedding" in ends:
            filler = self.forward.base + ends["embedding"].last
            self.add(embedding_saved(shard), "activations", filler, _end(self.weight, "embedding"))
        if "classifier" in ends:
            filler = self.forward.base + ends["classifier"].last
            reader = _end(self.back, "classifier")
            self.add(classifier_workspace(shard), "workspace", filler)
            sent = shard.rows_bytes * (received is not None)
            if received is not None:
                self.add(sent, "received copies", received, reader)
            self.add(classifier_saved(shard) - sent, "activations", filler, reader)
            self.add(classifier_workspace(shard), "workspace", reader)
            if len(self.backwards) > 1:
                last = _end(self.weight, "classifier")
                self.add(classifier_kept(shard), "activations", reader, last)

    def add_transfers(self) -> None:
        """Add the output, held until it has been sent, and its gradient, held from its arrival."""
        size = self.shard.rows_bytes
        for placed in (self.forward, self.back):
            template = placed.template
            if template.transfer != NONE:
                filler, sent = placed.base + template.computing[1], placed.base + template.transfer
                self.add(size, "activations", filler, sent)
        if self.forward.template.transfer != NONE:
            reader = self.back.base + self.back.template.computing[0]
            arrivals = self.program.arrivals(self.part, self.microbatches)
            self.add(size, "received copies", arrivals, reader)

    def add_layer(self, visit: Visit, is_received: bool) -> None:
        """Add the activations of a layer's forward (without a received input), and those that its
        backward makes again.

        Offloaded activations are freed when they have been sent, and held again from their fetch.
        """
        kept, forward, back = self.program.footprint(visit.layer), self.forward.base, self.back.base
        filler, readers = forward + visit.last, self.last_reads(visit.layer)
        here = self.back.template.visits[visit.layer]
        made = kept.saved - kept.entry * is_received
        if visit.send != NONE:
            self.add(made, "activations", filler, forward + visit.send)
            self.add(kept.saved, "activations", back + here.fetch, *readers)
        else:
            self.add(made, "activations", filler, *readers)
        # Without a separate row, recomputation is part of the backward's row; with one, activations
        # are held from that row on.
        if here.first == here.last:
            self.add(kept.again, "workspace", back + here.last)
        else:
            self.add(kept.again, "activations", back + here.first, *readers)

    def add_shared(self) -> None:
        """Add the parameters gathered for a turn, and whole gradients until they are reduced (ZeRO
        2 and 3).
        """
        each = self.program.parallelism.reduced_bytes
        for placed in (self.forward, *self.backwards):
            for turn in placed.template.turns:
                last = placed.base + turn.last
                bytes_each = self.program.gathered_bytes(turn.layer)
                readers = [last, *self.later_reads(placed, turn)]
                end = self.root_end(placed, turn)
                for sent in turn.gathers:
                    filler = placed.base + sent.row
                    if end is not None:  # gathered by the first microbatch for all
                        filler, readers = filler.min(keepdims=True), [end]
                    self.add(bytes_each * sent.parameters, "parameters", filler, *readers)
                ends = turn.reduced and turn is placed.template.ends.get("embedding")
                tied = self.add_tied_gradient() if ends else 0
                for sent in turn.reduced:
                    size = each * (sent.parameters - tied)
                    self.add(size, "gradients", last, placed.base + sent.row)

    def later_reads(self, placed: Placed, turn: Turn) -> list[Ints]:
        """The rows until which parameters gathered by a forward are kept, where the backward does
        not gather them again.
        """
        if placed is not self.forward or self.program.parallelism.reshard_after_forward:
            return []
        if turn.layer != NO_LAYER:
            return [self.back.base + self.back.template.visits[turn.layer].last]
        ends = placed.template.ends.items()
        return [_end(self.weight, name) for name, end in ends if end is turn]

    def root_end(self, placed: Placed, turn: Turn) -> Ints | None:
        """The last row until which FSDP2 keeps the parameters that a forward gathered for an end of
        the model (None: the turn is not that of an end, or they are not kept).
        """
        ends = placed.template.ends.items()
        names = [name for name, end in ends if end is turn and placed is self.forward]
        if not names or not self.shard.software.fsdp:
            return None
        rows = _end(self.weight, names[0])
        return rows[[int(rows.argmax())]]

    def add_tied_gradient(self) -> int:
        """Add the gradient of a table that the embedding shares with the classifier, whose backward
        begins it.

        Frameworks reduce a parameter's gradient once it is complete. Returns the number of the
        table's parameters; 0 where no table is shared on this rank.
        """
        program, last = self.program, self.program.schedule.stages - 1
        table = program.tied_table(self.forward.template.rank)
        if table:
            parts = ((self.part[0], last, kind) for kind in (BACKWARD, WEIGHT))
            begun = program.at(parts, self.microbatches, lambda t: t.ends["classifier"].last)
            reader = self.weight.base + self.weight.template.ends["embedding"].reduced[0].row
            self.add(program.parallelism.reduced_bytes * table, "gradients", begun, reader)
        return table


def _end(placed: Placed, end: str) -> Ints:
    """The last rows of the embedding or the classifier in these actions."""
    return placed.base + placed.template.ends[end].last
