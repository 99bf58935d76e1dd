"""Large models from the ``config.json`` that Hugging Face keeps beside the weights of a release.

What stands in such a file depends on its ``model_type``; what it does not say is what the classes
of the library transformers take (``configuration_*.py``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ....ground.errors import InputError, refuse
from ....ground.units import is_count, name_problems, written
from .transformer import Transformer

# A file tells how long a text may be, not what was trained with; longer ones are asked for.
LENGTH = 4096
_REQUIRED: Any = object()
_REACHES = "sliding_attention", "full_attention"


# What the sizes of a model are called in such files; the first name that a file has counts.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer"),
    "hidden": ("hidden_size", "n_embd"),
    "heads": ("num_attention_heads", "n_head"),
    "inner": ("intermediate_size", "n_inner"),
    "vocabulary": ("vocab_size",),
    "length": ("max_position_embeddings", "n_positions"),
    "kv_heads": ("num_key_value_heads",),
    "head_width": ("head_dim", "qk_nope_head_dim"),
    "value_width": ("v_head_dim",),
    "query_latent": ("q_lora_rank",),
    "kv_latent": ("kv_lora_rank",),
    "rotary_width": ("qk_rope_head_dim",),
    "experts": ("num_experts", "num_local_experts", "n_routed_experts"),
    "top_k": ("num_experts_per_tok",),
    "expert_inner": ("moe_intermediate_size", "intermediate_size"),
    "shared_experts": ("n_shared_experts",),
    "dense_layers": ("first_k_dense_replace",),
    "window": ("sliding_window",),
    "global_every": ("sliding_window_pattern",),
}
# A size where a problem begins with it, or tells its number.
_SIZE = re.compile(r"^\w+(?=:)|\b\w+(?= \d)")


class _Fields:
    """The fields of a file as they are asked for, with what is wrong with them."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.problems: list[str] = []

    def count(self, name: str, default: Any = _REQUIRED) -> Any:
        """A whole number from 1; the default where it is not told, or null."""
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
        """True or false; the default where it is not told."""
        value = self.config.get(name, default)
        if not isinstance(value, bool):
            self.problems.append(f"{name}: must be true or false, got {written(value)}")
        return value is True

    def require(self, name: str, wanted: Any, default: Any) -> None:
        """Refuse what is not modelled."""
        value = self.config.get(name, default)
        if value != wanted:
            self.problems.append(f"{name}: only {wanted!r} is modelled, got {written(value)}")


def _common(of: _Fields, tied: bool = False) -> dict[str, Any]:
    """What all but GPT-2 call by the same names."""
    heads = of.count("num_attention_heads")
    return {
        "layers": of.count("num_hidden_layers"),
        "hidden": of.count("hidden_size"),
        "heads": heads,
        "inner": of.count("intermediate_size"),
        "vocabulary": of.count("vocab_size"),
        "length": min(LENGTH, of.count("max_position_embeddings", LENGTH)),
        "kv_heads": of.count("num_key_value_heads", heads),
        "head_width": of.count("head_dim", 0),
        "tied": of.flag("tie_word_embeddings", tied),
        "gated": True, "bias": False, "norm": "rms", "dropout": False, "positions": False,
        "causal": True,
    }  # fmt: skip


def _llama(of: _Fields) -> dict[str, Any]:
    sizes = _common(of)
    sizes["bias"] = of.flag("attention_bias")
    if of.flag("mlp_bias") != sizes["bias"]:
        of.problems.append("attention_bias: only with mlp_bias, and it with this, is modelled")
    return sizes


def _windows(of: _Fields, layers: int, every: int = 0) -> dict[str, Any]:
    """Sliding windows, in all layers but every so many (0: in all), or as ``layer_types`` tell."""
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


def _mistral(of: _Fields) -> dict[str, Any]:
    sizes = _common(of)
    return sizes | _windows(of, sizes["layers"])


def _mixtral(of: _Fields) -> dict[str, Any]:
    experts = {"experts": of.count("num_local_experts"), "top_k": of.count("num_experts_per_tok")}
    sizes = _mistral(of)
    return sizes | experts | {"expert_inner": sizes["inner"]}


def _qwen2(of: _Fields) -> dict[str, Any]:
    of.require("use_sliding_window", False, False)
    return _common(of) | {"qkv_bias": True}


def _qwen3(of: _Fields) -> dict[str, Any]:
    of.require("use_sliding_window", False, False)
    of.require("attention_bias", False, False)
    return _common(of) | {"head_norms": True, "head_width": of.count("head_dim", 128)}


def _qwen3_moe(of: _Fields) -> dict[str, Any]:
    of.require("decoder_sparse_step", 1, 1)
    of.require("mlp_only_layers", [], [])
    return _qwen3(of) | {
        "experts": of.count("num_experts"),
        "top_k": of.count("num_experts_per_tok"),
        "expert_inner": of.count("moe_intermediate_size"),
        "head_width": of.count("head_dim", 0),
    }


