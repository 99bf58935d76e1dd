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


def _load(name: str, op_class: str, flops: int, read: int, written: int) -> Load:
    return Load(name, op_class, DTYPE, flops, read, written, "")


def _pass(name: str, op_class: str, read: int, written: int) -> Load:
    """Work that is bound by memory."""
    return _load(name, op_class, 0, read, written)


def _product(s: Shard, name: str, m: int, k: int, n: int) -> Block:
    """(m, k) x (k, n), and both gradients; that of the weights is added to its sum."""
    flops, x, w, y, g = 2 * m * k * n, 2 * m * k, 2 * k * n, 2 * m * n, s.gradient_bytes * k * n
    return Block(
        (_load(name, "gemm", flops, x + w, y),),
        (_load(f"{name} dx", "gemm", flops, y + w, x),),
        (_load(f"{name} dw", "gemm", flops, x + y + g, g),),
    )


def _norm(s: Shard) -> Block:
    x = s.rows_bytes
    again = (_pass("norm dw", "norm", 2 * x, 0),)
    return Block((_pass("norm", "norm", x, x),), (_pass("norm dx", "norm", 2 * x, x),), again)


def _residual(s: Shard) -> Block:
    """Bias, dropout and addition; its gradient is dropped out again and added to that of the
    skip.
    """
    x = s.rows_bytes
    mask = x // 2 if s.model.dropout else 0
    backward = [_pass("residual dx", "elementwise", 2 * x, x)]
    if mask:
        backward.append(_pass("dropout dx", "elementwise", x + mask, x))
    return Block((_pass("residual", "elementwise", 2 * x, x + mask),), tuple(backward), ())


def _core(s: Shard) -> Block:
    """Attention itself: one op, or products with a softmax (and dropout) over all scores between
    them.
    """
    q, kv, e = 2 * s.words * s.queries, 2 * s.words * s.keys, s.scores
    flops = 2 * s.words * s.model.length * s.queries
    if s.flash:
        one = _load("attention", "attention", 2 * flops, q + 2 * kv, q)
        return Block(
            (one,), (_load("attention dx", "attention", 5 * flops, 3 * q + 2 * kv, q + 2 * kv),), ()
        )
    forward: Loads = (
        _load("scores", "gemm", flops, q + kv, 2 * e),
        _pass("softmax", "softmax", 2 * e, 2 * e),
        *([_pass("dropout", "elementwise", 2 * e, 3 * e)] if s.model.dropout else []),
        _load("context", "gemm", flops, 2 * e + kv, q),
    )
    backward = (
        _load("context dx", "gemm", flops, q + kv, 2 * e),
        _load("context dv", "gemm", flops, 2 * e + q, kv),
        *([_pass("dropout dx", "elementwise", 3 * e, 2 * e)] if s.model.dropout else []),
        _pass("softmax dx", "softmax", 4 * e, 2 * e),
        _load("scores dq", "gemm", flops, 2 * e + kv, q),
        _load("scores dk", "gemm", flops, 2 * e + q, kv),
    )
    return Block(forward, backward, (), forward if s.recompute == "selective" else ())


def _attention(s: Shard) -> Block:
    h, width = s.model.hidden, s.queries + 2 * s.keys
    found = _norm(s) + _product(s, "qkv", s.words, h, width)
    if not s.model.positions:
        turned = 2 * s.words * (s.queries + s.keys)
        rotary = _pass("rotary", "elementwise", turned, turned)
        found += Block((rotary,), (rotary,), ())
    return found + _core(s) + _product(s, "projection", s.words, s.queries, h) + _residual(s)


def _activation(s: Shard, words: int, inner: int) -> Block:
    x = 2 * words * inner
    into = 2 * x if s.model.gated else x
    forward = (_pass("activation", "elementwise", into, x),)
    return Block(forward, (_pass("activation dx", "elementwise", into + x, into),), ())


def _mlp(s: Shard, words: int, inner: int) -> Block:
    """Two products with an activation between them; a gated one makes gate and value in one."""
    h = s.model.hidden
    first = _product(s, "up", words, h, inner * (2 if s.model.gated else 1))
    return first + _activation(s, words, inner) + _product(s, "down", words, inner, h)


def _experts(s: Shard) -> Block:
    """Router, the experts that live here on their even share of the words, and those that all words
    meet.

    Every expert is taken to get as many words as the others. Words are sorted by expert before and
    after.
    """
    m, inner = s.model, s.model.expert_inner // s.tp
    sent = 2 * s.rows * m.top_k * m.hidden
    sort = _pass("sort", "data_movement", sent, sent)
    local = m.experts // s.ep
    # Each of the ep ranks sends words x top_k rows, evenly over all experts.
    each = -(-s.words * m.top_k * s.ep // m.experts)
    found = _product(s, "router", s.rows, m.hidden, m.experts) + Block(
        (sort, sort), (sort, sort), ()
    )
    one = _mlp(s, each, inner)
    for _ in range(local):
        found += one
    if m.shared_experts:
        found += _mlp(s, s.words, inner * m.shared_experts)
    return found


def layer(s: Shard, number: int) -> Block:
    """A whole layer: attention and feed-forward part, each behind a norm and with a skip."""
    second = _experts(s) if s.model.is_moe(number) else _mlp(s, s.words, s.model.inner // s.tp)
    return _attention(s) + _norm(s) + second + _residual(s)


def embedding(s: Shard) -> Block:
    """The words' rows, and dropout."""
    x, mask = s.words_bytes, s.rows_bytes // 2 if s.model.dropout else 0
    forward = (_pass("embedding", "embedding", x, x + mask),)
    return Block(
        forward, (), (_pass("embedding dw", "embedding", x + mask, s.gradient_bytes * x // 2),)
    )


def classifier(s: Shard) -> Block:
    """The last norm, the scores of all words, and the loss in float32.

    Its passes: to float32, largest, difference, exponential, sum, quotient; backward difference,
    product, to bfloat16.
    """
    logits = s.words * s.vocabulary
    loss = Block(
        (_pass("loss", "softmax", (2 + 5 * 4) * logits, 4 * 4 * logits),),
        (_pass("loss dx", "softmax", 3 * 4 * logits, (4 + 4 + 2) * logits),),
        (),
    )
    return _norm(s) + _product(s, "classifier", s.words, s.model.hidden, s.vocabulary) + loss


def update(s: Shard, parameters: int, own: int, state_bytes: int) -> Loads:
    """The optimizer's step over ``own`` parameters of the ``parameters`` whose gradients lie here.

    It reads the gradient twice (its norm first) and reads and writes the state and writes the
    parameter; the sums of all gradients are set to zero.
    """
    g = s.gradient_bytes
    step = _pass("update", "optimizer", (2 * g + state_bytes) * own, (state_bytes + 2) * own)
    return step, _pass("zero", "elementwise", 0, g * parameters)
