"""One step of several ranks as one graph, of the traces that each of them wrote.

``step.py`` makes a graph of each rank's step. Here their ops are put into one order; what
communicates meets that of the other ranks (``simdev.nouns.meetings``) and becomes one op of all,
which the simulated network carries. In the trace of a rank it also waits for the others, so what it
took there is told as the least of all ranks, which only the cost "given" takes.

``simdev import`` and ``simdev compare`` call ``trace_ranks``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from ...ground.errors import InputError, within
from ...nouns.graph import Graph, Op, Tensor
from ...nouns.meetings import Meeting, Place, meetings_of, merged, operands
from .step import MOST_NAMED, Loaded, TraceStep, middle_of, step_of

RANK = re.compile(r"rank[_-]?([0-9]{1,6})", re.IGNORECASE)


@dataclass(frozen=True)
class Joined:
    """The graph of all ranks, the device of each op, the process groups of which only some ranks
    are there (as ``Collectives.groups``), and notes for people.
    """

    graph: Graph
    placement: Mapping[str, str]
    groups: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class RankSteps:
    """The step of several ranks, each as a graph of its own."""

    steps: Mapping[int, TraceStep]

    @property
    def first(self) -> TraceStep:
        """The step of the first rank."""
        return self.steps[min(self.steps)]

    @property
    def communicates(self) -> bool:
        """Whether there is more than the step of a rank alone."""
        return len(self.steps) > 1 or bool(self.first.messages)

    @property
    def figures(self) -> Mapping[str, Any]:
        """Figures of the step for the provenance, of several ranks by rank."""
        if len(self.steps) == 1:
            return self.first.figures
        return {f"rank {rank}": dict(self.steps[rank].figures) for rank in sorted(self.steps)}

    @property
    def notes(self) -> Iterator[str]:
        """Sentences for people, each once, with the ranks where not all have it."""
        ranks: dict[str, list[str]] = {}
        for rank in sorted(self.steps):
            for note in self.steps[rank].notes:
                ranks.setdefault(note, []).append(str(rank))
        for note, named in ranks.items():
            which = f"rank {', '.join(named[:MOST_NAMED])}: "
            yield note if len(named) == len(self.steps) else which + note

    @property
    def world(self) -> int:
        """One more than the greatest rank that is named anywhere."""
        calls = [call for step in self.steps.values() for call in step.messages.values()]
        return 1 + max(
            [*self.steps, *(rank for call in calls for rank in (*call.ranks, call.peer))]
        )

    def joined(self, name: str, devices: Sequence[str]) -> Joined:
        """The graph of all ranks on these devices. Raises InputError."""
        ranks = sorted(self.steps)
        if len(devices) < len(ranks):
            raise InputError(f"--cluster: {len(devices)} devices for {len(ranks)} ranks")
        # A rank is at home on the device of its number, where there are so many.
        places = ranks if ranks[-1] < len(devices) else range(len(ranks))
        writer = _Writer(self.steps, {r: devices[i] for r, i in zip(ranks, places, strict=True)})
        if self.world <= len(devices):
            writer.world = devices
        writer.run()
        notes = tuple(writer.notes())
        return Joined(Graph(name, tuple(writer.ops)), writer.placement, writer.groups, notes)


def trace_ranks(
    texts: Mapping[str, str], device: str | None = None, warm_up: int | None = None
) -> RankSteps:
    """The step of all ranks whose median length, of the slowest rank each, is that of their steps.

    ``texts`` are the traces by the names of their files; ``device`` and ``warm_up`` as for
    ``trace_step``. Raises InputError, with the file.
    """
    files: dict[int, str] = {}
    loaded: dict[int, Loaded] = {}
    for i, (file, text) in enumerate(texts.items()):
        with within(file):
            trace = Loaded.of(text, warm_up)
            rank = _rank_of(file, trace, i if len(texts) == 1 else None)
            if rank in files:
                raise InputError(f"is of rank {rank}, as {files[rank]}")
            files[rank], loaded[rank] = file, trace
    ranks = sorted(loaded)
    counts = {rank: len(loaded[rank].steps) for rank in ranks}
    for rank in ranks:
        if counts[rank] != counts[ranks[0]]:
            raise InputError(
                f"{files[rank]}: rank {rank} has {counts[rank]} steps, but rank {ranks[0]} "
                f"({files[ranks[0]]}) has {counts[ranks[0]]}"
            )
    lengths = [max(step) for step in zip(*(loaded[r].lengths for r in ranks), strict=True)]
    steps = {}
    for rank in ranks:
        with within(files[rank]):
            steps[rank] = step_of(loaded[rank], middle_of(lengths), device, f"rank {rank}")
    return RankSteps(steps)


def _rank_of(file: str, trace: Loaded, default: int | None) -> int:
    """The rank that a trace tells, else the name of its file. Raises InputError."""
    match = RANK.search(os.path.basename(file))
    rank = trace.events.rank
    rank = int(match[1]) if rank is None and match else rank
    if rank is None and default is None:
        raise InputError(
            'tells no rank (distributedInfo), nor does its name ("rank0.json", "rank1.json", ..)'
        )
    return rank or default or 0


@dataclass
class _Writer:
    """The ops of all ranks in one order, while they are written. ``world`` are the devices of all
    ranks, where the cluster has them; ``alone`` counts what met nobody.
    """

    steps: Mapping[int, TraceStep]
    homes: Mapping[int, str]
    world: Sequence[str] = ()
    ops: list[Op] = field(default_factory=list)
    placement: dict[str, str] = field(default_factory=dict)
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    alone: int = 0
    _names: dict[Place, str] = field(default_factory=dict)

    def run(self) -> None:
        """Writes all ops. Raises InputError where the ranks do not fit together."""
        calls = [
            replace(step.messages[op.name], rank=rank, position=i)
            for rank, step in self.steps.items()
            for i, op in enumerate(step.graph.ops)
            if op.name in step.messages
        ]
        meetings = meetings_of(calls, self.steps)
        lengths = {rank: len(step.graph.ops) for rank, step in self.steps.items()}
        for places in merged(lengths, meetings):
            meeting = meetings.of.get(places[0], ())
            group = self._group(meeting)
            if len(meeting) > 1 or group:
                self._meet(meeting, group)
            else:
                self._add(*places[0])
                self.alone += self._op(*places[0]).name in self.steps[places[0][0]].messages

    def notes(self) -> Iterator[str]:
        """Sentences about what communicates."""
        if any("ranks" in op.attrs for op in self.ops):
            yield (
                "communication is simulated on the cluster; what it took in the trace, least of "
                'all ranks, is taken with "collectives": {"cost": "given"}'
            )
        if self.groups:
            yield (
                f"{len(self.steps)} of {len(self.world)} ranks are there: the others are taken to "
                "do the same"
            )
        if self.alone:
            yield (
                f"{self.alone} communications met no other rank: they take what they took in the "
                "trace; give the traces of all ranks, or a --cluster with a device for each"
            )

    def _op(self, rank: int, position: int) -> Op:
        return self.steps[rank].graph.ops[position]

    def _group(self, meeting: Meeting) -> str:
        """The name of the group of which only some ranks are there, "" for any other."""
        if not meeting or meeting[0].is_message or len(meeting) >= len(meeting[0].ranks):
            return ""
        call = meeting[0]
        if not self.world or call.kind == "reduce":
            return ""
        members = tuple(self.world[rank] for rank in call.ranks)
        numbers = (i for i, named in enumerate(self.groups.values()) if named == members)
        number = next(numbers, len(self.groups))
        name = f"{call.group or 'all'} #{number}"
        self.groups[name] = members
        return name

    def _add(self, rank: int, position: int, **changed: Any) -> None:
        """Writes an op of a rank on its device, with changes."""
        op, step = self._op(rank, position), self.steps[rank].graph
        # A send that its rank has passed is written when its receiver is there.
        before = (
            self._names.get((rank, step.index[text]), f"rank {rank}/{text}")
            for text in op.control_inputs
        )
        fields = {"name": f"rank {rank}/{op.name}"} | changed
        self._names[rank, position] = fields["name"]
        self._write(
            replace(
                op,
                inputs=tuple(f"rank {rank}/{text}" for text in op.inputs),
                control_inputs=tuple(dict.fromkeys(before)),
                **fields,
            ),
            self.homes[rank],
        )

    def _write(self, op: Op, device: str) -> None:
        self.ops.append(op)
        self.placement[op.name] = device

    def _meet(self, meeting: Meeting, group: str) -> None:
        """Writes a collective or a message: on each rank an op of no time when the rank is ready,
        and one op of all.
        """
        first, members = meeting[0], [self._op(*call.place) for call in meeting]
        kind = "p2p" if first.is_message else first.kind
        size = max(call.bytes or 0 for call in meeting)
        whole = len(self.groups[group]) if group else 0
        rooted = not first.ranks or first.is_message or first.rank == first.ranks[0]
        read, made = operands(kind, len(meeting), size, whole, rooted)
        ready = []
        for i, call in enumerate(meeting):
            rank, position = call.place
            outputs = tuple(map(Tensor, read[i : i + 1]))
            fields: dict[str, Any] = {"kind": "ready", "time": 0, "attrs": {}, "outputs": outputs}
            self._add(rank, position, name=f"rank {rank}/{call.label} ready", **fields)
            ready.append(self._names[call.place])
        name = f"rank {first.rank}/{first.label}"
        least = min(op.time for op in members if isinstance(op.time, Fraction))
        attrs = {"ranks": [self.homes[call.rank] for call in meeting]}
        self._write(
            Op(
                name,
                kind,
                members[0].phase,
                tuple(ready[: len(read)]),
                tuple(ready[len(read) :]),
                tuple(map(Tensor, made)),
                attrs | ({"group": group} if group else {}),
                time=least,
                host_time=0,
                launches=0,
                # Messages of a batch are under way at once.
                stream=None if first.is_message else members[0].stream,
            ),
            self.homes[first.rank],
        )
        self._names |= dict.fromkeys((call.place for call in meeting), name)
