"""Models of multi-head attention: the Transformer for translation, BERT, GPT-2.

Attention (Vaswani et al., "Attention is all you need", 2017) is written as in the papers, with
separate operators for products, softmax and dropout. A fused attention is a different operator on
every kind of device, but a captured graph is placed on devices of any kind, so it may only hold
operators that all of them have.

The functions ``transformer``, ``bert``, ``gpt2`` and ``gpt2_medium`` are rows of ``MODELS`` in
``simdev/measure/torch_models/__init__.py``; ``simdev/measure/profiles.py`` calls ``attend`` to time
attention of random sizes. The same networks are written a second time, without PyTorch and with the
same names of ops, in ``simdev/nouns/models/transformers.py``: change both. The large models of
``simdev/nouns/models/large/`` have sizes and no ops, and are not from this module. Nothing is
checked here: PyTorch raises its own errors for sizes that do not match. Tests:
``tests/measure/test_torch_models.py`` (published counts of parameters), and
``tests/models/test_models_backward.py``, which compares captured ops with the second writing.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .batches import TrainingStep, next_word_step, numbered, translation_step

BERT_EPSILON = 1e-12  # of its layer norms, as in its authors' code
BERT_POSITIONS = 512  # the longest input of BERT, in tokens
GPT2_CONTEXT = 1024  # the longest input of GPT-2, in tokens


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: int,
    mask: Tensor | None,
    dropout: float,
) -> Tensor:
    """Attention of query (N, T, width) over key and value (N, S, width): (N, T, width).

    ``mask`` (T, S) is true where a query must not look; ``heads`` divide the width.
    """
    q, k, v = (tensor.unflatten(2, (heads, -1)).transpose(1, 2) for tensor in (query, key, value))
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(2, 3)
    if mask is not None:
        scores = scores.masked_fill(mask, float("-inf"))
    # Dropout is on in eval() too: these models only run training steps, and are never evaluated.
    weights = F.dropout(torch.softmax(scores, -1), dropout)
    return (weights @ v).transpose(1, 2).flatten(2)


def future(words: Tensor) -> Tensor:
    """The mask (T, T) for tokens (N, T) that hides from each token the tokens after it."""
    length = words.shape[1]
    return torch.ones(length, length, dtype=torch.bool, device=words.device).triu(1)


class Attention(nn.Module):
    """Multi-head attention with its four linear layers: of query, key, value and of the result."""

    def __init__(self, width: int, heads: int, dropout: float, bias: bool = True) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias)
        self.key = nn.Linear(width, width, bias)
        self.value = nn.Linear(width, width, bias)
        self.out = nn.Linear(width, width, bias)
        self.heads = heads
        self.dropout = dropout

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        """(N, T, width) over (N, S, width) to (N, T, width)."""
        q, k, v = self.query(x), self.key(memory), self.value(memory)
        return self.out(attend(q, k, v, self.heads, mask, self.dropout))


class FeedForward(nn.Module):
    """Two linear layers with a ReLU between them."""

    def __init__(self, width: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, width) to the like."""
        return self.dropout(self.down(F.relu(self.up(x))))


class EncoderLayer(nn.Module):
    """Attention over the source, then the feed-forward part."""

    def __init__(self, width: int, inner: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads, dropout, bias=False)
        self.norm_1 = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width, inner, dropout)
        self.norm_2 = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(N, S, width) to the like."""
        x = self.norm_1(x + self.dropout(self.attention(x, x)))
        return self.norm_2(x + self.feed_forward(x))


class DecoderLayer(nn.Module):
    """Attention over the tokens so far, attention over the source, then the feed-forward part."""

    def __init__(self, width: int, inner: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads, dropout, bias=False)
        self.norm_1 = nn.LayerNorm(width)
        self.cross = Attention(width, heads, dropout, bias=False)
        self.norm_2 = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width, inner, dropout)
        self.norm_3 = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """(N, T, width) over the encoder's (N, S, width) to (N, T, width)."""
        x = self.norm_1(x + self.dropout(self.attention(x, x, mask)))
        x = self.norm_2(x + self.dropout(self.cross(x, memory)))
        return self.norm_3(x + self.feed_forward(x))


