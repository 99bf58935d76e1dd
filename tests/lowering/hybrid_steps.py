"""Models, clusters and lowered steps that the tests of large models share."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from hypothesis import strategies as st

from simdev.costs import CostModel
from simdev.costs.collectives import CollectiveModel
from simdev.execution.engine import simulate
from simdev.execution.scenario import Outcome
from simdev.files import read_cluster
from simdev.lowering.hybrid import lower_hybrid
from simdev.nouns.cluster import Cluster
from simdev.nouns.models.large import Transformer
from simdev.nouns.strategy.parallelism import MODULES, Parallelism
from simdev.report import analyze
from worlds.costs import SPEC

SMALL = Transformer(
    "small", 8, 256, 8, 512, 1000, 128, kv_heads=4, gated=True, bias=False, norm="rms", tied=False
)


DENSE = Transformer("dense", 8, 256, 8, 1024, 1000, 128)


EXPERTS = replace(
    SMALL, name="experts", experts=8, top_k=2, expert_inner=256, shared_experts=1, dense_layers=1
)


@cache
def boxes(devices: int, nodes: int, nics: int = 0) -> Cluster:
    """A cluster of ``nodes`` nodes, each with ``devices`` devices on a switch and ``nics`` NICs
    (0: one for each device).
    """
    names = [f"gpu:{i}" for i in range(devices)]
    attach = (
        [[name for j, name in enumerate(names) if j % nics == i] for i in range(nics)]
        if nics
        else names
    )
    node = {
        "name": "boxes", "queues": "link",
        "devices": [{"name": name, "memory": "1 GiB", "transit": False} for name in names]
        + [{"name": "s:0", "kind": "switch"}],
        "links": [
            {"ends": [name, "s:0"], "bandwidth": "100 GB/s", "latency": "2 us",
            "hold_latency": False} for name in names
        ],
    }  # fmt: skip
    if nodes == 1:
        return read_cluster(node)
    return read_cluster(
        node
        | {
            "nodes": nodes,
            "network": {
                "attach": attach,
                "bandwidth": "10 GB/s",
                "latency": "9 us",
                "hold_latency": False,
            },
        }
    )


def cluster_for(count: int, nics: int = 0) -> Cluster:
    return boxes(min(count, 4), max(count // 4, 1), nics)


def lowered(
    model: Transformer, p: Parallelism, symmetry: bool = True, cluster: Cluster | None = None
):
    cluster = cluster or cluster_for(p.devices)
    return lower_hybrid(model, p, CollectiveModel(cluster), CostModel(specs=(SPEC,)), symmetry)


def report_of(
    model: Transformer, p: Parallelism, symmetry: bool = True, cluster: Cluster | None = None
):
    task_graph, plan = lowered(model, p, symmetry, cluster)
    return analyze(Outcome(simulate(task_graph, "simpy"), large=plan))


def modules(recompute: str) -> st.SearchStrategy[tuple[str, ...]]:
    """Modules for a plan to recompute; "per_op" is left out, as it only exists for dense layers
    with fused attention.
    """
    known = [name for name in MODULES if name != "per_op"]
    some = st.lists(st.sampled_from(known), min_size=1, max_size=4, unique=True).map(tuple)
    return some if recompute == "selective" else st.just(MODULES[:1])
