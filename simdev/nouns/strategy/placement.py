"""The places where ops run. Placement: the device of every op, by its name, its colocation group,
its module or a pattern; the most specific entry counts. Configuration: the number of parts that an
op is cut into along each of its axes, and the devices of the parts.

Configurations are after SOAP (Jia et al., "Beyond Data and Model Parallelism for Deep Neural
Networks", MLSys 2019, section 4): a degree for each axis that can be split, and a device for each
part.

Lowering and the oracle resolve placements and partitions here, and ``simdev/execution/scenario.py``
does so to refuse wrong entries early. Short forms are written out as configurations elsewhere, in
``simdev/lowering/partition/short.py``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import translate
from functools import cache, cached_property
from math import prod
from typing import Generic, NamedTuple, TypeVar

from ...ground.errors import InputError, collecting, refuse
from ...ground.frozen import FrozenDict, freeze
from ..cluster import Cluster
from ..graph import Graph
from ..semantics import Semantics, Split, op_semantics, require_degrees, traits_of
from ..structure import Weights, module_pattern, op_splits, scope_of, weights_of

NOWHERE = -1
Allowed = Callable[[int, str], bool]
"""A test whether a pattern (the text) may count for the op at a position."""
WILDCARDS = "*?["
ENTRIES_SHOWN = 3  # of the entries that split a group
NEAR = 0.7  # likeness from which a module may be meant
T = TypeVar("T")


class _Pattern(NamedTuple):
    """An entry with wildcards or of a module, with its compiled pattern; fnmatch caches only a few
    hundred patterns.
    """

    literals: int
    key: str
    match: Callable[[str], object]

    def fits(self, name: str, position: int, allowed: Allowed | None) -> bool:
        """Whether the entry matches the op's name and may count for its position."""
        return bool(self.match(name)) and (allowed is None or allowed(position, self.key))


@dataclass(frozen=True, slots=True)
class Named(Generic[T]):
    """The key of the entry of each op of a graph (None: the op has none), the keys of unused
    entries, and the clashes.

    A clash is an op that two equally specific patterns match whose values differ: (op, key, key).
    """

    keys: tuple[str | None, ...]
    unused: tuple[str, ...]
    clashes: tuple[tuple[str, str, str], ...]


def named(
    graph: Graph, entries: Mapping[str, T], allowed: Allowed | None = None, modules: bool = True
) -> Named[T]:
    """The entry that counts for each op.

    An op's own name wins over its colocation group, the group over patterns and modules; among
    these the one with the most literal characters wins. The name of a module, "blocks.2", means its
    ops of all phases (only with ``modules``). ``allowed`` says which patterns may count for the op
    at a position (default: all).
    """
    patterns = _patterns(entries, _modules(graph, entries) if modules else ())
    keys: list[str | None] = []
    clashes: list[tuple[str, str, str]] = []
    # A pattern that matches is used, even if more specific entries count for all of its ops.
    used: set[str] = {key for key in entries if key in graph.index or key in graph.groups}
    unseen = [pattern for pattern in patterns if pattern.key not in used]
    for position, op in enumerate(graph.ops):
        key = op.name if op.name in entries else op.colocate if op.colocate in entries else None
        if key is None and patterns:
            fitting = (pattern for pattern in patterns if pattern.fits(op.name, position, allowed))
            key, clash = _most_specific(fitting, entries)
            if clash and key is not None:
                clashes.append((op.name, key, clash))
        keys.append(key)
        if key is not None:
            used.add(key)
    for pattern in unseen:
        names = enumerate(op.name for op in graph.ops)
        if pattern.key not in used and any(pattern.fits(name, i, allowed) for i, name in names):
            used.add(pattern.key)
    unused = tuple(key for key in entries if key not in used)
    return Named(tuple(keys), unused, tuple(clashes))


def _modules(graph: Graph, entries: Iterable[str]) -> Iterator[str]:
    """The entries that are neither patterns nor names of ops or groups."""
    for key in entries:
        is_name = key in graph.index or key in graph.groups
        if key and not is_name and not any(c in key for c in WILDCARDS):
            yield key


def _patterns(entries: Iterable[str], modules: Iterable[str]) -> list[_Pattern]:
    """The compiled patterns and modules of a placement or partition, the most specific first."""
    patterns = [
        _Pattern(sum(c not in "*?" for c in key), key, re.compile(translate(key)).match)
        for key in entries
        if any(c in key for c in WILDCARDS)
    ]
    patterns += [_Pattern(len(key), key, module_pattern(key).match) for key in modules]
    return sorted(patterns, key=lambda pattern: pattern.literals, reverse=True)


def _most_specific(fitting: Iterator[_Pattern], entries: Mapping[str, T]) -> tuple[str | None, str]:
    """The key of the most specific of the patterns that fit, and the key of an equally specific one
    with another value (or "").
    """
    best = next(fitting, None)
    if best is None:
        return None, ""
    # Patterns are sorted by literals: all patterns behind a less specific one are less specific.
    for pattern in fitting:
        if pattern.literals < best.literals:
            break
        if entries[pattern.key] != entries[best.key]:
            return best.key, pattern.key
    return best.key, ""


