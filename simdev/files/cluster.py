"""Clusters from and to JSON: devices and links one by one, by kinds, or one machine repeated on
several nodes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Required

from pydantic import Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from ..cluster import Cluster, Device, Link
from ..errors import InputError
from ..units import Number, is_count, parse_bandwidth
from .collectives import require_collectives
from .nodes import Network, network_problems, repeated, require_joinable
from .reading import PathLike
from .shape import STRICT, Bandwidth, OptionalBytes, Seconds, Share, plain, read_shape
from .source import opened
from .writing import rate_text, time_text, write_text

PRESETS = Path(__file__).parent.parent / "presets" / "clusters"


@with_config(STRICT)
class _DeviceKindShape(TypedDict, total=False):
    memory: OptionalBytes
    gap: Seconds
    staging: bool
    chunk: OptionalBytes
    transit: bool


@with_config(STRICT)
class _DeviceShape(_DeviceKindShape, total=False):
    name: Required[str]
    kind: str
    node: int


@with_config(STRICT)
class _LinkKindShape(TypedDict, total=False):
    bandwidth: Bandwidth
    latency: Seconds
    gap: Seconds
    duplex: Literal["full", "half", "simplex"]
    hold_latency: bool
    lanes: int


@with_config(STRICT)
class _LinkShape(_LinkKindShape, total=False):
    ends: Required[Annotated[list[str], Field(min_length=2, max_length=2)]]
    kind: str


@with_config(STRICT)
class _EveryLinkShape(TypedDict, total=False):
    bandwidth: Required[Bandwidth]
    latency: Seconds
    gap: Seconds
    duplex: Literal["full", "half"]
    hold_latency: bool
    kind: str
    lanes: int


@with_config(STRICT)
class _AllToAllShape(TypedDict, total=False):
    all_to_all: Required[_EveryLinkShape]


@with_config(STRICT)
class _NetworkShape(TypedDict, total=False):
    attach: Required[list[str | list[str]]]
    bandwidth: Required[Bandwidth]
    efficiency: Share
    latency: Seconds
    duplex: Literal["full", "half"]
    hold_latency: bool


class _CommonShape(TypedDict, total=False):
    name: str
    title: str
    about: str
    queues: str
    transfer: str
    collectives: str
    devices: Required[list[_DeviceShape]]
    device_kinds: dict[str, _DeviceKindShape]
    link_kinds: dict[str, _LinkKindShape]
    nodes: int
    network: _NetworkShape
    provenance: dict[str, Any]


@with_config(STRICT)
class _ClusterShape(_CommonShape, total=False):
    links: list[_LinkShape]


@with_config(STRICT)
class _ShortShape(_CommonShape, total=False):
    links: _AllToAllShape


@with_config(STRICT)
class _PresetShape(TypedDict, total=False):
    preset: Required[str]
    nodes: int
    network: Bandwidth
    queues: str
    transfer: str


_OPTIONS = ("queues", "transfer", "collectives", "provenance")
_KEYS = frozenset(
    {
        *_ClusterShape.__annotations__,
        *_DeviceShape.__annotations__,
        *_LinkShape.__annotations__,
        "version",
        "preset",
    }
)


@cache
def _adapter(short: bool) -> TypeAdapter[Any]:
    return TypeAdapter(_ShortShape if short else _ClusterShape)


@cache
def _preset_adapter() -> TypeAdapter[Any]:
    return TypeAdapter(_PresetShape)


def read_cluster(source: PathLike | Mapping[str, Any]) -> Cluster:
    """The cluster of a file, or of an object already parsed (which may leave out the version).

    ``{"preset": NAME, "nodes": 8, "network": "25 Gbit/s"}`` is a preset with settings; see
    ``read_preset``. Raises InputError with every problem at once.
    """
    with opened(source) as (value, is_file):
        if isinstance(value, dict) and "preset" in value:
            settings = read_shape(_preset_adapter(), value, _KEYS, is_file, "a cluster")
            name = settings.pop("preset")
            if name not in preset_names():
                raise InputError(f"preset: {_no_preset(name)}")
            return read_preset(name, **settings)
        return _cluster(_shaped(value, is_file))


def _shaped(value: Any, is_file: bool) -> dict[str, Any]:
    short = isinstance(value, dict) and isinstance(value.get("links"), dict)
    return read_shape(_adapter(short), value, _KEYS, is_file, "a cluster")


def _cluster(shaped: dict[str, Any]) -> Cluster:
    """The cluster of a checked object. Raises InputError."""
    nodes = shaped.get("nodes", 1)
    if nodes < 1:
        raise InputError(f"nodes: must be > 0, got {nodes}")
    require_collectives(shaped.get("collectives", ""))
    node = _node(shaped)
    network = shaped.get("network")
    if network is not None:
        attach = tuple((one,) if isinstance(one, str) else tuple(one) for one in network["attach"])
        network = Network(**{**network, "attach": attach})
    if nodes > 1:
        return repeated(node, nodes, network)
    problems = [] if network is None else list(network_problems(node, network))
    if problems:
        raise InputError(problems)
    return node


def _node(shaped: dict[str, Any]) -> Cluster:
    """One node: the devices and links as they are written, with what their kinds say of them."""
    name, links, kinds = (
        shaped.get("name", "cluster"),
        shaped.get("links", ()),
        shaped.get("device_kinds", {}),
    )
    options = {key: shaped[key] for key in _OPTIONS if key in shaped}
    devices = tuple(
        Device(**{**kinds.get(one.get("kind"), {}), **one}) for one in shaped["devices"]
    )
    if isinstance(links, dict):
        return _all_to_all(name, devices, options, links["all_to_all"])
    return Cluster(name, devices, _links(links, shaped.get("link_kinds", {})), **options)


def _links(links: list[dict[str, Any]], kinds: dict[str, dict[str, Any]]) -> tuple[Link, ...]:
    whole = [{**kinds.get(one.get("kind", ""), {}), **one} for one in links]
    problems = [
        f"links[{i}].bandwidth: missing" for i, one in enumerate(whole) if "bandwidth" not in one
    ]
    if problems:
        raise InputError(problems)
    return tuple(Link(**{**one, "ends": tuple(one["ends"])}) for one in whole)


def _all_to_all(
    name: str, devices: tuple[Device, ...], options: dict[str, Any], link: dict[str, Any]
) -> Cluster:
    require_joinable("links.all_to_all", sum(device.runs_ops for device in devices))
    # The devices are judged first, alone: a name that stands twice is not also a hundred faulty
    # links.
    alone = Cluster(name, devices, (), **options)
    return replace(alone, links=Cluster.all_to_all(name, devices, **link).links)


@cache
def preset_names() -> tuple[str, ...]:
    """Names of the clusters shipped with simdev."""
    return tuple(sorted(path.stem for path in PRESETS.glob("*.json")))


def read_preset(
    name: str,
    nodes: int | None = None,
    *,
    network: Number | None = None,
    queues: str | None = None,
    transfer: str | None = None,
) -> Cluster:
    """A cluster shipped with simdev, as it is or with settings. Raises InputError.

    ``nodes`` is how many machines, ``network`` the bandwidth of each of their NICs (per direction,
    as sold: the preset's efficiency applies), ``queues`` and ``transfer`` as in a cluster. A
    setting changes the cluster's name.
    """
    if name not in preset_names():
        raise InputError(_no_preset(name))
    shaped = preset_fields(name)
    settings = {"nodes": nodes, "queues": queues, "transfer": transfer}
    chosen = {key: value for key, value in settings.items() if value is not None}
    if nodes is not None and not is_count(nodes):
        raise InputError(f"nodes: must be a whole number, got {nodes!r}")
    told = [f"{key} {value}" for key, value in chosen.items()]
    if network is not None:
        shaped["network"] = _network_at(network, shaped)
        rate = rate_text(shaped["network"]["bandwidth"])
        told.append(f"network {rate}")
        source = {"value": rate, "kind": "setting", "source": "set by whoever asked"}
        shaped["provenance"] = {**shaped.get("provenance", {}), "network.bandwidth": source}
    return _cluster(shaped | chosen | {"name": ", ".join([name, *told])})


def _no_preset(name: str) -> str:
    return f'no preset "{name}"; {preset_hint(name)}'


def _network_at(bandwidth: Number, shaped: dict[str, Any]) -> dict[str, Any]:
    if "network" not in shaped:
        raise InputError("network: the preset has none whose bandwidth could be set")
    try:
        return {**shaped["network"], "bandwidth": parse_bandwidth(bandwidth)}
    except ValueError as error:
        raise InputError(f"network: {error}") from None


def preset_fields(name: str) -> dict[str, Any]:
    """The fields of a preset's file, checked one by one; quantities are numbers.

    Raises InputError.
    """
    with opened(PRESETS / f"{name}.json") as (value, _):
        return _shaped(value, True)


def preset_hint(name: str) -> str:
    """What to tell one who asked for a preset that does not exist."""
    close = get_close_matches(name, preset_names(), 1)
    return f'did you mean "{close[0]}"?' if close else 'there are those of "simdev clusters"'


def cluster_object(cluster: Cluster) -> dict[str, Any]:
    """The cluster as its file has it, ready for JSON: every device and link by itself, the
    provenance last.
    """
    found: dict[str, Any] = {
        "version": 1,
        "name": cluster.name,
        "queues": cluster.queues,
        "transfer": cluster.transfer,
        "collectives": cluster.collectives,
        "devices": list(map(_object, cluster.devices)),
        "links": list(map(_object, cluster.links)),
        "provenance": plain(cluster.provenance),
    }
    return {
        key: value
        for key, value in found.items()
        if value or key not in ("collectives", "provenance")
    }


def write_cluster(cluster: Cluster, path: PathLike) -> None:
    """Write a cluster, a device or link a line, its provenance last.

    Raises InputError, or OSError.
    """
    write_text(path, cluster_text(cluster))


def cluster_text(cluster: Cluster) -> str:
    """What ``write_cluster`` writes. Raises InputError."""
    found = cluster_object(cluster)
    head = {key: value for key, value in found.items() if isinstance(value, (str, int))}
    parts = [_json(head)[:-1]]
    parts += [
        _listed(key, "[]", [_json(one) for one in found[key]]) for key in ("devices", "links")
    ]
    if "provenance" in found:
        told = [f"{_json(key)}: {_json(one)}" for key, one in found["provenance"].items()]
        parts.append(_listed("provenance", "{}", told))
    return ", ".join(parts) + "}\n"


def _listed(key: str, brackets: str, lines: list[str]) -> str:
    inside = "\n  " + ",\n  ".join(lines) + "\n" if lines else ""
    return f'"{key}": {brackets[0]}{inside}{brackets[1]}'


def _json(told: Any) -> str:
    try:
        return json.dumps(told, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"provenance: cannot be written as JSON: {error}") from None


def _object(noun: Device | Link) -> dict[str, Any]:
    """The fields of a device or link that differ from their defaults."""
    found: dict[str, Any] = {}
    for field in fields(noun):
        value = getattr(noun, field.name)
        if value == field.default and not (field.name == "kind" and isinstance(noun, Device)):
            continue
        if field.name in ("gap", "latency"):
            value = time_text(Fraction(value))
        elif field.name == "bandwidth":
            value = rate_text(Fraction(value))
        found[field.name] = list(value) if isinstance(value, tuple) else value
    return found
