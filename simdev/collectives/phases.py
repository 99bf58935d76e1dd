"""Algorithms of collectives as messages: what closed forms add up, and expansion sends.

Ranks are numbered 0 to n - 1 here. Every message of a phase has the same bytes; what does not
divide evenly is padded, as NCCL does. Rings as in Patarasuk and Yuan (JPDC 2009); binomial trees,
recursive doubling and halving for any number of ranks as in Thakur, Rabenseifner and Gropp (IJHPCA
2005) and Bruck et al. (TPDS 1997).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..errors import InputError
from .kinds import COLLECTIVES
from .rings import Rings

ALGORITHMS = ("ring", "tree", "hierarchical", "direct")
Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Phase:
    """Messages of ``size`` bytes: (source, destination, round in which it is first sent).

    Each is sent ``repeats`` times. With ``relays`` a rank sends what it received: its message waits
    for what arrived in the rounds before. Without, it sends what it had when the phase began.
    Either way a rank begins a round when its messages of the last one have arrived.
    """

    messages: tuple[tuple[int, int, int], ...]
    size: int
    repeats: int = 1
    relays: bool = True

    def rounds(self) -> Iterator[list[tuple[int, int]]]:
        """The messages (source, destination) of each round."""
        by_first = self.by_first()
        for number in range(len(by_first) + self.repeats - 1):
            begin = max(0, number - self.repeats + 1)
            yield [pair for first in by_first[begin : number + 1] for pair in first]

    def by_first(self) -> list[list[tuple[int, int]]]:
        """The messages (source, destination) by the round in which they are first sent."""
        found: list[list[tuple[int, int]]] = [
            [] for _ in range(1 + max(first for _, _, first in self.messages))
        ]
        for source, destination, first in self.messages:
            found[first].append((source, destination))
        return found

    def round_count(self) -> int:
        """How many rounds there are."""
        return max(first for _, _, first in self.messages) + self.repeats

    def count(self) -> int:
        """How many messages are sent."""
        return len(self.messages) * self.repeats


def phases(
    collective: str,
    algorithm: str,
    groups: Groups,
    size: int,
    chunks: int = 1,
    rings: Sequence[Rings] = (),
) -> tuple[Phase, ...]:
    """The messages of a collective of ``size`` bytes (as by nccl-tests), phase after phase.

    ``groups`` are the ranks by node; only "hierarchical" tells them apart, and it needs equally
    many ranks on each. Their order is that of rings and of chains, the first rank is the root.
    ``chunks`` is into how many a broadcast or reduce along a chain is cut. ``rings`` are, for all
    ranks ("ring") or for each node ("hierarchical"), the rings that share the bytes evenly;
    without, there is one in the order of the ranks. Raises InputError where the algorithm has no
    such form.
    """
    if collective not in COLLECTIVES:
        raise InputError(f'collective: must be one of {", ".join(COLLECTIVES)}, got "{collective}"')
    ranks = tuple(rank for group in groups for rank in group)
    if len(ranks) == 1:
        return ()
    if collective == "p2p":
        return (Phase(((ranks[0], ranks[1], 0),), size),)
    match algorithm:
        case "ring":
            return _ring(collective, ranks, size, chunks, rings[0] if rings else ())
        case "tree":
            return _tree(collective, ranks, size)
        case "direct":
            return _direct(collective, ranks, size)
        case "hierarchical":
            return tuple(
                one
                for level in levels(collective, groups, size, chunks, rings)
                for one in level.phases
            )
        case _:
            raise InputError(
                f'algorithm: must be one of {", ".join(ALGORITHMS)}, got "{algorithm}"'
            )


def bytes_sent(found: Sequence[Phase]) -> int:
    """The bytes of all messages together."""
    return sum(phase.size * phase.count() for phase in found)


def _ring(
    collective: str, ranks: Sequence[int], size: int, chunks: int, rings: Rings = ()
) -> tuple[Phase, ...]:
    """Every rank to the next, n - 1 times.

    In an all_to_all first to the next, then to the one after it, and so on. Several ``rings`` take
    equal shares, and turn at the same time.
    """
    count, several = len(ranks), rings or (tuple(ranks),)
    part = -(-size // count)
    match collective:
        case "all_reduce" | "all_gather" | "reduce_scatter":
            around = tuple(hop for ring in several for hop in _around(ring))
            return (
                Phase(
                    around,
                    -(-part // len(several)),
                    (2 if collective == "all_reduce" else 1) * (count - 1),
                ),
            )
        case "all_to_all":
            return (Phase(_pairs(ranks, apart=True), part, relays=False),)
        case _:
            chains = [_chain(ring, ranks[0], collective) for ring in several]
            steps = ((*hop, i) for chain in chains for i, hop in enumerate(pairwise(chain)))
            return (Phase(tuple(steps), -(-size // (chunks * len(several))), chunks),)


def _chain(ring: Sequence[int], root: int, collective: str) -> tuple[int, ...]:
    """A ring cut open at the root, where a broadcast begins and a reduce ends."""
    at = ring.index(root)
    broadcast = (*ring[at:], *ring[:at])
    return broadcast if collective == "broadcast" else broadcast[::-1]


def _around(ranks: Sequence[int], by: int = 1) -> tuple[tuple[int, int, int], ...]:
    return tuple((rank, ranks[(i + by) % len(ranks)], 0) for i, rank in enumerate(ranks))


def _pairs(ranks: Sequence[int], apart: bool) -> tuple[tuple[int, int, int], ...]:
    """Every rank to every other, first all to the next; in rounds of their own, or at once."""
    shifts = range(1, len(ranks))
    return tuple(
        (a, b, shift - 1 if apart else 0) for shift in shifts for a, b, _ in _around(ranks, shift)
    )


def _tree(collective: str, ranks: Sequence[int], size: int) -> tuple[Phase, ...]:
    """Binomial trees for what has a root and for all_reduce; doubling distances (Bruck) for gather
    and scatter.
    """
    match collective:
        case "all_reduce":
            return (*_tree("reduce", ranks, size), *_tree("broadcast", ranks, size))
        case "broadcast":
            return tuple(
                Phase(tuple((a, b, 0) for a, b in level), size) for level in _levels(ranks)
            )
        case "reduce":
            levels = list(_levels(ranks))[::-1]
            return tuple(Phase(tuple((b, a, 0) for a, b in level), size) for level in levels)
        case "all_gather" | "reduce_scatter":
            return _doubling(collective, ranks, size)
        case _:
            raise InputError(f"algorithm: {collective} has no tree algorithm")


def _levels(ranks: Sequence[int]) -> Iterator[list[tuple[int, int]]]:
    """The edges of a binomial tree from the first rank, level by level: who has the message passes
    it on.
    """
    reach = 1
    while reach < len(ranks):
        yield [(ranks[i], ranks[i + reach]) for i in range(min(reach, len(ranks) - reach))]
        reach *= 2


def _doubling(collective: str, ranks: Sequence[int], size: int) -> tuple[Phase, ...]:
    count = len(ranks)
    piece, found, distance = -(-size // count), [], 1
    while distance < count:
        blocks = min(distance, count - distance)
        by = -distance if collective == "all_gather" else distance
        found.append(Phase(_around(ranks, by), blocks * piece))
        distance *= 2
    return tuple(found if collective == "all_gather" else found[::-1])


def _direct(collective: str, ranks: Sequence[int], size: int) -> tuple[Phase, ...]:
    """Everything at once: one message from each rank to each that needs it."""
    piece = -(-size // len(ranks))
    match collective:
        case "broadcast":
            return (Phase(tuple((ranks[0], rank, 0) for rank in ranks[1:]), size),)
        case "reduce":
            return (Phase(tuple((rank, ranks[0], 0) for rank in ranks[1:]), size),)
        case "all_reduce":
            return (Phase(_pairs(ranks, apart=False), piece),) * 2
        case _:
            return (Phase(_pairs(ranks, apart=False), piece, relays=False),)


@dataclass(frozen=True, slots=True)
class Level:
    """A part of a two-level form: a collective of ``size`` bytes in every node, or between them."""

    inside: bool
    collective: str
    size: int
    phases: tuple[Phase, ...]


def levels(
    collective: str, groups: Groups, size: int, chunks: int = 1, rings: Sequence[Rings] = ()
) -> tuple[Level, ...]:
    """Rings within the nodes, and between them among the ranks of one place in every node.

    All places run at once. Within one node, or with one rank a node, that is the ring. Arguments
    are those of ``phases``. Raises InputError unless all nodes have equally many ranks.
    """
    local, nodes = len(groups[0]), len(groups)
    if any(len(group) != local for group in groups):
        counts = ", ".join(map(str, [len(group) for group in groups][:8]))
        raise InputError(
            f"algorithm: hierarchical needs equally many ranks on each node; there are {counts}"
        )
    if local == 1 or nodes == 1:
        ranks = [rank for group in groups for rank in group]
        whole = _ring(collective, ranks, size, chunks, rings[0] if rings and nodes == 1 else ())
        return (Level(nodes == 1, collective, size, whole),)
    own = rings or [()] * nodes
    places: Groups = tuple(zip(*groups, strict=True))
    share = -(-size // local)

    def inside(part: str, whole: int) -> Level:
        each = [
            _ring(part, group, whole, chunks, several)
            for group, several in zip(groups, own, strict=True)
        ]
        return Level(True, part, whole, _together(each))

    def between(part: str, whole: int, meeting: Groups = places) -> Level:
        return Level(
            False, part, whole, _together([_ring(part, place, whole, chunks) for place in meeting])
        )

    match collective:
        case "all_reduce":
            ends = inside("reduce_scatter", local * share), inside("all_gather", local * share)
            return ends[0], between("all_reduce", share), ends[1]
        case "all_gather":
            return between("all_gather", share), inside(
                "all_gather", nodes * local * -(-share // nodes)
            )
        case "reduce_scatter":
            return inside("reduce_scatter", nodes * local * -(-share // nodes)), between(
                "reduce_scatter", share
            )
        case "broadcast":
            return between("broadcast", size, places[:1]), inside("broadcast", size)
        case "reduce":
            return inside("reduce", size), between("reduce", size, places[:1])
        case _:
            return inside("all_to_all", size), between("all_to_all", size)


def _together(several: Sequence[tuple[Phase, ...]]) -> tuple[Phase, ...]:
    """The same phases of several groups of ranks as phases of all of them."""
    return tuple(
        Phase(
            tuple(one for phase in same for one in phase.messages),
            same[0].size,
            same[0].repeats,
            same[0].relays,
        )
        for same in zip(*several, strict=True)
    )
