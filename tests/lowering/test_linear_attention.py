"""Layers with gated DeltaNet by hand: parameters, FLOPs and saved bytes, and what is not known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simdev import load_scenario, run
from simdev.ground.errors import InputError
from simdev.nouns.models.large import LARGE, Transformer, footprint, layer, shard_of
from simdev.nouns.models.large.kernels import Block
from simdev.nouns.models.large.transformer import BLOCK, CHUNK
from simdev.nouns.strategy.parallelism import Parallelism

# Small enough to count by hand, every width another.
H, HEADS, KEYS, WIDTH, TAPS, INNER = 96, 8, 4, 16, 3, 160
LINEAR = Transformer(
    "linear", 4, H, 4, INNER, 512, 128, head_width=24, gated=True, bias=False, norm="rms",
    dropout=False, tied=False, positions=False, causal=True, attention_gate=True,
    linear_heads=HEADS, linear_key_heads=KEYS, linear_width=WIDTH, full_every=4, conv_kernel=TAPS,
)  # fmt: skip
NEXT = LARGE["qwen3-next-80b-a3b"]


def flops(block: Block, part: str) -> int:
    return sum(kernel.flops for kernel in getattr(block, part))


def test_every_fourth_layer_has_full_attention() -> None:
    assert [LINEAR.is_linear(number) for number in range(4)] == [True, True, True, False]
    assert sum(NEXT.is_linear(number) for number in range(48)) == 36
    assert not any(LARGE["qwen3-30b-a3b"].is_linear(number) for number in range(48))


def test_parameters_by_hand() -> None:
    """in_proj_qkvz, in_proj_ba, conv1d, A_log, dt_bias, norm, out_proj (transformers,
    ``modeling_qwen3_next.py``); of full attention queries are made with their gate.
    """
    mlp, norms = 3 * H * INNER, 2 * H
    keys, values = KEYS * WIDTH, HEADS * WIDTH
    delta = H * (2 * keys + 2 * values) + H * 2 * HEADS + TAPS * (2 * keys + values) + 2 * HEADS
    assert sum(LINEAR.layer_parameters(0)) == delta + WIDTH + values * H + mlp + norms
    assert sum(LINEAR.layer_parameters(3)) == H * 96 * 5 + mlp + norms
    gated = replace(NEXT, shared_gate=False)
    assert NEXT.parameters() - gated.parameters() == 48 * 2048
    assert round(NEXT.parameters() / 1e9) == 80
    # "3B activated", without tables.
    assert int((NEXT.active_parameters() - NEXT.vocabulary * NEXT.hidden) / 1e9) == 3


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("number", [0, 3])
def test_kernels_have_the_flops_of_the_closed_form(tp: int, number: int) -> None:
    s = shard_of(LINEAR, Parallelism(tp=tp, microbatch=2))
    block = layer(s, number)
    assert flops(block, "forward") * tp == LINEAR._layer_flops(2, number)
    products = 2 * 2 * 128 * H * (2 * KEYS + 2 * HEADS + HEADS) * WIDTH
    if number == 0:
        weights = products + 2 * 2 * 128 * H * 2 * HEADS + 3 * 2 * 2 * 128 * H * INNER
        assert flops(block, "weight") * tp == weights


def test_the_rule_costs_as_much_for_each_token_at_any_length() -> None:
    """Full attention does not."""
    short, long = LINEAR, replace(LINEAR, length=1024)
    assert 8 * short._layer_flops(1, 0) == long._layer_flops(1, 0)
    assert 8 * short._layer_flops(1, 3) < long._layer_flops(1, 3)


@pytest.mark.parametrize("tp", [1, 2])
def test_saved_bytes_by_hand(tp: int) -> None:
    """Numbers a token of 16 bits: inputs of norms and products, what the convolution reads, queries
    and keys for all heads, values, gate, the rule's output and its norm, scores, decay, strength;
    the feed-forward part as in any layer.
    """
    words, keys, values = 2 * 128, KEYS * WIDTH, HEADS * WIDTH
    s = shard_of(LINEAR, Parallelism(tp=tp, microbatch=2, sequence_parallel=tp > 1))
    split = 2 * keys + values + 3 * values + 3 * values + HEADS * (CHUNK + 2) + 3 * INNER
    assert footprint(s, 0).saved == 2 * words * (4 * H + split) // tp
    # Full attention: queries, keys, values, output, gate, product, and a number of each row.
    rows = 4 * words * 4
    assert footprint(s, 3).saved == (2 * words * (4 * H + 6 * 96 + 3 * INNER) + rows) // tp


LIGHTNING = replace(LINEAR, conv_kernel=0, linear_key_heads=HEADS, attention_gate=False, length=512)


def test_lightning_attention_by_hand() -> None:
    """qkv_proj, output_gate, out_proj and the norm of all heads (transformers,
    ``MiniMaxLightningAttention``); two products within a block and two with the state.
    """
    values = HEADS * WIDTH
    attention = H * 3 * values + H * values + values * H + values
    assert sum(LIGHTNING.layer_parameters(0)) == attention + 3 * H * INNER + 2 * H
    for tp in (1, 2, 4):
        s = shard_of(LIGHTNING, Parallelism(tp=tp))
        block = layer(s, 0)
        assert flops(block, "forward") * tp == LIGHTNING._layer_flops(1, 0)
        core = [k for k in block.forward if k.kind == "lightning attention"]
        assert core[0].flops * tp == 512 * 2 * HEADS * (2 * BLOCK * WIDTH + 2 * WIDTH**2)
        # Inputs; queries, keys and values before SiLU and behind it; sums, normed, gate, product.
        split = 3 * values + 3 * values + 4 * values + 3 * INNER
        assert footprint(s, 0).saved == 2 * 512 * (4 * H + split) // tp


def test_a_step_of_qwen3_next_is_simulated() -> None:
    pipeline = {"dp": 64, "ep": 16, "zero": 1, "microbatch": 1, "global_batch": 256}
    strategy = {"pipeline": pipeline | {"recompute": "full"}}
    cluster = {"preset": "dgx-h100", "gpus": 64}
    graph = {"model": "qwen3-next-80b-a3b"}
    report = run(load_scenario({"graph": graph, "cluster": cluster, "strategy": strategy}))
    assert report.feasible
    assert report.training is not None
    assert 0.05 < report.training.mfu < 0.5


def test_what_is_not_known_is_refused() -> None:
    for wrong, reason in (
        ({"linear_key_heads": 3}, "3 do not divide the 8 linear_heads"),
        ({"conv_kernel": 0}, "linear_key_heads: without conv_kernel as many as linear_heads 8"),
        ({"linear_heads": 0}, "linear_width: goes with linear_heads"),
        ({"bias": True}, "bias: is not known of models with linear_heads"),
        ({"window": 8}, "window: is not known of models with linear_heads"),
    ):
        with pytest.raises(InputError, match=reason):
            replace(LINEAR, **wrong)
    with pytest.raises(InputError, match="cp: is not known of the linear attention of linear"):
        shard_of(LINEAR, Parallelism(cp=2))
    with pytest.raises(InputError, match=r"tp: 8 does not divide heads 4, .*linear_key_heads 4"):
        shard_of(LINEAR, Parallelism(tp=8))
