"""Collective ops: closed forms, as one task and as messages."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collective_ops import (
    ALPHA,
    FORMS,
    RATE,
    SIZE,
    collective,
    lowered,
    mesh,
    seconds,
    two_nodes,
)
from simdev.costs import CostModel
from simdev.costs.collectives import COLLECTIVES, phases
from simdev.costs.collectives.model import CLOSED_FORMS
from simdev.execution.engine import simulate
from simdev.lowering import lower
from simdev.nouns.cluster import QUEUES, Cluster, Device, Link
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.strategy import Strategy
from worlds.task_graphs import judged

EXACT = [queues for queues in QUEUES if queues not in ("half-duplex", "fair")]


@pytest.mark.parametrize("cost", ["closed", "expanded"])
@pytest.mark.parametrize("queues", EXACT)
@pytest.mark.parametrize(("kind", "algorithm"), FORMS)
def test_k7_closed_forms_as_one_task_and_as_messages(
    kind: str, algorithm: str, queues: str, cost: str
) -> None:
    for ranks in (2,) if kind == "p2p" else (2, 3, 4, 6, 8):
        rounds, share = FORMS[kind, algorithm](ranks)
        found = seconds(mesh(ranks, queues), kind, SIZE, algorithm=algorithm, cost=cost)
        assert found == rounds * (ALPHA + share * SIZE / RATE), ranks


@pytest.mark.parametrize("cost", ["closed", "expanded"])
@pytest.mark.parametrize("queues", EXACT)
@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
def test_k7_a_chain_in_chunks(kind: str, queues: str, cost: str) -> None:
    for ranks, chunks in ((2, 1), (4, 3), (5, 12), (3, 1)):
        found = seconds(mesh(ranks, queues), kind, SIZE, cost=cost, chunks=chunks)
        assert found == (ranks + chunks - 2) * (ALPHA + Fraction(SIZE, chunks * RATE))


@pytest.mark.parametrize("queues", [*EXACT, "fair"])
def test_a_chain_is_cut_so_that_it_is_fastest(queues: str) -> None:
    best = seconds(mesh(5, queues), "broadcast", SIZE)
    assert (
        best
        <= min(seconds(mesh(5, queues), "broadcast", SIZE, chunks=k) for k in (1, 4, 16, 64, 256))
        * 1.02
    )


def test_a_chain_of_three_is_cut_into_as_many_chunks_as_are_fastest() -> None:
    found, *others = (
        seconds(mesh(3, "link"), "broadcast", 10**6, chunks=k) for k in (None, *range(14, 24))
    )
    assert found == min(others)


@pytest.mark.parametrize("cost", ["closed", "expanded"])
@pytest.mark.parametrize("queues", EXACT)
def test_two_levels_add_up(queues: str, cost: str) -> None:
    """4 ranks on each of 2 nodes: 7 us and 10 GB/s inside, 12 us and 1 GB/s between (2 and 12 us by
    the links).
    """

    def inside(share: Fraction) -> Fraction:
        return Fraction(2, 10**6) + share * SIZE / 10**10

    def between(share: Fraction) -> Fraction:
        # All places at once cross the link between the nodes, one after the other where links are
        # what is queued for.
        crossing = 4 if queues == "link" else 1
        return Fraction(12, 10**6) + crossing * share * SIZE / 10**9

    wanted = {
        "all_reduce": 6 * inside(Fraction(1, 4)) + 2 * between(Fraction(1, 8)),
        "all_gather": 3 * inside(Fraction(1, 4)) + between(Fraction(1, 8)),
        "reduce_scatter": 3 * inside(Fraction(1, 4)) + between(Fraction(1, 8)),
        "all_to_all": 3 * inside(Fraction(1, 4)) + between(Fraction(1, 2)),
    }
    for kind, closed in wanted.items():
        found = seconds(two_nodes(4, queues), kind, SIZE, algorithm="hierarchical", cost=cost)
        if queues == "link" and cost == "expanded":
            # The latency of this link is held: each of the four messages that cross it has its own.
            assert closed <= found <= closed + 2 * 3 * Fraction(12, 10**6)
        else:
            assert found == closed, kind


def test_every_rank_sends_to_all_others_in_rounds_of_their_own_or_at_once() -> None:
    """Round r to the one r + 1 places on; without rings all at once."""
    for algorithm, apart in (("ring", 1), ("direct", 0)):
        (phase,) = phases("all_to_all", algorithm, ((4, 5, 6),), 9)
        assert phase.messages == (
            (4, 5, 0), (5, 6, 0), (6, 4, 0), (4, 6, apart), (5, 4, apart), (6, 5, apart),
        )  # fmt: skip


def test_two_levels_are_the_ring_where_there_is_one() -> None:
    cluster = two_nodes(4, "link")
    for kind in COLLECTIVES[:-1]:
        assert phases(kind, "hierarchical", ((0, 1, 2, 3),), 1000) == phases(
            kind, "ring", ((0, 1, 2, 3),), 1000
        )
        assert phases(kind, "hierarchical", ((0,), (1,)), 1000) == phases(
            kind, "ring", ((0, 1),), 1000
        )
    rows = [
        lowered(cluster, "all_reduce", SIZE, 4, algorithm=one).tasks.duration
        for one in ("ring", "hierarchical")
    ]
    assert (rows[0] == rows[1]).all()


@st.composite
def questions(draw: st.DrawFn) -> tuple[Cluster, str, int, dict[str, Any]]:
    """A collective over links that are all alike; nothing divides evenly."""
    ranks, kind = draw(st.integers(2, 7)), draw(st.sampled_from(COLLECTIVES))
    ranks = 2 if kind == "p2p" else ranks
    cluster = mesh(
        ranks,
        draw(st.sampled_from(EXACT)),
        bandwidth=draw(st.sampled_from([10**9, 7 * 10**8, 123456789])),
        latency=draw(st.sampled_from([0, "1 us", "333333 ps"])),
        gap=draw(st.sampled_from([0, 0, "2 us", "100 ps"])),
        hold_latency=draw(st.booleans()),
    )
    trees = () if kind == "all_to_all" else ("tree",)
    attrs = {"algorithm": draw(st.sampled_from(("ring", "hierarchical", *trees)))}
    if kind in ("broadcast", "reduce"):
        attrs["chunks"] = draw(st.integers(1, 6))
    return cluster, kind, ranks * draw(st.integers(0, 10**6)), attrs


@settings(max_examples=120)
@given(questions())
def test_expanded_is_closed_to_the_picosecond_over_equal_links(
    question: tuple[Cluster, str, int, Any],
) -> None:
    cluster, kind, size, attrs = question
    closed, expanded = (
        simulate(lowered(cluster, kind, size, cost=cost, **attrs)).end_ps
        for cost in ("closed", "expanded")
    )
    if any(link.gap for link in cluster.links) and (
        attrs["algorithm"] == "tree" or kind not in COLLECTIVES[:3]
    ):
        # Where a round takes other links than the one before, it does not wait for its gap.
        assert expanded <= closed
    else:
        assert expanded == closed


@st.composite
def uneven(draw: st.DrawFn) -> Cluster:
    """A mesh of links of their own speeds and latencies, held or not."""
    ranks = draw(st.integers(2, 5))
    speeds, latencies = (
        st.sampled_from([10**8, 10**9, 3 * 10**9]),
        st.sampled_from([0, "1 us", "40 us"]),
    )
    links = [
        Link((f"g{a}", f"g{b}"), draw(speeds), draw(latencies), hold_latency=draw(st.booleans()))
        for a in range(ranks)
        for b in range(a + 1, ranks)
    ]
    return Cluster(
        "uneven",
        tuple(Device(f"g{i}") for i in range(ranks)),
        tuple(links),
        draw(st.sampled_from(EXACT)),
    )


@settings(max_examples=80)
@given(uneven(), st.integers(0, 10**6), st.sampled_from(COLLECTIVES[:3]))
def test_an_expanded_ring_is_closed_over_any_links(cluster: Cluster, size: int, kind: str) -> None:
    """Every step waits for its slowest message: whoever is slowest waits for itself, in each
    step.
    """
    size *= len(cluster.devices)
    both = [
        simulate(lowered(cluster, kind, size, cost=cost)).end_ps for cost in ("closed", "expanded")
    ]
    assert both[0] == both[1]


@settings(max_examples=80)
@given(
    uneven(),
    st.integers(0, 10**5),
    st.sampled_from(COLLECTIVES[:-1]),
    st.sampled_from(CLOSED_FORMS),
)
def test_no_expansion_is_slower_than_its_rounds(
    cluster: Cluster, size: int, kind: str, algorithm: str
) -> None:
    if (kind, algorithm) == ("all_to_all", "tree"):
        return
    size *= len(cluster.devices)
    attrs = {"algorithm": algorithm, "chunks": 3}
    both = [
        simulate(lowered(cluster, kind, size, cost=cost, **attrs)).end_ps
        for cost in ("closed", "expanded")
    ]
    assert both[1] <= both[0]


def test_on_half_duplex_a_ring_starts_as_a_wave() -> None:
    """Frozen, in messages: 4 (n-1) by the closed form, 5 n - 6 (n even) or 5 n - 3 (n odd) in
    order.

    A message holds the channel of its source and that of its destination, and the first round
    becomes ready at once, in the order of the ranks. So the message of rank 1 stands behind that of
    rank 0 on the channel of rank 1, that of rank 2 behind it, and so on: the first round is a wave
    of n messages, where two turns would do. Every later round follows its wave at a distance of two
    messages, which is what the closed form says of each. A ring of odd length has no two turns
    (three ranks have one message under way at a time), and pays three messages more.
    """
    unit = 1000  # bytes, and ns
    for ranks in range(2, 10):
        cluster = mesh(ranks, "half-duplex", latency=0)
        figures = [
            seconds(cluster, "all_reduce", ranks * unit, cost=cost) * 10**9 / unit
            for cost in ("closed", "expanded")
        ]
        wave = 0 if ranks == 2 else 5 * ranks - (3 if ranks % 2 else 6)
        assert figures == [4 * (ranks - 1), wave or 4]
    trace = simulate(
        lowered(mesh(4, "half-duplex", latency=0), "all_reduce", 4 * unit, cost="expanded")
    )
    starts = dict(zip(trace.task_graph.tasks.name, (trace.start // 10**6).tolist(), strict=True))
    assert [starts[f"c[0] g{a}>g{(a + 1) % 4}"] for a in range(4)] == [0, 1, 2, 3]
    assert [starts[f"c[1] g{a}>g{(a + 1) % 4}"] for a in range(4)] == [4, 3, 4, 5]
    assert [starts[f"c[5] g{a}>g{(a + 1) % 4}"] for a in range(4)] == [12, 11, 12, 13]


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "all_to_all"])
def test_fair_links_give_the_closed_form_too(kind: str) -> None:
    for cost in ("closed", "expanded"):
        found = seconds(mesh(4, "fair"), kind, SIZE, algorithm="ring", cost=cost)
        rounds, share = FORMS[kind, "ring"](4)
        assert found == rounds * (ALPHA + share * SIZE / RATE)


@pytest.mark.parametrize("workers", [2, 3, 5, 8])
def test_g10_sharded_servers_move_two_s_over_w_each_way(workers: int) -> None:
    """W servers sharded over the W workers, no latency: 2 S (W-1) / (W B) per NIC and direction, on
    in-order queues.
    """
    names, size = [f"g{i}" for i in range(workers)], workers * 10**6
    push, place = collective(
        "push", "reduce_scatter", names, size, algorithm="direct", cost="expanded"
    )
    pull = Op(
        "pull",
        "all_gather",
        inputs=tuple(f"push:{i}" for i in range(workers)),
        outputs=(Tensor(size),) * workers,
        attrs={"ranks": names, "algorithm": "direct", "cost": "expanded"},
    )
    graph = Graph("servers", (*push, pull))
    for queues in ("device", "egress"):
        trace = judged(
            lower(
                graph,
                mesh(workers, queues, latency=0),
                CostModel(),
                Strategy(place | {"pull": "g0"}),
            )
        )
        assert trace.end_ps == 2 * size * (workers - 1) // workers * 1000


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_k8_a_server_with_one_card_takes_in_and_sends_out(workers: int) -> None:
    """N workers push S bytes to one server and pull them: 2 N S / B."""
    names, size = [f"g{i}" for i in range(workers + 1)], 10**6
    push, place = collective("push", "reduce", names, size, algorithm="direct", cost="expanded")
    attrs = {"ranks": names, "algorithm": "direct", "cost": "expanded"}
    pull = Op("pull", "broadcast", inputs=("push",), outputs=(Tensor(size),) * workers, attrs=attrs)
    cluster = mesh(workers + 1, "device", latency=0)
    trace = judged(
        lower(
            Graph("server", (*push, pull)), cluster, CostModel(), Strategy(place | {"pull": "g0"})
        )
    )
    assert trace.end_ps == 2 * workers * size * 1000
