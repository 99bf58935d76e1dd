"""Synchronisation policies where it gets narrow: staging devices, hand-written sums, too much, and
nothing to do.
"""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from simdev.commands import main
from simdev.costs import CostModel
from simdev.execution.check import check
from simdev.execution.period import step_time_ps
from simdev.execution.scenario import Scenario, execute
from simdev.ground.errors import InputError
from simdev.nouns.cluster import QUEUES, Cluster, Device, Link
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.memory import MemoryModel
from simdev.nouns.models.layers import Layer, layer_graph
from simdev.nouns.strategy import PRESETS, Collectives, Strategy, sync_policy
from simdev.report import run
from worlds.clusters import machines
from worlds.runs import executed
from worlds.scenarios import synchronised

NAMES = ["gpu:0", "gpu:1"]
LAYER = [Layer(1, 1, 2)]
SERVERS = [name for name, preset in PRESETS.items() if preset.get("transport") != "all-reduce"]


def staged(queues: str, chunk: int | None) -> Cluster:
    """Two GPUs that reach each other through the memory of a host, 8 bytes a second each way."""
    devices = (*map(Device, NAMES), Device("host", "cpu", staging=True, chunk=chunk))
    return Cluster("staged", devices, tuple(Link((name, "host"), 8) for name in NAMES), queues)


@pytest.mark.parametrize("policy", SERVERS)
@pytest.mark.parametrize("chunk", [None, 5])
@pytest.mark.parametrize("queues", QUEUES)
def test_messages_pass_staging_devices(queues: str, chunk: int | None, policy: str) -> None:
    """What arrives at the host leaves it again, and lies in its memory in between."""
    layers = [Layer(1, 1, 7), Layer(1, 2, 3)]
    outcome = executed(
        synchronised(layers, staged(queues, chunk), sync_policy(policy, segment=3), "auto")
    )
    buffers = outcome.trace.task_graph.buffers
    kinds = {
        buffers.device[row] for row, name in enumerate(buffers.name) if name.endswith(" staged")
    }
    assert kinds == {2}


@pytest.mark.parametrize(("chunk", "seconds"), [(None, 6), (4, 5), (2, Fraction(9, 2))])
def test_chunks_of_a_staging_device_overlap(chunk: int | None, seconds: Fraction) -> None:
    """8 bytes to the server and back over two links each: 2 s each way whole, S/B + chunk/B in
    chunks.
    """
    outcome = executed(
        synchronised(LAYER, staged("link", chunk), sync_policy("p3", servers="star"), "auto")
    )
    assert step_time_ps(outcome.trace) == seconds * 10**12
    peak = (
        run(synchronised(LAYER, staged("link", chunk), sync_policy("p3", servers="star"), "auto"))
        .devices[2]
        .memory.peak
    )
    assert peak == (8 if chunk is None else 2 * chunk)


@pytest.mark.parametrize("policy", PRESETS)
def test_the_bytes_of_a_policy_are_checked_where_only_outputs_count(policy: str) -> None:
    scenario = replace(
        synchronised(LAYER, machines(2), sync_policy(policy), "auto"),
        memory=MemoryModel(model="outputs_only"),
    )
    buffers = executed(scenario).trace.task_graph.buffers
    added = [
        row for row, filler in enumerate(buffers.name) if "received" in filler or "on gpu" in filler
    ]
    assert added
    assert not buffers.bytes[added].any()
    assert buffers.requested_bytes[added].all()


def by_hand(size: int = 40, **changes: Any) -> Scenario:
    """Two workers with a parameter each; the sum of their gradients, and one of activations, are
    written by hand.
    """
    ops: list[Op] = []
    place: dict[str, str] = {}
    for r, name in enumerate(NAMES):
        ops += [
            Op(f"w{r}", "parameter", outputs=(Tensor(size),), param_bytes=size, time=0),
            Op(f"f{r}", inputs=(f"w{r}",), outputs=(Tensor(8),), time=1),
            Op(f"g{r}", inputs=(f"act:{r}",), outputs=(Tensor(8),), time=1),
            Op(f"b{r}", phase="backward", inputs=(f"g{r}",), outputs=(Tensor(size),), time=1),
            Op(f"u{r}", phase="update", inputs=(f"w{r}", f"s:{r}"), time=0),
        ]
        place |= {f"{kind}{r}": name for kind in "wfgbu"}
    ranks = {"ranks": NAMES}
    ops.append(Op("act", "all_reduce", inputs=("f0", "f1"), outputs=(Tensor(8),) * 2, attrs=ranks))
    told = {"inputs": ("b0", "b1"), "outputs": (Tensor(size),) * 2, "attrs": ranks} | changes
    ops.append(Op("s", "all_reduce", "backward", **told))
    place |= {"act": "gpu:0", "s": "gpu:0"}
    strategy = Strategy(place, sync=sync_policy("p3"))
    return Scenario(Graph("by hand", tuple(ops)), machines(2), CostModel(), strategy)


@pytest.mark.parametrize("cost", ["closed", "expanded"])
@pytest.mark.parametrize("queues", QUEUES)
def test_other_collectives_run_in_every_step(queues: str, cost: str) -> None:
    """The checker knows the collectives of the second step from those of the first."""
    scenario = by_hand()
    strategy = replace(scenario.strategy, collectives=Collectives(cost=cost))
    outcome = executed(replace(scenario, cluster=machines(2, queues), strategy=strategy))
    tasks = outcome.trace.task_graph.tasks
    assert outcome.synchronised == 1
    if cost == "closed" and queues == "fair":
        return  # The bytes of a flow stand for its time.
    # A message of a later step that brings too little is found.
    size = tasks.bytes.copy()
    last = max(row for row, kind in enumerate(tasks.kind) if kind == "collective")
    size[last] -= 1
    wrong = replace(outcome.trace.task_graph, tasks=replace(tasks, bytes=size))
    assert {one.rule for one in check(wrong, replace(outcome.trace, task_graph=wrong))} >= {"bytes"}


