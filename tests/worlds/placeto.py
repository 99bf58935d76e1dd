"""Records of Placeto's released simulator as graphs and clusters of simdev."""

from __future__ import annotations

from simdev.nouns.cluster import Cluster, Device
from simdev.nouns.graph import Graph, Op, Tensor


def placeto_edges(node: dict, index: dict[str, int]) -> dict[int, int]:
    """Producer -> the output read. A control input reads output 0; where a producer occurs several
    times in the list, the last counts.
    """
    edges = {}
    for text in node["input"]:
        name, _, output = text.removeprefix("^").partition(":")
        edges[index[name]] = int(output or 0)
    return edges


def simdev_graph(
    record: dict, order: list[int], swap: dict[int, list[int]], output_zero: bool = False
) -> Graph:
    """The ops in the given order; ``swap`` renumbers the outputs of an op (new index by old)."""
    nodes = record["nodes"]
    index = {node["name"]: i for i, node in enumerate(nodes)}
    edges = [placeto_edges(node, index) for node in nodes]
    if output_zero:
        edges = [dict.fromkeys(one, 0) for one in edges]
    count = [len(node["out_bytes"]) for node in nodes]
    for one in edges:
        for producer, output in one.items():
            count[producer] = max(count[producer], output + 1)
    ops = []
    for i in order:
        node = nodes[i]
        sizes = node["out_bytes"] + [0] * (count[i] - len(node["out_bytes"]))
        renumbered = swap.get(i, range(count[i]))
        outputs = [Tensor(0)] * count[i]
        for old, new in enumerate(renumbered):
            outputs[new] = Tensor(sizes[old])
        inputs = tuple(f"op{p}:{swap[p][k] if p in swap else k}" for p, k in edges[i].items())
        ops.append(
            Op(f"op{i}", inputs=inputs, outputs=tuple(outputs), time=f"{node['cost_us']} us")
        )
    return Graph(record["name"], tuple(ops))


def cluster(record: dict, queues: str = "egress", gaps: bool = True) -> Cluster:
    params = record["params"]
    gap, link_gap = (f"{params['delta1_us']} us", f"{params['delta2_us']} us") if gaps else (0, 0)
    devices = [Device(f"d{d}", gap=gap) for d in range(record["ndev"])]
    transfer = "multicast" if queues == "egress" else "once-per-device"
    rate = params["bytes_per_us"] * 10**6
    return Cluster.all_to_all("placeto", devices, queues, transfer, bandwidth=rate, gap=link_gap)
