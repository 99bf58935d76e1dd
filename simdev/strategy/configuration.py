"""Configuration: into how many parts an op is cut along each of its axes, and on which devices they
run.

After SOAP (Jia et al., "Beyond Data and Model Parallelism for Deep Neural Networks", MLSys 2019,
section 4): a degree for each axis that can be split, and a device for each part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from ..cluster import Cluster
from ..errors import InputError
from ..frozen import FrozenDict, freeze
from ..graph import Graph
from ..semantics import Semantics, Split, boxes, op_semantics, traits_of
from ..structure import Weights, op_splits, weights_of
from .named import named

DIVIDED = "divided"
SAMPLE = "sample"


@dataclass(frozen=True, slots=True)
class Configuration:
    """How one op is split.

    ``split`` holds degrees by the axis names of the op ("sample" is its sample axis). ``devices``
    are names: as many as there are parts, all different, the parts in row-major order of the op's
    axes; or a divisor of their number, then consecutive parts share a device; none: the first
    workers of the cluster. ``time`` tells how long a part takes: None, what its own shape takes;
    "divided", the whole op's time by the number of parts (an approximation).
    """

    split: Mapping[str, int] = FrozenDict()
    devices: tuple[str, ...] = ()
    time: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", tuple(self.devices))
        freeze(self, "split")
        if self.time not in (None, DIVIDED):
            raise InputError(f'time: must be "{DIVIDED}" or left out, got "{self.time}"')


@dataclass(frozen=True, slots=True)
class Resolved:
    """A configuration of one op of a graph on a cluster: degrees by axis, and the device index of
    every part.
    """

    degrees: Mapping[str, int]
    devices: tuple[int, ...]
    time: str | None = None


def resolve_partition(
    graph: Graph, cluster: Cluster, partition: Mapping[str, Configuration]
) -> dict[int, Resolved]:
    """The configurations by op position; a colocation group or pattern counts for each op that has
    all of its axes.

    Leaves (parameters, inputs, constants) are configured by their own names only. Raises InputError
    with every problem at once, each naming the op and, where it is about one, the axis.
    """
    if not partition:
        return {}
    return Resolver(graph, cluster, partition).resolve()


class Resolver:
    """Resolves the entries of one partition and collects what is wrong with all of them."""

    def __init__(
        self, graph: Graph, cluster: Cluster, partition: Mapping[str, Configuration]
    ) -> None:
        self.graph, self.cluster, self.partition = graph, cluster, partition
        self._semantics: dict[int, Semantics | InputError] = {}

    @cached_property
    def weights(self) -> Weights:
        """Which tensors are weights and gradients of weights."""
        return weights_of(self.graph)

    def resolve(self) -> dict[int, Resolved]:
        """The configurations by op position. Raises InputError."""
        found = named(self.graph, self.partition, self._allowed)
        problems = [
            f'partition: "{op}" matches "{one}" and "{other}", which split it in different ways'
            for op, one, other in found.clashes
        ]
        problems += [f'partition["{key}"]: {self._why_unused(key)}' for key in found.unused]
        resolved: dict[int, Resolved] = {}
        for position, key in enumerate(found.keys):
            op = self.graph.ops[position]
            if key is None or (key != op.name and not self._allowed(position, key)):
                continue
            try:
                resolved[position] = self.resolved(position, self.partition[key])
            except InputError as error:
                problems += [f'partition["{key}"]{problem}' for problem in error.problems]
        if problems:
            raise InputError(problems)
        return resolved

    def _why_unused(self, key: str) -> str:
        others = named(self.graph, {key: self.partition[key]})
        if all(one is None for one in others.keys):
            return "no op and no colocation group is called or matched by this"
        axes = ", ".join(f'"{axis}"' for axis in self.partition[key].split)
        return f"no op that this matches can be split along {axes}"

    def semantics(self, position: int) -> Semantics:
        """Raises InputError."""
        if position not in self._semantics:
            try:
                self._semantics[position] = self._semantics_of(position)
            except InputError as error:
                self._semantics[position] = error
        found = self._semantics[position]
        if isinstance(found, InputError):
            raise found
        return found

    def _semantics_of(self, position: int) -> Semantics:
        op = self.graph.ops[position]
        if len(op.made) < len(op.outputs):
            view = next(k for k, tensor in enumerate(op.outputs) if tensor.view_of is not None)
            raise InputError(
                f"output {view} is a view of another (view_of), which only the whole op has"
            )
        return op_semantics(self.graph, position)

    def splits(self, position: int) -> tuple[Split, ...]:
        """The axes of an op that can be split; none where its kind has no semantics."""
        try:
            self.semantics(position)
        except InputError:
            return ()
        return op_splits(self.graph, position, self.weights)

    def _allowed(self, position: int, key: str) -> bool:
        if traits_of(self.graph.ops[position].kind).leaf:
            return False
        wanted = [axis for axis, degree in self.partition[key].split.items() if degree != 1]
        axes = {
            name
            for split in self.splits(position)
            for name in (split.axis, split.kind == SAMPLE and SAMPLE)
        }
        return all(axis in axes for axis in wanted)

    def resolved(self, position: int, configuration: Configuration) -> Resolved:
        """A configuration of the op at a position. Raises InputError."""
        op = self.graph.ops[position]
        degrees = self._degrees(position, configuration.split)
        parts = prod(degrees.values())
        if parts > 1:
            semantics = self._splittable(position)
            try:
                boxes(semantics, degrees)
            except InputError as error:
                raise InputError(
                    [f'.split: op "{op.name}": {problem}' for problem in error.problems]
                ) from None
        return Resolved(
            degrees, self._devices(op.name, configuration.devices, parts), configuration.time
        )

    def _splittable(self, position: int) -> Semantics:
        try:
            return self.semantics(position)
        except InputError as error:
            name = self.graph.ops[position].name
            raise InputError(f'.split: op "{name}" cannot be split: {error.problems[0]}') from None

    def _degrees(self, position: int, split: Mapping[str, int]) -> dict[str, int]:
        """Degrees by axis, the sample axis under its own name, those of 1 left out."""
        found: dict[str, int] = {}
        name = self.graph.ops[position].name
        for axis, degree in split.items():
            if isinstance(degree, bool) or not isinstance(degree, int) or degree < 1:
                reason = f"the degree must be a whole number >= 1, got {degree!r}"
                raise InputError(f'.split["{axis}"]: op "{name}": axis "{axis}": {reason}')
            own = axis
            if axis == SAMPLE and degree > 1:
                own = self._sample_axis(position)
            if own in found and degree > 1:
                raise InputError(
                    f'.split["{axis}"]: op "{name}": its sample axis "{own}" is told twice'
                )
            if degree > 1:
                found[own] = degree
        return found

    def _sample_axis(self, position: int) -> str:
        semantics = self._splittable(position)
        if any(axis.name == SAMPLE for axis in semantics.axes):
            return SAMPLE
        own = next((split.axis for split in self.splits(position) if split.kind == SAMPLE), None)
        if own is None:
            names = ", ".join(split.axis for split in self.splits(position)) or "none"
            raise InputError(
                f'.split["{SAMPLE}"]: op "{self.graph.ops[position].name}": axis '
                f'"{SAMPLE}": kind "{semantics.kind}" '
                f"has no sample axis here; it can be split along {names}"
            )
        return own

    def _devices(self, op: str, names: tuple[str, ...], parts: int) -> tuple[int, ...]:
        cluster = self.cluster
        problems = list(_device_problems(cluster, op, names))
        if problems:
            raise InputError(problems)
        own = [cluster.index[name] for name in names]
        if not names:
            own = list(cluster.workers[:parts])
            if len(own) < parts:
                raise InputError(
                    f'.devices: op "{op}" has {parts} parts; the cluster has {len(own)} workers'
                )
        if parts % len(own):
            raise InputError(
                f'.devices: op "{op}" has {parts} parts; {len(own)} devices must be as '
                "many or a divisor of it"
            )
        return tuple(own[part * len(own) // parts] for part in range(parts))


def _device_problems(cluster: Cluster, op: str, names: tuple[str, ...]) -> Iterator[str]:
    for i, name in enumerate(names):
        if name not in cluster.index:
            yield f'.devices[{i}]: op "{op}": no device named "{name}"'
        elif not cluster.devices[cluster.index[name]].runs_ops:
            yield f'.devices[{i}]: op "{op}": "{name}" is a switch and runs no op'
        elif name in names[:i]:
            yield f'.devices[{i}]: op "{op}": "{name}" is listed twice'
