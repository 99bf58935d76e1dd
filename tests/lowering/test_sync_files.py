"""Synchronisation policies of whole models, in files and on the command line."""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import fields, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from simdev.commands import main
from simdev.costs import CostModel, DeviceSpec
from simdev.execution.check import check
from simdev.execution.engine import ENGINES, simulate
from simdev.execution.scenario import Scenario, execute
from simdev.files import read_strategy, write_strategy
from simdev.ground.errors import InputError
from simdev.lowering import Prepared, iterated, lower_prepared, lower_step
from simdev.nouns.cluster import Cluster, Device
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.models import build
from simdev.nouns.models.layers import Layer
from simdev.nouns.strategy import POLICY_MEANINGS, PRESETS, Strategy, Sync, sync_policy
from simdev.oracle import Oracle
from simdev.report import run
from sync_cases import EXAMPLE, _question
from worlds.clusters import machines
from worlds.scenarios import lenet, synchronised, written

# Whole models.


@pytest.mark.parametrize("policy", PRESETS)
@pytest.mark.parametrize("queues", ["device", "fair", "half-duplex"])
def test_policies_of_a_partitioned_model(policy: str, queues: str) -> None:
    spec = DeviceSpec("gpu", {"float32": Fraction(10**12)}, Fraction(10**11))
    cluster = machines(2, queues, bandwidth="1 GB/s")
    sync = sync_policy(policy)
    sync = replace(sync, slice_parameters=20_000) if sync.slice_parameters else sync
    strategy = Strategy(short="data-parallel", sync=sync)
    prepared = Prepared(build("lenet", batch=8), cluster, CostModel(specs=(spec,)))
    step = lower_step(prepared, strategy)
    graph = iterated(step, 3)
    one, other = (simulate(graph, engine) for engine in ENGINES)
    assert np.array_equal(one.start, other.start)
    assert np.array_equal(one.finish, other.finish)
    assert check(graph, one) == ()
    assert step.across


def test_lower_takes_one_step_but_no_credit_and_the_oracle_answers_with_the_period() -> None:
    prepared, strategy = _question(EXAMPLE, machines(2, host=True), sync_policy("byte-scheduler"))
    with pytest.raises(InputError, match=r"sync\.credit: .*simulate the scenario"):
        lower_prepared(prepared, strategy)
    free = replace(strategy, sync=sync_policy("p3", slice_parameters=1))
    oracle = Oracle(prepared.graph, prepared.cluster, prepared.costs)
    for policy in (free, strategy):
        scenario = Scenario(prepared.graph, prepared.cluster, prepared.costs, policy)
        assert oracle(policy).step_ps == run(scenario).step_ps
        assert np.array_equal(oracle.trace(policy).start, execute(scenario).trace.start)
    assert simulate(lower_prepared(prepared, free)).end_ps > oracle(free).step_ps


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "sync.md"


def test_the_page_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = PAGE.read_text()
    for source in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(source, "sync.md", "exec"), {})
    assert capsys.readouterr().out.endswith("\n13.0\n9.0\n")
    for source in re.findall(r"```json\n(.*?)```", text, re.DOTALL):
        assert isinstance(read_strategy(json.loads(source)).sync, Sync)


