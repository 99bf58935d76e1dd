"""Transformers as graphs of ops: the translator, BERT, GPT-2 and GPT-3, Llama.

Transformer: Vaswani et al., "Attention is all you need", 2017, by default the big one; the layer
norm follows the sum, as in the paper. BERT: Devlin et al., "BERT: Pre-training of deep
bidirectional transformers", 2018, by default large; 110,106,428 (base) and 336,226,108 (large)
parameters, both heads included. GPT: Radford et al., "Language models are unsupervised multitask
learners", 2019, and Brown et al., "Language models are few-shot learners", 2020, by default the
small GPT-2; 124,439,808 parameters (small), 354,823,168 (medium), 774,030,080 (large),
1,557,611,200 (xl), about 175 billion (GPT-3). Llama: Touvron et al., "LLaMA: Open and efficient
foundation language models", 2023, by default Llama-2 7B; 6,738,415,616 parameters (7B),
13,015,864,320 (13B), 68,976,648,192 (70B).

``models.MODELS`` names these builders. The same networks for PyTorch are in
``simdev/measure/torch_models/attention.py``; the sizes of large models without graphs are in
``models/large/released.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...ground.errors import InputError
from .backward import model
from .builder import StepBuilder, Value
from .ops import (
    attend,
    cross_entropy,
    dropout,
    embedding,
    embedding_by,
    gather,
    gelu,
    layer_norm,
    linear,
    linear_by,
    prediction_loss,
    relu,
    rms_norm,
    rotary,
    scale,
    select,
    silu,
    split_heads,
    table,
    tanh,
    tokens,
)


@model("transformer-{layers}-{width}-b{batch}", "adam")
def transformer(
    step: StepBuilder,
    batch: int = 64,
    length: int = 64,
    layers: int = 6,
    width: int = 1024,
    inner: int = 4096,
    heads: int = 16,
    vocabulary: int = 37_000,
    dropout: bool = True,
    fused: bool = True,
) -> Value:
    """Translates ``batch`` sentences of ``length`` tokens, source and target of equal length.

    Encoder and decoder have ``layers`` each. One matrix serves as source and target embedding and
    as classifier. ``fused``: attention is one op (see ``ops.attend``).
    """
    source, target = (tokens(step, "source", batch, length), tokens(step, "target", batch, length))
    # The projections of the paper are plain matrices; BERT and GPT-2 added biases.
    attention = Attention(heads, fused=fused, drop=dropout, bias=False)
    both = table(source, vocabulary, width)
    with step.scope("encoder"):
        memory = _with_sinusoids(source, both, dropout)
        for i in range(layers):
            with step.scope(f"layer_{i}"):
                memory = _normed(memory, attention(memory, memory), "norm_1", dropout)
                memory = _normed(memory, feed_forward(memory, inner, "relu"), "norm_2", dropout)
    with step.scope("decoder"):
        x = _with_sinusoids(target, both, dropout)
        for i in range(layers):
            with step.scope(f"layer_{i}"):
                x = _normed(x, attention(x, x, causal=True), "norm_1", dropout)
                x = _normed(x, attention(x, memory, name="cross"), "norm_2", dropout)
                x = _normed(x, feed_forward(x, inner, "relu"), "norm_3", dropout)
    with step.scope("classifier"):
        scores = linear_by(x, both)
    return prediction_loss(scores)


@model("bert-{layers}-{width}-b{batch}", "adam")
def bert(
    step: StepBuilder,
    batch: int = 32,
    length: int = 128,
    layers: int = 24,
    width: int = 1024,
    inner: int = 4096,
    heads: int = 16,
    vocabulary: int = 30_522,
    context: int = 512,
    dropout: bool = True,
    fused: bool = True,
) -> Value:
    """Pre-trains on ``batch`` pairs of sentences of ``length`` tokens in all, 15 % of them masked.

    It has both tasks of the paper: masked tokens, and whether the second sentence follows the
    first. The classifier of tokens shares the embedding's matrix. ``context``: positions that the
    model knows; ``fused``: attention is one op.
    """
    _require_context(length, context)
    attention = Attention(heads, fused=fused, drop=dropout)
    text = tokens(step, "words", batch, length)
    both = table(text, vocabulary, width, "embeddings/words")
    x = _sentences(text, both, context, dropout)
    for i in range(layers):
        with step.scope(f"layer_{i}"):
            x = _normed(x, attention(x, x), "norm_1", dropout)
            x = _normed(x, feed_forward(x, inner), "norm_2", dropout)
    of_words, of_sentences = _masked_words_loss(x, both), _next_sentence_loss(x)
    with step.scope("loss"):
        return of_words + of_sentences


@model("gpt-{layers}-{width}-b{batch}", "adam")
def gpt(
    step: StepBuilder,
    batch: int = 8,
    length: int = 1024,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    vocabulary: int = 50_257,
    context: int = 1024,
    dropout: bool = True,
    fused: bool = True,
) -> Value:
    """Predicts each next token of ``batch`` texts of ``length`` tokens.

    The layer norm comes before each part; the classifier shares the embedding's matrix.
    ``context``: positions that the model knows; ``fused``: attention is one op.
    """
    _require_context(length, context)
    attention = Attention(heads, fused=fused, drop=dropout)
    text = tokens(step, "words", batch, length)
    both = table(text, vocabulary, width)
    with step.scope("embedding"):
        x = _with_places(text, both, context, dropout)
    for i in range(layers):
        with step.scope(f"layer_{i}"):
            y = layer_norm(x, "norm_1")
            x = _added(x, attention(y, y, causal=True), dropout)
            x = _added(x, feed_forward(layer_norm(x, "norm_2"), 4 * width, "gelu-tanh"), dropout)
    with step.scope("classifier"):
        scores = linear_by(layer_norm(x), both)
    return prediction_loss(scores)


@model("llama-{layers}-{width}-b{batch}", "mixed-adam", dtype="bfloat16")
def llama(
    step: StepBuilder,
    batch: int = 1,
    length: int = 4096,
    layers: int = 32,
    width: int = 4096,
    inner: int = 11_008,
    heads: int = 32,
    kv_heads: int | None = None,
    vocabulary: int = 32_000,
    fused: bool = True,
) -> Value:
    """Predicts each next token of ``batch`` texts of ``length`` tokens.

    RMS norm before each part, rotary positions, a gated feed-forward part, no biases, no dropout.
    ``kv_heads``: heads of keys and values, fewer than ``heads`` in Llama-2 70B and Llama-3 (None:
    ``heads``); ``fused``: attention is one op.
    """
    if kv_heads is not None and heads % kv_heads:
        raise InputError(f"kv_heads: {kv_heads} do not divide the {heads} heads")
    attention = Attention(heads, kv_heads, fused=fused, bias=False, rotated=True)
    x = embedding(tokens(step, "words", batch, length), vocabulary, width)
    for i in range(layers):
        with step.scope(f"layer_{i}"):
            y = rms_norm(x, "norm_1")
            x = x + attention(y, y, causal=True)
            x = x + _gated(rms_norm(x, "norm_2"), inner)
    with step.scope("classifier"):
        scores = linear(rms_norm(x), vocabulary, "out", bias=False)
    return prediction_loss(scores)


def _require_context(length: int, context: int) -> None:
    """Raises InputError where a text is longer than the table of its positions."""
    if length > context:
        raise InputError(f"length: {length} tokens, but the model knows {context} positions")


def _with_sinusoids(text: Value, both: Value, drop: bool) -> Value:
    """Tokens (n, t) to (n, t, width), plus their positions as sinusoids (section 3.5)."""
    # Times the square root of the width, so that sinusoids of size 1 do not outweigh the tokens.
    x = scale(embedding_by(text, both))
    return dropout(x + x.step.constant("positions", 1, *x.shape[1:]), drop)


def _with_places(text: Value, both: Value, context: int, drop: bool) -> Value:
    """Tokens (n, t) to (n, t, width), plus their learnt positions."""
    positions = text.step.constant("positions", 1, text.shape[1], dtype="int64")
    return dropout(_placed(embedding_by(text, both, "words"), positions, context), drop)


def _placed(x: Value, positions: Value, context: int) -> Value:
    weight = table(positions, context, x.shape[-1], "places")
    return x + embedding_by(positions, weight, "places")


def _sentences(text: Value, both: Value, context: int, drop: bool) -> Value:
    """Tokens (n, t) to (n, t, width), plus their sentences and their positions."""
    step, width = text.step, both.shape[1]
    which = tokens(step, "sentences", *text.shape)
    positions = step.constant("positions", 1, text.shape[1], dtype="int64")
    with step.scope("embeddings"):
        x = embedding_by(text, both, "words") + embedding(which, 2, width, "sentences")
        return dropout(layer_norm(_placed(x, positions, context)), drop)


def _added(x: Value, y: Value, drop: bool) -> Value:
    """The result y of a part with dropout, added to the input x of the part."""
    return x + dropout(y, drop)


def _normed(x: Value, y: Value, norm: str, drop: bool) -> Value:
    return layer_norm(_added(x, y, drop), norm)


def _masked_words_loss(x: Value, both: Value) -> Value:
    """The loss of the masked tokens, gathered from their texts."""
    step, (batch, length, width) = x.step, x.shape
    # 15 % of the tokens, rounded down, but at least one: a loss needs a term.
    count = max(1, length * 15 // 100)
    masked = step.input("masked", batch, count, 1, dtype="int64")
    labels = tokens(step, "labels", batch, count)
    with step.scope("words"):
        chosen = gather(x, masked.expand(batch, count, width), 1)
        chosen = layer_norm(gelu(linear(chosen, width, "transform")))
        scores = linear_by(chosen, both, step.parameter("bias", both.shape[0]))
        return cross_entropy(scores, labels)


def _next_sentence_loss(x: Value) -> Value:
    """The loss of whether the second sentence follows, from the first token's vector."""
    step, (batch, _, width) = x.step, x.shape
    follows = step.input("follows", batch, dtype="int64")
    with step.scope("follows"):
        pooled = tanh(linear(select(x, 1, 0), width, "pooler"))
        return cross_entropy(linear(pooled, 2, "classifier"), follows)


