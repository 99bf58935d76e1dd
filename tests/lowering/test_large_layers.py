"""Layers of large models by hand: parameters, FLOPs and saved bytes of latent attention, windows,
norms of heads, narrow products and experts that are unevenly loaded.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from hybrid_steps import EXPERTS, SMALL, boxes, lowered
from simdev.execution.scenario import load_scenario
from simdev.ground.errors import InputError
from simdev.nouns.models.large import Transformer, footprint, large_model, layer, shard_of
from simdev.nouns.models.large.kernels import Block
from simdev.nouns.models.large.roles import EXPERT, FORWARD
from simdev.nouns.models.large.shard import classifier_saved, classifier_workspace
from simdev.nouns.strategy.parallelism import Parallelism
from simdev.report import run

# Small enough to count by hand, every width another.
LATENT = Transformer(
    "latent", 2, 96, 4, 160, 512, 64, head_width=24, value_width=20, rotary_width=8, kv_latent=36,
    query_latent=44, gated=True, bias=False, norm="rms", dropout=False, tied=False,
    positions=False,
)  # fmt: skip
WINDOWS = replace(SMALL, name="windows", window=32, global_every=2)


def flops(block: Block, part: str) -> dict[str, int]:
    return {kernel.kind: kernel.flops for kernel in getattr(block, part) if kernel.flops}


def test_latent_attention_has_the_papers_matrices() -> None:
    """W_DQ, W_UQ, W_DKV with W_KR, W_UK with W_UV, W_O and two norms (DeepSeek-V2, equations 9 to
    19).
    """
    h, heads, q, kv, rotary, plain, value = 96, 4, 44, 36, 8, 16, 20
    attention = h * q + q * heads * (plain + rotary) + h * (kv + rotary)
    attention += kv * heads * (plain + value) + heads * value * h
    norms = 2 * h + q + kv
    whole = LATENT.layer_parameters(0)
    assert sum(whole) == attention + norms + 3 * h * 160
    # The way down and the norms are whole on every rank of tp.
    assert whole.whole == h * q + h * (kv + rotary) + norms
    straight = replace(LATENT, query_latent=0)
    assert sum(straight.layer_parameters(0)) - sum(whole) == (
        h * heads * (plain + rotary) - h * q - q * heads * (plain + rotary) - q
    )


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("flash", [True, False])
def test_latent_attention_computes_its_products(tp: int, flash: bool) -> None:
    words, h, heads = 2 * 64, 96, 4
    s = shard_of(LATENT, Parallelism(tp=tp, microbatch=2, flash=flash))
    forward = flops(layer(s, 0), "forward")
    # All ranks of tp together: the way down is split along the sequence.
    every = {name: count * tp for name, count in forward.items()}
    assert every["latents"] == 2 * words * h * (44 + 36 + 8)
    assert every["queries"] == 2 * words * 44 * heads * 24
    assert every["keys and values"] == 2 * words * 36 * heads * (16 + 20)
    assert every["projection"] == 2 * words * heads * 20 * h
    core = sum(every.get(name, 0) for name in ("attention", "scores", "context"))
    assert core == 2 * words * 64 * heads * (24 + 20)
    assert sum(every.values()) * LATENT.layers == (
        LATENT.flops(2) // 3 - 2 * words * h * LATENT.vocabulary
    )
    whole = shard_of(LATENT, Parallelism(tp=tp, microbatch=2, sequence_parallel=False))
    assert flops(layer(whole, 0), "forward")["latents"] == every["latents"]


@pytest.mark.parametrize("tp", [1, 2])
def test_latent_attention_saves_latents_and_what_attention_reads(tp: int) -> None:
    """Bytes of 16-bit tensors: inputs of norm and products, latents before and after their norm,
    queries and keys of 24, values and output of 20 a head, a float32 a row of scores; then the
    feed-forward part.
    """
    words, h, heads = 2 * 64, 96, 4
    s = shard_of(LATENT, Parallelism(tp=tp, microbatch=2))
    attention = 2 * words * (2 * h + 2 * (44 + 36)) // tp
    attention += 2 * words * heads * (24 + 24 + 20 + 20) // tp + 4 * words * heads // tp
    second = 2 * words * (2 * h + 3 * 160) // tp
    assert footprint(s, 0).saved == attention + second
    # The gradients of those, sums of the queries' in float32, and two of (words, hidden).
    at_work = 2 * words * heads * (24 + 24 + 20 + 20) + 4 * words * heads * 24
    assert footprint(s, 0).workspace == at_work // tp + 4 * words * h
    assert s.gathered_bytes == 2 * words * (44 + 36 + 8)


def test_deepseek_v3_sends_latents_where_the_sequence_is_split() -> None:
    """2,112 numbers a word instead of 7,168; keys and values that are kept for words to come are
    512 + 64 (DeepSeek-V3, section 2.1.1: 70,272 bytes over 61 layers).
    """
    m = large_model("deepseek-v3")
    assert shard_of(m, Parallelism(tp=8)).gathered_bytes == 2 * m.length * 2112
    assert 2 * m.layers * (m.kv_latent + m.rotary_width) == 70_272
    lite = large_model("deepseek-v2-lite")
    assert shard_of(lite, Parallelism(tp=2)).gathered_bytes == 2 * lite.length * (2048 + 576)


@pytest.mark.parametrize("causal", [False, True])
def test_pairs_are_those_within_reach(causal: bool) -> None:
    """Counted one by one for many words, up to the half pair that each word is short of."""
    m = replace(WINDOWS, causal=causal)
    assert [m.reach(number) for number in range(4)] == [32, 128, 32, 128]
    for number, reach in ((0, 32), (1, 128)):
        rows = range(m.length)
        counted = sum(min(i + 0.5, reach) if causal else reach for i in rows)
        assert m.pairs(number) == pytest.approx(counted, rel=0.005)
        block = layer(shard_of(m, Parallelism(tp=2, microbatch=3)), number)
        assert flops(block, "forward")["attention"] == 4 * 3 * m.pairs(number) * 128
        assert flops(block, "backward")["attention dx"] == 10 * 3 * m.pairs(number) * 128
    assert 2 * replace(SMALL, causal=True).pairs(0) == SMALL.pairs(0)
    whole = replace(m, window=1000)
    assert whole.pairs(0) == whole.pairs(1)


def test_layers_of_both_reaches_stand_in_a_step() -> None:
    task_graph, plan = lowered(WINDOWS, Parallelism(), cluster=boxes(1, 1))
    names, times = task_graph.tasks.name, task_graph.tasks.duration
    ahead = [row for row in range(len(names)) if plan.role[row] == FORWARD]
    layers = [int(times[row]) for row in ahead if "layer_" in names[row]]
    assert len(set(layers)) == 2
    assert layers[0] == layers[2] < layers[1] == layers[3]
    equal, _ = lowered(replace(WINDOWS, window=128), Parallelism(), cluster=boxes(1, 1))
    assert equal.tasks.duration.sum() > task_graph.tasks.duration.sum()


def test_norms_biases_and_sinks_are_counted() -> None:
    plain = SMALL.layer_parameters(0)
    h, heads, kv, width, inner = 256, 8, 4, 32, 512
    more = {
        "head_norms": 2 * width,
        "joint_norms": (heads + kv) * width,
        "post_norms": 2 * h,
        "sinks": heads,
        "qkv_bias": (heads + 2 * kv) * width,
        "bias": (heads + 2 * kv) * width + h + 2 * inner + h,
    }
    for name, count in more.items():
        assert sum(replace(SMALL, **{name: True}).layer_parameters(0)) - sum(plain) == count, name
    every = replace(EXPERTS, bias=True).layer_parameters(1)
    assert sum(every) - sum(EXPERTS.layer_parameters(1)) == (
        more["qkv_bias"] + h + 8 + (8 + 1) * (2 * 256 + h)
    )
    # Of the experts' biases the second is whole on each rank of tp.
    s = shard_of(replace(EXPERTS, bias=True), Parallelism(dp=2, tp=2, ep=2))
    assert s.layer_parameters(1)[1] == 4 * ((3 * h * 256 + 2 * 256) // 2 + h)
    words = SMALL.length
    saved = footprint(shard_of(SMALL, Parallelism()), 0).saved
    both = 2 * words * (8 + 4) * 32
    for name, size in (("head_norms", both), ("joint_norms", both), ("post_norms", 4 * words * h)):
        more_saved = footprint(shard_of(replace(SMALL, **{name: True}), Parallelism()), 0).saved
        assert more_saved - saved == size


@pytest.mark.parametrize("tp", [1, 2])
def test_joint_norms_are_a_pass_over_all_queries_and_one_over_all_keys(tp: int) -> None:
    """They move what norms of heads move; their scales are split by tp."""
    s, heads = (
        shard_of(replace(SMALL, **{name: True}), Parallelism(tp=tp))
        for name in ("joint_norms", "head_norms")
    )
    rows = [kernel for kernel in layer(s, 0).forward if kernel.kind == "norm"][1:3]
    assert [kernel.read for kernel in rows] == [2 * s.tokens * n * 32 // tp for n in (8, 4)]
    assert [kernel.op.operands[0] for kernel in rows] == [[s.tokens, n * 32 // tp] for n in (8, 4)]
    for part in ("forward", "backward", "weight"):
        one, other = (
            sum(k.read + k.written for k in getattr(layer(each, 0), part)) for each in (s, heads)
        )
        assert one == other
    plain = shard_of(SMALL, Parallelism(tp=tp))
    assert s.layer_parameters(0)[0] - plain.layer_parameters(0)[0] == (8 + 4) * 32 // tp
    with pytest.raises(InputError, match="joint_norms: queries and keys are normed by head, or as"):
        replace(s.model, head_norms=True)
    with pytest.raises(InputError, match="joint_norms: is not known of attention with kv_latent"):
        replace(LATENT, joint_norms=True)


@pytest.mark.parametrize("model", [replace(SMALL, dropout=False), LATENT], ids=["plain", "latent"])
def test_narrow_products_read_a_byte_a_number(model: Transformer) -> None:
    """FLOPs stay; bytes of operands are half, the results' stay; each input and each gradient of an
    output is read and written once more, a byte for rows and one for columns.
    """
    wide, narrow = shard_of(model, Parallelism()), shard_of(
        replace(model, precision="float8"), Parallelism()
    )  # fmt: skip
    one, other = layer(wide, 0), layer(narrow, 0)
    for part in ("forward", "backward", "weight"):
        assert flops(one, part) == flops(other, part)
        before = [kernel for kernel in getattr(one, part) if kernel.op_class == "gemm"]
        after = [kernel for kernel in getattr(other, part) if kernel.op_class == "gemm"]
        assert {kernel.dtype for kernel in after} == {"float8"}
        for kernel, less in zip(before, after, strict=True):
            sums = kernel.written if part == "weight" else 0
            assert 2 * (less.read - sums) == kernel.read - sums
            assert less.written == kernel.written
    # What lies between a layer's products: half of the inputs, but attention keeps its output too.
    words, h = wide.tokens, model.hidden
    less = 2 * words * h + words * model.inner - words * wide.context
    less += words * (model.query_latent + model.kv_latent)
    assert footprint(wide, 0).saved - footprint(narrow, 0).saved == less


def test_router_and_attention_stay_wide() -> None:
    s = shard_of(replace(EXPERTS, precision="float8"), Parallelism(dp=2, ep=2))
    dtypes = {kernel.kind: kernel.dtype for kernel in layer(s, 1).forward}
    assert dtypes["router"] == dtypes["attention"] == "bfloat16"
    assert dtypes["qkv"] == dtypes["up"] == dtypes["down"] == dtypes["projection"] == "float8"


def test_devices_without_narrow_products_are_refused() -> None:
    def scenario(cluster: str) -> dict[str, object]:
        graph = {"model": "qwen3-0.6b", "length": 512, "precision": "float8"}
        return {"graph": graph, "cluster": cluster, "strategy": {"pipeline": {"dp": 8}}}

    wide = scenario("dgx-h100") | {"graph": {"model": "qwen3-0.6b", "length": 512}}
    steps = [run(load_scenario(each)).seconds for each in (scenario("dgx-h100"), wide)]
    assert steps[0] != steps[1]
    reason = 'the datasheet of "a100-80" names no peak for float8'
    with pytest.raises(InputError, match=reason):
        run(load_scenario(scenario("dgx-a100-80")))


@pytest.mark.parametrize("skew", [1, 1.5, Fraction(5, 4)])
def test_the_busiest_device_gets_more_words(skew: float | Fraction) -> None:
    """Words of the experts here, what they save and what is sent grow alike, up to all words."""
    p = Parallelism(dp=4, ep=4)
    even, uneven = (shard_of(replace(EXPERTS, skew=value), p) for value in (1, skew))
    up = [kernel for kernel in layer(uneven, 1).forward if kernel.kind == "up"]
    # Two experts of eight here; each of four devices sends 128 words twice.
    assert [kernel.flops for kernel in up[:-1]] == [2 * 128 * skew * 256 * 512] * 2
    assert up[-1].flops == 2 * 128 * 256 * 512  # the shared expert meets every word
    sent, back = even.exchanged_bytes()
    assert uneven.exchanged_bytes() == (skew * sent, skew * back)
    assert sent == back == 2 * 128 * 2 * 256
    grown = footprint(uneven, 1).saved - footprint(even, 1).saved
    assert grown == (skew - 1) * 2 * 128 * (2 * 256 + 2 * 3 * 256)
    most = shard_of(replace(EXPERTS, skew=100), p)
    assert most.exchanged_bytes() == (4 * sent, 4 * back)
    alone = shard_of(replace(EXPERTS, skew=100), Parallelism())
    assert alone.exchanged_bytes() == (sent, back)


def test_a_skewed_step_takes_longer() -> None:
    steps = {skew: lowered(replace(EXPERTS, skew=skew), Parallelism(dp=4, ep=4)) for skew in (1, 2)}
    sent = {skew: graph.tasks.bytes[plan.role == EXPERT] for skew, (graph, plan) in steps.items()}
    assert (sent[2] == 2 * sent[1]).all()
    assert steps[2][0].tasks.duration.sum() > steps[1][0].tasks.duration.sum()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kv_latent": 0}, "query_latent: goes with kv_latent"),
        ({"kv_heads": 2}, "kv_heads: keys of a latent have all 4 heads, got 2"),
        ({"rotary_width": 24}, "rotary_width: must be below head_width 24"),
        ({"bias": True}, "bias: is not known of attention with kv_latent"),
        ({"global_every": 2}, "global_every: without window all layers attend to all tokens"),
        (
            {"precision": "float4"},
            'precision: must be one of bfloat16, float8, mxfp8, nvfp4, got "float4"',
        ),
        ({"skew": 0.5}, "skew: must be a number from 1 to 16,777,216, got 0.5"),
        ({"skew": True}, "skew: must be a number from 1 to 16,777,216, got True"),
        ({"causal": 1}, "causal: must be true or false, got 1"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError) as error:
        replace(LATENT, **changes)
    assert reason in error.value.problems


def test_gradients_of_latents_are_scattered_where_latents_are_gathered() -> None:
    """64 tokens of 44 + 36 + 8 latents, or of width 96, in 16 bits; the products' input once more
    for the gradient of their weights.
    """
    tasks = lowered(LATENT, Parallelism(tp=2))[0].tasks
    latents, words = 2 * 64 * 88, 2 * 64 * 96
    for action, sizes in (
        ("F", [latents, words, words, words]),
        ("B", [words, latents, words, latents, words, words]),
    ):
        names = (f"0{action}0/layer_0/tensor" in tasks.name[task] for task in range(len(tasks)))
        assert [int(tasks.bytes[task]) for task, here in enumerate(names) if here] == sizes


def test_a_fused_loss_keeps_scores_of_16_bits_alone() -> None:
    """Its gradient takes their place (Transformer Engine, ``cross_entropy.py``)."""
    scores = 2 * 64 * 512
    plain, fused = (
        shard_of(replace(LATENT, software=name), Parallelism(microbatch=2))
        for name in ("megatron", "megatron-bridge")
    )
    assert classifier_saved(plain) - classifier_saved(fused) == 2 * scores
    assert (classifier_workspace(plain), classifier_workspace(fused)) == (2 * scores, 0)
