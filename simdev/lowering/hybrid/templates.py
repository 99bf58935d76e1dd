"""What a rank does for one action of the schedule: a template for each stage and kind of action."""

from __future__ import annotations

from collections.abc import Mapping

from ...nouns.models.large import Block, buckets_of, classifier, embedding, footprint, layer, roles
from ...nouns.models.large.roles import NO_LAYER
from ...nouns.models.large.work import Loads
from ...nouns.schedules import BACKWARD, FORWARD, INPUT, WEIGHT
from .grid import EXPERT
from .program import (
    CONTEXT_QUEUE,
    EXPERT_QUEUE,
    FROM_HOST,
    NONE,
    TENSOR_QUEUE,
    TO_HOST,
    TO_NEXT,
    TO_PREVIOUS,
    Program,
    Template,
    Turn,
    Visit,
)
from .replicas import add_turn, add_turns, gather, join_turns, reduce

# The gradient of what attention's first product reads, without and with latents.
_INTO = "qkv dx", "queries dx"
ROLES = {
    FORWARD: roles.FORWARD,
    BACKWARD: roles.BACKWARD,
    INPUT: roles.BACKWARD,
    WEIGHT: roles.WEIGHT,
}


def template_of(program: Program, stage: int, kind: str, way: int = 0) -> Template:
    """What the rank of a stage does for an action."""
    template = Template(program.rank(stage, way), program.durations, way)
    first, last = stage == 0, stage == program.schedule.stages - 1
    forward = kind == FORWARD
    layers = program.stage_layers[stage]
    if kind != WEIGHT:
        _add_received(program, template, stage - 1 if forward else stage + 1)
    if first and forward:
        _add_end(program, template, "embedding", kind)
    if last and not forward:
        _add_end(program, template, "classifier", kind)
    # A backward meets the layers from the last to the first.
    for number in layers if forward else reversed(layers):
        _add_visit(program, template, number, kind)
    if last and forward:
        _add_end(program, template, "classifier", kind)
    # The gradient of the embedding's input has no reader: there is only that of its weights.
    if first and kind in (BACKWARD, WEIGHT):
        _add_end(program, template, "embedding", kind)
    if kind != WEIGHT:
        _add_send(program, template, stage + 1 if forward else stage - 1)
    return template


def layer_template(program: Program, rank: int, number: int, kind: str) -> Template:
    """A layer's part of an action of this kind on a rank, alone."""
    template = Template(rank, program.durations)
    _add_visit(program, template, number, kind)
    return template


def exchanges_template(program: Program, rank: int, number: int) -> Template:
    """What a layer's forward exchanges on a rank, alone."""
    template = Template(rank, program.durations)
    _add_exchanges(program, template, number, FORWARD)
    return template


def end_template(program: Program, rank: int, end: str, kind: str) -> Template:
    """The part that the embedding or the classifier has in such an action, alone."""
    template = Template(rank, program.durations)
    _add_end(program, template, end, kind)
    return template


def _block_loads(block: Block, kind: str) -> Loads:
    """The loads of an action; a backward starts with what selective recomputation repeats."""
    return {
        FORWARD: block.forward,
        BACKWARD: block.again + block.backward + block.weight,
        INPUT: block.again + block.backward,
        WEIGHT: block.weight,
    }[kind]


def _add_end(program: Program, template: Template, end: str, kind: str) -> None:
    """The embedding or the classifier, with what joins the parts that the ranks of tp have."""
    shard, p = program.shard, program.parallelism
    is_classifier = end == "classifier"
    # A split sequence is gathered for the classifier, and its gradient for that of the embedding.
    gathers = kind == FORWARD if is_classifier else kind in (BACKWARD, WEIGHT)
    if gathers and p.sequence_parallel:
        _add_tensor(program, template, [("all_gather", shard.words_bytes)])
    block = classifier(shard) if is_classifier else embedding(shard)
    _add_end_turn(program, template, end, kind, _block_loads(block, kind))
    if is_classifier and kind in (BACKWARD, INPUT):
        _add_gathered_again(program, template, block, {"classifier dx": shard.words_bytes})
    if kind in ((BACKWARD, INPUT) if is_classifier else (FORWARD,)):
        name = "reduce_scatter" if p.sequence_parallel else "all_reduce"
        _add_tensor(program, template, [(name, shard.words_bytes)])


