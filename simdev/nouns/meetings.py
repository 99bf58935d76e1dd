"""The communications of several ranks joined: which calls are one collective, which receive takes
which send, and an order in which the ops of all ranks form one program.

Each rank lists its own communications (from a Chakra trace, a trace of ``torch.profiler``, a
captured script). ``meetings_of`` joins the calls of all ranks, ``merged`` puts their ops into one
order. The bytes and times of a collective are in ``costs``, not here.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..ground.errors import InputError, refuse

SEND, RECEIVE = "send", "recv"
Place = tuple[int, int]
"""A rank, and the position of one of its ops among all ops that it issues."""


@dataclass(frozen=True, slots=True)
class Communication:
    """A collective, a send or a receive, as one rank issues it at a position in its program.

    ``kind`` is the kind of the collective, with its root, if any, as ``peer``; or SEND or RECEIVE,
    with the other rank as ``peer``. ``bytes`` are the share of a rank for an all-gather, else the
    whole buffer; equal on all ranks, except for an all-to-all. ``group`` names the process group
    ("": all ranks), ``ranks`` are its members in order (none: every rank that uses it). In
    ``merged`` a rank stops here until the other ranks have come; after a send that is not
    ``blocking`` it goes on where no other rank can. In a batch of messages the sends come first.
    ``label`` shows people where the call is ("train.py:12").
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
        """The rank and the position."""
        return self.rank, self.position

    @property
    def is_message(self) -> bool:
        """Whether the communication is a message between two ranks."""
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
"""A collective as each of its ranks issues it, in the order of the group; or (send, receive)."""


@dataclass(frozen=True)
class Meetings:
    """``of``: the meeting of every communication that meets others, by its place; ``problems``:
    faults where the ranks do not fit together. A message from or to an absent rank meets nobody.
    """

    of: Mapping[Place, Meeting]
    problems: tuple[str, ...] = ()


def meetings_of(communications: Iterable[Communication], ranks: Collection[int]) -> Meetings:
    """The meetings of these ranks. Communications of each rank come in the order of issue.

    The k-th calls of a group on each of its ranks are one collective; the k-th receive from a rank
    under a tag takes the k-th send.
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
    """The differences at the first collective on which the ranks of a group differ, else a line
    where some ranks issue more collectives.
    """
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
    """Bytes of the operands and of the outputs of a collective op, rank by rank
    (docs/reference/collectives.md), given the ``bytes`` of its communications as ``size``.
    ``members`` is the size of the group where ``ranks`` are only a part of it (0: all); ``rooted``
    then says whether the root is one of them.
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
    """One order of the ops of all ranks that keeps the order of each rank. An entry is the place of
    one op, or all places of a meeting in the order of its members.

    ``lengths`` are the numbers of ops by rank, ``needs`` the earlier communications of the same
    rank that an op waits for. A meeting comes when its last rank has come. Raises InputError with
    the problems of the meetings, and where ranks wait for each other in a circle.
    """
    refuse(meetings.problems)
    merging = _Merging(lengths, meetings, needs)
    merging.run()
    return merging.order


class _Merging:
    """The ranks in turn, each run until it waits for another. ``open`` are communications that were
    issued and whose meetings have not come yet; ``patient`` are ranks that wait in a call that does
    not block.
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
        """Put all ops in order. Raises InputError where ranks wait in a circle."""
        while self.runnable or self.patient:
            # A rank whose call does not block goes on without the others only where no other rank
            # can.
            rank = (self.runnable or self.patient).popleft()
            self.waiting.pop(rank, None)
            while self.position[rank] < self.lengths[rank] and self._goes_on(rank):
                pass
        if self.waiting:
            raise InputError(_circle(self.waiting, self.position))

    def _goes_on(self, rank: int) -> bool:
        """Issue the next op of a rank; returns whether the rank goes on at once."""
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
        """Close a meeting to which all ranks have come: its waiting ranks go on."""
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
    """The message about ranks that wait for each other, with the call that each waits in."""
    chain: list[int] = []
    rank = next(iter(waiting))
    while rank not in chain:
        chain.append(rank)
        # A member has come once its rank is past its position.
        rank = next(call.rank for call in waiting[rank] if position[call.rank] <= call.position)
    circle = chain[chain.index(rank) :]
    parts = []
    for rank, other in zip(circle, [*circle[1:], circle[0]], strict=True):
        call = next(call for call in waiting[rank] if call.rank == rank)
        group = f' of the group "{call.group}"' if call.group else ""
        parts.append(f"{call.where} waits in {call}{group} for rank {other}")
    return f"ranks wait for each other: {'; '.join(parts)}"
