"""The rows of a rank for one action of the schedule.

Replicas send each other parameters and gradients bucket by bucket. From ZeRO 2 on gradients are
reduced by bucket while the backward goes on; the backward waits where more than ``in_flight``
buckets are still under way. FSDP2 has one reduce_scatter in flight
(``FSDPParamGroup.post_backward``), DeepSpeed two buckets, one of which is being filled
(``overlap_comm``; without it none is in flight). ZeRO 3 gathers ``prefetch`` buckets ahead: with
one ahead there are two at a time, which is also FSDP's limit (``limit_all_gathers``). A bucket is a
layer, as FSDP is usually wrapped, the embedding or the classifier. A layer of more than ``bucket``
parameters is cut, because DeepSpeed's buckets hold no more (``reduce_bucket_size``); equal parts
are our assumption.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from ...nouns.models.large import (
    Block,
    buckets_of,
    classifier,
    copied,
    embedding,
    layer,
    roles,
    stops_early,
    whole_again,
)
from ...nouns.models.large.kernels import Loads
from ...nouns.models.large.roles import NO_LAYER
from ...nouns.models.large.shard import gathers_by_weight, sums_late
from ...nouns.schedules import BACKWARD, FORWARD, INPUT, WEIGHT, Part
from .durations import EXPERT
from .program import (
    CONTEXT_QUEUE,
    DATA_QUEUE,
    ENDS,
    EXPERT_DATA_QUEUE,
    EXPERT_QUEUE,
    EXPERT_REPLICA_QUEUE,
    EXPERT_TENSOR_QUEUE,
    FROM_HOST,
    NONE,
    REPLICA_QUEUE,
    TENSOR_QUEUE,
    TO_HOST,
    TO_NEXT,
    TO_PREVIOUS,
    Program,
    Sent,
    Template,
    Turn,
    Visit,
)

# Multiprocessors, of an H100's 132, that send tokens beside computing (DeepEP,
# docs/README_Hybrid-EP.md), or sum gradients there (Transformer Engine, ``initialize_ub``, its
# defaults, as recalled).
_TAKEN = Fraction(16, 132)
# The gradient of what attention's first product reads, without and with latents.
_INTO = "qkv dx", "queries dx"
# The first and the last product of attention and of an MLP. Transformer Engine lets no other one
# overlap with its collectives; a reduce_scatter follows its product in so many splits (the same).
_ATTENTION, _MLP = ("qkv", "projection"), ("up", "down")
_SPLITS = 4
ROLES = {
    FORWARD: roles.FORWARD,
    BACKWARD: roles.BACKWARD,
    INPUT: roles.BACKWARD,
    WEIGHT: roles.WEIGHT,
}
Calls = Sequence[tuple[str, int]]
"""Collectives by name, and their bytes as nccl-tests count them."""
Beside = tuple[str, Fraction, Fraction]
"""A product beside which a collective runs: its name, the share of the product that hides the
collective, and the share of the collective that is left in any case.
"""
_NOTHING = "", Fraction(0), Fraction(0)


def template_of(program: Program, part: Part) -> Template:
    """The rows of a stage's rank for an action of a part of the schedule."""
    way, stage, kind = part
    writer = Writer(program, program.rank(stage, way), kind)
    # A backward goes through stages, layers and ends in reverse.
    step, stages = 1 if kind == FORWARD else -1, range(program.schedule.stages)
    if kind != WEIGHT and stage - step in stages:
        writer.receive(program.rank(stage - step, way))
    if stage - step not in stages:
        writer.add_end(ENDS[::step][0])
    for number in program.stage_layers[stage][::step]:
        writer.add_layer(number)
    # The embedding has only a gradient of weights, for no op reads that of its input.
    if stage + step not in stages and kind != INPUT:
        writer.add_end(ENDS[::step][1])
    if kind != WEIGHT and stage + step in stages:
        writer.send_on(program.rank(stage + step, way))
    return writer


