"""MFU: the share of the peak of the precision in which a large model's products run."""

from __future__ import annotations

import json
import random
from fractions import Fraction
from typing import Any

import pytest

import simdev
from simdev.commands import main
from simdev.costs import CostModel
from simdev.costs.collectives import collective_model
from simdev.costs.roofline import peak_name
from simdev.execution.engine import simulate
from simdev.files import read_cluster, read_device
from simdev.files.device import device_names
from simdev.ground.errors import InputError
from simdev.lowering.hybrid import lower_hybrid
from simdev.nouns.models.large import Transformer
from simdev.nouns.models.large.precision import FORMATS, PRECISIONS
from simdev.nouns.strategy.parallelism import RECOMPUTES, Parallelism
from simdev.report.measures.training import Training

LINE = "simulate --model llama2-7b --cluster dgx-h100 --tp 8 --microbatch 4"


def model_drawn(draw: random.Random, precision: str) -> Transformer:
    heads = draw.choice((8, 16, 32, 64))
    experts = draw.choice((0, 0, 8))
    return Transformer(
        "random", draw.randint(1, 3), heads * draw.choice((32, 64, 128)), heads,
        draw.choice((2048, 8192, 28_672)), draw.choice((1000, 50_304, 128_256)),
        draw.choice((512, 4096, 32_768)), gated=draw.random() < 0.5, tied=draw.random() < 0.5,
        causal=draw.random() < 0.7, window=draw.choice((0, 0, 256)), precision=precision,
        kv_heads=draw.choice((heads, 8)), experts=experts, top_k=2 * (experts > 0),
        expert_inner=4096 * (experts > 0),
    )  # fmt: skip


def check(seed: int, kind: str, precision: str) -> None:
    """A plan on one device or several takes at least as long as its products at the peak."""
    draw = random.Random(seed)
    model = model_drawn(draw, precision)
    dp, tp, pp = draw.choice(((1, 1, 1), (2, 1, 1), (1, 4, 1), (1, 2, 1)))
    p = Parallelism(
        dp=dp, tp=tp, pp=pp, microbatch=draw.choice((1, 4)), flash=draw.random() < 0.8,
        recompute=draw.choice(RECOMPUTES),
    )  # fmt: skip
    gpus = [{"name": f"gpu:{i}", "kind": kind} for i in range(p.devices)]
    link = {"bandwidth": "1000 PB/s"}  # what remains is the roofline alone
    cluster = read_cluster(
        {"devices": gpus, "links": {"all_to_all": link} if len(gpus) > 1 else []}
    )
    spec, dtype = read_device(kind), FORMATS[precision].dtype
    if precision != "bfloat16" and dtype not in spec.flops:
        with pytest.raises(InputError, match=f"names no peak for {dtype}"):
            lower_hybrid(model, p, collective_model(cluster), CostModel(specs=(spec,)))
        return
    task_graph, large = lower_hybrid(model, p, collective_model(cluster), CostModel(specs=(spec,)))
    training = Training.of(simulate(task_graph, "compiled"), large)
    assert 0 < training.mfu <= training.hfu <= 1, (model, p)
    name = peak_name(spec, dtype)
    assert large.peak_dtype == name
    assert large.peak_flops == p.devices * spec.flops[str(name)]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", device_names())
def test_no_step_computes_above_its_peak(kind: str, precision: str) -> None:
    for seed in range(2):
        check(seed, kind, precision)


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", device_names())
def test_no_step_of_many_computes_above_its_peak(kind: str, precision: str) -> None:
    for seed in range(2, 32):
        check(seed, kind, precision)


def test_a_perfect_device_has_the_whole_peak_in_either_precision() -> None:
    """At an efficiency of 1, with memory that takes no time, MFU of wide products is almost 1."""
    for precision, rate in (("bfloat16", 10**14), ("float8", 2 * 10**14)):
        flops = {"bfloat16": Fraction(10**14), "float8": Fraction(2 * 10**14)}
        spec = {
            "kind": "ideal", "flops": {name: int(rate) for name, rate in flops.items()},
            "memory_bandwidth": "1 PB/s", "launch": 0,
            "efficiency": {"default": {"any": {"compute": 1, "memory": 1, "overhead": 0}}},
        }  # fmt: skip
        scenario = {
            "graph": {"model": "llama2-7b", "layers": 2, "length": 512, "precision": precision},
            "cluster": {"devices": [{"name": "gpu:0", "kind": "ideal"}]}, "devices": spec,
            "strategy": {"pipeline": {"microbatch": 8}},
        }  # fmt: skip
        training = simdev.run(simdev.load_scenario(scenario)).training
        assert training.large.peak_flops == rate
        # In float8 the classifier and attention run in bfloat16, at half the rate.
        assert (0.99 if precision == "bfloat16" else 0.75) < training.mfu <= 1


def told(capsys: pytest.CaptureFixture[str], line: str) -> str:
    assert main(line.split()) in (0, 1)
    return capsys.readouterr().out


def test_text_and_json_name_the_peak(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert "% of the bfloat16 peak; " in told(capsys, LINE)
    assert json.loads(told(capsys, f"{LINE} --json"))["training"]["peak_dtype"] == "bfloat16"
    plain, narrow = (
        simdev.run(
            simdev.load_scenario(
                {
                    "graph": {"model": "llama2-7b", "layers": 2, "precision": precision},
                    "cluster": "dgx-h100",
                    "strategy": {"pipeline": {"tp": 8, "microbatch": 4}},
                }
            )
        )
        for precision in ("bfloat16", "float8")
    )
    assert "of the float8 peak; " in str(narrow)
    ratio = narrow.training.large.peak_flops / plain.training.large.peak_flops
    assert ratio == pytest.approx(1979 / 989)
    assert narrow.training.mfu * ratio > plain.training.mfu


def test_plans_name_the_peak(capsys: pytest.CaptureFixture[str]) -> None:
    line = "plan llama3.2-1b --cluster dgx-h100 --global-batch 8 --top 1 --set tp=8 --set zero=1"
    assert "MFU: the share of the bfloat16 peak" in told(capsys, line)
    (row,) = json.loads(told(capsys, f"{line} --json"))["plans"]
    assert row["peak_dtype"] == "bfloat16"
