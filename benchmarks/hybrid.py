"""Steps of large models beside published ones, and their speed: ``python -m benchmarks.hybrid
[--json]``.

Published: Korthikanti et al. 2022 (arXiv 2205.05198, tables 4 and 5, figure 1); SimuMax's release
table v1.2 (measured on 8 B200 with Megatron-LM); Calculon's answer for its example of Megatron-1T.
Efficiencies are the same for all rows of a device and come from measurements of single operators,
none of which belongs to a step.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import simumax, vtrain
from benchmarks.accuracy import PROFILES
from benchmarks.common import machine, print_table
from simdev.costs import CostModel, DeviceSpec, Efficiency, Profile
from simdev.costs.collectives import CollectiveModel, CollectiveTable, collective_model
from simdev.execution.engine import simulate
from simdev.execution.scenario import Outcome, Scenario
from simdev.files import read_cluster, read_preset, read_profile
from simdev.files.device import datasheets
from simdev.lowering.hybrid import lower_hybrid
from simdev.nouns.cluster import Cluster
from simdev.nouns.models.large import large_model
from simdev.nouns.strategy import Parallelism, Strategy
from simdev.report import Report, analyze, run
from simdev.report.measures.training import Training

GIB = 2**30
# One set for all rows: scores are kept, ranks of the pipeline send shares (Megatron-LM's default of
# the time), replicas share out nothing.
ALIKE: dict[str, Any] = {"flash": False, "scatter_gather": True, "zero": 0}
BOTH: dict[str, Any] = ALIKE | {"recompute": "selective", "sequence_parallel": True}
FULL: dict[str, Any] = ALIKE | {"recompute": "full", "sequence_parallel": False}
NONE: dict[str, Any] = ALIKE | {"recompute": "none", "sequence_parallel": False}
ALONE: dict[str, Any] = {"vocabulary": 1, "positions": False}
"""A model of layers alone: embedding and classifier are 128 tp rows of padding."""
SMALLER: dict[str, Any] = {"tp": 8, "microbatch": 4}
LARGER: dict[str, Any] = {
    "tp": 8,
    "pp": 8,
    "microbatches": 64,
    "schedule": "Interleaved1F1B",
    "chunks": 3,
}


@dataclass(frozen=True, slots=True)
class Published:
    """A published step: seconds and GiB, None where it is not told."""

    name: str
    model: Mapping[str, Any]
    cluster: tuple[str, int]
    parallelism: Mapping[str, Any]
    seconds: float | None
    gib: float | None


def _b200(tp: int, pp: int, dp: int, ms: float, gib: float) -> Published:
    model = {"name": "llama3-70b", "layers": 12, "length": 4096}
    name = f"Llama-3 70B of 12 layers, tp {tp} pp {pp} dp {dp}"
    return _of_simumax(name, model, {"tp": tp, "pp": pp, "dp": dp}, ms, gib)


def _experts(version: int, ep: int, ms: float, gib: float) -> Published:
    # Tokens over the mean of an expert are dropped there, and the router has no bias.
    model = {"name": f"deepseek-v{version}", "layers": 4, "length": 4096, "dense_layers": 1}
    degrees = {"ep": ep, "dp": ep, "pp": 8 // ep}
    name = f"DeepSeek-V{version} of 4 layers, ep {ep} pp {8 // ep} dp {ep}"
    return _of_simumax(name, model, degrees, ms, gib)


def _of_simumax(
    name: str, model: Mapping[str, Any], degrees: Mapping[str, int], ms: float, gib: float
) -> Published:
    # Nothing overlaps: the source's launchers leave it switched off.
    p = {**degrees, "microbatches": 4, "zero": 1, "sequence_parallel": degrees.get("tp", 1) > 1}
    p |= {"overlap": False, "tensor_overlap": False}
    return Published(name, model, ("dgx-b200", 1), p, ms / 1e3, gib)


STATE = 45.5625  # GiB of parameters, gradients and optimizer state, both models (figure 1)
A100 = (
    Published(
        "22B, full recomputation",
        {"name": "gpt-22b"},
        ("dgx-a100-80", 1),
        SMALLER | FULL,
        1.42,
        None,
    ),
    Published(
        "22B, both techniques",
        {"name": "gpt-22b", "software": "megatron-2022"},
        ("dgx-a100-80", 1),
        SMALLER | BOTH,
        1.10,
        STATE + 9.5625,
    ),
    Published(
        "22B, no recomputation",
        {"name": "gpt-22b"},
        ("dgx-a100-80", 1),
        SMALLER | NONE,
        None,
        STATE + 59.25,
    ),
    Published(
        "175B, full recomputation",
        {"name": "gpt3-175b"},
        ("dgx-a100-80", 8),
        LARGER | FULL,
        18.13,
        None,
    ),
    Published(
        "175B, both techniques",
        {"name": "gpt3-175b", "software": "megatron-2022"},
        ("dgx-a100-80", 8),
        LARGER | BOTH,
        13.75,
        STATE + 12.3515625,
    ),
    Published(
        "175B, no recomputation",
        {"name": "gpt3-175b"},
        ("dgx-a100-80", 8),
        LARGER | NONE,
        None,
        STATE + 66.84375,
    ),
)
B200 = (
    _b200(1, 2, 4, 843.0, 66.55),
    _b200(2, 1, 4, 725.5, 60.68),
    _b200(4, 1, 2, 409.8, 39.07),
    _b200(8, 1, 1, 280.9, 28.29),
)
B200_EXPERTS = (
    _experts(2, 8, 366.6, 45.63),
    _experts(2, 4, 282.1, 44.70),
    _experts(3, 8, 603.2, 104.30),
    _experts(3, 4, 452.2, 114.00),
)


H100 = tuple(
    PROFILES / "h100" / "grids" / f"{name}.h100-sxm.jsonl"
    for name in (
        "linears", "grid-gemm-bfloat16", "grid-attention-bfloat16",
        "grid-norm-softmax-elementwise-bfloat16",
    )
)  # fmt: skip
COSTS = ("preset", "own operators", "carried over")
"""Whence the costs of layers: the datasheet, the source's own operators (B200), H100's grids."""


@cache
def _grids() -> tuple[Profile, ...]:
    return tuple(map(read_profile, H100))


def step(published: Published, costs: str = COSTS[0]) -> Report:
    """The simulated step of a published one, with one of COSTS."""
    cluster = read_preset(
        published.cluster[0], published.cluster[1] if published.cluster[1] > 1 else None
    )
    sizes = dict(published.model)
    model = large_model(sizes.pop("name"), **sizes)
    p = Parallelism(**published.parallelism)
    if costs == COSTS[1]:
        tables = simumax.collectives()
        own = (simumax.profile(model, p),)
        return report_of(cluster, model, p, simumax.device(), own, tables=tables)
    return report_of(cluster, model, p, profiles=_grids() if costs == COSTS[2] else ())


def report_of(
    cluster: Cluster,
    model: Any,
    parallelism: Parallelism,
    spec: DeviceSpec | None = None,
    profiles: tuple[Profile, ...] = (),
    engine: str = "auto",
    tables: tuple[CollectiveTable, ...] = (),
) -> Report:
    """A step on a cluster; ``spec`` instead of the datasheets shipped, ``tables`` of collectives
    instead of the cluster's.
    """
    told = () if spec is None else (spec,)
    kinds = [device.kind for device in cluster.devices]
    costs = CostModel(profiles, datasheets(told, kinds, profiles))
    if tables:
        task_graph, large = lower_hybrid(
            model, parallelism, CollectiveModel(cluster, tables), costs
        )
        return analyze(Outcome(simulate(task_graph, engine), large=large))
    return run(Scenario(model, cluster, costs, Strategy(pipeline=parallelism), engine))


def training_of(report: Report) -> Training:
    """The section of a large model's step."""
    assert report.training is not None
    return report.training


