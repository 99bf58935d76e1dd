"""Joins captured ranks into the graph and strategy of a scenario.

A collective is one op over the devices of its ranks; a send and its receive are one op of kind
``p2p``. ``measure.joining`` holds the part that is common with traces. Streams become queues, waits
become control inputs. Where only some ranks of a group were captured,
they represent the others: the collective costs as much as that of the whole group
(``strategy.collectives.groups``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ...nouns.meetings import RECEIVE, SEND, Communication, Meeting, Place
from ..joining import Joint
from ..kinds import Fields
from .writing import RankStep


def joined(steps: Sequence[RankStep], devices: Sequence[str], name: str) -> tuple[Fields, Fields]:
    """The graph and the strategy of a scenario, in the format of files.

    ``devices`` are the names of the devices of all ranks of the world. Raises InputError where
    ranks do not match: a collective that differs, or a receive without a send.
    """
    by_rank = {step.rank: step for step in steps}
    joint = _Captured(by_rank, devices)
    joint.run(_calls(steps), _needs(by_rank))
    _name_streams(joint.ops)
    graph = {"version": 1, "name": name, "ops": joint.ops}
    groups = {name: list(members) for name, members in joint.groups.items()}
    collectives = {"collectives": {"groups": groups}} if groups else {}
    strategy = {"version": 1, "order": "program", "placement": joint.placement, **collectives}
    return graph, strategy


def _calls(steps: Iterable[RankStep]) -> Iterator[Communication]:
    for step in steps:
        for position, message in sorted(step.messages.items()):
            kind, group = message.kind, message.group
            if kind == "p2p":
                kind = SEND if message.sends else RECEIVE
            yield Communication(
                step.rank,
                position,
                kind,
                message.bytes,
                f"{message.name}: ranks {group[0]} to {group[-1]}",
                group,
                -1 if message.peer is None else message.peer,
                message.tag,
                blocking=False,
                label=message.place or step.ops[position]["name"],
            )


def _needs(by_rank: Mapping[int, RankStep]) -> dict[Place, tuple[Place, ...]]:
    """For each op, the communications of its rank that must come before it."""
    needs = {}
    for rank, step in by_rank.items():
        calls = {step.ops[position]["name"]: position for position in step.messages}
        for position, op in enumerate(step.ops):
            waits = [calls[name] for name in op.get("control_inputs", ()) if name in calls]
            if waits:
                needs[rank, position] = tuple((rank, wait) for wait in waits)
    return needs


class _Captured(Joint):
    """Writes a meeting as one op that its ranks dispatch together."""

    def __init__(self, by_rank: Mapping[int, RankStep], devices: Sequence[str]) -> None:
        programs = {rank: step.ops for rank, step in by_rank.items()}
        super().__init__(programs, dict(enumerate(devices)))
        self.by_rank = by_rank

    def meet(self, meeting: Meeting) -> None:
        message = self.by_rank[meeting[0].rank].messages[meeting[0].position]
        kind, group, root = message.kind, message.group, message.root
        if root:
            # The first rank of a collective op is its root.
            group = (*group[root:], *group[:root])
            meeting = tuple(sorted(meeting, key=lambda call: group.index(call.rank)))
        ranks = [call.rank for call in meeting]
        members = [self.op(*call.place) for call in meeting]
        texts = [self.programs[call.rank][call.position]["name"] for call in meeting]
        reads, makes = range(len(meeting)), range(len(meeting))
        if kind in ("p2p", "broadcast"):
            # The root of a broadcast may not have been captured.
            sends = int(kind == "p2p" or ranks[0] == group[0])
            reads, makes = reads[:sends], makes[sends:]
        # The op takes the same number of inputs of each rank.
        count = min((len(members[i]["inputs"]) for i in reads), default=0)
        for number, i in enumerate(makes):
            self.outputs[ranks[i], texts[i]] = number
        attrs = {"ranks": [self.homes[rank] for rank in ranks], "bytes": message.bytes}
        op = {
            "name": members[0]["name"],
            "kind": kind,
            "phase": members[0]["phase"],
            "inputs": [text for i in reads for text in members[i]["inputs"][:count]],
            "control_inputs": _together(members, "control_inputs"),
            "outputs": [_whole(members[i]["outputs"]) for i in makes],
            "attrs": attrs | self.group(meeting, group),
            "releases": _together(members, "releases"),
            "blocks_host": any(op.get("blocks_host") for op in members),
            **_stream(kind, ranks, members),
        }
        self.write_meeting(op, meeting)


def _stream(kind: str, ranks: Sequence[int], members: Sequence[Fields]) -> Fields:
    """The field ``stream`` of a communication. Messages between two ranks in a batch are in flight
    at the same time, so each direction is a separate stream. Where ranks name their streams
    differently there is no field: their waits alone determine the order.
    """
    if kind == "p2p":
        return {"stream": " to ".join(map(str, ranks))}
    streams = {op.get("stream") for op in members}
    return {"stream": stream} if len(streams) == 1 and (stream := streams.pop()) else {}


def _name_streams(ops: Sequence[Fields]) -> None:
    """Prefixes the name of each stream with its two most frequent kinds of ops."""
    kinds: dict[str, Counter[str]] = {}
    for op in ops:
        if "stream" in op:
            kinds.setdefault(op["stream"], Counter())[op["kind"]] += 1
    most = {stream: [kind for kind, _ in here.most_common(2)] for stream, here in kinds.items()}
    names = {stream: f"{', '.join(here)} ({stream})" for stream, here in most.items()}
    for op in ops:
        if "stream" in op:
            op["stream"] = names[op["stream"]]


def _together(ops: Iterable[Fields], field: str) -> list[str]:
    """The names in a field of several ops, each once."""
    return list(dict.fromkeys(text for op in ops for text in op.get(field, ())))


def _whole(outputs: Sequence[Fields]) -> Fields:
    """The outputs of a message on its receiver, as one tensor."""
    if len(outputs) == 1:
        return outputs[0]
    return {"bytes": sum(tensor["bytes"] for tensor in outputs)}
