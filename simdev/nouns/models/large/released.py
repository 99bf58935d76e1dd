"""Models as they were released, by name: their sizes, and where these stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any

from ....ground.errors import InputError, refuse
from .transformer import Transformer

_LLAMA: Mapping[str, Any] = {
    "gated": True, "bias": False, "norm": "rms", "dropout": False, "tied": False,
    "positions": False,
}  # fmt: skip


def _gpt(
    name: str, layers: int, hidden: int, heads: int, vocabulary: int = 51_200, year: int = 2021
) -> Transformer:
    return Transformer(name, layers, hidden, heads, 4 * hidden, vocabulary, 2048, year=year)


def _llama(
    name: str, layers: int, hidden: int, heads: int, inner: int, vocabulary: int, **more: Any
) -> Transformer:
    return Transformer(
        name, layers, hidden, heads, inner, vocabulary, **{"length": 4096, **_LLAMA, **more}
    )


def _today(
    name: str, layers: int, hidden: int, heads: int, inner: int, vocabulary: int, **more: Any
) -> Transformer:
    """Trained with fused attention from the start; the older are counted as their authors did, with
    all pairs of tokens.
    """
    return _llama(name, layers, hidden, heads, inner, vocabulary, **{"causal": True, **more})


def _deepseek(
    name: str, layers: int, hidden: int, heads: int, inner: int, vocabulary: int, **more: Any
) -> Transformer:
    """With latent attention, as wide in all of them."""
    latent = {"kv_latent": 512, "rotary_width": 64, "head_width": 192, "value_width": 128}
    return _today(name, layers, hidden, heads, inner, vocabulary, **{**latent, **more})


def _qwen3(name: str, layers: int, hidden: int, heads: int, inner: int, **more: Any) -> Transformer:
    sizes = {"kv_heads": 8, "head_width": 128, "head_norms": True}
    return _today(name, layers, hidden, heads, inner, 151_936, **{**sizes, **more})


def _qwen2(
    name: str, layers: int, hidden: int, heads: int, inner: int, vocabulary: int, **more: Any
) -> Transformer:
    return _today(name, layers, hidden, heads, inner, vocabulary, qkv_bias=True, **more)


def _gpt_oss(name: str, layers: int, experts: int) -> Transformer:
    return _today(
        name, layers, 2880, 64, 2880, 201_088, kv_heads=8, head_width=64, bias=True, sinks=True,
        experts=experts, top_k=4, expert_inner=2880, window=128, global_every=2,
    )  # fmt: skip


def _gemma(name: str, layers: int, hidden: int, heads: int, inner: int, **more: Any) -> Transformer:
    sizes = {"vocabulary": 256_000, "head_width": 256, "tied": True, "post_norms": True}
    sizes |= {"window": 4096, "global_every": 2, "length": 8192}
    return _today(name, layers, hidden, heads, inner, **{**sizes, **more})


# Sources: GPT of 22B to 1T: Narayanan et al. 2021 (Megatron-LM, table 1) and Korthikanti et al.
# 2022 (table 3); GPT-3: Brown et al. 2020 (table 2.1); Llama 2: Touvron et al. 2023; Llama 3:
# Grattafiori et al. 2024 (table 3); Mixtral: Jiang et al. 2024 (table 1) and Mistral's release of
# 8x22B; DeepSeekMoE: Dai et al. 2024 (section 5).
_PUBLISHED = (
    _gpt("gpt-1.7b", 24, 2304, 24),
    _gpt("gpt-3.6b", 30, 3072, 32),
    _gpt("gpt-7.5b", 36, 4096, 32),
    _gpt("gpt-18b", 40, 6144, 48),
    _gpt("gpt-22b", 48, 6144, 64, year=2022),
    _gpt("gpt-39b", 48, 8192, 64),
    _gpt("gpt3-175b", 96, 12_288, 96, 50_257, year=2020),
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
)  # fmt: skip

# Sources: config.json of each release (deepseek-ai/DeepSeek-V2, -V2-Lite, -V3;
# moonshotai/Kimi-K2-Base, Qwen/Qwen3-*, Qwen/Qwen2.5-*, openai/gpt-oss-*, meta-llama/Llama-3.2-*,
# mistralai/Mistral-7B-v0.1, -Nemo-Base-2407, -Small-24B-Base-2501, google/gemma-2-*, gemma-3-*).
# Lengths are those of pretraining, as the reports have them: DeepSeek-V2 and V3 (section 4.1 of
# both), Kimi K2, Qwen3 (section 3.2), Qwen2.5 (section 3) 4096, Gemma 2 8192; of GPT-OSS, Llama 3.2
# and Mistral ours. DeepSeek-V3 and Kimi K2 are without what predicts further tokens.
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
    _qwen2("qwen2.5-0.5b", 24, 896, 14, 4864, 151_936, kv_heads=2, tied=True),
    _qwen2("qwen2.5-7b", 28, 3584, 28, 18_944, 152_064, kv_heads=4),
    _qwen2("qwen2.5-32b", 64, 5120, 40, 27_648, 152_064, kv_heads=8),
    _qwen2("qwen2.5-72b", 80, 8192, 64, 29_568, 152_064, kv_heads=8),
    _gpt_oss("gpt-oss-20b", 24, 32),
    _gpt_oss("gpt-oss-120b", 36, 128),
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
)  # fmt: skip

LARGE: Mapping[str, Transformer] = {model.name: model for model in (*_PUBLISHED, *_RELEASED)}


def large_model(name: str, /, **sizes: Any) -> Transformer:
    """A model of LARGE, with other sizes where they are given. Raises InputError."""
    if not isinstance(name, str) or name not in LARGE:
        near = get_close_matches(str(name), LARGE, 3) or list(LARGE)
        raise InputError(f'model: no large model called "{name}"; perhaps {", ".join(near)}')
    return resized(LARGE[name], **sizes)


def resized(model: Transformer, /, **sizes: Any) -> Transformer:
    """A model with other sizes where they are given. Raises InputError."""
    known = {field.name for field in fields(Transformer)} - {"name"}
    listed = ", ".join(sorted(known))
    unknown = [
        f"{key}: is no size of a large model; there are {listed}"
        for key in sizes
        if key not in known
    ]
    refuse(unknown)
    # What follows from the heads is worked out anew; keys of fewer heads stay as published, and so
    # do heads whose width is not a share of the hidden size.
    follows = model.head_width * model.heads == model.hidden
    derived = {"head_width": 0} if follows and {"heads", "hidden"} & sizes.keys() else {}
    if "heads" in sizes and model.kv_heads == model.heads:
        derived["kv_heads"] = 0
    return replace(model, **{**derived, **sizes}) if sizes else model
