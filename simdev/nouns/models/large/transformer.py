"""Transformer: the sizes of a large language model, which determine work, memory and parameters.

The modules beside it and ``simdev/lowering/hybrid`` read it. A field that changes a layer counts in
three places: parameters and FLOPs here, bytes in ``shard``, kernels in ``work``; ``released`` reads
it from the config.json of a release.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from fractions import Fraction
from numbers import Real
from typing import Any, NamedTuple

from ....ground.errors import refuse
from ....ground.frozen import FrozenDict
from ....ground.units import (
    Number,
    flag_problems,
    is_count,
    name_problems,
    parse_time,
    range_problems,
    unlisted,
    written,
)
from ...graph import PHASES
from .precision import PRECISIONS
from .software import DEFAULT_SOFTWARE, OLDER_SOFTWARE, SOFTWARE

NORMS = ("layer", "rms")
FLASH_YEAR = 2023
CHUNK = 64
"""Tokens of a chunk of linear attention (flash-linear-attention, ``chunk_gated_delta_rule``;
recalled).
"""
BLOCK = 256
"""Tokens of a block of lightning attention (MiniMax-01, ``block_size``)."""
# Larger than every published model, and small enough that no product of sizes exceeds 63 bits.
MOST, MOST_LAYERS = 2**24, 2**14


class LayerParameters(NamedTuple):
    """Parameters of one layer: ``split`` by tp, and ``whole`` on every rank of tp; for its experts
    in the same way ``experts`` and ``beside``.
    """

    split: int
    whole: int
    experts: int
    beside: int


class Kind(NamedTuple):
    """The kind of a layer: whether it has experts, its reach, whether its products are wide
    (bfloat16), whether it predicts further tokens, and whether its attention is linear.
    """

    is_moe: bool
    reach: int
    is_wide: bool
    is_mtp: bool
    is_linear: bool


@dataclass(frozen=True, slots=True)
class Transformer:
    """A decoder of ``layers`` equal layers over texts of ``length`` tokens. Raises InputError.

    ``heads`` of ``head_width`` (0: hidden / heads), ``kv_heads`` of keys and values (0: ``heads``).
    The feed-forward part is ``inner`` wide, ``gated`` (SwiGLU: three matrices) or not (two).
    ``experts`` > 0: all layers except the first ``dense_layers`` send each token to ``top_k`` of
    this number of experts of width ``expert_inner``, and every token to ``shared_experts`` of the
    same width. ``tied``: the classifier is the embedding; ``positions``: positions are learnt.

    - ``kv_latent`` > 0 is multi-head latent attention (DeepSeek-V2, section 2.1): keys and values
      are made from this number of latents for each token, queries from ``query_latent`` (0: from
      the token itself). ``rotary_width`` of each head's ``head_width`` hold the position, in the
      keys once for all heads; values are ``value_width`` wide (0: as keys, with and without
      latents).
    - ``head_norms``: each head's query and key is normed; ``joint_norms``: the queries of all heads
      are normed together, and so are the keys (MiniMax-M2); ``post_norms``: the outputs of both
      parts of a layer are normed, too; ``sinks``: every softmax has one more number for each head.
    - ``bias``: all products have one; ``qkv_bias``: queries, keys and values; ``router_bias``: the
      choice of experts.
    - ``window`` > 0: a token attends to this number of tokens before it; in every
      ``global_every``-th layer (0: none) to all. ``causal``: fused attention skips masked pairs;
      else it computes all pairs.
    - ``precision`` of the layers' products, except for the router's (DeepSeek-V3, section 3.3):
      "float8" computes them from operands of a byte, "mxfp8" and "nvfp4" from operands of 8 and 4
      bits with a scale for each 32 and each 16 (``precision``). The first ``wide_first`` and the
      last ``wide_last`` layers stay in bfloat16 (arXiv 2509.25149, section 4).
    - ``skew``: the busiest device of those that share the experts gets this many times the mean
      number of tokens; all others wait for it.

    - ``expert_groups`` > 0: the experts of a token belong to ``top_groups`` of this number of
      equal, consecutive groups, and a token is sent to each other node once and passed on there
      (DeepSeek-V3, sections 2.1.2 and 3.2.2). ``narrow_dispatch``: tokens, and the gradients of
      experts' outputs, are sent to experts as numbers of a byte (section 3.3.3). ``narrow_saved``:
      the inputs of activations are saved in the precision, too (in float8 as numbers of a byte),
      and the output of attention once, as numbers of 12 bits (there).

    - The last ``mtp`` layers predict further tokens (DeepSeek-V3, section 2.2; Megatron-core,
      ``multi_token_prediction.py``): each joins the output of the layer before it with the
      embedding of the next token, both normed, by a product, and ends in the classifier. It shares
      the tables of embedding and classifier.

    - ``linear_heads`` > 0: all layers except every ``full_every``-th have gated DeltaNet, a linear
      attention (Yang et al. 2024, arXiv 2412.06464), over chunks of CHUNK tokens: this number of
      heads of values, ``linear_key_heads`` of queries and keys, each ``linear_width`` wide, after a
      convolution over ``conv_kernel`` tokens. Without a convolution it is lightning attention
      (MiniMax-01, arXiv 2501.08313, section 2.2), whose heads have separate rates of decay, over
      blocks of BLOCK.
    - ``attention_gate``: the output of the other layers' attention is multiplied by a gate of its
      width; ``shared_gate``: the output of the shared experts, by one number for each token.

    - ``software`` runs the layers' kernels (a name of ``software.SOFTWARE``; "": ``runs_on``).

    ``year`` of its publication (0: unknown) decides whether it was trained with fused attention.
    ``host_time`` is the time in seconds that a host needs to dispatch a layer's "forward" and
    "backward" (recomputation included) for a microbatch, and the step's "update".
    """

    name: str
    layers: int
    hidden: int
    heads: int
    inner: int
    vocabulary: int
    length: int
    kv_heads: int = 0
    head_width: int = 0
    gated: bool = False
    bias: bool = True
    norm: str = "layer"
    dropout: bool = True
    tied: bool = True
    positions: bool = True
    experts: int = 0
    top_k: int = 0
    expert_inner: int = 0
    shared_experts: int = 0
    dense_layers: int = 0
    host_time: Mapping[str, Number] = FrozenDict()
    value_width: int = 0
    query_latent: int = 0
    kv_latent: int = 0
    rotary_width: int = 0
    window: int = 0
    global_every: int = 0
    qkv_bias: bool = False
    router_bias: bool = False
    head_norms: bool = False
    post_norms: bool = False
    sinks: bool = False
    causal: bool = False
    precision: str = PRECISIONS[0]
    skew: float | Fraction = 1
    year: int = 0
    expert_groups: int = 0
    top_groups: int = 0
    narrow_dispatch: bool = False
    narrow_saved: bool = False
    wide_first: int = 0
    wide_last: int = 0
    joint_norms: bool = False
    mtp: int = 0
    linear_heads: int = 0
    linear_key_heads: int = 0
    linear_width: int = 0
    full_every: int = 0
    conv_kernel: int = 0
    attention_gate: bool = False
    shared_gate: bool = False
    software: str = ""

    def __post_init__(self) -> None:
        # Defaults are filled in only from valid numbers; invalid ones are reported below.
        if is_count(self.heads) and self.heads and is_count(self.hidden):
            object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
            if not self.head_width and self.hidden % self.heads == 0:
                object.__setattr__(self, "head_width", self.hidden // self.heads)
        seconds, problems = _host_seconds(self.host_time)
        object.__setattr__(self, "host_time", FrozenDict(seconds))
        # Sizes are compared with each other only where each is valid by itself.
        refuse([*self._field_problems(), *problems])
        refuse(self._size_problems())

    def _field_problems(self) -> Iterator[str]:
        yield from name_problems("name", self.name)
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            # Sizes that may be left out may be 0; heads of keys and values were filled in.
            least = int(field.default is MISSING or name == "kv_heads")
            most = MOST_LAYERS if name == "layers" else MOST
            if field.type == "int":
                yield from range_problems(name, value, least, most)
            if field.type == "bool":
                yield from flag_problems(name, value)
        yield from unlisted(self, norm=NORMS, precision=PRECISIONS, software=("", *SOFTWARE))
        is_number = isinstance(self.skew, Real) and not isinstance(self.skew, bool)
        if not (is_number and 1 <= self.skew <= MOST):
            yield f"skew: must be a number from 1 to {MOST:,}, got {written(self.skew)}"

    def _size_problems(self) -> Iterator[str]:
        if not self.head_width:
            yield f"heads: {self.heads} do not divide hidden {self.hidden}"
        if self.heads % self.kv_heads:
            yield f"kv_heads: {self.kv_heads} do not divide the {self.heads} heads"
        yield from self._expert_problems()
        if self.dense_layers > self.layers:
            yield f"dense_layers: {self.dense_layers} of {self.layers} layers"
        if self.mtp >= self.layers:
            yield f"mtp: {self.mtp} of {self.layers} layers predict further tokens"
        elif self.mtp and self.experts and self.mtp + self.dense_layers > self.layers:
            yield f"mtp: {self.mtp} and dense_layers {self.dense_layers} of {self.layers} layers"
        if self.wide_first + self.wide_last > self.layers:
            wide = f"{self.wide_first} and wide_last {self.wide_last}"
            yield f"wide_first: {wide} are more than the {self.layers} layers"
        if self.global_every and not self.window:
            yield "global_every: without window all layers attend to all tokens"
        if self.joint_norms and self.head_norms:
            yield "joint_norms: queries and keys are normed by head, or as one"
        yield from self._latent_problems()
        yield from self._linear_problems()

    def _expert_problems(self) -> Iterator[str]:
        if self.experts and not 0 < self.top_k <= self.experts:
            yield f"top_k: must be from 1 to the {self.experts} experts, got {self.top_k}"
        if self.experts and not self.expert_inner:
            yield "expert_inner: experts need a width"
        if self.expert_groups and not 0 < self.top_groups <= self.expert_groups:
            wanted = f"must be from 1 to the {self.expert_groups} groups of experts"
            yield f"top_groups: {wanted}, got {self.top_groups}"
        if self.expert_groups and self.experts % self.expert_groups:
            yield f"expert_groups: {self.expert_groups} do not divide {self.experts} experts"

    def _latent_problems(self) -> Iterator[str]:
        if not self.kv_latent:
            for name in ("query_latent", "rotary_width"):
                if getattr(self, name):
                    yield f"{name}: goes with kv_latent"
            return
        if self.kv_heads != self.heads:
            yield f"kv_heads: keys of a latent have all {self.heads} heads, got {self.kv_heads}"
        if self.rotary_width >= self.head_width:
            yield f"rotary_width: must be below head_width {self.head_width}"
        for name in ("bias", "qkv_bias", "head_norms", "joint_norms"):
            if getattr(self, name):
                yield f"{name}: is not known of attention with kv_latent"

    def _linear_problems(self) -> Iterator[str]:
        names = "linear_key_heads", "linear_width", "full_every"
        wrong = [name for name in names if bool(getattr(self, name)) != bool(self.linear_heads)]
        wrong += ["conv_kernel"] * (self.conv_kernel > 0 and not self.linear_heads)
        yield from (f"{name}: goes with linear_heads" for name in wrong)
        if wrong or not self.linear_heads:
            return
        if self.is_lightning and self.linear_key_heads != self.linear_heads:
            heads = f"without conv_kernel as many as linear_heads {self.linear_heads}"
            yield f"linear_key_heads: {heads}"
        elif self.linear_heads % self.linear_key_heads:
            heads = f"{self.linear_key_heads} do not divide the {self.linear_heads} linear_heads"
            yield f"linear_key_heads: {heads}"
        for name in ("bias", "kv_latent", "window"):
            if getattr(self, name):
                yield f"{name}: is not known of models with linear_heads"

    @property
    def is_lightning(self) -> bool:
        """Whether linear attention is lightning attention."""
        return self.linear_heads > 0 and not self.conv_kernel

    def is_linear(self, layer: int) -> bool:
        """Whether a layer's attention is linear."""
        return self.linear_heads > 0 and (layer + 1) % self.full_every > 0

    def is_moe(self, layer: int) -> bool:
        """Whether a layer has experts."""
        return self.experts > 0 and layer >= self.dense_layers

    def is_mtp(self, layer: int) -> bool:
        """Whether a layer predicts further tokens."""
        return layer >= self.layers - self.mtp

    def reach(self, layer: int) -> int:
        """The largest number of tokens that a token of a layer attends to."""
        is_global = self.global_every > 0 and (layer + 1) % self.global_every == 0
        return min(self.window, self.length) if self.window and not is_global else self.length

    def is_wide(self, layer: int) -> bool:
        """Whether a layer's products are in bfloat16."""
        is_inner = self.wide_first <= layer < self.layers - self.wide_last
        return not (self.is_narrow and is_inner)

    def kind_of(self, layer: int) -> Kind:
        """The kind of a layer: layers of one kind cost the same."""
        first = self.is_moe(layer), self.reach(layer), self.is_wide(layer), self.is_mtp(layer)
        return Kind(*first, self.is_linear(layer))

    def pairs(self, layer: int) -> int:
        """The pairs of tokens of one sample that count for each head: all within reach. Where
        attention is ``causal``, masked pairs do not count, approximated as for infinitely many
        tokens (half of all, as FlashAttention counts).
        """
        reach = self.reach(layer)
        return reach * (2 * self.length - reach) // 2 if self.causal else self.length * reach

    @property
    def flash(self) -> bool:
        """Whether attention was one op when the model was published.

        FlashAttention was published in May 2022 (Dao et al.) and is in Megatron-LM since early
        2023.
        """
        return not 0 < self.year < FLASH_YEAR

    @property
    def runs_on(self) -> str:
        """The software that runs the layers: ``software``, else the usual one of the year. Narrow
        products need the Transformer Engine, which is younger than OLDER_SOFTWARE.
        """
        is_older = not self.flash and not self.is_narrow
        return self.software or (OLDER_SOFTWARE if is_older else DEFAULT_SOFTWARE)

    @property
    def attention_width(self) -> int:
        """Width of all queries together."""
        return self.heads * self.head_width

    @property
    def kv_width(self) -> int:
        """Width of all keys."""
        return self.kv_heads * self.head_width

    @property
    def value_head(self) -> int:
        """Width of one head's values."""
        return self.value_width or self.head_width

    @property
    def mixed_width(self) -> int:
        """Width of queries, keys and values of linear attention, which its convolution mixes."""
        return (2 * self.linear_key_heads + self.linear_heads) * self.linear_width

    @property
    def linear_into(self) -> int:
        """Width of all that linear attention computes from a token: queries, keys and values, a
        gate as wide as the values, and for each head decay and strength (lightning attention:
        neither).
        """
        beside = self.linear_width + 2 * (not self.is_lightning)
        return self.mixed_width + self.linear_heads * beside

    @property
    def _rule_weights(self) -> int:
        """Multiply-adds of the delta rule for a token: five products within a chunk and three with
        the state, as in the kernels of ``work``; lightning attention has two and two.
        """
        width = self.linear_width
        if self.is_lightning:
            return self.linear_heads * (2 * BLOCK * width + 2 * width**2)
        return self.linear_heads * (5 * CHUNK * width + 3 * width**2)

    @property
    def latents(self) -> int:
        """Latents for each token of queries (0: made from the token itself) and of keys."""
        return self.query_latent + self.kv_latent + self.rotary_width

    @property
    def is_narrow(self) -> bool:
        """Whether the operands of the layers' products have a byte or less."""
        return self.precision != PRECISIONS[0]

    @property
    def matrices(self) -> int:
        """Matrices of a feed-forward part: 3 where it is gated."""
        return 3 if self.gated else 2

    def norm_parameters(self, width: int = 0) -> int:
        """Parameters of one norm, over the hidden size or another width."""
        return (width or self.hidden) * (2 if self.norm == "layer" else 1)

    def parameters(self) -> int:
        """All parameters, the embedding counted once where it is tied."""
        layers = sum(sum(self.layer_parameters(i)) for i in range(self.layers))
        rows = self.vocabulary * (1 if self.tied else 2) + self.length * self.positions
        return layers + rows * self.hidden + self.norm_parameters()

    def active_parameters(self) -> int:
        """Parameters that a token uses: ``top_k`` of the experts, and no tables that are looked up,
        as DeepSeek-V3 and GPT-OSS count (README_WEIGHTS.md; model card, table 1).
        """
        looked_up = self.vocabulary * (not self.tied) + self.length * self.positions
        idle = sum(
            (of.experts + of.beside) // self.experts * (self.experts - self.top_k)
            for of in map(self.layer_parameters, range(self.dense_layers, self.layers))
            if self.experts
        )
        return self.parameters() - looked_up * self.hidden - idle

    def layer_parameters(self, layer: int) -> LayerParameters:
        """Parameters of one layer."""
        h, inner = self.hidden, self.expert_inner if self.is_moe(layer) else self.inner
        split, whole = self._attention_parameters(layer)
        if self.is_mtp(layer):
            split, whole = split + 2 * h * h, whole + 3 * self.norm_parameters()
        into, mlp = inner * (self.matrices - 1), self.matrices * h * inner
        if not self.is_moe(layer):
            return LayerParameters(split + mlp + self.bias * into, whole + self.bias * h, 0, 0)
        shared = mlp + self.bias * into
        split += self.shared_experts * shared
        whole += (self.experts + self.bias * (self.shared_experts > 0) + self.shared_gate) * h
        whole += (self.bias or self.router_bias) * self.experts
        return LayerParameters(split, whole, shared * self.experts, self.bias * h * self.experts)

    def _attention_parameters(self, layer: int) -> tuple[int, int]:
        """Parameters of attention and norms: split by tp, and whole on every rank."""
        h, values = self.hidden, self.kv_heads * self.value_head
        split, whole = self._attention_weights(layer)
        whole += (4 if self.post_norms else 2) * self.norm_parameters() + self.bias * h
        if self.is_linear(layer) and self.is_lightning:
            return split, whole + self.norm_parameters(self.linear_heads * self.linear_width)
        if self.is_linear(layer):
            # Parameters of the convolution, of decay and its bias, and of the norm of each head.
            split += self.conv_kernel * self.mixed_width + 2 * self.linear_heads
            return split, whole + self.norm_parameters(self.linear_width)
        if self.bias or self.qkv_bias:
            split += self.attention_width + self.kv_width + values
        split += self.sinks * self.heads
        if self.head_norms:
            whole += 2 * self.norm_parameters(self.head_width)
        if self.joint_norms:
            split += self.norm_parameters(self.attention_width + self.kv_width)
        for latent in filter(None, (self.query_latent, self.kv_latent)):
            whole += self.norm_parameters(latent)
        return split, whole

    def _attention_weights(self, layer: int) -> tuple[int, int]:
        """Weights of attention's products: split by tp, and of the product to the latents."""
        h, context = self.hidden, self.heads * self.value_head
        if self.is_linear(layer):
            return h * (self.linear_into + self.linear_heads * self.linear_width), 0
        if not self.kv_latent:
            into = self.attention_width + self.kv_width + self.kv_heads * self.value_head
            return h * (into + context * self.attention_gate) + context * h, 0
        keys = self.heads * (self.head_width - self.rotary_width) + context
        queries = (self.query_latent or h) * self.attention_width
        return queries + self.kv_latent * keys + context * h, h * self.latents

    def flops(self, samples: int) -> int:
        """FLOPs of a step's products over ``samples``, forward and backward, without recomputation.

        A multiply-add counts two, attention over ``pairs`` of tokens (Narayanan et al. 2021,
        section 5.1).
        """
        tokens = samples * self.length
        layers = sum(self._layer_flops(samples, i) for i in range(self.layers))
        return 3 * (layers + 2 * tokens * self.hidden * self.vocabulary)

    def flops_again(
        self,
        samples: int,
        recompute: str,
        modules: Collection[str] = ("core_attn",),
        whole: Collection[int] | None = None,
    ) -> int:
        """FLOPs that recomputation ("none", "selective" of ``modules``, "full") adds to a step;
        "full" recomputes the layers ``whole`` (None: all).
        """
        layers = range(self.layers)
        if recompute == "full":
            return sum(self._layer_flops(samples, i) for i in (layers if whole is None else whole))
        if recompute != "selective":
            return 0
        tokens = samples * self.length
        products = sum(self._weights_again(i, modules) for i in layers)
        core = sum(self._core_flops(samples, i) for i in layers) if "core_attn" in modules else 0
        return 2 * tokens * products + core

    def _weights_again(self, layer: int, modules: Collection[str]) -> int:
        """Weights of a layer's products that a token uses again for recomputed ``modules``."""
        used, matrices = 0, self.matrices * self.hidden
        if "per_op" in modules:
            # The projection; where products are separate, also keys and the activation's second
            # input.
            apart = (self.kv_width + self.inner * self.gated) * SOFTWARE[self.runs_on].plain
            used += self.hidden * (self.attention_width + apart)
        if "mla_up_proj" in modules and self.kv_latent:
            split, _ = self._attention_weights(layer)
            used += split - self.heads * self.value_head * self.hidden
        if not self.is_moe(layer):
            return used + matrices * self.inner * ("mlp" in modules)
        if "moe" in modules:
            used += matrices * self.top_k * self.expert_inner
            used += (self.experts + self.shared_gate) * self.hidden
        if not {"moe", "shared_experts"}.isdisjoint(modules):
            used += matrices * self.shared_experts * self.expert_inner
        return used

    def _core_flops(self, samples: int, layer: int) -> int:
        """FLOPs of the scores, and of the values weighed by them."""
        if self.is_linear(layer):
            return 0
        return 2 * samples * self.pairs(layer) * self.heads * (self.head_width + self.value_head)

    def _layer_flops(self, samples: int, layer: int) -> int:
        """FLOPs of one layer's forward."""
        is_moe, h = self.is_moe(layer), self.hidden
        used = sum(self._attention_weights(layer))
        inner = (self.top_k + self.shared_experts) * self.expert_inner if is_moe else self.inner
        used += self.matrices * h * inner + (self.experts + self.shared_gate) * h * is_moe
        used += h * (2 * h + self.vocabulary) * self.is_mtp(layer)
        used += self._rule_weights * self.is_linear(layer)
        return 2 * samples * self.length * used + self._core_flops(samples, layer)


def _host_seconds(given: Any) -> tuple[dict[str, Fraction], list[str]]:
    """Hosts' times by phase in seconds, and the problems with them."""
    if not isinstance(given, Mapping):
        return {}, [f"host_time: must be an object of times by phase, got {written(given)}"]
    seconds: dict[str, Fraction] = {}
    problems: list[str] = []
    for phase, time in given.items():
        if phase not in PHASES:
            problems.append(f'host_time: no phase "{phase}"; there are {", ".join(PHASES)}')
            continue
        try:
            seconds[phase] = parse_time(time)
        except ValueError as error:
            problems.append(f"host_time.{phase}: {error}")
    return seconds, problems
