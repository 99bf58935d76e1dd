"""Shard: the part of a model and of a microbatch on one device, and the memory that it keeps.

Activations are counted tensor by tensor, from the shapes. For a GPT layer with dropout, 16-bit
activations and tp = t they are s b h (10 + 24 / t + 5 a s / (h t)) bytes, with sequence parallelism
and selective recomputation s b h 34 / t (Korthikanti et al. 2022, sections 4.1 to 4.3).

``simdev/lowering/hybrid`` makes buffers of these bytes, and ``simdev/search/plan`` bounds memory by
them. Tensors that a layer saves are counted here, its kernels in ``work``, and its parameters in
``transformer``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

from ....ground.errors import refuse
from ...strategy.parallelism import Parallelism
from .precision import FORMATS, PRECISIONS, Format
from .software import SOFTWARE, Setting, Software, setting_of
from .transformer import CHUNK, Transformer

VOCABULARY_MULTIPLE = 128  # rows of the embedding on each rank, as Megatron-LM pads them


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's share, by tp and ep, of a model and a microbatch: ``tokens`` of it (each of the
    ``cp`` parts has a part of every sample), and one of ``expert_tp`` parts of each of its experts.

    ``rows`` are its tokens of a tensor that tp does not split: all, or a share of the sequence.
    ``overlaps``: gathers and scatters along it overlap products. ``wide``: products are in
    bfloat16.
    """

    model: Transformer
    tokens: int
    tp: int
    ep: int
    expert_tp: int
    rows: int
    flash: bool
    recompute: str
    gradient_bytes: int
    setting: Setting
    cp: int = 1
    context_kept: int = 1
    again: frozenset[str] = frozenset()
    overlaps: bool = False
    wide: bool = False

    def of_layer(self, layer: int) -> Shard:
        """The shard of one layer, which may be wide in a narrow model."""
        is_wide = self.model.is_narrow and self.model.is_wide(layer)
        return replace(self, wide=True) if is_wide else self

    @property
    def expert_tokens(self) -> int:
        """The mean number of tokens sent to the experts here; tokens of the devices that have the
        other parts of the same experts count, too.
        """
        return self.tokens * self.expert_tp // self.tp

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding here, padding included."""
        unit = VOCABULARY_MULTIPLE * self.tp
        # Rounded up over all ranks together, so that all have equally many rows.
        return -(-self.model.vocabulary // unit) * VOCABULARY_MULTIPLE

    @property
    def format(self) -> Format:
        """The format of the operands of the layer's products."""
        return FORMATS[PRECISIONS[0] if self.wide else self.model.precision]

    @property
    def software(self) -> Software:
        """The software that runs the layer's kernels."""
        return self.setting.software

    def gathers_narrow(self, is_gradient: bool = False) -> bool:
        """Whether a split sequence, or the gradient of one, is cast to the narrow format before it
        is gathered (Transformer Engine, ``gather_along_first_dim`` with a quantizer; torchao's
        ``PrepareFloat8ModuleInput``, which leaves gradients as they are).
        """
        is_split = self.is_narrow and self.rows < self.tokens
        return is_split and not (is_gradient and self.software.scales_apart)

    def reads_gathered(self, is_gradient: bool = False) -> bool:
        """Whether a product reads a split sequence, or its gradient, in the gathered format."""
        return not self.is_narrow or self.gathers_narrow(is_gradient)

    def joined_bytes(self, size: int, is_gradient: bool = False) -> int:
        """Bytes gathered of a split sequence of ``size`` bytes in 16 bits, or of its gradient.

        A gradient is read along rows and along columns: with scales by block both are gathered.
        """
        if not self.gathers_narrow(is_gradient):
            return size
        return self.size_of(size // 2) * (2 if is_gradient and self.format.is_blocked else 1)

    @property
    def is_narrow(self) -> bool:
        """Whether the operands of the layer's products have a byte or less."""
        return self.model.is_narrow and not self.wide

    @property
    def saves_narrow(self) -> bool:
        """Whether attention's output and activations' inputs are saved in the precision."""
        return self.is_narrow and self.model.narrow_saved

    def size_of(self, count: int) -> int:
        """Bytes of ``count`` numbers as operands of the layer's products, scales included."""
        return ceil(count * self.format.bits / 8)

    @property
    def queries(self) -> int:
        """Width of the queries here."""
        return self.model.attention_width // self.tp

    @property
    def keys(self) -> int:
        """Width of the keys here."""
        return self.model.kv_width // self.tp

    @property
    def values(self) -> int:
        """Width of the values here."""
        return self.model.kv_heads * self.model.value_head // self.tp

    @property
    def context(self) -> int:
        """Width of the output of attention here."""
        return self.model.heads * self.model.value_head // self.tp

    def pairs(self, layer: int) -> int:
        """Pairs of tokens that fused attention computes here, for each head: an equal part on each
        device, which has an early and a late piece of each text (Llama 3, section 3.3.2).
        """
        return self.samples * self.model.pairs(layer) // self.cp

    @property
    def samples(self) -> int:
        """Samples of the microbatch."""
        return self.tokens * self.cp // self.model.length

    @property
    def context_bytes(self) -> int:
        """Bytes of all keys and values of the samples, other devices' parts included."""
        return 2 * self.tokens * self.cp * (self.keys + self.values)

    @property
    def scores(self) -> int:
        """Numbers in all rows of scores: heads x tokens x length."""
        return self.model.heads // self.tp * self.tokens * self.model.length

    @property
    def rows_bytes(self) -> int:
        """Bytes of a tensor (rows, hidden), which one rank of the pipeline sends to the next."""
        return 2 * self.rows * self.model.hidden

    @property
    def words_bytes(self) -> int:
        """Bytes of a tensor (tokens, hidden): the size of tp's collectives."""
        return 2 * self.tokens * self.model.hidden

    @property
    def linear_keys(self) -> int:
        """Width of the keys of linear attention here."""
        return self.model.linear_key_heads * self.model.linear_width // self.tp

    @property
    def linear_values(self) -> int:
        """Width of the values of linear attention here."""
        return self.model.linear_heads * self.model.linear_width // self.tp

    @property
    def linear_states(self) -> int:
        """Numbers of the states of linear attention, one for each chunk and head."""
        return self.tokens * self.linear_values * self.model.linear_width // CHUNK

    @property
    def gathered_bytes(self) -> int:
        """Bytes gathered of a split sequence before attention: of the tokens or their latents, and
        of both where queries are made directly from tokens.
        """
        m = self.model
        width = m.latents + m.hidden * (not m.query_latent) if m.kv_latent else m.hidden
        return 2 * self.tokens * width

    def exchanged_bytes(self, nodes: int = 1) -> tuple[int, int]:
        """Bytes of tokens that the busiest device of those that share the experts, on ``nodes``
        nodes, receives and sends back.

        A token that is sent to each node once is passed on inside the node (DeepSeek-V3, 3.2.2).
        """
        m = self.model
        copies = Fraction(m.top_k)
        if m.expert_groups and nodes > 1:
            # Groups of experts may be smaller than a node, or larger.
            copies = min(copies, Fraction(min(nodes, m.top_groups * -(-nodes // m.expert_groups))))
        if self.setting.dispatcher.once:
            copies = min(copies, self._reached(nodes if nodes > 1 else self.ep))
        back = ceil(self.rows_bytes * copies)
        return self.busiest(back // 2 if m.narrow_dispatch else back), self.busiest(back)

    def _reached(self, places: int) -> Fraction:
        """The mean number of places, out of ``places`` with equally many experts, that a token is
        sent to, where all choices of experts are equally likely.
        """
        m = self.model
        missed = Fraction(1)
        for chosen in range(m.top_k):
            missed *= Fraction(max(m.experts - m.experts // places - chosen, 0), m.experts - chosen)
        return places * (1 - missed)

    @property
    def gathered_expert_bytes(self) -> int:
        """Bytes of the tokens sent to all parts of the busiest experts."""
        m = self.model
        return self.busiest(2 * self.expert_tokens * m.top_k * m.hidden)

    def busiest(self, mean: int) -> int:
        """The share of the busiest of the devices that share the experts, from the mean share.

        It is at most every token of all of them, once for each of its experts (ours).
        """
        m = self.model
        most = Fraction(self.ep * min(m.top_k, m.experts // self.ep), m.top_k)
        return ceil(mean * min(Fraction(str(m.skew)), most))

    def layer_parameters(self, layer: int) -> tuple[int, int]:
        """Parameters of a layer here: of the part common to all replicas, and of experts."""
        of = self.model.layer_parameters(layer)
        experts = of.experts // (self.expert_tp * self.ep) + of.beside // self.ep
        return of.split // self.tp + of.whole, experts

    @property
    def embedding_parameters(self) -> int:
        """Parameters here of the embedding and of learnt positions."""
        return self.model.hidden * (self.vocabulary + self.model.length * self.model.positions)

    @property
    def classifier_parameters(self) -> int:
        """Parameters here of the classifier (the embedding again where it is tied), and of the last
        norm.
        """
        return self.model.hidden * self.vocabulary + self.model.norm_parameters()


def shard_of(model: Transformer, parallelism: Parallelism) -> Shard:
    """The shard of one device.

    Raises InputError where the degrees do not divide the model's sizes, all at once.
    """
    refuse([*_problems(model, parallelism), *_per_op_problems(model, parallelism)])
    p, tokens = parallelism, parallelism.microbatch * model.length // parallelism.cp
    rows = tokens // p.tp if p.sequence_parallel else tokens
    # Gathered, and their gradients; or of each a part in use and one on its way (ours).
    kept = {"all_gather": 2 * p.cp, "ring": 4}[p.context] if p.cp > 1 else 1
    degrees = p.tp, p.ep, p.expert_tp
    settings = uses_flash(model, p), p.recompute, p.gradient_bytes
    setting = setting_of(model.runs_on, p)
    again = modules_again(model, p)
    return Shard(
        model, tokens, *degrees, rows, *settings, setting, p.cp, kept, again, p.tp_comm_overlap
    )


def uses_flash(model: Transformer, parallelism: Parallelism) -> bool:
    """Whether attention is one op: ``Parallelism.flash``, else as in the model's year."""
    return model.flash if parallelism.flash is None else parallelism.flash


def modules_again(model: Transformer, parallelism: Parallelism) -> frozenset[str]:
    """The modules that selective recomputation computes again.

    Fused attention always computes its scores again, and keeps none.
    """
    p = parallelism
    chosen = frozenset(p.recompute_modules if p.recompute == "selective" else ())
    return chosen - {"core_attn"} if uses_flash(model, p) else chosen


def buckets_of(shard: Shard, parallelism: Parallelism, layer: int) -> int:
    """The number of buckets that ZeRO 2 and 3 make of a layer that replicas share."""
    if parallelism.zero < 2:
        return 1
    if gathers_by_weight(shard.model, parallelism):
        return sum(1 for _ in _weight_shapes(shard, layer))
    sizes = zip(shard.layer_parameters(layer), parallelism.sharers, strict=True)
    shared = sum(size for size, count in sizes if count * parallelism.dp_replicate > 1)
    return max(-(-shared // parallelism.bucket), 1)


def gathers_by_weight(model: Transformer, parallelism: Parallelism) -> bool:
    """Whether each weight, and its gradient, is sent between replicas by itself."""
    return parallelism.zero == 3 and SOFTWARE[model.runs_on].by_weight


def sums_late(shard: Shard, parallelism: Parallelism) -> bool:
    """Whether groups of replicas that reduce by bucket sum their shares only with the last
    microbatch (Megatron-FSDP, ``outer_fsdp_group_grad_reduce``), not with each, like FSDP2.
    """
    return parallelism.zero >= 2 and parallelism.dp_replicate > 1 and not shard.software.fsdp


def all_buckets(shard: Shard, parallelism: Parallelism) -> int:
    """The number of buckets that ZeRO 2 and 3 make of all layers that replicas share."""
    kinds = {shard.model.kind_of(layer): layer for layer in range(shard.model.layers)}
    each = {kind: buckets_of(shard, parallelism, layer) for kind, layer in kinds.items()}
    return sum(each[shard.model.kind_of(layer)] for layer in range(shard.model.layers))


def _problems(model: Transformer, p: Parallelism) -> Iterator[str]:
    divided = {"heads": True, "kv_heads": model.kv_heads != model.heads, "inner": True}
    divided |= dict.fromkeys(("linear_heads", "linear_key_heads"), model.linear_heads > 0)
    # Where experts have their own grid, tp divides only the shared experts.
    has_experts = (model.shared_experts if p.is_folded else model.experts) > 0
    divided |= {"expert_inner": has_experts, "length": p.sequence_parallel}
    sizes = {name: getattr(model, name) for name, counts in divided.items() if counts}
    wrong = [f"{name} {size}" for name, size in sizes.items() if size % p.tp]
    if wrong:
        yield f"tp: {p.tp} does not divide {', '.join(wrong)} of {model.name}"
    pieces = 2 * p.cp * (p.tp if p.sequence_parallel else 1)
    if p.cp > 1 and model.linear_heads:
        yield f"cp: is not known of the linear attention of {model.name}"
    if p.cp > 1 and not uses_flash(model, p):
        yield "cp: tokens of a sample are spread over devices only with fused attention (flash)"
    if p.cp > 1 and model.length % pieces:
        yield f"cp: {model.length} tokens of {model.name} are not divided into {pieces} pieces"
    for name in ("ep", "etp", "token_dispatcher", "ep_comm_overlap"):
        if not model.experts and getattr(p, name) != getattr(Parallelism(), name):
            yield f"{name}: {model.name} has no experts"
    if model.experts and p.is_folded and model.expert_inner % p.expert_tp:
        width = f"expert_inner {model.expert_inner} of {model.name}"
        yield f"etp: {p.expert_tp} does not divide {width}"
    if p.ep > 1 and model.experts and model.experts % p.ep:
        yield f"ep: {p.ep} does not divide the {model.experts} experts of {model.name}"
    yield from _layer_problems(model, p)


def _layer_problems(model: Transformer, p: Parallelism) -> Iterator[str]:
    if p.stage_layers and sum(p.stage_layers) != model.layers:
        yield f"stage_layers: tell of {sum(p.stage_layers)} layers, {model.name} has {model.layers}"
    for name in ("recompute_layers", "offload_layers"):
        if (count := getattr(p, name) or 0) > model.layers:
            yield f"{name}: {count} of a stage, {model.name} has {model.layers}"


def _per_op_problems(model: Transformer, p: Parallelism) -> Iterator[str]:
    is_dense = uses_flash(model, p) and not (model.experts or model.kv_latent)
    if "per_op" in modules_again(model, p) and not is_dense:
        reason = "is known of dense layers with fused attention (flash) and without latents"
        yield f"recompute_modules: per_op {reason}"


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes in memory of one layer and microbatch.

    ``saved`` lives from the forward to the end of the backward; its part ``entry`` is the layer's
    input. ``again`` lives from recomputation to the end of the backward, ``workspace`` during the
    backward. Offloading moves everything saved, the input included (Transformer Engine,
    ``mark_activation_offload``).
    """

    saved: int
    entry: int
    again: int
    workspace: int


def footprint(s: Shard, layer: int, is_again: bool = True) -> Footprint:
    """The footprint of one layer under its ``recompute``; ``is_again``: "full" recomputes it."""
    s = s.of_layer(layer)
    saved = whole = _saved(s, layer)
    if s.recompute == "full" and is_again:
        saved = s.rows_bytes
    elif s.again:
        whole = _saved(replace(s, again=frozenset()), layer)
    return Footprint(saved, s.rows_bytes, whole - saved, _workspace(s, layer))


def _saved(s: Shard, layer: int) -> int:
    """Bytes that a layer saves, without tensors that selective recomputation computes again."""
    if "per_op" in s.again:
        return _saved_per_op(s)
    if s.model.is_linear(layer):
        first = _linear_attention(s)
    else:
        first = _attention(s) + _core(s)
    return first + _second(s, layer) + _further(s) * s.model.is_mtp(layer)


def _saved_per_op(s: Shard) -> int:
    """Bytes of the layer's input, the output of attention, and every second product, in 16 bits in
    any precision; the results of tp's scatters are kept, too.
    """
    m = s.model
    into, up = [s.queries, s.keys, s.values], [m.inner // s.tp] * (m.matrices - 1)
    if not s.software.plain:
        into, up = [sum(into)], [sum(up)]
    products = [*into, m.hidden, *up, m.hidden]
    kept = sum(products[::2])
    # No gradient reads the output of the last product.
    kept -= m.hidden * (len(products) % 2 and not s.software.keeps_outputs)
    scattered = 2 * s.rows_bytes * (s.rows < s.tokens)
    return s.rows_bytes + 2 * s.tokens * (s.context + kept) + _core(s) + scattered


def _mask(s: Shard) -> int:
    return s.rows * s.model.hidden if s.model.dropout else 0


def _inputs(s: Shard, size: int) -> int:
    """Bytes of the inputs of a part's norms, and of its first products (``size`` bytes each)."""
    norms = 2 if s.model.post_norms else 1
    return norms * s.rows_bytes + size * ("layernorm" not in s.again) + _mask(s)


def _attention(s: Shard) -> int:
    """Bytes of the inputs; queries, keys, values; projection's input; mask; inputs of norms."""
    m, output = s.model, s.tokens * s.context
    kept = _inputs(s, s.size_of(s.rows * m.hidden))
    kept += output + output // 2 if s.saves_narrow else 2 * output
    if not (m.kv_latent and "mla_up_proj" in s.again):
        kept += 2 * s.tokens * (s.queries + s.keys + s.values)
    # Attention keeps its output, the projection its own form of it.
    if s.is_narrow and not s.saves_narrow:
        kept += s.size_of(output)
    if m.head_norms or m.joint_norms:
        kept += 2 * s.tokens * (s.queries + s.keys)
    if m.attention_gate:  # and, where attention's output is not cast, the product of both
        kept += 2 * output * (1 if s.is_narrow else 2)
    # Latents before and after their norm; the part that holds the position is in the keys.
    latents = s.rows * (m.query_latent + m.kv_latent)
    return kept + 2 * latents + s.size_of(latents)


def _linear_attention(s: Shard) -> int:
    """Bytes of the inputs; the convolution's input; queries and keys for each head of values,
    normed; values; gate; inputs and outputs of the rule and the projection; scores within chunks,
    decay and strength (flash-linear-attention, ``ChunkGatedDeltaRuleFunction``; recalled).
    """
    m, keys, values = s.model, s.linear_keys, s.linear_values
    numbers = 2 * keys + 6 * values + m.linear_heads // s.tp * (CHUNK + 2)
    if m.is_lightning:  # before and after SiLU; outputs of the rule and its norm; the gate
        numbers = 9 * values
    kept = _inputs(s, s.size_of(s.rows * m.hidden)) + 2 * s.tokens * numbers
    return kept + s.size_of(s.tokens * values)


def _further(s: Shard) -> int:
    """Bytes saved to predict a further token: the normed embedding, both norms joined, and the
    classifier's.
    """
    return s.rows_bytes + s.size_of(2 * s.rows * s.model.hidden) + classifier_saved(s)


def _core(s: Shard) -> int:
    """Bytes of the scores after softmax (and dropout, with its mask); fused: one number a row."""
    if s.flash:
        return 4 * s.model.heads // s.tp * s.tokens
    if "core_attn" in s.again:
        return 0
    return (5 if s.model.dropout else 2) * s.scores


def _second(s: Shard, layer: int) -> int:
    """Bytes of the inputs of norm and products, the activation's input and output, and the mask."""
    m = s.model
    if not m.is_moe(layer):
        between = _between(s, s.tokens * m.inner // s.tp, "mlp_act")
        return _inputs(s, s.size_of(s.rows * m.hidden)) + between * ("mlp" not in s.again)
    # The router reads two bytes a number.
    inner, kept = m.expert_inner // s.expert_tp, _inputs(s, s.rows_bytes)
    if "moe" in s.again:
        return kept
    kept += 4 * s.rows * m.experts  # the router's probabilities
    # Tokens sorted for the experts, as they are sent: a share on each tp rank. Sorted outputs need
    # not be kept: an expert's activation is weighed (Megatron-core, ``TEGroupedMLP``).
    kept += s.size_of(s.busiest(s.rows * m.top_k) * m.hidden)
    if m.shared_experts:
        # Narrow copies, beside the router's input.
        kept += s.size_of(s.rows * m.hidden) if s.is_narrow else 0
        if "shared_experts" not in s.again:
            shared = m.expert_inner // s.tp * m.shared_experts
            kept += _between(s, shared * s.tokens, "mlp_act")
    return kept + _between(s, inner * s.busiest(s.expert_tokens * m.top_k), "moe_act")


def _between(s: Shard, count: int, activation: str) -> int:
    """Bytes of an activation's input (``count`` numbers), and of its output for the product."""
    read = count * (s.model.matrices - 1)
    kept = s.size_of(read) if s.saves_narrow else 2 * read
    return kept + s.size_of(count) * (activation not in s.again)


def _workspace(s: Shard, layer: int) -> int:
    """The most bytes that the backward needs at once.

    Gradients of the activation's input and output, or of fused attention, and two tensors (tokens,
    hidden): with sequence parallelism the whole sequence is gathered again for the gradient of the
    weights.
    """
    m = s.model
    inner, parts = m.inner * s.tokens, s.tp
    if m.is_moe(layer):
        inner, parts = m.expert_inner * s.busiest(s.expert_tokens * m.top_k), s.expert_tp
    second = 2 * inner // parts * m.matrices
    if m.is_linear(layer):
        # Recomputed tensors with the states, the gradients of states, of queries, keys, ...
        states = 0 if m.is_lightning else 2 * s.linear_states
        first = 2 * (8 * s.tokens * s.linear_values + states)
    else:
        first = _attention_workspace(s) if s.flash else 0
    most = max(second, first) + 2 * s.words_bytes
    return max(most, classifier_workspace(s)) if m.is_mtp(layer) else most


def _attention_workspace(s: Shard) -> int:
    """Bytes of the gradients of queries, keys, values and output, with float32 sums for queries
    (FlashAttention-2, algorithm 2), and of keys and values of other parts of the samples.
    """
    others = s.context_kept * (s.keys + s.values)
    return 2 * s.tokens * (s.queries + others + s.context) + 4 * s.tokens * s.queries


def classifier_saved(s: Shard) -> int:
    """Bytes of the inputs of last norm and classifier, and of the loss's float32 probabilities,
    which its gradient replaces (Megatron-core, ``cross_entropy.py``); fused: 16-bit scores.
    """
    return 2 * s.rows_bytes + s.software.score_bytes * s.tokens * s.vocabulary


def classifier_kept(s: Shard) -> int:
    """Bytes that a split backward of the classifier keeps for the gradient of its weights: its
    input, and the gradient of its output.
    """
    return s.rows_bytes + 2 * s.tokens * s.vocabulary


def classifier_workspace(s: Shard) -> int:
    """Bytes of the logits, or their gradient, in 16 bits, beside the float32 ones."""
    return s.software.loss_bytes[s.tp > 1] * s.tokens * s.vocabulary


def stand_in_parameters(s: Shard, layers: Iterable[int]) -> int:
    """Parameters of the dummy gradients, in 16 bits, one for each shape of a layer's weights.

    Products add the true gradients to their sums, and autograd gets the dummies, which are kept
    (Transformer Engine from 2.3 on, ``get_dummy_wgrad``).
    """
    kinds = {s.model.kind_of(layer): layer for layer in layers}
    shapes = {shape for layer in kinds.values() for shape in _weight_shapes(s, layer)}
    return sum(rows * columns for rows, columns in shapes)


def narrow_weights(s: Shard, layers: Iterable[int]) -> int:
    """Weights here of the narrow products of these layers; NO_LAYER has none."""
    narrow = (layer for layer in layers if not s.model.is_wide(layer))
    shapes = (shape for layer in narrow for shape in _weight_shapes(s, layer))
    return sum(rows * columns for rows, columns in shapes)


def narrow_copies(s: Shard, layers: Iterable[int]) -> int:
    """Bytes of narrow copies of weights that live throughout, beside two bytes for each weight."""
    return ceil(narrow_weights(s, layers) * s.format.kept / 8)


def _weight_shapes(s: Shard, layer: int) -> Iterator[tuple[int, int]]:
    """(input, output) of each of a layer's products except for the router's."""
    m, h = s.model, s.model.hidden
    yield s.linear_values if m.is_linear(layer) else s.context, h
    yield from [(2 * h, h // s.tp)] * m.is_mtp(layer)
    if m.is_linear(layer):
        yield h, m.linear_into // s.tp
    elif m.kv_latent:
        positions = m.heads // s.tp * m.rotary_width
        yield h, m.kv_latent + m.rotary_width
        yield from [(h, m.query_latent)] * (m.query_latent > 0)
        yield m.query_latent or h, s.queries
        yield m.kv_latent, s.keys - positions + s.values
    else:
        yield h, s.queries + s.keys + s.values + s.context * m.attention_gate
    inners = [(m.inner, s.tp)]
    if m.is_moe(layer):
        inners = [(m.expert_inner, s.expert_tp)] * (m.experts // s.ep)
        inners += [(m.expert_inner * m.shared_experts, s.tp)] * (m.shared_experts > 0)
    for inner, parts in inners:
        yield h, (m.matrices - 1) * inner // parts
        yield inner // parts, h


def embedding_saved(s: Shard) -> int:
    """Bytes of the mask of the embedding's dropout, and of the tokens."""
    return _mask(s) + 8 * s.tokens
