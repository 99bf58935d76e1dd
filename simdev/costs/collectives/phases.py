"""Collectives by name, their bus factors, and their algorithms as messages. ``rounds`` adds the
messages up to closed forms; ``lowering.collective`` sends them where a collective is expanded.

All messages of a phase have the same size: parts that do not divide evenly are padded, as in NCCL.
Rings as in Patarasuk and Yuan (JPDC 2009); binomial trees, recursive doubling and halving for
any number of ranks as in Thakur, Rabenseifner and Gropp (IJHPCA 2005) and Bruck et al. (TPDS 1997).
Another form, or another limit of rings (MAX_RANKS, MAX_RINGS), has to be known to the checker too,
which works out the bytes in its own way (``execution/check/schedule.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import pairwise

from ...ground.errors import InputError
from ...nouns.cluster import Cluster
from ...nouns.strategy import FORMS

SPREADING = ("all_gather", "reduce_scatter", "all_to_all")
ROOTED = ("broadcast", "reduce")
# Messages list them in this order; files and importers accept no other names.
COLLECTIVES = ("all_reduce", *SPREADING, *ROOTED, "p2p")
Group = tuple[int, ...]
Groups = tuple[Group, ...]
Rings = tuple[Group, ...]
KEPT = 512  # groups whose messages are remembered: they are the same at every size


def unknown_collective(name: str) -> str:
    """The message about a name that is not in COLLECTIVES."""
    return f'collective: must be one of {", ".join(COLLECTIVES)}, got "{name}"'


def bus_factor(collective: str, ranks: int) -> Fraction:
    """Bytes that each rank's link carries per byte of the buffer (nccl-tests, PERFORMANCE.md): bus
    bandwidth = factor x S / time.

    Raises InputError.
    """
    if collective not in COLLECTIVES:
        raise InputError(unknown_collective(collective))
    if ranks < 1:
        raise InputError(f"ranks: must be > 0, got {ranks}")
    if collective == "all_reduce":
        return Fraction(2 * (ranks - 1), ranks)
    return Fraction(ranks - 1, ranks) if collective in SPREADING else Fraction(1)


def bus_bandwidth(collective: str, ranks: int, size: int, seconds: Fraction) -> Fraction:
    """Bus bandwidth in bytes per second of a collective of ``size`` bytes (nccl-tests).

    Raises InputError.
    """
    if seconds <= 0:
        raise InputError(f"seconds: must be > 0, got {float(seconds):g}")
    return bus_factor(collective, ranks) * size / seconds


class Messages(tuple[tuple[int, int, int], ...]):
    """Messages (source, destination, round in which it is first sent).

    They serve as keys of caches. There may be a million of them, so their hash is computed once.
    """

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return super().__hash__()

    @cached_property
    def last(self) -> int:
        """The last round in which a message is sent for the first time."""
        return max(first for _, _, first in self)


@dataclass(frozen=True, slots=True)
class Phase:
    """Messages of ``size`` bytes: (source, destination, round in which it is first sent).

    Each message is sent ``repeats`` times, once a round. With ``relays`` a rank passes on data that
    it received in the rounds before, and so waits for them; without, it sends data that it had when
    the phase began. Either way a rank begins a round when its messages of the last round have
    arrived.
    """

    messages: Messages
    size: int
    repeats: int = 1
    relays: bool = True

    def rounds(self) -> Iterator[list[tuple[int, int]]]:
        """The messages (source, destination) of each round."""
        by_first = self.by_first()
        for number in range(self.round_count()):
            begin = max(0, number - self.repeats + 1)
            yield [flow for first in by_first[begin : number + 1] for flow in first]

    def by_first(self) -> list[list[tuple[int, int]]]:
        """The messages (source, destination) by the round in which they are first sent."""
        by_first: list[list[tuple[int, int]]] = [
            [] for _ in range(self.round_count() - self.repeats + 1)
        ]
        for source, destination, first in self.messages:
            by_first[first].append((source, destination))
        return by_first

    def round_count(self) -> int:
        """The number of rounds."""
        return self.messages.last + self.repeats

    def count(self) -> int:
        """The number of messages sent in all rounds."""
        return len(self.messages) * self.repeats


Phases = tuple[Phase, ...]


@dataclass(frozen=True, slots=True)
class Level:
    """A level of a two-level algorithm: a collective of ``size`` bytes within every node
    (``inside``), or between the nodes.
    """

    inside: bool
    collective: str
    size: int
    phases: Phases


def phases(
    collective: str,
    algorithm: str,
    groups: Groups,
    size: int,
    chunks: int = 1,
    rings: Sequence[Rings] = (),
) -> Phases:
    """The messages of a collective of ``size`` bytes (as by nccl-tests), phase after phase.

    ``groups`` has the ranks of each node; only "hierarchical" looks at nodes, and needs equally
    many ranks on each. Rings and chains go through the ranks in this order; the first rank is the
    root. ``chunks`` is the number of chunks that a broadcast or reduce along a chain is cut into.
    ``rings`` has the rings that share the bytes evenly: a list for all ranks ("ring"), or a list
    for each node ("hierarchical"); empty means one ring in the order of the ranks. Raises
    InputError where the algorithm cannot do the collective.
    """
    if collective not in COLLECTIVES:
        raise InputError(unknown_collective(collective))
    # Callers have chosen an algorithm: "auto" has no messages.
    if algorithm not in FORMS:
        choice = ", ".join(FORMS)
        raise InputError(f'algorithm: must be one of {choice}, got "{algorithm}"')
    ranks = tuple(rank for group in groups for rank in group)
    if len(ranks) == 1:
        return ()
    if collective == "p2p":
        return (Phase(Messages([(ranks[0], ranks[1], 0)]), size),)
    if algorithm == "hierarchical":
        parts = levels(collective, groups, size, chunks, rings)
        return tuple(phase for level in parts for phase in level.phases)
    if algorithm == "ring":
        return _ring(collective, ranks, size, chunks, rings[0] if rings else ())
    return (_tree if algorithm == "tree" else _direct)(collective, ranks, size)


def bytes_sent(phases: Sequence[Phase]) -> int:
    """The bytes of all messages of all phases together."""
    return sum(phase.size * phase.count() for phase in phases)


def _ring(
    collective: str, ranks: Sequence[int], size: int, chunks: int, rings: Rings = ()
) -> Phases:
    """Every rank sends to the next one, n - 1 times.

    In an all_to_all it sends first to the next rank, then to the one after that, and so on. Several
    ``rings`` run at once, each with an equal share of the bytes.
    """
    # Each ring goes through the whole group and takes an equal share of every part.
    rings = rings or (tuple(ranks),)
    steps, part = len(ranks) - 1, -(-size // len(ranks))
    match collective:
        case "all_reduce" | "all_gather" | "reduce_scatter":
            around = _joined(tuple(map(_around, rings)))
            # An all_reduce is a reduce_scatter and then an all_gather.
            repeats = 2 * steps if collective == "all_reduce" else steps
            return (Phase(around, -(-part // len(rings)), repeats),)
        case "all_to_all":
            return (Phase(_pairs(ranks, apart=True), part, relays=False),)
    chains = [_chain(ring, ranks[0], collective) for ring in rings]
    messages = Messages((*hop, i) for chain in chains for i, hop in enumerate(pairwise(chain)))
    return (Phase(messages, -(-size // (chunks * len(rings))), chunks),)


def _chain(ring: Sequence[int], root: int, collective: str) -> Group:
    """A ring cut open at the root: a broadcast begins there, a reduce ends there."""
    at = ring.index(root)
    broadcast = (*ring[at:], *ring[:at])
    return broadcast if collective == "broadcast" else broadcast[::-1]


@lru_cache(KEPT)
def _around(ranks: Group, by: int = 1) -> Messages:
    return Messages((rank, ranks[(i + by) % len(ranks)], 0) for i, rank in enumerate(ranks))


@lru_cache(KEPT)
def _joined(parts: tuple[Messages, ...]) -> Messages:
    return parts[0] if len(parts) == 1 else Messages(m for messages in parts for m in messages)


@lru_cache(KEPT)
def _pairs(ranks: Group, apart: bool) -> Messages:
    """A message from every rank to every other, sorted by their distance in the ring: one distance
    a round (``apart``), or all in one round.
    """
    shifts = range(1, len(ranks))
    return Messages(
        (a, b, shift - 1 if apart else 0) for shift in shifts for a, b, _ in _around(ranks, shift)
    )


def _tree(collective: str, ranks: Group, size: int) -> Phases:
    """Binomial trees for broadcast, reduce and all_reduce; for all_gather and reduce_scatter
    messages over doubling distances (Bruck).
    """
    match collective:
        case "all_reduce":
            return (*_tree("reduce", ranks, size), *_tree("broadcast", ranks, size))
        case "broadcast":
            return tuple(Phase(messages, size) for messages in _levels(ranks))
        case "reduce":
            return tuple(
                Phase(Messages((b, a, 0) for a, b, _ in messages), size)
                for messages in reversed(list(_levels(ranks)))
            )
        case "all_gather" | "reduce_scatter":
            return _doubling(collective, ranks, size)
    raise InputError(f"algorithm: {collective} has no tree algorithm")


def _levels(ranks: Sequence[int]) -> Iterator[Messages]:
    """The edges of a binomial tree from the first rank: in each level every rank that has the data
    sends it to one that does not.
    """
    reach = 1
    while reach < len(ranks):
        yield Messages(
            (a, b, 0) for a, b in zip(ranks[:reach], ranks[reach : 2 * reach], strict=False)
        )
        reach *= 2


def _doubling(collective: str, ranks: Group, size: int) -> Phases:
    count = len(ranks)
    piece, gathering, distance = -(-size // count), collective == "all_gather", 1
    steps: list[Phase] = []
    while distance < count:
        by = -distance if gathering else distance
        # The last step sends only the blocks that are still missing.
        steps.append(Phase(_around(ranks, by), min(distance, count - distance) * piece))
        distance *= 2
    return tuple(steps if gathering else reversed(steps))


def _direct(collective: str, ranks: Group, size: int) -> Phases:
    """All messages at once: one from each rank to each rank that needs its data."""
    root, piece = ranks[0], -(-size // len(ranks))
    match collective:
        case "broadcast":
            return (Phase(Messages((root, rank, 0) for rank in ranks[1:]), size),)
        case "reduce":
            return (Phase(Messages((rank, root, 0) for rank in ranks[1:]), size),)
        case "all_reduce":
            return (Phase(_pairs(ranks, apart=False), piece),) * 2
    return (Phase(_pairs(ranks, apart=False), piece, relays=False),)


def levels(
    collective: str, groups: Groups, size: int, chunks: int = 1, rings: Sequence[Rings] = ()
) -> tuple[Level, ...]:
    """Rings within the nodes, and rings between the nodes: the first ranks of all nodes form a
    ring, the second ranks another, and so on, all at once.

    Within a single node, or with one rank a node, there is a single ring. Arguments as in
    ``phases``. Raises InputError unless all nodes have equally many ranks.
    """
    local, nodes = len(groups[0]), len(groups)
    if any(len(group) != local for group in groups):
        counts = ", ".join(map(str, [len(group) for group in groups][:8]))
        raise InputError(
            f"algorithm: hierarchical needs equally many ranks on each node; there are {counts}"
        )
    if local == 1 or nodes == 1:
        ranks = tuple(rank for group in groups for rank in group)
        laid = rings[0] if rings and nodes == 1 else ()
        return (Level(nodes == 1, collective, size, _ring(collective, ranks, size, chunks, laid)),)
    share = -(-size // local)
    whole = local * share
    # The bytes that a node gathers, or scatters, padded so that each node has an equal share.
    padded = nodes * local * -(-share // nodes)
    inside, between = True, False
    parts: dict[str, list[tuple[bool, str, int]]] = {
        "all_reduce": [
            (inside, "reduce_scatter", whole),
            (between, "all_reduce", share),
            (inside, "all_gather", whole),
        ],
        "all_gather": [(between, "all_gather", share), (inside, "all_gather", padded)],
        "reduce_scatter": [(inside, "reduce_scatter", padded), (between, "reduce_scatter", share)],
        "broadcast": [(between, "broadcast", size), (inside, "broadcast", size)],
    }
    default = [(inside, collective, size), (between, collective, size)]
    return tuple(_level(*part, groups, chunks, rings) for part in parts.get(collective, default))


def _level(
    inside: bool, part: str, size: int, groups: Groups, chunks: int, rings: Sequence[Rings]
) -> Level:
    if inside:
        laid = list(zip(groups, rings or [()] * len(groups), strict=True))
    else:
        laid = [(place, ()) for place in zip(*groups, strict=True)]
        # Of the root's node only the root sends over the network; the others get data within nodes.
        laid = laid[:1] if part in ROOTED else laid
    return Level(
        inside, part, size, _together([_ring(part, of, size, chunks, ring) for of, ring in laid])
    )


def _together(groups: Sequence[Phases]) -> Phases:
    """The phases of several groups of ranks that do the same at once, as phases of all ranks."""
    return tuple(
        replace(alike[0], messages=_joined(tuple(phase.messages for phase in alike)))
        for alike in zip(*groups, strict=True)
    )


# Rings over direct links, each on lanes that no other ring uses: as many as a bounded search finds.
# NCCL lays rings over the NVLinks of a node in this way (on a DGX-1V six, three in each direction,
# which use all links). Only links that tell their ``lanes`` take part; over other links a
# collective takes one ring in the order of its ranks.

MAX_RANKS = 16
"""Larger groups take one ring: the search grows with the factorial of the ranks."""
MAX_RINGS = 32
MAX_TRIED = 1_000  # steps of one search; where rings are found at all, a few hundred find them
Lanes = tuple[tuple[int, ...], ...]


def lane_rings(cluster: Cluster, ranks: Sequence[int]) -> Rings:
    """Directed rings through all of these devices (indices), no two over the same lane.

    Where it gives more bandwidth, two rings share each lane at half its bandwidth. Empty where no
    ring is found, and for fewer than 3 or more than MAX_RANKS ranks. Half-duplex links count as
    absent.
    """
    # By index: the order in which a strategy names devices changes no ring.
    group = sorted(ranks)
    if not 2 < len(group) <= MAX_RANKS:
        return ()
    lanes = tuple(tuple(_lanes(cluster, a, b) for b in group) for a in group)
    return tuple(tuple(group[place] for place in ring) for ring in _most_rings(lanes))


def _lanes(cluster: Cluster, source: int, destination: int) -> int:
    half_link = cluster.neighbours[source].get(destination)
    link = None if half_link is None else cluster.half_links[half_link].link
    return 0 if link is None or link.duplex == "half" else link.lanes or 0


@lru_cache(maxsize=1024)
def _most_rings(lanes: Lanes) -> Rings:
    """The rings of the largest total bandwidth, one or two over each lane; on a tie one."""
    whole = _rings(lanes)
    halves = _rings(tuple(tuple(2 * count for count in row) for row in lanes))
    return halves if len(halves) > 2 * len(whole) else whole


def _rings(lanes: Lanes) -> Rings:
    """The largest set of rings that is found. Pairs of opposite rings are tried first, for they are
    found quickly; then single rings, if there may be more of them.
    """
    most = min(MAX_RINGS, *map(sum, lanes), *map(sum, zip(*lanes, strict=True)))
    pairs = most // 2 if lanes == tuple(zip(*lanes, strict=True)) else 0
    paired: Rings = ()
    while pairs and not paired:
        paired = _Search(lanes, pairs, paired=True).run()
        pairs -= 1
    for count in range(most, 2 * len(paired), -1):
        single = _Search(lanes, count, paired=False).run()
        if single:
            return single
    return (*paired, *((ring[0], *ring[:0:-1]) for ring in paired))


class _Search:
    """A depth-first search for ``count`` rings, no two over the same lane. ``paired`` rings also
    take the lanes of the opposite direction.
    """

    def __init__(self, lanes: Lanes, count: int, paired: bool) -> None:
        self.left = [list(row) for row in lanes]
        self.count, self.paired, self.tried = count, paired, 0
        self.rings: list[Group] = []

    def run(self) -> Rings:
        """The rings, each beginning at place 0; empty where there are fewer than ``count``, or the
        search took too many steps.
        """
        return tuple(self.rings) if self._extend((0,)) else ()

    def _extend(self, path: Group) -> bool:
        self.tried += 1
        if self.tried > MAX_TRIED:
            return False
        if len(path) == len(self.left):
            return self._close(path)
        ahead = (b for b, lanes in enumerate(self.left[path[-1]]) if lanes and b not in path)
        for place in sorted(
            ahead, key=lambda b: (sum(map(bool, self.left[b])), -self.left[path[-1]][b], b)
        ):
            # In another order of their second places the rings would be the same.
            if len(path) == 1 and self.rings and place < self.rings[-1][1]:
                continue
            self._take(path[-1], place, 1)
            if self._extend((*path, place)):
                return True
            self._take(path[-1], place, -1)
        return False

    def _close(self, path: Group) -> bool:
        if not self.left[path[-1]][0]:
            return False
        self._take(path[-1], 0, 1)
        self.rings.append(path)
        missing = self.count - len(self.rings)
        if not missing or (self._suffices(missing) and self._extend((0,))):
            return True
        self.rings.pop()
        self._take(path[-1], 0, -1)
        return False

    def _take(self, a: int, b: int, lanes: int) -> None:
        self.left[a][b] -= lanes
        if self.paired:
            self.left[b][a] -= lanes

    def _suffices(self, rings: int) -> bool:
        """Whether every place has enough lanes left, out and in, for more ``rings``."""
        each = 2 * rings if self.paired else rings
        return min(*map(sum, self.left), *map(sum, zip(*self.left, strict=True))) >= each
