"""Closed forms and published examples, exact to the picosecond (Ki: the list of known answers in
docs/decisions).
"""

from __future__ import annotations

from fractions import Fraction

import pytest

from simdev.costs import CostModel
from simdev.execution.engine import simulate
from simdev.execution.engine.fair import max_min_rates
from simdev.ground.errors import InputError
from simdev.lowering import lower
from simdev.nouns.cluster import QUEUES, Cluster, Device, Link
from simdev.nouns.graph import Graph, Op
from simdev.nouns.strategy import Order, Strategy
from simdev.nouns.trace import Trace
from worlds.graphs import op
from worlds.programs import T, play, starts

SEND_ALONE = ["egress", "device", "half-duplex", "link"]


def run(
    ops: list[Op], cluster: Cluster, placement: dict[str, str], order: Order = Order()
) -> Trace:
    return simulate(lower(Graph("g", tuple(ops)), cluster, CostModel(), Strategy(placement, order)))


def joined(
    count: int, queues: str = "device", transfer: str = "once-per-device", gap: str = "0 us", **link
) -> Cluster:
    """``count`` devices, every two joined at 1 byte a picosecond unless ``link`` says otherwise."""
    link = {"bandwidth": 10**12} | link
    return Cluster.all_to_all(
        "c", [Device(f"g{d}", gap=gap) for d in range(count)], queues, transfer, **link
    )


# K1, K2, K3: one device, a chain over devices, a fork and join


@pytest.mark.parametrize("queues", QUEUES)
def test_k1_one_device_is_the_sum_of_durations_and_gaps(queues):
    ops = [op(f"o{i}", 10 + i) for i in range(7)]
    trace = run(ops, joined(1, queues, gap="3 ps"), {"*": "g0"})
    assert trace.end_ps == sum(10 + i for i in range(7)) + 6 * 3  # the last gap does not count


@pytest.mark.parametrize("queues", QUEUES)
def test_k2_a_chain_over_devices_adds_one_transfer_a_cut(queues):
    ops = [op("o0", 5, size=11)] + [op(f"o{i}", 5, f"o{i - 1}", size=11) for i in range(1, 6)]
    trace = run(ops, joined(3, queues, latency="2 ps"), {f"o{i}": f"g{i // 2}" for i in range(6)})
    assert trace.end_ps == 6 * 5 + 2 * (11 + 2)


@pytest.mark.parametrize("queues", ["parallel", "fair"])
def test_k3_fork_and_join_over_k_devices(queues):
    k = 4
    forks = [op(f"b{i}", 10 * (i + 1), "fork", size=7) for i in range(k)]
    ops = [op("fork", 5, size=7), *forks, op("join", 3, *(f"b{i}" for i in range(k)))]
    place = {"fork": "g0", "join": "g0"} | {f"b{i}": f"g{i}" for i in range(k)}
    assert run(ops, joined(k, queues), place).end_ps == 5 + 7 + 10 * k + 7 + 3


# K5, K7, K8 as task graphs: pipelines, rings, a parameter server


def gpipe(p: int, m: int, f: int, b: int, schedule: str) -> int:
    """Equal stages without communication; ``schedule`` orders each stage: all forwards first, or
    1F1B.
    """
    tasks = []
    for s in range(p):
        for i in range(m):
            tasks.append(T(f"F{s},{i}", f, f"s{s}", f"F{s - 1},{i}" if s else ""))
    for s in reversed(range(p)):
        for i in range(m):
            tasks.append(T(f"B{s},{i}", b, f"s{s}", f"B{s + 1},{i}" if s < p - 1 else f"F{s},{i}"))
    sequence = {}
    for s in range(p):
        ahead = m if schedule == "gpipe" else min(p - s, m)
        names = [f"F{s},{i}" for i in range(ahead)]
        for i in range(m):
            names += [f"B{s},{i}"] + ([f"F{s},{i + ahead}"] if i + ahead < m else [])
        sequence[f"s{s}"] = names
    return play(tasks, sequence=sequence).end_ps


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(
    ("p", "m", "f", "b"), [(4, 8, 1, 2), (2, 2, 3, 3), (8, 32, 2, 2), (1, 5, 1, 1), (4, 4, 5, 7)]
)
def test_k5_pipelines(p, m, f, b, schedule):
    assert gpipe(p, m, f, b, schedule) == (m + p - 1) * (f + b)


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_k7_ring_all_reduce(n):
    alpha, piece = 5, 40
    tasks = []
    for step in range(2 * (n - 1)):
        for rank in range(n):
            after = f"x{step - 1},{(rank - 1) % n}" if step else ""
            tasks.append(
                T(
                    f"x{step},{rank}",
                    alpha + piece,
                    [f"send {rank}", f"recv {(rank + 1) % n}"],
                    after,
                )
            )
    assert play(tasks).end_ps == 2 * (n - 1) * (alpha + piece)