def _gib(report: Report) -> float:
    """The largest peak."""
    return max(stage.memory.peak for stage in training_of(report).stages) / GIB


def errors(published: Published, costs: str = COSTS[0]) -> dict[str, Any]:
    """Seconds and GiB beside the published ones, with signed relative errors.

    Where the published memory holds layers alone, that of a model of layers alone is compared with
    it, too.
    """
    report = step(published, costs)
    gib = _gib(report)
    found: dict[str, Any] = {
        "step": published.name,
        "seconds": report.seconds,
        "gib": gib,
        "mfu": training_of(report).mfu,
    }
    for name, value, told in (
        ("time", report.seconds, published.seconds),
        ("memory", gib, published.gib),
    ):
        found |= {
            f"published_{name}": told,
            f"{name}_error": None if told is None else value / told - 1,
        }
    if published in A100:
        layers = _gib(step(replace(published, model={**published.model, **ALONE}), costs))
        error = None if published.gib is None else layers / published.gib - 1
        found |= {"layers_gib": layers, "layers_error": error}
    return found


# Calculon: seconds by term, of its example 3072_t4_p64_d12_mbs4_full on its A100 of 80 GB.
CALCULON = {
    "forward": 15.4804, "backward": 30.3475, "recompute": 15.4804, "tensor": 2.9645 + 1.2441,
    "pipeline": 0.5991,
    "data": 0.6992, "update": 0.0026, "bubble": 65.0829,
}  # fmt: skip
MIDDLE = 31  # the rank that is told: without embedding and classifier, which Calculon leaves out


