"""Large models from the config.json of a release: the same sizes as by their names, wherever a
scenario may name one.
"""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from simdev.commands import main
from simdev.commands.server import ServerState
from simdev.commands.server.protocol import respond
from simdev.execution.scenario import load_scenario
from simdev.ground.errors import InputError
from simdev.nouns.models.large import LARGE, Transformer, from_config
from simdev.nouns.models.large.released import TEXTS, TYPES
from simdev.report import run
from simdev.search.sweep import sweep
from worlds.scenarios import written


def plain(
    kind: str, layers: int, hidden: int, heads: int, kv: int, inner: int, words: int, **more: Any
) -> dict[str, Any]:
    """What nearly all files say, and more; what does not count is there too."""
    return {
        "model_type": kind, "architectures": ["X"], "torch_dtype": "bfloat16", "hidden_act": "silu",
        "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
        "num_key_value_heads": kv, "intermediate_size": inner, "vocab_size": words,
        "max_position_embeddings": 131_072, "rope_theta": 1e6, **more,
    }  # fmt: skip


LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
BOTH = ["sliding_attention", "full_attention"]
# The sizes of the files that stand beside the released weights.
CONFIGS = {
    "deepseek-v3": plain(
        "deepseek_v3", 61, 7168, 128, 128, 18_432, 129_280, **LATENT, q_lora_rank=1536,
        n_routed_experts=256, num_experts_per_tok=8, moe_intermediate_size=2048,
        n_shared_experts=1, first_k_dense_replace=3, moe_layer_freq=1, num_nextn_predict_layers=1,
        quantization_config={"quant_method": "fp8"}, tie_word_embeddings=False,
    ),
    "kimi-k2": plain(
        "kimi_k2", 61, 7168, 64, 64, 18_432, 163_840, **LATENT, q_lora_rank=1536,
        n_routed_experts=384, num_experts_per_tok=8, moe_intermediate_size=2048,
        n_shared_experts=1, first_k_dense_replace=1,
    ),
    "deepseek-v2-lite": plain(
        "deepseek_v2", 27, 2048, 16, 16, 10_944, 102_400, **LATENT, q_lora_rank=None,
        n_routed_experts=64, num_experts_per_tok=6, moe_intermediate_size=1408,
        n_shared_experts=2, first_k_dense_replace=1,
    ),
    "qwen3-0.6b": plain("qwen3", 28, 1024, 16, 8, 3072, 151_936, head_dim=128,
        tie_word_embeddings=True, use_sliding_window=False, attention_bias=False),
    "qwen3-30b-a3b": plain("qwen3_moe", 48, 2048, 32, 4, 6144, 151_936, head_dim=128,
        num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, decoder_sparse_step=1,
        mlp_only_layers=[]),
    "qwen3-next-80b-a3b": plain("qwen3_next", 48, 2048, 16, 2, 5120, 151_936, head_dim=256,
        num_experts=512, num_experts_per_tok=10, moe_intermediate_size=512, norm_topk_prob=True,
        shared_expert_intermediate_size=512, full_attention_interval=4, partial_rotary_factor=0.25,
        linear_conv_kernel_dim=4, linear_key_head_dim=128, linear_value_head_dim=128,
        linear_num_key_heads=16, linear_num_value_heads=32, decoder_sparse_step=1),
    "qwen2.5-7b": plain("qwen2", 28, 3584, 28, 4, 18_944, 152_064, sliding_window=131_072,
        use_sliding_window=False, max_window_layers=28),
    "gpt-oss-20b": plain("gpt_oss", 24, 2880, 64, 8, 2880, 201_088, head_dim=64,
        attention_bias=True, num_local_experts=32, num_experts_per_tok=4, sliding_window=128,
        layer_types=BOTH * 12),
    "llama3.2-1b": plain("llama", 16, 2048, 32, 8, 8192, 128_256, head_dim=64,
        tie_word_embeddings=True, attention_bias=False, mlp_bias=False),
    "mistral-7b": plain("mistral", 32, 4096, 32, 8, 14_336, 32_000, sliding_window=4096),
    "mistral-nemo-12b": plain("mistral", 40, 5120, 32, 8, 14_336, 131_072, head_dim=128,
        sliding_window=None),
    "mixtral-8x7b": plain("mixtral", 32, 4096, 32, 8, 14_336, 32_000, num_local_experts=8,
        num_experts_per_tok=2, sliding_window=None),
    "gemma2-9b": plain("gemma2", 42, 3584, 16, 8, 14_336, 256_000, head_dim=256,
        sliding_window=4096),
    "gemma3-27b": {
        "model_type": "gemma3", "architectures": ["X"], "mm_tokens_per_image": 256,
        "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
        "text_config": {
            "model_type": "gemma3_text", "hidden_size": 5376, "intermediate_size": 21_504,
            "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 16,
            "head_dim": 128, "query_pre_attn_scalar": 168, "sliding_window": 1024,
        },
    },
    "glm-4.5": plain("glm4_moe", 92, 5120, 96, 8, 12_288, 151_552, head_dim=128,
        attention_bias=True, use_qk_norm=True, first_k_dense_replace=3, n_routed_experts=160,
        n_shared_experts=1, num_experts_per_tok=8, moe_intermediate_size=1536, n_group=1,
        topk_group=1, partial_rotary_factor=0.5, num_nextn_predict_layers=1,
        tie_word_embeddings=False),
    "glm-4.5-air": plain("glm4_moe", 46, 4096, 96, 8, 10_944, 151_552, head_dim=128,
        attention_bias=True, n_routed_experts=128, num_experts_per_tok=8,
        moe_intermediate_size=1408),
    "minimax-m2": plain("minimax_m2", 62, 3072, 48, 8, 1536, 200_064, head_dim=128,
        num_local_experts=256, num_experts_per_tok=8, use_qk_norm=True, rotary_dim=64,
        qk_norm_type="per_layer", use_routing_bias=True, shared_intermediate_size=0,
        attn_type_list=[1] * 62, num_mtp_modules=3, quantization_config={"quant_method": "fp8"}),
    "gemma3-1b": plain("gemma3_text", 26, 1152, 4, 1, 6912, 262_144, head_dim=256,
        sliding_window=512, sliding_window_pattern=6),
}  # fmt: skip
SMALL = plain("llama", 2, 256, 8, 4, 512, 1024) | {"_name_or_path": "someone/Small-1M/"}
STEP = {"cluster": {"preset": "dgx-h100"}, "strategy": {"pipeline": {"dp": 8}}}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_file_describes_the_model_that_its_name_does(name: str) -> None:
    model, known = from_config(CONFIGS[name]), LARGE[name]
    assert (model.name, model.length) == (CONFIGS[name]["model_type"], 4096)
    assert model == replace(known, name=model.name, length=4096, causal=True)


