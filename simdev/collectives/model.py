"""The one model of collectives: which messages they are, how long they take, and what they hold.

Collective ops, gradients of split models, synchronisation policies and large models all ask it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

from ..cluster import UNLIMITED, Cluster
from ..errors import InputError
from ..fabric import Fabric, fabric_of
from ..frozen import freeze
from ..units import PS_PER_SECOND, is_count, picoseconds
from .forms import Forms
from .kinds import COLLECTIVES, ROOTED, best_chunks
from .legs import pieces_of
from .phases import Groups, Level, Phase, levels, phases
from .rings import Rings, lane_rings
from .table import CollectiveTable
from .wire import flows_wire

ALGORITHMS = ("auto", "ring", "tree")
AUTO = ("ring", "tree", "hierarchical")
"""What "auto" chooses from; the first of equals."""
RINGS = ("ring", "hierarchical")
FASTEST = {"auto": (*RINGS, "tree"), "ring": RINGS, "tree": ("tree",)}
"""From what the form of least time is chosen, by the algorithm of the model."""
AS_LIBRARIES = {
    "all_to_all": ("direct", "hierarchical"),
    "all_gather": RINGS,
    "reduce_scatter": RINGS,
}
"""Of these even by "auto": an all_to_all sends all at once, what is spread goes by rings (NCCL)."""
MAX_CHUNKS = 256
UNKNOWN = -1
Way = tuple[str, tuple[Rings, ...]]  # an algorithm, and its rings (none: in the order of the ranks)


@dataclass(frozen=True, slots=True)
class CollectiveCost:
    """The time of a collective, in seconds, and how it was found.

    ``algorithm`` is "table", or the closed form (ring, tree, direct, hierarchical, p2p; "none"
    where nothing is sent). ``rung`` is as in op costs: measured, interpolated (between tables of
    other ranks), fitted, or roofline (closed). ``rings`` is how many a node's ranks share the bytes
    over; one goes in their order, over whatever its routes are.
    """

    seconds: Fraction
    algorithm: str
    rung: str
    rings: int = 1

    @property
    def ps(self) -> int:
        """Whole picoseconds, rounded up."""
        return picoseconds(self.seconds)


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a collective: kind, ranks (device indices), bytes, algorithm.

    Bytes are counted as by nccl-tests. ``chunks`` is into how many a broadcast or reduce along a
    chain is cut (None: the number of least closed form).
    """

    kind: str
    ranks: tuple[int, ...]
    size: int
    algorithm: str
    chunks: int | None = None


@dataclass(frozen=True, slots=True)
class Form:
    """An algorithm with its messages, over how many rings; one of two levels tells them apart."""

    algorithm: str
    phases: tuple[Phase, ...]
    levels: tuple[Level, ...] = ()
    rings: int = 1


