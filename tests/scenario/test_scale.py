"""Questions that are too large are refused before they are lowered, in one line that tells why."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from simdev import load_scenario, oracle_of, run
from simdev.commands import main
from simdev.execution.scenario import Scenario, execute
from simdev.ground.errors import InputError
from simdev.nouns.models.large import Transformer
from simdev.nouns.scale import Scale, parse_limit, scale_of, scale_of_large, scale_of_pipeline
from worlds.scenarios import lenet, pipelined

NEEDS = r"options\.limit: the step needs about [0-9,]+ tasks, .*s and .*iB; the limit is "


def small(sync: str = "bucketed", **options: Any) -> Scenario:
    question = lenet({"preset": "dgx-h100", "nodes": 2}, 64, sync=sync)
    return load_scenario(question | {"options": options})


def large(**options: Any) -> Scenario:
    question = pipelined({"model": "gpt-1.7b"}, pp=2, dp=2, tp=2, microbatches=8)
    return load_scenario(question | {"options": options})


def cut(zero: int, bucket: int = 500_000, microbatches: int = 2) -> Scenario:
    """The gradients of each layer of a large model in many buckets."""
    scenario = large()
    assert scenario.strategy.pipeline is not None
    told = {"zero": zero, "bucket": bucket, "microbatches": microbatches}
    pipeline = replace(scenario.strategy.pipeline, **told)
    return replace(scenario, strategy=replace(scenario.strategy, pipeline=pipeline))


def guess(scenario: Scenario) -> Scale:
    if isinstance(scenario.graph, Transformer):
        assert scenario.strategy.pipeline is not None
        question = scenario.graph, scenario.strategy.pipeline, scenario.cluster
        return scale_of_large(*question, scenario.symmetry)
    repeats = scenario.steps == "repeated"
    return scale_of(scenario.graph, scenario.cluster, scenario.strategy, repeats)


SCENARIOS: list[Callable[[], Scenario]] = [
    small,
    partial(small, "all-reduce"),
    partial(small, "parameter-server"),
    partial(small, "sharded"),
    partial(small, steps="repeated"),
    large,
    partial(large, symmetry=False),
    partial(cut, 2),
    partial(cut, 3),
    lambda: replace(cut(2), symmetry=False),
]


@pytest.mark.parametrize("make", SCENARIOS)
def test_a_guess_is_near_what_is_lowered(make: Callable[[], Scenario]) -> None:
    scenario = make()
    tasks = len(execute(scenario).trace.task_graph.tasks)
    assert tasks / 3 < guess(scenario).tasks < 3 * tasks


@pytest.mark.parametrize("make", [small, large])
def test_what_takes_too_long_is_refused(make: Callable[[], Scenario]) -> None:
    scenario = make()
    with pytest.raises(InputError, match=NEEDS + "1 ms") as refusal:
        run(replace(scenario, limit="1 ms"))
    assert len(refusal.value.problems) == 1
    answer = run(scenario).step_ps
    assert run(replace(scenario, limit="none")).step_ps == answer
    assert run(replace(scenario, limit="3600 s")).step_ps == answer


def test_buckets_too_many_are_refused_before_they_are_made() -> None:
    for zero in (2, 3):
        with pytest.raises(InputError, match=NEEDS + "60 s") as refusal:
            run(cut(zero, bucket=1))
        assert len(refusal.value.problems) == 1
        with pytest.raises(InputError, match=r"pipeline\.bucket: the step lowers to more than 10,"):
            run(replace(cut(zero, bucket=1), limit="none"))
    assert guess(cut(1, bucket=1)).tasks == guess(cut(1)).tasks


def test_more_memory_than_there_is_is_refused_whatever_the_time() -> None:
    scale = Scale(1, 1.0, 2**60)
    with pytest.raises(InputError, match="this machine has"):
        scale.require(parse_limit("3600 s"))
    scale.require(math.inf)


def test_an_oracle_refuses_what_splits_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simdev.oracle.SHARDS", 100)
    with pytest.raises(InputError, match=NEEDS):
        oracle_of(small(limit="1 ms"))("data-parallel")


def test_a_file_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    ops = ",".join(['{"name": "op", "outputs": []}'] * 600_000)
    path = tmp_path / "graph.json"
    # No JSON: it would be refused for that, had anybody looked.
    path.write_text(f'{{"graph": {{"ops": [{ops}')
    with pytest.raises(InputError, match=NEEDS + "60 s"):
        load_scenario(path)
    with pytest.raises(InputError, match="line 1"):
        load_scenario(path, limit="none")
    document = {"version": 1, "graph": str(path), "cluster": "dgx-h100", "strategy": {"version": 1}}
    with pytest.raises(InputError, match=NEEDS + "60 s"):
        load_scenario(document)


def test_the_command_line_takes_a_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "scenario.json"
    path.write_text(
        json.dumps(
            {
                "version": 1,
                "graph": {"model": "lenet", "batch": 8},
                "cluster": "c4140-4x-v100",
                "strategy": {"version": 1, "short": "data-parallel"},
            }
        )
    )
    stages = ["--stages", "64", "--microbatches", "10000", "--forward", "1ms", "--backward", "2ms"]
    for command, expected in (
        (["simulate", str(path), "--limit", "1 us"], "--limit: the step needs about"),
        (["simulate", str(path), "--limit", "soon"], "--limit: "),
        (["pipeline", *stages], "--limit: the step needs about 2,560,000 tasks"),
    ):
        assert main(command) == 2
        assert expected in capsys.readouterr().err
    assert main(["simulate", str(path), "--limit", "none"]) == 0


def test_split_backwards_are_actions_of_their_own() -> None:
    assert scale_of_pipeline(100, True).tasks == 600
    assert scale_of_pipeline(100, False).tasks == 400


def test_a_limit_is_a_time() -> None:
    assert parse_limit("120 s") == 120
    for wrong in ("many", -1):
        with pytest.raises(InputError, match=r"^limit: "):
            replace(small(), limit=wrong)
    with pytest.raises(InputError, match=r"options\.limit: "):
        small(limit="many")
