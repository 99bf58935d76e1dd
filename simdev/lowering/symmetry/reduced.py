"""The graph of some replicas: every op on the samples that they take of the whole batch.

How an op is cut is read off the sharding of the whole graph over a few devices. That an even cut
into all replicas goes along the same axes is checked on the first, second and last of them: each
reads only what lies in its part. Regions are affine in the number of a part, so what holds there
holds between; an axis whose parts read nothing but their part is followed before any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ...costs import CostModel
from ...nouns.graph import Graph, Op, Tensor
from ...nouns.semantics import volume
from ..partition.emit import Shares
from ..partition.geometry import Part, part
from ..partition.layout import inside, part_of
from ..partition.problem import Placed
from ..partition.sharding import Sharding

SIZES = ("param_bytes", "grad_bytes", "state_bytes", "workspace_bytes")
Fields = Mapping[str, Any]


class BrokenSymmetryError(Exception):
    """Why replicas do not run alike."""


class Reduction:
    """A graph cut over ``replicas``, of which ``kept`` stay; ``sharding`` is that of the whole
    graph over the ``sample`` devices, in the order of the parts.

    ``axes`` is by op the axis that is cut, with the extent of a part (None: every replica, or the
    first alone, runs all of it). Raises BrokenSymmetryError, InputError.
    """

    def __init__(
        self,
        sharding: Sharding,
        sample: tuple[int, ...],
        replicas: int,
        kept: int,
        costs: CostModel,
    ) -> None:
        self.sharding, self.graph = sharding, sharding.graph
        self.sample, self.replicas, self.kept, self.costs = sample, replicas, kept, costs
        self.axes = [self._axis(i) for i in range(len(self.graph.ops))]
        for i, axis in enumerate(self.axes):
            if axis is not None:
                self._require_closed(i)

    def _axis(self, i: int) -> tuple[str, int] | None:
        name, parts = self.graph.ops[i].name, self.sharding.parts[i]
        boxes, devices = [dict(each.part.box) for each in parts], [each.device for each in parts]
        if not any(boxes) and devices in (list(self.sample), [self.sample[0]]):
            return None
        axes = {axis for box in boxes for axis in box}
        if devices != list(self.sample) or len(axes) != 1:
            raise BrokenSymmetryError(f'"{name}" is not cut as the samples are')
        axis = axes.pop()
        semantics = self.sharding.problem.readings[i].semantics
        assert semantics is not None
        size = next(each.size for each in semantics.axes if each.name == axis)
        extent, rest = divmod(size, self.replicas)
        each = size // len(self.sample)
        even = [{axis: (at * each, (at + 1) * each)} for at in range(len(self.sample))]
        if rest or boxes != even:
            raise BrokenSymmetryError(f'"{name}" is cut unevenly along "{axis}"')
        return axis, extent

    def part(self, i: int, number: int, count: int = 1) -> Part:
        """So many parts of an op as one, from that of this number on."""
        cut, reading = self.axes[i], self.sharding.problem.readings[i]
        if cut is None:
            return part(reading, ())
        axis, extent = cut
        return part(reading, ((axis, (number * extent, (number + count) * extent)),))

    def _require_closed(self, i: int) -> None:
        """What a replica reads of tensors that are cut lies in its part of them."""
        for number in dict.fromkeys((0, 1, self.replicas - 1)):
            needs = self.part(i, number).needs
            for (producer, output), region in zip(
                self.sharding.problem.read[i], needs, strict=True
            ):
                if self.axes[producer] is None or region is None:
                    continue
                made = self.part(producer, number).makes[output]
                if made is None or not inside(region, made):
                    names = self.graph.ops[i].name, self.graph.ops[producer].name
                    raise BrokenSymmetryError(f'"{names[0]}" reads "{names[1]}" of other replicas')

    def fields(self, i: int, number: int, count: int = 1) -> dict[str, Any]:
        """The fields of parts of an op as one op."""
        placed = Placed(self.part(i, number, count), 0)
        return Shares(self.sharding, i, self.costs).fields(placed)

    def outputs(self, i: int, count: int) -> Iterator[Tensor]:
        """The outputs of so many parts, of as many times the bytes of one, which are rounded up."""
        single, several = self.part(i, 0), self.part(i, 0, count)
        pairs = zip(self.graph.ops[i].outputs, single.makes, several.makes, strict=True)
        for tensor, first, region in pairs:
            if first is None or region is None:
                raise BrokenSymmetryError(f'"{self.graph.ops[i].name}" makes nothing on a replica')
            grown = volume(region) // max(volume(first), 1) if region != first else 1
            part = part_of(tensor, region)
            yield replace(part, bytes=grown * part_of(tensor, first).bytes)

    def op(self, i: int) -> Op:
        """An op on the samples of the replicas that stay."""
        op = self.graph.ops[i]
        if self.axes[i] is None:
            return op
        fields = self.fields(i, 0, self.kept)
        single = self.fields(i, 0)
        sizes = {name: self.kept * single[name] for name in SIZES}
        return replace(op, outputs=tuple(self.outputs(i, self.kept)), **(fields | sizes))

    def reduced(self) -> Graph:
        """The graph of the replicas that stay. Raises InputError."""
        return Graph(self.graph.name, tuple(map(self.op, range(len(self.graph.ops)))))

    def require_as_whole(self, i: int, made: Op) -> None:
        """An op of a replica of the reduced graph is that of the whole graph.

        ``made`` is the one that the reduced graph was cut into.
        """
        if self.axes[i] is None:
            return
        outputs = tuple(self.outputs(i, 1))
        # The first and the last may be cut at an edge.
        alike = outputs == made.outputs[: len(outputs)] and all(
            _plain(getattr(made, name)) == _plain(value)
            for number in dict.fromkeys((0, 1, self.replicas - 1))
            for name, value in self.fields(i, number).items()
        )
        if not alike:
            raise BrokenSymmetryError(f'"{self.graph.ops[i].name}" differs on fewer samples')


def _plain(value: Any) -> Any:
    """Lists as tuples, however deep: how a field is written does not matter."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain, value))
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return value
