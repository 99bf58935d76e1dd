"""Samples whose words are spread over devices: what each computes, keeps and sends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid_steps import EXPERTS, SMALL, boxes, cluster_for, lowered, report_of
from simdev.commands import main
from simdev.execution.check import check
from simdev.ground.errors import InputError
from simdev.nouns.models.large import Transformer, classifier, footprint, layer, shard_of
from simdev.nouns.models.large.roles import DATA, TENSOR
from simdev.nouns.strategy.parallelism import Parallelism

CAUSAL = replace(SMALL, name="causal", causal=True)
WINDOWS = replace(CAUSAL, name="windows", window=32, global_every=2)


@pytest.mark.parametrize("model", [SMALL, CAUSAL, WINDOWS, EXPERTS], ids=lambda m: m.name)
@pytest.mark.parametrize(("cp", "tp"), [(2, 1), (2, 2), (4, 2)])
def test_all_parts_together_compute_the_model(model: Transformer, cp: int, tp: int) -> None:
    s = shard_of(model, Parallelism(cp=cp, tp=tp, microbatch=2))
    blocks = [layer(s, number) for number in range(model.layers)]
    count = sum(load.flops for b in (*blocks, classifier(s)) for load in b.forward) * tp * cp
    padded = 2 * s.tokens * cp * model.hidden * (s.vocabulary * tp - model.vocabulary)
    assert 3 * (count - padded) == model.flops(2)


@pytest.mark.parametrize("context", ["all_gather", "ring"])
def test_a_part_keeps_and_sends_its_share(context: str) -> None:
    """Of 2 b s words of keys and values (kv h_d wide) all go to each part; a part saves what its
    words alone would.
    """
    whole = shard_of(CAUSAL, Parallelism(microbatch=2))
    part = shard_of(CAUSAL, Parallelism(microbatch=2, cp=4, context=context))
    assert (part.tokens, part.samples) == (2 * 128 // 4, 2)
    assert footprint(part, 0).saved * 4 == footprint(whole, 0).saved
    assert part.context_bytes == 2 * 2 * 128 * 2 * (4 * 32)
    narrow = replace(CAUSAL, inner=16)  # so that attention has the larger workspace
    sizes = [
        footprint(shard_of(narrow, Parallelism(cp=cp, context=context)), 0).workspace
        for cp in (1, 4)
    ]
    q, kv, o = 8 * 32, 2 * 4 * 32, 8 * 32
    kept = {"all_gather": 8, "ring": 4}[context]
    assert sizes[0] == 128 * (2 * (q + kv + o) + 4 * q + 4 * 256)
    assert sizes[1] == 32 * (2 * (q + kept * kv + o) + 4 * q + 4 * 256)


def test_keys_and_values_are_gathered_once_forward_and_twice_back() -> None:
    """A collective a layer and microbatch forward, two backward; gradients are reduced over dp x cp
    replicas.
    """
    p = Parallelism(dp=2, cp=4, microbatches=3, microbatch=2)
    task_graph, plan = lowered(SMALL, p)
    size = 2 * 2 * SMALL.length * 2 * (4 * 32)
    assert (plan.role == TENSOR).sum() == 3 * SMALL.layers * 3
    assert set(task_graph.tasks.bytes[plan.role == TENSOR]) == {size}
    flat, other = lowered(SMALL, Parallelism(dp=8))
    assert task_graph.tasks.bytes[plan.role == DATA].sum() == (
        flat.tasks.bytes[other.role == DATA].sum()
    )
    assert p.samples == 2 * 3 * 2


def test_a_ring_hides_what_attention_takes_to_be_computed() -> None:
    """Longer texts hide more of it: at last all of it; it is never longer than gathering."""
    steps = {}
    for length in (128, 2048, 65_536):
        model = replace(CAUSAL, length=length)
        for context in ("all_gather", "ring"):
            task_graph, plan = lowered(model, Parallelism(cp=4, context=context))
            steps[length, context] = task_graph.tasks.duration[plan.role == TENSOR].sum()
    assert 0 < steps[128, "ring"] <= steps[128, "all_gather"]
    assert 0 < steps[2048, "ring"] < steps[2048, "all_gather"]
    assert steps[65_536, "ring"] == 0 < steps[65_536, "all_gather"]


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    st.sampled_from([CAUSAL, WINDOWS, EXPERTS]),
    st.sampled_from([(2, 2, 1, 1), (1, 4, 2, 1), (1, 2, 2, 2), (2, 2, 2, 1), (1, 2, 1, 4)]),
    st.sampled_from(["all_gather", "ring"]),
    st.integers(0, 3),
    st.sampled_from(["none", "full"]),
    st.integers(0, 2),
)
def test_one_device_stands_for_all_parts(
    model: Transformer, degrees: tuple[int, ...], context: str, zero: int, again: str, nics: int
) -> None:
    dp, cp, tp, pp = degrees
    p = Parallelism(
        dp=dp, cp=cp, tp=tp, pp=pp, ep=2 if model.experts else 1, context=context, zero=zero,
        recompute=again, microbatches=2,
    )  # fmt: skip
    cluster = cluster_for(p.devices, nics)
    one, every = report_of(model, p, cluster=cluster), report_of(model, p, False, cluster)
    assert one.step_ps == every.step_ps
    assert one.training.large.counted == len(every.trace.start)
    for short, long in zip(one.training.stages, every.training.stages, strict=True):
        assert dict(short.terms) == dict(long.terms)
        assert short.memory.peak == long.memory.peak
    assert check(every.trace.task_graph, every.trace) == ()


def test_longer_texts_fit_where_they_are_spread() -> None:
    model = replace(CAUSAL, length=16_384)
    whole, spread = (
        report_of(model, p, cluster=boxes(4, 1))
        for p in (Parallelism(dp=4), Parallelism(cp=4, microbatches=4))
    )
    assert whole.training.large.parallelism.samples == spread.training.large.parallelism.samples
    peaks = [report.training.stages[0].memory.peak for report in (whole, spread)]
    assert peaks[1] < 0.4 * peaks[0]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"cp": 0}, "cp: must be a whole number from 1 to"),
        ({"context": "star"}, 'context: must be one of all_gather, ring, got "star"'),
        ({"cp": 2, "ep": 4}, "ep: 4 does not divide dp x cp 2; the experts are shared out"),
    ],
)
def test_what_cannot_be_spread_is_refused(fields: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError) as error:
        Parallelism(**fields)
    assert [problem[: len(reason)] for problem in error.value.problems] == [reason]
    with pytest.raises(InputError, match="128 tokens of small are not divided into 24 pieces"):
        shard_of(SMALL, Parallelism(cp=12))
    with pytest.raises(InputError, match="only with fused attention"):
        shard_of(SMALL, Parallelism(cp=2, flash=False))


def test_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    line = "simulate --model llama3-8b --cluster dgx-h100 --cp 4 --tp 2 --length 65536"
    assert main([*line.split(), "--context", "ring", "--recompute", "full"]) in (0, 1)
    assert "llama3-8b: dp 1 x cp 4 x tp 2 x pp 1, 1 microbatches of 1" in capsys.readouterr().out
    assert main(line.replace("--tp 2", "--tp 4").split()) == 2
    assert "dp x cp x tp x pp: 1 x 4 x 4 x 1 = 16 devices" in capsys.readouterr().err
