"""Calibration gives back the costs of a run where a step holds more than its ops and transfers:
microbatches, rounds, dispatches of hosts, loaders, messages of a policy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("scipy")

from simdev import Scenario, load_scenario
from simdev.costs import CostModel
from simdev.execution.scenario import execute
from simdev.files import write_run
from simdev.ground.errors import InputError
from simdev.measure.calibrate import FIT, Calibration, Measured, calibrate, read_measured
from simdev.nouns.cluster import Cluster, Device, Host
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.strategy import Loader, Strategy
from simdev.nouns.strategy.sync import sync_policy
from simdev.nouns.trace import Trace
from simdev.report.export import export_chrome_trace

US = Fraction(1, 10**6)
LAYERS = 4


def cluster(gap: str, latency: str, bandwidth: str, host: Host | None = None) -> Cluster:
    devices = [Device(f"gpu:{r}", "gpu", gap=gap, host=host) for r in range(2)]
    devices.append(Device("host:0", "cpu", gap=gap))
    return Cluster.all_to_all("c", devices, bandwidth=bandwidth, latency=latency, queues="device")


def chain() -> tuple[Graph, dict[str, str]]:
    """Layers on alternate devices, each of two ops, and updates of weights where these are."""
    ops, placement = [Op("x", "input", outputs=(Tensor(8_000),), time=0)], {"x": "gpu:0"}

    def add(device: int, *args: Any, size: int = 0, **kwargs: Any) -> None:
        outputs = (Tensor(size),) if size else ()
        ops.append(Op(*args, outputs=outputs, host_time="2 us", **kwargs))
        placement[ops[-1].name] = f"gpu:{device}"

    for k in range(LAYERS):
        size = 1_000 * (k + 1)
        add(k % 2, f"w{k}", "parameter", size=size, param_bytes=size, time=0)
    last = "x"
    for k in range(LAYERS):
        for name, reads in ((f"f{k}", (last, f"w{k}")), (f"a{k}", (f"f{k}",))):
            add(k % 2, name, "matmul", inputs=reads, size=10_000 * (k + 1), time=f"{10 + k} us")
            last = name
    for k in reversed(range(LAYERS)):
        args = {"inputs": (last, f"f{k}"), "phase": "backward", "time": f"{14 + k} us"}
        add(k % 2, f"b{k}", "matmul", size=1_000 * (k + 1), **args)
        last = f"b{k}"
    for k in range(LAYERS):
        args = {"inputs": (f"w{k}", f"b{k}"), "phase": "update", "time": "3 us"}
        add(k % 2, f"u{k}", "sgd_update", **args)
    return Graph("g", tuple(ops)), placement


def replicas() -> tuple[Graph, dict[str, str]]:
    """Two workers, whose gradients are reduced."""
    ops, placement = list[Op](), dict[str, str]()

    def add(rank: int, name: str, kind: str, *inputs: str, size: int = 0, **kwargs: Any) -> None:
        outputs = (Tensor(size),) * (2 if kind == "all_reduce" else 1) if size else ()
        ops.append(Op(name, kind, inputs=inputs, outputs=outputs, host_time="2 us", **kwargs))
        placement[name] = f"gpu:{rank}"

    for r in range(2):
        add(r, f"x.{r}", "input", size=50_000, time=0)
        last = f"x.{r}"
        for k in range(LAYERS):
            size = 100_000 * (k + 1)
            add(r, f"w{k}.{r}", "parameter", size=size, param_bytes=size, time=0)
            add(r, f"f{k}.{r}", "matmul", last, f"w{k}.{r}", size=size, time=f"{10 + k} us")
            last = f"f{k}.{r}"
        for k in reversed(range(LAYERS)):
            later = {"phase": "backward", "time": f"{20 + k} us"}
            add(r, f"b{k}.{r}", "matmul", last, size=100_000 * (k + 1), **later)
            last = f"b{k}.{r}"
    for k in range(LAYERS):
        both = {"phase": "backward", "attrs": {"ranks": ["gpu:0", "gpu:1"]}}
        add(0, f"s{k}", "all_reduce", f"b{k}.0", f"b{k}.1", size=100_000 * (k + 1), **both)
        for r in range(2):
            end = {"phase": "update", "time": "3 us"}
            add(r, f"u{k}.{r}", "sgd_update", f"w{k}.{r}", f"s{k}:{r}", **end)
    return Graph("g", tuple(ops)), placement


def refitted(
    path: Path,
    made: tuple[Graph, dict[str, str]],
    steps: str = "once",
    host: Host | None = None,
    names: tuple[str, ...] = FIT,
    written: Callable[[Trace, Path], None] = write_run,
    **strategy: Any,
) -> Calibration:
    """A run with gaps of 1 us, latencies of 5 us and 10 GB/s, to which other numbers are fitted."""
    graph, placement = made
    plan = Strategy(placement, **strategy)
    true = cluster("1 us", "5 us", "10 GB/s", host)
    scenario = Scenario(graph, true, CostModel(), plan, steps=steps)
    written(execute(scenario).trace, path / "run.json")
    start = replace(scenario, cluster=cluster("0 us", "1 us", "25 GB/s", host))
    return calibrate(start, read_measured(path / "run.json"), names)


def fitted(calibration: Calibration) -> dict[str, Fraction]:
    """The values told, by quantity and by whether they are of links."""
    return {
        f"{'link ' if one.on_links else f'{one.of} '}{one.quantity}": one.value
        for one in calibration.parameters
        if one.fitted
    }


TRUE = {
    "gpu gap": US,
    "link gap": Fraction(0),
    "link latency": 5 * US,
    "link bandwidth": Fraction(10**10),
}


@pytest.mark.parametrize("host", [None, Host("eager", launch="1 us", ahead=4), Host("graph")])
@pytest.mark.parametrize("steps", ["once", "repeated"])
@pytest.mark.parametrize("microbatches", [1, 3])
def test_microbatches_and_hosts_give_the_costs_of_the_run(
    tmp_path: Path, microbatches: int, steps: str, host: Host | None
) -> None:
    told = refitted(tmp_path, chain(), steps, host, accumulate=microbatches)
    values = fitted(told)
    assert values == {name: TRUE[name] for name in values}
    assert {"gpu gap", "link latency", "link bandwidth"} <= values.keys()
    assert all(residual.residual_s == 0 for residual in told.residuals)
    assert told.fitted_s == told.steps_s[0]


def test_every_microbatch_tells_of_an_efficiency(tmp_path: Path) -> None:
    graph, placement = chain()
    told = refitted(tmp_path, (graph, placement), accumulate=3, names=("efficiency:gpu/matmul",))
    one = told.parameters[0]
    assert one.count == 3 * sum(op.kind == "matmul" for op in graph.ops)
    assert float(one.value) == pytest.approx(1)


def test_dispatches_leave_no_gap_of_their_device(tmp_path: Path) -> None:
    """Four ops in a chain: three gaps, though their host dispatched four times."""
    ops = [
        Op(f"o{k}", inputs=(f"o{k - 1}",) * (k > 0), outputs=(Tensor(8),), time="10 us")
        for k in range(4)
    ]
    graph = Graph("g", tuple(replace(op, host_time="1 us") for op in ops))
    told = refitted(tmp_path, (graph, {"*": "gpu:0"}), host=Host("eager"), names=("gap",))
    gap = told.parameters[0]
    assert (gap.value, gap.count) == (US, 3)


@pytest.mark.parametrize("written", [write_run, export_chrome_trace])
@pytest.mark.parametrize("loader", [None, Loader("host:0", "4 us")])
@pytest.mark.parametrize(
    "policy", ["bulk-synchronous", "parameter-server", "p3", "byteps", "local-sgd"]
)
def test_gaps_come_back_where_a_policy_sends_messages(
    tmp_path: Path, policy: str, loader: Loader | None, written: Callable[[Trace, Path], None]
) -> None:
    """Rounds of local SGD are of three steps. Messages that pass several queues share a name."""
    sync = sync_policy(policy, **({"every": 3} if policy == "local-sgd" else {}))
    told = refitted(tmp_path, replicas(), names=("gap",), written=written, sync=sync, loader=loader)
    values = fitted(told)
    assert values["gpu gap"] == US
    assert values.get("cpu gap", US) == US
    assert values.get("link gap", 0) == 0
    assert not told.uneven


def test_messages_of_a_policy_tell_nothing_of_links(tmp_path: Path) -> None:
    told = refitted(tmp_path, replicas(), sync=sync_policy("parameter-server"))
    notes = {one.quantity: one.note for one in told.parameters if one.on_links}
    assert notes["bandwidth"] == (
        "left alone: no transfer in the trace is ruled by it, and nothing is fitted to the "
        "messages of a synchronisation policy"
    )


def test_a_pipeline_is_refused() -> None:
    with pytest.raises(
        InputError, match="bandwidths and efficiencies are not fitted to a pipeline"
    ):
        calibrate(load_scenario("bert-large-4x-v100-pipeline"), Measured({"a": ((0, 1),)}))
