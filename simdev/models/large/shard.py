"""Shard: what one device has of a model and of a microbatch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...errors import InputError
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
        return self.model.hidden * (
            self.vocabulary + (self.model.length if self.model.positions else 0)
        )

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
    problems = list(_problems(model, parallelism))
    if problems:
        raise InputError(problems)
    words = parallelism.microbatch * model.length
    rows = words // parallelism.tp if parallelism.sequence_parallel else words
    return Shard(
        model, words, parallelism.tp, parallelism.ep, rows, parallelism.flash,
        parallelism.recompute,
        parallelism.gradient_bytes,
    )  # fmt: skip


def _problems(model: Transformer, p: Parallelism) -> Iterator[str]:
    divided = [("heads", model.heads), ("inner", model.inner)]
    if model.kv_heads != model.heads:
        divided.insert(1, ("kv_heads", model.kv_heads))
    if model.experts:
        divided.append(("expert_inner", model.expert_inner))
    if p.sequence_parallel:
        divided.append(("length", model.length))
    wrong = [f"{name} {size}" for name, size in divided if size % p.tp]
    if wrong:
        yield f"tp: {p.tp} does not divide {', '.join(wrong)} of {model.name}"
    if p.ep > 1 and not model.experts:
        yield f"ep: {model.name} has no experts"
    elif p.ep > 1 and model.experts % p.ep:
        yield f"ep: {p.ep} does not divide the {model.experts} experts of {model.name}"
    if p.stage_layers and sum(p.stage_layers) != model.layers:
        yield f"stage_layers: tell of {sum(p.stage_layers)} layers, {model.name} has {model.layers}"