def test_what_other_files_say() -> None:
    """GPT-2's own names, a Phi-4, and windows as lists of layers tell them."""
    gpt2 = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024,
        "vocab_size": 50_257, "resid_pdrop": 0.1}  # fmt: skip
    assert from_config(gpt2).parameters() == 124_439_808
    assert from_config(gpt2).dropout
    assert not from_config(gpt2 | {"resid_pdrop": 0}).dropout
    phi4 = plain("phi3", 40, 5120, 40, 10, 17_920, 100_352, sliding_window=None)
    assert from_config(phi4).parameters() == 14_659_507_200
    third = CONFIGS["gemma3-1b"] | {"layer_types": ([BOTH[0]] * 2 + [BOTH[1]]) * 8 + [BOTH[0]] * 2}
    assert from_config(third).global_every == 3
    for types, window in (([BOTH[1]] * 26, 0), ([BOTH[0]] * 26, 512)):
        model = from_config(third | {"layer_types": types})
        assert (model.window, model.global_every) == (window, 0)
    dense = {**CONFIGS["deepseek-v3"], "n_routed_experts": None}
    assert from_config(dense).experts == 0
    other = from_config(CONFIGS["deepseek-v3"] | {"n_group": 1, "topk_group": 1})
    assert (other.expert_groups, from_config(CONFIGS["kimi-k2"]).expert_groups) == (0, 0)
    # Files of today tell the layers' kinds; those of Gemma 3 leave out what is as in its class.
    sizes = {"hidden_size": 2560, "intermediate_size": 10_240, "num_hidden_layers": 34}
    inner: dict[str, Any] = {"text_config": sizes, "_name_or_path": "google/gemma-3-4b-pt"}
    four = from_config({"model_type": "gemma3", **inner})
    # Keras counts it with 262,144 words, the first that the table has.
    assert (four.name, four.vocabulary) == ("gemma-3-4b-pt", 262_208)
    assert replace(four, vocabulary=262_144).parameters() == 3_880_099_328
    kinds = [BOTH[number % 6 == 5] for number in range(34)]
    more = {"layer_types": kinds, "_sliding_window_pattern": 6, "head_dim": None}
    inner["text_config"] = sizes | more | {"sliding_window": 1024}
    assert from_config({"model_type": "gemma3", **inner}) == replace(four, window=1024)
    assert from_config(SMALL).name == "Small-1M"
    assert from_config(SMALL | {"max_position_embeddings": 512}).length == 512


