"""Joins one step of several ranks into one graph, from the trace that each rank wrote.

``step.py`` makes a graph of each rank's step, ``measure.joining`` joins them. A communication
becomes one op of all its ranks, which the simulated network carries. Its time in a rank's trace
includes waiting for the other ranks, so the op notes the least time of all ranks, which only the
collective cost "given" uses.

``simdev import`` and ``simdev compare`` call ``trace_ranks``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any

from ...ground.errors import InputError, within
from ...nouns.graph import Graph, Op, Tensor
from ...nouns.meetings import Meeting, operands
from ..joining import Joint
from .step import MOST_NAMED, Loaded, TraceStep, middle_of, step_of

RANK = re.compile(r"rank[_-]?([0-9]{1,6})", re.IGNORECASE)


@dataclass(frozen=True)
class Joined:
    """The graph of all ranks, the device of each op, the process groups of which only some ranks
    have traces (as in ``Collectives.groups``), and notes for people.
    """

    graph: Graph
    placement: Mapping[str, str]
    groups: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class RankSteps:
    """The step of several ranks, with a separate graph for each rank."""

    steps: Mapping[int, TraceStep]

    @property
    def first(self) -> TraceStep:
        """The step of the first rank."""
        return self.steps[min(self.steps)]

    @property
    def communicates(self) -> bool:
        """Whether there are several ranks, or communications in the trace of a single rank."""
        return len(self.steps) > 1 or bool(self.first.messages)

    @property
    def figures(self) -> Mapping[str, Any]:
        """Figures of the step for the provenance; where there are several ranks, by rank."""
        if len(self.steps) == 1:
            return self.first.figures
        return {f"rank {rank}": dict(self.steps[rank].figures) for rank in sorted(self.steps)}

    @property
    def notes(self) -> Iterator[str]:
        """Sentences for people, each once; a sentence of only some ranks names them."""
        ranks: dict[str, list[str]] = {}
        for rank in sorted(self.steps):
            for note in self.steps[rank].notes:
                ranks.setdefault(note, []).append(str(rank))
        for note, named in ranks.items():
            which = f"rank {', '.join(named[:MOST_NAMED])}: "
            yield note if len(named) == len(self.steps) else which + note

    @property
    def world(self) -> int:
        """The size of the world: one more than the greatest rank that a trace names."""
        calls = [call for step in self.steps.values() for call in step.messages.values()]
        return 1 + max(
            [*self.steps, *(rank for call in calls for rank in (*call.ranks, call.peer))]
        )

    def joined(self, name: str, devices: Sequence[str]) -> Joined:
        """The graph of all ranks on these devices. Raises InputError."""
        ranks = sorted(self.steps)
        if len(devices) < len(ranks):
            raise InputError(f"--cluster: {len(devices)} devices for {len(ranks)} ranks")
        # A rank runs on the device of its number, where there are enough devices.
        places = ranks if ranks[-1] < len(devices) else range(len(ranks))
        homes = {rank: devices[i] for rank, i in zip(ranks, places, strict=True)}
        if self.world <= len(devices):
            homes = dict(enumerate(devices))
        joint = _Traced(self.steps, homes)
        graph = Graph(name, tuple(Op(**op) for op in joint.ops))
        return Joined(graph, joint.placement, joint.groups, tuple(joint.notes(len(devices))))


def trace_ranks(
    texts: Mapping[str, str], device: str | None = None, warm_up: int | None = None
) -> RankSteps:
    """The step of median length, for all ranks; the length of a step is that of its slowest rank.

    ``texts`` are the traces by file name, ``device`` is as for ``step_of``, and the first
    ``warm_up`` steps are left out (None: one step, where there are three or more). Raises
    InputError, with the file.
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
    """The rank of a trace, by its head, else by its file's name, else ``default``. Raises
    InputError.
    """
    match = RANK.search(os.path.basename(file))
    rank = trace.events.rank
    rank = int(match[1]) if rank is None and match else rank
    if rank is None and default is None:
        raise InputError(
            'tells no rank (distributedInfo), nor does its name ("rank0.json", "rank1.json", ..)'
        )
    return rank or default or 0


class _Traced(Joint):
    """Writes a meeting as one op of all its ranks, after an op of no time on each rank that carries
    the rank's host time. ``alone`` counts the communications that match no other rank's.
    """

    def __init__(self, steps: Mapping[int, TraceStep], homes: Mapping[int, str]) -> None:
        names = [field.name for field in fields(Op)]
        programs = {
            rank: [{name: getattr(op, name) for name in names} for op in step.graph.ops]
            for rank, step in steps.items()
        }
        super().__init__(programs, homes)
        self.alone = 0
        self.run(
            replace(step.messages[op.name], rank=rank, position=i)
            for rank, step in steps.items()
            for i, op in enumerate(step.graph.ops)
            if op.name in step.messages
        )

    def notes(self, world: int) -> Iterator[str]:
        """Sentences about the communications, in a world of ``world`` devices."""
        if any("ranks" in op["attrs"] for op in self.ops):
            yield (
                "communication is simulated on the cluster; what it took in the trace, least of "
                'all ranks, is taken with "collectives": {"cost": "given"}'
            )
        if self.groups:
            yield (
                f"{len(self.programs)} of {world} ranks are there: the others are taken to do the "
                "same"
            )
        if self.alone:
            yield (
                f"{self.alone} communications met no other rank: they take what they took in the "
                "trace; give the traces of all ranks, or a --cluster with a device for each"
            )

    def meet(self, meeting: Meeting) -> None:
        first = meeting[0]
        # The root of a partial reduce is not known.
        group = {} if first.kind == "reduce" else self.group(meeting, first.ranks)
        if len(meeting) == 1 and not group:
            self.add(*first.place)
            self.alone += 1
            return
        members = [self.programs[call.rank][call.position] for call in meeting]
        kind = "p2p" if first.is_message else first.kind
        size = max(call.bytes or 0 for call in meeting)
        rooted = not first.ranks or first.is_message or first.rank == first.ranks[0]
        whole = len(first.ranks) if group else 0
        read, made = operands(kind, len(meeting), size, whole, rooted)
        ready = [f"rank {call.rank}/{call.label} ready" for call in meeting]
        for i, call in enumerate(meeting):
            outputs = tuple(map(Tensor, read[i : i + 1]))
            self.add(*call.place, name=ready[i], kind="ready", time=0, attrs={}, outputs=outputs)
        op = {
            "name": f"rank {first.rank}/{first.label}",
            "kind": kind,
            "phase": members[0]["phase"],
            "inputs": ready[: len(read)],
            "control_inputs": ready[len(read) :],
            "outputs": tuple(map(Tensor, made)),
            "attrs": {"ranks": [self.homes[call.rank] for call in meeting]} | group,
            "time": min(op["time"] for op in members if isinstance(op["time"], Fraction)),
            "host_time": 0,
            "launches": 0,
            # Messages of a batch are in flight at the same time.
            "stream": None if first.is_message else members[0]["stream"],
        }
        self.write_meeting(op, meeting)
