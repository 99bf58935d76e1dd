"""``simdev clusters [NAME]``: the machines shipped as presets, and one of them in detail or as a
picture.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from .codes import DONE
from .outputs import PICTURES, check_names, place_for, save_figure

if TYPE_CHECKING:
    from ..cluster import Cluster

HEAD = ("preset", "machine", "devices", "memory", "links, each way unless told", "between nodes")


def add_parser(verbs: Any) -> None:
    """Add this verb to the parser's subparsers."""
    found = verbs.add_parser(
        "clusters",
        help="list the cluster presets; show and draw one",
        description="Lists the machines that a scenario can name as its cluster. With NAME (or a "
        "cluster file) prints "
        "its devices, links and where every number comes from.",
        allow_abbrev=False,
    )
    found.add_argument("name", nargs="?", metavar="NAME", help="a preset, or a cluster file (JSON)")
    found.add_argument(
        "--nodes", type=int, metavar="N", help="so many machines, joined by the preset's network"
    )
    found.add_argument(
        "--network", metavar="RATE", help='bandwidth of each network adapter, like "25 Gbit/s"'
    )
    found.add_argument("-o", "--output", metavar="OUT", help="draw it (.png, .svg or .pdf)")
    found.add_argument("--json", action="store_true", help="print as JSON")
    found.add_argument(
        "--markdown", action="store_true", help="print the list as a table for documents"
    )
    found.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the verb; returns the exit code. Raises SimdevError."""
    if args.name is None:
        unused = [
            name for name in ("nodes", "network", "output") if getattr(args, name) is not None
        ]
        if unused:
            raise InputError(f"NAME: missing, and --{unused[0]} needs it")
        print(_listed(args))
        return DONE
    if args.markdown:
        raise InputError("--markdown: prints the list of presets, without NAME")
    cluster = _cluster(args)
    if args.output is not None:
        _draw(cluster, args.output)
    if args.json:
        from ..files.cluster import cluster_object

        print(json.dumps(cluster_object(cluster), indent=1, ensure_ascii=False))
    else:
        print(_told(cluster))
    return DONE


def preset_rows() -> list[tuple[str, ...]]:
    """A row for every preset, under HEAD."""
    from ..files import preset_names
    from ..files.cluster import preset_fields, read_preset

    rows: list[tuple[str, ...]] = []
    for name in preset_names():
        fields, cluster = preset_fields(name), read_preset(name, 1)
        default = read_preset(name)
        nodes = 1 + max(device.node for device in default.devices if device.runs_ops)
        counted = [
            f"{count} {kind}"
            for kind, count in _counts(d.kind for d in cluster.devices if d.runs_ops)
        ]
        machines = f"{nodes} x " if nodes > 1 else ""
        memory = [_memory(device) for device in cluster.devices if device.runs_ops]
        rows.append(
            (
                name,
                fields.get("title", ""),
                machines + " + ".join(counted),
                " + ".join(dict.fromkeys(memory)),
                "; ".join(f"{kind} {told}" for kind, told in _link_kinds(cluster)) or "-",
                _network(fields.get("network")),
            )
        )
    return rows


def preset_table() -> str:
    """The presets as a table in Markdown: what docs/clusters.md holds."""
    return _markdown(HEAD, [(f"`{row[0]}`", *row[1:]) for row in preset_rows()])


def device_table() -> str:
    """The kinds of device as a table in Markdown, peaks dense and of one direction:
    docs/clusters.md holds it too.
    """
    from ..files.device import device_presets
    from ..units import format_bandwidth, format_capacity

    rows = []
    for spec in device_presets():
        half = spec.flops.get("bfloat16", spec.flops.get("float16"))
        peaks = [
            f"{float(peak) / 1e12:g}" if peak else "-" for peak in (spec.flops.get("float32"), half)
        ]
        memory = "-" if spec.memory is None else format_capacity(spec.memory)
        rows.append(
            (
                f"`{spec.kind}`",
                spec.name,
                *peaks,
                format_bandwidth(float(spec.memory_bandwidth)),
                memory,
            )
        )
    return _markdown(
        ("kind", "device", "float32 TFLOP/s", "float16, bfloat16 TFLOP/s", "memory", "size"), rows
    )


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _listed(args: argparse.Namespace) -> str:
    if args.markdown:
        return preset_table()
    rows = preset_rows()
    if args.json:
        return json.dumps(
            [dict(zip(("name", *HEAD[1:]), row, strict=True)) for row in rows],
            indent=1,
            ensure_ascii=False,
        )
    return _columns([(row[0], row[2], row[3], row[1]) for row in rows])


def _cluster(args: argparse.Namespace) -> Cluster:
    from ..files import preset_names, read_cluster, read_preset

    if args.name in preset_names() and not os.path.exists(args.name):
        return read_preset(args.name, args.nodes, network=args.network)
    if args.name.endswith((".json", ".gz")) or os.path.exists(args.name) or args.name == "-":
        if args.nodes is not None or args.network is not None:
            raise InputError("--nodes, --network: are settings of a preset, not of a file")
        return read_cluster(args.name)
    return read_preset(args.name)


def _told(cluster: Cluster) -> str:
    """Everything about one cluster, for people."""
    nodes = sorted({device.node for device in cluster.devices if device.runs_ops})
    first = [device for device in cluster.devices if device.node == nodes[0]]
    lines = [f"{cluster.name}: queues {cluster.queues}, transfers {cluster.transfer}"]
    lines += ["", f"{len(nodes)} nodes, each:" if len(nodes) > 1 else "devices:"]
    rows = [(f"  {count} x {what}",) for what, count in _counts(map(_device, first))]
    lines += [_columns(rows), "", "links:"]
    kinds = [
        (f"  {count} x {kind}", told) for (kind, told), count in _counts(map(_link, cluster.links))
    ]
    lines.append(_columns(kinds) or "  none")
    if cluster.collectives:
        lines += [
            "",
            (
                f"collectives inside a node, measured ({cluster.collectives}): the least "
                "time, bus bandwidths by size, and"
            ),
            "how well the table tells measured sizes that it does not hold:",
        ]
        lines.append(_columns(list(_collectives(cluster.collectives))))
    if cluster.provenance:
        lines += ["", "where the numbers come from:", _columns(list(_sources(cluster)))]
        notes = [
            f"  {path}: {one['note']}" for path, one in cluster.provenance.items() if _noted(one)
        ]
        lines += ["", "notes:", *notes] if notes else []
    return "\n".join(lines)


def _collectives(name: str) -> Iterable[tuple[str, ...]]:
    """A row a table: its least time, bus bandwidths, and its error on measured sizes that it does
    not hold.
    """
    from ..collectives import bus_bandwidth
    from ..files.collectives import collectives_fields, read_collectives

    yield "  ", "GPUs", "least", "1 MiB", "16 MiB", "512 MiB", "mean and largest error"
    for table, told in zip(read_collectives(name), collectives_fields(name)["tables"], strict=True):
        sizes = [size for size in (2**20, 2**24, 2**29) if table.source == "measured"]
        rates = [
            float(bus_bandwidth(table.collective, table.ranks, size, table.seconds(size)))
            for size in sizes
        ]
        left = told.get("left_out")
        error = (
            f"{float(left['mean']):.1%}, {float(left['max']):.0%} on {left['sizes']}"
            if left
            else "fitted to one size"
        )
        least = f"{float(table.anchors[0][1]) * 1e6:.1f} us"
        shown = [f"{rate / 1e9:.1f} GB/s" for rate in rates] or ["-"] * 3
        yield f"  {table.collective}", str(table.ranks), least, *shown, error


def _sources(cluster: Cluster) -> Iterable[tuple[str, ...]]:
    for path, one in cluster.provenance.items():
        if isinstance(one, dict) and {"value", "kind", "date", "source"} <= one.keys():
            yield (
                f"  {path}",
                str(one["value"]),
                str(one["kind"]),
                str(one["date"]),
                str(one["source"]),
            )
        else:
            yield f"  {path}", json.dumps(one, ensure_ascii=False, default=str)[:120]


def _noted(one: Any) -> bool:
    return isinstance(one, dict) and isinstance(one.get("note"), str)


def _device(device: Any) -> str:
    from ..units import format_seconds

    gap = f", gap {format_seconds(float(device.gap))}" if device.gap else ""
    name = device.name.rpartition(":")[0] or device.name
    memory = f", {_memory(device)}" if device.runs_ops else ""
    return f"{name} ({device.kind}{memory}{gap})"


def _link(link: Any) -> tuple[str, str]:
    from ..units import format_bandwidth, format_seconds

    latency = f", {format_seconds(float(link.latency))}" if link.latency else ""
    gap = f", gap {format_seconds(float(link.gap))}" if link.gap else ""
    lanes = f", {link.lanes} lanes" if link.lanes and link.lanes > 1 else ""
    way = {"full": "", "half": ", both ways together", "simplex": ", one way"}[link.duplex]
    return link.kind or "link", format_bandwidth(
        float(Fraction(link.bandwidth))
    ) + latency + gap + lanes + way


def _link_kinds(cluster: Cluster) -> list[tuple[str, str]]:
    return list(dict.fromkeys(map(_link, cluster.links)))


def _memory(device: Any) -> str:
    from ..units import format_capacity

    return "unlimited" if device.memory is None else format_capacity(int(device.memory))


def _network(network: dict[str, Any] | None) -> str:
    from ..units import format_bandwidth, format_seconds

    if network is None:
        return "-"
    rate = float(network["bandwidth"] * network.get("efficiency", 1))
    count = len(network["attach"])
    adapters = f"{count} x " if count > 1 else ""
    return f"{adapters}{format_bandwidth(rate)}, {format_seconds(float(network.get('latency', 0)))}"


def _counts(items: Iterable[Any]) -> list[tuple[Any, int]]:
    found: dict[Any, int] = {}
    for item in items:
        found[item] = found.get(item, 0) + 1
    return list(found.items())


def _columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows in columns as wide as their entries; the last is left as it is."""
    widths = [max(map(len, column)) for column in zip(*(row[:-1] for row in rows), strict=False)]
    lines = ["  ".join([*map(str.ljust, row[:-1], widths), row[-1]]) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def _draw(cluster: Cluster, path: str) -> None:
    from ..plot.cluster import cluster_figure

    check_names({"output": path}, {"output": PICTURES}, {})
    with place_for("--output", path) as place:
        save_figure(cluster_figure(cluster), place)