class Transformer(nn.Module):
    """Encoder and decoder of ``layers`` each; a layer norm follows each sum, as in the paper."""

    def __init__(
        self, vocabulary: int, width: int, inner: int, heads: int, layers: int, dropout: float
    ) -> None:
        super().__init__()
        # One matrix serves as source and target embedding and as classifier (section 3.4).
        self.embedding = nn.Embedding(vocabulary, width)
        self.dropout = nn.Dropout(dropout)
        sizes = width, inner, heads, dropout
        # Registered as encoder_0, encoder_1, ..: modules name the ops of the captured graph.
        self.encoder = numbered(self, "encoder", [EncoderLayer(*sizes) for _ in range(layers)])
        self.decoder = numbered(self, "decoder", [DecoderLayer(*sizes) for _ in range(layers)])
        self.width = width

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Source (N, S) and target (N, T) token numbers to logits (N, T, vocabulary)."""
        memory, x = self.embed(source), self.embed(target)
        for encoder in self.encoder:
            memory = encoder(memory)
        mask = future(target)
        for decoder in self.decoder:
            x = decoder(x, memory, mask)
        return F.linear(x, self.embedding.weight)

    def embed(self, words: Tensor) -> Tensor:
        """Tokens (N, T) to (N, T, width), with the sinusoids of their positions (section 3.5)."""
        x = self.embedding(words) * math.sqrt(self.width)
        places = torch.arange(words.shape[1], device=words.device)[:, None]
        evens = torch.arange(0, self.width, 2, device=words.device)
        angles = places / 10000 ** (evens / self.width)
        return self.dropout(x + torch.cat([angles.sin(), angles.cos()], 1))


def transformer(
    batch: int = 64,
    length: int = 64,
    layers: int = 6,
    width: int = 1024,
    inner: int = 4096,
    heads: int = 16,
    vocabulary: int = 37000,
    dropout: float = 0.3,
) -> TrainingStep:
    """Translates ``batch`` sentences of ``length`` tokens, by default with the big Transformer."""
    module = Transformer(vocabulary, width, inner, heads, layers, dropout)
    return translation_step(module, vocabulary, (batch, length), label_smoothing=0.1)


class BertEmbeddings(nn.Module):
    """The sum of the embeddings of tokens, positions and sentences, with norm and dropout."""

    def __init__(self, vocabulary: int, width: int, dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(BERT_POSITIONS, width)
        self.sentences = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, BERT_EPSILON)
        self.dropout = nn.Dropout(dropout)

    def forward(self, words: Tensor, sentences: Tensor) -> Tensor:
        """Tokens (N, T) and the number of each token's sentence (N, T) to (N, T, width)."""
        places = torch.arange(words.shape[1], device=words.device)
        x = self.words(words) + self.sentences(sentences) + self.places(places)
        return self.dropout(self.norm(x))


class BertLayer(nn.Module):
    """Attention, then two linear layers with a GELU between them.

    The output of either half is added to its input, and a layer norm follows the sum.
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads, dropout)
        self.norm_1 = nn.LayerNorm(width, BERT_EPSILON)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.norm_2 = nn.LayerNorm(width, BERT_EPSILON)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, width) to the like."""
        x = self.norm_1(x + self.dropout(self.attention(x, x)))
        return self.norm_2(x + self.dropout(self.down(F.gelu(self.up(x)))))