def _deepseek(of: _Fields, router_bias: bool, groups: tuple[int, int] = (1, 1)) -> dict[str, Any]:
    """``groups`` of experts, all and a token's, are the defaults of ``transformers``."""
    of.require("attention_bias", False, False)
    of.require("moe_layer_freq", 1, 1)
    rotary = of.count("qk_rope_head_dim")
    sizes = _common(of) | {
        "query_latent": of.count("q_lora_rank", 0),
        "kv_latent": of.count("kv_lora_rank"),
        "rotary_width": rotary,
        "head_width": of.count("qk_nope_head_dim") + rotary,
        "value_width": of.count("v_head_dim"),
    }
    if of.config.get("n_routed_experts") is None:
        return sizes
    dense = of.config.get("first_k_dense_replace", 0)
    every, chosen = of.count("n_group", groups[0]), of.count("topk_group", groups[1])
    # Groups of version 2 are of devices, and a copy of a token goes to each expert.
    if every > 1 and router_bias:
        sizes |= {"expert_groups": every, "top_groups": chosen}
    return sizes | {
        "experts": of.count("n_routed_experts"),
        "top_k": of.count("num_experts_per_tok"),
        "expert_inner": of.count("moe_intermediate_size"),
        "shared_experts": of.count("n_shared_experts", 0),
        "dense_layers": of.count("first_k_dense_replace") if dense else 0,
        "router_bias": router_bias,
    }


def _gpt_oss(of: _Fields) -> dict[str, Any]:
    of.require("attention_bias", True, True)
    sizes = _common(of)
    return sizes | _windows(of, sizes["layers"], 2) | {
        "bias": True, "sinks": True, "experts": of.count("num_local_experts"),
        "top_k": of.count("num_experts_per_tok"), "expert_inner": sizes["inner"],
    }  # fmt: skip


def _gemma(of: _Fields, is_third: bool) -> dict[str, Any]:
    of.require("attention_bias", False, False)
    sizes = _common(of, tied=True)
    every = of.count("sliding_window_pattern", 6) if is_third else 2
    norms = {"post_norms": True, "head_norms": is_third, "head_width": of.count("head_dim", 256)}
    return sizes | _windows(of, sizes["layers"], every) | norms


def _gpt2(of: _Fields) -> dict[str, Any]:
    hidden, rate = of.count("n_embd"), of.config.get("resid_pdrop", 0.1)
    return {
        "layers": of.count("n_layer"),
        "hidden": hidden,
        "heads": of.count("n_head"),
        "inner": of.count("n_inner", 4 * hidden),
        "vocabulary": of.count("vocab_size"),
        "length": of.count("n_positions"),
        "tied": of.flag("tie_word_embeddings", True),
        "dropout": bool(rate),
    }


TYPES: Mapping[str, Callable[[_Fields], dict[str, Any]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "phi3": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v2": lambda of: _deepseek(of, router_bias=False),
    "deepseek_v3": lambda of: _deepseek(of, router_bias=True, groups=(8, 4)),
    "kimi_k2": lambda of: _deepseek(of, router_bias=True),
    "gpt_oss": _gpt_oss,
    "gemma2": lambda of: _gemma(of, is_third=False),
    "gemma3_text": lambda of: _gemma(of, is_third=True),
    "gpt2": _gpt2,
}
"""What reads a file of each ``model_type``."""


def from_config(config: Any) -> Transformer:
    """The model that a parsed config.json describes, over texts of LENGTH tokens or fewer.

    It is called as its ``_name_or_path`` ends, or as its type. Raises InputError with every problem
    at once.
    """
    if not isinstance(config, Mapping):
        raise InputError("must be an object (the config.json of a model)")
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in TYPES:
        reason = "missing" if kind is None else f"{kind!r} is not known"
        raise InputError(f"model_type: {reason}; there are {', '.join(TYPES)}")
    of = _Fields(config)
    sizes = TYPES[kind](of)
    refuse(of.problems)
    try:
        return Transformer(_name(config, kind), **sizes)
    except InputError as error:
        raise InputError(_by_file(config, problem) for problem in error.problems) from None


def _by_file(config: Mapping[str, Any], problem: str) -> str:
    """A problem of a Transformer's sizes, told of the fields of the file."""

    def name(size: re.Match[str]) -> str:
        return next((each for each in _NAMES.get(size[0], ()) if each in config), size[0])

    return _SIZE.sub(name, problem)


def _name(config: Mapping[str, Any], kind: str) -> str:
    name = config.get("_name_or_path")
    last = name.rstrip("/").rpartition("/")[2] if isinstance(name, str) else ""
    return kind if not last or list(name_problems("name", last)) else last
