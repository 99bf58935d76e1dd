"""Placers and partitioners, by their answers and the seconds they take: ``python -m
benchmarks.placers [--quick]``.

- Baechi's measured GNMT on four devices, in both kinds of queues: every placer, with and without
  its preparation; then each device's memory at 72 and 30 % of what a single device needs.
- Training steps of Inception-V3 and GNMT on Baechi's testbed, with all and with 30 % of its memory.
- How long m-SCT takes, its linear program included: GNMT fused and unfused, and nine copies of it.
- OptCNN: the seconds to build cost tables and to eliminate, in a fresh process of costs and again.
- Tofu: the seconds of its search, and the bytes beside those of what it was compared with.

CPU seconds of one core. ``--quick`` leaves out the slow rows.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any

from simdev import Oracle, load_scenario
from simdev.nouns.cluster import Cluster, Device
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.search import search
from simdev.search.tofu.coarse import Coarse
from simdev.search.tofu.plan import communication, recursive

from .common import GNMT, figure, machine, print_table, timed

PLACERS = (
    "single",
    "round-robin",
    "heft",
    "critical-path",
    "m-topo",
    "m-etf",
    "m-sct",
    "cross-entropy",
    "greedy",
    "annealing",
)
SEARCHES = ("cross-entropy", "greedy", "annealing")
QUICK = ("single", "m-topo", "m-etf", "m-sct")
BAECHI = ("m-topo", "m-etf", "m-sct")
TRAINED: dict[str, dict[str, Any]] = {
    "inception-v3": {"model": "inception-v3", "batch": 32},
    "gnmt": {"model": "gnmt", "batch": 128, "length": 40, "vocabulary": 30000},
}
COPIES = 9  # of GNMT: 22,446 ops
COLUMNS = ["method", "queues", "step ms", "CPU s", "peak MB", "memory"]
MEMORY = (Fraction(72, 100), Fraction(30, 100))
TARGETS = {"m-sct, fused": 0.35, "m-sct, unfused": 1.5, "m-sct, 22,446 ops, fused": 5.0}
P100 = {"preset": "flexflow-p100", "nodes": 1}
OPTCNN = {"vgg-16": 0.1, "inception-v3": 0.4}
RNN_10 = {"model": "rnnlm", "layers": 10, "hidden": 4096, "batch": 512, "length": 20}
WRESNET_152 = {"model": "wresnet-152", "widen": 10, "batch": 8}
TOFU: dict[str, tuple[dict[str, Any], float]] = {
    "WResNet-152-10": (WRESNET_152, 8.3),
    "RNN-10-4K": (RNN_10, 66.6),
}


@cache
def gnmt(copies: int = 1) -> Graph:
    """Baechi's GNMT in the order of its file, with its memory and TensorFlow's groups; several side
    by side.
    """
    with gzip.open(GNMT, "rt") as file:
        record = json.load(file)
    inputs: list[list[tuple[int, int]]] = [[] for _ in record["nodes"]]
    for edge in record["edges"]:
        inputs[edge["dst"]] += [
            (edge["src"], int(one["name"].rpartition(":")[2])) for one in edge["tensors"]
        ]
    ops = [
        Op(
            f"op{node['id']}_{copy}",
            inputs=tuple(
                f"op{producer}_{copy}:{output}" for producer, output in inputs[node["id"]]
            ),
            outputs=tuple(map(Tensor, node["output_bytes"])),
            param_bytes=node["persistent_bytes"],
            workspace_bytes=node["temp_bytes"],
            colocate=f"{node['tf_colocation'][0]}_{copy}",
            time=f"{node['us']} us",
        )
        for copy in range(copies)
        for node in record["nodes"]
    ]
    return Graph("GNMT", tuple(ops))


def asked(queues: str, memory: int | None = None, copies: int = 1) -> Oracle:
    """GNMT on four devices, 0.0001754 us a byte and 134 us a transfer."""
    rate = Fraction(10**6) / Fraction("0.0001754")
    devices = [Device(f"gpu:{d}", memory=memory) for d in range(4)]
    return Oracle(
        gnmt(copies),
        Cluster.all_to_all("baechi", devices, queues, bandwidth=rate, latency="134 us"),
    )


def placements(methods: Sequence[str]) -> Iterator[list[str]]:
    """A row for each method and kind of queues: step, CPU seconds, bytes at the peak, whether it
    fits.
    """
    for queues in ("half-duplex", "parallel"):
        for method in methods:
            ways: list[list[str] | None] = [None] if method not in BAECHI else [None, []]
            for prepare in ways:
                coarse = ["coplace"] if method in SEARCHES else prepare
                name = f"{method} (bare)" if prepare == [] else method
                yield [name, queues, *answer(asked(queues), method, coarse)]
    whole = max(search(asked("parallel"), "single").cost.peaks)
    for share in MEMORY:
        for method in methods:
            yield [
                f"{method}, {float(share):.0%} memory",
                "parallel",
                *answer(asked("parallel", int(whole * share)), method, None),
            ]


def trained() -> Iterator[list[str]]:
    """A row for each model, memory, kind of queues and method, on training steps."""
    for model, graph in TRAINED.items():
        placed = {"placement": {"*": "gpu:0"}}
        one = load_scenario(
            {"version": 1, "graph": graph, "cluster": "4x-rtx-2080", "strategy": placed}
        )
        for percent, queues in product((100, 30), ("half-duplex", "parallel")):
            devices = [
                replace(d, memory=int(d.memory or 0) * percent // 100) for d in one.cluster.devices
            ]
            cluster = replace(one.cluster, queues=queues, devices=tuple(devices))
            for method in ("single", "expert", *BAECHI):
                told = answer(Oracle(one.graph, cluster, one.costs), method, None)
                yield [f"{method}, {model}, {percent} %", queues, *told]


def answer(oracle: Oracle, method: str, prepare: Sequence[str] | None) -> list[str]:
    """Step in ms, CPU seconds, MB at the peak, and what does not fit."""
    found = search(oracle, method, prepare=prepare)
    peak, told = max(found.cost.peaks), "fits" if found.cost.feasible else "does not fit"
    return [
        f"{found.cost.seconds * 1e3:.1f}",
        f"{found.provenance['cpu_seconds']:.2f}",
        f"{peak / 1e6:.0f}",
        told,
    ]


def m_sct_seconds() -> Iterator[list[str]]:
    """The seconds of m-SCT against its targets; the kernels are compiled before."""
    search(asked("half-duplex"), "m-sct")
    runs: tuple[tuple[str, int, list[str] | None], ...] = (
        ("m-sct, fused", 1, None),
        ("m-sct, unfused", 1, []),
        ("m-sct, 22,446 ops, fused", COPIES, None),
    )
    for name, copies, prepare in runs:
        oracle = asked("half-duplex", copies=copies)
        seconds = min(
            search(oracle, "m-sct", prepare=prepare).provenance["cpu_seconds"] for _ in range(3)
        )
        yield [name, "", f"{seconds:.2f}", f"{TARGETS[name]}"]


def optcnn_seconds() -> Iterator[list[str]]:
    """Tables and elimination, first with every cost unknown, then with all of them known."""
    for model, target in OPTCNN.items():
        graph = {"model": model, "batch": 128}
        scenario = load_scenario(
            {"version": 1, "graph": graph, "cluster": P100, "strategy": "data-parallel"}
        )
        oracle = Oracle(scenario.graph, scenario.cluster, scenario.costs)
        for when in ("costs unknown", "costs known"):
            told = search(oracle, "optcnn").details
            whole = told["tables_s"] + told["elimination_s"]
            parts = f"{told['tables_s']:.3f} + {told['elimination_s']:.4f}"
            yield [f"optcnn, {model}", when, parts, figure(whole), f"{target}"]


def tofu_rows() -> Iterator[list[str]]:
    """Tofu's search, and GB over all workers."""
    for name, (graph, target) in TOFU.items():
        value = {"version": 1, "graph": graph, "cluster": {"preset": "tofu-8x-k80"}}
        scenario = load_scenario(value | {"strategy": {"placement": {"*": "gpu:0"}}})
        coarse = Coarse(scenario.graph, scenario.cluster)
        seconds, _ = timed(recursive, coarse, 8)
        sent = communication(coarse, 8)
        yield [name, f"{seconds:.2f} s of {target}", *(f"{sent[one] / 1e9:.1f}" for one in sent)]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="leave out the slow rows")
    quick = parser.parse_args().quick
    print(", ".join(f"{key} {value}" for key, value in machine().items()), end="\n\n")
    rows = list(placements(QUICK if quick else PLACERS))
    print_table(COLUMNS, rows)
    print()
    print_table(["what", "", "CPU s", "target"], list(m_sct_seconds()))
    print()
    print_table(COLUMNS, list(trained()))
    print()
    print_table(["what", "", "tables + elimination, s", "s", "target"], list(optcnn_seconds()))
    print()
    print_table(
        ["model", "search", *("allrow", "spartan", "equal-chop", "icml18", "tofu")],
        list(tofu_rows()),
    )


if __name__ == "__main__":
    main()
