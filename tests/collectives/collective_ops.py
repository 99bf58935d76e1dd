"""Clusters, graphs and runs of collective ops that their tests share."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from simdev.costs import CostModel
from simdev.lowering import lower
from simdev.nouns.cluster import Cluster, Device, Link
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.strategy import Strategy
from simdev.nouns.taskgraph import TaskGraph
from worlds.task_graphs import judged


def mesh(ranks: int, queues: str, **link: Any) -> Cluster:
    link = {"bandwidth": 10**9, "latency": "3 us"} | link
    return Cluster.all_to_all("mesh", [Device(f"g{i}") for i in range(ranks)], queues, **link)


def two_nodes(local: int, queues: str, nodes: int = 2) -> Cluster:
    """A cluster of nodes, each of ``local`` GPUs around a switch; a core switch joins the nodes."""
    count = local * nodes
    devices = [Device(f"g{i}", node=i // local, transit=False) for i in range(count)]
    devices += [Device(f"s{node}", "switch", node=node) for node in range(nodes)] + [
        Device("core", "switch")
    ]
    links = [Link((f"g{i}", f"s{i // local}"), 10**10, "1 us") for i in range(count)]
    links += [Link((f"s{node}", "core"), 10**9, "5 us") for node in range(nodes)]
    return Cluster("nodes", tuple(devices), tuple(links), queues)


def operands(kind: str, ranks: int, size: int) -> tuple[list[int], list[int]]:
    """The bytes of the inputs and of the outputs of a collective of ``size`` bytes, which must be a
    multiple of ``ranks``.
    """
    match kind:
        case "all_gather":
            return [size // ranks] * ranks, [size] * ranks
        case "reduce_scatter":
            return [size] * ranks, [size // ranks] * ranks
        case "broadcast" | "p2p":
            return [size], [size] * (ranks - 1)
        case "reduce":
            return [size] * ranks, [size]
        case _:
            return [size] * ranks, [size] * ranks


def collective(
    name: str, kind: str, ranks: Sequence[str], size: int, **attrs: Any
) -> tuple[list[Op], dict[str, str]]:
    """A collective op with the ops that make its inputs, and their placement."""
    read, made = operands(kind, len(ranks), size)
    sources = [Op(f"{name}_in{i}", outputs=(Tensor(one),), time=0) for i, one in enumerate(read)]
    inputs = tuple(op.name for op in sources)
    whole = Op(
        name,
        kind,
        inputs=inputs,
        outputs=tuple(map(Tensor, made)),
        attrs={"ranks": list(ranks)} | attrs,
    )
    return [*sources, whole], dict(zip(inputs, ranks, strict=False)) | {name: ranks[0]}


def lowered(cluster: Cluster, kind: str, size: int, ranks: int = 0, **attrs: Any) -> TaskGraph:
    names = [device.name for device in cluster.devices if device.runs_ops][: ranks or None]
    ops, place = collective("c", kind, names, size, **attrs)
    return lower(Graph("one", tuple(ops)), cluster, CostModel(), Strategy(place))


def seconds(cluster: Cluster, kind: str, size: int, ranks: int = 0, **attrs: Any) -> Fraction:
    return Fraction(judged(lowered(cluster, kind, size, ranks, **attrs)).end_ps, 10**12)


ALPHA, RATE, SIZE = Fraction(3, 10**6), 10**9, 24 * 10**5


FORMS = {
    # collective, algorithm: rounds, and bytes of each over S
    ("all_reduce", "ring"): lambda n: (2 * (n - 1), Fraction(1, n)),
    ("all_gather", "ring"): lambda n: (n - 1, Fraction(1, n)),
    ("reduce_scatter", "ring"): lambda n: (n - 1, Fraction(1, n)),
    ("all_to_all", "ring"): lambda n: (n - 1, Fraction(1, n)),
    ("all_reduce", "tree"): lambda n: (2 * (n - 1).bit_length(), Fraction(1)),
    ("broadcast", "tree"): lambda n: ((n - 1).bit_length(), Fraction(1)),
    ("reduce", "tree"): lambda n: ((n - 1).bit_length(), Fraction(1)),
    ("all_gather", "tree"): lambda n: (
        (n - 1).bit_length(),
        Fraction(n - 1, n * (n - 1).bit_length()),
    ),
    ("reduce_scatter", "tree"): lambda n: (
        (n - 1).bit_length(),
        Fraction(n - 1, n * (n - 1).bit_length()),
    ),
    ("p2p", "ring"): lambda n: (1, Fraction(1)),
}