@cache
def calculon_step() -> Report:
    """The same step: 3,072 A100 in boxes of 8, with Calculon's rates and no latency."""
    nothing = Fraction(0)
    spec = DeviceSpec(
        "a100", {"bfloat16": Fraction(312 * 10**12)}, Fraction(2048 * 10**9), launch=nothing,
        efficiency={"default": Efficiency(Fraction("0.95"), Fraction("0.9"), nothing)},
    )  # fmt: skip
    names = [f"gpu:{i}" for i in range(8)]
    cluster = read_cluster(
        {
            "name": "calculon", "queues": "link", "nodes": 384,
            "devices": [
                *({"name": name, "kind": "a100", "memory": "80 GiB",
                "transit": False} for name in names),
                {"name": "nvswitch:0", "kind": "switch"},
            ],
            "links": [{"ends": [name, "nvswitch:0"], "bandwidth": "195 GB/s"} for name in names],
            "network": {"attach": names, "bandwidth": "25 GB/s", "efficiency": 0.9},
        }
    )  # fmt: skip
    p = Parallelism(
        tp=4, pp=64, dp=12, microbatches=64, microbatch=4, flash=False, recompute="full", zero=1,
        overlap=False,
        gradient_bytes=2,
    )  # fmt: skip
    return report_of(cluster, large_model("megatron-1t", software="megatron-2022"), p, spec)


def calculon_terms() -> list[tuple[str, float, float]]:
    """By term: Calculon's seconds and ours, of a rank in the middle."""
    terms = training_of(calculon_step()).stages[MIDDLE].terms
    return [(term, told, terms[term] / 1e12) for term, told in CALCULON.items()]


def vtrain_errors(name: str) -> NDArray[np.float64]:
    """Signed relative errors of vTrain's given steps, "single" or "multi" machine, with hosts."""
    return vtrain.errors(vtrain.given(name))


# Speed.


@dataclass(frozen=True, slots=True)
class Speed:
    """Tasks, CPU and wall seconds of lowering and simulating together, and the step that was found
    (ps).

    ``first`` are the CPU seconds of the first run, in which the cluster's routes are found and
    memory is new.
    """

    tasks: int
    first: float
    cpu: float
    wall: float
    lowering: float
    step_ps: int


LARGE_STEP = Parallelism(
    dp=16, tp=8, pp=8, microbatches=96, flash=False, recompute="selective", sequence_parallel=False
)


