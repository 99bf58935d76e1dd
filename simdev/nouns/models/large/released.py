"""Released models: their sizes by name, with their sources; or from the ``config.json`` beside the
weights of a release on Hugging Face. ``simdev/files/scenario.py`` reads both.

The fields of such a file depend on its ``model_type``; fields that it leaves out have the defaults
of the library transformers (``configuration_*.py``). A type is a reader and a row of ``TYPES``; a
model is a row of ``_PUBLISHED`` or ``_RELEASED``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import partial
from typing import Any

from ....ground.errors import InputError, refuse
from ....ground.frozen import FrozenDict
from ....ground.units import is_count, name_problems, text_problems, written
from .transformer import BLOCK, Transformer

_gpt = partial(Transformer, vocabulary=51_200, length=2048, year=2021)
_llama = partial(
    Transformer, length=4096, gated=True, bias=False, norm="rms", dropout=False, tied=False,
    positions=False,
)  # fmt: skip
# Trained with fused attention from the start; older models are counted as by their authors, with
# all pairs of tokens.
_today = partial(_llama, causal=True)
# Models with latent attention, of equal widths.
_deepseek = partial(_today, kv_latent=512, rotary_width=64, head_width=192, value_width=128)
_qwen2 = partial(_today, qkv_bias=True)
_glm = partial(
    _today, vocabulary=151_552, kv_heads=8, head_width=128, qkv_bias=True, router_bias=True,
    top_k=8, shared_experts=1,
)  # fmt: skip
_qwen3 = partial(_today, vocabulary=151_936, kv_heads=8, head_width=128, head_norms=True)
_qwen3_next = partial(
    _qwen3, length=4096, top_k=10, shared_experts=1, shared_gate=True, attention_gate=True,
    full_every=4, conv_kernel=4,
)  # fmt: skip
_gpt_oss = partial(
    _today, hidden=2880, heads=64, inner=2880, vocabulary=201_088, kv_heads=8, head_width=64,
    bias=True, sinks=True, top_k=4, expert_inner=2880, window=128, global_every=2,
)  # fmt: skip
_gemma = partial(
    _today, vocabulary=256_000, head_width=256, tied=True, post_norms=True, window=4096,
    global_every=2, length=8192,
)  # fmt: skip

# Sources: GPT of 22B to 1T: Narayanan et al. 2021 (Megatron-LM, table 1) and Korthikanti et al.
# 2022 (table 3); GPT-3: Brown et al. 2020 (table 2.1); Llama 2: Touvron et al. 2023; Llama 3:
# Grattafiori et al. 2024 (table 3); Mixtral: Jiang et al. 2024 (table 1) and Mistral's release of
# 8x22B; DeepSeekMoE: Dai et al. 2024 (section 5).
_PUBLISHED = (
    _gpt("gpt-1.7b", 24, 2304, 24, 9216),
    _gpt("gpt-3.6b", 30, 3072, 32, 12_288),
    _gpt("gpt-7.5b", 36, 4096, 32, 16_384),
    _gpt("gpt-18b", 40, 6144, 48, 24_576),
    _gpt("gpt-22b", 48, 6144, 64, 24_576, year=2022),
    _gpt("gpt-39b", 48, 8192, 64, 32_768),
    _gpt("gpt3-175b", 96, 12_288, 96, 49_152, vocabulary=50_257, year=2020),
    _gpt("megatron-530b", 105, 20_480, 128, 81_920),
    _gpt("megatron-1t", 128, 25_600, 160, 102_400),
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
)  # fmt: skip

# Sources: config.json of each release (deepseek-ai/DeepSeek-V2, -V2-Lite, -V3;
# moonshotai/Kimi-K2-Base, Qwen/Qwen3-*, Qwen/Qwen2.5-*, openai/gpt-oss-*, meta-llama/Llama-3.2-*,
# mistralai/Mistral-7B-v0.1, -Nemo-Base-2407, -Small-24B-Base-2501, google/gemma-2-*, gemma-3-*,
# zai-org/GLM-4.5, -Air, MiniMaxAI/MiniMax-M2; Qwen/Qwen3-Next-80B-A3B-Instruct recalled).
# Lengths are those of pretraining, as the reports have them: DeepSeek-V2 and V3 (section 4.1 of
# both), Kimi K2, Qwen3 (section 3.2), Qwen2.5 (section 3), GLM-4.5 4096 before it goes on with
# longer ones (arXiv 2508.06471; recalled, not re-read), Gemma 2 8192; of GPT-OSS, Llama 3.2,
# Mistral, Qwen3-Next and MiniMax-M2 ours. DeepSeek-V3, Kimi K2, GLM-4.5, Qwen3-Next and MiniMax-M2
# are without what predicts further tokens.
_RELEASED = (
    _deepseek(
        "deepseek-v2-lite", 27, 2048, 16, 10_944, 102_400,
        experts=64, top_k=6, expert_inner=1408, shared_experts=2, dense_layers=1,
    ),
    _deepseek(
        "deepseek-v2", 60, 5120, 128, 12_288, 102_400, query_latent=1536,
        experts=160, top_k=6, expert_inner=1536, shared_experts=2, dense_layers=1,
    ),
    _deepseek(
        "deepseek-v3", 61, 7168, 128, 18_432, 129_280, query_latent=1536, router_bias=True,
        experts=256, top_k=8, expert_inner=2048, shared_experts=1, dense_layers=3,
        expert_groups=8, top_groups=4,
    ),
    _deepseek(
        "kimi-k2", 61, 7168, 64, 18_432, 163_840, query_latent=1536, router_bias=True,
        experts=384, top_k=8, expert_inner=2048, shared_experts=1, dense_layers=1,
    ),
    _qwen3("qwen3-0.6b", 28, 1024, 16, 3072, tied=True),
    _qwen3("qwen3-1.7b", 28, 2048, 16, 6144, tied=True),
    _qwen3("qwen3-4b", 36, 2560, 32, 9728, tied=True),
    _qwen3("qwen3-8b", 36, 4096, 32, 12_288),
    _qwen3("qwen3-14b", 40, 5120, 40, 17_408),
    _qwen3("qwen3-32b", 64, 5120, 64, 25_600),
    _qwen3("qwen3-30b-a3b", 48, 2048, 32, 6144, kv_heads=4, experts=128, top_k=8, expert_inner=768),
    _qwen3("qwen3-235b-a22b", 94, 4096, 64, 12_288, kv_heads=4, experts=128, top_k=8,
    expert_inner=1536),
    _qwen3_next("qwen3-next-80b-a3b", 48, 2048, 16, 5120, kv_heads=2, head_width=256, experts=512,
    expert_inner=512, linear_heads=32, linear_key_heads=16, linear_width=128),
    _qwen2("qwen2.5-0.5b", 24, 896, 14, 4864, 151_936, kv_heads=2, tied=True),
    _qwen2("qwen2.5-7b", 28, 3584, 28, 18_944, 152_064, kv_heads=4),
    _qwen2("qwen2.5-32b", 64, 5120, 40, 27_648, 152_064, kv_heads=8),
    _qwen2("qwen2.5-72b", 80, 8192, 64, 29_568, 152_064, kv_heads=8),
    _gpt_oss("gpt-oss-20b", 24, experts=32),
    _gpt_oss("gpt-oss-120b", 36, experts=128),
    _today("llama3.2-1b", 16, 2048, 32, 8192, 128_256, kv_heads=8, tied=True, length=8192),
    _today("llama3.2-3b", 28, 3072, 24, 8192, 128_256, kv_heads=8, tied=True, length=8192),
    _today("mistral-7b", 32, 4096, 32, 14_336, 32_000, kv_heads=8, window=4096, length=8192),
    _today("mistral-nemo-12b", 40, 5120, 32, 14_336, 131_072, kv_heads=8, head_width=128,
    length=8192),
    _today("mistral-small-24b", 40, 5120, 32, 32_768, 131_072, kv_heads=8, head_width=128,
    length=8192),
    _gemma("gemma2-2b", 26, 2304, 8, 9216, kv_heads=4),
    _gemma("gemma2-9b", 42, 3584, 16, 14_336, kv_heads=8),
    _gemma("gemma2-27b", 46, 4608, 32, 36_864, kv_heads=16, head_width=128),
    _gemma("gemma3-1b", 26, 1152, 4, 6912, kv_heads=1, vocabulary=262_144, head_norms=True,
    window=512, global_every=6),
    _gemma("gemma3-27b", 62, 5376, 32, 21_504, kv_heads=16, head_width=128, vocabulary=262_208,
    head_norms=True, window=1024, global_every=6),
    _glm("glm-4.5", 92, 5120, 96, 12_288, head_norms=True, experts=160, expert_inner=1536,
    dense_layers=3),
    _glm("glm-4.5-air", 46, 4096, 96, 10_944, experts=128, expert_inner=1408, dense_layers=1),
    _today("minimax-m2", 62, 3072, 48, 1536, 200_064, kv_heads=8, head_width=128,
    joint_norms=True, router_bias=True, experts=256, top_k=8, expert_inner=1536),
)  # fmt: skip

LARGE: Mapping[str, Transformer] = {model.name: model for model in (*_PUBLISHED, *_RELEASED)}


def large_model(name: str, /, **sizes: Any) -> Transformer:
    """A model of LARGE, some sizes replaced by the given ones. Raises InputError."""
    refuse(text_problems("model", name))
    if name not in LARGE:
        near = get_close_matches(name, LARGE, 3) or list(LARGE)
        raise InputError(f'model: no large model called "{name}"; perhaps {", ".join(near)}')
    return resized(LARGE[name], **sizes)


def resized(model: Transformer, /, **sizes: Any) -> Transformer:
    """A model with some sizes replaced by the given ones. Raises InputError."""
    known = {field.name for field in fields(Transformer)} - {"name"}
    listed = ", ".join(sorted(known))
    unknown = (key for key in sizes if key not in known)
    refuse([f"{key}: is no size of a large model; there are {listed}" for key in unknown])
    # Sizes that follow from the heads are computed again. A smaller number of key heads stays as
    # published, and so does a head width that is not a share of the hidden size.
    follows = model.head_width * model.heads == model.hidden
    derived = {"head_width": 0} if follows and {"heads", "hidden"} & sizes.keys() else {}
    if "heads" in sizes and model.kv_heads == model.heads:
        derived["kv_heads"] = 0
    return replace(model, **{**derived, **sizes}) if sizes else model


# A file gives the longest text, not the length in training; users may ask for longer texts.
LENGTH = 4096
_REQUIRED: Any = object()
_REACHES = "sliding_attention", "full_attention"


# The name of a size where a problem begins with it, or gives its number.
_SIZE = re.compile(r"^\w+(?=:)|\b\w+(?= \d)")


Read = str | tuple[str, Any]
"""The field of a file that holds a size, with its default where it may be left out."""


class _Fields:
    """The fields of a file while they are read, with the problems found; ``names`` are the names of
    the fields by the sizes that they hold.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.problems: list[str] = []
        self.names = {
            "window": "sliding_window", "global_every": "sliding_window_pattern",
            "expert_groups": "n_group", "top_groups": "topk_group",
        }  # fmt: skip

    def sizes(self, **reads: Read) -> dict[str, Any]:
        """Sizes of the model, each read from its field."""
        fields = {
            size: (read, _REQUIRED) if isinstance(read, str) else read
            for size, read in reads.items()
        }
        self.names |= {size: name for size, (name, _) in fields.items()}
        return {size: self.count(*field) for size, field in fields.items()}

    def count(self, name: str, default: Any = _REQUIRED) -> Any:
        """A whole number from 1; the default where the field is missing or null."""
        value = self.config.get(name)
        if value is None:
            if default is _REQUIRED:
                self.problems.append(f"{name}: missing")
            return 1 if default is _REQUIRED else default
        if not (is_count(value) and value):
            self.problems.append(f"{name}: must be a whole number from 1, got {written(value)}")
            return 1
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false; the default where the field is missing."""
        value = self.config.get(name, default)
        if not isinstance(value, bool):
            self.problems.append(f"{name}: must be true or false, got {written(value)}")
        return value is True

    def require(self, name: str, wanted: Any) -> None:
        """Record a problem unless a field is missing or has the only modelled value ``wanted``."""
        value = self.config.get(name, wanted)
        if value != wanted:
            self.problems.append(f"{name}: only {wanted!r} is modelled, got {written(value)}")


def _common(of: _Fields, tied: bool = False) -> dict[str, Any]:
    """The sizes that have the same names in all types but GPT-2."""
    sizes = of.sizes(
        heads="num_attention_heads", layers="num_hidden_layers", hidden="hidden_size",
        inner="intermediate_size", vocabulary="vocab_size",
        length=("max_position_embeddings", LENGTH),
    )  # fmt: skip
    sizes |= of.sizes(kv_heads=("num_key_value_heads", sizes["heads"]), head_width=("head_dim", 0))
    return sizes | {
        "length": min(LENGTH, sizes["length"]), "tied": of.flag("tie_word_embeddings", tied),
        "gated": True, "bias": False, "norm": "rms", "dropout": False, "positions": False,
        "causal": True,
    }  # fmt: skip


def _read_llama(of: _Fields) -> dict[str, Any]:
    sizes = _common(of)
    sizes["bias"] = of.flag("attention_bias")
    if of.flag("mlp_bias") != sizes["bias"]:
        of.problems.append("attention_bias: only with mlp_bias, and it with this, is modelled")
    return sizes


def _windows(of: _Fields, layers: int, every: int = 0) -> dict[str, Any]:
    """Sliding windows, except in every ``every``-th layer (0: in all), or by ``layer_types``."""
    window, types = of.count("sliding_window", 0), of.config.get("layer_types")
    if types is None or not window:
        return {"window": window, "global_every": every if window else 0}
    if not isinstance(types, list) or any(t not in _REACHES for t in types) or len(types) != layers:
        of.problems.append(f"layer_types: must be {layers} of {', '.join(_REACHES)}")
        return {}
    wide = [number for number, kind in enumerate(types, 1) if kind == _REACHES[1]]
    every = wide[0] if wide else 0
    if every == 1:
        window = 0
    if wide != (list(range(every, layers + 1, every)) if every else []):
        of.problems.append("layer_types: only every n-th of full_attention is modelled")
    return {"window": window, "global_every": every if window else 0}


def _read_deepseek(
    of: _Fields, router_bias: bool, groups: tuple[int, int] = (1, 1)
) -> dict[str, Any]:
    """The sizes of DeepSeek's files. ``groups`` of experts, all and for a token, are defaults."""
    of.require("attention_bias", False)
    of.require("moe_layer_freq", 1)
    sizes = _common(of) | of.sizes(
        query_latent=("q_lora_rank", 0), kv_latent="kv_lora_rank", rotary_width="qk_rope_head_dim",
        head_width="qk_nope_head_dim", value_width="v_head_dim",
    )  # fmt: skip
    sizes["head_width"] += sizes["rotary_width"]
    if of.config.get("n_routed_experts") is None:
        return sizes
    return sizes | _routed(of, router_bias, groups)


