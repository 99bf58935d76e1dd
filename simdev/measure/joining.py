"""One graph of the steps of several ranks, in which collectives and messages join their ops.

The ops of a rank bear its name ("rank 3/layers/0/wq/matmul") and run on its device. In the graph
every rank issues its ops in its own order. Which communications of ranks are one, and what a
mismatch is, is told in ``nouns.meetings``; what is written of a meeting differs between captured
scripts (``ranks/joining.py``) and traces (``traces/ranks.py``), which derive from ``Joint``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..nouns.meetings import Communication, Meeting, Place, meetings_of, merged
from .kinds import Fields


class Joint:
    """The ops of all ranks in one order, while they are written, and the device of each op.

    ``programs`` are by rank the fields of its ops in the order of issue, ``homes`` the devices of
    ranks. Where a cluster has devices for the whole world, ``homes`` has all of its ranks, and
    ``groups`` collects the devices of process groups of which only some ranks have programs.
    """

    def __init__(self, programs: Mapping[int, Sequence[Fields]], homes: Mapping[int, str]) -> None:
        self.programs, self.homes = programs, homes
        self.ops: list[Fields] = []
        self.placement: dict[str, str] = {}
        self.groups: dict[str, tuple[str, ...]] = {}
        # By rank and name of an op its name in the joint graph; of a message, the number of the
        # output that holds all that the rank got by it.
        self.names: dict[tuple[int, str], str] = {}
        self.outputs: dict[tuple[int, str], int] = {}
        self._group_names: dict[tuple[int, ...], str] = {}

    def run(
        self,
        communications: Iterable[Communication],
        needs: Mapping[Place, Sequence[Place]] = {},
    ) -> None:
        """Writes all ops; ``needs`` as for ``merged``. Raises InputError where the ranks do not
        fit together.
        """
        calls = {call.place: call for call in communications}
        lengths = {rank: len(ops) for rank, ops in self.programs.items()}
        for places in merged(lengths, meetings_of(calls.values(), self.programs), needs):
            if places[0] in calls:
                self.meet(tuple(calls[place] for place in places))
            else:
                self.add(*places[0])

    def meet(self, meeting: Meeting) -> None:
        """Writes a collective, a message with both of its ends, or one that met no other rank."""
        raise NotImplementedError

    def op(self, rank: int, position: int) -> Fields:
        """The op of a rank under the names of the joint graph."""
        op = self.programs[rank][position]
        name = self.names[rank, op["name"]] = f"rank {rank}/{op['name']}"
        changed = {**op, "name": name}
        for field in ("inputs", "releases"):
            if op.get(field):
                changed[field] = [self.tensor(rank, text) for text in op[field]]
        if op.get("control_inputs"):
            # A send that its rank has passed is written when its receiver is there.
            before = (self.names.get((rank, n), f"rank {rank}/{n}") for n in op["control_inputs"])
            changed["control_inputs"] = list(dict.fromkeys(before))
        if op.get("colocate"):
            changed["colocate"] = f"rank {rank}/{op['colocate']}"
        return changed

    def tensor(self, rank: int, text: str) -> str:
        """The name of a tensor of a rank in the joint graph."""
        name, _, output = text.rpartition(":")
        if not name or not output.isdigit():
            name, output = text, "0"
        return f"{self.names[rank, name]}:{self.outputs.get((rank, name), output)}"

    def add(self, rank: int, position: int, **changed: object) -> None:
        """Writes an op of a rank on its device, with changes."""
        self.write(self.op(rank, position) | changed, rank)

    def write(self, op: Fields, rank: int) -> None:
        """Writes an op of the joint graph on the device of a rank."""
        self.ops.append(op)
        self.placement[op["name"]] = self.homes[rank]

    def write_meeting(self, op: Fields, meeting: Meeting) -> None:
        """Writes the op that all calls of a meeting become, on the device of the first."""
        self.write(op, meeting[0].rank)
        for call in meeting:
            self.names[call.rank, self.programs[call.rank][call.position]["name"]] = op["name"]

    def group(self, meeting: Meeting, ranks: tuple[int, ...]) -> Fields:
        """The attribute that names the group of a collective, of which only some of the ``ranks``
        are there; none for any other.
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
