"""What stands beside the answer of a search: one device, the own placement, a proved bound."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from simdev.commands import main
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.strategy import sync_policy
from simdev.oracle import Oracle
from simdev.search.space import least_ps
from toys import TIMES, toy
from worlds.clusters import joined
from worlds.scenarios import question, written


def test_no_placement_is_under_the_bound() -> None:
    oracle = toy()
    groups, devices = len(oracle.groups), len(oracle.cluster.devices)
    steps = [oracle(np.array(each)).step_ps for each in product(range(devices), repeat=groups)]
    least = least_ps(oracle)
    # source 3, a 13, c 12, sink 4: each where it is fastest.
    assert least == 32 <= min(steps)
    assert len(TIMES) == groups


def even(count: int, phase: str = "forward", **settings: object) -> Oracle:
    ops = tuple(Op(f"op{i}", phase=phase, time="1 us", outputs=(Tensor(0),)) for i in range(count))
    cluster = joined(["a", "b"], bandwidth="1 GB/s")
    return Oracle(Graph("even", ops), cluster, **settings)  # type: ignore[arg-type]


def test_work_is_shared_out_evenly() -> None:
    oracle = even(5)
    assert least_ps(oracle) == 2_500_000
    assert oracle([0, 1, 0, 1, 0]).step_ps == 3_000_000


def test_microbatches_repeat_the_work_and_updates_do_not() -> None:
    assert least_ps(even(4, accumulate=3)) == 6_000_000
    assert least_ps(even(4, "update", accumulate=3)) == 2_000_000
    assert even(4, accumulate=3)([0, 1, 0, 1]).step_ps == 6_000_000


@pytest.mark.parametrize("settings", [{"steps": "repeated"}, {"sync": sync_policy("p3")}])
def test_of_steps_that_follow_one_another_nothing_is_proved(settings: dict[str, object]) -> None:
    assert least_ps(even(2, **settings)) is None


CHAIN = question(
    {
        "ops": [
            {"name": "a", "time": "1 ms", "outputs": [{"bytes": "1 MB"}]},
            {"name": "b", "time": "1 ms", "inputs": ["a"]},
        ]
    },
    {
        "devices": [{"name": "gpu:0"}, {"name": "gpu:1"}],
        "links": {"all_to_all": {"bandwidth": "1 GB/s"}},
    },
    {"a": "gpu:0", "b": "gpu:0"},
)


@pytest.mark.parametrize(
    ("method", "lines"),
    [
        ("single", ["one device: 2 ms; no placement is under 2 ms: this is the best"]),
        (
            "round-robin",
            [
                "one device: 2 ms; no placement is under 2 ms",
                "worse than one device and the scenario's strategy: try --method annealing, "
                "which begins at the better of them",
            ],
        ),
    ],
)
def test_the_marks_are_printed_and_a_loser_says_what_to_try(
    method: str, lines: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s.json"
    written(path, CHAIN)
    assert main(["search", str(path), "--method", method]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[1] == "the scenario's strategy: 2 ms"
    assert printed[2 : 2 + len(lines)] == lines
    assert not printed[2 + len(lines)].startswith("worse")
    assert main(["search", str(path), "--method", method, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    names = ("present_step_time_s", "single_step_time_s", "bound_step_time_s")
    assert [answer[name] for name in names] == [0.002] * 3
