"""Precisions with scaled blocks by hand: bytes of operands, casts, what is saved and held, layers
that stay wide, and the time of a product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from hybrid_steps import EXPERTS, SMALL
from simdev.costs import CostModel
from simdev.costs.collectives import collective_model
from simdev.costs.ladder import Estimates
from simdev.costs.roofline import datasheet_scalars
from simdev.execution.check import check
from simdev.execution.engine import simulate
from simdev.execution.scenario import load_scenario
from simdev.files import read_cluster, read_device
from simdev.ground.errors import InputError
from simdev.lowering.hybrid import lower_hybrid
from simdev.nouns.models.large import Transformer, footprint, layer, shard_of, update
from simdev.nouns.models.large.kernels import Kernel
from simdev.nouns.models.large.precision import FORMATS, PRECISIONS
from simdev.nouns.semantics.keys import Load
from simdev.nouns.strategy.parallelism import Parallelism
from simdev.nouns.taskgraph import BUFFER_KINDS
from simdev.report import run
from worlds.costs import SPEC

# Bytes of a number with its share of a scale, by hand: 32 + 1 bytes for 32, 8 + 1 for 16.
WIDTHS = {"float8": Fraction(1), "mxfp8": Fraction(33, 32), "nvfp4": Fraction(9, 16)}
SCALED = ("mxfp8", "nvfp4")
FAST = replace(SPEC, flops={**SPEC.flops, "float8": Fraction(10**14), "float4": Fraction(10**14)})


def by_name(kernels: Sequence[Kernel]) -> dict[str, Kernel]:
    return {kernel.kind: kernel for kernel in kernels}


def moved(kernel: Kernel) -> tuple[int, int]:
    return kernel.read, kernel.written


def stepped(model: Transformer, p: Parallelism, symmetry: bool = True) -> Any:
    gpus = [{"name": f"gpu:{i}", "memory": "1 GiB", "kind": SPEC.kind} for i in range(p.devices)]
    links = {"all_to_all": {"bandwidth": "100 GB/s"}} if len(gpus) > 1 else []
    cluster = read_cluster({"devices": gpus, "links": links})
    costs = CostModel(specs=(FAST,))
    return lower_hybrid(model, p, collective_model(cluster), costs, symmetry)


@pytest.mark.parametrize("precision", SCALED)
def test_a_product_reads_elements_and_scales(precision: str) -> None:
    """FLOPs stay; operands and their casts have a scale for each block, results are in 16 bits."""
    s = shard_of(replace(SMALL, precision=precision), Parallelism())
    block, width = layer(s, 0), WIDTHS[precision]
    ahead, back, weight = (by_name(part) for part in (block.forward, block.backward, block.weight))
    words, h, wide = 128, 256, 256 + 2 * 128  # queries; keys and values of four heads of eight
    x, w, y = words * h * width, h * wide * width, words * wide * width
    assert moved(ahead["qkv"]) == (x + w, 2 * words * wide)
    assert moved(back["qkv dx"]) == (y + w, 2 * words * h)
    g = s.gradient_bytes * h * wide
    assert moved(weight["qkv dw"]) == (x + y + g, g)
    for kernel in (ahead["qkv"], back["qkv dx"], weight["qkv dw"]):
        assert kernel.dtype == FORMATS[precision].dtype
        assert kernel.flops == 2 * words * h * wide
    # Along rows and along columns, from numbers of two bytes.
    assert moved(ahead["qkv cast"]) == (2 * words * h, 2 * x)
    assert moved(back["qkv dy cast"]) == (2 * words * wide, 2 * y)
    if precision == "nvfp4":  # one scale a tensor: its largest element is looked for before
        assert moved(ahead["qkv cast amax"]) == (2 * words * h, 0)
        assert moved(back["qkv dy cast amax"]) == (2 * words * wide, 0)
    else:
        assert not [name for name in (*ahead, *back) if "amax" in name]


@pytest.mark.parametrize("precision", SCALED)
def test_attention_router_norms_and_ends_stay_wide(precision: str) -> None:
    s = shard_of(replace(EXPERTS, precision=precision), Parallelism(dp=2, ep=2))
    dtypes = {kernel.kind: kernel.dtype for kernel in layer(s, 1).forward}
    narrow = {name for name, dtype in dtypes.items() if dtype != "bfloat16"}
    assert narrow == {"qkv", "projection", "up", "down"}


def test_widths_are_those_of_the_formats() -> None:
    assert list(PRECISIONS[1:]) == list(WIDTHS)
    assert {name: FORMATS[name].bits / 8 for name in WIDTHS} == WIDTHS


@pytest.mark.parametrize("precision", WIDTHS)
@pytest.mark.parametrize("model", [SMALL, EXPERTS], ids=["dense", "experts"])
def test_saved_bytes_have_the_width_of_the_precision(model: Transformer, precision: str) -> None:
    """Saved: inputs of qkv and of the first product, attention's output once more for the
    projection, the activation's result; with narrow_saved what the activation reads, and
    attention's output once, in 12 bits.
    """
    p, width, words, h = Parallelism(), WIDTHS[precision], 128, 256
    sizes = {"wide": {}, "narrow": {"precision": precision}}
    sizes["saved"] = {**sizes["narrow"], "narrow_saved": True}
    for number in (0, 1):
        wide, narrow, saved = (
            footprint(shard_of(replace(model, **size), p), number).saved for size in sizes.values()
        )
        inner, inputs = words * 512, 2
        if model.experts and number:
            # The router's input stays wide, and is made narrow beside it for the shared expert;
            # sorted tokens go to two experts each.
            inner, inputs = words * 256 * (2 + 1), 3
        changed = (words * h * inputs + inner) * (2 - width) - words * h * width
        if model.experts and number:
            changed -= words * h * width
        assert wide - narrow == changed
        assert narrow - saved == words * h * (2 + width) - words * h * 3 // 2 + 2 * inner * (
            2 - width
        )


@pytest.mark.parametrize("precision", SCALED)
def test_weights_are_made_narrow_once_a_step_and_held(precision: str) -> None:
    """A decoder's layer has 256 x (512 + 256) weights of attention and 3 x 256 x 512 beside."""
    p, width, count = Parallelism(), WIDTHS[precision], 256 * (512 + 256) + 3 * 256 * 512
    s = shard_of(replace(SMALL, precision=precision), p)
    plain = update(s, 1000, 1000, 12)
    *before, cast = update(s, 1000, 1000, 12, [-1, 0, 1])
    amax = [before.pop()] if precision == "nvfp4" else []
    assert tuple(before) == plain
    assert moved(cast) == (2 * 2 * count, 2 * 2 * count * width)
    assert [moved(kernel) for kernel in amax] == [(2 * 2 * count, 0)] * len(amax)
    eight = shard_of(replace(SMALL, precision="float8"), p)
    assert update(eight, 1000, 1000, 12, [-1, 0, 1]) == plain
    # Two forms of 8.25 bits in place of 16 bits; two of 4.5 beside them.
    held = {"mxfp8": Fraction(1, 16), "nvfp4": Fraction(9, 8)}[precision] * 8 * count
    sizes = [
        sum(buffers.bytes[buffers.kind == BUFFER_KINDS.index("parameters")].tolist())
        for buffers in (
            stepped(replace(SMALL, precision=each), p)[0].buffers for each in ("float8", precision)
        )
    ]
    assert sizes[1] - sizes[0] == held


