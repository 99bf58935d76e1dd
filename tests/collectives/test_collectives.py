"""Messages of collectives and closed forms: the books', the best chunks, rings as simulated."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from closed_forms import ring, ring_wire, seconds
from collective_clusters import simulated_ring
from simdev.costs.collectives import (
    COLLECTIVES,
    CollectiveCall,
    CollectiveModel,
    Wire,
    best_chunks,
    bus_factor,
    flows_wire,
    levels,
    rounds_of,
)
from simdev.costs.collectives.rounds import legs
from simdev.files import read_preset
from simdev.ground.errors import InputError
from simdev.nouns.cluster import QUEUES, Cluster, Device, Link
from simdev.nouns.fabric import Fabric
from worlds.clusters import devices, star

RATE = {"bandwidth": 10**9, "hold_latency": False}

WIRE = Wire(Fraction(3, 10**6), Fraction(10**9))


@pytest.mark.parametrize(
    ("collective", "seconds"),
    [
        ("all_reduce", 2 * 3 * (Fraction(3, 10**6) + Fraction(1, 1000))),
        ("all_gather", 3 * (Fraction(3, 10**6) + Fraction(1, 1000))),
        ("reduce_scatter", 3 * (Fraction(3, 10**6) + Fraction(1, 1000))),
        ("all_to_all", 3 * (Fraction(3, 10**6) + Fraction(1, 1000))),
        ("broadcast", 3 * (Fraction(3, 10**6) + Fraction(4, 1000))),
        ("reduce", 3 * (Fraction(3, 10**6) + Fraction(4, 1000))),
        ("p2p", Fraction(3, 10**6) + Fraction(4, 1000)),
    ],
)
def test_rings_are_as_the_books_have_them(collective: str, seconds: Fraction) -> None:
    ranks, size = 2 if collective == "p2p" else 4, 4 * 10**6
    assert ring(collective, ranks, size, WIRE) == seconds
    model = CollectiveModel(
        star(devices(ranks, transit=False), "link", latency=Fraction(3, 2 * 10**6), **RATE)
    )
    form = model.form(CollectiveCall(collective, tuple(range(ranks)), size, "ring", 1))
    assert Fraction(model.forms.closed(form.phases).ps, 10**12) == seconds


def test_bus_factors_are_those_of_nccl_tests() -> None:
    assert [bus_factor(one, 4) for one in COLLECTIVES] == [
        Fraction(n, 4) for n in (6, 3, 3, 3, 4, 4, 4)
    ]


def test_what_two_levels_send() -> None:
    """A share stays with each rank where parts are summed or gathered; a rank's whole buffer moves
    twice elsewhere.
    """
    groups = ((0, 1, 2, 3), (4, 5, 6, 7))
    sent = {
        one: [(x.inside, x.collective, x.size) for x in levels(one, groups, 800)]
        for one in COLLECTIVES[:-1]
    }
    assert sent == {
        "all_reduce": [
            (True, "reduce_scatter", 800),
            (False, "all_reduce", 200),
            (True, "all_gather", 800),
        ],
        "all_gather": [(False, "all_gather", 200), (True, "all_gather", 800)],
        "reduce_scatter": [(True, "reduce_scatter", 800), (False, "reduce_scatter", 200)],
        "all_to_all": [(True, "all_to_all", 800), (False, "all_to_all", 800)],
        "broadcast": [(False, "broadcast", 800), (True, "broadcast", 800)],
        "reduce": [(True, "reduce", 800), (False, "reduce", 800)],
    }


@given(
    stations=st.integers(1, 9),
    size=st.integers(0, 2 * 10**6),
    latency=st.integers(0, 50),
    bandwidth=st.integers(1, 300),
)
@example(stations=2, size=10_000, latency=4, bandwidth=1)
def test_no_number_of_chunks_is_better_than_the_best(
    stations: int, size: int, latency: int, bandwidth: int
) -> None:
    """Brute force over all numbers of chunks; bandwidth in GB/s, latency in microseconds."""
    wire = Wire(Fraction(latency, 10**6), Fraction(bandwidth * 10**9))

    def seconds(chunks: int) -> Fraction:
        return ring("broadcast", stations + 1, size, wire, chunks)

    best = best_chunks(stations, size, wire)
    assert seconds(best) == min(map(seconds, range(1, max(1, size // 4096) + 1)))


@pytest.mark.parametrize("queues", [queues for queues in QUEUES if queues != "parallel"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_simulated_ring_takes_what_the_closed_form_says(queues: str, ranks: int) -> None:
    cluster = star(devices(ranks, transit=False), queues, **RATE)
    size = ranks * 10**6
    wire = ring_wire(cluster, range(ranks))
    if queues == "half-duplex":
        assert wire.bandwidth == 10**9 / 2
    closed, seen = (
        ring("all_reduce", ranks, size, wire),
        simulated_ring(cluster, range(ranks), size),
    )
    # Where one queue serves both directions, ranks wait for their neighbours in turn: there the
    # form is the bound.
    assert closed <= seen
    assert seen == closed or queues == "half-duplex"


def test_flows_share_what_they_cross() -> None:
    cluster = star(devices(4, transit=False), "link", **RATE)
    assert flows_wire(Fabric(cluster), [(0, 3), (1, 3)]).bandwidth == 10**9 / 2
    assert flows_wire(Fabric(cluster), [(0, 1), (1, 0)]).bandwidth == 10**9
    assert (
        flows_wire(
            Fabric(star(devices(4, transit=False), "parallel", **RATE)), [(0, 3), (1, 3)]
        ).bandwidth
        == 10**9
    )
    staged = Cluster(
        "staged",
        (Device("g0"), Device("h", "cpu", staging=True), Device("g1")),
        (Link(("g0", "h"), 10**9), Link(("h", "g1"), 10**9)),
        "parallel",
    )
    assert flows_wire(Fabric(staged), [(0, 2)]).bandwidth == 10**9 / 2
    with pytest.raises(InputError, match='from "g0" to "g1", but no route joins them'):
        flows_wire(Fabric(Cluster("apart", (Device("g0"), Device("g1")))), [(0, 1)])


@pytest.mark.parametrize(
    "name", ["dgx-1v", "dgx-h100", "l40s-8x", "nc-a100-pairs", "flexflow-p100", "4x-rtx-2080"]
)
@pytest.mark.parametrize("queues", QUEUES)
def test_many_messages_go_the_ways_of_routes(name: str, queues: str) -> None:
    """From eight destinations on a walk finds the ways; they are those of the routes, one by
    one.
    """
    cluster = replace(
        read_preset(name) if name in ("4x-rtx-2080", "flexflow-p100") else read_preset(name, 2),
        queues=queues,
    )
    devices = [i for i, device in enumerate(cluster.devices) if device.runs_ops]
    flows = [(a, b) for a in devices for b in devices if a != b]
    fabric = Fabric(cluster)
    found = dict(legs(fabric, flows))
    assert sorted(found) == list(range(len(flows)))
    for number, (source, destination) in enumerate(flows):
        routes = fabric.routes.pieces(source, destination) or ()
        assert [(leg.source, leg.destination, leg.half_links) for leg in found[number]] == [
            (route.devices[0], route.devices[-1], route.half_links) for route in routes
        ]
        for leg, route in zip(found[number], routes, strict=True):
            assert (leg.like.bandwidth, leg.like.held, leg.like.lag, leg.like.gap) == (
                route.bandwidth, route.held, route.lag, route.gap
            )  # fmt: skip
    # What all of them share, added up flow by flow.
    alone = [flows_wire(Fabric(cluster), [flow]) for flow in flows]
    wire = flows_wire(Fabric(cluster), flows)
    assert wire.latency == max(one.latency for one in alone)
    assert wire.bandwidth <= min(one.bandwidth for one in alone)
    (step,), _ = rounds_of(Fabric(cluster), [flows]).at(10**6)
    if not any(device.staging for device in cluster.devices):
        assert step.arrival <= seconds(wire, 10**6) * 10**12 + len(flows)
        assert step.arrival >= 10**6 / wire.bandwidth * 10**12
