"""Cluster: links in any order, routes against brute force, staging."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import pytest

from simdev.ground.errors import InputError
from simdev.nouns.cluster import DUPLEX, Cluster, Device, Link
from simdev.nouns.fabric import Routes


def devices(count: int, *switches: int, closed: tuple[int, ...] = ()) -> tuple[Device, ...]:
    kinds = ["switch" if i in switches else "gpu" for i in range(count)]
    return tuple(Device(f"d{i}", kind, transit=i not in closed) for i, kind in enumerate(kinds))


def random_cluster(rng: random.Random) -> Cluster:
    count = rng.randint(2, 6)
    pairs = [pair for pair in itertools.combinations(range(count), 2) if rng.random() < 0.5]
    links = [
        Link(
            (f"d{a}", f"d{b}") if rng.random() < 0.5 else (f"d{b}", f"d{a}"),
            rng.randint(1, 3),
            duplex=rng.choice(DUPLEX),
        )
        for a, b in pairs
    ]
    rng.shuffle(links)
    closed = tuple(d for d in range(count) if rng.random() < 0.3)
    return Cluster("random", devices(count, closed=closed), tuple(links))


def widths(cluster: Cluster) -> dict[tuple[int, int], Fraction]:
    """The bandwidth of every direction that a link serves."""
    found = {}
    for link in cluster.links:
        a, b = (cluster.index[end] for end in link.ends)
        found[a, b] = Fraction(link.bandwidth)
        if link.duplex != "simplex":
            found[b, a] = Fraction(link.bandwidth)
    return found


def best_path(cluster: Cluster, source: int, destination: int) -> tuple[int, ...] | None:
    """Brute force: fewest links, then the largest bottleneck, then the smallest indices; not
    through closed devices.
    """
    width = widths(cluster)
    passed = [d for d, device in enumerate(cluster.devices) if device.transit]
    between = [d for d in passed if d not in (source, destination)]
    for length in range(len(between) + 1):
        found = []
        for middle in itertools.permutations(between, length):
            path = (source, *middle, destination)
            steps = list(itertools.pairwise(path))
            if all(step in width for step in steps):
                found.append((-min(width[step] for step in steps), path))
        if found:
            return min(found)[1]
    return None


@pytest.mark.parametrize("seed", range(60))
def test_routes_are_the_best_of_all_paths(seed: int) -> None:
    cluster = random_cluster(random.Random(seed))
    width, routes = widths(cluster), Routes(cluster)
    for source, destination in itertools.permutations(range(len(cluster.devices)), 2):
        route = routes.route(source, destination)
        wanted = best_path(cluster, source, destination)
        assert (route and route.devices) == wanted
        if route and wanted:
            assert route.bandwidth == min(width[step] for step in itertools.pairwise(wanted))
            crossed = [cluster.half_links[half_link].link.ends for half_link in route.half_links]
            names = [{f"d{a}", f"d{b}"} for a, b in itertools.pairwise(wanted)]
            assert [set(ends) for ends in crossed] == names


@pytest.mark.parametrize("seed", range(10))
def test_the_order_and_direction_of_links_mean_nothing(seed: int) -> None:
    rng = random.Random(seed)
    cluster = random_cluster(rng)
    links = [
        link
        if link.duplex == "simplex"
        else Link(link.ends[::-1], link.bandwidth, duplex=link.duplex)
        for link in cluster.links
    ]
    rng.shuffle(links)
    other = Cluster("random", cluster.devices, tuple(links))
    assert other == cluster
    assert [half_link.name for half_link in other.half_links] == [
        half_link.name for half_link in cluster.half_links
    ]


def test_a_route_adds_latencies_and_takes_the_narrowest_link_and_the_largest_gap() -> None:
    links = (
        Link(("d0", "d1"), 8, latency="3 us", gap="1 us"),
        Link(("d1", "d2"), 4, latency="5 us", gap="2 us", hold_latency=False),
        Link(("d2", "d3"), 6, latency="7 us"),
    )
    route = Routes(Cluster("line", devices(4), links)).route(0, 3)
    assert route is not None
    assert (route.bandwidth, route.held, route.lag, route.gap) == (
        4,
        Fraction(10, 10**6),
        Fraction(5, 10**6),
        Fraction(2, 10**6),
    )


def test_half_links_have_a_direction_unless_they_share_it() -> None:
    links = (
        Link(("d1", "d0"), 1),
        Link(("d2", "d0"), 1, duplex="half"),
        Link(("d2", "d1"), 1, duplex="simplex"),
    )
    cluster = Cluster("c", devices(3), links)
    assert [half_link.name for half_link in cluster.half_links] == [
        "link d0>d1",
        "link d1>d0",
        "link d0<>d2",
        "link d2>d1",
    ]
    routes = Routes(cluster)
    assert routes.route(1, 2).devices == (1, 0, 2)  # type: ignore[union-attr]
    assert routes.route(0, 2).half_links == routes.route(2, 0).half_links  # type: ignore[union-attr]


def test_staging_devices_cut_a_route_but_not_at_its_ends() -> None:
    hosts = (
        Device("g0"),
        Device("h0", "cpu", staging=True),
        Device("h1", "cpu", staging=True),
        Device("g1"),
    )
    links = (Link(("g0", "h0"), 2), Link(("h0", "h1"), 1), Link(("h1", "g1"), 2))
    cluster = Cluster("hosts", hosts, links)
    assert [route.devices for route in Routes(cluster).pieces(0, 3) or ()] == [
        (0, 1),
        (1, 2),
        (2, 3),
    ]
    assert [route.devices for route in Routes(cluster).pieces(1, 3) or ()] == [(1, 2), (2, 3)]
    assert Routes(Cluster("none", hosts)).pieces(0, 3) is None


def test_all_to_all_joins_what_runs_ops() -> None:
    cluster = Cluster.all_to_all("c", devices(4, 1), bandwidth="1 GB/s", duplex="half")
    assert [link.ends for link in cluster.links] == [("d0", "d2"), ("d0", "d3"), ("d2", "d3")]
    assert all(link.duplex == "half" for link in cluster.links)


def test_links_made_in_bulk_are_those_made_one_by_one() -> None:
    whole = {
        "bandwidth": "5.7 GB/s",
        "latency": "3 us",
        "gap": "1 ns",
        "duplex": "half",
        "kind": "pcie",
        "lanes": 2,
    }
    cluster = Cluster.all_to_all("c", devices(5), hold_latency=False, **whole)
    pairs = itertools.combinations([f"d{i}" for i in range(5)], 2)
    assert cluster.links == tuple(Link(pair, hold_latency=False, **whole) for pair in pairs)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="bandwidth: must be > 0"):
        Cluster.all_to_all("c", devices(2), bandwidth=0)


def test_a_route_is_found_when_it_is_asked_for() -> None:
    """Between a thousand devices there are a million routes, of which a step uses few."""
    spokes = [Link((f"d{i}", "d1000"), 1) for i in range(1000)]
    cluster = Cluster("star", devices(1001, 1000), tuple(spokes))
    routes = Routes(cluster)
    route = routes.route(3, 999)
    assert route is not None
    assert (route.devices, len(routes._routes), len(routes._reached)) == ((3, 1000, 999), 1, 1)


def test_nothing_passes_a_device_that_does_not_forward() -> None:
    links = (
        Link(("d0", "d1"), 9),
        Link(("d1", "d2"), 9),
        Link(("d0", "d3"), 1),
        Link(("d3", "d2"), 1),
    )
    assert Routes(Cluster("c", devices(4), links)).route(0, 2).devices == (0, 1, 2)  # type: ignore[union-attr]
    closed = Cluster("c", devices(4, closed=(0, 1, 2)), links)
    assert Routes(closed).route(0, 2).devices == (0, 3, 2)  # type: ignore[union-attr]
    assert Routes(closed).route(0, 1).devices == (0, 1)  # type: ignore[union-attr]
    assert Routes(Cluster("c", devices(3, closed=(1,)), links[:2])).route(0, 2) is None


def test_provenance_is_no_part_of_a_comparison() -> None:
    told = Cluster("c", devices(1), provenance={"devices.gpu.memory": {"value": "1 B"}})
    assert told == Cluster("c", devices(1))
    assert hash(told) == hash(Cluster("c", devices(1)))


def test_lanes_and_nodes_are_whole_numbers() -> None:
    with pytest.raises(InputError) as error:
        Cluster(
            "c",
            (Device("d0", node=-1), Device("d1")),
            (Link(("d0", "d1"), 1, lanes=0, kind="a\nb"),),
        )
    assert [problem.partition(":")[0] for problem in error.value.problems] == [
        "devices[0].node",
        "links[0].kind",
        "links[0].lanes",
    ]


def test_quantities_may_carry_units() -> None:
    device = Device("d", memory="8 GB", gap="5 us")
    assert (device.memory, device.gap) == (8 * 10**9, Fraction(5, 10**6))
    with pytest.raises(InputError) as error:
        Device("d", memory="8 Gb", gap=-1)
    assert [problem.partition(":")[0] for problem in error.value.problems] == ["memory", "gap"]


@pytest.mark.parametrize(
    ("links", "problem"),
    [
        ([(("d0", "d9"), "full")], 'links[0].ends[1]: no device named "d9"'),
        ([(("d0", "d0"), "full")], 'links[0].ends: "d0" is linked to itself'),
        (
            [(("d0", "d1"), "full"), (("d1", "d0"), "half")],
            'links[1]: "d1" and "d0" are already linked by links[0]',
        ),
        (
            [(("d0", "d1"), "simplex"), (("d0", "d1"), "simplex")],
            'links[1]: "d0" and "d1" are already linked by links[0]',
        ),
        (
            [(("d0", "d1"), "double")],
            'links[0].duplex: must be one of full, half, simplex, got "double"',
        ),
    ],
)
def test_wrong_links_are_refused(links: list[tuple[tuple[str, str], str]], problem: str) -> None:
    with pytest.raises(InputError) as error:
        Cluster("c", devices(2), tuple(Link(ends, 1, duplex=duplex) for ends, duplex in links))
    assert problem in error.value.problems


def test_two_simplex_links_may_face_each_other() -> None:
    links = (Link(("d0", "d1"), 1, duplex="simplex"), Link(("d1", "d0"), 2, duplex="simplex"))
    cluster = Cluster("c", devices(2), links)
    assert [Routes(cluster).route(a, 1 - a).bandwidth for a in (0, 1)] == [1, 2]  # type: ignore[union-attr]