@pytest.mark.parametrize("precision", ["float8", *SCALED])
def test_layers_that_stay_wide_are_those_of_bfloat16(precision: str) -> None:
    p = Parallelism(pp=2, microbatches=4)
    narrow, wide = replace(SMALL, precision=precision), stepped(SMALL, p)[0]
    for first, last in ((8, 0), (3, 5), (0, 8)):
        same = stepped(replace(narrow, wide_first=first, wide_last=last), p)[0]
        assert np.array_equal(same.tasks.duration, wide.tasks.duration)
        assert np.array_equal(same.buffers.bytes, wide.buffers.bytes)
    some = shard_of(replace(narrow, wide_first=1, wide_last=2), p)
    for number in range(8):
        alike = shard_of(narrow if 1 <= number < 6 else SMALL, p)
        assert layer(some, number) == layer(alike, number)
        assert footprint(some, number) == footprint(alike, number)
    problem = "wide_first: 4 and wide_last 5 are more than the 8 layers"
    with pytest.raises(InputError, match=problem):
        replace(narrow, wide_first=4, wide_last=5)


@pytest.mark.parametrize("precision", SCALED)
@pytest.mark.parametrize(
    ("model", "p"),
    [
        (SMALL, Parallelism(dp=2, pp=2, microbatches=4, zero=1)),
        (EXPERTS, Parallelism(dp=2, ep=2, tp=2, microbatches=2, zero=3)),
    ],
    ids=["pipeline", "experts"],
)
def test_both_engines_and_the_checker_agree(
    model: Transformer, p: Parallelism, precision: str
) -> None:
    """And symmetry changes nothing."""
    narrow = replace(model, precision=precision, wide_last=1)
    ends = []
    for symmetry in (True, False):
        task_graph, _ = stepped(narrow, p, symmetry)
        traces = [simulate(task_graph, engine) for engine in ("simpy", "compiled")]
        assert not check(task_graph, traces[0])
        ends += [trace.end_ps for trace in traces]
    assert len(set(ends)) == 1


