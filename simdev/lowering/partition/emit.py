"""From drafts to the ops of the sharded graph: inputs, attributes, times and memory of every
part.

``partition`` calls it last. ``Shares`` also serves ``oracle.splits`` and the symmetry of replicas.
A new field of ``nouns.graph.Op`` that is divided among parts belongs in ``Shares.fields``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from math import ceil
from typing import Any

from ...costs import CostModel
from ...ground.errors import InputError, collecting, refuse
from ...nouns.graph import Op
from ...nouns.semantics import operand_shapes, sliced_strides, traits_of
from ...nouns.semantics.work import layouts
from ...nouns.structure import op_splits
from .geometry import Kernel, executed
from .layout import ShardDraft
from .problem import Placed
from .sharding import Sharding

KEPT_SIZES = ("param_bytes", "grad_bytes", "state_bytes")
_LAYOUT = ("in", "dt", "strides")


def emitted(sharding: Sharding, costs: CostModel) -> list[ShardDraft]:
    """The drafts in program order, each with its inputs and fields.

    Ops that lowering adds come before their first reader. Raises InputError with every problem at
    once.
    """
    problems: list[str] = []
    for i in range(len(sharding.graph.ops)):
        with collecting(problems):
            shares = Shares(sharding, i, costs)
            for draft, placed in zip(sharding.drafts[i], sharding.parts[i], strict=True):
                _connect(sharding, i, draft, placed)
                draft.fields = shares.fields(placed)
                sharding.written.append(draft)
        for draft in sharding.stored.get(i, ()):
            sharding.write(draft)
    refuse(problems)
    return sharding.written


def _connect(sharding: Sharding, i: int, draft: ShardDraft, placed: Placed) -> None:
    """Write the inputs and control inputs of a part."""
    for operand in range(len(sharding.problem.read[i])):
        draft.inputs += sharding.read(i, operand, placed)
    graph = sharding.graph
    waits = (graph.index[name.removeprefix("^")] for name in graph.ops[i].control_inputs)
    draft.control_inputs += [
        other.name for producer in waits for other in sharding.drafts[producer]
    ]


class Shares:
    """The shares of one op's attributes, time and memory that its parts get."""

    def __init__(self, sharding: Sharding, i: int, costs: CostModel) -> None:
        self.sharding, self.i, self.costs, self.op = sharding, i, costs, sharding.graph.ops[i]

    def fields(self, placed: Placed) -> dict[str, Any]:
        """The fields of one part's Op. Raises InputError."""
        attrs, time, share = self._attrs(placed), self._time(placed), self._weight_share(placed)
        # Rounded up, so that parts of uneven size never hold less than the whole.
        sizes = {name: ceil(getattr(self.op, name) * share) for name in KEPT_SIZES}
        sizes["workspace_bytes"] = ceil(self.op.workspace_bytes * placed.part.share)
        kept = ("phase", "host_time", "launches", "blocks_host", "stream")
        same = {name: getattr(self.op, name) for name in kept}
        return {"attrs": attrs, "time": time, **sizes, **same}

    def _attrs(self, placed: Placed) -> dict[str, Any]:
        op, kernel = self.op, placed.part.kernel
        if not op.inputs and "in" not in op.attrs:
            return dict(op.attrs if kernel is None else kernel.attrs)
        shapes, dtypes = executed(self.sharding.graph, self.i, placed.part)
        if kernel is None or not placed.part.box:
            return {**op.attrs, **({"in": shapes, "dt": dtypes} if op.inputs else {})}
        kept = {name: value for name, value in kernel.attrs.items() if name not in _LAYOUT}
        return {**kept, **self._strides(kernel), "in": shapes, "dt": dtypes}

    def _strides(self, kernel: Kernel) -> dict[str, Any]:
        """The attribute "strides" of a part, whose operands have the memory layout of the whole
        op's.
        """
        given = layouts(self.op.attrs.get("strides")) or []
        shapes = operand_shapes(self.sharding.graph, self.i)
        sliced = [
            sliced_strides(given[i], shapes[i] or (), part) if i < len(given) else None
            for i, part in zip(kernel.operands, kernel.inputs, strict=True)
        ]
        return {"strides": sliced} if any(sliced) else {}

    def _time(self, placed: Placed) -> Any:
        """The time of a part: None (by its shape), the time given for the whole op, or a share of
        it where the configuration says "divided".
        """
        time, share = self.op.time, placed.part.share
        divides = self.sharding.divided.get(self.i) is not None
        times = list(time.values()) if isinstance(time, Mapping) else [time or 0]
        free = time is not None and not any(times)
        if share == 1 or free or (time is None and not divides):
            return time
        if not divides:
            raise InputError(
                f'partition["{self.op.name}"].time: the time of op "{self.op.name}" is given for '
                'the whole op; ask for "time": "divided" to take its share for every part'
            )
        if time is None:
            return self._divided(share)
        # Fractions, because thirds would not add up to the whole in floating point.
        if isinstance(time, Mapping):
            return {kind: Fraction(seconds) * share for kind, seconds in time.items()}
        return Fraction(time) * share

    def _divided(self, share: Fraction) -> Mapping[str, Fraction] | None:
        """The cost of the whole op by device kind, divided; None where no cost is known."""
        kinds = dict.fromkeys(device.kind for device in self.sharding.problem.cluster.devices)
        costs = {kind: self.costs.cost(self.sharding.graph, self.i, kind) for kind in kinds}
        return {kind: cost.seconds * share for kind, cost in costs.items() if cost} or None

    def _weight_share(self, placed: Placed) -> Fraction:
        """The part's share of the parameters that an op owns. Raises InputError where parts would
        hold the same parameters.
        """
        op, share = self.op, placed.part.share
        owns = any(getattr(op, name) for name in KEPT_SIZES)
        if traits_of(op.kind).leaf or share == 1 or not owns:
            return share
        splits = op_splits(self.sharding.graph, self.i, self.sharding.problem.weights)
        weights = {split.axis for split in splits if split.kind == "parameter"}
        replicated = next((axis for axis, _ in placed.part.box if axis not in weights), None)
        if replicated is not None:
            raise InputError(
                f'partition["{op.name}"]: op "{op.name}" owns parameters (param_bytes); split '
                f'along "{replicated}", its parts would hold the same ones, and no op adds up '
                "their gradients: let an op of kind parameter own them"
            )
        return share


def ops_of(drafts: Iterable[ShardDraft]) -> Iterator[Op]:
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
