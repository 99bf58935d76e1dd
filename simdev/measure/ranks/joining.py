"""One scenario of the steps that ranks issue: a graph in which collectives and messages join them.

The ops of a rank bear its name ("rank 3/layers/0/attention/...") and run on its device; a
collective is one op over the devices of its ranks, a send with its receive one op of kind ``p2p``.
Streams become queues, waits become control inputs, and the order of the graph is one in which every
rank issues its ops as it did. Where only some ranks of a group were captured, these stand for the
others: the collective costs as that of the whole group (``strategy.collectives.groups``).

Which calls of ranks are one, and what a mismatch is, is told in ``nouns.meetings``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...nouns.meetings import RECEIVE, SEND, Communication, Place, meetings_of, merged
from ..kinds import Fields
from .recording import Message
from .writing import RankStep


def joined(steps: Sequence[RankStep], devices: Sequence[str], name: str) -> tuple[Fields, Fields]:
    """The graph and the strategy of a scenario, as files have them.

    ``devices`` are the names of the devices of all ranks of the world. Raises InputError where
    ranks do not fit together: a collective that differs, a receive without a send.
    """
    by_rank = {step.rank: step for step in steps}
    meetings = meetings_of(_calls(steps), by_rank)
    lengths = {rank: len(step.ops) for rank, step in by_rank.items()}
    order = merged(lengths, meetings, _needs(by_rank))
    writer = _Joint(by_rank, devices)
    for places in order:
        writer.write(places)
    _name_streams(writer.ops)
    graph = {"version": 1, "name": name, "ops": writer.ops}
    collectives = {"collectives": {"groups": writer.groups}} if writer.groups else {}
    strategy = {"version": 1, "order": "program", "placement": writer.placement, **collectives}
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
    """By op the communications of its rank behind which it comes."""
    needs = {}
    for rank, step in by_rank.items():
        calls = {step.ops[position]["name"]: position for position in step.messages}
        for position, op in enumerate(step.ops):
            waits = [calls[name] for name in op.get("control_inputs", ()) if name in calls]
            if waits:
                needs[rank, position] = tuple((rank, wait) for wait in waits)
    return needs


class _Joint:
    """Writes the ops of all ranks into one graph; ``names`` are by rank and op how it is called
    there, and ``outputs`` by a rank's message the number of its output. ``groups`` are those of
    which only some ranks are there, by the names that ``group_names`` has by their ranks.
    """

    def __init__(self, by_rank: Mapping[int, RankStep], devices: Sequence[str]) -> None:
        self.by_rank, self.devices = by_rank, devices
        self.ops: list[Fields] = []
        self.placement: dict[str, str] = {}
        self.groups: dict[str, list[str]] = {}
        self.group_names: dict[tuple[int, ...], str] = {}
        self.names: dict[tuple[int, str], str] = {}
        self.outputs: dict[tuple[int, str], int] = {}

    def write(self, places: Sequence[Place]) -> None:
        """Writes an op of one rank, or a communication of several."""
        rank, position = places[0]
        step = self.by_rank[rank]
        if position in step.messages:
            self._write_message(places, step.messages[position])
            return
        op = self._renamed(rank, step.ops[position])
        self.ops.append(op)
        self.placement[op["name"]] = self.devices[rank]

    def _renamed(self, rank: int, op: Fields) -> Fields:
        """The op under the names of the joint graph."""
        name = self.names[rank, op["name"]] = f"rank {rank}/{op['name']}"
        changed = {**op, "name": name}
        for field in ("inputs", "releases"):
            if field in op:
                changed[field] = [self._tensor(rank, text) for text in op[field]]
        if "control_inputs" in op:
            changed["control_inputs"] = [self.names[rank, text] for text in op["control_inputs"]]
        if "colocate" in op:
            changed["colocate"] = f"rank {rank}/{op['colocate']}"
        return changed

    def _tensor(self, rank: int, text: str) -> str:
        """The name of a tensor in the joint graph. A message has one output a rank, all that the
        rank got by it.
        """
        name, _, output = text.rpartition(":")
        if not name or not output.isdigit():
            name, output = text, "0"
        if (rank, name) in self.outputs:
            output = str(self.outputs[rank, name])
        return f"{self.names[rank, name]}:{output}"

    def _write_message(self, places: Sequence[Place], message: Message) -> None:
        kind, group, root = message.kind, message.group, message.root
        if root:
            # The first rank of a collective op is its root.
            group = (*group[root:], *group[:root])
            places = sorted(places, key=lambda place: group.index(place[0]))
        members = [(rank, self.by_rank[rank].ops[position]) for rank, position in places]
        rank, first = members[0]
        name = f"rank {rank}/{first['name']}"
        reading, making = members, members
        if kind in ("p2p", "broadcast"):
            # The root of a broadcast need not be there.
            sends = int(kind == "p2p" or rank == group[0])
            reading, making = members[:sends], members[sends:]
        renamed = [self._renamed(r, op) for r, op in members]
        inputs = self._inputs(reading)
        for number, (r, op) in enumerate(making):
            self.outputs[r, op["name"]] = number
        for r, op in members:
            self.names[r, op["name"]] = name
        self.ops.append({
            "name": name,
            "kind": kind,
            "phase": first["phase"],
            "inputs": inputs,
            "control_inputs": _together(renamed, "control_inputs"),
            "outputs": [_whole(op["outputs"]) for _, op in making],
            "attrs": self._attrs([r for r, _ in members], message, group),
            "releases": _together(renamed, "releases"),
            "blocks_host": any(op.get("blocks_host") for op in renamed),
            **self._stream(kind, members),
        })  # fmt: skip
        self.placement[name] = self.devices[rank]

    def _stream(self, kind: str, members: Sequence[tuple[int, Fields]]) -> Fields:
        """The stream of a communication, as a field. What two ranks send one another in a batch is
        under way at once, so each direction is a stream of its own. Where ranks call their streams
        differently, what they wait for alone tells the order.
        """
        if kind == "p2p":
            return {"stream": " to ".join(str(rank) for rank, _ in members)}
        streams = {op.get("stream") for _, op in members}
        return {"stream": stream} if len(streams) == 1 and (stream := streams.pop()) else {}

    def _inputs(self, reading: Sequence[tuple[int, Fields]]) -> list[str]:
        """Equally many inputs of each rank."""
        count = min((len(op["inputs"]) for _, op in reading), default=0)
        return [self._tensor(r, text) for r, op in reading for text in op["inputs"][:count]]

    def _attrs(
        self, ranks: Sequence[int], message: Message, group: tuple[int, ...]
    ) -> dict[str, Any]:
        attrs: dict[str, Any] = {
            "ranks": [self.devices[rank] for rank in ranks],
            "bytes": message.bytes,
        }
        if message.kind != "p2p" and len(ranks) < len(group):
            attrs["group"] = self._group_name(group)
        return attrs

    def _group_name(self, group: tuple[int, ...]) -> str:
        if group not in self.group_names:
            name = f"ranks {','.join(map(str, group))}"
            if len(name) > 80:
                name = f"{len(group)} ranks, {group[0]} to {group[-1]}"
            while name in self.groups:
                name += "'"
            self.group_names[group] = name
            self.groups[name] = [self.devices[rank] for rank in group]
        return self.group_names[group]


def _name_streams(ops: Sequence[Fields]) -> None:
    """Puts before the name of each stream the kinds of which most run there."""
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
    """A field of several ops, each of its names once."""
    return list(dict.fromkeys(text for op in ops for text in op.get(field, ())))


def _whole(outputs: Sequence[Fields]) -> Fields:
    """All that a rank gets by a message, as one tensor."""
    if len(outputs) == 1:
        return outputs[0]
    return {"bytes": sum(tensor["bytes"] for tensor in outputs)}
