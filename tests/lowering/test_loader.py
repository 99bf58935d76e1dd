"""The loader: batches made on a host and copied to the devices, beside the step before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simdev.costs import CostModel
from simdev.execution.check import check
from simdev.execution.engine import simulate
from simdev.execution.scenario import Scenario
from simdev.files import read_strategy, write_strategy
from simdev.ground.errors import InputError
from simdev.nouns.cluster import Cluster, Device, Link
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.strategy import Loader, Strategy
from simdev.oracle import Oracle
from simdev.report import run

MIB = 2**20


def machine(gpus: int = 1) -> Cluster:
    """GPUs, each joined to one host by 1 GiB/s."""
    devices = (Device("host", "host-cpu"), *(Device(f"gpu:{i}") for i in range(gpus)))
    links = tuple(Link(("host", f"gpu:{i}"), 1024 * MIB) for i in range(gpus))
    return Cluster("machine", devices, links, "link")


def step(
    loader: Loader | None, steps: str = "once", first: str = "2 ms", rest: str = "6 ms"
) -> int:
    """The step time in us of a step that reads 8 MiB of images and no bytes of labels."""
    graph = Graph(
        "net",
        (
            Op("images", "input", outputs=(Tensor(8 * MIB),)),
            Op("labels", "input", outputs=(Tensor(0),)),
            Op("first", inputs=("images",), outputs=(Tensor(4),), time="2 ms"),
            Op("rest", inputs=("first", "labels"), outputs=(Tensor(4),), time=rest),
            # As the gradient of a first layer's weights: it reads the copy that is there.
            Op("grad", phase="backward", inputs=("rest", "images"), time=0),
        ),
    )
    strategy = Strategy({op.name: "gpu:0" for op in graph.ops}, "program", loader=loader)  # type: ignore[arg-type]
    scenario = Scenario(graph, machine(), CostModel(), strategy, steps=steps)
    report = run(scenario)
    assert Oracle(graph, machine(), steps=steps)(strategy).step_ps == report.step_ps
    return report.step_ps // 10**6


COPY = 7812  # us that 8 MiB take at 1 GiB/s, rounded down


def test_a_step_alone_waits_for_its_batch() -> None:
    assert step(None) == 8000
    assert step(Loader("host")) == COPY + 8000
    assert step(Loader("host", "5 ms")) == 5000 + COPY + 8000


def test_the_next_batch_is_made_and_copied_beside_a_step() -> None:
    # 8 MiB arrive 7.8 ms after the first op has read the batch before.
    assert step(Loader("host"), "repeated") == COPY + 2000
    assert step(Loader("host"), "repeated", rest="9 ms") == 11000
    assert step(Loader("host", "5 ms"), "repeated") == 5000 + COPY + 2000


def test_each_device_of_a_data_parallel_step_gets_its_samples() -> None:
    scenario = {
        "version": 1,
        "graph": {"model": "lenet", "batch": 64},
        "cluster": "dgx-1v",
        "strategy": {"version": 1, "short": "data-parallel", "devices": ["gpu:0", "gpu:1"]},
    }
    from simdev import load_scenario

    loaded = scenario | {
        "strategy": scenario["strategy"] | {"loader": {"device": "gpu:2", "time": "3 ms"}}  # type: ignore[operator]
    }
    plain, report = (run(load_scenario(question)) for question in (scenario, loaded))
    tasks = report.trace.task_graph.tasks
    sent = [name for name, kind in zip(tasks.name, tasks.kind, strict=True) if kind == "transfer"]
    assert {name.split(">")[1] for name in sent} >= {"gpu:0", "gpu:1"}
    assert report.step_ps >= plain.step_ps + 2_900_000_000


@pytest.mark.parametrize("policy", ["bulk-synchronous", "bucketed", "p3", "local-sgd"])
def test_policies_bring_gradients_to_workers_and_not_to_the_loader(policy: str) -> None:
    """Gates of synchronised gradients are leaves, too, and no batch."""
    from simdev import load_scenario

    sync, loader = {"policy": policy}, {"device": "cpu:0", "time": "10 us"}
    question = {
        "version": 1,
        "graph": {"model": "lenet", "batch": 8},
        "cluster": "colocrl-4x-k80",
        "strategy": {"version": 1, "short": "data-parallel", "sync": sync, "loader": loader},
    }
    trace = run(load_scenario(question)).trace
    graph, names = trace.task_graph, trace.task_graph.tasks.name
    assert check(graph, trace) == ()
    assert np.array_equal(simulate(graph, "compiled").start, trace.start)
    cpu = graph.devices.index("cpu:0")
    made = {names[task].partition("~")[0] for task in np.flatnonzero(graph.tasks.duration).tolist()
            if (graph.tasks.source[task], graph.tasks.destination[task]) == (cpu, cpu)}  # fmt: skip
    held = [graph.buffers.name[row] for row in np.flatnonzero(graph.buffers.device == cpu).tolist()]
    assert made == {f"{name}#{k}" for name in ("images", "labels") for k in range(4)}
    assert not [name for name in held if "sync" in name]


@pytest.mark.parametrize(
    ("loader", "problem"),
    [
        (Loader("nowhere"), 'loader.device: no device named "nowhere"'),
        (Loader("host"), "loader: the graph has no op of kind input"),
    ],
)
def test_what_cannot_be_loaded_is_refused(loader: Loader, problem: str) -> None:
    graph = Graph("none", (Op("a", time=1),))
    with pytest.raises(InputError, match=problem):
        run(Scenario(graph, machine(), CostModel(), Strategy({"a": "gpu:0"}, loader=loader)))


def test_nothing_is_loaded_on_a_switch() -> None:
    graph, here = Graph("none", (Op("a", time=1),)), machine()
    cluster = replace(here, devices=(*here.devices, Device("sw", "switch")))
    strategy = Strategy({"a": "gpu:0"}, loader=Loader("sw"))
    with pytest.raises(InputError, match=r'^loader\.device: "sw" is a switch and runs no op$'):
        run(Scenario(graph, cluster, CostModel(), strategy))


def test_a_loader_s_time_is_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"loader\.time: must not be negative"):
        Loader("host", -1)
    with pytest.raises(InputError, match=r"loader\.device: missing"):
        read_strategy({"version": 1, "loader": {"time": "1 ms"}})
    strategy = Strategy({"*": "gpu:0"}, loader=Loader("host", "2.5 ms"))
    write_strategy(strategy, tmp_path / "s.json")
    assert read_strategy(tmp_path / "s.json") == strategy
