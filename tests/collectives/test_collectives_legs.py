"""The ways of many messages: those of the routes, whatever else there is on the cluster."""

from __future__ import annotations

import random

from simdev.costs.collectives.rounds import legs
from simdev.nouns.cluster import DUPLEX, Cluster, Device, Link
from simdev.nouns.fabric import fabric_of


def tangle(seed: int) -> Cluster:
    """Devices of which some pass on what others send, over links of which some lead one way."""
    rng = random.Random(seed)
    names = [f"d{n}" for n in range(24)]
    devices = tuple(Device(name, "cpu", transit=rng.random() < 0.6) for name in names)
    pairs = {tuple(sorted(rng.sample(names, 2))) for _ in range(40)}
    links = tuple(Link(pair, bandwidth=10**9, duplex=rng.choice(DUPLEX)) for pair in sorted(pairs))
    return Cluster("tangle", devices, links)


def test_ways_are_those_of_the_routes() -> None:
    joined = 0
    for seed in range(40):
        fabric = fabric_of(tangle(seed))
        ends = random.Random(seed).sample(range(24), 12)
        flows = [
            (a, b) for a in ends for b in ends if a != b and fabric.routes.route(a, b) is not None
        ]
        for number, pieces in legs(fabric, flows):
            routes = fabric.routes.pieces(*flows[number])
            assert routes is not None
            assert [p.half_links for p in pieces] == [r.half_links for r in routes]
            joined += 1
    assert joined > 1000
