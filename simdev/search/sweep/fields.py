"""Fields of a scenario by their path, ``cluster.links[*].bandwidth``, and scenarios with another
value there.

The notation is that of simdev's messages: ``.name``, ``[0]`` into a list, ``["any name"]``, and
``[*]`` for every entry of a list or object. Where a path leads into a part that the scenario only
names (a file, a preset, a short form), that part is opened and the field changed in a copy; nothing
is written.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from enum import Enum
from typing import Any

from ...files import preset_names
from ...files.cluster import CLUSTERS
from ...files.reading import shown
from ...files.strategy import is_bare
from ...ground.errors import InputError
from ...nouns.strategy import SHORT_FORMS

PARTS = ("graph", "cluster", "profile", "devices", "strategy")
ROOTS = (*PARTS, "options", "name")
PRESET_SETTINGS = ("nodes", "network", "queues", "transfer", "host")
SHORTHANDS_FOR_ALL_LINKS = ("bandwidth", "latency")
_STEP = re.compile(r'\.?([^\s.\[\]="]+)|\[([0-9]{1,9})\]|(\[\*\])|\[("(?:[^"\\]|\\.)*")\]')


class Every(Enum):
    """The step ``[*]``: every entry."""

    ENTRY = "[*]"


Step = str | int | Every
Read = Callable[[str], Any]
"""Gives the JSON value of a file."""


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
    """The steps of the path that a text begins with, and where it ends. Raises InputError."""
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
    if match[1] is not None:
        return match[1]
    if match[2] is not None:
        return int(match[2])
    if match[3] is not None:
        return Every.ENTRY
    try:
        return str(json.loads(match[4]))
    except ValueError:
        raise InputError(f"{match.string}: {match[4]} is no text in JSON") from None


def with_field(
    document: Mapping[str, Any], path: str, value: Any, folder: str, read: Read
) -> dict[str, Any]:
    """The scenario with another value at a path; what is not on the path is shared with the
    scenario given.

    Where the value replaces a whole part and is a path, it is looked for in the working directory,
    then in ``folder``, that of the scenario. Raises InputError, naming the path, where the path
    leads nowhere in this scenario.
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
    """The part as an object to change, where the scenario only names it; entries of a list that the
    path enters too.
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


def _unfolded(preset: Mapping[str, Any], read: Read) -> Any:
    """A preset with its settings as the object of a whole cluster; one that does not exist is left
    for its reader.
    """
    name = preset["preset"]
    if name not in preset_names():
        return preset
    settings = {key: preset[key] for key in preset if key not in ("preset", "network")}
    cluster = read(os.path.abspath(CLUSTERS / f"{name}.json")) | settings
    return _with_network(cluster, preset["network"]) if "network" in preset else cluster


def _with_network(cluster: dict[str, Any], value: Any) -> dict[str, Any]:
    """``cluster.network`` is a rate, as in a preset's settings, or the whole object."""
    if isinstance(cluster.get("network"), dict) and not isinstance(value, dict):
        value = {**cluster["network"], "bandwidth": value}
    return {**cluster, "network": value}


def _changed(root: str, part: Any, steps: Sequence[Step], value: Any, path: str) -> Any:
    """The part with the value in it; ``cluster.bandwidth`` and ``cluster.latency`` set every
    link.
    """
    if root != "cluster" or not isinstance(part, dict) or "preset" in part:
        return _within(part, steps, value, path)
    if len(steps) == 1 and steps[0] == "network":
        return _with_network(part, value)
    if len(steps) == 1 and steps[0] in SHORTHANDS_FOR_ALL_LINKS:
        links = part.get("links")
        _require(bool(links), path, "the cluster has no links")
        steps = ["links", "all_to_all" if isinstance(links, dict) else Every.ENTRY, *steps]
    changed = _within(part, steps, value, path)
    if steps[0] in ("links", "link_kinds") and steps[-1] in SHORTHANDS_FOR_ALL_LINKS:
        return _as_measured(part, changed, str(steps[-1]))
    return changed


def _as_measured(before: Mapping[str, Any], after: dict[str, Any], name: str) -> dict[str, Any]:
    """The changed cluster, each of whose links keeps the bandwidth or latency (``name``) that it
    had when its collectives were measured.
    """
    then, now = _whole_links(before), _whole_links(after)
    links: Any = copy(after.get("links"))
    for place in then.keys() & now.keys():
        was = then[place].get(name, 0 if name == "latency" else None)
        if f"measured_{name}" not in then[place] and was not in (None, now[place].get(name)):
            links[place] = {**links[place], f"measured_{name}": was}
    return {**after, "links": links} if links else after


def _whole_links(cluster: Mapping[str, Any]) -> dict[Any, dict[str, Any]]:
    """The links of a cluster by their places, each with what its kind says where they are listed;
    what is no link is left to its reader.
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
    """A copy of an object or list with the value in it; objects that are missing on the way are
    made.
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
