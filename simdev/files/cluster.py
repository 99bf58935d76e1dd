"""Clusters from and to JSON, and the presets shipped beside the package."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Required

from pydantic import Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from ..cluster import Cluster, Device, Link
from ..errors import InputError
from .reading import PathLike
from .shape import STRICT, Bandwidth, OptionalBytes, Seconds, read_shape
from .source import opened
from .writing import rate_text, time_text, write_text

PRESETS = Path(__file__).parent.parent / "presets" / "clusters"
MOST_LINKS = 1_000_000


@with_config(STRICT)
class _DeviceShape(TypedDict, total=False):
    name: Required[str]
    kind: str
    memory: OptionalBytes
    gap: Seconds
    staging: bool
    chunk: OptionalBytes


@with_config(STRICT)
class _LinkShape(TypedDict, total=False):
    ends: Required[Annotated[list[str], Field(min_length=2, max_length=2)]]
    bandwidth: Required[Bandwidth]
    latency: Seconds
    gap: Seconds
    duplex: Literal["full", "half", "simplex"]
    hold_latency: bool


@with_config(STRICT)
class _EveryLinkShape(TypedDict, total=False):
    bandwidth: Required[Bandwidth]
    latency: Seconds
    gap: Seconds
    duplex: Literal["full", "half"]
    hold_latency: bool


@with_config(STRICT)
class _AllToAllShape(TypedDict, total=False):
    all_to_all: Required[_EveryLinkShape]


class _CommonShape(TypedDict, total=False):
    name: str
    queues: str
    transfer: str
    devices: Required[list[_DeviceShape]]
    provenance: dict[str, Any]


@with_config(STRICT)
class _ClusterShape(_CommonShape, total=False):
    links: list[_LinkShape]


@with_config(STRICT)
class _ShortShape(_CommonShape, total=False):
    links: _AllToAllShape


_KEYS = frozenset(
    {*_ClusterShape.__annotations__, *_DeviceShape.__annotations__, *_LinkShape.__annotations__, "version"}
)


@cache
def _adapter(short: bool) -> TypeAdapter[Any]:
    return TypeAdapter(_ShortShape if short else _ClusterShape)


def read_cluster(source: PathLike | Mapping[str, Any]) -> Cluster:
    """The cluster of a file, or of an object already parsed (which may leave out the version).

    Raises InputError with every problem at once.
    """
    with opened(source) as (value, is_file):
        short = isinstance(value, dict) and isinstance(value.get("links"), dict)
        shaped = read_shape(_adapter(short), value, _KEYS, is_file, "a cluster")
        name, devices = shaped.get("name", "cluster"), [Device(**one) for one in shaped["devices"]]
        options: dict[str, str] = {str(key): shaped[key] for key in ("queues", "transfer") if key in shaped}
        if short:
            return _all_to_all(name, devices, options, shaped["links"]["all_to_all"])
        links = tuple(Link(**{**one, "ends": tuple(one["ends"])}) for one in shaped.get("links", ()))
        return Cluster(name, tuple(devices), links, **options)


def _all_to_all(name: str, devices: list[Device], options: dict[str, str], link: dict[str, Any]) -> Cluster:
    ends = sum(device.runs_ops for device in devices)
    count = ends * (ends - 1) // 2
    if count > MOST_LINKS:
        raise InputError(f"links.all_to_all: joins {ends} devices by {count} links; at most {MOST_LINKS} are allowed")
    # The devices are judged first, alone: a name that stands twice is not also a hundred faulty links.
    Cluster(name, tuple(devices), (), **options)
    return Cluster.all_to_all(name, devices, **options, **link)


def preset_names() -> tuple[str, ...]:
    """Names of the clusters shipped with simdev."""
    return tuple(sorted(path.stem for path in PRESETS.glob("*.json")))


def read_preset(name: str) -> Cluster:
    """A cluster shipped with simdev. Raises InputError for a name that is none."""
    if name not in preset_names():
        raise InputError(f'no preset "{name}"; there are {", ".join(preset_names())}')
    return read_cluster(PRESETS / f"{name}.json")


def write_cluster(cluster: Cluster, path: PathLike) -> None:
    """Write a cluster, a device or link a line. Raises OSError where it cannot write."""
    head = {"version": 1, "name": cluster.name, "queues": cluster.queues, "transfer": cluster.transfer}
    parts = [json.dumps(head, ensure_ascii=False)[:-1]]
    for key, nouns in (("devices", cluster.devices), ("links", cluster.links)):
        lines = [json.dumps(_object(noun), ensure_ascii=False) for noun in nouns]
        parts.append(f'"{key}": [\n  ' + ",\n  ".join(lines) + "\n]" if lines else f'"{key}": []')
    write_text(path, ", ".join(parts) + "}\n")


def _object(noun: Device | Link) -> dict[str, Any]:
    """The fields of a device or link that differ from their defaults."""
    found: dict[str, Any] = {}
    for field in fields(noun):
        value = getattr(noun, field.name)
        if value == field.default and field.name != "kind":
            continue
        if field.name in ("gap", "latency"):
            value = time_text(Fraction(value))
        elif field.name == "bandwidth":
            value = rate_text(Fraction(value))
        found[field.name] = list(value) if isinstance(value, tuple) else value
    return found