def _routed(
    of: _Fields, router_bias: bool, groups: tuple[int, int], shared: int = 0, dense: int = 0
) -> dict[str, Any]:
    """The experts, as in DeepSeek's files and similar ones; ``shared`` experts and ``dense`` layers
    are defaults.
    """
    sizes: dict[str, Any] = {"router_bias": router_bias}
    every, chosen = of.count("n_group", groups[0]), of.count("topk_group", groups[1])
    # In version 2 groups are of devices, and a copy of a token is sent to each expert.
    if every > 1 and router_bias:
        sizes |= {"expert_groups": every, "top_groups": chosen}
    if of.config.get("first_k_dense_replace", dense):
        sizes |= of.sizes(dense_layers=("first_k_dense_replace", dense))
    return sizes | of.sizes(
        experts="n_routed_experts", top_k="num_experts_per_tok",
        expert_inner="moe_intermediate_size", shared_experts=("n_shared_experts", shared),
    )  # fmt: skip


def _read_glm4_moe(of: _Fields) -> dict[str, Any]:
    norms = {"qkv_bias": of.flag("attention_bias"), "head_norms": of.flag("use_qk_norm")}
    return _common(of) | norms | _routed(of, True, (1, 1), shared=1, dense=1)


def _read_qwen3_next(of: _Fields) -> dict[str, Any]:
    sizes = _QWEN3_NEXT(of)
    every = of.count("full_attention_interval", 4)
    kinds = [_LINEAR[(number + 1) % every == 0] for number in range(sizes["layers"])]
    if of.config.get("layer_types") not in (None, kinds):
        of.problems.append(f"layer_types: only each {every}-th of {_LINEAR[1]} is modelled")
    of.require("linear_value_head_dim", sizes["linear_width"])
    of.require("shared_expert_intermediate_size", sizes["expert_inner"])
    return sizes | {"full_every": every}