class Bert(nn.Module):
    """Embeddings, layers and two heads; the classifier of tokens shares the embedding's matrix."""

    def __init__(
        self, vocabulary: int, width: int, heads: int, layers: int, dropout: float
    ) -> None:
        super().__init__()
        self.embeddings = BertEmbeddings(vocabulary, width, dropout)
        encoder = [BertLayer(width, heads, dropout) for _ in range(layers)]
        self.layers = numbered(self, "layer", encoder)
        self.pooler = nn.Linear(width, width)
        self.follows = nn.Linear(width, 2)
        self.transform = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, BERT_EPSILON)
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, words: Tensor, sentences: Tensor, masked: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the masked tokens (M, vocabulary), and of whether the second sentence follows
        the first (N, 2).

        ``words`` and ``sentences`` are (N, T); ``masked`` (M) are the positions of the masked
        tokens among all N x T of the batch.
        """
        x = self.embeddings(words, sentences)
        for layer in self.layers:
            x = layer(x)
        chosen = x.flatten(0, 1).index_select(0, masked)
        chosen = self.norm(F.gelu(self.transform(chosen)))
        pooled = torch.tanh(self.pooler(x[:, 0]))
        return F.linear(chosen, self.embeddings.words.weight, self.bias), self.follows(pooled)


def bert(
    batch: int = 32,
    length: int = 128,
    layers: int = 24,
    width: int = 1024,
    heads: int = 16,
    vocabulary: int = 30522,
    dropout: float = 0.1,
) -> TrainingStep:
    """Pre-trains on ``batch`` pairs of sentences of ``length`` tokens in all, 15 % of them masked.

    Devlin et al., "BERT: Pre-training of deep bidirectional transformers", 2018, by default large,
    with both tasks: tokens that were masked, and whether the second sentence follows the first.
    """

    def loss(
        module: nn.Module,
        words: Tensor,
        sentences: Tensor,
        masked: Tensor,
        labels: Tensor,
        follows: Tensor,
    ) -> Tensor:
        scores, pairs = module(words, sentences, masked)
        return F.cross_entropy(scores, labels) + F.cross_entropy(pairs, follows)

    shape, count = (batch, length), max(1, batch * length * 15 // 100)
    words, sentences = torch.randint(vocabulary, shape), torch.randint(2, shape)
    masked, labels = torch.randint(batch * length, (count,)), torch.randint(vocabulary, (count,))
    inputs = (words, sentences, masked, labels, torch.randint(2, (batch,)))
    return Bert(vocabulary, width, heads, layers, dropout), inputs, loss


class Gpt2Block(nn.Module):
    """Causal attention, then two linear layers with a GELU between them.

    A layer norm comes before either half, and the output is added to its input.
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)
        self.heads = heads

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(N, T, width) to the like."""
        q, k, v = self.qkv(self.norm_1(x)).chunk(3, 2)
        x = x + self.dropout(self.out(attend(q, k, v, self.heads, mask, self.dropout.p)))
        inner = F.gelu(self.up(self.norm_2(x)), approximate="tanh")
        return x + self.dropout(self.down(inner))


class Gpt2(nn.Module):
    """Embeddings of tokens and positions, blocks, a layer norm; the classifier shares the matrix of
    the embedding of tokens.
    """

    def __init__(
        self, vocabulary: int, width: int, heads: int, layers: int, dropout: float
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(GPT2_CONTEXT, width)
        self.dropout = nn.Dropout(dropout)
        blocks = [Gpt2Block(width, heads, dropout) for _ in range(layers)]
        self.blocks = numbered(self, "block", blocks)
        self.norm = nn.LayerNorm(width)

    def forward(self, words: Tensor) -> Tensor:
        """Tokens (N, T) to logits (N, T, vocabulary)."""
        embedded = self.words(words)
        places = torch.arange(words.shape[1], device=words.device)
        x, mask = self.dropout(embedded + self.places(places)), future(words)
        for block in self.blocks:
            x = block(x, mask)
        return F.linear(self.norm(x), self.words.weight)


def gpt2(
    batch: int = 8,
    length: int = GPT2_CONTEXT,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    vocabulary: int = 50257,
    dropout: float = 0.1,
) -> TrainingStep:
    """Predicts each next token of ``batch`` texts of ``length`` tokens.

    Radford et al., "Language models are unsupervised multitask learners", 2019, by default the
    small model.
    """
    module = Gpt2(vocabulary, width, heads, layers, dropout)
    return next_word_step(module, vocabulary, (batch, length))


gpt2_medium = partial(gpt2, layers=24, width=1024, heads=16)
