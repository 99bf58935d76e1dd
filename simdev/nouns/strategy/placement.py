"""Placement: the device of every op, by its name, its colocation group, its module or a pattern;
the most specific entry counts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import translate
from typing import Generic, NamedTuple, TypeVar

from ...ground.errors import InputError
from ..cluster import Cluster
from ..graph import Graph
from ..structure import module_pattern, scope_of

NOWHERE = -1
Allowed = Callable[[int, str], bool]
"""Whether a pattern may count for the op at a position."""
WILDCARDS = "*?["
ENTRIES_SHOWN = 3  # of those that split a group
NEAR = 0.7  # likeness from which a module may be meant
T = TypeVar("T")


class _Pattern(NamedTuple):
    """An entry with wildcards or of a module, compiled: fnmatch forgets all but the last few
    hundred that it was asked for.
    """

    literals: int
    key: str
    match: Callable[[str], object]

    def fits(self, name: str, position: int, allowed: Allowed | None) -> bool:
        """Whether it may count for the op of a name at a position."""
        return bool(self.match(name)) and (allowed is None or allowed(position, self.key))


@dataclass(frozen=True, slots=True)
class Named(Generic[T]):
    """The entry of each op of a graph (None: it has none), the keys that count for nothing, and the
    clashes.

    A clash is an op with two patterns that are equally specific and tell different things.
    """

    keys: tuple[str | None, ...]
    unused: tuple[str, ...]
    clashes: tuple[tuple[str, str, str], ...]


def named(
    graph: Graph, entries: Mapping[str, T], allowed: Allowed | None = None, modules: bool = True
) -> Named[T]:
    """The entry that counts for each op.

    An op's own name wins over its colocation group, the group over patterns and modules; among
    these the one with the most literal characters wins. The name of a module, "blocks.2", stands
    for its ops of all phases (not without ``modules``). ``allowed`` says which patterns may count
    for the op at a position (default: all).
    """
    patterns = _patterns(entries, _modules(graph, entries) if modules else ())
    keys: list[str | None] = []
    clashes: list[tuple[str, str, str]] = []
    # A pattern is used where it matches, even if a more specific entry counts for every such op.
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
    """The patterns and modules of a placement or partition, the most specific first."""
    patterns = [
        _Pattern(sum(c not in "*?" for c in key), key, re.compile(translate(key)).match)
        for key in entries
        if any(c in key for c in WILDCARDS)
    ]
    patterns += [_Pattern(len(key), key, module_pattern(key).match) for key in modules]
    return sorted(patterns, key=lambda pattern: pattern.literals, reverse=True)


def _most_specific(fitting: Iterator[_Pattern], entries: Mapping[str, T]) -> tuple[str | None, str]:
    """The best of the patterns that fit, and an equally specific one that tells another thing (or
    "").
    """
    best = next(fitting, None)
    if best is None:
        return None, ""
    # Sorted by literals: behind the first less specific pattern none can be as specific.
    for pattern in fitting:
        if pattern.literals < best.literals:
            break
        if entries[pattern.key] != entries[best.key]:
            return best.key, pattern.key
    return best.key, ""


def resolve_placement(graph: Graph, cluster: Cluster, placement: Mapping[str, str]) -> list[int]:
    """The device index of every op.

    Entries count as ``named`` tells. Raises InputError with every problem at once: unknown devices,
    entries that match nothing, ops without a device, patterns that disagree, groups split over
    devices.
    """
    return _resolved(graph, cluster, placement, True)


def placed(graph: Graph, cluster: Cluster, placement: Mapping[str, str]) -> list[int]:
    """The device index of every op where some may be left out: NOWHERE (-1) without an entry.

    Raises InputError.
    """
    return _resolved(graph, cluster, placement, False)


def _resolved(
    graph: Graph, cluster: Cluster, placement: Mapping[str, str], complete: bool
) -> list[int]:
    problems = list(_entry_problems(cluster, placement))
    entries = named(graph, placement)
    # Ahead of the ops without a device: a misspelt entry is why there are any.
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
    if problems:
        raise InputError(problems)
    return devices


def _entry_problems(cluster: Cluster, placement: Mapping[str, str]) -> Iterator[str]:
    for key, name in placement.items():
        if name not in cluster.index:
            yield f'placement["{key}"]: no device named "{name}"'
        elif not cluster.devices[cluster.index[name]].runs_ops:
            yield f'placement["{key}"]: "{name}" is a switch and runs no op'


def _near_module(graph: Graph, key: str) -> str:
    """Which module may be meant by an entry that is none, as the end of a sentence; or ""."""
    paths = (scope_of(op.name).replace(".", "/").split("/") for op in graph.ops)
    modules = {"/".join(path[: i + 1]) for path in paths for i in range(len(path))} - {""}
    near = get_close_matches(key.replace(".", "/"), sorted(modules), 1, NEAR)
    return f'; did you mean the module "{near[0]}"?' if near else ""


def _split_groups(
    graph: Graph, cluster: Cluster, devices: Sequence[int], keys: Sequence[str | None]
) -> Iterator[str]:
    """Groups on several devices: with the ops that stand there, by which entries, and what to write
    instead.
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
