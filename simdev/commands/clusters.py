"""``simdev clusters [NAME]``: the clusters shipped as presets, or one of them in detail or as a
picture.

``files/cluster.py`` reads presets, ``report/figures/cluster.py`` makes the picture; the tables of
the documentation use ``preset_rows`` and ``device_rows``.
"""

from __future__ import annotations

import json
import os
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ..ground.errors import InputError
from ..ground.units import format_bandwidth, format_capacity, format_seconds
from .options import DONE, JSON_OPTION, flag, with_flags
from .outputs import PICTURES, json_text, output_files, save_figure

if TYPE_CHECKING:
    from ..nouns.cluster import Cluster, Device, Link

Line = tuple[str, ...]  # the cells of a row
HEAD = ("preset", "machine", "devices", "memory", "links, each way unless told", "between nodes")
DEVICE_HEAD = (
    "kind",
    "device",
    "float32 TFLOP/s",
    "float16, bfloat16 TFLOP/s",
    "memory bandwidth",
    "memory",
)
HELP = "list the cluster presets; show and draw one"
DESCRIPTION = (
    "Lists the machines that a scenario can name as its cluster. With NAME (or a cluster file) "
    "prints its devices, links and where every number comes from."
)
SETTINGS = ("nodes", "gpus", "network")
"""The options that are settings of a preset."""
OPTIONS = (
    ("name", "NAME", "a preset, or a cluster file (JSON)", {"nargs": "?"}),
    ("--nodes", "N", "so many machines, joined by the preset's network"),
    ("--gpus", "N", "so many GPUs of them, on the fewest machines without --nodes"),
    ("--network", "RATE", 'bandwidth of each network adapter, like "25 Gbit/s"'),
    ("-o --output", "OUT", "draw it (.png, .svg or .pdf)"),
    JSON_OPTION,
)


def run(args: Namespace) -> int:
    """Run the verb; returns the exit code. Raises SimdevError."""
    if args.name is None:
        unused = [name for name in (*SETTINGS, "output") if getattr(args, name) is not None]
        if unused:
            raise InputError(f"NAME: missing, and --{unused[0]} needs it")
        print(_listed(args))
        return DONE
    with with_flags({name: flag(name) for name in SETTINGS}):
        cluster = _cluster(args)
    with output_files(args, {"output": PICTURES}, ()) as out:
        if "output" in out:
            from ..report.figures.cluster import cluster_figure

            save_figure(cluster_figure(cluster), out["output"])
    if args.json:
        from ..files.cluster import cluster_object

        print(json_text(cluster_object(cluster), ascii_only=False))
    else:
        print(_description(cluster))
    return DONE


def preset_rows() -> list[Line]:
    """A row for every preset, under HEAD."""
    from ..files import preset_names
    from ..files.cluster import preset_fields, read_preset

    rows: list[Line] = []
    for name in preset_names():
        fields = preset_fields(name)
        # A single node is described, for all are equal; the default cluster has their number.
        nodes = 1 + max(device.node for device in read_preset(name).devices if device.runs_ops)
        cluster = read_preset(name, 1)
        devices = [device for device in cluster.devices if device.runs_ops]
        counts = Counter(device.kind for device in devices)
        links = dict.fromkeys(map(_link, cluster.links))
        rows.append(
            (
                name,
                fields.get("title", ""),
                f"{nodes} x " * (nodes > 1)
                + " + ".join(f"{count} {kind}" for kind, count in counts.items()),
                " + ".join(dict.fromkeys(map(_memory, devices))),
                "; ".join(f"{kind} {numbers}" for kind, numbers in links) or "-",
                _network(fields.get("network")),
            )
        )
    return rows


def device_rows() -> list[Line]:
    """A row for every kind of device with a datasheet, under DEVICE_HEAD; peaks are dense,
    bandwidths of one direction.
    """
    from ..files.device import device_presets

    rows = []
    for spec in device_presets():
        half = spec.flops.get("bfloat16", spec.flops.get("float16"))
        peaks = (spec.flops.get("float32"), half)
        rows.append(
            (
                spec.kind,
                spec.name,
                *(f"{float(peak) / 1e12:g}" if peak else "-" for peak in peaks),
                format_bandwidth(float(spec.memory_bandwidth)),
                "-" if spec.memory is None else format_capacity(spec.memory),
            )
        )
    return rows


def _listed(args: Namespace) -> str:
    rows = preset_rows()
    if args.json:
        objects = [dict(zip(("name", *HEAD[1:]), row, strict=True)) for row in rows]
        return json_text(objects, ascii_only=False)
    return _columns([(row[0], row[2], row[3], row[1]) for row in rows])


def _cluster(args: Namespace) -> Cluster:
    from ..files import preset_names, read_cluster, read_preset

    # A file with a preset's name is preferred to the preset, as in a scenario.
    is_file = os.path.exists(args.name) or args.name == "-"
    if args.name in preset_names() and not is_file:
        return read_preset(args.name, args.nodes, gpus=args.gpus, network=args.network)
    if not is_file and not args.name.endswith((".json", ".gz")):
        return read_preset(args.name)
    if any(getattr(args, name) is not None for name in SETTINGS):
        names = ", ".join(f"--{name}" for name in SETTINGS)
        raise InputError(f"{names}: are settings of a preset, not of a file")
    return read_cluster(args.name)


