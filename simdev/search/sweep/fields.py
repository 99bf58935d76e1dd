"""Fields of a scenario by their path, ``cluster.links[*].bandwidth``; scenarios with another value
there; and grids, which list the values of fields: from Python, from a file (``files.read_grid``)
and from the command line.

The notation is that of simdev's messages: ``.name``, ``[0]`` into a list, ``["any name"]``, and
``[*]`` for every entry of a list or object. Where a path leads into a part that the scenario only
names (a file, a preset, a short form), that part is opened and the field changed in a copy; nothing
is written.

point.py sets the fields of a sweep with it. A setting that ``PresetShape`` of
``simdev/files/cluster.py`` takes beside a preset is also one of PRESET_SETTINGS here: a path to any
other field of a cluster opens the preset.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any

from ...files import preset_names
from ...files.cluster import CLUSTERS
from ...files.reading import parse_json, shown
from ...files.scenario import PARTS
from ...files.strategy import is_bare
from ...ground.errors import InputError, collecting
from ...ground.units import (
    DECIMAL,
    parse_bandwidth,
    parse_bytes,
    parse_duration,
    parse_flops,
    parse_speed,
    rate_text,
    written,
)
from ...nouns.strategy import SHORT_FORMS

ROOTS = (*PARTS, "options", "disturbances", "failures", "name")
PRESET_SETTINGS = ("nodes", "gpus", "network", "queues", "transfer", "host", "slow")
SHORTHANDS_FOR_ALL_LINKS = ("bandwidth", "latency")
_STEP = re.compile(r'\.?([^\s.\[\]="]+)|\[([0-9]{1,9})\]|(\[\*\])|\[("(?:[^"\\]|\\.)*")\]')


class Every(Enum):
    """The step ``[*]``: every entry."""

    ENTRY = "[*]"


Step = str | int | Every
Read = Callable[[str], Any]
"""A reader of files: the JSON value of a file, by its name."""
Document = Mapping[str, Any]
"""A scenario, or a part of one, as the JSON object of its file."""


def parse_path(text: str) -> tuple[Step, ...]:
    """The steps of a path. Raises InputError."""
    steps, end = leading_path(text)
    if end != len(text):
        raise InputError(f'{text}: cannot be read from "{text[end:]}" on; write it like {EXAMPLES}')
    return steps


EXAMPLES = (
    'cluster.network, graph.batch, cluster.links[*].latency or strategy.placement["encoder/*"]'
)


def leading_path(text: str) -> tuple[tuple[Step, ...], int]:
    """The steps of the path at the start of a text, and the path's end. Raises InputError."""
    steps: list[Step] = []
    at = 0
    while at < len(text) and (match := _STEP.match(text, at)):
        if (match[0][0] == ".") != bool(at and match[1]):
            break  # a name follows a dot, except at the beginning
        steps.append(_step(match))
        at = match.end()
    if not steps or steps[0] not in ROOTS:
        first = text.partition("=")[0]
        raise InputError(f"{first}: must begin with one of {', '.join(ROOTS)}, like {EXAMPLES}")
    return tuple(steps), at


def _step(match: re.Match[str]) -> Step:
    name, place, every, quoted = match.groups()
    if quoted is None:
        return Every.ENTRY if every else name if place is None else int(place)
    try:
        return str(json.loads(quoted))
    except ValueError:
        raise InputError(f"{match.string}: {quoted} is no text in JSON") from None


def with_field(
    document: Document, path: str, value: Any, folder: str, read: Read
) -> dict[str, Any]:
    """The scenario with another value at a path; parts that are not on the path are shared with the
    given scenario.

    Where the value replaces a whole part and is a path, it is looked for in the working directory,
    then in ``folder``, the scenario's. Raises InputError, naming the path, where the path leads
    nowhere in this scenario.
    """
    root, *steps = parse_path(path)
    root = str(root)

    def read_named(name: str) -> Any:
        try:
            return read(os.path.join(folder, name))
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    # An entry of a list of files is a whole file, like a part.
    is_whole = not steps or (
        len(steps) == 1 and root in ("profile", "devices") and not isinstance(steps[0], str)
    )
    is_path = is_whole and root in PARTS and isinstance(value, str)
    if is_path and value and "\0" not in value and os.path.exists(value):
        value = os.path.abspath(value)
    if not steps:
        return {**document, root: value}
    part = document.get(root, {})
    if root in PARTS and not is_whole:
        part = opened(root, part, steps, read_named)
    return {**document, root: _changed(root, part, steps, value, path)}