def test_every_policy_and_setting_says_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of the page are made of this."""
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(PAGE.parents[1] / "_extensions")
    rows = dict(importlib.import_module("code_tables").rows_of("simdev.nouns.strategy.Sync"))
    assert list(rows) == [field.name for field in fields(Sync)]
    assert rows["credit_rule"].endswith(" Default: ``wait``.")
    assert rows["policy"] == "the name of the policy."
    assert not any(text.startswith(".") for text in rows.values())
    assert POLICY_MEANINGS.keys() == PRESETS.keys()


# Files, the command line, and bad input.


@pytest.mark.parametrize("policy", PRESETS)
def test_strategies_are_written_and_read(tmp_path: Path, policy: str) -> None:
    more = (
        {"message": "30 us", "servers": ("host:0", "host:1")}
        if PRESETS[policy].get("transport") is None
        else {}
    )
    strategy = Strategy(sync=sync_policy(policy, **more))
    write_strategy(strategy, tmp_path / "s.json")
    assert read_strategy(tmp_path / "s.json") == strategy


BAD = {
    "unknown policy": ({"policy": "p4"}, "sync.policy: must be one of"),
    "no policy": ({"slice_parameters": 1}, "sync.policy: missing"),
    "slice of zero": (
        {"policy": "p3", "slice_parameters": 0},
        "sync.slice_parameters: must be > 0, got 0",
    ),
    "negative credit": (
        {"policy": "p3", "credit": -1},
        "sync.credit: must not be negative, got -1",
    ),
    "credit of zero": ({"policy": "p3", "credit": 0}, "sync.credit: must be > 0, got 0"),
    "unknown servers": (
        {"policy": "p3", "servers": "moon"},
        "sync.servers: must be one of sharded, star",
    ),
    "servers of numbers": ({"policy": "p3", "servers": {"machine": 3}}, "sync.servers: must be"),
    "no such machine": (
        {"policy": "p3", "servers": {"machine": "gpu:9"}},
        'sync.servers: no device named "gpu:9"',
    ),
    "a rate of zero": ({"policy": "p3", "aggregation": 0}, "sync.aggregation: must be > 0"),
    "a rate of months": (
        {"policy": "p3", "aggregation": 1e-18},
        "sync.aggregation: to add 3360 bytes takes more than 53 days",
    ),
    "two cuts": (
        {"policy": "p3", "bucket": 9, "slice_parameters": 9},
        "sync.bucket: goes without slice_parameters",
    ),
    "rate of an all-reduce": (
        {"policy": "bucketed", "aggregation": 9},
        "sync.aggregation: goes with the transport",
    ),
    "rule without credit": (
        {"policy": "p3", "credit_rule": "skip"},
        "sync.credit_rule: means something only with",
    ),
    "unknown key": ({"policy": "p3", "slices": 3}, "sync.slices: unknown key"),
    "a text": ("p-3", "sync: must be one of all-reduce"),
    "negative message": (
        {"policy": "p3", "message": "-1 us"},
        "sync.message: must not be negative",
    ),
    "segment of zero": ({"policy": "p3", "segment": 0}, "sync.segment: must be > 0"),
}


def scenario_file(folder: Path, sync: object, **strategy: object) -> str:
    cluster = {
        "queues": "device",
        "devices": [{"name": "gpu:0", "kind": "t4"}, {"name": "gpu:1", "kind": "t4"}],
        "links": {"all_to_all": {"bandwidth": "1 GB/s"}},
    }
    return str(written(folder / "scenario.json", lenet(cluster, sync=sync, **strategy)))


@pytest.mark.parametrize("name", BAD)
def test_bad_policies_name_what_is_wrong(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sync, message = BAD[name]
    assert main(["simulate", scenario_file(tmp_path, sync)]) == 2
    told = capsys.readouterr()
    assert message in told.err
    assert not told.out


def test_a_sequence_for_what_is_sent_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    order = {"policy": "fixed", "sequence": {"send gpu:0": [], "recv gpu:1": []}}
    assert main(["simulate", scenario_file(tmp_path, {"policy": "p3"}, order=order)]) == 2
    assert (
        'order.sequence["send gpu:0"]: a synchronisation policy orders what is sent'
        in capsys.readouterr().err
    )


def test_unjoined_servers_are_told() -> None:
    devices = (Device("gpu:0"), Device("gpu:1"), Device("host:0", "cpu"))
    cluster = Cluster.all_to_all("apart", devices[:2], "device", bandwidth=8)
    apart = replace(cluster, devices=devices)
    with pytest.raises(InputError, match='sync: no route joins "gpu:'):
        execute(synchronised([Layer(1, 1, 4)], apart, sync_policy("p3", servers=("host:0",))))


def test_the_report_tells_the_period(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = scenario_file(tmp_path, {"policy": "p3", "slice_parameters": 10_000})
    assert (
        main(
            [
                "simulate",
                path,
                "--check",
                "--gantt",
                str(tmp_path / "g.png"),
                "--save",
                str(tmp_path / "r.json"),
            ]
        )
        == 0
    )
    told = capsys.readouterr()
    assert told.out.startswith("Step time ")
    assert "Steps follow one another: this is their period. First step " in told.out
    assert "no violation" in told.err
    assert (tmp_path / "g.png").stat().st_size > 10_000
    assert main(["check", str(tmp_path / "r.json")]) == 0
    capsys.readouterr()
    assert main(["simulate", path, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step_time_s"] < found["first_step_s"] <= found["trace_s"]
    assert found["steps"] == len(found["periods_s"]) + 2
    assert found["cycle"] >= 1
    assert found["transfers"]["count"] > 0


def test_what_splitting_costs_counts_one_step() -> None:
    spec = DeviceSpec("gpu", {"float32": Fraction(10**12)}, Fraction(10**11))
    graph = build("lenet", batch=8)
    told = Strategy(short="data-parallel", sync=sync_policy("sliced"))
    scenario = Scenario(graph, machines(2, bandwidth="1 GB/s"), CostModel(specs=(spec,)), told)
    sums = {one.op: one.sync_bytes for one in run(scenario).splits}
    weight = next(op for op in graph.ops if op.name == "grad/fc_5/matmul_1")
    # Two workers: one pushes to the other and gets the sum back.
    assert sums[weight.name] == 2 * weight.outputs[0].bytes


def test_only_gradients_are_synchronised() -> None:
    """An all-reduce that the forward reads stays what it is."""
    both = {"ranks": ["gpu:0", "gpu:1"]}
    ops = (
        Op("a", outputs=(Tensor(8),), time=1),
        Op("b", outputs=(Tensor(8),), time=1),
        Op("sum", "all_reduce", inputs=("a", "b"), outputs=(Tensor(8), Tensor(8)), attrs=both),
        Op("c", inputs=("sum:0",), time=1),
        Op("d", inputs=("sum:1",), time=1),
    )
    placement = {"a": "gpu:0", "b": "gpu:1", "sum": "gpu:0", "c": "gpu:0", "d": "gpu:1"}
    strategy = Strategy(placement, sync=sync_policy("p3"))
    step = lower_step(Prepared(Graph("sums", ops), machines(2), CostModel()), strategy)
    assert step.task_graph.tasks.kind[2] == "collective"
