"""What a layer's shard computes: its products, attention and passes over memory, as loads of the
roofline, each with the measured op that is like it.

Bytes are those that kernels read and write where what frameworks fuse is fused: scale, mask and
softmax; bias, dropout and addition; bias and GELU; SwiGLU; and the addition of a weight's gradient
to the sum in its product (Megatron-LM, ``megatron/core/fusions``). Attention counts all pairs of
words.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import likes
from .likes import BACKWARD, Loads, kernel
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


def _product(s: Shard, name: str, m: int, k: int, n: int) -> Block:
    """(m, k) x (k, n), and both gradients; that of the weights is added to its sum."""
    flops, x, w, y, g = 2 * m * k * n, 2 * m * k, 2 * k * n, 2 * m * n, s.gradient_bytes * k * n
    forward, back, weight = likes.products(m, k, n)
    return Block(
        (kernel(name, "gemm", x + w, y, flops, forward),),
        (kernel(f"{name} dx", "gemm", y + w, x, flops, back),),
        (kernel(f"{name} dw", "gemm", x + y + g, g, flops, weight),),
    )


def _norm(s: Shard) -> Block:
    x = s.rows_bytes
    # Gradients of scale and shift: one more pass over the input and its gradient.
    forward, back = likes.norms(s)
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


def _core(s: Shard) -> Block:
    """Attention itself: one op, or two products with a softmax (and dropout) over all scores."""
    q, kv, e = 2 * s.words * s.queries, 2 * s.words * s.keys, s.scores
    flops, masked = 2 * s.words * s.model.length * s.queries, s.model.dropout
    if s.flash:
        once, twice = likes.attention(s)
        # The backward makes the scores again: five products for the forward's two.
        size = 3 * q + 2 * kv, q + 2 * kv
        forward = (kernel("attention", "attention", q + 2 * kv, q, 2 * flops, once),)
        return Block(forward, (kernel("attention dx", "attention", *size, 5 * flops, twice),), ())
    like = likes.unfused(s)

    def load(name: str, op_class: str, read: int, written: int, count: int = 0) -> likes.Kernel:
        return kernel(name, op_class, read, written, count, like[name])

    dropout = [load("dropout", "elementwise", 2 * e, 3 * e)] * masked
    dropout_dx = [load("dropout dx", "elementwise", 3 * e, 2 * e)] * masked
    unfused: Loads = (
        load("scores", "gemm", q + kv, 2 * e, flops),
        load("softmax", "softmax", 2 * e, 2 * e),
        *dropout,
        load("context", "gemm", 2 * e + kv, q, flops),
    )
    backward = (
        load("context dx", "gemm", q + kv, 2 * e, flops),
        load("context dv", "gemm", 2 * e + q, kv, flops),
        *dropout_dx,
        load("softmax dx", "softmax", 4 * e, 2 * e),
        load("scores dq", "gemm", 2 * e + kv, q, flops),
        load("scores dk", "gemm", 2 * e + q, kv, flops),
    )
    return Block(unfused, backward, (), unfused if s.recompute == "selective" else ())


def _attention(s: Shard) -> Block:
    h, width = s.model.hidden, s.queries + 2 * s.keys
    before = _norm(s) + _product(s, "qkv", s.words, h, width)
    if not s.model.positions:
        size = 2 * s.words * (s.queries + s.keys)
        like = likes.plain("mul", [s.words, s.queries + s.keys], 2)
        rotary = (kernel("rotary", "elementwise", size, size, like=like),)
        before += Block(rotary, rotary, ())
    return before + _core(s) + _product(s, "projection", s.words, s.queries, h) + _residual(s)


def _activation(s: Shard, words: int, inner: int) -> Block:
    x = 2 * words * inner
    into = 2 * x if s.model.gated else x
    kind = "silu" if s.model.gated else "gelu"
    like = likes.plain(kind, [words, inner], 1)
    back = likes.plain(f"{kind}_backward", [words, inner], 2, BACKWARD)
    forward = (kernel("activation", "elementwise", into, x, like=like),)
    backward = (kernel("activation dx", "elementwise", into + x, into, like=back),)
    return Block(forward, backward, ())


def _mlp(s: Shard, words: int, inner: int) -> Block:
    """Two products with an activation between them; a gated one makes gate and value in one."""
    h = s.model.hidden
    first = _product(s, "up", words, h, inner * (2 if s.model.gated else 1))
    return first + _activation(s, words, inner) + _product(s, "down", words, inner, h)


def _experts(s: Shard) -> Block:
    """Router, the experts that live here on their even share of the words, and the shared ones.

    Words are sorted by expert before and after.
    """
    m, inner = s.model, s.model.expert_inner // s.tp
    size = 2 * s.rows * m.top_k * m.hidden
    sort = (kernel("sort", "data_movement", size, size),) * 2
    # Each of the ep ranks sends words x top_k rows; every expert is taken to get equally many.
    words = -(-s.words * m.top_k * s.ep // m.experts)
    block = _product(s, "router", s.rows, m.hidden, m.experts) + Block(sort, sort, ())
    expert = _mlp(s, words, inner)
    # A product each, for grouped kernels take as long where every expert has many words.
    for _ in range(m.experts // s.ep):
        block += expert
    if m.shared_experts:
        block += _mlp(s, s.words, inner * m.shared_experts)
    return block


def layer(s: Shard, number: int) -> Block:
    """A whole layer: attention and feed-forward part, each behind a norm and with a skip."""
    second = _experts(s) if s.model.is_moe(number) else _mlp(s, s.words, s.model.inner // s.tp)
    return _attention(s) + _norm(s) + second + _residual(s)


def embedding(s: Shard) -> Block:
    """The words' rows, and dropout."""
    x, mask = s.words_bytes, s.rows_bytes // 2 if s.model.dropout else 0
    weight = kernel("embedding dw", "embedding", x + mask, s.gradient_bytes * x // 2)
    return Block((kernel("embedding", "embedding", x, x + mask),), (), (weight,))


def classifier(s: Shard) -> Block:
    """The last norm, the scores of all words, and the loss in float32.

    Its passes: to float32, largest, difference, exponential, sum, quotient; backward difference,
    product, to bfloat16.
    """
    logits = s.words * s.vocabulary
    loss = Block(
        (kernel("loss", "softmax", (2 + 5 * 4) * logits, 4 * 4 * logits),),
        (kernel("loss dx", "softmax", 3 * 4 * logits, (4 + 4 + 2) * logits),),
        (),
    )
    return _norm(s) + _product(s, "classifier", s.words, s.model.hidden, s.vocabulary) + loss


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