def opened(root: str, part: Any, steps: Sequence[Step], read: Read) -> Any:
    """A part that the scenario only names (a file, a preset, a short form) as an object to change.
    In a list, the entries that the path enters are opened.
    """
    if isinstance(part, list):
        entered = range(len(part)) if steps[0] is Every.ENTRY else [steps[0]]
        return [
            opened(root, entry, steps[1:], read) if i in entered else entry
            for i, entry in enumerate(part)
        ]
    if isinstance(part, str):
        if root == "cluster" and part in preset_names():
            part = {"preset": part}
        elif root == "strategy" and part in SHORT_FORMS:
            part = {"short": part}
        else:
            part = read(part)
    if root == "strategy" and isinstance(part, dict) and is_bare(part):
        return {"placement": part}
    if (
        root == "cluster"
        and isinstance(part, dict)
        and "preset" in part
        and steps[0] not in ("preset", *PRESET_SETTINGS)
    ):
        return _unfolded(part, read)
    return part


def _unfolded(preset: Document, read: Read) -> Any:
    """The whole cluster of a preset with its settings; an unknown preset is left as it is, for the
    cluster's reader to refuse.
    """
    name = preset["preset"]
    if name not in preset_names():
        return preset
    settings = {key: preset[key] for key in preset if key not in ("preset", "network")}
    cluster = read(os.path.abspath(CLUSTERS / f"{name}.json")) | settings
    return _with_network(cluster, preset["network"]) if "network" in preset else cluster


def _with_network(cluster: Document, value: Any) -> dict[str, Any]:
    """The cluster with another ``network``: a rate, as in a preset's settings, or the
    whole object.
    """
    if isinstance(cluster.get("network"), dict) and not isinstance(value, dict):
        value = {**cluster["network"], "bandwidth": value}
    return {**cluster, "network": value}


def _changed(root: str, part: Any, steps: Sequence[Step], value: Any, path: str) -> Any:
    """The part with the value set; ``cluster.bandwidth`` and ``cluster.latency`` set every link."""
    if root == "strategy" and isinstance(part, dict) and steps[0] == "sync" and len(steps) > 1:
        # "sync" may be the name of a policy alone, which is then opened into an object.
        sync = part.get("sync")
        part = {**part, "sync": {"policy": sync}} if isinstance(sync, str) else part
    if root != "cluster" or not isinstance(part, dict) or "preset" in part:
        return _within(part, steps, value, path)
    if len(steps) == 1 and steps[0] == "network":
        return _with_network(part, value)
    if len(steps) == 1 and steps[0] in SHORTHANDS_FOR_ALL_LINKS:
        links = part.get("links")
        _require(bool(links), path, "the cluster has no links")
        steps = ["links", "all_to_all" if isinstance(links, dict) else Every.ENTRY, *steps]
    changed = _within(part, steps, value, path)
    if len(steps) > 2 and steps[-1] == "bandwidth" and steps[1] in ("all_to_all", Every.ENTRY):
        changed = _still_slowed(changed)
    if steps[0] in ("links", "link_kinds") and steps[-1] in SHORTHANDS_FOR_ALL_LINKS:
        return _as_measured(part, changed, str(steps[-1]))
    return changed


def _still_slowed(cluster: dict[str, Any]) -> dict[str, Any]:
    """The cluster whose slowed links have their share of the bandwidth that all were given."""
    links: Any = copy(cluster["links"])
    for place, link in _whole_links(cluster).items():
        with suppress(TypeError, ValueError):  # What is no quantity is left to the reader.
            share, rate = parse_speed(link.get("slowed", 1)), parse_bandwidth(link["bandwidth"])
            if share != 1:
                links[place] = {**links[place], "bandwidth": rate_text(rate * share)}
    return {**cluster, "links": links}


