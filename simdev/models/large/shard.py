"""Shard: what one device has of a model and of a microbatch, and what that keeps in memory.

Activations are counted tensor by tensor, from the shapes. For a GPT layer with dropout, 16-bit
activations and tp = t they are s b h (10 + 24 / t + 5 a s / (h t)) bytes, with sequence parallelism
and selective recomputation s b h 34 / t (Korthikanti et al. 2022, sections 4.1 to 4.3).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...errors import refuse
from ...strategy.parallelism import Parallelism
from .transformer import Transformer

VOCABULARY_MULTIPLE = 128  # rows of the embedding on each rank, as Megatron-LM pads them


@dataclass(frozen=True, slots=True)
class Shard:
    """A rank of tp (and of ep) of a model, at work on a microbatch of ``words``.

    ``rows`` are the words that the rank has where a tensor is not split by tp: all of them, or a
    share of the sequence.
    """

    model: Transformer
    words: int
    tp: int
    ep: int
    rows: int
    flash: bool
    recompute: str
    gradient_bytes: int

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding here, padding included."""
        unit = VOCABULARY_MULTIPLE * self.tp
        # Rounded up over all ranks together, so that each has as many rows.
        return -(-self.model.vocabulary // unit) * VOCABULARY_MULTIPLE

    @property
    def queries(self) -> int:
        """Width of the queries here."""
        return self.model.attention_width // self.tp

    @property
    def keys(self) -> int:
        """Width of the keys here, and of the values."""
        return self.model.kv_width // self.tp

    @property
    def scores(self) -> int:
        """Numbers in all rows of scores: heads x words x length."""
        return self.model.heads // self.tp * self.words * self.model.length

    @property
    def batched(self) -> int:
        """Matrices of scores: heads here x samples."""
        return self.model.heads // self.tp * (self.words // self.model.length)

    @property
    def rows_bytes(self) -> int:
        """Bytes of a tensor (rows, hidden): what one rank of the pipeline sends to the next."""
        return 2 * self.rows * self.model.hidden

    @property
    def words_bytes(self) -> int:
        """Bytes of a tensor (words, hidden): the size of tp's collectives."""
        return 2 * self.words * self.model.hidden

    def layer_parameters(self, layer: int) -> tuple[int, int]:
        """Parameters of a layer here: those that all replicas have, and those of the experts."""
        split, whole, experts = self.model.layer_parameters(layer)
        return split // self.tp + whole, experts // (self.tp * self.ep)

    @property
    def embedding_parameters(self) -> int:
        """Of the words' table here, and of the positions."""
        return self.model.hidden * (self.vocabulary + self.model.length * self.model.positions)

    @property
    def classifier_parameters(self) -> int:
        """Of the classifier's table here (the embedding again where it is tied) and of the last
        norm.
        """
        return self.model.hidden * self.vocabulary + self.model.norm_parameters()


def shard_of(model: Transformer, parallelism: Parallelism) -> Shard:
    """The shard of one device.

    Raises InputError where the degrees do not divide the model's sizes, all at once.
    """
    refuse(_problems(model, parallelism))
    p, words = parallelism, parallelism.microbatch * model.length
    rows = words // p.tp if p.sequence_parallel else words
    return Shard(model, words, p.tp, p.ep, rows, p.flash, p.recompute, p.gradient_bytes)


def _problems(model: Transformer, p: Parallelism) -> Iterator[str]:
    divided = {"heads": True, "kv_heads": model.kv_heads != model.heads, "inner": True}
    divided |= {"expert_inner": model.experts > 0, "length": p.sequence_parallel}
    sizes = {name: getattr(model, name) for name, counts in divided.items() if counts}
    wrong = [f"{name} {size}" for name, size in sizes.items() if size % p.tp]
    if wrong:
        yield f"tp: {p.tp} does not divide {', '.join(wrong)} of {model.name}"
    if p.ep > 1 and not model.experts:
        yield f"ep: {model.name} has no experts"
    elif p.ep > 1 and model.experts % p.ep:
        yield f"ep: {p.ep} does not divide the {model.experts} experts of {model.name}"
    if p.stage_layers and sum(p.stage_layers) != model.layers:
        yield f"stage_layers: tell of {sum(p.stage_layers)} layers, {model.name} has {model.layers}"


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of one layer and microbatch.

    ``saved`` lives from the forward to the end of the backward, ``entry`` is the part of it that is
    the layer's input; ``again`` from recomputation to the end of the backward; ``workspace`` while
    the backward runs.
    """

    saved: int
    entry: int
    again: int
    workspace: int

    @property
    def moved(self) -> int:
        """What is offloaded: all but the input, or the input where nothing else is saved."""
        return self.saved - self.entry or self.entry


def footprint(s: Shard, layer: int) -> Footprint:
    """That of one layer, with what ``recompute`` saves."""
    # FlashAttention recomputes its scores anyway: "selective" then has nothing to repeat.
    whole, core = _attention(s) + _second(s, layer), _core(s)
    saved, again = whole + core, 0
    if s.recompute == "full":
        saved, again = s.rows_bytes, saved - s.rows_bytes
    elif s.recompute == "selective" and not s.flash:
        saved, again = whole, core
    return Footprint(saved, s.rows_bytes, again, _workspace(s, layer))


def _mask(s: Shard) -> int:
    return s.rows * s.model.hidden if s.model.dropout else 0


def _attention(s: Shard) -> int:
    """Input of norm and products; queries, keys, values; what the projection reads; the mask."""
    return 2 * s.rows_bytes + 4 * s.words * (s.queries + s.keys) + _mask(s)


def _core(s: Shard) -> int:
    """Scores after the softmax (and dropped out, with the mask); fused, a number a row of them."""
    if s.flash:
        return 4 * s.model.heads // s.tp * s.words
    return (5 if s.model.dropout else 2) * s.scores


def _second(s: Shard, layer: int) -> int:
    """Input of norm and of the products, what the activation reads and produces, the mask."""
    m = s.model
    kept = 2 * s.rows_bytes + _mask(s)
    if not m.is_moe(layer):
        return kept + 2 * s.words * m.inner // s.tp * m.matrices
    inner = m.expert_inner // s.tp
    kept += 4 * s.rows * m.experts  # the router's probabilities
    # Sorted words before the experts and after, as they are sent: a share of them on each tp rank.
    kept += 2 * 2 * s.rows * m.top_k * m.hidden
    return kept + 2 * s.words * inner * m.matrices * (m.top_k + m.shared_experts)


def _workspace(s: Shard, layer: int) -> int:
    """The most that the backward has at once.

    Gradients of what the activation read and produced, and two of (words, hidden): with sequence
    parallelism the whole sequence is gathered once more for the gradient of the weights.
    """
    m = s.model
    inner = m.top_k * m.expert_inner if m.is_moe(layer) else m.inner
    return 2 * s.words * inner // s.tp * m.matrices + 2 * s.words_bytes


def classifier_saved(s: Shard) -> int:
    """Inputs of the last norm and of the classifier; the loss's float32 probabilities, logits."""
    return 2 * s.rows_bytes + (2 + 4) * s.words * s.vocabulary


def classifier_workspace(s: Shard) -> int:
    """The gradient of the logits, in float32."""
    return 4 * s.words * s.vocabulary


def embedding_saved(s: Shard) -> int:
    """The mask of its dropout, and the words themselves."""
    return _mask(s) + 8 * s.words
