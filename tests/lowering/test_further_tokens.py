"""Layers that predict further tokens: published parameters and FLOPs; work and memory by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hybrid_steps import EXPERTS, SMALL, report_of
from simdev.ground.errors import InputError
from simdev.nouns.models.large import (
    Transformer,
    classifier,
    footprint,
    large_model,
    layer,
    shard_of,
)
from simdev.nouns.models.large.kernels import Loads
from simdev.nouns.models.large.shard import classifier_saved
from simdev.nouns.strategy.parallelism import Parallelism

FURTHER = replace(SMALL, name="further", layers=9, mtp=1)
DEEPSEEK = replace(large_model("deepseek-v3"), layers=62, mtp=1)


def test_deepseek_v3_has_the_parameters_that_its_authors_count() -> None:
    """11.5 billion beside the shared tables (README_WEIGHTS.md of the release)."""
    plain = large_model("deepseek-v3")
    assert DEEPSEEK.parameters() - plain.parameters() == pytest.approx(11.5e9, rel=0.015)


def test_deepseek_v3_has_the_flops_that_megatron_counts() -> None:
    """260 GFLOP a token with the further one, 249.7 without: model TFLOP/s by tokens a second of
    published runs (Megatron-Bridge, ``profiles/runs``).
    """
    for model, published in ((DEEPSEEK, 260.0), (large_model("deepseek-v3"), 249.7)):
        model = replace(model, length=4096, causal=True)
        assert model.flops(1) / 4096 / 1e9 == pytest.approx(published, rel=0.005)


@pytest.mark.parametrize("model", [FURTHER, replace(EXPERTS, layers=9, mtp=1)])
@pytest.mark.parametrize("tp", [1, 2])
def test_it_is_a_layer_with_a_join_and_a_classifier(model: Transformer, tp: int) -> None:
    s = shard_of(model, Parallelism(tp=tp))
    last, before = layer(s, 8), layer(s, 7)

    def flops(loads: Loads) -> int:
        return sum(load.flops for load in loads)

    join = 2 * s.rows * 2 * model.hidden * model.hidden
    scores = flops(classifier(s).forward)
    assert flops(last.forward) == flops(before.forward) + join + scores
    assert flops(last.weight) == flops(before.weight) + join + flops(classifier(s).weight)
    more = footprint(s, 8).saved - footprint(s, 7).saved
    assert more == s.rows_bytes + 2 * 2 * s.rows * model.hidden + classifier_saved(s)


def test_flops_of_the_model_are_those_of_its_layers() -> None:
    once = 2 * SMALL.length * SMALL.hidden
    more = replace(SMALL, layers=9).flops(1) - SMALL.flops(1)
    assert FURTHER.flops(1) - SMALL.flops(1) == more + 3 * once * (2 * 256 + SMALL.vocabulary)


def test_the_last_stage_takes_longer() -> None:
    p = Parallelism(pp=2, microbatches=4, stage_layers=(4, 5))
    plain, further = (report_of(model, p) for model in (replace(SMALL, layers=9), FURTHER))
    assert further.step_ps > plain.step_ps
    assert further.training.stages[0].memory.peak == plain.training.stages[0].memory.peak
    assert further.training.stages[1].memory.peak > plain.training.stages[1].memory.peak


def test_not_all_layers_predict_further_tokens() -> None:
    with pytest.raises(InputError, match="mtp: 8 of 8 layers predict further tokens"):
        replace(SMALL, mtp=8)