def _as_measured(before: Document, after: dict[str, Any], name: str) -> dict[str, Any]:
    """The changed cluster. Each link records, as ``measured_...``, the bandwidth or latency
    (``name``) that it had when its collectives were measured.
    """
    then, now = _whole_links(before), _whole_links(after)
    links: Any = copy(after.get("links"))
    for place in then.keys() & now.keys():
        was = then[place].get(name, 0 if name == "latency" else None)
        if f"measured_{name}" not in then[place] and was not in (None, now[place].get(name)):
            links[place] = {**links[place], f"measured_{name}": was}
    return {**after, "links": links} if links else after


def _whole_links(cluster: Document) -> dict[Any, dict[str, Any]]:
    """The links of a cluster by their places, listed links with the settings of their kind.
    Malformed entries are left out, for the cluster's reader to refuse.
    """
    links, kinds = cluster.get("links"), cluster.get("link_kinds")
    if isinstance(links, Mapping):
        return {place: dict(link) for place, link in links.items() if isinstance(link, Mapping)}
    kinds = kinds if isinstance(kinds, Mapping) else {}
    of_kind = {kind: said for kind, said in kinds.items() if isinstance(said, Mapping)}
    return {
        i: {**of_kind.get(str(link.get("kind", "")), {}), **link}
        for i, link in enumerate(links if isinstance(links, list) else ())
        if isinstance(link, Mapping)
    }


def _within(holder: Any, steps: Sequence[Step], value: Any, path: str) -> Any:
    """A copy of an object or list with the value set; objects that are missing on the way
    are made.
    """
    if not steps:
        return value
    step, *rest = steps
    if isinstance(holder, Mapping) and not isinstance(step, int):
        keys = list(holder) if isinstance(step, Every) else [step]
        _require(bool(keys), path, "there is no entry")
        return {**holder, **{key: _within(holder.get(key, {}), rest, value, path) for key in keys}}
    if isinstance(holder, list) and not isinstance(step, str):
        places = range(len(holder)) if isinstance(step, Every) else [step]
        _require(bool(places), path, "there is no entry")
        _require(max(places) < len(holder), path, f"there is no entry [{step}], only {len(holder)}")
        return [
            _within(entry, rest, value, path) if i in places else entry
            for i, entry in enumerate(holder)
        ]
    text = {str: f'"{step}"', int: f"[{step}]", Every: "[*]"}[type(step)]
    raise InputError(f"{path}: {text} leads into {shown(holder)}")


def _require(condition: bool, path: str, reason: str) -> None:
    if not condition:
        raise InputError(f"{path}: {reason}")


# Grids.

Grid = Mapping[str, Sequence[Any]] | Iterable[Mapping[str, Sequence[Any]]]
MOST_POINTS = 1_000_000
NUMBERS = (int, float, Decimal)
SLOW = 1_000_000  # bytes/s; a bandwidth below, without a unit, is no doubt meant in another unit
PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "s": parse_duration,
    "bytes": parse_bytes,
    "bytes_per_s": parse_bandwidth,
    "flop_per_s": parse_flops,
}


def points(grid: Grid | None) -> list[dict[str, Any]]:
    """Every combination of values, the first field changing slowest; several grids one after
    another.

    Without a grid, one point that changes nothing. Raises InputError.
    """
    grids = [grid] if isinstance(grid, Mapping) else list(grid or [{}])
    problems: list[str] = []
    for fields in grids:
        for path, values in fields.items():
            with collecting(problems):
                parse_path(path)
            if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Sequence):
                problems.append(f"{path}: must be a list of values, got {written(values)}")
            elif not values:
                problems.append(f"{path}: has no values")
            else:
                # Tables and rankings hold numbers as floats.
                large = [v for v in values if type(v) in NUMBERS and abs(v) > sys.float_info.max]
                problems += [f"{path}: out of range: {Decimal(v):.0e}" for v in large[:1]]
    if problems:
        raise InputError(problems)
    # Counted before points are made: a few long lists give more points than memory holds.
    count = sum(prod(map(len, fields.values())) for fields in grids)
    if count > MOST_POINTS:
        raise InputError(f"the grid has {count:,} points; at most {MOST_POINTS:,} are allowed")
    return [
        dict(zip(fields, values, strict=True))
        for fields in grids
        for values in product(*fields.values())
    ]


