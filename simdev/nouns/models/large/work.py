"""The work of a layer's shard: products, attention and passes over memory, as loads of the
roofline, each with a similar op of profiles. ``simdev/lowering/hybrid`` puts the blocks in order
and gets their times from the ladder of costs.

Bytes are counted for kernels as frameworks fuse them: scale, mask and softmax; bias, dropout and
addition; bias and GELU; SwiGLU; and the addition of a weight's gradient to the sum in its product
(Megatron-LM, ``megatron/core/fusions``). Fused attention counts ``Transformer.pairs`` of tokens,
other attention all pairs.

A product takes the time of the measured product: its arithmetic hides the addition of a gradient to
its sum. A fused pass over memory takes the time of a similar plain op in proportion to their bytes.
Measured attention is causal.

The bytes that these kernels leave in memory are counted in ``shard``. ``Transformer.flops`` counts
the FLOPs of a whole step again, in closed form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .kernels import (
    BACKWARD,
    DTYPE,
    FORWARD,
    Block,
    Kernel,
    Like,
    Loads,
    gemm,
    kernel_of,
    linear,
    linears,
    narrowed,
    norm,
    pass_like,
    passes_of,
    product_of,
    residual,
)
from .shard import Shard, narrow_weights
from .transformer import BLOCK, CHUNK


def _core(s: Shard, number: int) -> Block:
    """Attention itself: one op, or two products with a softmax (and dropout) over all scores."""
    q, o = 2 * s.tokens * s.queries, 2 * s.tokens * s.context
    k, v = 2 * s.tokens * s.cp * s.keys, 2 * s.tokens * s.cp * s.values
    if s.flash:
        return _fused(s, number, q + k + v, o)
    return _all_scores(s, q, k, v, o).repeated("core_attn" in s.again)


def _fused(s: Shard, number: int, read: int, written: int) -> Block:
    """Attention as one op, like cuDNN's as PyTorch runs it: causal, with the keys of all heads.

    The backward computes the scores again: five products for the forward's two.
    """
    m, heads = s.model, s.model.heads // s.tp
    rows = [s.samples, heads, m.length]
    each, value, row = [*rows, m.head_width], [*rows, m.value_head], [*rows, 1]
    kind, scalar = "scaled_dot_product_cudnn_attention", (list[int](), "int64")
    attrs: dict[str, Any] = {"is_causal": True, "compute_log_sumexp": True}
    once = Like(kind, [each, each, value], [value, row, [], []], attrs=attrs)
    operands, made = [value, each, each, value, value], [each, each, value]
    attrs = {"is_causal": True, "max_q": m.length, "max_k": m.length}
    others = [(row, "float32"), scalar, scalar]
    twice = Like(f"{kind}_backward", operands, made, BACKWARD, attrs, others=others)
    # With a limited reach no measured op is similar: measured attention is causal.
    likes = (once, twice) if m.reach(number) == m.length else (None, None)
    pair, part = 2 * s.pairs(number) * heads, 1 / s.cp  # an equal part of the pairs
    ahead = pair * (m.head_width + m.value_head)
    back = pair * (3 * m.head_width + 2 * m.value_head)
    attains = s.software.attention or (0.0, 0.0)
    if any(attains):
        likes = None, None  # measured rows are of another kernel
    sizes = (read, written, ahead), (read + 2 * written, read, back)
    forward = kernel_of("attention", "attention", *sizes[0], likes[0], DTYPE, part, attains[0])
    backward = kernel_of("attention dx", "attention", *sizes[1], likes[1], DTYPE, part, attains[1])
    return Block(forward, backward)


def _all_scores(s: Shard, q: int, k: int, v: int, o: int) -> Block:
    """Attention that keeps all its scores, from the bytes of queries, keys, values and output."""
    m, e, stack = s.model, s.scores, [s.model.heads // s.tp * s.samples, s.model.length]
    rows, wide, value = [*stack, m.length], [*stack, m.head_width], [*stack, m.value_head]
    scores, weighed = 2 * e * m.head_width, 2 * e * m.value_head
    dims: dict[str, Any] = {"dim": -1}
    softmax = Like("softmax", [rows], [rows], attrs=dims, moved=4 * e)
    dims_dx = {**dims, "input_dtype": DTYPE}
    softmax_dx = Like("softmax_backward", [rows, rows], [rows], BACKWARD, dims_dx, 6 * e)
    drop, drop_dx = pass_like("mul", rows, 2), pass_like("mul", rows, 2, BACKWARD)
    return Block(
        gemm("scores", q + k, 2 * e, scores, [wide, wide], rows, "b", FORWARD)
        + kernel_of("softmax", "softmax", 2 * e, 2 * e, like=softmax)
        + kernel_of("dropout", "elementwise", 2 * e, 3 * e, like=drop) * m.dropout
        + gemm("context", 2 * e + v, o, weighed, [rows, value], value, phase=FORWARD),
        gemm("context dx", o + v, 2 * e, weighed, [value, value], rows, "b")
        + gemm("context dv", 2 * e + o, v, weighed, [rows, value], value, "a")
        + kernel_of("dropout dx", "elementwise", 3 * e, 2 * e, like=drop_dx) * m.dropout
        + kernel_of("softmax dx", "softmax", 4 * e, 2 * e, like=softmax_dx)
        + gemm("scores dq", 2 * e + k, q, scores, [rows, wide], wide)
        + gemm("scores dk", 2 * e + q, k, scores, [rows, wide], wide, "a"),
    )


def _into(s: Shard) -> Block:
    """Queries, keys and values of the tokens, by way of latents where the model has them.

    The product to the latents is on all ranks of tp, each for its share of a split sequence
    (Megatron-LM, ``multi_latent_attention.py``).
    """
    m, h = s.model, s.model.hidden
    if not m.kv_latent:
        gate = (s.context,) if m.attention_gate else ()
        return linears(s, "qkv", s.tokens, h, (s.queries, s.keys, s.values, *gate))
    block = linear(s, "latents", s.rows, h, m.latents)
    for latent in filter(None, (m.query_latent, m.kv_latent)):
        block += norm(s, s.rows, latent)
    rest = s.queries - m.heads // s.tp * m.rotary_width
    up = linear(s, "queries", s.tokens, m.query_latent or h, s.queries, "input")
    up += linear(s, "keys and values", s.tokens, m.kv_latent, rest + s.values, "input")
    return block + up.repeated("mla_up_proj" in s.again)


def _rotary(s: Shard) -> Block:
    """Rotation of queries and keys; with latents only of the part that holds the position, which is
    then concatenated to each key.
    """
    m = s.model
    queries = m.heads // s.tp * m.rotary_width if m.kv_latent else s.queries
    if "rotary" in s.software.passes:
        return passes_of(s, "rotary", s.tokens * (queries + s.keys)) + _repeated_keys(s)
    size = 2 * s.tokens * (queries + s.keys)
    like = pass_like("mul", [s.tokens, queries + s.keys], 2)
    rotary = kernel_of("rotary", "elementwise", size, size, like=like)
    return Block(rotary, rotary).repeated(m.kv_latent > 0 and "mla_up_proj" in s.again)


def _repeated_keys(s: Shard) -> Block:
    """Keys and values copied for each head that shares them, and the sums of their gradients."""
    m, few = s.model, 2 * s.tokens * (s.keys + s.values)
    if m.kv_heads == m.heads:
        return Block((), ())
    many = few * (m.heads // m.kv_heads)
    return Block(
        kernel_of("repeat keys", "data_movement", few, many),
        kernel_of("repeat keys dx", "data_movement", many, few),
    )


def _in_order(s: Shard, is_gathered: bool = False) -> Block:
    """The pass that puts parts which tp gathers before a part of a layer (``is_gathered``) or
    scatters after it in order along the sequence. With overlap the parts arrive in order in memory
    that ranks share, and each rank adds up the parts sent to it (PyTorch, ``_symmetric_memory``;
    recalled).
    """
    if not s.software.plain or s.rows == s.tokens:
        return Block((), ())
    size = s.words_bytes
    order = kernel_of("order", "data_movement", size, size)
    if s.overlaps:
        sent = kernel_of("shared part", "data_movement", s.rows_bytes, s.rows_bytes)
        added = kernel_of("sum of parts", "elementwise", size, s.rows_bytes)
        back = sent if s.reads_gathered(is_gradient=True) else order
        return Block(sent, order) if is_gathered else Block(added, back)
    if is_gathered and s.gathers_narrow():
        return Block(kernel_of("order", "data_movement", size // 2, size // 2), order)
    return Block(order, order)


def _attention(s: Shard, number: int) -> Block:
    m = s.model
    if m.is_linear(number):
        inner = _lightning(s) if m.is_lightning else _delta_net(s)
        return norm(s).repeated("layernorm" in s.again) + inner
    before = norm(s).repeated("layernorm" in s.again) + _in_order(s, True) + _into(s)
    if m.head_norms:
        before += norm(s, s.tokens * (m.heads + m.kv_heads) // s.tp, m.head_width)
    if m.joint_norms:  # the sums over the ranks of tp, a number a token, are left out (ours)
        before += norm(s, s.tokens, s.queries) + norm(s, s.tokens, s.keys)
    if not m.positions:
        before += _rotary(s)
    gate = _gate(s.tokens * s.context) if m.attention_gate else Block((), ())
    after = gate + linear(s, "projection", s.tokens, s.context, m.hidden, "output")
    return before + _core(s, number) + after + _in_order(s)


def _gate(count: int) -> Block:
    """``count`` numbers multiplied by the sigmoid of as many others."""
    return Block(
        kernel_of("gate", "elementwise", 4 * count, 2 * count),
        kernel_of("gate dx", "elementwise", 6 * count, 4 * count),
    )


def _lightning(s: Shard) -> Block:
    """Lightning attention: a product with SiLU, the sums over blocks, a norm over all heads (its
    sums over the ranks of tp are left out, ours), a gate, and the projection (transformers,
    ``MiniMaxLightningAttention``). The sums are one kernel forward and two backward, which keep the
    states on chip (Qin et al. 2024, arXiv 2401.04658, algorithms 1 and 2).
    """
    m, tokens, values = s.model, s.tokens, s.tokens * s.linear_values
    x, within, across = 2 * values, 2 * values * BLOCK, 2 * values * m.linear_width
    mixed = 3 * x
    before = Block(
        kernel_of("activation", "elementwise", mixed, mixed),
        kernel_of("activation dx", "elementwise", 2 * mixed, mixed),
    )
    name = "lightning attention"
    sums = Block(
        kernel_of(name, "attention", 3 * x, x, 2 * (within + across)),
        kernel_of(f"{name} dq", "attention", 3 * x, x, 2 * (within + across))
        + kernel_of(f"{name} dkv", "attention", 4 * x, 2 * x, 4 * within + 3 * across),
    )
    into = linear(s, "qkv", tokens, m.hidden, m.linear_into // s.tp, "input")
    after = norm(s, tokens, s.linear_values) + _gate(values)
    return (
        into + before + sums + after
        + linear(s, "projection", tokens, s.linear_values, m.hidden, "output")
    )  # fmt: skip


def _delta_net(s: Shard) -> Block:
    """Gated DeltaNet: a product, a convolution with SiLU, queries and keys repeated for the heads
    of values and normed, the rule, a gated norm of each head, and the projection (Yang et al. 2024,
    section 3.4; Megatron-Core, ``ssm/gated_delta_net.py``; recalled).
    """
    m, h, tokens = s.model, s.model.hidden, s.tokens
    mixed, x = 2 * tokens * m.mixed_width // s.tp, 2 * tokens * s.linear_values
    keys = 2 * 2 * tokens * s.linear_keys
    between = Block(
        kernel_of("convolution", "elementwise", mixed, mixed)
        + kernel_of("keys repeated", "data_movement", keys, 2 * x)
        + kernel_of("keys normed", "norm", 2 * x, 2 * x),
        kernel_of("keys normed dx", "norm", 4 * x, 2 * x)
        + kernel_of("keys repeated dx", "data_movement", 2 * x, keys)
        + kernel_of("convolution dx", "elementwise", 2 * mixed, mixed),
    )
    normed = Block(
        kernel_of("gated norm", "norm", 2 * x, x), kernel_of("gated norm dx", "norm", 3 * x, 2 * x)
    )
    into = linear(s, "qkv", tokens, h, m.linear_into // s.tp, "input")
    return (
        into
        + between
        + _delta_rule(s)
        + normed
        + linear(s, "projection", tokens, s.linear_values, h, "output")
    )


def _delta_rule(s: Shard) -> Block:
    """The gated delta rule over chunks (Yang et al. 2024, section 3.3): the kernels of
    flash-linear-attention's ``chunk_gated_delta_rule``, each with the tensors that it reads and
    writes and its products, ``within`` a chunk or ``across`` it with the state (recalled).
    """
    x, values = 2 * s.tokens * s.linear_values, s.tokens * s.linear_values
    scores, states = s.tokens * s.model.linear_heads // s.tp * CHUNK, 2 * s.linear_states
    within, across = 2 * values * CHUNK, 2 * values * s.model.linear_width

    def part(name: str, read: int, written: int, flops: int) -> Loads:
        return kernel_of(f"delta rule {name}", "attention", read, written, flops)

    again = part("values", 2 * x + 2 * scores, 2 * x, 2 * within)
    again += part("states", 3 * x, x + states, 2 * across)
    return Block(
        part("scores", x, 4 * scores, within)
        + part("inverse", 4 * scores, 2 * scores, 0)
        + again
        + part("output", 3 * x + states, x, 2 * within + across),
        again
        + part("dv", 3 * x, x, 2 * within)
        + part("states dx", 5 * x, x + states, 3 * across)
        + part("dqk", 6 * x + 2 * states, 3 * x, 3 * (within + across))
        + part("values dx", 4 * x + 2 * scores, 2 * x, 6 * within),
    )


def _activation(s: Shard, tokens: int, inner: int) -> Block:
    if "activation" in s.software.passes and s.model.gated:
        return passes_of(s, "activation", tokens * inner)
    x = 2 * tokens * inner
    into = 2 * x if s.model.gated else x
    kind = "silu" if s.model.gated else "gelu"
    like = pass_like(kind, [tokens, inner], 1)
    back = pass_like(f"{kind}_backward", [tokens, inner], 2, BACKWARD)
    return Block(
        kernel_of("activation", "elementwise", into, x, like=like),
        kernel_of("activation dx", "elementwise", into + x, into, like=back),
    )


def _mlp(s: Shard, tokens: int, inner: int, activation: str = "mlp_act") -> Block:
    """Two products with an activation between them; with a gate the first makes gate and value
    together.

    ``activation`` is the name of the activation among the recomputed modules.
    """
    h = s.model.hidden
    first = linears(s, "up", tokens, h, [inner] * (s.model.matrices - 1))
    between = _activation(s, tokens, inner).repeated(activation in s.again)
    return first + between + linear(s, "down", tokens, inner, h, "output")


def _experts(s: Shard) -> Block:
    """Router, the experts on this device with their share of the tokens (even, or the busiest
    device's), and the shared experts.

    Tokens are sorted by expert before and after.
    """
    m, inner = s.model, s.model.expert_inner // s.expert_tp
    whole = replace(s, rows=s.tokens)  # their tokens are gathered in 16 bits
    size = 2 * s.busiest(s.rows * m.top_k) * m.hidden
    # Each copy of a token that is sent separately is also sorted before it is sent.
    is_sent_sorted = s.ep > 1 and not s.setting.dispatcher.once
    sort = kernel_of("sort", "data_movement", size, size) * (4 if is_sent_sorted else 2)
    # Each of the ep ranks sends tokens x top_k rows, and the experts here get the same number.
    tokens = -(-s.busiest(s.expert_tokens * m.top_k) * s.ep // m.experts)
    # One more output where the shared experts have a gate.
    block = product_of(s, "router", s.rows, m.hidden, m.experts + m.shared_gate)
    block += Block(sort, sort) + _launched(s)
    expert = _mlp(whole, tokens, inner, "moe_act")
    # One product for each expert: grouped kernels take as long where every expert has many tokens.
    block += expert.times(m.experts // s.ep)
    if m.bias:
        block += _expert_bias(s, s.busiest(s.expert_tokens * m.top_k) * m.hidden)
    if m.shared_experts:
        shared = _mlp(whole, s.tokens, m.expert_inner // s.tp * m.shared_experts)
        shared += _gate(s.rows * m.hidden) if m.shared_gate else Block((), ())
        block += shared.repeated("shared_experts" in s.again)
    return block.repeated("moe" in s.again)


def _expert_bias(s: Shard, count: int) -> Block:
    """The second bias of experts, times the router's float32 probability of each token: separate
    ops for product, sum, concatenation and rounding, and for their gradients (Megatron-Core,
    ``TEGroupedMLP._apply_bias``).
    """
    forward = kernel_of("expert bias", "elementwise", 14 * count, 14 * count)
    return Block(forward, kernel_of("expert bias dx", "elementwise", 22 * count, 14 * count))


# Launches of a layer with experts, forward and backward, as counted in Megatron-Core and the
# Transformer Engine (ours; fused, the router and the steps before tokens are sent launch 31
# kernels, deepseek-v3-gb200-optimization.md, section 2.1.4).
OTHER_LAUNCHES = 56, 80
ROUTED_LAUNCHES = 20, 30
EXPERT_LAUNCHES = 4, 8


def _launched(s: Shard) -> Block:
    """The host's launches of a layer with experts for which the device waits.

    The host needs the number of tokens of each expert from the device before it can launch the
    experts, so it cannot run ahead (``deepseek-v3-gb200-optimization.md``, section 3.1).
    """
    setting = s.setting
    if not setting.holds_up:
        return Block((), ())
    local, is_partial = s.model.experts // s.ep, setting.graphs == "partial"
    counts = zip(OTHER_LAUNCHES, ROUTED_LAUNCHES, EXPERT_LAUNCHES, strict=True)
    totals = [other * (not is_partial) + routed + each * local for other, routed, each in counts]
    return Block(*((replace(kernel_of("host", "other", 0, 0)[0], launches=n),) for n in totals))


def layer(s: Shard, number: int) -> Block:
    """A whole layer: attention and feed-forward part, each behind a norm and with a skip."""
    m, s = s.model, s.of_layer(number)
    if m.is_moe(number):
        second = _experts(s)
    else:
        second = _mlp(s, s.tokens, m.inner // s.tp).repeated("mlp" in s.again)
        second = _in_order(s, True) + second + _in_order(s)
    after = norm(s) + residual(s) if m.post_norms else residual(s)
    between = norm(s).repeated("layernorm" in s.again)
    block = _attention(s, number) + after + between + second + after
    if "per_op" in s.again:
        block = replace(block, again=_per_op(block.forward))
    return _joined(s) + block + classifier(s) if m.is_mtp(number) else block


def _joined(s: Shard) -> Block:
    """The embedding of the next token joined with the output of the previous layer, both normed, by
    a product; its collectives among the ranks of tp are left out (ours).
    """
    h = s.model.hidden
    return embedding(s) + norm(s).times(2) + linear(s, "join", s.tokens, 2 * h, h // s.tp)


def _per_op(forward: Loads) -> Loads:
    """The loads recomputed where attention and every second product from the first are kept."""
    some, products = list[Kernel](), 0
    for load in _all_but_the_last(forward):
        products += load.op_class == "gemm"
        is_kept = load.op_class == "attention" or (load.op_class == "gemm" and products % 2)
        some += [] if is_kept else [load]
    return tuple(some)


def _all_but_the_last(forward: Loads) -> Loads:
    """The forward of a layer without its last product, which alone reads nothing for a backward."""
    products = (place for place, load in enumerate(forward) if load.op_class == "gemm")
    return forward[: max(products)]


def whole_again(s: Shard, block: Block) -> Loads:
    """The loads of a layer's forward that full recomputation repeats."""
    return _all_but_the_last(block.forward) if stops_early(s) else block.forward


def stops_early(s: Shard) -> bool:
    """Whether recomputation of a layer ends before its last product; not where a norm or gate after
    this product reads its output in the backward.
    """
    return s.software.plain and not (s.model.post_norms or s.model.shared_gate)


def copied(s: Shard, gathered: int, reduced: int) -> Loads:
    """FSDP2's copies: of parameters (``gathered`` bytes) out of the buffer that they were gathered
    in, and of gradients (``reduced`` bytes) into the float32 buffer from which they are reduced
    (``foreach_all_gather``, ``foreach_reduce``).
    """
    if not s.software.fsdp:
        return ()
    out = kernel_of("gathered", "data_movement", gathered, gathered) if gathered else ()
    into = kernel_of("to reduce", "data_movement", 2 * reduced, 4 * reduced) if reduced else ()
    return out + into


def embedding(s: Shard) -> Block:
    """The look-up of the tokens' rows, and dropout."""
    x, mask = s.words_bytes, s.rows_bytes // 2 if s.model.dropout else 0
    weight = kernel_of("embedding dw", "embedding", x + mask, s.gradient_bytes * x // 2)
    return Block(kernel_of("embedding", "embedding", x, x + mask), (), weight)


def classifier(s: Shard) -> Block:
    """The last norm, the scores of all tokens, and the loss in float32.

    Its passes: to float32, largest, difference, exponential, sum, quotient; backward difference,
    product, to bfloat16.
    """
    logits = s.tokens * s.vocabulary
    if "loss" in s.software.passes:
        loss = passes_of(s, "loss", logits)
        return norm(s) + product_of(s, "classifier", s.tokens, s.model.hidden, s.vocabulary) + loss
    loss = Block(
        kernel_of("loss", "softmax", (2 + 5 * 4) * logits, 4 * 4 * logits),
        kernel_of("loss dx", "softmax", 3 * 4 * logits, (4 + 4 + 2) * logits),
    )
    return norm(s) + product_of(s, "classifier", s.tokens, s.model.hidden, s.vocabulary) + loss


def update(
    s: Shard, parameters: int, updated: int, state_bytes: int, layers: Sequence[int] = ()
) -> Loads:
    """The optimizer's step over ``updated`` of the ``parameters`` whose gradients lie here.

    It reads the gradient twice (first for its norm), reads and writes the state, and writes the
    parameter; the sums of all gradients are set to zero. All weights of ``layers`` are cast again,
    where casts count.
    """
    g = s.gradient_bytes
    if "update" in s.software.passes:
        step = passes_of(s, "update", updated).forward
    else:
        read, written = 2 * g + state_bytes, state_bytes + 2
        step = kernel_of("update", "optimizer", read * updated, written * updated)
    zero = kernel_of("zero", "elementwise", 0, g * parameters) if not s.software.plain else ()
    weights = narrow_weights(s, layers) if s.format.cast_weights else 0
    return step + zero + (narrowed(s, "weights cast", weights) if weights else ())