@pytest.mark.parametrize(("n", "k"), [(2, 1), (4, 3), (8, 16)])
def test_k7_chain_broadcast(n, k):
    tasks = [
        T(f"x{hop},{c}", 9, [f"send {hop}", f"recv {hop + 1}"], f"x{hop - 1},{c}" if hop else "")
        for hop in range(n - 1)
        for c in range(k)
    ]
    assert play(tasks).end_ps == (n + k - 2) * 9


@pytest.mark.parametrize("n", [2, 4, 5])
def test_k8_parameter_server_with_one_network_card(n):
    size = 30
    pushes = [T(f"push{w}", size, "in") for w in range(n)]
    pulls = [T(f"pull{w}", size, "out", [f"push{v}" for v in range(n)]) for w in range(n)]
    assert play([*pushes, *pulls]).end_ps == 2 * n * size
    slices = 6
    pushes = [T(f"push{w},{s}", size // slices, "in") for s in range(slices) for w in range(n)]
    pulls = [
        T(f"pull{w},{s}", size // slices, "out", [f"push{v},{s}" for v in range(n)])
        for s in range(slices)
        for w in range(n)
    ]
    assert play([*pushes, *pulls]).end_ps == n * size + n * size // slices


# K9, K10: two flows on a link, max-min fairness


def test_k9_fifo_serves_in_turn_and_fair_ends_the_last_at_the_same_time():
    ops = [op("a", 0, size=60), op("b", 0, size=100), op("c", 1, "a"), op("d", 1, "b")]
    place = {"a": "g0", "b": "g0", "c": "g1", "d": "g1"}
    for queues in SEND_ALONE:
        trace = run(ops, joined(2, queues), place)
        assert trace.finish[4:].tolist() == [60, 160]
    assert run(ops, joined(2, "fair"), place).finish[4:].tolist() == [120, 160]


def test_k9_staggered_arrivals_have_one_busy_period_under_every_discipline():
    ops = [op("a", 0, size=60), op("b", 20, size=100), op("c", 0, "a"), op("d", 0, "b")]
    place = {"a": "g0", "b": "g0", "c": "g1", "d": "g1"}
    ends = {queues: run(ops, joined(2, queues), place).end_ps for queues in [*SEND_ALONE, "fair"]}
    assert set(ends.values()) == {160}


def shares(flows: list[list[int]], capacity: list[float]) -> list[float]:
    ptr = [0]
    for links in flows:
        ptr.append(ptr[-1] + len(links))
    rates, left, waiting = [0.0] * len(flows), [0.0] * len(capacity), [0] * len(capacity)
    ids = [link for links in flows for link in links]
    max_min_rates(
        range(len(flows)), len(flows), ptr, ids, capacity, rates, left, waiting, [0] * len(capacity)
    )
    return rates


def test_k10_max_min_by_hand():
    # Two links of 1.0 and 0.4: the flow over both and one alone on each.
    assert shares([[0, 1], [0], [1]], [1.0, 0.4]) == pytest.approx([0.2, 0.8, 0.2])
    assert shares([[0], [0], [0, 1], [1, 2]], [1.0, 0.5, 0.1]) == pytest.approx(
        [1 / 3, 1 / 3, 1 / 3, 0.1]
    )
    assert shares([[0], [0, 1], [0, 2]], [0.6, 0.1, 0.25]) == pytest.approx([0.25, 0.1, 0.25])


@pytest.mark.parametrize("seed", range(50))
def test_k10_every_flow_has_a_saturated_bottleneck(seed):
    import random

    rng = random.Random(seed)
    capacity = [rng.choice([1.0, 2.0, 0.25, 3.0]) for _ in range(5)]
    flows = [sorted(rng.sample(range(5), rng.randint(1, 3))) for _ in range(rng.randint(1, 12))]
    rates = shares(flows, capacity)
    load = [
        sum(rate for rate, links in zip(rates, flows, strict=True) if link in links)
        for link in range(5)
    ]
    assert all(used <= limit * (1 + 1e-9) for used, limit in zip(load, capacity, strict=True))
    for rate, links in zip(rates, flows, strict=True):
        assert any(
            load[link] >= capacity[link] * (1 - 1e-9)
            and rate
            >= max(r for r, other in zip(rates, flows, strict=True) if link in other) * (1 - 1e-9)
            for link in links
        )


# K11, K12: staging through the host, overlap


@pytest.mark.parametrize("queues", QUEUES)
@pytest.mark.parametrize("chunks", [1, 2, 4, 10])
def test_k11_host_staging(queues, chunks):
    size = 120
    # one channel at the host: its two directions take turns, chunks gain nothing
    if queues == "half-duplex":
        pieces = Fraction(1)
    else:
        pieces = Fraction(1, chunks)
    host = Device("host", "cpu", staging=True, chunk=size // chunks)
    links = (Link(("g0", "host"), 10**12), Link(("host", "g1"), 10**12))
    cluster = Cluster("c", (Device("g0"), Device("g1"), host), links, queues)
    trace = run([op("a", 3, size=size), op("b", 4, "a")], cluster, {"a": "g0", "b": "g1"})
    assert trace.end_ps == 3 + size * (1 + pieces) + 4


def test_k11_store_and_forward_over_unequal_links():
    links = (Link(("g0", "host"), 10**12), Link(("host", "g1"), 4 * 10**12))
    cluster = Cluster(
        "c", (Device("g0"), Device("g1"), Device("host", "cpu", staging=True)), links, "device"
    )
    assert (
        run([op("a", 0, size=120), op("b", 0, "a")], cluster, {"a": "g0", "b": "g1"}).end_ps
        == 120 + 30
    )


@pytest.mark.parametrize(("compute", "size"), [(10, 4), (4, 10), (7, 7)])
def test_k12_overlap_is_the_larger_with_a_head_and_a_tail(compute, size):
    k = 5
    ops = [op(f"c{i}", compute, size=size) for i in range(k)] + [
        op(f"r{i}", 0, f"c{i}") for i in range(k)
    ]
    trace = run(ops, joined(2), {"c*": "g0", "r*": "g1"})
    assert trace.end_ps == max(k * compute + size, compute + k * size)


# K15: degenerate cases


@pytest.mark.parametrize("queues", QUEUES)
def test_k15_nothing_takes_no_time(queues):
    assert run([], joined(1, queues), {}).end_ps == 0


@pytest.mark.parametrize("queues", QUEUES)
def test_k15_a_tensor_of_no_bytes_costs_the_latency_and_an_op_of_no_length_nothing(queues):
    trace = run(
        [op("a", 0), op("b", 0, "a")], joined(2, queues, latency="7 ps"), {"a": "g0", "b": "g1"}
    )
    assert trace.end_ps == 7


def test_k15_twenty_thousand_consumers():
    ops = [op("a", 1, size=8)] + [op(f"c{i}", 1, "a") for i in range(20_000)]
    assert run(ops, joined(2), {"a": "g0", "c*": "g1"}).end_ps == 1 + 8 + 20_000


def test_k15_cycles_and_self_loops_are_named():
    with pytest.raises(InputError, match="cycle: b -> c -> a -> b"):
        Graph("g", (op("a", 1, "c"), op("b", 1, "a"), op("c", 1, "b")))
    with pytest.raises(InputError, match="cycle: a -> a"):
        Graph("g", (op("a", 1, "a"),))


# Published examples


def flexflow_figure_4(parts_of_o3: int) -> Trace:
    """Six ops on three GPUs; o3 in two parts of 1, or in one of 2 whose output then takes 2 (Jia et
    al., figure 4).
    """
    t3 = ["t3:1", "t3:2"][:parts_of_o3]
    tasks = [
        T("t1:1", 2, "gpu1"),
        T("t1:2", 2, "gpu1"),
        T("t2:1", 2, "gpu1", "t1:1"),
        T("t2:2", 2, "gpu1", "t1:2"),
    ]
    tasks += [T(f"{t}>", 1, "link12", t) for t in ("t1:1", "t1:2", "t2:1", "t2:2")]
    arrived = [["t1:1>"], ["t1:2>"]] if parts_of_o3 == 2 else [["t1:1>", "t1:2>"]]
    tasks += [T(t, 2 // parts_of_o3, "gpu2", after) for t, after in zip(t3, arrived, strict=True)]
    tasks += [T(f"{t}>", 2 // parts_of_o3, "link23", t) for t in t3]
    tasks += [T(f"t4:{i}", 1, "gpu2", [f"t2:{i}>", t3[min(i, parts_of_o3) - 1]]) for i in (1, 2)]
    tasks += [T(f"t4:{i}>", 1, "link23", f"t4:{i}") for i in (1, 2)]
    tasks += [
        T("t5", 3, "gpu3", [f"{t}>" for t in t3]),
        T("t6", 3, "gpu3", ["t4:1>", "t4:2>", "t5"]),
    ]
    return play(tasks)


def test_flexflow_figure_4():
    trace = flexflow_figure_4(2)
    found = starts(trace)
    assert [found[t] for t in ("t1:1", "t1:2", "t2:1", "t2:2", "t3:1", "t3:2", "t4:1", "t4:2")] == [
        0,
        2,
        4,
        6,
        3,
        5,
        7,
        9,
    ]
    assert [found[f"{t}>"] for t in ("t1:1", "t1:2", "t2:1", "t2:2")] == [2, 4, 6, 8]
    assert [found[f"{t}>"] for t in ("t3:1", "t3:2", "t4:1", "t4:2")] == [4, 6, 8, 10]
    assert (found["t5"], found["t6"], trace.end_ps) == (7, 11, 14)


def test_flexflow_figure_4_with_one_configuration_changed():
    trace = flexflow_figure_4(1)
    found = starts(trace)
    assert [found[t] for t in ("t3:1", "t3:1>", "t4:1", "t4:2", "t4:1>", "t4:2>")] == [
        5,
        7,
        7,
        9,
        9,
        10,
    ]
    assert (found["t5"], found["t6"], trace.end_ps) == (9, 12, 15)


def test_bytescheduler_example():
    """Peng et al., SOSP 2019: 13.0 as published frameworks do it, 9.0 with slices and
    priorities.
    """
    assert [
        bytescheduler(policy, slices) for slices in (1, None) for policy in ("fifo", "priority")
    ] == [
        26,
        26,
        21,
        18,
    ]


def bytescheduler(policy: str, slices: int | None) -> int:
    """Three layers; in half units of time. ``slices`` None: slices of 0.5."""
    size = {2: 3, 1: 6, 0: 3}
    tasks = [
        T(f"b{layer}", 2, "gpu", f"b{layer + 1}" if layer < 2 else "", priority=layer)
        for layer in (2, 1, 0)
    ]
    for layer in (2, 1, 0):
        count = slices or size[layer]
        for s in range(count):
            length = size[layer] // count
            tasks.append(T(f"push{layer},{s}", length, "push", f"b{layer}", priority=layer))
            tasks.append(T(f"pull{layer},{s}", length, "pull", f"push{layer},{s}", priority=layer))
    for layer in (0, 1, 2):
        pulls = [f"pull{layer},{s}" for s in range(slices or size[layer])]
        tasks.append(
            T(
                f"f{layer}",
                2,
                "gpu",
                [*pulls, *([f"f{layer - 1}"] if layer else ["b0"])],
                priority=layer,
            )
        )
    return play(tasks, policy).end_ps