@dataclass(frozen=True)
class CollectiveModel:
    """Collectives on a cluster.

    ``tables`` are those measured inside one of its nodes. ``algorithm`` says which closed form
    stands in where there is none: the fastest ("auto"), or that of rings or of trees.
    """

    cluster: Cluster
    tables: tuple[CollectiveTable, ...] = ()
    algorithm: str = "auto"

    def __post_init__(self) -> None:
        freeze(self, "tables")
        if self.algorithm not in ALGORITHMS:
            raise InputError(
                f'algorithm: must be one of {", ".join(ALGORITHMS)}, got "{self.algorithm}"'
            )

    @cached_property
    def fabric(self) -> Fabric:
        """What messages queue for on the cluster."""
        return fabric_of(self.cluster)

    @cached_property
    def forms(self) -> Forms:
        """Closed forms on the cluster."""
        return Forms(self.fabric)

    def form(self, question: Question) -> Form:
        """The messages of a collective; where there are several ways, those of least closed form.

        Rings are one in the order of the ranks, or several over lanes of their own where these take
        less. Raises InputError where a route is missing or an algorithm has no such form.
        """
        names = AUTO if question.algorithm == "auto" else (question.algorithm,)
        ways = self._ways(question, names)
        if len(ways) == 1:
            return self._form(question, *ways[0])
        return self._least(question, ways, lambda form: self._seconds(form.phases))[1]

    def cost(
        self,
        collective: str,
        devices: Sequence[int | str],
        size: int,
        beside: Sequence[tuple[int, ...]] = (),
    ) -> CollectiveCost:
        """The time of a collective among these devices (names or indices), in the order of ranks.

        As measured inside a node, else by the fastest form. ``size`` is in bytes, as nccl-tests
        counts them. The root of broadcast and reduce is the first device; p2p goes from the first
        to the second. While the groups ``beside`` (device indices) run the same collective, what it
        holds is busy for all of them: it takes longer by so much as the busiest of that is busier.
        Raises InputError.
        """
        ranks = tuple(
            self.cluster.index.get(one, UNKNOWN) if isinstance(one, str) else one for one in devices
        )
        self._check(collective, devices, ranks, size)
        if len(ranks) == 1:
            return CollectiveCost(Fraction(0), "none", "roofline")
        near = len({self.cluster.devices[rank].node for rank in ranks}) == 1
        measured = self._measured(collective, len(ranks), size) if near else None
        if measured is not None and not beside:
            return measured
        seconds, form = self._fastest(collective, ranks, size)
        algorithm = "p2p" if collective == "p2p" else form.algorithm
        found = measured or CollectiveCost(seconds, algorithm, "roofline", form.rings)
        if not beside or self._is_private(ranks, form):
            return found
        others = [Question(collective, group, size, form.algorithm) for group in beside]
        return replace(found, seconds=found.seconds + self._delay(form, others))

    def _delay(self, form: Form, others: Sequence[Question]) -> Fraction:
        """Seconds by which the busiest of what a form holds is busier for all together."""
        alone = self.forms.busy(form.phases)
        together = alone.copy()
        for question in others:
            together += self.forms.busy(self._alike(form, question).phases)
        ps = int(together[alone > 0].max(initial=0) - alone.max(initial=0))
        return Fraction(ps, PS_PER_SECOND)

    def _is_private(self, ranks: tuple[int, ...], form: Form) -> bool:
        """Whether nobody else can hold what a form holds.

        Its links end at its ranks, or at adapters of these alone. It needs devices through which no
        route passes.
        """
        cluster = self.cluster
        if not self.fabric.links_serve:
            return True
        if any(cluster.devices[rank].transit for rank in ranks):
            return False
        mine = set(ranks)
        for rank in ranks:
            for other in cluster.neighbours[rank]:
                works = sum(cluster.devices[one].runs_ops for one in cluster.neighbours[other])
                if works == 1 and not cluster.devices[other].runs_ops:
                    mine.add(other)
        pairs = dict.fromkeys((a, b) for phase in form.phases for a, b, _ in phase.messages)
        pieces = (piece for pair in pairs for piece in pieces_of(self.fabric, *pair))
        return all(a in mine or b in mine for piece in pieces for a, b in pairwise(piece.devices))

    def _alike(self, form: Form, question: Question) -> Form:
        """The same algorithm among other ranks, or a ring where their nodes have none."""
        return self.form(
            question
            if self._fits(question, form.algorithm)
            else replace(question, algorithm="ring")
        )

    def _fastest(self, collective: str, ranks: tuple[int, ...], size: int) -> tuple[Fraction, Form]:
        """The form of least time, its parts as measured inside nodes where there are tables."""
        question = Question(collective, ranks, size, self.algorithm)
        names = FASTEST[self.algorithm]
        if self.algorithm == "auto" or collective == "all_to_all":
            names = AS_LIBRARIES.get(collective, names)
        return self._least(
            question,
            self._ways(question, names),
            lambda form: self._partly_measured(form, question),
        )

    def _least(
        self, question: Question, ways: Sequence[Way], seconds: Callable[[Form], Fraction]
    ) -> tuple[Fraction, Form]:
        """The form of least time, the first of equals; those count for which there are routes.

        Forms that even the fastest link would not carry in less are not looked at.
        """
        found: list[tuple[Fraction, Form]] = []
        refused: InputError | None = None
        for way in ways:
            try:
                form = self._form(question, *way)
                if not found or self._at_least(form) < min(time for time, _ in found):
                    found.append((seconds(form), form))
            except InputError as error:
                refused = refused or error
        if refused is not None and not found:
            raise refused
        return min(found, key=lambda pair: pair[0])

    def _at_least(self, form: Form) -> Fraction:
        """Seconds that the messages of all rounds, one of each, take over the fastest link."""
        return (
            sum((phase.size * phase.round_count() for phase in form.phases), Fraction(0))
            / self._fastest_link
        )

    @cached_property
    def _fastest_link(self) -> Fraction:
        alike = dict(zip(self.cluster.alike, self.cluster.half_links, strict=True))
        return max(
            (Fraction(half_link.link.bandwidth) for half_link in alike.values()), default=UNLIMITED
        )

    def _partly_measured(self, form: Form, question: Question) -> Fraction:
        """Seconds of a form, its levels inside nodes by table where there is one."""
        nodes = {self.cluster.devices[rank].node for rank in question.ranks}
        each = len(question.ranks) // len(nodes)
        costs = [
            self._measured(one.collective, each, one.size) if one.inside else None
            for one in form.levels
        ]
        if not any(costs):
            return self._seconds(form.phases)
        parts = zip(costs, form.levels, strict=True)
        return sum(
            (cost.seconds if cost else self._seconds(level.phases) for cost, level in parts),
            Fraction(0),
        )

    def _seconds(self, messages: Sequence[Phase]) -> Fraction:
        return Fraction(self.forms.closed(messages).ps, PS_PER_SECOND)

    def _ways(self, question: Question, names: Sequence[str]) -> list[Way]:
        """These algorithms, of several those that fit, with the rings that they may take."""
        fitting = [name for name in names if len(names) == 1 or self._fits(question, name)]
        return [(name, rings) for name in fitting for rings in self._rings(question, name)]

    def _fits(self, question: Question, name: str) -> bool:
        """Whether an algorithm has a form of its own for these ranks."""
        if name == "hierarchical":
            groups = self._nodes(question.ranks)
            return (
                len(groups) > 1
                and len(groups[0]) > 1
                and len({len(group) for group in groups}) == 1
            )
        return name != "tree" or question.kind != "all_to_all"

    def _form(self, question: Question, name: str, rings: tuple[Rings, ...]) -> Form:
        chunks, groups = self._chunks(question, name, rings), self._nodes(question.ranks)
        count = len(rings[0]) if rings else 1
        if name == "hierarchical":
            parts = levels(question.kind, groups, question.size, chunks, rings)
            return Form(name, tuple(phase for part in parts for phase in part.phases), parts, count)
        return Form(
            name,
            phases(question.kind, name, (question.ranks,), question.size, chunks, rings),
            (),
            count,
        )

    def _rings(self, question: Question, name: str) -> list[tuple[Rings, ...]]:
        """None (one ring in the order of the ranks), and those over lanes, equally many a node.

        Only where transfers wait for links: elsewhere several rings at once would cost as much as
        one.
        """
        if (
            name not in ("ring", "hierarchical")
            or question.kind in ("all_to_all", "p2p")
            or not self.fabric.links_serve
        ):
            return [()]
        groups = self._nodes(question.ranks) if name == "hierarchical" else (question.ranks,)
        lanes = tuple(self._lanes(group) for group in groups)
        return [(), lanes] if lanes[0] and len({len(rings) for rings in lanes}) == 1 else [()]

    def _lanes(self, ranks: tuple[int, ...]) -> Rings:
        if ranks not in self._laid:
            self._laid[ranks] = lane_rings(self.cluster, ranks)
        return self._laid[ranks]

    @cached_property
    def _laid(self) -> dict[tuple[int, ...], Rings]:
        return {}

    def _chunks(self, question: Question, name: str, rings: tuple[Rings, ...]) -> int:
        """Into how many chunks a chain is cut: as told, else so that its closed form is least."""
        if question.kind not in ROOTED or name not in ("ring", "hierarchical"):
            return 1
        if question.chunks is not None:
            return min(question.chunks, max(1, question.size))
        chains = rings[0] if rings and name == "ring" else (question.ranks,)
        wire = flows_wire(self.fabric, [pair for chain in chains for pair in pairwise(chain)])
        return min(
            MAX_CHUNKS,
            best_chunks(len(question.ranks) - 1, Fraction(question.size, len(chains)), wire),
        )

    def _nodes(self, ranks: tuple[int, ...]) -> Groups:
        """The ranks by their nodes, nodes and ranks in the order given."""
        found: dict[int, list[int]] = {}
        for rank in ranks:
            found.setdefault(self.cluster.devices[rank].node, []).append(rank)
        return tuple(map(tuple, found.values()))

    def _measured(self, collective: str, ranks: int, size: int) -> CollectiveCost | None:
        """By table within one node, or between the tables of fewer and more ranks; None without."""
        tables = self._tables.get(collective, {})
        if ranks in tables:
            return CollectiveCost(tables[ranks].seconds(size), "table", tables[ranks].source)
        fewer = max((n for n in tables if n < ranks), default=None)
        more = min((n for n in tables if n > ranks), default=None)
        if fewer is None or more is None:
            return None
        low, high = tables[fewer].seconds(size), tables[more].seconds(size)
        return CollectiveCost(
            low + (high - low) * (ranks - fewer) / (more - fewer), "table", "interpolated"
        )

    @cached_property
    def _tables(self) -> dict[str, dict[int, CollectiveTable]]:
        found: dict[str, dict[int, CollectiveTable]] = {}
        for table in self.tables:
            of_ranks = found.setdefault(table.collective, {})
            if table.ranks in of_ranks:
                raise InputError(f"tables: two of {table.collective} over {table.ranks} ranks")
            of_ranks[table.ranks] = table
        return found

    def _check(
        self, collective: str, devices: Sequence[int | str], ranks: tuple[int, ...], size: int
    ) -> None:
        count = len(self.cluster.devices)
        problems = []
        if collective not in COLLECTIVES:
            problems.append(
                f'collective: must be one of {", ".join(COLLECTIVES)}, got "{collective}"'
            )
        if not ranks or len(set(ranks)) < len(ranks) or any(not 0 <= d < count for d in ranks):
            problems.append(
                f"devices: must be names or indices below {count}, each once, got "
                f"{list(devices)[:20]}"
            )
        else:
            switches = [
                device
                for device in map(self.cluster.devices.__getitem__, ranks)
                if not device.runs_ops
            ]
            problems += [
                f'devices: "{one.name}" is a switch and takes no part; name the devices'
                for one in switches
            ]
        if collective == "p2p" and len(devices) != 2:
            problems.append(f"devices: p2p joins two, got {len(devices)}")
        if not is_count(size):
            problems.append(f"size: must be a whole number of bytes from 0 to 2^60, got {size!r}")
        if problems:
            raise InputError(problems)