def resolve_placement(graph: Graph, cluster: Cluster, placement: Mapping[str, str]) -> list[int]:
    """The device index of every op.

    ``named`` says which entry counts for an op. Raises InputError with every problem at once:
    unknown devices, entries that match nothing, ops without a device, patterns that disagree,
    groups split over devices.
    """
    return _resolved(graph, cluster, placement, True)


def placed(graph: Graph, cluster: Cluster, placement: Mapping[str, str]) -> list[int]:
    """The device index of every op, NOWHERE (-1) for ops without an entry.

    Raises InputError.
    """
    return _resolved(graph, cluster, placement, False)


def _resolved(
    graph: Graph, cluster: Cluster, placement: Mapping[str, str], complete: bool
) -> list[int]:
    reasons = ((key, cluster.why_no_place(name)) for key, name in placement.items())
    problems = [f'placement["{key}"]: {reason}' for key, reason in reasons if reason]
    entries = named(graph, placement)
    # Before the ops without a device: a misspelt entry may be the reason for these.
    problems += [
        f'placement["{key}"]: no op and no colocation group is called or matched by this'
        + _near_module(graph, key)
        for key in entries.unused
    ]
    clashes = {op: f'"{key}" and "{other}"' for op, key, other in entries.clashes}
    for op, key in zip(graph.ops, entries.keys, strict=True):
        if op.name in clashes:
            problems.append(
                f'placement: "{op.name}" matches {clashes[op.name]}, which name different devices'
            )
        if key is None and complete:
            problems.append(f'placement: op "{op.name}" has no device')
    devices = [
        NOWHERE if key is None else cluster.index.get(placement[key], NOWHERE)
        for key in entries.keys
    ]
    problems = problems or list(_split_groups(graph, cluster, devices, entries.keys))
    refuse(problems)
    return devices


def _near_module(graph: Graph, key: str) -> str:
    """A hint which module an unknown entry may mean, as the end of a sentence, or ""."""
    paths = (scope_of(op.name).replace(".", "/").split("/") for op in graph.ops)
    modules = {"/".join(path[: i + 1]) for path in paths for i in range(len(path))} - {""}
    near = get_close_matches(key.replace(".", "/"), sorted(modules), 1, NEAR)
    return f'; did you mean the module "{near[0]}"?' if near else ""


def _split_groups(
    graph: Graph, cluster: Cluster, devices: Sequence[int], keys: Sequence[str | None]
) -> Iterator[str]:
    """A line for each colocation group on several devices: its ops on each, the entries that put
    them there, and the entry to write instead.
    """
    for group, members in graph.groups.items():
        there = [i for i in members if devices[i] != NOWHERE]
        names = sorted({cluster.devices[devices[i]].name for i in there})
        if len(names) < 2:
            continue
        parts = Counter((devices[i], keys[i]) for i in there)
        firsts = {(devices[i], keys[i]): graph.ops[i].name for i in reversed(there)}
        placed = []
        for (device, key), count in parts.most_common(ENTRIES_SHOWN):
            more = f" and {count - 1:,} more" if count > 1 else ""
            by = "" if key == firsts[device, key] else f' by "{key}"'
            placed.append(f'"{firsts[device, key]}"{more} on {cluster.devices[device].name}{by}')
        more = f", {len(parts) - ENTRIES_SHOWN:,} more" if len(parts) > ENTRIES_SHOWN else ""
        # An op's own entry would win over the group's.
        alone = any(keys[i] == graph.ops[i].name for i in there)
        name = cluster.devices[Counter(devices[i] for i in there).most_common(1)[0][0]].name
        yield (
            f'placement: colocation group "{group}" is split over {", ".join(names)}: '
            f'{"; ".join(placed)}{more}; write {{"{group}": "{name}"}}'
            + (" and no entry for its single ops" if alone else "")
        )


DIVIDED = "divided"
SAMPLE = "sample"


