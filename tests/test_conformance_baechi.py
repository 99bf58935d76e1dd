"""Baechi's own simulator on its measured GNMT graph (../shared/data/baechi_gnmt) against simdev.

``parallel`` is the same model up to rounding: Baechi rounds every transfer to a microsecond. Its sequential mode is
near ``half-duplex`` but not the same: it books a channel when an op is popped from one global list, possibly before
transfers that are ready earlier, and lets the two ends of a transfer run at different times; simdev serves transfers
when they are ready and holds both ends together.
"""

from __future__ import annotations

import gzip
import json
from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest

from simdev.cluster import Cluster, Device
from simdev.engine import simulate
from simdev.graph import Graph, Op, Tensor
from simdev.lowering import Prepared
from simdev.lowering.build import build
from simdev.profile import CostModel

DATA = Path(__file__).parents[2] / "shared" / "data" / "baechi_gnmt"
pytestmark = pytest.mark.skipif(
    not DATA.exists(), reason="the measured GNMT graph (shared/data/baechi_gnmt) is not here"
)
PLACEMENTS = ["single", "random4_seed0", "block4", "m_etf"]


@cache
def gnmt() -> Graph:
    with gzip.open(DATA / "gnmt_v2_forward.json.gz", "rt") as file:
        record = json.load(file)
    outputs: list[dict[str, int]] = [{} for _ in record["nodes"]]
    inputs: list[list[str]] = [[] for _ in record["nodes"]]
    for edge in record["edges"]:
        for tensor in edge["tensors"]:
            of_producer = outputs[edge["src"]]
            of_producer.setdefault(tensor["name"], tensor["bytes"])
            inputs[edge["dst"]].append(f"op{edge['src']}:{list(of_producer).index(tensor['name'])}")
    ops = [
        Op(
            f"op{node['id']}",
            inputs=tuple(inputs[i]),
            outputs=tuple(Tensor(size) for size in outputs[i].values()),
            time=f"{node['us']} us",
        )
        for i, node in enumerate(record["nodes"])
    ]
    # Program order is the peer's topological order: its tie-break everywhere.
    return Graph("gnmt", tuple(ops[i] for i in program_order()))


@cache
def program_order() -> list[int]:
    with gzip.open(DATA / "gnmt_v2_forward.json.gz", "rt") as file:
        nodes = json.load(file)["nodes"]
    return sorted(range(len(nodes)), key=lambda i: nodes[i]["topo_order"])


def cluster(queues: str) -> Cluster:
    devices = [Device(f"gpu:{d}") for d in range(4)]
    rate = Fraction(10**6) / Fraction("0.0001754")  # 0.0001754 us a byte
    return Cluster.all_to_all("baechi", devices, queues, bandwidth=rate, latency="134 us")


@cache
def golden() -> dict:
    return json.loads((DATA / "golden.json").read_text())


def step_us(queues: str, placement: str) -> float:
    place = golden()[placement]["placement"]
    task_graph, _ = build(Prepared(gnmt(), cluster(queues), CostModel()), [place[i] for i in program_order()])
    return simulate(task_graph, "simpy").step_ps / 1e6


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_parallel_agrees_to_the_rounding_of_transfers(placement):
    peer = golden()[placement]["parallel_makespan_us"]
    mine = step_us("parallel", placement)
    print(f"{placement}: parallel {mine:.3f} us, Baechi {peer} us ({mine / peer - 1:+.5%})")
    assert mine == pytest.approx(peer, rel=2e-4)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_half_duplex_is_near_the_sequential_mode(placement):
    peer = golden()[placement]["sequential_makespan_us"]
    mine = step_us("half-duplex", placement)
    print(f"{placement}: half-duplex {mine:.3f} us, Baechi sequential {peer} us ({mine / peer - 1:+.2%})")
    assert 0.955 <= mine / peer <= 1.185
