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

from ...ground.errors import InputError, refuse
from ...ground.frozen import FrozenDict, freeze
from ..cluster import Cluster
from ..graph import Graph
from ..semantics import Semantics, Split, op_semantics, require_degrees, traits_of
from ..structure import Weights, op_splits, weights_of
from .placement import named

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
        self._splits: dict[int, tuple[Split, ...]] = {}
        self._known: dict[int, Semantics] = {}
        self._located: dict[tuple[tuple[str, ...], int], tuple[int, ...]] = {}
        self._right: set[tuple[Semantics, tuple[tuple[str, int], ...]]] = set()

    @cached_property
    def weights(self) -> Weights:
        """Which tensors are weights and gradients of weights."""
        return weights_of(self.graph)

    def resolve(self) -> dict[int, Resolved]:
        """The configurations by op position. Raises InputError."""
        entries = named(self.graph, self.partition, self._allowed, modules=False)
        problems = [
            f'partition: "{op}" matches "{key}" and "{other}", which split it in different ways'
            for op, key, other in entries.clashes
        ]
        problems += [f'partition["{key}"]: {self._why_unused(key)}' for key in entries.unused]
        resolved: dict[int, Resolved] = {}
        for position, key in enumerate(entries.keys):
            op = self.graph.ops[position]
            if key is None or (key != op.name and not self._allowed(position, key)):
                continue
            try:
                resolved[position] = self.resolved(position, self.partition[key])
            except InputError as error:
                problems += [f'partition["{key}"]{problem}' for problem in error.problems]
        refuse(problems)
        return resolved

    def _why_unused(self, key: str) -> str:
        # Without the question whether an op can be split so, to tell the two reasons apart.
        if not any(named(self.graph, {key: self.partition[key]}, modules=False).keys):
            return "no op and no colocation group is called or matched by this"
        axes = ", ".join(f'"{axis}"' for axis in self.partition[key].split)
        return f"no op that this matches can be split along {axes}"

    def _semantics(self, position: int) -> Semantics:
        """Semantics of an op that can be split at all. Raises InputError."""
        if position not in self._known:
            self._known[position] = self._asked_semantics(position)
        return self._known[position]

    def _asked_semantics(self, position: int) -> Semantics:
        op = self.graph.ops[position]
        try:
            if len(op.made) < len(op.outputs):
                view = next(k for k, tensor in enumerate(op.outputs) if tensor.view_of is not None)
                raise InputError(
                    f"output {view} is a view of another (view_of), which only the whole op has"
                )
            return op_semantics(self.graph, position)
        except InputError as error:
            reason = f'op "{op.name}" cannot be split: {error.problems[0]}'
            raise InputError(f".split: {reason}") from None

    def splits(self, position: int) -> tuple[Split, ...]:
        """The axes of an op that can be split; none where its kind has no semantics."""
        # Every pattern that matches an op asks this, and a search for every configuration of it.
        if position not in self._splits:
            try:
                self._semantics(position)
                self._splits[position] = op_splits(self.graph, position, self.weights)
            except InputError:
                self._splits[position] = ()
        return self._splits[position]

    def _allowed(self, position: int, key: str) -> bool:
        # A pattern for layers would cut their weights too, which follow the ops that read them.
        if traits_of(self.graph.ops[position].kind).leaf:
            return False
        splits = self.splits(position)
        axes = {split.axis for split in splits}
        axes |= {SAMPLE for split in splits if split.kind == SAMPLE}
        cuts = self.partition[key].split
        return all(axis in axes for axis, degree in cuts.items() if degree != 1)

    def resolved(self, position: int, configuration: Configuration) -> Resolved:
        """A configuration of the op at a position. Raises InputError."""
        op = self.graph.ops[position]
        degrees = self._degrees(position, configuration.split)
        parts = prod(degrees.values())
        # Searches ask for the same degrees of ops that compute the same, and for the same devices.
        if parts > 1 and (self._semantics(position), (*degrees.items(),)) not in self._right:
            try:
                require_degrees(self._semantics(position), degrees)
                self._right.add((self._semantics(position), (*degrees.items(),)))
            except InputError as error:
                raise InputError(
                    problem
                    if problem.startswith(".split")
                    else f'.split: op "{op.name}": {problem}'
                    for problem in error.problems
                ) from None
        devices = self._devices(op.name, configuration.devices, parts)
        return Resolved(degrees, devices, configuration.time)

    def _degrees(self, position: int, split: Mapping[str, int]) -> dict[str, int]:
        """Degrees by axis, the sample axis under its own name, those of 1 left out."""
        degrees: dict[str, int] = {}
        name = self.graph.ops[position].name
        for axis, degree in split.items():
            where = f'.split["{axis}"]: op "{name}"'
            if isinstance(degree, bool) or not isinstance(degree, int) or degree < 1:
                reason = f"the degree must be a whole number >= 1, got {degree!r}"
                raise InputError(f'{where}: axis "{axis}": {reason}')
            # An axis that is not cut need not exist: a pattern may name the axes of several kinds.
            if degree == 1:
                continue
            cut = self._sample_axis(position) if axis == SAMPLE else axis
            if cut in degrees:
                raise InputError(f'{where}: its sample axis "{cut}" is told twice')
            degrees[cut] = degree
        return degrees

    def _sample_axis(self, position: int) -> str:
        semantics = self._semantics(position)
        if any(axis.name == SAMPLE for axis in semantics.axes):
            return SAMPLE
        splits = self.splits(position)
        for split in splits:
            if split.kind == SAMPLE:
                return split.axis
        names = ", ".join(split.axis for split in splits) or "none"
        raise InputError(
            f'.split["{SAMPLE}"]: op "{self.graph.ops[position].name}": axis "{SAMPLE}": kind '
            f'"{semantics.kind}" has no sample axis here; it can be split along {names}'
        )

    def _devices(self, op: str, names: tuple[str, ...], parts: int) -> tuple[int, ...]:
        known = self._located.get((names, parts))
        if known is not None:
            return known
        cluster = self.cluster
        problems = list(_device_problems(cluster, op, names))
        refuse(problems)
        devices = [cluster.index[name] for name in names] or list(cluster.workers[:parts])
        if not names and len(devices) < parts:
            raise InputError(
                f'.devices: op "{op}" has {parts} parts; the cluster has {len(devices)} workers'
            )
        if parts % len(devices):
            raise InputError(
                f'.devices: op "{op}" has {parts} parts; {len(devices)} devices must be as '
                "many or a divisor of it"
            )
        # Consecutive parts share a device: their regions are neighbours more often than others.
        located = tuple(devices[part * len(devices) // parts] for part in range(parts))
        return self._located.setdefault((names, parts), located)


def _device_problems(cluster: Cluster, op: str, names: tuple[str, ...]) -> Iterator[str]:
    before = set[str]()
    for i, name in enumerate(names):
        if name not in cluster.index:
            yield f'.devices[{i}]: op "{op}": no device named "{name}"'
        elif not cluster.devices[cluster.index[name]].runs_ops:
            yield f'.devices[{i}]: op "{op}": "{name}" is a switch and runs no op'
        elif name in before:
            yield f'.devices[{i}]: op "{op}": "{name}" is listed twice'
        before.add(name)


ROLES = ("shard", "copy", "stored", "sum", "sync")


@dataclass(frozen=True, slots=True)
class Origin:
    """What an op of a sharded graph is made from.

    ``op`` is the name in the graph that was split; ``role`` one of ROLES: a ``shard`` of it, a
    ``copy`` that is made where it is read, a part ``stored`` otherwise than it is made, a ``sum``
    of partial results, the ``sync`` of a gradient. ``number`` counts those of one op and role. By
    output that it makes, ``regions`` are the output of the op and the part of it, and ``addend`` is
    which of its partial results that is, of how many (0 of 1: the values). ``box`` is the interval
    of each axis that is cut.
    """

    op: str
    role: str
    number: int
    regions: tuple[tuple[int, tuple[tuple[int, int], ...]], ...] = ()
    addend: tuple[tuple[int, int], ...] = ()
    box: tuple[tuple[str, tuple[int, int]], ...] = ()