def crossed(
    first: Sequence[Mapping[str, Sequence[Any]]], second: Mapping[str, Sequence[Any]]
) -> list[Mapping[str, Sequence[Any]]]:
    """Every point of the first grids combined with every point of the second.

    Raises InputError for a field that both set.
    """
    twice = sorted({path for fields in first for path in fields if path in second})
    if twice:
        raise InputError([f"{path}: is set twice" for path in twice])
    return [{**fields, **second} for fields in first]


def parse_settings(texts: Iterable[str]) -> dict[str, list[Any]]:
    """The grid of the command line's ``PATH=VALUE,VALUE,...``.

    Raises InputError with every problem.

    A value is parsed as JSON, or else kept as text. A bare number takes the unit of the next value
    that has one: ``1,2,4,8Gbit/s``.
    """
    grid: dict[str, list[Any]] = {}
    problems: list[str] = []
    for text in texts:
        with collecting(problems):
            _, end = leading_path(text)
            path = text[:end]
            if text[end : end + 1] != "=":
                raise InputError(f"{text}: must be PATH=VALUE,VALUE,...")
            if path in grid:
                raise InputError(f"{path}: is set twice")
            grid[path] = _values(path, text[end + 1 :])
    if problems:
        raise InputError(problems)
    return grid


def slow_bandwidths(settings: Mapping[str, Sequence[Any]]) -> list[str]:
    """A note for each field with a bandwidth that has no unit and is probably not meant in bytes/s:
    how it is read, and how to write it.
    """
    notes = []
    for path, values in settings.items():
        steps = parse_path(path)
        if str(steps[-1]).endswith("bandwidth") or steps == ("cluster", "network"):
            plain = [value for value in values if type(value) in NUMBERS]
            slow = [f"{float(value):g}" for value in plain if 0 < value < SLOW]
            notes += [
                f"{path}={value} is {value} B/s; write {value}GB/s or {value}Gbit/s"
                for value in slow[:1]
            ]
    return notes


def _values(path: str, text: str) -> list[Any]:
    texts = [value.strip() for value in _split(text)]
    if "" in texts:
        raise InputError(f'{path}: a value is empty in "{text}"')
    units = [_unit(value) for value in texts]
    if any(units):
        # From the last value to the first, so that a unit passes on from value to value.
        if units[-1] is None and DECIMAL.fullmatch(texts[-1]):
            raise InputError(f'{path}: "{texts[-1]}" has no unit; write it behind the last value')
        for i in reversed(range(len(texts) - 1)):
            if units[i] is None and DECIMAL.fullmatch(texts[i]):
                units[i] = units[i + 1]
                texts[i] += units[i] or ""
    return [_value(value) for value in texts]


def _split(text: str) -> list[str]:
    """The parts between commas; commas within brackets or quotes do not separate."""
    parts, depth, quoted, start = [], 0, False, 0
    for i, sign in enumerate(text):
        if sign == '"' and text[i - 1 : i] != "\\":
            quoted = not quoted
        elif not quoted:
            depth += (sign in "[{") - (sign in "]}")
            if sign == "," and depth <= 0:
                parts.append(text[start:i])
                start = i + 1
    return [*parts, text[start:]]


def _unit(text: str) -> str | None:
    """The unit behind the number of a quantity, None where there is none."""
    match = DECIMAL.match(text)
    unit = text[match.end() :] if match else ""
    return unit if unit and _si(text) else None


def _value(text: str) -> Any:
    try:
        return parse_json(text)
    except InputError:
        return text


def si_values(values: Sequence[Any]) -> tuple[str, list[float]] | None:
    """(unit, numbers in that unit), where the values are quantities of one sort and written with
    units; else None.

    Units are named as in columns: ``s``, ``bytes``, ``bytes_per_s``, ``flop_per_s``.
    """
    if not any(isinstance(value, str) and _unit(value) for value in values):
        return None
    every = [_si(value) for value in values]
    units = [unit for unit in PARSERS if all(unit in each for each in every)]
    return (units[0], [float(each[units[0]]) for each in every]) if units else None


def _si(value: Any) -> dict[str, Fraction]:
    """The value of a quantity in each SI unit in which it can be read."""
    numbers: dict[str, Fraction] = {}
    for unit, parse in PARSERS.items():
        with suppress(ValueError, TypeError, AttributeError):
            numbers[unit] = Fraction(parse(value))
    return numbers
