"""Layers of large models by the ladder: measured products, fused passes by their bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from hybrid_steps import DENSE, SMALL, cluster_for
from simdev.costs import CostModel, Profile, Row
from simdev.costs.collectives import CollectiveModel
from simdev.costs.groups import device_prefix
from simdev.execution.scenario import execute, load_scenario
from simdev.files import read_profile
from simdev.lowering.hybrid import lower_hybrid
from simdev.nouns.models.large import Transformer, large_model, layer, shard_of
from simdev.nouns.models.large.kernels import Kernel
from simdev.nouns.models.large.roles import FORWARD
from simdev.nouns.semantics.keys import load_of
from simdev.nouns.strategy.parallelism import Parallelism
from worlds.costs import SPEC

PROFILES = Path(__file__).parents[2] / "profiles" / "h100"
MODELS = [DENSE, SMALL, large_model("llama3-8b", length=1024), large_model("mixtral-8x7b")]


def key_on(kernel: Kernel, kind: str) -> str:
    return device_prefix(kind) + kernel.key.removeprefix(device_prefix(""))


def kernels(model: Transformer, p: Parallelism) -> list[Kernel]:
    block = layer(shard_of(model, p), model.layers - 1)
    return [*block.forward, *block.backward, *block.weight, *block.again]


def forward_ps(costs: CostModel, p: Parallelism) -> set[int]:
    cluster = cluster_for(p.devices)
    task_graph, large = lower_hybrid(DENSE, p, CollectiveModel(cluster), costs)
    rows = np.flatnonzero(large.role == FORWARD).tolist()
    names = task_graph.tasks.name
    return {int(task_graph.tasks.duration[row]) for row in rows if "layer_" in names[row]}


@pytest.mark.parametrize("model", MODELS, ids=[model.name for model in MODELS])
@pytest.mark.parametrize("flash", [True, False])
def test_ops_alike_ask_for_the_same(model: Transformer, flash: bool) -> None:
    """An op like a kernel has its class, and for products its FLOPs and operands; all are
    described.
    """
    p = Parallelism(tp=4, flash=flash, recompute="selective", gradient_bytes=2)
    for kernel in kernels(model, p):
        if not kernel.key:
            assert kernel.op_class == "data_movement"
            continue
        load = load_of(key_on(kernel, "gpu"))
        if load is None:  # what an attention computes may not be known; its row counts all the same
            assert kernel.op_class == "attention"
            continue
        assert load.op_class == kernel.op_class, kernel.kind
        assert load.dtype == kernel.dtype
        assert json.loads(kernel.key)[1] == kernel.like
        if kernel.op_class == "gemm":
            assert load.flops == kernel.flops, kernel.kind
            # Keys of fewer heads are there once in the load, once a head in the op.
            assert kernel.share == 1
        elif kernel.op_class not in ("attention", "norm"):
            moved = load.read + load.written
            assert kernel.share == pytest.approx((kernel.read + kernel.written) / moved)


def test_both_parts_of_a_norms_backward_are_the_measured_op() -> None:
    parts = [
        kernel for kernel in kernels(DENSE, Parallelism()) if kernel.like.endswith("_norm_backward")
    ]
    assert [kernel.kind for kernel in parts[:2]] == ["norm dx", "norm dx"]
    assert sum(kernel.share for kernel in parts) == pytest.approx(2)


@pytest.mark.parametrize("cp", [2, 4])
def test_a_part_of_a_sample_takes_its_part_of_measured_attention(cp: int) -> None:
    """Else a plan with cp would be compared by another rung than one without."""
    model = large_model("llama3-8b", length=1024)
    whole, part = (
        [kernel for kernel in kernels(model, Parallelism(cp=n)) if "attention" in kernel.like]
        for n in (1, cp)
    )
    assert len(whole) == len(part) == 2
    assert [kernel.key for kernel in whole] == [kernel.key for kernel in part]
    assert [kernel.share * cp for kernel in part] == [kernel.share for kernel in whole] == [1, 1]


def test_measured_products_count_as_measured() -> None:
    """A layer with the rows of its forward takes their sum, to the picosecond."""
    p = Parallelism(dp=2)
    forward = layer(shard_of(DENSE, p), 0).forward
    rows = {
        key_on(kernel, "gpu"): Row(key_on(kernel, "gpu"), Fraction(number + 1, 10**6))
        for number, kernel in enumerate(forward)
    }
    costs = CostModel((Profile.of_rows({}, list(rows.values())),), (SPEC,))
    seconds = sum(float(rows[key_on(kernel, "gpu")].seconds) * kernel.share for kernel in forward)
    assert list(forward_ps(costs, p)) == [pytest.approx(seconds * 1e12, rel=1e-5)]
    assert forward_ps(CostModel(specs=(SPEC,)), p) != forward_ps(costs, p)
    other = Row(next(iter(rows)).replace('"gpu"', '"other"', 1), Fraction(1))
    foreign = CostModel((Profile.of_rows({}, [other]),), (replace(SPEC, kind="gpu"),))
    assert all(ps < 10**9 for ps in forward_ps(foreign, p))


def test_rungs_are_told() -> None:
    """A Llama on H100 with measured stacks and grids: some of it measured, little by datasheet."""
    names = ["llama-70b-1l.h100-sxm.jsonl", "grids/linears.h100-sxm.jsonl"]
    names += [
        f"grids/grid-{of}-bfloat16.h100-sxm.jsonl"
        for of in ("gemm", "attention", "norm-softmax-elementwise")
    ]
    scenario = {
        "graph": {"model": "llama3-70b", "layers": 4, "length": 4096, "vocabulary": 32000},
        "cluster": {"preset": "dgx-h100"}, "profile": [str(PROFILES / name) for name in names],
        "strategy": {"pipeline": {"dp": 8, "microbatches": 2}},
    }  # fmt: skip
    outcome = execute(load_scenario(scenario))
    assert sum(outcome.rungs.values()) == pytest.approx(1)
    assert outcome.rungs["measured"] > 0.2
    assert outcome.rungs["measured"] + outcome.rungs["interpolated"] > 0.8
    assert outcome.rel_err is not None
    assert outcome.rel_err < 0.2
    plain = execute(load_scenario({**scenario, "profile": []}))
    assert plain.rungs == {"roofline": 1.0}
    # By datasheet products, most of the time, err by 0.10 and 0.12 as nothing is measured here.
    assert plain.rel_err is not None
    assert 0.22 < plain.rel_err < 0.32
    assert read_profile(scenario["profile"][0]).rows