def _add_end_turn(program: Program, template: Template, end: str, kind: str, loads: Loads) -> None:
    """An end's turn. The gradient of the embedding's table does not need the table."""
    shard, zero = program.shard, program.parallelism.zero
    users: tuple[str, ...]
    size, users = shard.embedding_parameters, (FORWARD,)
    if end == "classifier":
        size, users = shard.classifier_parameters, (FORWARD, BACKWARD, INPUT)
    gathered = gather(program, template, [size]) if zero == 3 and kind in users else ()
    row = template.compute(ROLES[kind], loads)
    sums = zero >= 2 and kind in (BACKWARD, WEIGHT)
    sizes = [program.end_bucket(template.rank, end)] * sums
    reduced = reduce(program, template, sizes)
    template.ends[end] = Turn(NO_LAYER, row, row, gathered, reduced, NONE)
    add_turn(template, template.ends[end])


def _add_tensor(
    program: Program, template: Template, calls: list[tuple[str, int]], number: int = NO_LAYER
) -> None:
    if program.parallelism.tp > 1:
        for name, size in calls:
            template.collective(TENSOR_QUEUE, name, size, number)


def _add_gathered_again(
    program: Program,
    template: Template,
    block: Block,
    products: Mapping[str, int],
    number: int = NO_LAYER,
) -> None:
    """What products read of a split sequence, so many bytes each, once more for the gradient of
    their weights: as far as it takes longer than the gradient of their input.

    The tokens that experts get are there (ours).
    """
    p = program.parallelism
    if p.tp == 1 or not p.sequence_parallel:
        return
    for name, size in products.items():
        hides = tuple(load for load in block.backward if load.kind == name) * p.tensor_overlap
        template.exceed(TENSOR_QUEUE, "all_gather", size, hides, number)


def _add_context(program: Program, template: Template, number: int, kind: str) -> None:
    """Keys and values of the other parts of each sample, and gradients back to them.

    Around a ring they take as long as if they were gathered and scattered (ours), beside attention
    to all parts but the first (Liu et al. 2023, section 3).
    """
    p, size = program.parallelism, program.shard.context_bytes
    if p.cp == 1:
        return
    calls = ["all_gather"] if kind == FORWARD else ["all_gather", "reduce_scatter"]
    if p.context == "all_gather":
        for name in calls:
            template.collective(CONTEXT_QUEUE, name, size, number)
        return
    block = program.blocks[program.shard.model.kind_of(number)]
    loads = block.forward if kind == FORWARD else block.backward
    core = tuple(load for load in loads if load.op_class == "attention")
    template.around("all_gather", size * len(calls), core, number)


def _add_exchanges(program: Program, template: Template, number: int, kind: str) -> None:
    """Collectives of tp in a layer, one way, of the parts of each sample, and of experts: tokens to
    their experts and back.

    Of tp there is one for each of the two parts, two where the sequence is split; between the
    experts each token is there top_k times.
    """
    shard, size = program.shard, program.shard.words_bytes
    calls = [("all_reduce", size)]
    if program.parallelism.sequence_parallel:
        calls = [("all_gather", shard.gathered_bytes), ("reduce_scatter", size)]
    _add_tensor(program, template, [*calls, *_second_calls(program, number)], number)
    _add_context(program, template, number, kind)
    _add_experts_exchange(program, template, number)


def _second_calls(program: Program, number: int) -> list[tuple[str, int]]:
    """Collectives of tp in a layer's second part, one way."""
    shard, model = program.shard, program.shard.model
    size = second = shard.words_bytes
    if not program.parallelism.sequence_parallel:
        return [("all_reduce", size)]
    if model.is_moe(number):
        second = shard.busiest(size * model.top_k) + size * (model.shared_experts > 0)
    return [("all_gather", second), ("reduce_scatter", second)]


def _add_experts_exchange(program: Program, template: Template, number: int) -> None:
    """Tokens to their experts, and back."""
    shard = program.shard
    if program.parallelism.ep > 1 and shard.model.is_moe(number):
        nodes = program.durations.nodes(EXPERT, template.rank)
        for size in shard.exchanged_bytes(nodes):
            template.collective(EXPERT_QUEUE, "all_to_all", size, number)