# As its test of old files in transformers has it (``convert_minimax_vl_01_weights``), and the
# vocabulary.
MINIMAX_01 = {
    "model_type": "minimax_text_01", "hidden_size": 6144, "intermediate_size": 9216,
    "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
    "num_local_experts": 32, "num_experts_per_tok": 2, "vocab_size": 200_064, "postnorm": True,
    "max_position_embeddings": 10_240_000, "attn_type_list": [*([0] * 7), 1] * 10,
}  # fmt: skip


def test_minimax_01_has_the_published_parameters() -> None:
    """456 billion, 45.9 of them for a token (arXiv 2501.08313, abstract), without a table."""
    model = from_config(MINIMAX_01)
    assert [model.is_linear(layer) for layer in range(8)] == [True] * 7 + [False]
    assert model.is_lightning
    assert round(model.parameters() / 1e9) == 456
    table = model.vocabulary * model.hidden
    assert round((model.active_parameters() - table) / 1e9, 1) == 45.9
    kinds = ["linear_attention"] * 7 + ["full_attention"]
    named = MINIMAX_01 | {"model_type": "minimax", "attn_type_list": None}
    del named["attn_type_list"]
    same = from_config({**named, "layer_types": kinds * 10, "block_size": 256})
    assert replace(same, name=model.name) == model


