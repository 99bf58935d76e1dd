"""From drafts to the ops of the sharded graph: inputs, attributes, times and memory of every
part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import ceil
from typing import Any

from ...costs import CostModel
from ...errors import InputError
from ...graph import Op
from ...semantics import Shard, operand_shapes, sliced_strides, traits_of
from ...semantics.work import layouts
from ...structure import op_splits
from .geometry import executed
from .layout import Draft
from .plan import Placed
from .sharding import Sharding

_SIZES = ("param_bytes", "grad_bytes", "state_bytes")
_LAYOUT = ("in", "dt", "strides")


def emitted(sharding: Sharding, costs: CostModel) -> list[Draft]:
    """The drafts in program order, each with its inputs and fields.

    What lowering adds stands before its first reader. Raises InputError with every problem at once.
    """
    problems: list[str] = []
    for i in range(len(sharding.graph.ops)):
        try:
            shares = Shares(sharding, i, costs)
            for draft, one in zip(sharding.drafts[i], sharding.parts[i], strict=True):
                _connect(sharding, i, draft, one)
                draft.fields = shares.fields(one)
                sharding.written.append(draft)
        except InputError as error:
            problems += error.problems
        for draft in sharding.stored.get(i, ()):
            sharding.write(draft)
    if problems:
        raise InputError(problems)
    return sharding.written


def _connect(sharding: Sharding, i: int, draft: Draft, one: Placed) -> None:
    """What a part reads and waits for."""
    for operand, tensor in enumerate(sharding.question.read[i]):
        region = one.part.needs[operand]
        if region is not None:
            addend = (
                one.addend if one.addend is not None else sharding.own_statistics(i, tensor, one)
            )
            draft.inputs += sharding.read(tensor, region, one.device, addend)
    graph = sharding.graph
    for name in graph.ops[i].control_inputs:
        draft.control_inputs += [
            other.name for other in sharding.drafts[graph.index[name.removeprefix("^")]]
        ]


class Shares:
    """What the parts of one op have of its attributes, time and memory."""

    def __init__(self, sharding: Sharding, i: int, costs: CostModel) -> None:
        self.sharding, self.i, self.costs, self.op = sharding, i, costs, sharding.graph.ops[i]

    def fields(self, one: Placed) -> dict[str, Any]:
        """The fields of one part's Op."""
        share = one.part.share
        found: dict[str, Any] = {
            "phase": self.op.phase,
            "attrs": self._attrs(one),
            "time": self._time(one),
        }
        weights = self._weight_share(one)
        found |= {name: ceil(getattr(self.op, name) * weights) for name in _SIZES}
        found["workspace_bytes"] = ceil(self.op.workspace_bytes * share)
        return found

    def _attrs(self, one: Placed) -> dict[str, Any]:
        own, graph = one.part, self.sharding.graph
        if not self.op.inputs and "in" not in self.op.attrs:
            return dict(self.op.attrs if own.shard is None else own.shard.attrs)
        shapes, dtypes = executed(graph, self.i, own)
        if own.shard is None or not own.box:
            return {**self.op.attrs, **({"in": shapes, "dt": dtypes} if self.op.inputs else {})}
        kept = {name: value for name, value in own.shard.attrs.items() if name not in _LAYOUT}
        return {**kept, **self._strides(own.shard), "in": shapes, "dt": dtypes}

    def _strides(self, shard: Shard) -> dict[str, Any]:
        """The attribute "strides" of one part: its operands lie as those of the whole op do."""
        told, shapes = (
            layouts(self.op.attrs.get("strides")) or [],
            operand_shapes(self.sharding.graph, self.i),
        )
        pairs = zip(shard.operands, shard.inputs, strict=True)
        found = [
            sliced_strides(told[i], shapes[i] or (), part) if i < len(told) else None
            for i, part in pairs
        ]
        return {"strides": found} if any(found) else {}

    def _time(self, one: Placed) -> Any:
        """The time of one part: of its own shape (None), as given for the whole, or divided where
        that is asked.
        """
        op, share = self.op, one.part.share
        given = op.time.values() if isinstance(op.time, Mapping) else (op.time or 0,)
        free = op.time is not None and not any(given)
        if share == 1 or free or (op.time is None and self.sharding.divided.get(self.i) is None):
            return op.time
        if self.sharding.divided.get(self.i) is None:
            raise InputError(
                f'partition["{op.name}"].time: the time of op "{op.name}" is given for '
                "the whole op; "
                'ask for "time": "divided" to take its share for every part'
            )
        if isinstance(op.time, Mapping):
            return {kind: Fraction(seconds) * share for kind, seconds in op.time.items()}
        if op.time is not None:
            return Fraction(op.time) * share
        return self._divided(share)

    def _divided(self, share: Fraction) -> Mapping[str, Fraction] | None:
        """The cost of the whole op by device kind, divided; None where nobody knows it."""
        kinds = dict.fromkeys(device.kind for device in self.sharding.question.cluster.devices)
        found = {kind: self.costs.cost(self.sharding.graph, self.i, kind) for kind in kinds}
        return {
            kind: cost.seconds * share for kind, cost in found.items() if cost is not None
        } or None

    def _weight_share(self, one: Placed) -> Fraction:
        """The share of the parameters that an op owns; raises InputError where parts would hold the
        same ones.
        """
        share = one.part.share
        if (
            traits_of(self.op.kind).leaf
            or share == 1
            or not any(getattr(self.op, name) for name in _SIZES)
        ):
            return share
        question = self.sharding.question
        weights = {
            s.axis
            for s in op_splits(self.sharding.graph, self.i, question.weights)
            if s.kind == "parameter"
        }
        replicated = [axis for axis, _ in one.part.box if axis not in weights]
        if replicated:
            raise InputError(
                f'partition["{self.op.name}"]: op "{self.op.name}" owns parameters '
                "(param_bytes); split along "
                f'"{replicated[0]}", its parts would hold the same ones, and no op '
                "adds up their gradients: "
                "let an op of kind parameter own them"
            )
        return share


def ops_of(drafts: list[Draft]) -> Iterator[Op]:
    """The ops of the sharded graph."""
    for draft in drafts:
        yield Op(
            name=draft.name,
            kind=draft.kind,
            inputs=tuple(draft.inputs),
            control_inputs=tuple(draft.control_inputs),
            outputs=tuple(draft.tensors),
            **draft.fields,
        )
