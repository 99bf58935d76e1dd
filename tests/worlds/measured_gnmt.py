"""Baechi's measured GNMT graph with memory and groups, for placers (peers/baechi_gnmt)."""

from __future__ import annotations

import gzip
import json
from fractions import Fraction
from functools import cache

from peers import PEERS
from simdev.nouns.cluster import Cluster, Device
from simdev.nouns.graph import Graph, Op, Tensor

DATA = PEERS / "baechi_gnmt"


@cache
def gnmt() -> Graph:
    """2,494 ops in the order of the file, in TensorFlow's colocation groups."""
    with gzip.open(DATA / "gnmt_v2_forward.json.gz", "rt") as file:
        record = json.load(file)
    inputs: list[list[str]] = [[] for _ in record["nodes"]]
    for edge in record["edges"]:
        for tensor in edge["tensors"]:
            output = int(tensor["name"].rpartition(":")[2])
            inputs[edge["dst"]].append(f"op{edge['src']}:{output}")
    ops = [
        Op(
            f"op{node['id']}",
            inputs=tuple(inputs[node["id"]]),
            outputs=tuple(map(Tensor, node["output_bytes"])),
            param_bytes=node["persistent_bytes"],
            workspace_bytes=node["temp_bytes"],
            colocate=node["tf_colocation"][0],
            time=f"{node['us']} us",
        )
        for node in record["nodes"]
    ]
    return Graph("GNMT", tuple(ops))


def cluster(queues: str, memory: int | None = None) -> Cluster:
    """Four devices; a transfer takes 134 us and 0.0001754 us per byte."""
    devices = [Device(f"gpu:{d}", memory=memory) for d in range(4)]
    rate = Fraction(10**6) / Fraction("0.0001754")
    return Cluster.all_to_all("baechi", devices, queues, bandwidth=rate, latency="134 us")


@cache
def golden() -> dict:
    with gzip.open(DATA / "golden.json.gz", "rt") as file:
        return json.load(file)
