"""Joins the steps of several ranks into one graph, at their collectives and messages.

The name of an op begins with its rank ("rank 3/layers/0/wq/matmul"); it runs on the rank's device.
Every rank issues its ops in its own order. ``nouns.meetings`` decides which calls of different
ranks are the same communication (a *meeting*), and what a mismatch is. Captured scripts
(``ranks/joining.py``) and traces (``traces/ranks.py``) write meetings differently; both derive from
``Joint``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..nouns.meetings import Communication, Meeting, Place, meetings_of, merged
from .kinds import Fields


class Joint:
    """The joint graph while it is written: the ops of all ranks in one order, and their devices.

    ``programs`` lists, by rank, the fields of its ops in the order of issue; ``homes`` maps ranks
    to devices. Where a cluster has devices for the whole world, ``homes`` has all of its ranks, and
    ``groups`` collects the devices of process groups of which only some ranks have programs.
    """

    def __init__(self, programs: Mapping[int, Sequence[Fields]], homes: Mapping[int, str]) -> None:
        self.programs, self.homes = programs, homes
        self.ops: list[Fields] = []
        self.placement: dict[str, str] = {}
        self.groups: dict[str, tuple[str, ...]] = {}
        # By rank and an op's name there: its name in the joint graph and, for a message, the number
        # of the output that holds everything that the rank received.
        self.names: dict[tuple[int, str], str] = {}
        self.outputs: dict[tuple[int, str], int] = {}
        self._group_names: dict[tuple[int, ...], str] = {}

    def run(
        self,
        communications: Iterable[Communication],
        needs: Mapping[Place, Sequence[Place]] = {},
    ) -> None:
        """Writes all ops; ``needs`` is as for ``merged``. Raises InputError where communications of
        the ranks do not match.
        """
        calls = {call.place: call for call in communications}
        lengths = {rank: len(ops) for rank, ops in self.programs.items()}
        for places in merged(lengths, meetings_of(calls.values(), self.programs), needs):
            if places[0] in calls:
                self.meet(tuple(calls[place] for place in places))
            else:
                self.add(*places[0])

    def meet(self, meeting: Meeting) -> None:
        """Writes a collective, a message with both ends, or a call that no other rank matches."""
        raise NotImplementedError

    def op(self, rank: int, position: int) -> Fields:
        """The op of a rank with its names replaced by those of the joint graph."""
        op = self.programs[rank][position]
        name = self.names[rank, op["name"]] = f"rank {rank}/{op['name']}"
        changed = {**op, "name": name}
        for field in ("inputs", "releases"):
            if op.get(field):
                changed[field] = [self.tensor(rank, text) for text in op[field]]
        if op.get("control_inputs"):
            # A send may not have a name yet: it is written when its receiver arrives.
            before = (self.names.get((rank, n), f"rank {rank}/{n}") for n in op["control_inputs"])
            changed["control_inputs"] = list(dict.fromkeys(before))
        if op.get("colocate"):
            changed["colocate"] = f"rank {rank}/{op['colocate']}"
        return changed

    def tensor(self, rank: int, text: str) -> str:
        """The name, in the joint graph, of a rank's tensor."""
        name, _, output = text.rpartition(":")
        if not name or not output.isdigit():
            name, output = text, "0"
        return f"{self.names[rank, name]}:{self.outputs.get((rank, name), output)}"

    def add(self, rank: int, position: int, **changed: object) -> None:
        """Writes an op of a rank on its device, with ``changed`` fields."""
        self.write(self.op(rank, position) | changed, rank)

    def write(self, op: Fields, rank: int) -> None:
        """Writes an op of the joint graph on the device of a rank."""
        self.ops.append(op)
        self.placement[op["name"]] = self.homes[rank]

    def write_meeting(self, op: Fields, meeting: Meeting) -> None:
        """Writes the one op of all calls of a meeting, on the device of the first call's rank."""
        self.write(op, meeting[0].rank)
        for call in meeting:
            self.names[call.rank, self.programs[call.rank][call.position]["name"]] = op["name"]

    def group(self, meeting: Meeting, ranks: tuple[int, ...]) -> Fields:
        """The attribute ``group`` of a collective of which only some of the ``ranks`` have
        programs; nothing for any other communication.
        """
        is_whole = meeting[0].is_message or len(meeting) >= len(ranks)
        if is_whole or not self.homes.keys() >= set(ranks):
            return {}
        if ranks not in self._group_names:
            name = f"ranks {','.join(map(str, ranks))}"
            if len(name) > 80:
                name = f"{len(ranks)} ranks, {ranks[0]} to {ranks[-1]}"
            while name in self.groups:
                name += "'"
            self._group_names[ranks] = name
            self.groups[name] = tuple(self.homes[rank] for rank in ranks)
        return {"group": self._group_names[ranks]}
