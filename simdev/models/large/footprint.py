"""What a layer's shard keeps in memory for one microbatch, in bytes: counted tensor by tensor, from
the shapes.

For a GPT layer with dropout, 16-bit activations and tp = t they are s b h (10 + 24 / t + 5 a s / (h
t)), with sequence parallelism and selective recomputation s b h 34 / t (Korthikanti et al. 2022,
sections 4.1 to 4.3).
"""

from __future__ import annotations

from dataclasses import dataclass

from .shard import Shard


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
    x = s.rows_bytes
    whole = _attention(s) + _second(s, layer)
    core = _core(s)
    if s.recompute == "full":
        return Footprint(x, x, whole + core - x, _workspace(s, layer))
    if s.recompute == "selective" and not s.flash:
        return Footprint(whole, x, core, _workspace(s, layer))
    return Footprint(whole + core, x, 0, _workspace(s, layer))


def _mask(s: Shard) -> int:
    return s.rows * s.model.hidden if s.model.dropout else 0


def _attention(s: Shard) -> int:
    """Input of norm and of the products; queries, keys and values; what the projection reads; the
    mask.
    """
    return (
        2 * s.rows_bytes
        + 2 * s.words * (s.queries + 2 * s.keys)
        + 2 * s.words * s.queries
        + _mask(s)
    )


def _core(s: Shard) -> int:
    """Scores after the softmax (and dropped out, with the mask); a number a row where attention is
    one op.
    """
    if s.flash:
        return 4 * s.model.heads // s.tp * s.words
    return (5 if s.model.dropout else 2) * s.scores


def _second(s: Shard, layer: int) -> int:
    """Input of norm and of the products, what the activation reads and makes, the mask."""
    m = s.model
    kept = 2 * s.rows_bytes + _mask(s)
    if not m.is_moe(layer):
        return kept + 2 * s.words * m.inner // s.tp * m.matrices
    inner = m.expert_inner // s.tp
    routed = s.words * m.top_k
    kept += 4 * s.rows * m.experts  # the router's probabilities
    # Sorted words before the experts and after, as they are sent; between them as many as the ranks
    # of tp share.
    kept += 2 * 2 * s.rows * m.top_k * m.hidden + 2 * routed * inner * m.matrices
    return kept + 2 * s.words * inner * m.shared_experts * m.matrices


def _workspace(s: Shard, layer: int) -> int:
    """The largest that the backward has at once: gradients of what the activation made and read,
    and two of (words, h).

    With sequence parallelism the whole sequence is gathered once more for the gradient of the
    weights.
    """
    m = s.model
    inner = m.top_k * m.expert_inner if m.is_moe(layer) else m.inner
    return 2 * s.words * inner // s.tp * m.matrices + 2 * s.words_bytes


def classifier_saved(s: Shard) -> int:
    """Input of the last norm and of the classifier, and the loss's float32 probabilities beside the
    logits.
    """
    return 2 * s.rows_bytes + (2 + 4) * s.words * s.vocabulary


def classifier_workspace(s: Shard) -> int:
    """The gradient of the logits, in float32."""
    return 4 * s.words * s.vocabulary


def embedding_saved(s: Shard) -> int:
    """The mask of its dropout, and the words themselves."""
    return _mask(s) + 8 * s.words