@pytest.mark.parametrize(
    ("config", "problems"),
    [
        ([], ["must be an object (the config.json of a model)"]),
        ({}, ["model_type: missing; there are llama, "]),
        ({"model_type": "mamba"}, ["model_type: 'mamba' is not known; there are llama, "]),
        ({"model_type": ["llama"]}, ["model_type: ['llama'] is not known"]),
        (
            MINIMAX_01 | {"attn_type_list": [1] * 80, "block_size": 64},
            ["block_size: only 256 is modelled, got 64", "attn_type_list: only each n-th of full"],
        ),
        (
            {k: v for k, v in MINIMAX_01.items() if k != "attn_type_list"},
            ["layer_types: only each n-th of full_attention (1) is modelled"],
        ),
        ({"model_type": "gemma4"}, ["model_type: 'gemma4' is not modelled, for layers have heads"]),
        ({"model_type": "gemma3"}, ["text_config: missing"]),
        ({"model_type": "gemma3", "text_config": []}, ["text_config: must be an object"]),
        (
            {"model_type": "gemma3", "text_config": {"vocab_size": 0, "hidden_size": 0.5}},
            ["text_config.vocab_size: must be", "text_config.hidden_size: must be"][::-1],
        ),
        (
            {"model_type": "gemma3", "text_config": {"num_attention_heads": 6}},
            ["text_config.num_key_value_heads: 4 do not divide the 6 heads"],
        ),
        (
            CONFIGS["gemma3-1b"] | {"use_bidirectional_attention": True},
            ["use_bidirectional_attention: only False is modelled, got True"],
        ),
        (
            CONFIGS["minimax-m2"] | {"attn_type_list": [0] * 62, "use_qk_norm": False},
            ["use_qk_norm: only True is", "attn_type_list: only 62 of 1 is modelled"],
        ),
        (
            CONFIGS["qwen3-next-80b-a3b"]
            | {"linear_value_head_dim": 64, "linear_num_key_heads": 5, "layer_types": ["x"]},
            [
                "linear_value_head_dim: only 128 is modelled, got 64",
                "layer_types: only each 4-th of full_attention is modelled",
            ][::-1],
        ),
        (
            CONFIGS["qwen3-next-80b-a3b"] | {"linear_num_key_heads": 5},
            ["linear_num_key_heads: 5 do not divide the 32 linear_heads"],
        ),
        (CONFIGS["glm-4.5"] | {"n_group": 7}, ["n_group: 7 do not divide 160 experts"]),
        (
            SMALL | {"hidden_size": None, "vocab_size": "big", "num_hidden_layers": 0},
            [
                "num_hidden_layers: must be a whole number from 1, got 0",
                "hidden_size: missing",
                "vocab_size: must be a whole number from 1, got 'big'",
            ],
        ),
        (SMALL | {"num_attention_heads": True}, ["num_attention_heads: must be a whole number"]),
        (SMALL | {"tie_word_embeddings": "no"}, ["tie_word_embeddings: must be true or false"]),
        (SMALL | {"attention_bias": True}, ["attention_bias: only with mlp_bias"]),
        (SMALL | {"num_key_value_heads": 3}, ["num_key_value_heads: 3 do not divide the 8 heads"]),
        (SMALL | {"head_dim": 10**9}, ["head_dim: must be a whole number from 0 to"]),
        (
            SMALL | {"num_attention_heads": 7, "num_key_value_heads": 7},
            ["num_attention_heads: 7 do not divide hidden_size 256"],
        ),
        (
            CONFIGS["deepseek-v3"] | {"num_key_value_heads": 2, "qk_nope_head_dim": 2**24},
            ["qk_nope_head_dim: must be a whole number from 0 to"],
        ),
        (
            {
                "model_type": "gpt2",
                "n_layer": 1,
                "n_embd": 10,
                "n_head": 3,
                "n_positions": 8,
                "vocab_size": 100,
            },
            ["n_head: 3 do not divide n_embd 10"],
        ),
        (
            CONFIGS["mixtral-8x7b"] | {"num_experts_per_tok": 9},
            ["num_experts_per_tok: must be from 1 to the 8 experts, got 9"],
        ),
        (
            SMALL | {"hidden_size": Decimal("4096.5"), "attention_bias": Decimal("0.5")},
            [
                "hidden_size: must be a whole number from 1, got 4096.5",
                "attention_bias: must be true or false, got 0.5",
            ],
        ),
        (
            CONFIGS["qwen2.5-7b"] | {"use_sliding_window": True},
            ["use_sliding_window: only False is modelled, got True"],
        ),
        (
            CONFIGS["qwen3-30b-a3b"] | {"decoder_sparse_step": 2, "mlp_only_layers": [0]},
            ["decoder_sparse_step: only 1 is", "mlp_only_layers: only [] is"],
        ),
        (CONFIGS["deepseek-v3"] | {"kv_lora_rank": None}, ["kv_lora_rank: missing"]),
        (CONFIGS["gpt-oss-20b"] | {"layer_types": BOTH}, ["layer_types: must be 24 of sliding_"]),
        (CONFIGS["gpt-oss-20b"] | {"layer_types": ["x"] * 24}, ["layer_types: must be 24 of"]),
        (CONFIGS["gpt-oss-20b"] | {"layer_types": [[]] * 24}, ["layer_types: must be 24 of"]),
        (
            CONFIGS["gpt-oss-20b"] | {"layer_types": BOTH[:1] * 12 + BOTH[1:] * 12},
            ["layer_types: only every n-th of full_attention is modelled"],
        ),
    ],
)
def test_what_is_not_known_is_refused(config: Any, problems: list[str]) -> None:
    with pytest.raises(InputError) as error:
        from_config(config)
    assert len(error.value.problems) == len(problems)
    for problem, begins in zip(error.value.problems, problems, strict=True):
        assert problem.startswith(begins)


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind not in TEXTS])
@pytest.mark.parametrize("value", [None, -1])
def test_a_problem_is_told_once(kind: str, value: int | None) -> None:
    """Fields that tell two sizes, or that a type counts with a default of its own."""
    names = ["head_dim", *SMALL] if value else SMALL
    with pytest.raises(InputError) as error:
        from_config({**dict.fromkeys(names, value), "model_type": kind})
    problems = error.value.problems
    assert len(problems) == len(set(problems))
    if kind != "gpt2":
        wrong = "missing" if value is None else "must be a whole number from 1, got -1"
        assert f"intermediate_size: {wrong}" in problems


