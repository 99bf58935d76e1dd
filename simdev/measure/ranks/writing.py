"""Makes the ops of a graph from the records of a rank: plain data, which the parent process joins.

``RankWriter`` extends the writer of ``capture`` to a single rank of a world: an op has a stream,
waits for the ops for which its stream waits, and has no new memory where it writes in place.
Communications remain messages; ``joining`` makes one graph of all ranks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import takewhile

from ...nouns.semantics import traits_of
from ..capture import Writer
from ..kinds import Fields
from ..record import Record, key_of
from .pretend import Rank
from .recording import Message, RankRecorder
from .scopes import local, unwrapped
from .streams import DEFAULT


@dataclass(frozen=True)
class RankStep:
    """The ops that a rank issues in a step.

    ``ops`` are in the format of a graph file, in the order of issue, without the rank in their
    names; the ops at the positions of ``messages`` communicate. ``notes`` are assumptions, for
    people. ``named`` are the ranks with which the script compared its rank.
    """

    rank: int
    ops: list[Fields]
    messages: Mapping[int, Message]
    notes: tuple[str, ...]
    named: tuple[int, ...] = ()

    @property
    def fingerprint(self) -> str:
        """A hash that is equal for ranks which do the same at different places in the world."""
        # Several groups may have the same ranks: their order matters.
        names = {m.name: m.group for m in self.messages.values()}
        order = sorted(names, key=lambda name: (len(name), name))
        calls = [
            (
                m.kind,
                m.bytes,
                len(m.group),
                m.group[-1] - m.group[0],
                m.sends,
                m.root,
                m.tag,
                [n for n in order if names[n] == m.group].index(m.name),
            )
            for m in self.messages.values()
        ]
        # Numbers in attributes, and names of streams, may depend on the rank's place in the world.
        streams: dict[str, int] = {}
        ops = [
            {
                **op,
                "attrs": op.get("attrs", {}).get("in"),
                "stream": streams.setdefault(op.get("stream", DEFAULT), len(streams)),
            }
            for op in self.ops
        ]
        text = json.dumps([ops, list(self.messages), calls], sort_keys=True)
        return sha256(text.encode()).hexdigest()


HOST, WAITS = "host", "waits"
"""The kind of an op in which the host waits, and the stream of such ops."""


class RankWriter(Writer):
    """Writes the ops of a rank, in the order in which its host issued them."""

    recorder: RankRecorder

    def __init__(self, recorder: RankRecorder) -> None:
        super().__init__(recorder, _leaf_names(recorder))
        self.messages: dict[int, Message] = {}
        self._paths: dict[int, str | None] = {}

    def step(self) -> RankStep:
        """Writes all ops of the step."""
        self.write_step()
        recorder = self.recorder
        notes, named = tuple(recorder.notes), tuple(sorted(Rank.named))
        return RankStep(recorder.rank, self.ops, self.messages, notes, named)

    def _write_leaf(self, index: int, record: Record) -> None:
        gradient = self.recorder.persistent.get(index)
        if gradient == "":
            # Other tensors that outlive the step, such as buffers, take memory like parameters.
            record = replace(record, kind="parameter")
        super()._write_leaf(index, record)
        self._paths[index] = None
        if gradient:
            self.ops[-1]["grad_bytes"] = record.outputs[0].bytes
            self.ops[-1]["outputs"][0]["bytes"] = 0
        if index in self.recorder.states:
            self.ops[-1]["state_bytes"] = self.recorder.states[index]
            self._paths[index] = self.leaves[index].rpartition(".")[0]

    def _path(self, index: int, record: Record) -> str | None:
        """The path of the module to which an op belongs, None where it is not known. Messages, the
        copies around them and sums of gradients may run in hooks of any module; they belong to the
        module of their inputs.
        """
        running = record.instance[-1][0] if record.instance else None
        recorder = self.recorder
        moves = traits_of(record.kind).packs or index in recorder.orphans
        if index not in recorder.messages and not moves:
            return running
        paths = [self._paths[i] for i, _ in record.sources]
        known = [path.split(".") for path in paths if path is not None]
        if not known:
            return running
        together = zip(*known, strict=False)
        return ".".join(parts[0] for parts in takewhile(lambda p: len(set(p)) == 1, together))

    def _write_record(self, index: int, record: Record) -> None:
        path = self._path(index, record)
        self._paths[index] = path
        if path is not None and (not record.instance or path != record.instance[-1][0]):
            record = replace(record, instance=((path, 0),))
        super()._write_record(index, record)
        op, recorder = self.ops[-1], self.recorder
        shared = recorder.shared.get(index, ())
        for number, there in enumerate(recorder.placed.get(index, ())):
            tensor = op["outputs"][number]
            if there:
                tensor["bytes"] = 0
            elif shared and shared[number] < number:
                tensor["view_of"] = shared[number]
        stream, before = recorder.issued[index]
        if stream != DEFAULT:
            op["stream"] = stream
        if index in recorder.messages:
            self.messages[len(self.ops) - 1] = recorder.messages[index]
        waits = sorted(self._names[i] for i in self._needed(index, stream, before))
        if waits:
            op["control_inputs"] = waits
        self._write_wait(index, record.phase)

    def _write_wait(self, index: int, phase: str) -> None:
        """Writes the host's wait after the op that it issued last. A wait for that op alone is a
        mark on the op; a wait for others, which may have been issued long before, is an extra op of
        no time.
        """
        ops = self.recorder.streams.waits.get(index, set())
        if ops == {index}:
            self.ops[-1]["blocks_host"] = True
        elif ops:
            self.ops.append({
                "name": self._unique(HOST), "kind": HOST, "phase": phase, "inputs": [],
                "outputs": [], "control_inputs": sorted(self._names[i] for i in ops),
                "time": 0, "host_time": 0, "blocks_host": True, "stream": WAITS,
            })  # fmt: skip

    def _needed(self, index: int, stream: str, before: frozenset[int]) -> set[int]:
        """The records in ``before`` that need a control input, because the queue of the op's stream
        does not order them: those of other streams, and messages, which are in no device's queue.
        """
        recorder = self.recorder
        return {
            i
            for i in before
            if i in recorder.messages
            or index in recorder.messages
            or recorder.issued[i][0] != stream
        }


def _leaf_names(recorder: RankRecorder) -> dict[int, str]:
    """The names of the leaves that are parameters, by record."""
    names = {index: name for index, name in recorder.persistent.items() if name}
    for prefix, module in recorder.scopes.roots:
        for name, parameter in module.named_parameters(prefix=prefix):
            index = recorder.parameters.get(key_of(local(parameter)))
            if index is not None:
                names.setdefault(index, unwrapped(name))
    for index, record in enumerate(recorder.records):
        if traits_of(record.kind).leaf == "parameter":
            names.setdefault(index, "parameter")
    return names
