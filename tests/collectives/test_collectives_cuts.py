"""Collectives against the cuts of the graph of links: no side gets its bytes faster than its links
carry them.

The slow test draws 2,000 graphs: ``pytest -m slow tests/collectives/test_collectives_cuts.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from collective_ops import collective
from simdev.costs import CostModel
from simdev.costs.collectives import COLLECTIVES, CollectiveModel, collective_model
from simdev.execution.engine import simulate
from simdev.files import read_preset
from simdev.ground.errors import InputError
from simdev.lowering import Prepared, lower
from simdev.lowering.hybrid.durations import EXPERT, Durations, Timings
from simdev.nouns.cluster import Cluster, Device, Link
from simdev.nouns.graph import Graph
from simdev.nouns.strategy import ALGORITHMS, Collectives, Strategy
from simdev.nouns.strategy.parallelism import Parallelism
from worlds.costs import SPEC

Case = tuple[Cluster, str, tuple[int, ...], int]
GB = 10**9


def needs(
    kind: str, ranks: Sequence[int], side: frozenset[int], size: int
) -> tuple[Fraction, Fraction]:
    """Bytes that must leave a side and enter it, whatever the algorithm: what the others want and
    only it can tell.

    Of a sum the side's own part is one value of S bytes (all_reduce, reduce), however many ranks
    add to it.
    """
    inside, count, first = sum(rank in side for rank in ranks), len(ranks), ranks[0] in side
    outside, share = count - inside, Fraction(size, count)
    match kind:
        case "all_reduce":
            return Fraction(size), Fraction(size)
        case "all_gather":
            return inside * share, outside * share
        case "reduce_scatter":
            return outside * share, inside * share
        case "all_to_all":
            return inside * outside * share, inside * outside * share
        case "reduce":
            return Fraction(0 if first else size), Fraction(size if first else 0)
        case _:  # broadcast, p2p
            return Fraction(size if first else 0), Fraction(0 if first else size)


def cut_seconds(
    cluster: Cluster, side: frozenset[int], leaving: Fraction, entering: Fraction
) -> Fraction:
    """The least time in which so many bytes cross a cut, each way and both ways together."""
    out = back = both = Fraction(0)
    for link in cluster.links:
        first, second = (cluster.index[end] in side for end in link.ends)
        if first == second:
            continue
        rate = Fraction(link.bandwidth)
        if link.duplex == "half":
            both += rate
            continue
        out += rate if link.duplex == "full" or first else 0
        back += rate if link.duplex == "full" or second else 0
    pairs = (
        (leaving, out + both),
        (entering, back + both),
        (leaving + entering, out + back + both),
    )
    return max(size / rate for size, rate in pairs if size)


def sides(cluster: Cluster, ranks: Sequence[int]) -> Iterator[frozenset[int]]:
    """Every set of devices that parts the ranks; of two halves the one without the last rank."""
    devices = [device for device in range(len(cluster.devices)) if device != ranks[-1]]
    for count in range(1, len(devices) + 1):
        for side in combinations(devices, count):
            if set(side) & set(ranks):
                yield frozenset(side)


def bound(cluster: Cluster, kind: str, ranks: Sequence[int], size: int) -> Fraction:
    """The largest of the times that the cuts of a cluster need."""
    found = (
        cut_seconds(cluster, side, *needs(kind, ranks, side, size))
        for side in sides(cluster, ranks)
    )
    return max(found)


@st.composite
def cases(draw: st.DrawFn, queues: Sequence[str] = ("link", "fair")) -> Case:
    """A collective on a random connected graph of devices and switches, some links with lanes."""
    count = draw(st.integers(2, 6))
    devices = [
        Device(f"g{i}", transit=draw(st.booleans()), node=draw(st.integers(0, 1)))
        for i in range(count)
    ]
    devices += [
        Device(f"s{i}", "switch", node=draw(st.integers(0, 2)))
        for i in range(draw(st.integers(0, 2)))
    ]
    names = [device.name for device in devices]
    pairs = {(names[draw(st.integers(0, i - 1))], names[i]) for i in range(1, len(names))}
    pairs |= set(draw(st.lists(st.sampled_from(list(combinations(names, 2))), max_size=8)))
    links = [
        Link(
            pair,
            draw(st.sampled_from([1, 2, 10, 43, 200])) * GB,
            draw(st.sampled_from([0, "1 us", "20 us"])),
            duplex=draw(st.sampled_from(["full", "full", "full", "half"])),
            hold_latency=draw(st.booleans()),
            lanes=draw(st.sampled_from([None, 1, 2, 3])),
        )
        for pair in sorted(pairs)
    ]
    cluster = Cluster("random", tuple(devices), tuple(links), draw(st.sampled_from(queues)))
    kind = draw(st.sampled_from(COLLECTIVES))
    ranks = draw(st.permutations(range(count)))[
        : 2 if kind == "p2p" else draw(st.integers(2, count))
    ]
    return cluster, kind, tuple(ranks), draw(st.sampled_from([0, 1, 1000, 12345, 10**6, 10**9]))


def answers(case: Case) -> Iterator[tuple[str, Fraction]]:
    """What every door says, in seconds: large models, then ops by every algorithm."""
    cluster, kind, ranks, size = case
    model, prepared = CollectiveModel(cluster), Prepared(Graph("none", ()), cluster, CostModel())
    try:
        yield "large model", model.cost(kind, ranks, size).seconds
    except InputError as error:
        assume("no route" not in str(error))
        raise
    by_node = Counter(cluster.devices[rank].node for rank in ranks)
    for algorithm in ALGORITHMS:
        uneven = algorithm == "hierarchical" and len(set(by_node.values())) > 1 and kind != "p2p"
        if uneven or (algorithm, kind) == ("tree", "all_to_all"):
            continue
        try:
            ring = prepared.communicators.ring(kind, ranks, size, algorithm)
        except InputError as error:
            assume("no route" in str(error))
            continue
        ps = ring.duration_ps
        if cluster.queues == "fair":
            slowest = min(
                Fraction(cluster.half_links[one].link.bandwidth) for one in ring.half_links
            )
            ps += ring.bytes * 10**12 / slowest
        yield algorithm, Fraction(ps, 10**12)


def require_bound(case: Case) -> None:
    cluster, kind, ranks, size = case
    least = bound(cluster, kind, ranks, size) if size else Fraction(0)
    for door, seconds in answers(case):
        # A flow of whole bytes may be one short, and its time is told to the picosecond.
        assert seconds * (1 + Fraction(1, 10**6)) + Fraction(1, 10**9) >= least, door


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_no_cut_carries_more_than_its_links(case: Case) -> None:
    require_bound(case)


@pytest.mark.slow
@settings(max_examples=2_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_no_cut_carries_more_than_its_links_in_two_thousand_graphs(case: Case) -> None:
    require_bound(case)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases(("device", "half-duplex", "egress")))
def test_no_device_sends_faster_than_its_fastest_link(case: Case) -> None:
    """Where transfers queue for devices, the cuts around one device count: it serves in turn."""
    cluster, kind, ranks, size = case
    ends = {
        rank: [Fraction(x.bandwidth) for x in cluster.links if cluster.devices[rank].name in x.ends]
        for rank in ranks
    }
    for door, seconds in answers(case):
        for rank in ranks:
            leaving, entering = needs(kind, ranks, frozenset([rank]), size)
            carried = {
                "device": max(leaving, entering),
                "half-duplex": leaving + entering,
                "egress": leaving,
            }
            assert seconds >= carried[cluster.queues] / max(ends[rank]), door


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases(), st.sampled_from(["closed", "expanded"]))
def test_no_executed_collective_beats_a_cut(case: Case, cost: str) -> None:
    cluster, kind, ranks, size = case
    assume(size % len(ranks) == 0 and size < 10**9)
    ops, place = collective("c", kind, [cluster.devices[rank].name for rank in ranks], size)
    strategy = Strategy(place, collectives=Collectives(cost=cost))
    try:
        step = simulate(lower(Graph("one", tuple(ops)), cluster, CostModel(), strategy)).end_ps
    except InputError as error:
        assume("no route" not in str(error))
        raise
    least = bound(cluster, kind, ranks, size) if size else Fraction(0)
    assert Fraction(step, 10**12) * (1 + Fraction(1, 10**6)) + Fraction(1, 10**9) >= least


# The cases of one machine


@pytest.mark.parametrize("queues", ["link", "fair", "parallel", "device"])
def test_a_thin_link_between_two_thick_ones_decides(queues: str) -> None:
    links = [
        Link(ends, rate * GB)
        for ends, rate in ((("a", "b"), 200), (("b", "c"), 1), (("c", "d"), 200))
    ]
    cluster = Cluster("path", tuple(map(Device, "abcd")), tuple(links), queues)
    assert bound(cluster, "all_reduce", range(4), GB) == 1
    assert CollectiveModel(cluster).cost("all_reduce", "abcd", GB).seconds >= 1


def test_five_gpus_of_a_cube_mesh_gather_no_faster_than_one_nvlink_lets_them() -> None:
    """GPUs 5 and 6 get 600 MB over the one link of 21.7 GB/s that leads to them."""
    cluster = read_preset("dgx-1v")
    assert collective_model(cluster).cost("all_gather", (0, 2, 3, 5, 6), GB).seconds >= Fraction(
        276, 10_000
    )


def trunk(rate: int) -> Cluster:
    """Two nodes of eight devices around a switch each, and one link between the switches."""
    devices = [Device(f"g{i}", transit=False, node=i // 8) for i in range(16)]
    switches = [Device(f"s{node}", "switch", node=node) for node in range(2)]
    links = [Link((f"g{i}", f"s{i // 8}"), 100 * GB) for i in range(16)]
    return Cluster("trunk", (*devices, *switches), (*links, Link(("s0", "s1"), rate)), "link")


def racks() -> Cluster:
    """Two racks of two nodes of two devices; all that goes between them crosses one link."""
    devices = [Device(f"g{i}", transit=False, node=i // 2) for i in range(8)]
    switches = [Device(f"s{node}", "switch", node=node) for node in range(4)]
    links = [Link((f"g{i}", f"s{i // 2}"), 100 * GB) for i in range(8)]
    links += [Link((f"s{node}", f"r{node // 2}"), 50 * GB) for node in range(4)]
    tops = [Device(f"r{rack}", "switch", node=4) for rack in range(2)]
    return Cluster(
        "racks", (*devices, *switches, *tops), (*links, Link(("r0", "r1"), 5 * GB)), "link"
    )


@pytest.mark.parametrize(
    ("cluster", "tp"),
    [*((trunk(5 * GB), tp) for tp in (1, 2, 4)), (racks(), 2), (racks(), 4),
    (read_preset("p3-16xlarge", 2), 2)],
    ids=["trunk", "trunk tp 2", "trunk tp 4", "racks tp 2", "racks tp 4", "p3-16xlarge x 2"],
)  # fmt: skip
def test_experts_exchange_no_faster_than_what_all_groups_share(cluster: Cluster, tp: int) -> None:
    devices = sum(device.runs_ops for device in cluster.devices)
    p = Parallelism(dp=devices // tp, tp=tp, ep=devices // tp)
    kind = next(device.kind for device in cluster.devices if device.runs_ops)
    size = 2**26
    costs = CostModel(specs=(replace(SPEC, kind=kind),))
    durations = Durations(p, Timings(collective_model(cluster), costs))
    grid, column = (
        durations.grid,
        durations.columns[durations.collective(EXPERT, 0, "all_to_all", size)],
    )
    last = cluster.devices[grid.devices[0][-1]].node
    half = {i for i, device in enumerate(cluster.devices) if device.node <= last // 2}
    half |= {i for i, device in enumerate(cluster.devices) if device.name == "r0"}
    pairs = [needs("all_to_all", group, frozenset(half), size) for group in grid.members(EXPERT, 0)]
    least = cut_seconds(cluster, frozenset(half), *map(sum, zip(*pairs, strict=True)))
    assert int(column.max()) >= least * 10**12
    assert int(column.max()) <= 1.5 * least * 10**12