@dataclass(frozen=True, slots=True)
class Configuration:
    """The split of one op.

    ``split`` holds degrees by the axis names of the op ("sample" is its sample axis). ``devices``
    are different names, one for each part, in row-major order of the op's axes; or a divisor of the
    number of parts, so that consecutive parts share a device; none: the first workers of the
    cluster. ``time`` says how the time of a part is found: None, from the part's own shape;
    "divided", the whole op's time divided by the number of parts (an approximation).
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
    """The configuration of one op of a graph on a cluster: degrees by axis, and the device index of
    every part.
    """

    degrees: Mapping[str, int]
    devices: tuple[int, ...]
    time: str | None = None


def resolve_partition(
    graph: Graph, cluster: Cluster, partition: Mapping[str, Configuration]
) -> dict[int, Resolved]:
    """The configuration of each op that has one, by position. The entry of a colocation group or
    pattern counts for each op that has all of its axes.

    Leaves (parameters, inputs, constants) are configured by their own names only. Raises InputError
    with every problem at once, each with the op and, where there is one, the axis.
    """
    if not partition:
        return {}
    return Resolver(graph, cluster, partition).resolve()


class Resolver:
    """Resolves the entries of one partition, and collects the problems of all of them."""

    def __init__(
        self, graph: Graph, cluster: Cluster, partition: Mapping[str, Configuration]
    ) -> None:
        self.graph, self.cluster, self.partition = graph, cluster, partition
        # Cached: every pattern that matches an op needs its splits, a search needs them for each
        # configuration, and it tries the same degrees on ops that compute the same.
        self.splits, self._semantics = cache(self._op_splits), cache(self._op_semantics)
        self._require = cache(lambda of, degrees: require_degrees(of, dict(degrees)))
        self._located: dict[tuple[tuple[str, ...], int], tuple[int, ...]] = {}

    @cached_property
    def weights(self) -> Weights:
        """The tensors that are weights or gradients of weights."""
        return weights_of(self.graph)

    def resolve(self) -> dict[int, Resolved]:
        """The configuration of each op that has one, by position. Raises InputError."""
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
            with collecting(problems, f'partition["{key}"]'):
                resolved[position] = self.resolved(position, self.partition[key])
        refuse(problems)
        return resolved

    def _why_unused(self, key: str) -> str:
        # Without the test whether an op can be split along the axes, to tell the two reasons apart.
        if not any(named(self.graph, {key: self.partition[key]}, modules=False).keys):
            return "no op and no colocation group is called or matched by this"
        axes = ", ".join(f'"{axis}"' for axis in self.partition[key].split)
        return f"no op that this matches can be split along {axes}"

    def _op_semantics(self, position: int) -> Semantics:
        """The semantics of an op that can be split at all. Raises InputError."""
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

    def _op_splits(self, position: int) -> tuple[Split, ...]:
        """The axes along which an op can be split; none where its kind has no semantics."""
        try:
            self._semantics(position)
            return op_splits(self.graph, position, self.weights)
        except InputError:
            return ()

    def _allowed(self, position: int, key: str) -> bool:
        # A pattern for layers must not cut their weights, which follow the ops that read them.
        if traits_of(self.graph.ops[position].kind).leaf:
            return False
        splits = self.splits(position)
        axes = {split.axis for split in splits}
        axes |= {SAMPLE for split in splits if split.kind == SAMPLE}
        cuts = self.partition[key].split
        return all(axis in axes for axis, degree in cuts.items() if degree != 1)

    def resolved(self, position: int, configuration: Configuration) -> Resolved:
        """The configuration of the op at a position, resolved. Raises InputError."""
        op = self.graph.ops[position]
        degrees = self._degrees(position, configuration.split)
        parts = prod(degrees.values())
        if parts > 1:
            try:
                self._require(self._semantics(position), (*degrees.items(),))
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
        """Degrees over 1 by axis; "sample" is replaced by the name of the sample axis."""
        degrees: dict[str, int] = {}
        name = self.graph.ops[position].name
        for axis, degree in split.items():
            where = f'.split["{axis}"]: op "{name}"'
            if isinstance(degree, bool) or not isinstance(degree, int) or degree < 1:
                reason = f"the degree must be a whole number >= 1, got {degree!r}"
                raise InputError(f'{where}: axis "{axis}": {reason}')
            # An axis with degree 1 need not exist: a pattern may name the axes of several kinds.
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
        refuse(_device_problems(cluster, op, names))
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
        # Consecutive parts share a device, since their regions are neighbours more often.
        located = tuple(devices[part * len(devices) // parts] for part in range(parts))
        return self._located.setdefault((names, parts), located)


def _device_problems(cluster: Cluster, op: str, names: tuple[str, ...]) -> Iterator[str]:
    for i, name in enumerate(names):
        reason = cluster.why_no_place(name)
        if reason or name in names[:i]:
            yield f'.devices[{i}]: op "{op}": ' + (reason or f'"{name}" is listed twice')


ROLES = ("shard", "copy", "stored", "sum", "sync")


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of an op of a sharded graph.

    ``op`` is the name in the graph that was split; ``role`` one of ROLES: a ``shard`` of the op, a
    ``copy`` made where it is read, a part ``stored`` in another split than it is made, a ``sum`` of
    partial results, the ``sync`` of a gradient. ``number`` counts the ops with the same ``op`` and
    role. For each output, ``regions`` has the output of the original op and the part of it, and
    ``addend`` the number of the partial result and how many there are (0 of 1: the values
    themselves). ``box`` is the interval of each axis that is cut.
    """

    op: str
    role: str
    number: int
    regions: tuple[tuple[int, tuple[tuple[int, int], ...]], ...] = ()
    addend: tuple[tuple[int, int], ...] = ()
    box: tuple[tuple[str, tuple[int, int]], ...] = ()

    @property
    def adds_up(self) -> bool:
        """Whether the op adds up or stores partial results, instead of being a part of the op."""
        return self.role in ("sum", "sync", "stored")
