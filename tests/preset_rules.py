"""Rules for shipped presets: the provenance that each number needs, and consistency of numbers.

Each rule has found an error in published tables: the memory bandwidth of another card, 141 GiB
instead of 141 GB, one table copied under two names.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from statistics import median
from typing import Any, Required, get_args, get_origin

from typing_extensions import get_type_hints

from simdev.costs.collectives import COLLECTIVE_PRESETS
from simdev.files.cluster import CLUSTERS, DeviceKindShape, LinkKindShape, NetworkShape
from simdev.files.device import DEVICE_PRESETS
from simdev.files.device import FORMAT as DATASHEET
from simdev.files.reading import read_json
from simdev.files.shape import (
    Bandwidth,
    Bytes,
    Capacity,
    OptionalBytes,
    Seconds,
    Share,
    Slowdown,
)
from simdev.ground.units import exact, parse_bandwidth, parse_bytes, parse_flops, parse_time

KINDS = ("measured", "datasheet", "fitted")
LENIENT = Fraction(105, 100)  # a measurement may exceed its specification by clocks and rounding
MOST_EFFICIENCY = Fraction(11, 10)
FAMILY_RANGE = Fraction(1, 2), Fraction(2)
FAMILY_DTYPES = ("bfloat16", "float16", "float32")  # the first that a device names
Entry = Mapping[str, Any]
Parser = Callable[[Any], Fraction | int]

_DATE = re.compile(r"(19|20)[0-9]{2}(-(0[1-9]|1[0-2])(-[0-3][0-9])?)?\Z")
# The parser of a quantity, by its type in the shape of a file (``exact``: it has no unit).
_READERS: Mapping[Any, Parser] = {
    Bandwidth: parse_bandwidth, Bytes: parse_bytes, OptionalBytes: parse_bytes,
    Capacity: parse_bytes, Seconds: parse_time, Share: exact, Slowdown: exact,
}  # fmt: skip


def quantities_of(shape: Any) -> Mapping[str, Parser]:
    """The keys of a shape that hold a quantity, each with its parser."""
    hints = get_type_hints(shape, include_extras=True)
    inside = {k: get_args(h)[0] if get_origin(h) is Required else h for k, h in hints.items()}
    return {key: _READERS[hint] for key, hint in inside.items() if hint in _READERS}


_SHEET, _DEVICE = quantities_of(DATASHEET.shape), quantities_of(DeviceKindShape)
_LINK, _NETWORK = {**quantities_of(LinkKindShape), "lanes": exact}, quantities_of(NetworkShape)
_PARSERS = {**_SHEET, **_DEVICE, **_LINK, **_NETWORK, "overhead": parse_time}


def lint_presets() -> list[str]:
    """The problems of the shipped presets, each as ``file: path: reason``; empty where there are
    none.
    """
    problems: list[str] = []
    folders = (
        (DEVICE_PRESETS, lint_device),
        (CLUSTERS, lint_cluster),
        (COLLECTIVE_PRESETS, lint_collectives),
    )
    for folder, lint in folders:
        files = {path.stem: read_json(path) for path in sorted(folder.glob("*.json"))}
        for name, value in files.items():
            problems += [f"{folder.name}/{name}.json: {problem}" for problem in lint(name, value)]
        problems += [f"{folder.name}: {problem}" for problem in _copies(files)]
    devices = {path.stem: read_json(path) for path in sorted(DEVICE_PRESETS.glob("*.json"))}
    return problems + list(lint_families(devices))


def lint_device(name: str, value: Mapping[str, Any]) -> Iterator[str]:
    """The problems of a datasheet, a parsed JSON object; ``name`` is the name of its file."""
    if value.get("kind") != name:
        yield f'kind: must be the name of the file, "{name}"'
    numbers = {f"flops.{dtype}": peak for dtype, peak in value["flops"].items()}
    numbers |= {key: value[key] for key in _SHEET if key in value}
    numbers |= {f"ports.{kind}": count for kind, count in value.get("ports", {}).items()}
    measured = value.get("measured", {})
    best = {f"flops.{dtype}": peak for dtype, peak in measured.get("flops", {}).items()}
    best |= {key: measured[key] for key in ("memory_bandwidth",) if key in measured}
    burst = {
        f"burst_flops.{dtype}": peak for dtype, peak in measured.get("burst_flops", {}).items()
    }
    for path, scalars in efficiencies(value):
        for scalar, share in scalars.items():
            numbers[f"{path}.{scalar}"] = share
            # An efficiency above 1 means that another dtype computes (TF32): a note has to say so.
            excused = "TF32" in value["provenance"].get(f"{path}.{scalar}", {}).get("note", "")
            most = 4 if excused else MOST_EFFICIENCY
            if scalar != "overhead" and not 0 < exact(share) <= most:
                yield f"{path}.{scalar}: must be in (0, 1.1], got {share}"
    yield from _provenance(
        numbers | {f"measured.{path}": rate for path, rate in (best | burst).items()}, value
    )
    for path, rate in (best | burst).items():
        peak = path.removeprefix("burst_")
        if peak not in numbers:
            yield f"measured.{path}: measured, but not specified"
        elif _parsed(peak, rate) > LENIENT * _parsed(peak, numbers[peak]):
            yield f"measured.{path}: {rate} is more than 1.05 times {numbers[peak]}"
        if path in burst and peak in best and _parsed(peak, rate) < _parsed(peak, best[peak]):
            yield f"measured.{path}: {rate} is less than what is sustained, {best[peak]}"


def efficiencies(value: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The scalars of a datasheet by op class and dtype, each with its path."""
    for op_class, by_dtype in value.get("efficiency", {}).items():
        for dtype, scalars in by_dtype.items():
            yield f"efficiency.{op_class}.{dtype}", scalars