@pytest.mark.parametrize("precision", SCALED)
def test_a_product_takes_its_flops_at_the_peak_of_its_dtype(precision: str) -> None:
    """Where memory takes no time, efficiencies are 1 and launches 0: a layer's forward is its
    products at one peak and its attention at another.
    """
    dtype, h, words = FORMATS[precision].dtype, 4096, 512
    spec = {
        "kind": "ideal", "flops": {"bfloat16": 10**14, dtype: 4 * 10**14},
        "memory_bandwidth": 10**18, "launch": 0,
        "efficiency": {"default": {"any": {"compute": 1, "memory": 1, "overhead": 0}}},
    }  # fmt: skip
    sizes = {"model": "llama2-7b", "layers": 1, "length": words}
    scenario = {
        "graph": {**sizes, "precision": precision},
        "cluster": {"devices": [{"name": "gpu:0", "kind": "ideal"}]}, "devices": spec,
        "strategy": {"pipeline": {}},
    }  # fmt: skip
    report = run(load_scenario(scenario))
    products = 2 * words * (4 * h * h + 3 * h * 11008) * 3 / 4e14
    attention = 2 * words * words * h * (2 + 5) / 1e14
    classifier = 2 * words * h * 32_000 * 3 / 1e14
    assert report.seconds == pytest.approx(products + attention + classifier, rel=1e-3)
    assert report.training.large.peak_dtype == dtype


def test_a_device_without_the_dtype_is_refused() -> None:
    def scenario(cluster: str, precision: str) -> dict[str, Any]:
        graph = {"model": "llama3-8b", "layers": 2, "length": 1024, "precision": precision}
        return {"graph": graph, "cluster": cluster, "strategy": {"pipeline": {"tp": 8}}}

    reason = 'the datasheet of "h100-sxm" names no peak for float4'
    with pytest.raises(InputError, match=reason):
        run(load_scenario(scenario("dgx-h100", "nvfp4")))
    reports = [run(load_scenario(scenario("dgx-b200", each))) for each in PRECISIONS]
    assert [report.training.large.peak_dtype for report in reports] == [
        "bfloat16", "float8", "float8", "float4",
    ]  # fmt: skip
    for report in reports:
        assert not [note for note in report.training.notes() if "class default" in note]


def test_narrow_products_of_one_chip_go_by_its_power() -> None:
    """Of the GB200 a rate in float8 was measured; under a power cap every FLOP takes the same
    energy, so that the other machines' rates are as their caps, in watts.
    """
    watts = {"gb200": 1200, "b200": 1000, "b300": 1100, "gb300": 1400}
    for dtype in ("float8", "float4"):
        rates = {}
        for kind in watts:
            spec = read_device(kind)
            load = Load("up", "gemm", dtype, 2 * 4096**3, 4096**2, 4096**2, "")
            cost = Estimates((), {kind: spec}).roofline(load, kind)
            assert cost is not None
            assert cost.basis == "datasheet"
            share = datasheet_scalars(spec, "gemm", dtype).compute
            rates[kind] = share * float(spec.flops[dtype])
        for kind, cap in watts.items():
            assert rates[kind] == pytest.approx(rates["gb200"] * cap / 1200, rel=2e-3)
    for kind, ratio in {"b200": 2, "gb200": 2, "b300": Fraction(28, 9), "gb300": 3}.items():
        spec = read_device(kind)
        assert spec.flops["float4"] == ratio * spec.flops["float8"]
