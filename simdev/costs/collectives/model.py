"""The one model of collectives: which messages they are, how long they take, and what they hold.

Collective ops, gradients of split models, synchronisation policies and large models all ask it
(``lowering.collective`` and ``lowering.hybrid``). A new algorithm has its messages in ``phases``,
its name in ``nouns.strategy.FORMS`` and, where "auto" may take it, in FASTEST or AS_LIBRARIES
here; the checker knows the bytes of each algorithm in its own way (``_known_totals`` of
``execution/check/schedule.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import pairwise

from ...ground.errors import InputError, refuse
from ...ground.units import PS_PER_SECOND, is_count, picoseconds
from ...nouns.cluster import UNLIMITED, Cluster
from ...nouns.fabric import Fabric, fabric_of
from ..rows import ROOFLINE
from .phases import (
    COLLECTIVES,
    ROOTED,
    Group,
    Groups,
    Level,
    Messages,
    Phase,
    Phases,
    Rings,
    lane_rings,
    levels,
    phases,
    unknown_collective,
)
from .rounds import ClosedForms, best_chunks, flows_wire, legs
from .table import CollectiveTable, Crossing, shipped_tables

CLOSED_FORMS = ("auto", "ring", "tree")
"""Values of ``CollectiveModel.algorithm``: the closed form that counts where no table answers."""
RINGS = ("ring", "hierarchical")
FASTEST = {"auto": (*RINGS, "tree"), "ring": RINGS, "tree": ("tree",)}
"""Candidates of "auto", by the algorithm of the model; of equal times the first counts."""
AS_LIBRARIES = {
    "all_to_all": ("direct", "hierarchical"),
    "all_gather": RINGS,
    "reduce_scatter": RINGS,
}
"""Candidates of "auto" of these kinds: an all_to_all sends all at once, gather and scatter take
rings (NCCL).
"""
# Expanded, each chunk is a message on every hop; more would hardly be faster.
MAX_CHUNKS = 256
UNKNOWN = -1
Way = tuple[str, tuple[Rings, ...]]  # an algorithm, and its rings (none: in the order of the ranks)


@dataclass(frozen=True, slots=True)
class CollectiveCost:
    """The time of a collective, in seconds, and where it comes from.

    ``algorithm`` is "table", or the closed form (ring, tree, direct, hierarchical, p2p; "none"
    where nothing is sent). ``rung`` is as in op costs: measured, interpolated (between tables of
    other numbers of ranks), fitted, or roofline (by the closed form). ``rings`` is the number of
    rings that share the bytes; a single ring goes through the ranks in their order. ``tabled`` is
    the share of the time that comes from measured tables.
    """

    seconds: Fraction
    algorithm: str
    rung: str
    rings: int = 1
    tabled: float = field(default=0.0, compare=False)

    @property
    def ps(self) -> int:
        """Whole picoseconds, rounded up."""
        return picoseconds(self.seconds)


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """A collective among ``ranks`` (device indices, in the order of ranks).

    ``size`` counts bytes as nccl-tests does. ``chunks`` is the number of chunks that a broadcast or
    reduce along a chain is cut into (None: the number that makes the closed form shortest).
    """

    kind: str
    ranks: Group
    size: int
    algorithm: str
    chunks: int | None = None


@dataclass(frozen=True, slots=True)
class Form:
    """The messages of a collective under one algorithm, and the number of rings that they use. An
    algorithm of two levels (within nodes, between nodes) also has its ``levels``.
    """

    algorithm: str
    phases: Phases
    levels: tuple[Level, ...] = ()
    rings: int = 1


class CollectiveModel:
    """The messages and times of collectives on a cluster. Routes of messages are followed once.

    ``tables`` were measured inside one node of the cluster; where its links have changed since, the
    measured times are scaled with the links (``Crossing``). Without a table, ``algorithm`` chooses
    the closed form: the fastest ("auto"), rings or trees. Simulations use "auto"; the others serve
    to compare the forms (``docs/gallery/allreduce.py``).
    """

    def __init__(
        self, cluster: Cluster, tables: Sequence[CollectiveTable] = (), algorithm: str = "auto"
    ) -> None:
        if algorithm not in CLOSED_FORMS:
            raise InputError(
                f'algorithm: must be one of {", ".join(CLOSED_FORMS)}, got "{algorithm}"'
            )
        self.cluster, self.tables, self.algorithm = cluster, tuple(tables), algorithm
        self.fabric = fabric_of(cluster)
        self.forms = ClosedForms(self.fabric)
        self._private: dict[tuple[Group, tuple[Messages, ...]], bool] = {}
        self._crossings: dict[Group, Crossing] = {}
        self._by_node: dict[Group, Groups] = {}
        self._lanes: dict[Groups, tuple[Rings, ...]] = {}

    def form(self, call: CollectiveCall) -> Form:
        """The messages of a collective, by the algorithm and rings of the shortest closed form.

        Rings are either a single one in the order of the ranks, or several that each have lanes of
        their own. Raises InputError where a route is missing or the algorithm cannot do the
        collective.
        """
        ways = self._ways(call)
        if len(ways) == 1:
            return self._form(call, *ways[0])
        return self._least(call, ways, lambda form: self._seconds(form.phases))[1]

    def timed(self, call: CollectiveCall) -> tuple[CollectiveCost, Form]:
        """The time of a collective, and its fastest form.

        Within one node a measured table gives the time where there is one. Else the form does, its
        parts within nodes by the tables. Raises InputError, as ``form`` does.
        """
        partly_measured = partial(self._partly_measured, groups=self._nodes(call.ranks))
        seconds, form = self._least(call, self._ways(call), partly_measured)
        algorithm = "p2p" if call.kind == "p2p" else form.algorithm
        parts = self._parts(form, self._nodes(call.ranks))
        tabled = sum(part for part, is_tabled in parts if is_tabled) / (seconds or 1)
        closed = CollectiveCost(seconds, algorithm, ROOFLINE, form.rings, float(tabled))
        return self._inside(call) or closed, form

    def _inside(self, call: CollectiveCall) -> CollectiveCost | None:
        """The measured time of a collective whose ranks are in one node; None without a table."""
        groups = self._nodes(call.ranks)
        return self._measured(call.kind, groups, call.size) if len(groups) == 1 else None

    def _names(self, call: CollectiveCall) -> tuple[str, ...]:
        """The names of the algorithms that may run a collective."""
        if call.algorithm != "auto":
            return (call.algorithm,)
        names = FASTEST[self.algorithm]
        # An all_to_all sends all at once, whichever closed form the model compares.
        if self.algorithm == "auto" or call.kind == "all_to_all":
            names = AS_LIBRARIES.get(call.kind, names)
        return names

    def cost(
        self,
        collective: str,
        devices: Sequence[int | str],
        size: int,
        beside: Sequence[Group] = (),
    ) -> CollectiveCost:
        """The time of a collective among these devices (names or indices), in the order of ranks.

        ``size`` is in bytes, as nccl-tests counts them. The root of broadcast and reduce is the
        first device; p2p goes from the first to the second. The groups ``beside`` (device indices)
        run the same collective at the same time: the collective then takes longer by the time for
        which they occupy the busiest link or device that it uses. Raises InputError.
        """
        index = self.cluster.index
        ranks = tuple(index.get(d, UNKNOWN) if isinstance(d, str) else d for d in devices)
        refuse(self._problems(collective, devices, ranks, size))
        if len(ranks) == 1:
            return CollectiveCost(Fraction(0), "none", ROOFLINE)
        call = CollectiveCall(collective, ranks, size, "auto")
        # A table was measured with one group alone; the closed form tells how much others add.
        if not beside and (measured := self._inside(call)) is not None:
            return measured
        cost, form = self.timed(call)
        if not beside or self._is_private(ranks, form):
            return cost
        others = [CollectiveCall(collective, group, size, form.algorithm) for group in beside]
        seconds = cost.seconds + self._delay(form, others)
        tabled = cost.tabled * float(cost.seconds / (seconds or 1))
        return replace(cost, seconds=seconds, tabled=tabled)

    def _delay(self, form: Form, others: Sequence[CollectiveCall]) -> Fraction:
        """Seconds for which ``others`` lengthen the use of the busiest carrier (link, device) of a
        form.
        """
        alone = self.forms.busy(form.phases)
        together = alone.copy()
        for call in others:
            # The ranks of this group may be spread unevenly over nodes.
            if not self._fits(call, form.algorithm):
                call = replace(call, algorithm="ring")
            together += self.forms.busy(self.form(call).phases)
        ps = int(together[alone > 0].max(initial=0) - alone.max(initial=0))
        return Fraction(ps, PS_PER_SECOND)

    def _is_private(self, ranks: Group, form: Form) -> bool:
        """Whether no transfer of other devices can use the links of a form.

        So it is where each link ends at a rank, or at a network adapter that serves a single rank,
        and where no route passes through a rank.
        """
        key = ranks, tuple(phase.messages for phase in form.phases)
        if key not in self._private:  # the key has no size, which plays no part
            self._private[key] = not self.fabric.links_serve or self._meets_nobody(ranks, form)
        return self._private[key]

    def _meets_nobody(self, ranks: Group, form: Form) -> bool:
        devices, neighbours = self.cluster.devices, self.cluster.neighbours
        if any(devices[rank].transit for rank in ranks):
            return False
        # An adapter belongs to a rank where it joins no other device that computes.
        private = set(ranks)
        for other in (other for rank in ranks for other in neighbours[rank]):
            works = sum(devices[d].runs_ops for d in neighbours[other])
            if works == 1 and not devices[other].runs_ops:
                private.add(other)
        pairs = dict.fromkeys((a, b) for phase in form.phases for a, b, _ in phase.messages)
        crossed = {
            half_link
            for _, pieces in legs(self.fabric, list(pairs))
            for piece in pieces
            for half_link in piece.half_links
        }
        return not any(private.isdisjoint(self._ends[half_link]) for half_link in crossed)

    @cached_property
    def _ends(self) -> dict[int, tuple[int, int]]:
        """The two devices at the ends of each half-link."""
        around = enumerate(self.cluster.neighbours)
        return {half: (a, b) for a, others in around for b, half in others.items()}

    def _least(
        self, call: CollectiveCall, ways: Sequence[Way], seconds: Callable[[Form], Fraction]
    ) -> tuple[Fraction, Form]:
        """The fastest form among those whose messages all have routes, with its time; on a tie the
        first.

        A form whose lower bound (``_at_least``) exceeds the best time so far is not timed.
        """
        best: tuple[Fraction, Form] | None = None
        refused: InputError | None = None
        for way in ways:
            try:
                form = self._form(call, *way)
                if best is None or self._at_least(form) < best[0]:
                    timed = seconds(form), form
                    best = timed if best is None or timed[0] < best[0] else best
            except InputError as error:
                refused = refused or error
        if best is None:
            assert refused is not None
            raise refused
        return best

    def _at_least(self, form: Form) -> Fraction:
        """A lower bound of a form in seconds: one message of each round, over the fastest link."""
        if form.levels and self.tables:
            return Fraction(0)  # measured times within nodes may be below this bound
        size = sum(phase.size * phase.round_count() for phase in form.phases)
        return size / self._fastest_link

    @cached_property
    def _fastest_link(self) -> Fraction:
        # One half-link of each kind, for comparing Fractions of thousands of links is slow.
        alike = dict(zip(self.cluster.alike, self.cluster.half_links, strict=True)).values()
        return max((Fraction(half.link.bandwidth) for half in alike), default=UNLIMITED)

    def _partly_measured(self, form: Form, groups: Groups) -> Fraction:
        """Seconds of a form, with the measured times of its levels within nodes where there are
        tables.
        """
        return sum((seconds for seconds, _ in self._parts(form, groups)), Fraction(0))

    def _parts(self, form: Form, groups: Groups) -> list[tuple[Fraction, bool]]:
        """The seconds of each level of a form, and whether a measured table gives them. Where no
        level has a table, the whole form is a single part.
        """
        costs = [
            self._measured(level.collective, groups, level.size) if level.inside else None
            for level in form.levels
        ]
        if not any(costs):
            return [(self._seconds(form.phases), False)]
        return [
            (cost.seconds if cost else self._seconds(level.phases), cost is not None)
            for cost, level in zip(costs, form.levels, strict=True)
        ]

    def _seconds(self, messages: Sequence[Phase]) -> Fraction:
        return Fraction(self.forms.closed(messages).ps, PS_PER_SECOND)

    def _ways(self, call: CollectiveCall) -> list[Way]:
        """The algorithms that may run a collective, each with each of its choices of rings. A
        single algorithm is taken as it is; of several, those that fit the ranks.
        """
        names = self._names(call)
        fitting = [name for name in names if len(names) == 1 or self._fits(call, name)]
        return [(name, rings) for name in fitting for rings in self._rings(call, name)]

    def _fits(self, call: CollectiveCall, name: str) -> bool:
        """Whether an algorithm can run a collective among its ranks, and differs from a ring."""
        if name == "hierarchical":
            groups = self._nodes(call.ranks)
            sizes = {len(group) for group in groups}
            return len(groups) > 1 and len(sizes) == 1 and sizes != {1}
        return name != "tree" or call.kind != "all_to_all"

    def _form(self, call: CollectiveCall, name: str, rings: tuple[Rings, ...]) -> Form:
        chunks, count = self._chunks(call, name, rings), len(rings[0]) if rings else 1
        if name == "hierarchical":
            parts = levels(call.kind, self._nodes(call.ranks), call.size, chunks, rings)
            return Form(name, tuple(phase for part in parts for phase in part.phases), parts, count)
        messages = phases(call.kind, name, (call.ranks,), call.size, chunks, rings)
        return Form(name, messages, (), count)

    def _rings(self, call: CollectiveCall, name: str) -> list[tuple[Rings, ...]]:
        """The choices of rings: ``()`` is one ring in the order of the ranks; another has rings
        over lanes of their own, equally many in each node.

        The latter are only tried where transfers wait for links: elsewhere several rings at once
        cost as much as one.
        """
        if name not in RINGS or call.kind in ("all_to_all", "p2p") or not self.fabric.links_serve:
            return [()]
        groups = self._nodes(call.ranks) if name == "hierarchical" else (call.ranks,)
        if groups not in self._lanes:  # the size of messages plays no part
            self._lanes[groups] = tuple(lane_rings(self.cluster, group) for group in groups)
        lanes = self._lanes[groups]
        return [(), lanes] if lanes[0] and len({len(rings) for rings in lanes}) == 1 else [()]

    def _chunks(self, call: CollectiveCall, name: str, rings: tuple[Rings, ...]) -> int:
        """The number of chunks of a message along a chain: as the call says, else the number that
        makes the closed form shortest.
        """
        if call.kind not in ROOTED or name not in RINGS:
            return 1
        if call.chunks is not None:
            return min(call.chunks, max(1, call.size))
        chains = rings[0] if rings and name == "ring" else (call.ranks,)
        wire = flows_wire(self.fabric, [pair for chain in chains for pair in pairwise(chain)])
        best = best_chunks(len(call.ranks) - 1, Fraction(call.size, len(chains)), wire)
        return min(MAX_CHUNKS, best)

    def _nodes(self, ranks: Group) -> Groups:
        """The ranks of each node; nodes and ranks in the order of ``ranks``."""
        if ranks not in self._by_node:
            nodes: dict[int, list[int]] = {}
            for rank in ranks:
                nodes.setdefault(self.cluster.devices[rank].node, []).append(rank)
            self._by_node[ranks] = tuple(map(tuple, nodes.values()))
        return self._by_node[ranks]

    def _measured(self, collective: str, groups: Groups, size: int) -> CollectiveCost | None:
        """The cost by the table for this number of ranks, or interpolated between the tables for
        fewer and for more ranks; None where there are no such tables.

        The groups have equally many ranks, each in one node, and run at once: the slowest counts.
        """
        tables, ranks = self._tables.get(collective, {}), len(groups[0])
        if ranks in tables:
            seconds = self._slowest(tables[ranks], groups, size)
            return CollectiveCost(seconds, "table", tables[ranks].source, tabled=1.0)
        fewer = max((n for n in tables if n < ranks), default=None)
        more = min((n for n in tables if n > ranks), default=None)
        if fewer is None or more is None:
            return None
        low, high = (self._slowest(tables[n], groups, size) for n in (fewer, more))
        seconds = low + (high - low) * (ranks - fewer) / (more - fewer)
        return CollectiveCost(seconds, "table", "interpolated", tabled=1.0)

    def _slowest(self, table: CollectiveTable, groups: Groups, size: int) -> Fraction:
        if self.cluster.as_measured is self.cluster:
            return table.seconds_over(None, size)
        crossings = {self._crossing(group) for group in groups}
        return max(table.seconds_over(crossing, size) for crossing in crossings)

    def _crossing(self, ranks: Group) -> Crossing:
        """The least bandwidth and the largest latency on a ring through the ranks: when its tables
        were measured, and now.
        """
        if ranks not in self._crossings:
            then = _slowest_of(fabric_of(self.cluster.as_measured), ranks)
            now = _slowest_of(self.fabric, ranks)
            self._crossings[ranks] = Crossing(*then, *now)
        return self._crossings[ranks]

    @cached_property
    def _tables(self) -> dict[str, dict[int, CollectiveTable]]:
        tables: dict[str, dict[int, CollectiveTable]] = {}
        for table in self.tables:
            by_ranks = tables.setdefault(table.collective, {})
            if table.ranks in by_ranks:
                raise InputError(f"tables: two of {table.collective} over {table.ranks} ranks")
            by_ranks[table.ranks] = table
        return tables

    def _problems(
        self, collective: str, devices: Sequence[int | str], ranks: Group, size: int
    ) -> Iterator[str]:
        count = len(self.cluster.devices)
        if collective not in COLLECTIVES:
            yield unknown_collective(collective)
        if not ranks or len(set(ranks)) < len(ranks) or any(not 0 <= d < count for d in ranks):
            shown = list(devices)[:20]
            yield f"devices: must be names or indices below {count}, each once, got {shown}"
        else:
            named = [self.cluster.devices[d] for d in ranks]
            for name in (device.name for device in named if not device.runs_ops):
                yield f'devices: "{name}" is a switch and takes no part; name the devices'
        if collective == "p2p" and len(devices) != 2:
            yield f"devices: p2p joins two, got {len(devices)}"
        if not is_count(size):
            yield f"size: must be a whole number of bytes from 0 to 2^60, got {size!r}"


def _slowest_of(fabric: Fabric, ranks: Group) -> tuple[Fraction, Fraction]:
    """The least bandwidth and the largest latency of the routes of a ring through the ranks."""
    pairs = zip(ranks, (*ranks[1:], ranks[0]), strict=True)
    routes = [route for pair in pairs if (route := fabric.routes.route(*pair))]
    return (
        min((route.bandwidth for route in routes), default=UNLIMITED),
        max((route.held + route.lag for route in routes), default=Fraction(0)),
    )


def collective_model(cluster: Cluster, tables: Sequence[CollectiveTable] = ()) -> CollectiveModel:
    """The model of the collectives of a cluster, by these tables, or (without any) by the shipped
    tables that the cluster names. Closed forms serve where no table does.

    Raises InputError.
    """
    return CollectiveModel(cluster, tables or shipped_tables(cluster.collectives))