def lint_families(devices: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The devices whose bytes per FLOP are outside of [0.5, 2] times the median of their family."""
    families: dict[str, list[str]] = {}
    for name, value in devices.items():
        families.setdefault(value.get("family", ""), []).append(name)
    for family, names in sorted(families.items()):
        if not family:
            yield from (f"devices/{name}.json: family: missing" for name in names)
            continue
        ratios = {name: _bytes_per_flop(devices[name]) for name in names}
        # A chip counts once, however many devices are built from it.
        middle = median(ratios[name] for name in names if "measured_as" not in devices[name])
        for name, ratio in ratios.items():
            if family != "cpu" and not FAMILY_RANGE[0] <= ratio / middle <= FAMILY_RANGE[1]:
                times = f"{float(ratio / middle):.2f} times"
                yield f"devices/{name}.json: {times} the bytes per FLOP of its family, {family}"


def lint_cluster(name: str, value: Mapping[str, Any]) -> Iterator[str]:
    """The problems of a cluster, a parsed JSON object; ``name`` is the name of its file."""
    if value.get("name") != name:
        yield f'name: must be that of the file, "{name}"'
    if not value.get("title"):
        yield "title: missing"
    numbers, problems = _numbers(value)
    yield from problems
    yield from _provenance(numbers, value)
    yield from _ports(value)
    for kind, link in _link_kinds(value).items():
        if "duplex" not in link:
            yield f"links.{kind}.duplex: must be stated"
        provenance = value["provenance"].get(f"links.{kind}.bandwidth", {})
        if link.get("duplex") == "simplex" and "asymmetric" not in provenance:
            yield f'links.{kind}: one direction only; say why in "asymmetric" beside its bandwidth'
    if "network" in value and "duplex" not in value["network"]:
        yield "network.duplex: must be stated"


def lint_collectives(name: str, value: Mapping[str, Any]) -> Iterator[str]:
    """The problems of tables of collectives, a parsed JSON object; ``name`` is its file's name."""
    if value.get("name") != name:
        yield f'name: must be that of the file, "{name}"'
    provenance = value.get("provenance", {})
    seen: dict[str, str] = {}
    for table in value["tables"]:
        path = f"tables.{table['collective']}.{table['ranks']}"
        entry = provenance.get(path) or provenance.get("tables")
        if entry is None:
            yield f"{path}: no provenance"
        elif entry.get("kind") != table.get("source", "measured"):
            yield (
                f"{path}: its source is {table.get('source', 'measured')}, its provenance "
                f"says {entry.get('kind')}"
            )
        bare = [anchor for anchor in table["anchors"] if not all(map(_has_unit, anchor))]
        if bare:
            yield f"{path}: anchors without units: {bare[0]}"
        same = seen.setdefault(_digest(table["anchors"]), path)
        if same != path:
            yield f"{path}: the same anchors as {same}"
    for path, entry in provenance.items():
        yield from _entry(path, entry)


def _numbers(value: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Every number of a cluster by its path, and the problems of kinds whose members differ."""
    numbers: dict[str, Any] = {}
    problems = []
    kinds = value.get("device_kinds", {})
    for device in value["devices"]:
        whole = {**kinds.get(device.get("kind"), {}), **device}
        for key in _DEVICE:
            if (
                key in whole
                and numbers.setdefault(f"devices.{whole['kind']}.{key}", whole[key]) != whole[key]
            ):
                problems.append(
                    f"devices.{whole['kind']}.{key}: differs between devices of one kind"
                )
    for kind, link in _link_kinds(value).items():
        numbers |= {f"links.{kind}.{key}": link[key] for key in _LINK if key in link}
    if isinstance(value.get("links"), list):
        known = value.get("link_kinds", {})
        for i, link in enumerate(value["links"]):
            if link.get("kind") not in known or set(link) != {"ends", "kind"}:
                problems.append(
                    f"links[{i}]: in a preset a link has ends and a kind of link_kinds, "
                    "nothing else"
                )
    network = value.get("network", {})
    return numbers | {
        f"network.{key}": network[key] for key in _NETWORK if key in network
    }, problems


def _link_kinds(value: Mapping[str, Any]) -> Mapping[str, Any]:
    links = value.get("links", [])
    if isinstance(links, Mapping):
        every = links["all_to_all"]
        return {every.get("kind", "all_to_all"): every}
    kinds: Mapping[str, Any] = value.get("link_kinds", {})
    return kinds


def _ports(value: Mapping[str, Any]) -> Iterator[str]:
    """The devices whose links' lanes, where given, do not sum to the device's ports."""
    if isinstance(value.get("links"), Mapping):
        return
    kinds = value.get("link_kinds", {})
    for device in value["devices"]:
        sheet = DEVICE_PRESETS / f"{device.get('kind')}.json"
        ports = read_json(sheet).get("ports", {}) if sheet.is_file() else {}
        for port, count in ports.items():
            links = [link["kind"] for link in value["links"] if device["name"] in link["ends"]]
            lanes = [kinds.get(kind, {}).get("lanes") for kind in links if kind.startswith(port)]
            if lanes and None not in lanes and sum(lanes) != count:
                yield f"devices.{device['name']}: {sum(lanes)} lanes of {port}, but {count} ports"


def _provenance(numbers: Mapping[str, Any], value: Mapping[str, Any]) -> Iterator[str]:
    """The problems of provenance: numbers without an entry, entries without a number, values that
    differ, and bad entries.
    """
    provenance = value.get("provenance", {})
    yield from (
        f"provenance: {path}: tells of a number that is not there"
        for path in provenance
        if path not in numbers
    )
    for path, number in numbers.items():
        if not _is_plain(path) and not _has_unit(number):
            yield f"{path}: must be text with a unit, got {number}"
        if path not in provenance:
            yield f"provenance: {path}: missing"
            continue
        problems = list(_entry(path, provenance[path]))
        yield from problems
        if not problems and _parsed(path, provenance[path]["value"]) != _parsed(path, number):
            stated = provenance[path]["value"]
            yield f"provenance: {path}: tells of {stated}, the number is {number}"


def _entry(path: str, entry: Entry) -> Iterator[str]:
    where = f"provenance: {path}"
    missing = [key for key in ("value", "kind", "date", "source") if not entry.get(key)]
    if missing:
        yield f"{where}: {', '.join(missing)} missing"
        return
    if entry["kind"] not in KINDS:
        yield f"{where}: kind must be one of {', '.join(KINDS)}, got {entry['kind']}"
    if not _DATE.match(str(entry["date"])):
        yield f"{where}: date must be like 2026-09, got {entry['date']}"
    limit = entry.get("specification")
    if limit is not None:
        if not all(limit.get(key) for key in ("value", "date", "source")):
            yield f"{where}: specification must tell value, date and source"
        elif _parsed(path, entry["value"]) > LENIENT * _parsed(path, limit["value"]):
            yield (
                f"{where}: {entry['value']} is more than 1.05 times the specification, "
                f"{limit['value']}"
            )


def _is_plain(path: str) -> bool:
    parts = path.split(".")
    return (
        _PARSERS.get(parts[-1]) is exact
        or parts[0] == "ports"
        or (parts[0] == "efficiency" and parts[-1] != "overhead")
    )


def _has_unit(number: Any) -> bool:
    return isinstance(number, str) and number.strip()[-1:].isalpha()


def _parsed(path: str, number: Any) -> Fraction:
    if _is_plain(path):
        return exact(number)
    if ".flops." in f".{path}" or ".burst_flops." in path:
        return parse_flops(number)
    return Fraction(_PARSERS[path.rpartition(".")[2]](number))


def _bytes_per_flop(value: Mapping[str, Any]) -> Fraction:
    wanted = ("float32",) if value["family"] == "before tensor cores" else FAMILY_DTYPES
    dtype = next(dtype for dtype in wanted if dtype in value["flops"])
    return parse_bandwidth(value["memory_bandwidth"]) / parse_flops(value["flops"][dtype])


def _copies(files: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The files with the same content under two names."""
    seen: dict[str, str] = {}
    for name, value in files.items():
        content = {
            key: item
            for key, item in value.items()
            if key not in ("name", "kind", "title", "about", "provenance")
        }
        first = seen.setdefault(_digest(content), name)
        if first != name:
            yield f"{name}.json: the same as {first}.json"


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