def speed(symmetry: bool, repeats: int = 3) -> Speed:
    """The GPT-3 175B step on 1,024 A100, built and simulated: the fastest of several runs."""
    cluster, model = read_preset("dgx-a100-80", 128), large_model("gpt3-175b")
    costs = CostModel(specs=datasheets((), [device.kind for device in cluster.devices], ()))
    found: list[Speed] = []
    for _ in range(repeats):
        collectives = collective_model(cluster)  # its answers are not kept from run to run
        wall, cpu = time.perf_counter(), time.process_time()
        task_graph, _ = lower_hybrid(model, LARGE_STEP, collectives, costs, symmetry)
        lowered = time.process_time() - cpu
        trace = simulate(task_graph, "compiled")
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        first = found[0].first if found else cpu
        found.append(Speed(len(task_graph.tasks), first, cpu, wall, lowered, trace.end_ps))
    return min(found, key=lambda one: one.cpu)


def main(arguments: list[str] | None = None) -> int:
    """Print all tables, or one object."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hybrid", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    report_of(
        read_preset("dgx-a100-80"),
        large_model("llama2-7b", layers=4),
        Parallelism(tp=8),
        engine="compiled",
    )
    every, one = speed(False), speed(True)
    if every.step_ps != one.step_ps:
        print("the steps with and without symmetry differ", file=sys.stderr)
        return 1
    rows = [errors(row) for row in A100]
    both = *B200, *B200_EXPERTS
    b200 = {costs: [errors(row, costs) for row in both] for costs in COSTS}
    carried = [errors(row, COSTS[2]) for row in A100]
    terms = calculon_terms()
    if options.json:
        speeds = {"all": every, "one of each rank": one}
        found = {
            "machine": machine(), "step_s": one.step_ps / 1e12, "a100": rows,
            "a100_carried_over": carried, "b200": b200,
            "speed": {name: {field: getattr(s, field) for field in s.__slots__} for name,
            s in speeds.items()},
            "vtrain": {name: vtrain_errors(name).tolist() for name in ("multi", "single")},
            "calculon": {term: {"calculon_s": told, "simdev_s": ours} for term, told,
            ours in terms},
        }  # fmt: skip
        print(json.dumps(found, indent=1))
        return 0
    _print_speed(every, one)
    for title, some in (
        ("A100", rows),
        ("A100, carried over from the H100", carried),
        *((f"B200, {costs}", some) for costs, some in b200.items()),
    ):
        _titled(f"{title}: simulated beside published")
        print_table(("step", "s", "published", "error", "GiB", "published", "error"), _cells(some))
    for name in ("multi", "single"):
        signed = vtrain_errors(name)
        _titled(f"vTrain, {name} node: {len(signed)} steps, {vtrain.summary(signed)}")
    body = [
        (term, f"{told:.3f}", f"{ours:.3f}", f"{ours - told:+.3f}") for term, told, ours in terms
    ]
    _titled(f"Megatron-1T on 3,072 A100: seconds of rank {MIDDLE} of the pipeline")
    print_table(("term", "Calculon", "simdev", "difference"), body)
    return 0


def _print_speed(every: Speed, one: Speed) -> None:
    body = [
        (
            name,
            f"{s.tasks:,}",
            f"{s.first:.3f}",
            f"{s.cpu:.3f}",
            f"{s.lowering:.3f}",
            f"{s.wall:.3f}",
            f"{s.tasks / s.cpu / 1e6:.2f}",
        )
        for name, s in (("all 1,024 GPUs", every), ("one of each rank", one))
    ]
    _titled(
        f"GPT-3 175B, 96 microbatches, lowered and simulated: a step of {one.step_ps / 1e12:.3f} s"
    )
    print_table(
        (
            "devices",
            "tasks",
            "first run, CPU s",
            "then",
            "of it lowering",
            "wall s",
            "million tasks/s",
        ),
        body,
    )


def _titled(title: str) -> None:
    print(f"\n{title}")


def _cells(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    def told(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    return [
        (
            row["step"], f"{row['seconds']:.4f}", told(row["published_time"], ".4f"),
            told(row["time_error"], "+.1%"),
            f"{row['gib']:.2f}", told(row["published_memory"], ".2f"), told(row["memory_error"],
            "+.1%"),
        )
        for row in rows
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