BAD = {
    "one device twice": (
        {"attrs": {"ranks": ["gpu:0", "gpu:0"]}},
        r"ops\[11\]\.attrs\.ranks: must name two devices",
    ),
    "lists as names": (
        {"attrs": {"ranks": [["gpu:0"], "gpu:1"]}},
        r"ops\[11\]\.attrs\.ranks: must name two devices",
    ),
    "unknown": (
        {"attrs": {"ranks": ["gpu:0", "moon"]}},
        r'attrs\.ranks\[1\]: no device that runs ops is named "moon"',
    ),
    "two sizes": (
        {"outputs": (Tensor(40), Tensor(4))},
        r"ops\[11\]\.inputs: all inputs and outputs must have the same",
    ),
    "one gradient": (
        {"inputs": ("b0",)},
        r"ops\[11\]\.inputs: 2 ranks need as many inputs and outputs",
    ),
    "algorithm": (
        {"attrs": {"ranks": NAMES, "algorithm": "star"}},
        r"attrs\.algorithm: must be one of auto, ring",
    ),
    "swapped": (
        {"inputs": ("b1", "b0")},
        r'"s": inputs\[0\]: "b1:0" lies on gpu:1, rank 0 is gpu:0',
    ),
    "the same twice": (
        {"inputs": ("b0", "b0")},
        r'"s": inputs\[1\]: "b0:0" lies on gpu:0, rank 1 is gpu:1',
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_sums_are_told_under_a_policy_too(name: str) -> None:
    changes, message = BAD[name]
    with pytest.raises(InputError, match=message):
        execute(by_hand(**changes))


@pytest.mark.parametrize("policy", ["p3", "bucketed"])
def test_a_slowdown_is_refused_under_every_policy(policy: str) -> None:
    scenario = synchronised(LAYER, machines(2), sync_policy(policy), "auto")
    strategy = replace(scenario.strategy, collectives=Collectives(slowdown=Fraction(13, 10)))
    with pytest.raises(
        InputError, match=r"collectives\.slowdown: a synchronisation policy does not know it"
    ):
        execute(replace(scenario, strategy=strategy))


@pytest.mark.parametrize("settings", [{"slice_parameters": 1}, {"segment": 1}])
def test_too_many_slices_are_refused_before_they_are_written(settings: dict[str, int]) -> None:
    with pytest.raises(
        InputError, match=r"sync: slice_parameters and segment cut what a step sends into .* parts"
    ):
        execute(
            synchronised([Layer(1, 1, 10**11)], machines(2), sync_policy("p3", **settings), "auto")
        )
    assert (
        execute(
            synchronised([Layer(1, 1, 10**6)], machines(2), sync_policy("bucketed"), "auto")
        ).trace.task_graph.steps
        > 1
    )


def test_large_steps_are_simulated_fewer_times(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = synchronised(LAYER, machines(2), sync_policy("p3"), "auto")
    outcome = execute(scenario)
    assert outcome.trace.task_graph.steps == 8
    step = len(outcome.trace.start) // 8
    monkeypatch.setattr("simdev.lowering.steps.MAX_TASKS", 5 * step)
    found = run(scenario)
    assert found.steady is not None
    assert found.steady.steps == 4
    assert not found.steady.repeats
    assert "NOT STEADY after 4 steps" in "".join(found.steady.lines())
    monkeypatch.setattr("simdev.lowering.steps.MAX_TASKS", 3 * step)
    with pytest.raises(InputError, match="4 steps lower to more than"):
        execute(scenario)


def test_a_policy_with_nothing_to_synchronise_says_so() -> None:
    graph, placement = layer_graph([Layer(1, 1, 2)], NAMES[:1])
    report = run(
        Scenario(graph, machines(2), CostModel(), Strategy(placement, sync=sync_policy("p3")))
    )
    assert "No gradient is synchronised" in str(report)
    assert report.to_json()["synchronised_gradients"] == 0
    assert "No gradient" not in str(
        run(synchronised(LAYER, machines(2), sync_policy("p3"), "auto"))
    )


@pytest.mark.parametrize("value", [0, 2**61, True, 1.5])
@pytest.mark.parametrize("name", ["slice_parameters", "even_parameters"])
def test_numbers_out_of_range_are_told_as_such(name: str, value: Any) -> None:
    reason = "> 0" if value in (0, 2**61) and value is not True else "a whole number"
    with pytest.raises(InputError, match=rf"sync\.{name}: must be {reason}"):
        sync_policy("p3", **{name: value})


def test_a_saved_run_with_a_collective_of_no_task_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    question = {
        "version": 1,
        "graph": {"model": "lenet", "batch": 8},
        "cluster": "dgx-1v",
        "strategy": {"version": 1, "short": "data-parallel", "sync": {"policy": "bucketed"}},
    }
    scenario, saved = tmp_path / "scenario.json", tmp_path / "run.json"
    scenario.write_text(json.dumps(question))
    assert main(["simulate", str(scenario), "--save", str(saved)]) == 0
    run_file = json.loads(saved.read_text())
    run_file["tasks"]["op"][run_file["tasks"]["kind"].index("collective")] = 10**6
    saved.write_text(json.dumps(run_file))
    capsys.readouterr()
    assert main(["check", str(saved)]) == 2
    assert "must be from -1 to" in capsys.readouterr().err
    assert main(["compare", str(scenario), str(scenario)]) == 0
    assert "B (scenario.json) takes as long as A (scenario.json)" in capsys.readouterr().out