class Writer(Template):
    """The rows of a rank of a program for an action of a kind, while they are written."""

    def __init__(self, program: Program, rank: int, kind: str = FORWARD) -> None:
        super().__init__(rank, program.durations)
        self.program, self.shard, self.kind = program, program.shard, kind
        self.parallelism = p = program.parallelism
        self.is_split = p.sequence_parallel
        # Each rank of tp sends its share of a tensor that all of them have.
        self.is_scattered = p.scatter_gather and p.tp > 1 and not p.sequence_parallel
        self.makes_input_gradient = kind in (BACKWARD, INPUT)
        self.reduces = p.zero >= 2 and kind in (BACKWARD, WEIGHT)
        self.gathers_again = kind != WEIGHT and p.reshard_after_forward

    def receive(self, source: int) -> None:
        """Gather the tensor that the stage before or after scattered, if it is on another rank."""
        if self.is_scattered and source != self.rank:
            self._tensor([("all_gather", self.shard.rows_bytes)])

    def send_on(self, destination: int) -> None:
        """Send to the stage after or before, where it runs on another rank."""
        if destination != self.rank:
            # By neighbour and not by direction: with chunks a forward can go around to rank 0.
            following = (self.rank + 1) % self.program.schedule.ranks
            queue = TO_NEXT if destination == following else TO_PREVIOUS
            self.send(queue, destination, self.sent_bytes)

    @property
    def sent_bytes(self) -> int:
        """Bytes that a device sends to the next or the previous rank, for a microbatch."""
        parts = self.parallelism.tp if self.is_scattered else 1
        return -(-self.shard.rows_bytes // parts)

    def add_end(self, end: str) -> Writer:
        """Add the embedding or the classifier, with the collectives that join the parts of the
        ranks of tp. Returns itself.
        """
        shard, kind, words = self.shard, self.kind, self.shard.words_bytes
        is_classifier = end == "classifier"
        # A split sequence is gathered for the classifier, and its gradient for that of the
        # embedding.
        gathers = kind == FORWARD if is_classifier else kind in (BACKWARD, WEIGHT)
        if gathers and self.is_split:
            self._tensor([("all_gather", words)])
        block = classifier(shard) if is_classifier else embedding(shard)
        self._add_end_turn(end, _loads(block, kind))
        if is_classifier and self.makes_input_gradient:
            self._gather_again(block, {"classifier dx": words})
        if self.makes_input_gradient if is_classifier else kind == FORWARD:
            call = "reduce_scatter" if self.is_split else "all_reduce", words
            self._tensor_beside(call, _loads(block, kind), self._summed(end))
        return self

    def _add_end_turn(self, end: str, loads: Loads) -> None:
        """Add the turn of an end. The gradient of the embedding's table does not need the table."""
        size, used = self.shard.embedding_parameters, self.kind == FORWARD
        if end == "classifier":
            size = self.shard.classifier_parameters
            used = used or (self.gathers_again and not self.shard.software.fsdp)
        sizes = [size] * (self.parallelism.zero == 3 and used)
        sums = [self.program.end_bucket(self.rank, end)] * self.reduces
        gathered = self.gather(sizes)
        row = self.compute(ROLES[self.kind], loads + self._copied(sizes, sums))
        reduced = self.reduce(sums)
        self.ends[end] = Turn(NO_LAYER, row, row, gathered, reduced, NONE)
        self._add_turn(self.ends[end])

    def add_layer(self, number: int) -> Writer:
        """Add a layer's visit, with its collectives. Returns itself."""
        model, shard = self.shard.model, self.shard
        is_offloaded = number in self.program.offloaded
        moved = self.program.footprint(number).saved if is_offloaded else 0
        fetch = send = NONE
        if moved and self.makes_input_gradient:
            fetch = self.copy(FROM_HOST, moved, number)
        before, block = len(self.turns), self._block(number)
        self._add_layer_turns(number, block, fetch)
        first, last = self.turns[before].first, self.turns[-1].last
        if self.makes_input_gradient:
            self._exchange_again(number)
            narrow = shard.of_layer(number).joined_bytes
            gathered = {} if model.is_moe(number) else {"up dx": narrow(shard.words_bytes)}
            gathered[_INTO[model.kv_latent > 0]] = narrow(shard.gathered_bytes)
            self._gather_again(block, gathered, number)
        if self.kind != WEIGHT:
            self.exchange(number, self.kind)
        if moved and self.kind == FORWARD:
            send = self.copy(TO_HOST, moved, number)
            self.edges.append((last, send))
        self.visits[number] = Visit(number, first, last, fetch, send)
        return self

    def _block(self, number: int) -> Block:
        """The block of a layer; layers of a kind share it."""
        kind, blocks = self.shard.model.kind_of(number), self.program.blocks
        if kind not in blocks:
            blocks[kind] = layer(self.shard, number)
        return blocks[kind]

    def _add_layer_turns(self, number: int, block: Block, fetch: int) -> None:
        """Add the computation of a layer, after the forward that full recomputation repeats."""
        gathers = self.parallelism.zero == 3 and (self.kind == FORWARD or self.gathers_again)
        again = number in self.program.again and self.makes_input_gradient
        parts = buckets_of(self.shard, self.parallelism, number)
        if again:
            loads = whole_again(self.shard, block)
            self._add_turns(number, parts, roles.RECOMPUTE, loads, gathers, False, fetch)
            self.exchange(number, FORWARD, is_whole=not stops_early(self.shard))
            fetch = NONE
        # A layer of one bucket is still there from the recomputation.
        whole = again and parts == 1
        role, loads = ROLES[self.kind], _loads(block, self.kind)
        self._add_turns(number, parts, role, loads, gathers and not whole, self.reduces, fetch)
        if whole:  # the parameters gathered for the first turn serve the second, too
            first, second = self.turns[-2:]
            self.turns[-2:] = [first._replace(last=second.last, reduced=second.reduced)]

    def _add_turns(
        self,
        number: int,
        parts: int,
        role: int,
        loads: Loads,
        gathers: bool,
        reduces: bool,
        fetch: int,
    ) -> None:
        """Add the turns of a layer that computes these loads, one for each of its buckets.

        ``gathers``: parameters are collected before; ``reduces``: gradients are summed after.
        """
        bucket = self.program.bucket(self.rank, number)
        loads += self._copied(bucket * gathers, bucket * reduces, number)
        for part in range(parts):
            sizes = [size * (part + 1) // parts - size * part // parts for size in bucket]
            gathered = self.gather(sizes * gathers, number)
            row = self.compute(role, loads, number, part, parts)
            reduced = self.reduce(sizes * reduces, number)
            fetched = NONE if part else fetch
            self._add_turn(Turn(number, row, row, gathered, reduced, fetched))

    def _add_turn(self, turn: Turn) -> None:
        """Add a turn, and the edges of its rows."""
        self.turns.append(turn)
        self.edges += [(sent.row, turn.first) for sent in turn.gathers]
        self.edges += [(turn.last, sent.row) for sent in turn.reduced]
        if turn.fetch != NONE:
            self.edges.append((turn.fetch, turn.first))

    # Collectives of replicas

    def gather(self, sizes: Sequence[int], number: int = NO_LAYER) -> tuple[Sent, ...]:
        """Gather parameters from all replicas; ``sizes`` are the numbers of parameters outside of
        experts and of experts.
        """
        each = self.program.gathered_bytes(number)
        return self._among_replicas("all_gather", sizes, each, number)

    def reduce(self, sizes: Sequence[int], number: int = NO_LAYER) -> tuple[Sent, ...]:
        """Reduce gradients over all replicas. From ZeRO 1 on each replica keeps its share, and sums
        it with other groups of replicas, unless these sums wait for the last microbatch.
        """
        p = self.parallelism
        name = "reduce_scatter" if p.zero else "all_reduce"
        sent = self._among_replicas(name, sizes, p.reduced_bytes, number)
        if p.dp_replicate == 1 or sums_late(self.shard, p):
            return sent
        return self.sum_groups(sizes, number, sent)

    def sum_groups(
        self, sizes: Sequence[int], number: int, sent: Sequence[Sent]
    ) -> tuple[Sent, ...]:
        """Sum gradients over groups of replicas, after the collectives ``sent`` within them."""
        scattered, summed = iter(sent), list[Sent]()
        queues = REPLICA_QUEUE, EXPERT_REPLICA_QUEUE
        for queue, size, count in zip(queues, sizes, self.parallelism.sharers, strict=False):
            if size:
                share = -(-size // count) * self.parallelism.reduced_bytes
                end = self.collective(queue, "all_reduce", share, number)
                before = next(scattered, None) if count > 1 else None
                self.edges += [] if before is None else [(before.row, end)]
                summed.append(Sent(end if before is None else before.row, size, end))
        return tuple(summed)

    def _copied(
        self, gathered: Sequence[int], reduced: Sequence[int], number: int = NO_LAYER
    ) -> Loads:
        """The loads that copy these numbers of parameters and gradients to and from the buffers of
        collectives.
        """
        sums = (
            sum(
                size
                for size, count in zip(sizes, self.parallelism.sharers, strict=False)
                if count > 1
            )
            for sizes in (gathered, reduced)
        )
        parameters, gradients = sums
        return copied(self.shard, parameters * self.program.gathered_bytes(number), gradients)

    def _among_replicas(
        self, name: str, sizes: Sequence[int], each: int, number: int
    ) -> tuple[Sent, ...]:
        queues = DATA_QUEUE, EXPERT_DATA_QUEUE
        is_listed = gathers_by_weight(self.shard.model, self.parallelism)
        rows = [
            (self.collective(queue, name, size * each, number, count * is_listed), size)
            for queue, size, count in zip(queues, sizes, self.parallelism.sharers, strict=False)
            if size and count > 1
        ]
        return tuple(Sent(row, size, row) for row, size in rows)

    # Collectives within a replica

    def _tensor(self, calls: Calls, number: int = NO_LAYER) -> None:
        if self.parallelism.tp > 1:
            for name, size in calls:
                self.collective(TENSOR_QUEUE, name, size, number)

    def _gather_again(
        self, block: Block, products: Mapping[str, int], number: int = NO_LAYER
    ) -> None:
        """Gather the inputs of ``products`` (bytes by name) from a split sequence again, for the
        gradient of their weights: only the time by which this exceeds the gradient of their input.

        The tokens of experts are not gathered again (our assumption), nor any where autograd keeps
        them.
        """
        p = self.parallelism
        again = p.tp > 1 and self.is_split and not self.shard.software.plain
        for name, size in products.items() if again else ():
            beside = (name, Fraction(1), Fraction(0)) if p.tensor_overlap else _NOTHING
            self._tensor_beside(("all_gather", size), block.backward, beside, number)

    def _around(self, part: tuple[str, str], calls: Calls, number: int, kind: str) -> None:
        """Add the collectives of tp around a part of a layer, in one direction, beside its products
        where they overlap.
        """
        of_experts = part == _MLP and self.shard.model.is_moe(number)
        beside = {} if of_experts else self._beside(part, number, kind)
        loads = _loads(self._block(number), kind)
        for name, size in calls:
            self._tensor_beside((name, size), loads, beside.get(name, _NOTHING), number)

    def _tensor_beside(
        self, call: tuple[str, int], loads: Loads, beside: Beside, number: int = NO_LAYER
    ) -> None:
        """Add a collective of tp: only the time that is not hidden by the product beside it."""
        product, *shares = beside
        hides = tuple(load for load in loads if load.kind == product)
        if not hides:
            self._tensor([call], number)
        elif self.parallelism.tp > 1:
            left = self.left(TENSOR_QUEUE, *call, hides, *shares)
            if self.durations.columns[left].any():
                self.add(TENSOR_QUEUE, left, call[1], number)

    def _summed(self, product: str) -> Beside:
        """The product beside which the gradient of an input is summed over a split sequence."""
        p = self.parallelism
        overlaps = self.is_split and (p.tensor_overlap or p.tp_comm_overlap)
        if not overlaps or not self.shard.software.sums_beside:
            return _NOTHING
        return f"{product} dw", Fraction(1), _TAKEN

    def _beside(self, part: tuple[str, str], number: int, kind: str) -> Mapping[str, Beside]:
        """The product beside each collective around a part of a layer, by collective.

        Copy engines gather tokens around a ring, and a rank begins with its own tokens. In the
        forward a sum follows its product split by split; in the backward it runs beside the
        gradient of weights, which then lacks the multiprocessors that the sum takes. Tensors that
        are made narrow after a gather wait for all of it. A product takes as long in pieces as
        whole (our assumption).
        """
        p, (first, last) = self.parallelism, part
        split, beside = Fraction(_SPLITS - 1, _SPLITS), dict[str, Beside]()
        reads_gathered = self.shard.of_layer(number).reads_gathered(kind != FORWARD)
        if p.tp_comm_overlap and reads_gathered:
            product = first if kind == FORWARD else f"{last} dx"
            beside["all_gather"] = product, Fraction(p.tp - 1, p.tp), Fraction(0)
        if kind == FORWARD and p.tp_comm_overlap:
            beside["reduce_scatter"] = last, split, 1 - split * (1 - _TAKEN)
        elif kind != FORWARD:
            beside["reduce_scatter"] = self._summed(first)
        return beside

    def _add_context(self, number: int, kind: str) -> None:
        """Add the exchange of keys and values between the parts of each sample, and of their
        gradients.

        Around a ring it takes as long as a gather and scatter (our assumption), beside attention to
        all parts but the first (Liu et al. 2023, section 3).
        """
        p, size = self.parallelism, self.shard.context_bytes
        if p.cp == 1:
            return
        calls = ["all_gather"] if kind == FORWARD else ["all_gather", "reduce_scatter"]
        if p.context == "all_gather":
            for name in calls:
                self.collective(CONTEXT_QUEUE, name, size, number)
            return
        block, size = self._block(number), size * len(calls)
        loads = block.forward if kind == FORWARD else block.backward
        core = tuple(load for load in loads if load.op_class == "attention")
        left = self.left(CONTEXT_QUEUE, "all_gather", size, core, Fraction(p.cp - 1, p.cp))
        self.add(CONTEXT_QUEUE, left, size, number)

    def exchange(self, number: int, kind: str, is_whole: bool = True) -> Writer:
        """Add the collectives of a layer in one direction: those of tp, of the parts of each
        sample, and of experts, which get tokens and send them back. Returns itself.

        tp has one for each of the two parts of a layer, two where the sequence is split; each token
        goes to top_k experts. A recomputed layer that is not ``is_whole`` ends before its last
        collective.
        """
        shard, is_gradient = self.shard.of_layer(number), kind != FORWARD
        # In the backward the gradient of attention's output comes in, that of its input goes out.
        into, out = (shard.gathered_bytes, shard.words_bytes)[:: -1 if is_gradient else 1]
        first = self._calls(shard.joined_bytes(into, is_gradient), out)
        second = self._second_calls(number, is_gradient)
        self._around(_ATTENTION, first, number, kind)
        self._around(_MLP, second if is_whole else second[:-1], number, kind)
        self._add_context(number, kind)
        self._exchange_tokens(number, kind)
        return self

    def _calls(self, gathered: int, scattered: int) -> Calls:
        """The collectives of tp around a part of a layer, in one direction."""
        if not self.is_split:
            return [("all_reduce", scattered)]
        return [("all_gather", gathered), ("reduce_scatter", scattered)]

    def _second_calls(self, number: int, is_gradient: bool = False) -> Calls:
        """The collectives of tp in a layer's second part, in one direction. Tokens of experts are
        gathered in 16 bits.
        """
        shard, model, size = self.shard.of_layer(number), self.shard.model, self.shard.words_bytes
        if not self.is_split or not model.is_moe(number):
            return self._calls(shard.joined_bytes(size, is_gradient), size)
        second = size * (model.shared_experts > 0)
        if not self.parallelism.is_folded:
            second += shard.busiest(size * model.top_k)
        return self._calls(second, second) if second else []

    def _exchange_tokens(self, number: int, kind: str, is_again: bool = False) -> None:
        """Add the sending of tokens to their experts and back. Where experts have their own grid,
        tokens go to all parts of an expert, whose outputs are summed.
        """
        p, shard = self.parallelism, self.shard
        if not shard.model.is_moe(number):
            return
        sizes = shard.exchanged_bytes(self.durations.nodes(EXPERT, self.rank)) if p.ep > 1 else ()
        self._send_tokens(number, kind, sizes[:1], is_again)
        if p.is_folded and p.expert_tp > 1:
            # These collectives come between the way to the experts and the way back.
            for name in ("all_gather", "reduce_scatter"):
                self.collective(EXPERT_TENSOR_QUEUE, name, shard.gathered_expert_bytes, number)
        self._send_tokens(number, kind, sizes[1:], is_again)

    def _send_tokens(
        self, number: int, kind: str, sizes: Sequence[int], is_again: bool = False
    ) -> None:
        """Add the sending of tokens in one direction, beside the computation of another microbatch
        under ``ep_comm_overlap``.
        """
        setting, p = self.shard.setting, self.parallelism
        for size in sizes:
            is_launched = setting.graphs != "full" and not self.durations.is_replayed(self.rank)
            sent = self.durations.dispatched(self.rank, size, setting.dispatcher, is_launched)
            if p.ep_comm_overlap and p.microbatches > 1 and not is_again:
                # The other microbatch goes the other way through the layer; it is computed beside
                # tokens on their way there and tokens on their way back.
                other = _loads(self._block(number), BACKWARD if kind == FORWARD else FORWARD)
                sent = self.durations.beside(self.rank, sent, other, Fraction(1, 2), _TAKEN)
            self.add(EXPERT_QUEUE, sent, size, number)

    def _exchange_again(self, number: int) -> None:
        """Add the collectives that selective recomputation repeats."""
        shard, model = self.shard.of_layer(number), self.shard.model
        is_moe = model.is_moe(number)
        second = ("moe" if is_moe else "mlp") in shard.again
        if second:
            self._exchange_tokens(number, FORWARD, is_again=True)
        if "per_op" in shard.again and self.is_split and shard.software.plain:
            # Scattered tensors are kept.
            sizes = shard.gathered_bytes, shard.words_bytes
            self._tensor([("all_gather", shard.joined_bytes(size)) for size in sizes], number)
        if "mla_up_proj" in shard.again and model.kv_latent and self.is_split:
            self._tensor([("all_gather", shard.joined_bytes(shard.gathered_bytes))], number)
        if second:
            self._around(_MLP, self._second_calls(number), number, FORWARD)
        elif "shared_experts" in shard.again and is_moe and model.shared_experts:
            self._tensor(self._calls(shard.words_bytes, shard.words_bytes), number)


def _loads(block: Block, kind: str) -> Loads:
    """The loads of an action; a backward starts with what selective recomputation repeats."""
    return {
        FORWARD: block.forward,
        BACKWARD: block.again + block.backward + block.weight,
        INPUT: block.again + block.backward,
        WEIGHT: block.weight,
    }[kind]
