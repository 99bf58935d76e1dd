"""Random training steps on random clusters, to be answered with and without symmetry."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from simdev import Scenario
from simdev.costs import CostModel
from simdev.execution.period import simulate_strategy
from simdev.execution.scenario import outcome_of, prepare
from simdev.files.device import read_device
from simdev.lowering.symmetry.quotient import Quotient, quotient_of
from simdev.nouns.cluster import Cluster, Device, Host, Link
from simdev.nouns.graph import Graph
from simdev.nouns.memory import MemoryModel
from simdev.nouns.models.backward import training_graph
from simdev.nouns.models.builder import StepBuilder
from simdev.nouns.models.ops import batch_norm, cross_entropy, layer_norm, linear, relu, tanh
from simdev.nouns.strategy import Collectives, Order, Strategy
from simdev.report import Report, analyze, run
from worlds.tape import Tape

# Fields that differ where one device represents others: they hold names and tasks.
OF_DEVICES = ("critical_path", "symmetry", "task", "buffer", "live", "engine")


@cache
def costs() -> CostModel:
    return CostModel(specs=(read_device("v100"), read_device("p4000")))


def net(tape: Tape, batch: int) -> Graph:
    """A random net of layers with branches; few different widths make many equal times."""
    step = StepBuilder("net", "float32", tape.pick("momentum", "adam"))
    values = [step.input("x", batch, 8)]
    for layer in range(1 + tape.number(4)):
        with step.scope(f"layer_{layer}"):
            x = linear(values[-1], 8, "fc", bias=bool(tape.number(2)))
            for after in (tape.pick(relu, tanh, batch_norm, layer_norm),) * tape.number(2):
                x = after(x)
            values.append(x + tape.pick(*values) if tape.number(2) else x)
    labels = step.input("labels", batch, dtype="int64")
    return training_graph(cross_entropy(linear(values[-1], 4, "head"), labels))


def devices(tape: Tape, count: int, far: int) -> list[Device]:
    """Mostly equal devices; some are slower, smaller or have a gap."""
    odd = [
        {"kind": "p4000"},
        {"memory": 3000},
        {"memory": 10**6},
        {"gap": "3 us"},
        {"host": Host("none")},
    ]
    made = []
    for i in range(count):
        fields: dict[str, Any] = {"kind": "v100", "memory": 4000, "node": i // 4}
        if tape.number(8) < far:
            fields |= tape.pick(*odd)
        made.append(Device(f"gpu:{i}", **fields))
    return made


def cluster(tape: Tape, count: int, far: int = 1) -> Cluster:
    queues = tape.pick("link", "half-duplex", "device", "egress", "parallel")
    # A ring of unequal links around a switch: rings, trees and levels use different links.
    gpus = devices(tape, count, far)
    links = [
        Link((gpu.name, "switch"), tape.pick("10 GB/s", "1 GB/s"), tape.pick("1 us", "0 us"))
        for gpu in gpus
    ]
    links += [
        Link((gpus[i].name, gpus[i + 1].name), "5 GB/s") for i in range(0, count - 1, 1 + far)
    ]
    hosted = Host("eager", ahead=tape.pick(1, 3, 1024)) if tape.number(3) == 1 else None
    spare = [Device("spare", "v100", memory=4000)] * tape.number(2)
    switch = [Device("switch", "switch")]
    return Cluster("random", (*gpus, *spare, *switch), tuple(links), queues, host=hosted)


def world(content: bytes, far: int = 1) -> Scenario:
    """A random data-parallel scenario; of eight devices, ``far`` differ on average."""
    tape = Tape(content)
    count = tape.pick(6, 7, 8, 9, 12)
    graph = net(tape, count * tape.pick(1, 2, 3))
    order = tape.pick("fifo", "program", "priority")
    ranked = {op.name: tape.number(3) for op in graph.ops} if order == "priority" else {}
    strategy = Strategy(
        short="data-parallel",
        devices=tuple(f"gpu:{i}" for i in range(count)),
        sync=tape.pick("", "all-reduce"),
        order=Order(order, ranked),
        collectives=Collectives(tape.pick("ring", "tree", "auto"), slowdown=tape.pick(1, 1, 1.3)),
        accumulate=tape.pick(1, 1, 3),
    )
    memory = tape.pick(
        MemoryModel(),
        MemoryModel("outputs_only"),
        MemoryModel(rounding="pytorch"),
        MemoryModel(framework="pytorch"),
    )
    on = cluster(tape, count, far)
    steps = tape.pick("once", "once", "repeated")
    return Scenario(graph, on, costs(), strategy, memory=memory, steps=steps)


def reduced(scenario: Scenario, engine: str = "simpy") -> Report | str:
    """The report of the devices that represent all, or the reason why none represents others."""
    prepared = prepare(scenario)
    quotient = quotient_of(prepared, scenario.strategy, fewest=3)
    if not isinstance(quotient, Quotient):
        return "not worth it" if quotient is None else quotient.why
    there = quotient.prepared, quotient.strategy
    trace, step = simulate_strategy(*there, engine, scenario.steps)
    outcome = outcome_of(*there, trace, step, quotient.symmetry, prepared)
    return analyze(replace(outcome, strategy=scenario.strategy, scenario=scenario))


def expanded(scenario: Scenario, engine: str = "simpy") -> Report:
    return run(replace(scenario, symmetry=False, engine=engine, limit="none"))


def figures(report: Report) -> Any:
    """A report's content without fields that name devices or their tasks."""
    return _without(report.to_json())


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without(v) for k, v in value.items() if k not in OF_DEVICES}
    if isinstance(value, list):
        return [_without(v) for v in value]
    return value