def test_a_scenario_names_the_file_beside_it(tmp_path: Path) -> None:
    written(tmp_path / "config.json", SMALL)
    graph = {"model": "config.json", "length": 512}
    path = written(tmp_path / "s.json", {"version": 1, "graph": graph, **STEP})
    model = load_scenario(path).graph
    assert isinstance(model, Transformer)
    assert model == replace(from_config(SMALL), length=512)
    report = run(load_scenario(path))
    assert report.step_ps == run(load_scenario({"graph": graph | {
        "model": str(tmp_path / "config.json")}, **STEP})).step_ps  # fmt: skip


@pytest.mark.parametrize(
    ("graph", "config", "reason"),
    [
        ({}, SMALL | {"model_type": "rwkv"}, "config.json: model_type: 'rwkv' is not known"),
        ({}, SMALL | {"hidden_size": 0}, "config.json: hidden_size: must be a whole number from 1"),
        ({"layer": 3}, SMALL, "s.json: graph.layer: is no size of a large model"),
        ({"layers": -3}, SMALL, "s.json: graph.layers: must be a whole number"),
        ({"model": "gone.json"}, SMALL, "gone.json: no such file"),
    ],
)
def test_problems_tell_of_their_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], graph: Any, config: Any, reason: str
) -> None:
    written(tmp_path / "config.json", config)
    named = {"model": "config.json", **graph}
    path = written(tmp_path / "s.json", {"version": 1, "graph": named, **STEP})
    assert main(["simulate", str(path)]) == 2
    told = capsys.readouterr().err
    assert reason in told
    assert len(told.strip().splitlines()) == 1


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(written(tmp_path / "config.json", SMALL))
    line = ["simulate", "--model", path, "--cluster", "dgx-h100", "--dp", "8"]
    assert main([*line, "--length", "256", "--json"]) == 0
    training = json.loads(capsys.readouterr().out)["training"]
    assert (training["model"], training["samples"]) == ("Small-1M", 8)
    assert main([*line, "--save", path]) == 2
    assert "config.json" in capsys.readouterr().err
    assert json.loads(Path(path).read_text()) == SMALL
    written(tmp_path / "config.json", {})
    assert main(line) == 2
    assert f"{path}: model_type: missing" in capsys.readouterr().err
    line[2] = str(tmp_path)
    assert main(line) == 2
    message = f'--model: "{tmp_path}" is a folder; name the file in it, like {path}'
    assert capsys.readouterr().err.strip() == message
    path = str(written(tmp_path / "config.json", SMALL))
    scenario = {"version": 1, "graph": {"model": path}, **STEP, "strategy": "data-parallel"}
    assert main(["simulate", str(written(tmp_path / "s.json", scenario))]) == 2
    assert "is a large model by its sizes; it needs a pipeline" in capsys.readouterr().err


def test_a_changed_file_is_another_question(tmp_path: Path) -> None:
    graph = {"model": "config.json", "length": 256}
    path = written(tmp_path / "s.json", {"version": 1, "graph": graph, **STEP})
    rows = []
    for layers in (2, 4):
        written(tmp_path / "config.json", SMALL | {"num_hidden_layers": layers})
        rows.append(sweep(path, {"graph.length": [256, 512]}, journal=tmp_path / "journal"))
    assert not set(rows[0]["key"]) & set(rows[1]["key"])
    assert (rows[0]["step_time_s"] < rows[1]["step_time_s"]).all()
    assert rows[0]["step_time_s"][0] < rows[0]["step_time_s"][1]


def test_a_server_opens_no_model_outside_its_folder(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    written(tmp_path / "config.json", SMALL)
    scenario = {"version": 1, "graph": {"model": "../config.json"}, **STEP}
    path = written(inside / "s.json", scenario)
    state = ServerState(root=str(inside))
    question = {"id": 1, "method": "load", "params": {"scenario": str(path)}}
    reply = json.loads(respond(state, json.dumps(question).encode()).body)
    assert "config.json: lies outside the folder" in reply["error"]["message"]
