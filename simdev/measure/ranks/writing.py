"""The ops of a graph, of what was recorded of a rank: plain data that another process can join.

``RankWriter`` is the writer of ``capture`` for a rank by itself: an op has a stream, waits for the
ops for which its stream waits, and writes no new memory where it writes in place. What the rank
sends stays a message; ``joining`` makes one graph of all ranks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from ...nouns.semantics import traits_of
from ..capture import Writer
from ..kinds import Fields
from .recording import Message, RankRecorder, key_of, local
from .streams import DEFAULT


@dataclass(frozen=True)
class RankStep:
    """What a rank issues in a step.

    ``ops`` are ops as a graph file has them, in the order of issue, without the rank in their
    names; those at the positions of ``messages`` send or receive. ``notes`` tell a person what was
    assumed.
    """

    rank: int
    ops: list[Fields]
    messages: Mapping[int, Message]
    notes: tuple[str, ...]

    @property
    def fingerprint(self) -> str:
        """Equal for ranks that do the same at other places of the world."""
        told = [
            (m.kind, m.bytes, len(m.group), m.group[-1] - m.group[0], m.sends, m.tag)
            for m in self.messages.values()
        ]
        # Numbers among the attributes may tell where in the world a rank is.
        ops = [
            {**op, "attrs": op["attrs"].get("in")} if "attrs" in op else op for op in self.ops
        ]
        text = json.dumps([ops, list(self.messages), told], sort_keys=True)
        return sha256(text.encode()).hexdigest()


class RankWriter(Writer):
    """Writes the ops of a rank, in the order in which its host issued them."""

    recorder: RankRecorder

    def __init__(self, recorder: RankRecorder) -> None:
        super().__init__(recorder, _leaf_names(recorder))
        self.messages: dict[int, Message] = {}
        self.positions: dict[int, int] = {}
        self._behind: dict[str, int] = {}

    def step(self) -> RankStep:
        """All ops of the step."""
        self.write_step()
        for index, size in self.recorder.states.items():
            if index in self.positions:
                self.ops[self.positions[index]]["state_bytes"] = size
        recorder = self.recorder
        return RankStep(recorder.rank, self.ops, self.messages, tuple(recorder.notes))

    def _write_leaf(self, index: int, record: object) -> None:
        super()._write_leaf(index, record)  # type: ignore[arg-type]
        self.positions[index] = len(self.ops) - 1

    def _write_record(self, index: int, record: object) -> None:
        super()._write_record(index, record)  # type: ignore[arg-type]
        position = self.positions[index] = len(self.ops) - 1
        op, recorder = self.ops[position], self.recorder
        for tensor, there in zip(op["outputs"], recorder.placed.get(index, ()), strict=False):
            if there:
                tensor["bytes"] = 0
        stream, before = recorder.issued[index]
        if stream != DEFAULT:
            op["stream"] = stream
        if index in recorder.messages:
            self.messages[position] = recorder.messages[index]
        waits = sorted(self._names[i] for i in self._needed(index, stream, before))
        if waits:
            op["control_inputs"] = waits
        if index in recorder.streams.blocking:
            op["blocks_host"] = True

    def _needed(self, index: int, stream: str, before: frozenset[int]) -> set[int]:
        """Of the records before, those behind which the order of the stream's queue does not put
        the op anyway: of other streams, and messages, which stand in no queue of a device.
        """
        recorder = self.recorder
        return {
            i
            for i in before
            if i in recorder.messages or index in recorder.messages or recorder.issued[i][0] != stream
        }

    def _scope(self, instance: object) -> str:
        return super()._scope(instance)  # type: ignore[arg-type]


def _leaf_names(recorder: RankRecorder) -> dict[int, str]:
    """The names of the leaves that are parameters, by record."""
    names = {}
    for prefix, module in recorder.scopes.roots:
        for name, parameter in module.named_parameters(prefix=prefix):
            index = recorder.parameters.get(key_of(local(parameter)))
            if index is not None:
                names.setdefault(index, name)
    for index, record in enumerate(recorder.records):
        if traits_of(record.kind).leaf == "parameter":
            names.setdefault(index, "parameter")
    return names
