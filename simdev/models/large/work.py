"""What a layer's shard computes: its products, attention and passes over memory, as loads of the
roofline.

Bytes are those that kernels read and write where what frameworks fuse is fused: scale, mask and
softmax; bias, dropout and addition; bias and GELU; SwiGLU; and the addition of a weight's gradient
to the sum in its product (Megatron-LM, ``megatron/core/fusions``). Attention counts all pairs of
words.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...costs.roofline import Load
from .shard import Shard

Loads = tuple[Load, ...]
# The training that these models are published with; masters and states count in the update.
DTYPE = "bfloat16"


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


def _load(name: str, op_class: str, read: int, written: int, flops: int = 0) -> Load:
    """Work in bytes and FLOPs; without FLOPs it is bound by memory."""
    return Load(name, op_class, DTYPE, flops, read, written, "")


def _product(s: Shard, name: str, m: int, k: int, n: int) -> Block:
    """(m, k) x (k, n), and both gradients; that of the weights is added to its sum."""
    flops, x, w, y, g = 2 * m * k * n, 2 * m * k, 2 * k * n, 2 * m * n, s.gradient_bytes * k * n
    return Block(
        (_load(name, "gemm", x + w, y, flops),),
        (_load(f"{name} dx", "gemm", y + w, x, flops),),
        (_load(f"{name} dw", "gemm", x + y + g, g, flops),),
    )


def _norm(s: Shard) -> Block:
    x = s.rows_bytes
    # Gradients of scale and shift: one more pass over the input and its gradient.
    again = (_load("norm dw", "norm", 2 * x, 0),)
    return Block((_load("norm", "norm", x, x),), (_load("norm dx", "norm", 2 * x, x),), again)


def _residual(s: Shard) -> Block:
    """Bias, dropout and addition; its gradient is dropped out and added to that of the skip."""
    x, masked = s.rows_bytes, s.model.dropout
    mask = x // 2 if masked else 0
    dropout = [_load("dropout dx", "elementwise", x + mask, x)] * masked
    backward = _load("residual dx", "elementwise", 2 * x, x), *dropout
    return Block((_load("residual", "elementwise", 2 * x, x + mask),), backward, ())


def _core(s: Shard) -> Block:
    """Attention itself: one op, or two products with a softmax (and dropout) over all scores."""
    q, kv, e = 2 * s.words * s.queries, 2 * s.words * s.keys, s.scores
    flops, masked = 2 * s.words * s.model.length * s.queries, s.model.dropout
    if s.flash:
        # The backward makes the scores again: five products for the forward's two.
        forward = (_load("attention", "attention", q + 2 * kv, q, 2 * flops),)
        back = _load("attention dx", "attention", 3 * q + 2 * kv, q + 2 * kv, 5 * flops)
        return Block(forward, (back,), ())
    dropout = [_load("dropout", "elementwise", 2 * e, 3 * e)] * masked
    dropout_dx = [_load("dropout dx", "elementwise", 3 * e, 2 * e)] * masked
    unfused: Loads = (
        _load("scores", "gemm", q + kv, 2 * e, flops),
        _load("softmax", "softmax", 2 * e, 2 * e),
        *dropout,
        _load("context", "gemm", 2 * e + kv, q, flops),
    )
    backward = (
        _load("context dx", "gemm", q + kv, 2 * e, flops),
        _load("context dv", "gemm", 2 * e + q, kv, flops),
        *dropout_dx,
        _load("softmax dx", "softmax", 4 * e, 2 * e),
        _load("scores dq", "gemm", 2 * e + kv, q, flops),
        _load("scores dk", "gemm", 2 * e + q, kv, flops),
    )
    return Block(unfused, backward, (), unfused if s.recompute == "selective" else ())


def _attention(s: Shard) -> Block:
    h, width = s.model.hidden, s.queries + 2 * s.keys
    before = _norm(s) + _product(s, "qkv", s.words, h, width)
    if not s.model.positions:
        size = 2 * s.words * (s.queries + s.keys)
        rotary = (_load("rotary", "elementwise", size, size),)
        before += Block(rotary, rotary, ())
    return before + _core(s) + _product(s, "projection", s.words, s.queries, h) + _residual(s)


def _activation(s: Shard, words: int, inner: int) -> Block:
    x = 2 * words * inner
    into = 2 * x if s.model.gated else x
    forward = (_load("activation", "elementwise", into, x),)
    return Block(forward, (_load("activation dx", "elementwise", into + x, into),), ())


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
    sort = (_load("sort", "data_movement", size, size),) * 2
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
    weight = _load("embedding dw", "embedding", x + mask, s.gradient_bytes * x // 2)
    return Block((_load("embedding", "embedding", x, x + mask),), (), (weight,))


def classifier(s: Shard) -> Block:
    """The last norm, the scores of all words, and the loss in float32.

    Its passes: to float32, largest, difference, exponential, sum, quotient; backward difference,
    product, to bfloat16.
    """
    logits = s.words * s.vocabulary
    loss = Block(
        (_load("loss", "softmax", (2 + 5 * 4) * logits, 4 * 4 * logits),),
        (_load("loss dx", "softmax", 3 * 4 * logits, (4 + 4 + 2) * logits),),
        (),
    )
    return _norm(s) + _product(s, "classifier", s.words, s.model.hidden, s.vocabulary) + loss


def update(s: Shard, parameters: int, updated: int, state_bytes: int) -> Loads:
    """The optimizer's step over ``updated`` of the ``parameters`` whose gradients lie here.

    It reads the gradient twice (its norm first) and reads and writes the state and writes the
    parameter; the sums of all gradients are set to zero.
    """
    g = s.gradient_bytes
    step = _load(
        "update", "optimizer", (2 * g + state_bytes) * updated, (state_bytes + 2) * updated
    )
    return step, _load("zero", "elementwise", 0, g * parameters)
