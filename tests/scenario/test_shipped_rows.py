"""Large models take the measured rows that ship for their devices, by every door, unless somebody
asks for datasheets alone.
"""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import simdev
from simdev.commands import main
from simdev.costs import CostModel
from simdev.costs.collectives import collective_model
from simdev.execution.scenario import Scenario, load_scenario
from simdev.files import read_device, read_preset, read_profile
from simdev.files.device import device_presets
from simdev.files.examples import examples_folder
from simdev.files.profile import shipped_rows
from simdev.lowering.hybrid import Timings
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.models.large import large_model
from simdev.nouns.models.large.kernels import Kernel, Like
from simdev.nouns.semantics.keys import load_of
from simdev.nouns.strategy import Strategy
from simdev.nouns.strategy.parallelism import Parallelism
from simdev.report.whatif import what_ifs
from simdev.search.sweep import sweep

SIZES = {"layers": 2, "length": 2048}
PLAN = {"dp": 4, "tp": 2, "microbatches": 2}
QUESTION = {
    "graph": {"model": "llama3.2-1b", **SIZES}, "cluster": "dgx-h100",
    "strategy": {"pipeline": PLAN},
}  # fmt: skip
DATASHEET = QUESTION | {"profile": []}
LINE = "simulate --model llama3-8b --cluster dgx-h100 --tp 8 --json"
STACKS = {
    # layers, hidden, heads, key heads, inner; batch, length; ms of forward and backward, measured
    # (profiles/h100/measured/steps.jsonl)
    "llama-1b": (16, 2048, 32, 8, 8192, 4, 2048, 38.1658 + 72.1106),
    "llama3-8b-4l": (4, 4096, 32, 8, 14336, 1, 4096, 15.6332 + 29.4558),
    "llama-70b-1l": (1, 8192, 64, 8, 28672, 1, 4096, 15.2355 + 28.9270),
}


def rungs(question: dict[str, Any]) -> dict[str, float]:
    return dict(simdev.run(load_scenario(question)).costs)


def python(costs: CostModel, cluster: str = "dgx-h100") -> Scenario:
    strategy = Strategy(pipeline=Parallelism(**PLAN))
    return Scenario(large_model("llama3.2-1b", **SIZES), read_preset(cluster), costs, strategy)


def test_every_door_takes_the_rows_that_ship(capsys: pytest.CaptureFixture[str]) -> None:
    report = simdev.run(load_scenario(QUESTION))
    assert report.costs["interpolated"] > 0.5
    assert "% interpolated" in str(report)
    assert report.to_json()["costs"] == report.costs
    assert simdev.run(python(CostModel())).step_ps == report.step_ps
    rows = sweep([QUESTION, DATASHEET], n_jobs=1)
    sheet = simdev.run(load_scenario(DATASHEET))
    assert list(rows["step_time_ps"]) == [report.step_ps, sheet.step_ps]
    assert main(LINE.split()) == 0
    assert json.loads(capsys.readouterr().out)["costs"]["interpolated"] > 0.5
    fixed = {**PLAN, "zero": 1, "schedule": "1F1B", "recompute": "none", "microbatch": 1, "cp": 1}
    fixed.pop("microbatches")
    plans = [
        simdev.plan(QUESTION["graph"], "dgx-h100", 8, options=fixed, top=1, **more)
        for more in ({}, {"profile": []})
    ]
    assert [plan["step_time_ps"][0] for plan in plans] == list(rows["step_time_ps"])
    assert "interpolated" in plans[0]["op_times"][0]
    assert plans[1]["op_times"][0] == "100% roofline"
    # The scenario of a plan asks as its question did.
    assert [load_scenario(plan["scenario"][0]).costs.shipped is None for plan in plans] == [
        False,
        True,
    ]


def test_datasheets_alone_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    sheet = simdev.run(load_scenario(DATASHEET))
    assert sheet.costs == {"roofline": 1.0}
    assert simdev.run(python(CostModel(()))).step_ps == sheet.step_ps
    assert main([*LINE.split(), "--datasheet"]) == 0
    assert json.loads(capsys.readouterr().out)["costs"] == {"roofline": 1.0}
    line = "plan llama3.2-1b --cluster dgx-h100 --global-batch 8 --top 1 --set tp=8 --set zero=1"
    assert main([*line.split(), "--datasheet", "--set", "pp=1"]) == 0
    assert "op times of the best: 100% roofline" in capsys.readouterr().out
    assert main(["simulate", "llama3-70b-64x-h100", "--datasheet"]) == 2
    assert "--datasheet: goes with --model" in capsys.readouterr().err


