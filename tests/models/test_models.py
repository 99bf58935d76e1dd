"""Builders of training steps: published counts."""

from __future__ import annotations

import pytest

from model_graphs import flops, small
from model_table import PARAMETERS, forward_products, one_sample, rows
from simdev.nouns import models
from simdev.nouns.graph import Graph
from simdev.nouns.semantics.registry import LEAF_ROLES as LEAVES


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_the_published_ones(name: str) -> None:
    published, within, _ = PARAMETERS[name]
    assert models.parameter_count(one_sample(name)) == pytest.approx(published, rel=within, abs=0)


def test_the_auxiliary_head_of_inception_has_its_parameters() -> None:
    """torchvision: 27,161,264 with both heads."""
    assert models.parameter_count(models.inception_v3(batch=1, auxiliary=True)) == 27_161_264


def test_other_published_sizes() -> None:
    """Merity et al. 2016, table 1: Zaremba's large LSTM has 66 M.

    BERT at 16-bit has as many as at 32.
    """
    zaremba = models.rnnlm(batch=1, length=35, hidden=1500)
    assert models.parameter_count(zaremba) == pytest.approx(66e6, rel=0.005)
    halves = models.bert(batch=1, length=16, dtype="float16", optimizer="mixed-adam")
    assert models.parameter_count(halves) == 336_226_108


@pytest.mark.parametrize(
    ("hidden", "gigabytes"), [(4096, 14.4 - 8.4), (6144, 32.1 - 18.6), (8192, 57.0 - 33.0)]
)
def test_four_more_lstm_layers_weigh_what_tofu_prints(hidden: int, gigabytes: float) -> None:
    """Tofu, table 2, RNN-10 less RNN-6: 3 W in GB (2^30) of 4-byte weights."""
    counts = [
        models.parameter_count(models.rnnlm(batch=1, length=1, hidden=hidden, layers=n))
        for n in (6, 10)
    ]
    assert 3 * 4 * (counts[1] - counts[0]) / 2**30 == pytest.approx(gigabytes, abs=0.01)


@pytest.mark.parametrize("depth", [50, 101, 152])
@pytest.mark.parametrize("widen", [4, 6, 8, 10])
def test_wide_resnets_weigh_what_tofu_prints(depth: int, widen: int) -> None:
    """Tofu, table 2: 3 W in GB (2^30)."""
    printed = {
        50: (4.2, 9.6, 17.1, 26.7),
        101: (7.8, 17.1, 30.6, 47.7),
        152: (10.5, 23.4, 41.7, 65.1),
    }
    count = models.parameter_count(models.resnet(batch=1, depth=depth, widen=widen, size=64))
    assert 3 * 4 * count / 2**30 == pytest.approx(printed[depth][(widen - 4) // 2], rel=0.025)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("alexnet", 0.714),
        ("vgg-16", 15.470),
        ("vgg-19", 19.632),
        ("resnet-50", 4.089),
        ("resnet-101", 7.801),
        ("resnet-152", 11.514),
        ("inception-v3", 5.713),
        ("nasnet-mobile", 0.564),
    ],
)
def test_multiply_adds_of_a_forward_are_the_published_ones(name: str, billions: float) -> None:
    """torchvision's weights pages, to their last digit; NASNet: table 2 of the paper (564 M)."""
    assert forward_products(name) / 2e9 == pytest.approx(billions, abs=0.0005)


def test_multiply_adds_of_the_large_nasnet() -> None:
    """Zoph et al., table 2: 23.8 B."""
    assert forward_products("nasnet-large") / 2e9 == pytest.approx(23.8, abs=0.05)


def test_the_first_classifier_of_vgg_has_the_gradient_of_optcnn() -> None:
    """OptCNN, figure 2: 411,041,792 bytes."""
    graph = small("vgg-16")
    assert graph.ops[graph.index["fc_6/fc/weight"]].param_bytes == 411_041_792


def test_operations_of_gpt_are_the_formula_of_megatron() -> None:
    """Narayanan et al., SC'21, section 5.1: 96 B s L h^2 (1 + s/6h + V/16Lh), the layers' forward
    run twice.
    """
    b, s, n, h, v = 2, 64, 3, 128, 1000
    graph = models.gpt(b, s, n, h, 4, v, fused=False)
    forward, logits = flops(graph, "forward", ("gemm",)), 2 * b * s * h * v
    expected = 96 * b * s * n * h**2 * (1 + s / (6 * h) + v / (16 * n * h))
    assert 2 * forward - logits + flops(graph, "backward", ("gemm",)) == pytest.approx(
        expected, rel=1e-12
    )


@pytest.mark.parametrize("fused", [False, True])
def test_activations_of_a_gpt_layer_are_the_formula_of_korthikanti(fused: bool) -> None:
    """Korthikanti et al. 2022, equation 1: s b h (34 + 5 a s / h) bytes a layer, scores included.

    The layer norms keep two numbers of 4 bytes a row besides; fused, the scores go and a number of
    4 bytes a row of them stays.
    """
    b, s, h, a = 2, 128, 256, 8
    graph = models.gpt(b, s, 3, h, a, 100, fused=fused, dtype="bfloat16", optimizer="mixed-adam")
    assert kept(graph, "layer_1/") == s * b * h * 34 + 2 * 8 * s * b + (
        4 * a * s * b if fused else 5 * a * s**2 * b
    )


def kept(graph: Graph, prefix: str) -> int:
    """Bytes of the forward's tensors under a prefix that the backward reads."""
    read = {
        tensor
        for i, op in enumerate(graph.ops)
        if op.phase == "backward"
        for tensor in graph.reads[i]
    }
    return sum(
        graph.ops[p].outputs[k].bytes
        for p, k in read
        if graph.ops[p].phase == "forward"
        and graph.ops[p].kind not in LEAVES
        and graph.ops[p].name.startswith(prefix)
    )


def test_the_rows_of_the_site_name_every_model_with_its_count() -> None:
    written = {name.strip("`"): (count, ops) for name, _, ops, count, _ in rows()}
    assert set(written) == set(models.MODELS)
    assert written["lenet"] == (f"61,706 ({PARAMETERS['lenet'][2]})", "56")
    assert written["rnnlm"][0] == "108,095,248"
