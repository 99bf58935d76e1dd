"""The time of a collective on a cluster: its measured table where there is one, else the fastest closed form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

from ..cluster import Cluster
from ..errors import InputError
from ..fabric import Fabric
from ..frozen import freeze
from ..units import is_count, picoseconds
from .closed import COLLECTIVES, ROOTED, best_chunks, direct, hierarchical, ring, tree
from .table import CollectiveTable
from .wire import Wire, direct_wire, flows_wire, ring_wire

ALGORITHMS = ("auto", "ring", "tree")
UNKNOWN = -1
Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class CollectiveCost:
    """The time of a collective, in seconds, and how it was found.

    ``algorithm`` is "table", or the closed form (ring, tree, direct, hierarchical, p2p; "none" where nothing is sent).
    ``rung`` is as in op costs: measured, interpolated (between tables of other ranks), fitted, or roofline (closed).
    """

    seconds: Fraction
    algorithm: str
    rung: str

    @property
    def ps(self) -> int:
        """Whole picoseconds, rounded up."""
        return picoseconds(self.seconds)


@dataclass(frozen=True)
class CollectiveModel:
    """Times of collectives on a cluster.

    ``tables`` are those measured inside one of its nodes. ``algorithm`` says which closed form stands in where there is
    none: the faster of ring and tree ("auto"), or one of them. ``chunk`` is into how many bytes broadcast and reduce
    cut their message (None: the chunks that take least time).
    """

    cluster: Cluster
    tables: tuple[CollectiveTable, ...] = ()
    algorithm: str = "auto"
    chunk: int | None = None

    def __post_init__(self) -> None:
        freeze(self, "tables")
        if self.algorithm not in ALGORITHMS:
            raise InputError(f'algorithm: must be one of {", ".join(ALGORITHMS)}, got "{self.algorithm}"')
        if self.chunk is not None and not (is_count(self.chunk) and self.chunk):
            raise InputError(f"chunk: must be a whole number of bytes > 0, got {self.chunk!r}")

    def cost(self, collective: str, devices: Sequence[int | str], size: int) -> CollectiveCost:
        """The time of a collective among these devices (names or indices, in the order of their ranks).

        ``size`` is in bytes, as nccl-tests counts them. The root of broadcast and reduce is the first device; p2p goes
        from the first to the second. Raises InputError.
        """
        ranks = tuple(self.cluster.index.get(one, UNKNOWN) if isinstance(one, str) else one for one in devices)
        self._check(collective, devices, ranks, size)
        groups = self._groups(ranks)
        if collective == "p2p" and (len(groups) == 2 or 2 not in self._tables.get("p2p", {})):
            return CollectiveCost(self._flows(((ranks[0], ranks[1]),)).seconds(size), "p2p", "roofline")
        if len(ranks) == 1:
            return CollectiveCost(Fraction(0), "none", "roofline")
        if len(groups) == 1:
            return self._inside(collective, groups[0], Fraction(size))
        flat = self._closed(collective, tuple(d for group in groups for d in group), Fraction(size))
        if len({len(group) for group in groups}) > 1 or len(groups[0]) == 1:
            return flat
        seconds = hierarchical(
            collective, len(groups[0]), len(groups), size,
            lambda part, _, share: max(self._inside(part, group, share).seconds for group in groups),
            lambda part, _, share: self._between(part, groups, share),
        )  # fmt: skip
        return min(flat, CollectiveCost(seconds, "hierarchical", "roofline"), key=lambda cost: cost.seconds)

    def _check(self, collective: str, devices: Sequence[int | str], ranks: tuple[int, ...], size: int) -> None:
        count = len(self.cluster.devices)
        problems = []
        if collective not in COLLECTIVES:
            problems.append(f'collective: must be one of {", ".join(COLLECTIVES)}, got "{collective}"')
        if not ranks or len(set(ranks)) < len(ranks) or any(not 0 <= d < count for d in ranks):
            problems.append(f"devices: must be names or indices below {count}, each once, got {list(devices)[:20]}")
        else:
            switches = [device for device in map(self.cluster.devices.__getitem__, ranks) if not device.runs_ops]
            problems += [f'devices: "{one.name}" is a switch and takes no part; name the devices' for one in switches]
        if collective == "p2p" and len(devices) != 2:
            problems.append(f"devices: p2p joins two, got {len(devices)}")
        if not is_count(size):
            problems.append(f"size: must be a whole number of bytes from 0 to 2^60, got {size!r}")
        if problems:
            raise InputError(problems)

    def _groups(self, devices: tuple[int, ...]) -> Groups:
        """The devices by their nodes, nodes and devices in the order given."""
        found: dict[int, list[int]] = {}
        for device in devices:
            found.setdefault(self.cluster.devices[device].node, []).append(device)
        return tuple(map(tuple, found.values()))

    def _inside(self, collective: str, devices: tuple[int, ...], size: Fraction) -> CollectiveCost:
        """Within one node: a table, a line between the tables of fewer and more ranks, or a closed form."""
        ranks = len(devices)
        tables = self._tables.get(collective, {})
        if ranks == 1:
            return CollectiveCost(Fraction(0), "none", "roofline")
        if ranks in tables:
            source = tables[ranks].source
            return CollectiveCost(tables[ranks].seconds(size), "table", source)
        fewer = max((n for n in tables if n < ranks), default=None)
        more = min((n for n in tables if n > ranks), default=None)
        if fewer is None or more is None:
            return self._closed(collective, devices, size)
        low, high = tables[fewer].seconds(size), tables[more].seconds(size)
        return CollectiveCost(low + (high - low) * (ranks - fewer) / (more - fewer), "table", "interpolated")

    def _closed(self, collective: str, devices: tuple[int, ...], size: Fraction) -> CollectiveCost:
        """The fastest of the closed forms allowed; the order of the candidates decides ties."""
        ranks, found = len(devices), dict[str, Fraction]()
        if collective == "all_to_all":
            pairs = tuple((a, b) for a in devices for b in devices if a != b)
            found["direct"] = direct(ranks, size, self._flows(pairs))
        else:
            wires = self._ring_wires(devices)
            if collective in ROOTED:
                wires = (self._flows(tuple(pairwise(devices))), *wires[1:])  # nobody closes it
            if self.algorithm != "tree":
                cuts = [self._chunks(collective, ranks - 1, size, wire) for wire in wires]
                rings = zip(wires, cuts, strict=True)
                found["ring"] = min(ring(collective, ranks, size, wire, chunks) for wire, chunks in rings)
            if self.algorithm != "ring":
                depth = (ranks - 1).bit_length()
                found["tree"] = tree(collective, ranks, size, wires[0], self._chunks("reduce", depth, size, wires[0]))
        algorithm = min(found, key=found.__getitem__)
        return CollectiveCost(found[algorithm], algorithm, "roofline")

    def _chunks(self, collective: str, stations: int, size: Fraction, wire: Wire) -> int:
        if collective not in ROOTED:
            return 1
        return best_chunks(stations, size, wire) if self.chunk is None else max(1, -(-int(size) // self.chunk))

    def _between(self, collective: str, groups: Groups, size: Fraction) -> Fraction:
        """Among the ranks of one place in every node, all places at once: they share the nodes' NICs."""
        nodes = len(groups)
        places = tuple(zip(*groups, strict=True))
        if collective == "all_to_all":
            pairs = tuple((a, b) for place in places for a in place for b in place if a != b)
            return direct(nodes, size, self._flows(pairs))
        if collective in ROOTED:
            # Only the root's place holds the message.
            return self._closed(collective, places[0], size).seconds
        wire = self._flows(tuple((a, b) for place in places for a, b in zip(place, place[1:] + place[:1], strict=True)))
        forms = {"ring": (ring,), "tree": (tree,), "auto": (ring, tree)}[self.algorithm]
        return min(form(collective, nodes, size, wire) for form in forms)

    @cached_property
    def fabric(self) -> Fabric:
        """What messages queue for on the cluster."""
        return Fabric(self.cluster)

    @cached_property
    def _tables(self) -> dict[str, dict[int, CollectiveTable]]:
        found: dict[str, dict[int, CollectiveTable]] = {}
        for table in self.tables:
            of_ranks = found.setdefault(table.collective, {})
            if table.ranks in of_ranks:
                raise InputError(f"tables: two of {table.collective} over {table.ranks} ranks")
            of_ranks[table.ranks] = table
        return found

    @cached_property
    def _wires(self) -> dict[tuple[tuple[int, int], ...], Wire]:
        return {}

    @cached_property
    def _rings(self) -> dict[tuple[int, ...], tuple[Wire, ...]]:
        return {}

    def _flows(self, flows: tuple[tuple[int, int], ...]) -> Wire:
        if flows not in self._wires:
            self._wires[flows] = flows_wire(self.fabric, flows)
        return self._wires[flows]

    def _ring_wires(self, devices: tuple[int, ...]) -> tuple[Wire, ...]:
        if devices not in self._rings:
            rings = direct_wire(self.fabric, devices)
            self._rings[devices] = (ring_wire(self.fabric, devices), *((rings,) if rings else ()))
        return self._rings[devices]