@pytest.mark.parametrize("cluster", ["dgx-a100-80", "dgx-b200", "mi300x-8x", "p3-16xlarge"])
def test_devices_without_rows_stay_with_their_datasheet(cluster: str) -> None:
    """Rows of another kind of device are not carried over unasked."""
    question = QUESTION | {"cluster": cluster}
    assert rungs(question) == rungs(question | {"profile": []}) == {"roofline": 1.0}


def test_each_kind_of_device_has_rows_of_its_own() -> None:
    """Beside an H100 an A100 takes as long as beside another A100."""

    def forwards(*kinds: str, **more: Any) -> list[int]:
        devices = [{"name": f"gpu:{i}", "kind": kind} for i, kind in enumerate(kinds)]
        links = {"all_to_all": {"bandwidth": "100 GB/s"}}
        question = QUESTION | {"cluster": {"devices": devices, "links": links}}
        question |= {"strategy": {"pipeline": {"pp": 2, "microbatches": 2}}} | more
        return [s.terms["forward"] for s in simdev.run(load_scenario(question)).training.stages]

    mixed, a100, h100 = (
        forwards(*kinds) for kinds in (("a100-80", "h100-sxm"), ("a100-80",) * 2, ("h100-sxm",) * 2)
    )
    assert mixed == [a100[0], h100[1]]
    assert h100[1] != forwards("h100-sxm", "h100-sxm", profile=[])[1]


def test_a_kind_may_take_the_rows_of_another_by_the_ratio_of_both_datasheets() -> None:
    """A product that arithmetic bounds takes 79 / 58.9 times as long where 500 W are the cap."""

    def seconds(kind: str, cluster: str, m: int, k: int) -> float:
        scenario = load_scenario(QUESTION | {"cluster": cluster})
        timings = Timings(collective_model(scenario.cluster), scenario.costs)
        like = Like("matmul", [[m, k], [4096, k]], [[m, 4096]], attrs={"transpose_b": True})
        sizes = 2 * (m * k + 4096 * k), 2 * m * 4096
        load = Kernel("qkv", "gemm", "bfloat16", 2 * m * k * 4096, *sizes, "", op=like)
        part = timings.part(kind, load)
        assert part.rung != "roofline"
        return part.seconds

    for m, k, ratio in ((16_384, 4096, 0.79 / 0.589), (64, 16_384, 3350 / 2400)):
        capped = seconds("h100-500w", "h100-500w-8x", m, k)
        assert capped / seconds("h100-sxm", "dgx-h100", m, k) == pytest.approx(ratio, rel=0.05)


def test_an_op_of_a_graph_is_as_much_slower_under_a_cap_as_a_kernel_of_a_large_model() -> None:
    """Attention that arithmetic bounds takes 0.92 / 0.686 times as long where 500 W are the cap:
    no datasheet tells its efficiency, so the clocks do.
    """
    specs = [read_device("h100-sxm"), read_device("h100-500w")]
    costs = CostModel(shipped_rows(["h100-sxm"]), specs)
    heads = Tensor(2 * 32 * 8192 * 128 * 2, (2, 32, 8192, 128), "bfloat16")
    sums = Tensor(4 * 2 * 32 * 8192, (2, 32, 8192), "float32")
    ops = [Op(name, "input", outputs=(heads,)) for name in "qkv"]
    kind = "scaled_dot_product_cudnn_attention"
    ops.append(Op("a", kind, inputs=tuple("qkv"), outputs=(heads, sums)))
    graph = Graph("attention", tuple(ops))
    fast, capped = [costs.cost(graph, 3, kind) for kind in ("h100-sxm", "h100-500w")]
    assert fast is not None
    assert capped is not None
    assert float(capped.seconds / fast.seconds) == pytest.approx(0.92 / 0.686, rel=0.01)


def test_rows_that_are_given_stand_alone(tmp_path: Path) -> None:
    names = {Path(path).name.partition(".")[0] for path in others("")}
    assert {"linears", "grid-attention-bfloat16", "llama-1b", "llama-70b-1l"} <= names
    assert not {"grid-gemm", "resnet-50"} & names
    empty = tmp_path / "none.jsonl"
    empty.write_text("")
    assert rungs(QUESTION | {"profile": [str(empty)]}) == {"roofline": 1.0}
    assert shipped_rows(["gpu", "../h100", "*", ""]) == ()