def _read_minimax_m2(of: _Fields) -> dict[str, Any]:
    """The sizes of MiniMax-M2: the kind of each layer's attention is a number, 0 linear."""
    sizes, kinds = _MINIMAX(of), of.config.get("attn_type_list")
    if kinds is not None and kinds != [1] * sizes["layers"]:
        of.problems.append(f"attn_type_list: only {sizes['layers']} of 1 is modelled")
    return sizes | {"router_bias": of.flag("use_routing_bias", True)}


def _read_minimax(of: _Fields) -> dict[str, Any]:
    """The sizes of MiniMax's files, which name or number the kind of each layer's attention."""
    sizes, kinds = _MINIMAX_01(of), of.config.get("layer_types", of.config.get("attn_type_list"))
    width = sizes["head_width"] or sizes["hidden"] // sizes["heads"]
    full = [kind in (1, "full_attention") for kind in kinds] if isinstance(kinds, list) else []
    every = full.index(True) + 1 if any(full) else 0
    if every < 2 or full != [number % every == 0 for number in range(1, sizes["layers"] + 1)]:
        name = "attn_type_list" if "attn_type_list" in of.config else "layer_types"
        of.problems.append(f"{name}: only each n-th of full_attention (1) is modelled")
    heads = {"linear_heads": sizes["heads"], "linear_key_heads": sizes["heads"]}
    return sizes | heads | {"linear_width": width, "full_every": every}


