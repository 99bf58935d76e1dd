"""What a layer's shard computes: its products, attention and passes over memory, as loads of the
roofline, each with the measured op that is like it.

Bytes are those that kernels read and write where what frameworks fuse is fused: scale, mask and
softmax; bias, dropout and addition; bias and GELU; SwiGLU; and the addition of a weight's gradient
to the sum in its product (Megatron-LM, ``megatron/core/fusions``). Fused attention counts
``Transformer.pairs`` of tokens, else all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from . import likes
from .likes import BACKWARD, NARROW, Loads, kernel
from .shard import Shard


@dataclass(frozen=True, slots=True)
class Block:
    """The loads of one layer and microbatch: forward, gradient of its input, gradient of its
    weights.

    ``again`` is what selective recomputation does once more before the backward.
    """

    forward: Loads
    backward: Loads
    weight: Loads
    again: Loads = ()

    def __add__(self, other: Block) -> Block:
        return Block(
            self.forward + other.forward,
            self.backward + other.backward,
            self.weight + other.weight,
            self.again + other.again,
        )

    def times(self, count: int) -> Block:
        """So many of it, one after the other."""
        parts = self.forward, self.backward, self.weight, self.again
        return Block(*(loads * count for loads in parts))

    def repeated(self, is_again: bool) -> Block:
        """With its forward done once more before the backward, where that ``is_again``."""
        return replace(self, again=self.forward) if is_again else self


def _product(s: Shard, name: str, m: int, k: int, n: int) -> Block:
    """(m, k) x (k, n), and both gradients; that of the weights is added to its sum."""
    flops, x, w, y, g = 2 * m * k * n, 2 * m * k, 2 * k * n, 2 * m * n, s.gradient_bytes * k * n
    forward, back, weight = likes.products(m, k, n)
    return Block(
        (kernel(name, "gemm", x + w, y, flops, forward),),
        (kernel(f"{name} dx", "gemm", y + w, x, flops, back),),
        (kernel(f"{name} dw", "gemm", x + y + g, g, flops, weight),),
    )


def _linear(s: Shard, name: str, m: int, k: int, n: int) -> Block:
    """A product in the model's precision.

    In float8 its input and the gradient of its output are made narrow once, along rows and along
    columns, a byte each (NVIDIA's Transformer Engine, ``cast_transpose``); weights with the
    update.
    """
    if not s.model.is_narrow:
        return _product(s, name, m, k, n)
    flops, x, w, y, g = 2 * m * k * n, m * k, k * n, m * n, s.gradient_bytes * k * n

    def narrow(part: str, size: int) -> likes.Kernel:
        return kernel(f"{name} {part}", "elementwise", 2 * size, 2 * size)

    def part(suffix: str, read: int, written: int) -> likes.Kernel:
        return kernel(f"{name}{suffix}", "gemm", read, written, flops, dtype=NARROW)

    return Block(
        (narrow("cast", x), part("", x + w, 2 * y)),
        (narrow("dy cast", y), part(" dx", y + w, 2 * x)),
        (part(" dw", x + y + g, g),),
    )


def _norm(s: Shard, rows: int = 0, width: int = 0) -> Block:
    """A norm of the tokens, or of ``rows`` of another width."""
    rows, width = rows or s.rows, width or s.model.hidden
    x = 2 * rows * width
    # Gradients of scale and shift: one more pass over the input and its gradient.
    forward, back = likes.norms(s, rows, width)
    again = (kernel("norm dw", "norm", 2 * x, 0, like=back),)
    return Block(
        (kernel("norm", "norm", x, x, like=forward),),
        (kernel("norm dx", "norm", 2 * x, x, like=back),),
        again,
    )


def _residual(s: Shard) -> Block:
    """Bias, dropout and addition; its gradient is dropped out and added to that of the skip."""
    x, masked = s.rows_bytes, s.model.dropout
    mask, shape = x // 2 if masked else 0, [s.rows, s.model.hidden]
    add, back = likes.plain("add", shape, 2), likes.plain("add", shape, 2, BACKWARD)
    drop = likes.plain("mul", shape, 2, BACKWARD)
    dropout = [kernel("dropout dx", "elementwise", x + mask, x, like=drop)] * masked
    backward = kernel("residual dx", "elementwise", 2 * x, x, like=back), *dropout
    return Block((kernel("residual", "elementwise", 2 * x, x + mask, like=add),), backward, ())


def _core(s: Shard, number: int) -> Block:
    """Attention itself: one op, or two products with a softmax (and dropout) over all scores."""
    q, o = 2 * s.tokens * s.queries, 2 * s.tokens * s.context
    k, v = 2 * s.tokens * s.cp * s.keys, 2 * s.tokens * s.cp * s.values
    heads, m = s.model.heads // s.tp, s.model
    if s.flash:
        pair = 2 * s.pairs(number) * heads
        # Where tokens attend to few no measured op is like it: those are causal.
        is_whole = m.reach(number) == m.length
        once, twice = likes.attention(s) if is_whole else (None, None)
        forward, back = m.head_width + m.value_head, 3 * m.head_width + 2 * m.value_head
        # The backward makes the scores again: five products for the forward's two.
        size = q + k + v + 2 * o, q + k + v
        part = 1 / s.cp  # each device has an equal part of the pairs
        ahead = kernel("attention", "attention", q + k + v, o, pair * forward, once, part=part)
        behind = kernel("attention dx", "attention", *size, pair * back, twice, part=part)
        return Block((ahead,), (behind,), ())
    like, masked, e = likes.unfused(s), m.dropout, s.scores
    scores, weighed = 2 * e * m.head_width, 2 * e * m.value_head

    def load(name: str, op_class: str, read: int, written: int, count: int = 0) -> likes.Kernel:
        return kernel(name, op_class, read, written, count, like[name])

    dropout = [load("dropout", "elementwise", 2 * e, 3 * e)] * masked
    dropout_dx = [load("dropout dx", "elementwise", 3 * e, 2 * e)] * masked
    unfused: Loads = (
        load("scores", "gemm", q + k, 2 * e, scores),
        load("softmax", "softmax", 2 * e, 2 * e),
        *dropout,
        load("context", "gemm", 2 * e + v, o, weighed),
    )
    backward = (
        load("context dx", "gemm", o + v, 2 * e, weighed),
        load("context dv", "gemm", 2 * e + o, v, weighed),
        *dropout_dx,
        load("softmax dx", "softmax", 4 * e, 2 * e),
        load("scores dq", "gemm", 2 * e + k, q, scores),
        load("scores dk", "gemm", 2 * e + q, k, scores),
    )
    return Block(unfused, backward, ()).repeated("core_attn" in s.again)


def _into(s: Shard) -> Block:
    """Queries, keys and values of the tokens, by way of latents where there are such.

    The way down is the same on all ranks of tp, each for its share of a split sequence
    (Megatron-LM, ``multi_latent_attention.py``).
    """
    m, h = s.model, s.model.hidden
    if not m.kv_latent:
        return _linear(s, "qkv", s.tokens, h, s.queries + s.keys + s.values)
    block = _linear(s, "latents", s.rows, h, m.latents)
    for latent in filter(None, (m.query_latent, m.kv_latent)):
        block += _norm(s, s.rows, latent)
    rest = s.queries - m.heads // s.tp * m.rotary_width
    up = _linear(s, "queries", s.tokens, m.query_latent or h, s.queries)
    up += _linear(s, "keys and values", s.tokens, m.kv_latent, rest + s.values)
    return block + up.repeated("mla_up_proj" in s.again)


def _rotary(s: Shard) -> Block:
    """Of queries and keys; of latents, of the part that tells the position, which is put beside the
    rest of each key.
    """
    m = s.model
    queries = m.heads // s.tp * m.rotary_width if m.kv_latent else s.queries
    size = 2 * s.tokens * (queries + s.keys)
    like = likes.plain("mul", [s.tokens, queries + s.keys], 2)
    rotary = (kernel("rotary", "elementwise", size, size, like=like),)
    return Block(rotary, rotary, ()).repeated(m.kv_latent > 0 and "mla_up_proj" in s.again)


def _attention(s: Shard, number: int) -> Block:
    m = s.model
    before = _norm(s).repeated("layernorm" in s.again) + _into(s)
    if m.head_norms:
        before += _norm(s, s.tokens * (m.heads + m.kv_heads) // s.tp, m.head_width)
    if not m.positions:
        before += _rotary(s)
    return before + _core(s, number) + _linear(s, "projection", s.tokens, s.context, m.hidden)


def _activation(s: Shard, tokens: int, inner: int) -> Block:
    x = 2 * tokens * inner
    into = 2 * x if s.model.gated else x
    kind = "silu" if s.model.gated else "gelu"
    like = likes.plain(kind, [tokens, inner], 1)
    back = likes.plain(f"{kind}_backward", [tokens, inner], 2, BACKWARD)
    forward = (kernel("activation", "elementwise", into, x, like=like),)
    backward = (kernel("activation dx", "elementwise", into + x, into, like=back),)
    return Block(forward, backward, ())


def _mlp(s: Shard, tokens: int, inner: int, activation: str = "mlp_act") -> Block:
    """Two products with an activation between them; a gated one makes gate and value in one.

    ``activation`` names it among what is made again.
    """
    h = s.model.hidden
    first = _linear(s, "up", tokens, h, inner * (2 if s.model.gated else 1))
    between = _activation(s, tokens, inner).repeated(activation in s.again)
    return first + between + _linear(s, "down", tokens, inner, h)


def _experts(s: Shard) -> Block:
    """Router, the experts that live here on their share of the tokens, even or the busiest
    device's, and the shared ones.

    Tokens are sorted by expert before and after.
    """
    m, inner = s.model, s.model.expert_inner // s.tp
    size = 2 * s.busiest(s.rows * m.top_k) * m.hidden
    sort = (kernel("sort", "data_movement", size, size),) * 2
    # Each of the ep ranks sends tokens x top_k rows; those who live here get equally many.
    tokens = -(-s.busiest(s.tokens * m.top_k) * s.ep // m.experts)
    block = _product(s, "router", s.rows, m.hidden, m.experts) + Block(sort, sort, ())
    expert = _mlp(s, tokens, inner, "moe_act")
    # A product each, for grouped kernels take as long where every expert has many tokens.
    block += expert.times(m.experts // s.ep)
    if m.shared_experts:
        shared = _mlp(s, s.tokens, inner * m.shared_experts)
        block += shared.repeated("shared_experts" in s.again)
    return block.repeated("moe" in s.again)


def layer(s: Shard, number: int) -> Block:
    """A whole layer: attention and feed-forward part, each behind a norm and with a skip."""
    m = s.model
    if m.is_moe(number):
        second = _experts(s)
    else:
        second = _mlp(s, s.tokens, m.inner // s.tp).repeated("mlp" in s.again)
    after = _norm(s) + _residual(s) if m.post_norms else _residual(s)
    between = _norm(s).repeated("layernorm" in s.again)
    return _attention(s, number) + after + between + second + after


def embedding(s: Shard) -> Block:
    """The tokens' rows, and dropout."""
    x, mask = s.words_bytes, s.rows_bytes // 2 if s.model.dropout else 0
    weight = kernel("embedding dw", "embedding", x + mask, s.gradient_bytes * x // 2)
    return Block((kernel("embedding", "embedding", x, x + mask),), (), (weight,))


def classifier(s: Shard) -> Block:
    """The last norm, the scores of all tokens, and the loss in float32.

    Its passes: to float32, largest, difference, exponential, sum, quotient; backward difference,
    product, to bfloat16.
    """
    logits = s.tokens * s.vocabulary
    loss = Block(
        (kernel("loss", "softmax", (2 + 5 * 4) * logits, 4 * 4 * logits),),
        (kernel("loss dx", "softmax", 3 * 4 * logits, (4 + 4 + 2) * logits),),
        (),
    )
    return _norm(s) + _product(s, "classifier", s.tokens, s.model.hidden, s.vocabulary) + loss


def update(s: Shard, parameters: int, updated: int, state_bytes: int) -> Loads:
    """The optimizer's step over ``updated`` of the ``parameters`` whose gradients lie here.

    It reads the gradient twice (its norm first) and reads and writes the state and writes the
    parameter; the sums of all gradients are set to zero.
    """
    g = s.gradient_bytes
    step = kernel(
        "update", "optimizer", (2 * g + state_bytes) * updated, (state_bytes + 2) * updated
    )
    return step, kernel("zero", "elementwise", 0, g * parameters)