def _description(cluster: Cluster) -> str:
    """Everything about a cluster, for people."""
    nodes = sorted({device.node for device in cluster.devices if device.runs_ops})
    devices = Counter(_device(device) for device in cluster.devices if device.node == nodes[0])
    links = Counter(map(_link, cluster.links))
    lines = [
        f"{cluster.name}: queues {cluster.queues}, transfers {cluster.transfer}",
        "",
        f"{len(nodes)} nodes, each:" if len(nodes) > 1 else "devices:",
        *(f"  {count} x {device}" for device, count in devices.items()),
        "",
        "links:",
        _columns([(f"  {count} x {kind}", numbers) for (kind, numbers), count in links.items()])
        or "  none",
    ]
    if cluster.collectives:
        lines += [
            "",
            f"collectives inside a node, measured ({cluster.collectives}): the least time, bus "
            "bandwidths by size, and",
            "how well the table tells measured sizes that it does not hold:",
            _columns(list(_collectives(cluster.collectives))),
        ]
    if cluster.provenance:
        lines += ["", "where the numbers come from:", _columns(list(_sources(cluster)))]
        notes = [
            f"  {path}: {origin['note']}"
            for path, origin in cluster.provenance.items()
            if isinstance(origin, dict) and isinstance(origin.get("note"), str)
        ]
        lines += ["", "notes:", *notes] if notes else []
    return "\n".join(lines)


def _collectives(name: str) -> Iterator[Line]:
    """The tables of a collection, a row each: least time, bus bandwidths, and the error on measured
    sizes that are left out of the table.
    """
    from ..costs.collectives import bus_bandwidth
    from ..files.collectives import collectives_fields, read_collectives

    yield "  ", "GPUs", "least", "1 MiB", "16 MiB", "512 MiB", "mean and largest error"
    fields = collectives_fields(name)["tables"]
    for table, table_fields in zip(read_collectives(name), fields, strict=True):
        # A table that was fitted to a single size says nothing about the rates at others.
        sizes = (2**20, 2**24, 2**29) if table.source == "measured" else ()
        rates = [
            bus_bandwidth(table.collective, table.ranks, size, table.seconds(size))
            for size in sizes
        ]
        shown = [f"{float(rate) / 1e9:.1f} GB/s" for rate in rates] or ["-"] * 3
        left = table_fields.get("left_out")
        error = (
            f"{float(left['mean']):.1%}, {float(left['max']):.0%} on {left['sizes']}"
            if left
            else "fitted to one size"
        )
        least = f"{float(table.anchors[0][1]) * 1e6:.1f} us"
        yield f"  {table.collective}", str(table.ranks), least, *shown, error


def _sources(cluster: Cluster) -> Iterator[Line]:
    columns = ("value", "kind", "date", "source")
    for path, origin in cluster.provenance.items():
        if isinstance(origin, dict) and origin.keys() >= set(columns):
            yield f"  {path}", *(str(origin[column]) for column in columns)
        else:
            yield f"  {path}", json.dumps(origin, ensure_ascii=False, default=str)[:120]


def _device(device: Device) -> str:
    gap = f", gap {format_seconds(float(device.gap))}" if device.gap else ""
    name = device.name.rpartition(":")[0] or device.name
    memory = f", {_memory(device)}" if device.runs_ops else ""
    return f"{name} ({device.kind}{memory}{gap})"


def _link(link: Link) -> tuple[str, str]:
    """The kind of a link, and its numbers as a text."""
    numbers = [format_bandwidth(float(Fraction(link.bandwidth)))]
    if link.latency:
        numbers.append(format_seconds(float(link.latency)))
    if link.gap:
        numbers.append(f"gap {format_seconds(float(link.gap))}")
    if link.lanes and link.lanes > 1:
        numbers.append(f"{link.lanes} lanes")
    if link.duplex != "full":
        numbers.append({"half": "both ways together", "simplex": "one way"}[link.duplex])
    return link.kind or "link", ", ".join(numbers)


def _memory(device: Device) -> str:
    return "unlimited" if device.memory is None else format_capacity(int(device.memory))


def _network(network: dict[str, Any] | None) -> str:
    if network is None:
        return "-"
    rate = float(network["bandwidth"] * network.get("efficiency", 1))
    count = len(network["attach"])
    adapters = f"{count} x " if count > 1 else ""
    return f"{adapters}{format_bandwidth(rate)}, {format_seconds(float(network.get('latency', 0)))}"


def _columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows as lines with aligned columns; the last entry of a row is not padded."""
    # Rows differ in length: only columns that all rows have, their last apart, get a width.
    widths = [max(map(len, column)) for column in zip(*(row[:-1] for row in rows), strict=False)]
    lines = ["  ".join([*map(str.ljust, row[:-1], widths), row[-1]]) for row in rows]
    return "\n".join(line.rstrip() for line in lines)
