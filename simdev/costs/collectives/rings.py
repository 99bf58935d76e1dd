"""Rings over direct links, each over lanes of its own: as many as a bounded search finds.

NCCL lays its rings so over the NVLinks of a node (on a DGX-1V six, three each way, the whole of its
links). Links that tell their ``lanes`` are such; over others a collective takes one ring, in the
order of its ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from ...nouns.cluster import Cluster

MAX_RANKS = 16
"""Larger groups take one ring: the search grows with the factorial of the ranks."""
MAX_RINGS = 32
MAX_TRIED = 1_000  # steps of one search; where rings are found at all, a few hundred find them
Lanes = tuple[tuple[int, ...], ...]
Rings = tuple[tuple[int, ...], ...]


def lane_rings(cluster: Cluster, ranks: Sequence[int]) -> Rings:
    """Directed rings through all of these devices (indices); together they cross no lane twice.

    Two rings may share each lane, at half its bandwidth, where that carries more. Empty where none
    is found, for fewer than 3 or more than MAX_RANKS ranks; half-duplex links do not count.
    """
    # By index, so that the rings do not hang on the order in which a strategy names devices.
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
    """The rings of most bandwidth: one or two over each lane; the fewer of equals."""
    whole = _rings(lanes)
    halves = _rings(tuple(tuple(2 * count for count in row) for row in lanes))
    return halves if len(halves) > 2 * len(whole) else whole


def _rings(lanes: Lanes) -> Rings:
    """The most rings: pairs of opposite ones first, which are found quickly; then single, if
    more.
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
    """Depth first for so many rings, each over lanes of its own; ``paired`` takes both
    directions.
    """

    def __init__(self, lanes: Lanes, count: int, paired: bool) -> None:
        self.left = [list(row) for row in lanes]
        self.count, self.paired, self.tried = count, paired, 0
        self.rings: list[tuple[int, ...]] = []

    def run(self) -> Rings:
        """The rings, each from place 0; empty where there are fewer, or the search takes too
        long.
        """
        return tuple(self.rings) if self._extend((0,)) else ()

    def _extend(self, path: tuple[int, ...]) -> bool:
        self.tried += 1
        if self.tried > MAX_TRIED:
            return False
        if len(path) == len(self.left):
            return self._close(path)
        ahead = (b for b, lanes in enumerate(self.left[path[-1]]) if lanes and b not in path)
        for place in sorted(
            ahead, key=lambda b: (sum(map(bool, self.left[b])), -self.left[path[-1]][b], b)
        ):
            # Rings in the order of their second places: the other orders are the same rings.
            if len(path) == 1 and self.rings and place < self.rings[-1][1]:
                continue
            self._take(path[-1], place, 1)
            if self._extend((*path, place)):
                return True
            self._take(path[-1], place, -1)
        return False

    def _close(self, path: tuple[int, ...]) -> bool:
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
        """Whether every place has lanes left, out and in, for so many more rings."""
        each = 2 * rings if self.paired else rings
        return min(*map(sum, self.left), *map(sum, zip(*self.left, strict=True))) >= each