def test_graphs_take_no_rows_unasked() -> None:
    graph = {"model": "gpt2-small", "batch": 1, "length": 64}
    question = {"graph": graph, "cluster": "dgx-h100", "strategy": {"placement": {"*": "gpu:0"}}}
    assert rungs(question).keys() == {"roofline"}
    # What a large model's scenario found is not handed on to a graph.
    large, small = load_scenario(QUESTION), load_scenario(question)
    assert large.costs.profiles
    assert not replace(small, costs=large.costs).costs.profiles


@pytest.mark.parametrize("name", STACKS)
def test_the_rows_are_nearer_to_measured_stacks_than_the_datasheet(name: str) -> None:
    """Stacks of decoder layers on one H100, their own rows left out; the other rows that ship are
    within 6.5 %.
    """
    layers, hidden, heads, keys, inner, batch, length, measured = STACKS[name]
    graph = {
        "model": "llama3-8b", "layers": layers, "hidden": hidden, "heads": heads, "kv_heads": keys,
        "inner": inner, "vocabulary": 32_000, "length": length, "causal": True,
    }  # fmt: skip
    one = {"devices": [{"name": "gpu:0", "kind": "h100-sxm"}], "links": []}
    question = {"graph": graph, "cluster": one}
    question |= {"strategy": {"pipeline": {"microbatch": batch, "zero": 0}}}
    # The stack ran by PyTorch's kernels, fewer of them fused, so that it is a little slower.
    errors = []
    for more in ({"profile": others(name)}, {"profile": []}):
        terms = simdev.run(load_scenario(question | more)).training.terms
        errors.append(abs(1000 * (terms["forward"] + terms["backward"]) / measured - 1))
    assert errors[0] < 0.065
    assert errors[0] < errors[1] - 0.03


def others(name: str) -> list[str]:
    """The profiles that ship for an H100, but that of a stack."""
    folder, own = examples_folder() / "profiles" / "h100", f"{name}.h100-sxm.jsonl"
    paths = [*folder.glob("grids/*.jsonl"), *folder.glob("*.jsonl")]
    shipped = shipped_rows(["h100-sxm"])
    return [str(p) for p in sorted(paths) if p.name != own and read_profile(p) in shipped]


@pytest.mark.parametrize("name", ["llama-1b", "llama3-8b-4l", "llama-70b-1l"])
def test_rows_that_attend_to_all_tell_of_causal_attention(name: str) -> None:
    """The grid has no causal row; its kernels compute all pairs, those of the stacks half of
    them.
    """
    folder = examples_folder() / "profiles" / "h100"
    costs = CostModel(folder / "grids" / "grid-attention-bfloat16.h100-sxm.jsonl", device_presets())
    ratios = []
    for key, row in read_profile(folder / f"{name}.h100-sxm.jsonl").rows.items():
        load = load_of(key)
        if load is not None and load.mark == "causal":
            cost = costs.cost_of_key(key, load.kind, "h100-sxm")
            assert cost is not None
            ratios.append(float(cost.seconds / row.device_seconds()))
    assert len(ratios) == 2
    assert 0.78 < min(ratios) <= max(ratios) < 1.15


def test_measured_rows_follow_a_datasheet_that_changes() -> None:
    """Twice the FLOP/s and the bandwidth of memory help a step by rows as one by datasheets, and
    never harm.
    """
    scenario = load_scenario(QUESTION)
    report = simdev.run(scenario)
    gains = {w.name: w.gain for w in what_ifs(report, scenario=scenario) if w.kind == "resource"}
    assert gains["FLOP/s"] > 0.1
    assert gains["device memory"] > 0
    spec = next(s for s in scenario.costs.specs if s.kind == "h100-sxm")
    halves = {name: rate / 2 for name, rate in spec.flops.items()}
    slower = replace(spec, flops=halves, memory_bandwidth=Fraction(spec.memory_bandwidth) / 2)
    by_hand = simdev.run(replace(scenario, costs=CostModel(specs=(slower,)))).step_ps
    assert by_hand > 1.5 * report.step_ps
    assert (
        simdev.run(replace(scenario, costs=replace(scenario.costs, specs=(slower,)))).step_ps
        == by_hand
    )
    wider = replace(spec, memory=2 * (spec.memory or 0))
    assert simdev.run(replace(scenario, costs=CostModel(specs=(wider,)))).step_ps == report.step_ps