def _add_exchanges_again(program: Program, template: Template, number: int) -> None:
    """Collectives within what selective recomputation makes again."""
    shard, model = program.shard, program.shard.model
    size, is_split = shard.words_bytes, program.parallelism.sequence_parallel
    calls: list[tuple[str, int]] = []
    if "mla_up_proj" in shard.again and model.kv_latent and is_split:
        calls += [("all_gather", shard.gathered_bytes)]
    if ("moe" if model.is_moe(number) else "mlp") in shard.again:
        calls += _second_calls(program, number)
        if model.is_moe(number):
            _add_experts_exchange(program, template, number)
    elif "shared_experts" in shard.again and model.is_moe(number) and model.shared_experts:
        names = ("all_gather", "reduce_scatter") if is_split else ("all_reduce",)
        calls += [(name, size) for name in names]
    _add_tensor(program, template, calls, number)


def _add_visit(program: Program, template: Template, number: int, kind: str) -> None:
    """A layer's turn."""
    p, kind_of = program.parallelism, program.shard.model.kind_of(number)
    if kind_of not in program.blocks:  # layers of one kind have one block
        program.blocks[kind_of] = layer(program.shard, number)
    block, back = program.blocks[kind_of], kind in (BACKWARD, INPUT)
    shard = program.shard
    moved = footprint(program.shard, number).moved if "activations" in p.offload else 0
    fetch = template.copy(FROM_HOST, moved, number) if moved and back else NONE
    before = len(template.turns)
    _add_layer_turns(program, template, number, kind, block, fetch)
    first, last = template.turns[before].first, template.turns[-1].last
    if back:
        _add_exchanges_again(program, template, number)
        gathered = {} if program.shard.model.is_moe(number) else {"up dx": shard.words_bytes}
        gathered[_INTO[shard.model.kv_latent > 0]] = shard.gathered_bytes
        _add_gathered_again(program, template, block, gathered, number)
    if kind != WEIGHT:
        _add_exchanges(program, template, number, kind)
    send = NONE
    if moved and kind == FORWARD:
        send = template.copy(TO_HOST, moved, number)
        template.edges.append((last, send))
    template.visits[number] = Visit(number, first, last, fetch, send)


def _add_layer_turns(
    program: Program, template: Template, number: int, kind: str, block: Block, fetch: int
) -> None:
    """What a layer computes, behind what full recomputation repeats."""
    p = program.parallelism
    gathers, sums = p.zero == 3 and kind != WEIGHT, p.zero >= 2 and kind in (BACKWARD, WEIGHT)
    again = p.recompute == "full" and kind in (BACKWARD, INPUT)
    if again:
        role, loads = roles.RECOMPUTE, block.forward
        add_turns(program, template, number, role, loads, gathers, False, fetch)
        _add_exchanges(program, template, number, FORWARD)
        fetch = NONE
    # A layer of one bucket is still there from the recomputation.
    whole = again and buckets_of(program.shard, p, number) == 1
    role, loads = ROLES[kind], _block_loads(block, kind)
    add_turns(program, template, number, role, loads, gathers and not whole, sums, fetch)
    if whole:
        join_turns(template)


def _is_scattered(program: Program) -> bool:
    """Whether the ranks of tp share out a tensor that all of them have, to send it."""
    p = program.parallelism
    return p.scatter_gather and p.tp > 1 and not p.sequence_parallel


def transfer_bytes(program: Program) -> int:
    """What a device sends to the next or the previous rank, for a microbatch."""
    size = program.shard.rows_bytes
    return -(-size // program.parallelism.tp) if _is_scattered(program) else size


def _crosses(program: Program, template: Template, other: int) -> bool:
    """Whether there is another stage of this number, on another rank."""
    is_stage = 0 <= other < program.schedule.stages
    return is_stage and program.rank(other, template.way) != template.rank


def _add_received(program: Program, template: Template, other: int) -> None:
    """What the stage before or after scattered is gathered, where it runs on another rank."""
    if _is_scattered(program) and _crosses(program, template, other):
        _add_tensor(program, template, [("all_gather", program.shard.rows_bytes)])


def _add_send(program: Program, template: Template, other: int) -> None:
    """To the stage after or before, where it runs on another rank."""
    if _crosses(program, template, other):
        destination = program.rank(other, template.way)
        size = transfer_bytes(program)
        # By neighbour rather than direction: with chunks a forward can go around to the first rank.
        following = (template.rank + 1) % program.schedule.ranks
        queue = TO_NEXT if destination == following else TO_PREVIOUS
        template.send(queue, destination, size)
