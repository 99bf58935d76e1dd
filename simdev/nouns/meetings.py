"""Ranks that communicate: which of their collectives are one, which receive takes what which send
gave, and the order in which the ops of all ranks are one program.

Each rank tells its communications by itself (a Chakra trace, a trace of ``torch.profiler``, a
captured script). ``meetings_of`` joins those of all ranks, ``merged`` makes one order of their ops.
What a collective costs and sends is said in ``costs``, not here.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..ground.errors import InputError, refuse

SEND, RECEIVE = "send", "recv"
Place = tuple[int, int]
"""A rank, and the position of one of its ops among all that it issues."""


@dataclass(frozen=True, slots=True)
class Communication:
    """A collective, a send or a receive, as one rank issues it at a position of its own.

    ``kind`` is that of the collective, whose root may be told as ``peer``, or SEND or RECEIVE with
    the other rank. ``bytes`` are the share of a rank for an all-gather, else the whole buffer; on
    all ranks equal, but for an all-to-all. ``group`` names the process group ("" is that of all
    ranks), ``ranks`` are its members in their order (none: every rank that uses it). A rank goes no
    further in ``merged`` until the others are there; with a send that is not ``blocking`` it does
    where nobody else can. Of a batch of messages the sends come first. ``label`` tells people where
    it stands ("train.py:12").
    """

    rank: int
    position: int
    kind: str
    bytes: int | None = None
    group: str = ""
    ranks: tuple[int, ...] = ()
    peer: int = -1
    tag: int = 0
    blocking: bool = True
    label: str = ""

    @property
    def place(self) -> Place:
        """Its rank and its position."""
        return self.rank, self.position

    @property
    def is_message(self) -> bool:
        """Whether two ranks alone take part."""
        return self.kind in (SEND, RECEIVE)

    def __str__(self) -> str:
        size = "" if self.bytes is None else f" of {self.bytes} bytes"
        root = "" if self.is_message or self.peer < 0 else f" with root {self.peer}"
        return f"{self.kind}{size}{root}"

    @property
    def where(self) -> str:
        """The rank and the label, for messages."""
        return f"rank {self.rank}" + (f", {self.label}" if self.label else "")


Meeting = tuple[Communication, ...]
"""A collective as its ranks issue it, in the order of the group; of a message (send, receive)."""


@dataclass(frozen=True)
class Meetings:
    """``of``: every communication that meets others, by its place; ``problems``: where the ranks do
    not fit together. A message from or to a rank that is not there meets nobody.
    """

    of: Mapping[Place, Meeting]
    problems: tuple[str, ...] = ()


def meetings_of(communications: Iterable[Communication], ranks: Collection[int]) -> Meetings:
    """The meetings of these ranks, each of whose communications come in the order of issue.

    The k-th collective of a group is the same one on each of its ranks, the k-th receive from a
    rank under a tag takes the k-th send.
    """
    groups: defaultdict[tuple[str, tuple[int, ...]], dict[int, list[Communication]]]
    groups, present = defaultdict(lambda: defaultdict(list)), dict.fromkeys(ranks)
    channels: defaultdict[tuple[int, int, int], tuple[list[Communication], list[Communication]]]
    channels = defaultdict(lambda: ([], []))
    for call in communications:
        if not call.is_message:
            groups[call.group, call.ranks][call.rank].append(call)
        elif call.peer in present:
            receives = call.kind == RECEIVE
            source, end = (call.peer, call.rank) if receives else (call.rank, call.peer)
            channels[source, end, call.tag][receives].append(call)
    joined: dict[Place, Meeting] = {}
    problems: list[str] = []
    for (name, members), by_rank in groups.items():
        expected = [rank for rank in (members or (() if name else present)) if rank in present]
        calls = {rank: by_rank.get(rank, []) for rank in expected or by_rank}
        problems += _differences(name, calls)
        joined |= _joined(zip(*calls.values(), strict=False))
    for ends, both in channels.items():
        problems += _unequal(ends, *both)
        joined |= _joined(zip(*both, strict=False))
    return Meetings(joined, tuple(problems))


def _joined(meetings: Iterable[Meeting]) -> dict[Place, Meeting]:
    return {call.place: meeting for meeting in meetings for call in meeting}


def _differences(name: str, calls: Mapping[int, Sequence[Communication]]) -> Iterator[str]:
    """The first collective of a group about which its ranks differ, else that some issue more."""
    for first, *others in zip(*calls.values(), strict=False):
        differing = [
            f"{call.where}: {call}, but {first} on {first.where}"
            for call in others
            if (call.kind, call.peer) != (first.kind, first.peer)
            or (call.bytes != first.bytes and first.kind != "all_to_all")
        ]
        if differing:
            yield from differing
            return
    few, many = (choose(calls, key=lambda rank: len(calls[rank])) for choose in (min, max))
    count, most = len(calls[few]), len(calls[many])
    title = f'of the group "{name}"' if name else "of all ranks"
    if count < most:
        waiting = calls[many][count]
        parts = f"{count} collectives {title}, but {most} on rank {many}"
        short = f"takes no part in the collectives {title}"
        yield f"rank {few}: {parts if count else short}; {waiting} of {waiting.where} waits for it"


def _unequal(
    ends: tuple[int, int, int], sends: Sequence[Communication], receives: Sequence[Communication]
) -> Iterator[str]:
    source, end, tag = ends
    for send, receive in zip(sends, receives, strict=False):
        if send.bytes != receive.bytes:
            yield f"{receive.where}: {receive}, but {send} on {send.where}"
    if len(sends) != len(receives):
        least = min(len(sends), len(receives))
        alone = (*sends[least:], *receives[least:])[0]
        yield (
            f"{len(sends)} sends from rank {source} to {end} with tag {tag}, {len(receives)} "
            f"receives; {alone} of {alone.where} waits for rank {alone.peer}"
        )


def operands(
    kind: str, ranks: int, size: int, members: int = 0, rooted: bool = True
) -> tuple[list[int], list[int]]:
    """Bytes of what a collective op reads and leaves, rank by rank (docs/reference/collectives.md),
    for the ``bytes`` of its communications. ``members`` counts the group where ``ranks`` are but
    some of it (0: all), then ``rooted`` tells whether the root is among them.
    """
    if kind == "all_gather":
        return [size] * ranks, [(members or ranks) * size] * ranks
    if kind == "reduce_scatter" and members:
        share = -(-size // members)
        return [share * members] * ranks, [share] * ranks
    if kind == "reduce_scatter":
        return [size] * ranks, [size // ranks + (i < size % ranks) for i in range(ranks)]
    if kind in ("broadcast", "p2p"):
        return [size] * rooted, [size] * (ranks - rooted)
    return [size] * ranks, [size] * (1 if kind == "reduce" else ranks)


def merged(
    lengths: Mapping[int, int],
    meetings: Meetings,
    needs: Mapping[Place, Sequence[Place]] = {},
) -> list[tuple[Place, ...]]:
    """One order of the ops of all ranks, which keeps that of each: the place of an op, or all the
    places of a meeting in the order of its members.

    ``lengths`` are numbers of ops by rank, ``needs`` the earlier communications of its rank behind
    which an op comes. A meeting comes when the last of its ranks is there. Raises InputError with
    the problems of the meetings, and where ranks wait for each other in a circle.
    """
    refuse(meetings.problems)
    merging = _Merging(lengths, meetings, needs)
    merging.run()
    return merging.order


class _Merging:
    """Ranks that go on by turns, each until it waits for another. ``open`` are communications that
    were issued and whose meetings are to come, ``patient`` the ranks that wait and need not.
    """

    def __init__(
        self,
        lengths: Mapping[int, int],
        meetings: Meetings,
        needs: Mapping[Place, Sequence[Place]],
    ) -> None:
        self.lengths, self.meetings, self.needs = lengths, meetings.of, needs
        self.order: list[tuple[Place, ...]] = []
        self.position = dict.fromkeys(lengths, 0)
        self.arrived: defaultdict[Place, int] = defaultdict(int)  # by place of the first member
        self.open: set[Place] = set()
        self.runnable, self.patient = deque(lengths), deque[int]()
        self.waiting: dict[int, Meeting] = {}

    def run(self) -> None:
        """Puts all ops in order. Raises InputError where ranks wait in a circle."""
        while self.runnable or self.patient:
            # What does not block goes on without the others only where nobody else can go on.
            rank = (self.runnable or self.patient).popleft()
            self.waiting.pop(rank, None)
            while self.position[rank] < self.lengths[rank] and self._goes_on(rank):
                pass
        if self.waiting:
            raise InputError(_circle(self.waiting, self.position))

    def _goes_on(self, rank: int) -> bool:
        """Issues the next op of a rank; returns whether the rank goes on at once."""
        place = rank, self.position[rank]
        late = next((need for need in self.needs.get(place, ()) if need in self.open), None)
        if late is not None:
            self.waiting[rank] = self.meetings[late]
            return False
        self.position[rank] += 1
        meeting = self.meetings.get(place)
        if meeting is None:
            self.order.append((place,))
            return True
        self.arrived[meeting[0].place] += 1
        self.open.add(place)
        if self.arrived[meeting[0].place] == len(meeting):
            self._meet(meeting)
            return True
        self.waiting[rank] = meeting
        blocks = next(call.blocking for call in meeting if call.place == place)
        self.patient.extend([rank] * (not blocks))
        return False

    def _meet(self, meeting: Meeting) -> None:
        """All are there: whoever waited for it goes on."""
        places = tuple(call.place for call in meeting)
        self.open.difference_update(places)
        self.order.append(places)
        for rank, _ in places:
            if self.waiting.get(rank) is meeting:
                self.runnable.append(rank)
                del self.waiting[rank]
                if rank in self.patient:
                    self.patient.remove(rank)


def _circle(waiting: Mapping[int, Meeting], position: Mapping[int, int]) -> str:
    """The message about ranks that wait for each other: each with what it waits in."""
    chain: list[int] = []
    rank = next(iter(waiting))
    while rank not in chain:
        chain.append(rank)
        # A member is there once the rank is past its position.
        rank = next(call.rank for call in waiting[rank] if position[call.rank] <= call.position)
    circle = chain[chain.index(rank) :]
    parts = []
    for rank, other in zip(circle, [*circle[1:], circle[0]], strict=True):
        call = next(call for call in waiting[rank] if call.rank == rank)
        group = f' of the group "{call.group}"' if call.group else ""
        parts.append(f"{call.where} waits in {call}{group} for rank {other}")
    return f"ranks wait for each other: {'; '.join(parts)}"