def _gated(x: Value, inner: int) -> Value:
    """SwiGLU (Shazeer, "GLU variants improve Transformer", 2020)."""
    with x.step.scope("mlp"):
        gate = silu(linear(x, inner, "gate", bias=False))
        # Three matrices: comparisons with an ungated model use 2/3 of its inner width.
        return linear(gate * linear(x, inner, "up", bias=False), x.shape[2], "down", bias=False)


@dataclass(frozen=True, slots=True)
class Attention:
    """The attention of a model's layers, with the projections around it.

    Queries have ``heads`` heads, keys and values ``kv_heads`` (None: ``heads``). ``rotated``:
    queries and keys carry their positions by rotary embeddings.
    """

    heads: int
    kv_heads: int | None = None
    fused: bool = True
    drop: bool = False
    bias: bool = True
    rotated: bool = False

    def __call__(
        self, x: Value, memory: Value, causal: bool = False, name: str = "attention"
    ) -> Value:
        """(n, t, width) over (n, s, width) to (n, t, width), by weights at the scope ``name``."""
        width, groups = x.shape[2], self.kv_heads or self.heads
        with x.step.scope(name):
            q = split_heads(linear(x, width, "query", self.bias), self.heads)
            # Grouped queries share keys and values, which are then narrower than the queries.
            narrow = groups * q.shape[3]
            k = split_heads(linear(memory, narrow, "key", self.bias), groups)
            v = split_heads(linear(memory, narrow, "value", self.bias), groups)
            if self.rotated:
                q, k = rotary(q), rotary(k)
            context = attend(q, k, v, causal, self.fused, self.drop)
            return linear(context.view(*x.shape), width, "out", self.bias)


def feed_forward(x: Value, inner: int, activation: str = "gelu") -> Value:
    """Two linear layers with an activation between them: "relu", "gelu", or "gelu-tanh"."""
    with x.step.scope("mlp"):
        y = linear(x, inner, "up")
        y = relu(y) if activation == "relu" else gelu(y, approximate=activation == "gelu-tanh")
        return linear(y, x.shape[2], "down")