def _read_gpt2(of: _Fields) -> dict[str, Any]:
    sizes = of.sizes(
        layers="n_layer", hidden="n_embd", heads="n_head", vocabulary="vocab_size",
        length="n_positions",
    )  # fmt: skip
    return sizes | of.sizes(inner=("n_inner", 4 * sizes["hidden"])) | {
        "tied": of.flag("tie_word_embeddings", True),
        "dropout": bool(of.config.get("resid_pdrop", 0.1)),
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads a file of one type.

    ``requires`` are fields with their only supported values, ``sizes`` are fixed by the type, and
    ``reads`` are further fields. ``tied``: embeddings are tied by default. Where ``windows`` is n,
    every n-th layer has no window (0: all layers have one; None: no layer).
    """

    requires: Mapping[str, Any] = FrozenDict()
    sizes: Mapping[str, Any] = FrozenDict()
    reads: Mapping[str, Read] = FrozenDict()
    tied: bool = False
    windows: int | None = None

    def __call__(self, of: _Fields) -> dict[str, Any]:
        """The sizes of the model."""
        for name, wanted in self.requires.items():
            of.require(name, wanted)
        sizes = _common(of, self.tied)
        if self.windows is not None:
            sizes |= _windows(of, sizes["layers"], self.windows)
        sizes |= {**self.sizes, **of.sizes(**self.reads)}
        if "experts" in sizes and "expert_inner" not in sizes:
            # One field holds both widths, so that a problem is reported once.
            sizes["expert_inner"], of.names["expert_inner"] = sizes["inner"], of.names["inner"]
        return sizes


def _read_gemma3(of: _Fields) -> dict[str, Any]:
    of.require("use_bidirectional_attention", False)
    # Newer files have ``layer_types``, and the pattern, if at all, under another name.
    every = of.count("sliding_window_pattern", of.count("_sliding_window_pattern", 6))
    return replace(_GEMMA, windows=every, sizes={**_GEMMA.sizes, "head_norms": True})(of)


_MISTRAL = _Reader(windows=0)
_EXPERTS = {"experts": "num_local_experts", "top_k": "num_experts_per_tok"}
_QWEN = _Reader({"use_sliding_window": False}, {"qkv_bias": True})
_QWEN3 = _Reader(
    {**_QWEN.requires, "attention_bias": False},
    {"head_norms": True},
    {"head_width": ("head_dim", 128)},
)
_QWEN3_MOE = _Reader(
    {"decoder_sparse_step": 1, "mlp_only_layers": [], **_QWEN3.requires},
    {"head_norms": True},
    {
        "experts": "num_experts",
        "top_k": "num_experts_per_tok",
        "expert_inner": "moe_intermediate_size",
    },
)
_LINEAR = "linear_attention", "full_attention"
_QWEN3_NEXT = _Reader(
    {**_QWEN3_MOE.requires, "use_sliding_window": False},
    {"head_norms": True, "attention_gate": True, "shared_gate": True, "shared_experts": 1},
    {
        **_QWEN3_MOE.reads,
        "head_width": ("head_dim", 256),
        "linear_heads": ("linear_num_value_heads", 32),
        "linear_key_heads": ("linear_num_key_heads", 16),
        "linear_width": ("linear_key_head_dim", 128),
        "conv_kernel": ("linear_conv_kernel_dim", 4),
    },
)
_GPT_OSS = _Reader({"attention_bias": True}, {"bias": True, "sinks": True}, _EXPERTS, windows=2)
_MINIMAX = _Reader(
    {"use_qk_norm": True, "qk_norm_type": "per_layer", "shared_intermediate_size": 0},
    {"joint_norms": True},
    {"head_width": ("head_dim", 128), **_EXPERTS},
)
_MINIMAX_01 = _Reader(
    {"block_size": BLOCK, "shared_intermediate_size": 0, "sliding_window": None}, reads=_EXPERTS
)
_GEMMA = _Reader(
    {"attention_bias": False}, {"post_norms": True}, {"head_width": ("head_dim", 256)}, True, 2
)
TYPES: Mapping[str, Callable[[_Fields], dict[str, Any]]] = {
    "llama": _read_llama,
    "mistral": _MISTRAL,
    "phi3": _MISTRAL,
    "mixtral": replace(_MISTRAL, reads=_EXPERTS),
    "qwen2": _QWEN,
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3_MOE,
    "qwen3_next": _read_qwen3_next,
    "deepseek_v2": partial(_read_deepseek, router_bias=False),
    "deepseek_v3": partial(_read_deepseek, router_bias=True, groups=(8, 4)),
    "kimi_k2": partial(_read_deepseek, router_bias=True),
    "gpt_oss": _GPT_OSS,
    "gemma2": _GEMMA,
    "gemma3_text": _read_gemma3,
    "gemma3": _read_gemma3,
    "glm4_moe": _read_glm4_moe,
    "minimax": _read_minimax,
    "minimax_text_01": _read_minimax,
    "minimax_m2": _read_minimax_m2,
    "gpt2": _read_gpt2,
}
"""The reader of a file by its ``model_type``."""
TEXTS: Mapping[str, Mapping[str, Any]] = {
    "gemma3": {
        "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216,
        "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
        "sliding_window": 4096,
    },
}  # fmt: skip
"""Types whose files hold the language model in ``text_config``, with the defaults of its sizes;
other parts, like a vision tower, are left out.
"""
_GEMMA4 = "layers have heads of two widths, embeddings of their own, and keys that are values"
UNMODELLED = {
    "gemma4": _GEMMA4,
    "gemma4_text": _GEMMA4,
}
"""The reason why files of some released types are not read."""


def from_config(config: Any) -> Transformer:
    """The model that a parsed config.json describes, over texts of LENGTH tokens or fewer.

    Its name is the end of ``_name_or_path``, or the type. Raises InputError with every problem at
    once.
    """
    if not isinstance(config, Mapping):
        raise InputError("must be an object (the config.json of a model)")
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in TYPES:
        raise InputError(f"model_type: {_not_known(kind)}; there are {', '.join(TYPES)}")
    path = "text_config." if kind in TEXTS else ""
    of = _Fields(_text_of(config, TEXTS[kind]) if path else config)
    sizes = TYPES[kind](of)
    # A type with another default reads a field twice.
    refuse(path + problem for problem in dict.fromkeys(of.problems))
    try:
        return Transformer(_name(config, kind), **sizes)
    except InputError as error:
        raise InputError(path + _by_file(of, problem) for problem in error.problems) from None


def _text_of(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of ``text_config``, with defaults for missing ones. Raises InputError."""
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        reason = "missing" if text is None else "must be an object"
        raise InputError(f"text_config: {reason}")
    return {**defaults, **{name: value for name, value in text.items() if value is not None}}


def _not_known(kind: Any) -> str:
    """The reason why a type has no reader."""
    if kind is None:
        return "missing"
    if isinstance(kind, str) and kind in UNMODELLED:
        return f"{kind!r} is not modelled, for {UNMODELLED[kind]}"
    return f"{written(kind)} is not known"


def _by_file(of: _Fields, problem: str) -> str:
    """A problem of a Transformer's sizes, in terms of the fields of the file."""

    def name(size: re.Match[str]) -> str:
        field = of.names.get(size[0], "")
        return field if field in of.config else size[0]

    return _SIZE.sub(name, problem)


def _name(config: Mapping[str, Any], kind: str) -> str:
    name = config.get("_name_or_path")
    last = name.rstrip("/").rpartition("/")[2] if isinstance(name, str) else ""
    return kind if not last or list(name_problems("name", last)) else last
