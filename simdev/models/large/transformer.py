"""Transformer: the sizes of a large language model, which determine work, memory and parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from fractions import Fraction
from typing import Any

from ...errors import InputError, refuse
from ...frozen import FrozenDict
from ...graph import PHASES
from ...units import Number, is_count, name_problems, parse_time

NORMS = ("layer", "rms")
# Past every published model, and small enough that no product of sizes leaves 63 bits.
MOST, MOST_LAYERS = 2**24, 2**14
POSITIVE = "layers", "hidden", "heads", "inner", "vocabulary", "length", "kv_heads"
OPTIONAL = "experts", "top_k", "expert_inner", "shared_experts", "dense_layers", "head_width"
SWITCHES = "gated", "bias", "dropout", "tied", "positions"


@dataclass(frozen=True, slots=True)
class Transformer:
    """A decoder of ``layers`` equal layers over texts of ``length`` words. Raises InputError.

    ``heads`` of ``head_width`` (0: hidden / heads), ``kv_heads`` of keys and values (0: as many).
    The feed-forward part is ``inner`` wide, ``gated`` (SwiGLU: three matrices) or not (two).
    ``experts`` > 0: all layers but the first ``dense_layers`` send each word to ``top_k`` of so
    many experts of ``expert_inner``, beside ``shared_experts`` of that width which every word
    meets. ``tied``: the classifier is the embedding; ``positions``: they are learnt.
    ``host_time`` is what a host needs to dispatch a layer's "forward" and "backward" (with what is
    made again) for a microbatch, and the step's "update", in seconds.
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

    def __post_init__(self) -> None:
        # Filled in only from sound numbers; the others are reported below.
        if is_count(self.heads) and self.heads and is_count(self.hidden):
            object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
            if not self.head_width and self.hidden % self.heads == 0:
                object.__setattr__(self, "head_width", self.hidden // self.heads)
        seconds, problems = _host_seconds(self.host_time)
        object.__setattr__(self, "host_time", FrozenDict(seconds))
        # Sizes are compared with each other only where each by itself is sound.
        refuse([*self._field_problems(), *problems])
        refuse(self._size_problems())

    def _field_problems(self) -> Iterator[str]:
        yield from name_problems("name", self.name)
        for name in POSITIVE + OPTIONAL:
            value, least = getattr(self, name), int(name in POSITIVE)
            most = MOST_LAYERS if name == "layers" else MOST
            if not (is_count(value) and least <= value <= most):
                yield f"{name}: must be a whole number from {least} to {most:,}, got {value!r}"
        for name in SWITCHES:
            if not isinstance(getattr(self, name), bool):
                yield f"{name}: must be true or false, got {getattr(self, name)!r}"
        if self.norm not in NORMS:
            yield f'norm: must be one of {", ".join(NORMS)}, got "{self.norm}"'

    def _size_problems(self) -> Iterator[str]:
        if not self.head_width:
            yield f"heads: {self.heads} do not divide hidden {self.hidden}"
        if self.heads % self.kv_heads:
            yield f"kv_heads: {self.kv_heads} do not divide the {self.heads} heads"
        if self.experts and not 0 < self.top_k <= self.experts:
            yield f"top_k: must be from 1 to the {self.experts} experts, got {self.top_k}"
        if self.experts and not self.expert_inner:
            yield "expert_inner: experts need a width"
        if self.dense_layers > self.layers:
            yield f"dense_layers: {self.dense_layers} of {self.layers} layers"

    def is_moe(self, layer: int) -> bool:
        """Whether a layer has experts."""
        return self.experts > 0 and layer >= self.dense_layers

    @property
    def attention_width(self) -> int:
        """Of all queries together."""
        return self.heads * self.head_width

    @property
    def kv_width(self) -> int:
        """Of all keys, or all values."""
        return self.kv_heads * self.head_width

    @property
    def matrices(self) -> int:
        """Of a feed-forward part: 3 where it is gated."""
        return 3 if self.gated else 2

    def norm_parameters(self) -> int:
        """Of one norm."""
        return self.hidden * (2 if self.norm == "layer" else 1)

    def parameters(self) -> int:
        """All parameters, the embedding counted once where it is tied."""
        layers = sum(sum(self.layer_parameters(i)) for i in range(self.layers))
        rows = self.vocabulary * (1 if self.tied else 2) + self.length * self.positions
        return layers + rows * self.hidden + self.norm_parameters()

    def layer_parameters(self, layer: int) -> tuple[int, int, int]:
        """Of one layer: what tp splits, what every rank of tp has whole, those of the experts."""
        h, a, kv = self.hidden, self.attention_width, self.kv_width
        split = h * (a + 2 * kv) + a * h + self.bias * (a + 2 * kv)
        whole = 2 * self.norm_parameters() + self.bias * h
        if not self.is_moe(layer):
            split += self.matrices * h * self.inner + self.bias * self.inner
            return split, whole + self.bias * h, 0
        expert = self.matrices * h * self.expert_inner
        return split + expert * self.shared_experts, whole + h * self.experts, expert * self.experts

    def flops(self, samples: int) -> int:
        """FLOPs of a step's products over so many samples, forward and backward, nothing made
        twice.

        A multiply-add counts two, attention over all pairs of words (Narayanan et al. 2021, section
        5.1).
        """
        words = samples * self.length
        layers = sum(self._layer_flops(words, i) for i in range(self.layers))
        return 3 * (layers + 2 * words * self.hidden * self.vocabulary)

    def flops_again(self, samples: int, recompute: str) -> int:
        """Those that recomputation ("none", "selective", "full") adds."""
        words = samples * self.length
        if recompute == "full":
            return sum(self._layer_flops(words, i) for i in range(self.layers))
        return self.layers * self._core_flops(words) if recompute == "selective" else 0

    def _core_flops(self, words: int) -> int:
        return 4 * words * self.length * self.attention_width

    def _layer_flops(self, words: int, layer: int) -> int:
        """Of one layer's forward."""
        used, _, experts = self.layer_parameters(layer)
        # Biases are added, not multiplied.
        inner = 0 if experts else self.inner
        used -= self.bias * (self.attention_width + 2 * self.kv_width + inner)
        if experts:
            used += experts // self.experts * self.top_k + self.hidden * self.experts
        return 2 * words * used + self._core_flops(words)


def _host_seconds(given: Any) -> tuple[dict[str, Fraction], list[str]]:
    """Times of hosts by phase in seconds, and what is wrong with them."""
    if not isinstance(given, Mapping):
        return {}, [f"host_time: must be an object of times by phase, got {given!r}"]
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


_LLAMA: Mapping[str, Any] = {
    "gated": True, "bias": False, "norm": "rms", "dropout": False, "tied": False,
    "positions": False,
}  # fmt: skip


def _gpt(name: str, layers: int, hidden: int, heads: int, vocabulary: int = 51_200) -> Transformer:
    return Transformer(name, layers, hidden, heads, 4 * hidden, vocabulary, 2048)


def _llama(
    name: str, layers: int, hidden: int, heads: int, inner: int, vocabulary: int, **more: Any
) -> Transformer:
    return Transformer(
        name, layers, hidden, heads, inner, vocabulary, **{"length": 4096, **_LLAMA, **more}
    )


# Sources: GPT of 22B to 1T: Narayanan et al. 2021 (Megatron-LM, table 1) and Korthikanti et al.
# 2022 (table 3); GPT-3: Brown et al. 2020 (table 2.1); Llama 2: Touvron et al. 2023; Llama 3:
# Grattafiori et al. 2024 (table 3); Mixtral: Jiang et al. 2024 (table 1) and Mistral's release of
# 8x22B; DeepSeekMoE: Dai et al. 2024 (section 5).
LARGE: Mapping[str, Transformer] = {
    model.name: model
    for model in (
        _gpt("gpt-1.7b", 24, 2304, 24),
        _gpt("gpt-3.6b", 30, 3072, 32),
        _gpt("gpt-7.5b", 36, 4096, 32),
        _gpt("gpt-18b", 40, 6144, 48),
        _gpt("gpt-22b", 48, 6144, 64),
        _gpt("gpt-39b", 48, 8192, 64),
        _gpt("gpt3-175b", 96, 12_288, 96, 50_257),
        _gpt("megatron-530b", 105, 20_480, 128),
        _gpt("megatron-1t", 128, 25_600, 160),
        _llama("llama2-7b", 32, 4096, 32, 11_008, 32_000),
        _llama("llama2-13b", 40, 5120, 40, 13_824, 32_000),
        _llama("llama2-70b", 80, 8192, 64, 28_672, 32_000, kv_heads=8),
        _llama("llama3-8b", 32, 4096, 32, 14_336, 128_256, kv_heads=8, length=8192),
        _llama("llama3-70b", 80, 8192, 64, 28_672, 128_256, kv_heads=8, length=8192),
        _llama("llama3-405b", 126, 16_384, 128, 53_248, 128_256, kv_heads=8, length=8192),
        _llama("mixtral-8x7b", 32, 4096, 32, 14_336, 32_000, kv_heads=8, experts=8, top_k=2,
        expert_inner=14_336),
        _llama("mixtral-8x22b", 56, 6144, 48, 16_384, 32_000, kv_heads=8, experts=8, top_k=2,
        expert_inner=16_384),
        _llama(
            "deepseek-moe-16b", 28, 2048, 16, 10_944, 102_400,
            experts=64, top_k=6, expert_inner=1408, shared_experts=2, dense_layers=1,
        ),
    )
}  # fmt: skip


def large_model(name: str, /, **sizes: Any) -> Transformer:
    """A model of LARGE, with other sizes where they are given. Raises InputError."""
    if not isinstance(name, str) or name not in LARGE:
        near = get_close_matches(str(name), LARGE, 3) or list(LARGE)
        raise InputError(f'model: no large model called "{name}"; perhaps {", ".join(near)}')
    known = {field.name for field in fields(Transformer)} - {"name"}
    listed = ", ".join(sorted(known))
    unknown = [
        f"{key}: is no size of a large model; there are {listed}"
        for key in sizes
        if key not in known
    ]
    refuse(unknown)
    published = LARGE[name]
    # What follows from the heads is worked out anew; keys of fewer heads stay as published.
    derived = {"head_width": 0} if {"heads", "hidden"} & sizes.keys() else {}
    if "heads" in sizes and published.kv_heads == published.heads:
        derived["kv_heads"] = 0
    return replace(published, **{**derived, **sizes}) if sizes else published
