"""A picture of a cluster: its nodes as panels, devices in a row, direct links as arcs above,
switches as bars.

Many links say little one by one: a switch that joins a whole row is one bar, and what a link
carries stands once in the legend, by its kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import groupby
from typing import TYPE_CHECKING

from ...cluster import Cluster, Device, Link
from ...units import format_bandwidth, format_capacity, format_seconds
from .style import DEVICES, new_figure, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_NODES, MOST_COLUMNS = 3, 40  # drawn; of more, two nodes and how many more there are
# devices side by side in a node; more stand in several ranks, a column sharing its line
COLUMNS = 18
GAP, RANK, STEP = 1.4, 0.62, 1.25  # between nodes, between ranks of a row, between rows
BOX, ASIDE = 0.84, 0.3
LETTER = 0.11  # of a panel's title; a node of one device is no wider than its box
DEVICE_FILL, SWITCH_FILL = "#FFFFFF", "#E4E4E4"


@dataclass(frozen=True, slots=True)
class Box:
    """A device at its place; ``width`` in devices, ``switch`` where it runs no op.

    Several switches at one place are drawn once: the first is labelled for all of them, the others
    not at all.
    """

    name: str
    label: str
    x: float
    y: float
    width: float
    switch: bool


@dataclass(frozen=True, slots=True)
class Wire:
    """Links of one kind from one place to another; ``arc`` where they join two devices of a row."""

    start: tuple[float, float]
    end: tuple[float, float]
    kind: str
    lanes: int
    arc: bool


@dataclass(frozen=True, slots=True)
class Panel:
    """The frame of a node: its title, left, right, bottom and top."""

    title: str
    bounds: tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class ClusterPicture:
    """What is drawn of a cluster, in units of one device.

    ``kinds`` tells what each kind of link carries, ``hidden`` how many nodes are left out.
    """

    boxes: tuple[Box, ...]
    wires: tuple[Wire, ...]
    panels: tuple[Panel, ...]
    kinds: Mapping[str, str]
    hidden: int


def cluster_picture(cluster: Cluster) -> ClusterPicture:
    """Where everything stands, before it is drawn."""
    nodes = {
        node: list(group) for node, group in groupby(sorted(cluster.devices, key=_node), key=_node)
    }
    last = (
        nodes.pop(max(nodes))
        if len(nodes) > 1 and not any(d.runs_ops for d in nodes[max(nodes)])
        else []
    )
    columns = sum(min(sum(device.runs_ops for device in node), COLUMNS) for node in nodes.values())
    few = len(nodes) <= MOST_NODES and columns <= MOST_COLUMNS
    shown = list(nodes.values())[: None if few else 2]
    boxes: dict[str, Box] = {}
    panels, left = [], 0.0
    for i, devices in enumerate(shown):
        own = _node_boxes(cluster, devices, left)
        boxes |= {box.name: box for box in own}
        panels.append(_panel(devices, own, i if len(nodes) > 1 else None, _arcs(cluster, own)))
        left = panels[-1].bounds[1] + GAP
    if last:
        edges = [bound for panel in panels for bound in panel.bounds[:2]]
        low = min(panel.bounds[2] for panel in panels)
        middle, width = (min(edges) + max(edges)) / 2, max(edges) - min(edges)
        boxes |= {
            device.name: Box(device.name, device.name, middle, low - 0.9, width, True)
            for device in last
        }
    wires = tuple(_wires(cluster, boxes))
    kinds = {
        _kind(link): _told(link)
        for link in sorted(cluster.links, key=lambda link: -Fraction(link.bandwidth))
    }
    return ClusterPicture(
        tuple(boxes.values()), wires, tuple(panels), kinds, len(nodes) - len(shown)
    )


def plot_cluster(cluster: Cluster, ax: Axes | None = None) -> Axes:
    """Draw a cluster on ``ax`` (None: on a figure of its own) and return the axes; nothing is shown
    or saved.
    """
    picture = cluster_picture(cluster)
    if ax is None:
        ax = new_figure(*_size(picture)).add_subplot()
    colours = {kind: DEVICES[i % len(DEVICES)] for i, kind in enumerate(picture.kinds)}
    for panel in picture.panels:
        _draw_panel(ax, panel)
    for wire in picture.wires:
        _draw_wire(ax, wire, colours[wire.kind])
    sizes = _fonts(ax, picture)
    for box in picture.boxes:
        if box.label:
            _draw_box(ax, box, sizes[box.name])
    _draw_frame(ax, cluster, picture, colours)
    return ax


def cluster_figure(cluster: Cluster) -> Figure:
    """A figure of the cluster alone; save it with ``figure.savefig(path)``."""
    figure = plot_cluster(cluster).figure
    return figure  # type: ignore[return-value]


def _node(device: Device) -> int:
    return int(device.node)


def _kind(link: Link) -> str:
    return link.kind or f"link of {format_bandwidth(float(Fraction(link.bandwidth)))}"


def _told(link: Link) -> str:
    lanes = f" ({link.lanes} lanes)" if link.lanes and link.lanes > 1 else ""
    parts = [format_bandwidth(float(Fraction(link.bandwidth))) + lanes]
    if link.latency:
        parts.append(format_seconds(float(Fraction(link.latency))))
    if link.gap:
        parts.append(f"gap {format_seconds(float(Fraction(link.gap)))}")
    return ", ".join(
        [*parts, {"full": "each way", "half": "both ways together"}.get(link.duplex, "one way")]
    )


def _node_boxes(cluster: Cluster, devices: Sequence[Device], left: float) -> list[Box]:
    """Devices in a row (or ranks of it), the switch that joins them all above, the others below by
    their distance.
    """
    row = [d for d in devices if d.runs_ops and not d.transit] or [d for d in devices if d.runs_ops]
    columns = min(len(row), COLUMNS)
    ranks = -(-len(row) // columns) if row else 0
    places = {d.name: (left + i // ranks, -RANK * (i % ranks)) for i, d in enumerate(row)}
    found = [Box(d.name, d.name, *places[d.name], BOX, False) for d in row]
    levels = _levels(cluster, devices, row)
    above = _star(cluster, levels, row)
    if above:
        found.append(_switch_box(cluster, above, found, STEP))
    below = sorted({level for name, level in levels.items() if name != above})
    for depth, level in enumerate(below, 1):
        y = -RANK * max(ranks - 1, 0) - STEP * depth
        names = [name for name, one in levels.items() if one == level and name != above]
        found += _labelled([_switch_box(cluster, name, found, y) for name in names])
    return found


def _labelled(boxes: Sequence[Box]) -> list[Box]:
    by_place: dict[tuple[float, float], list[str]] = {}
    for box in boxes:
        by_place.setdefault((box.x, box.width), []).append(box.name)
    found = []
    for box in boxes:
        first, *others = by_place[box.x, box.width]
        label = f"{first}-{others[-1].rpartition(':')[2]}" if others else first
        found.append(replace(box, label=label if box.name == first else ""))
    return found


def _levels(cluster: Cluster, devices: Sequence[Device], row: Sequence[Device]) -> dict[str, int]:
    """The distance of every other device of the node from the row; NICs stand last of all."""
    inside = {cluster.index[d.name] for d in devices}
    found = {cluster.index[d.name]: 0 for d in row}
    front, level = list(found), 0
    while front:
        level += 1
        ahead = {
            other
            for d in front
            for other in cluster.neighbours[d]
            if other in inside and other not in found
        }
        front = sorted(ahead)
        found |= dict.fromkeys(front, level)
    others = {d.name: found.get(cluster.index[d.name], level) for d in devices if d not in row}
    nics = [name for name in others if name.startswith("nic:")]
    above = _star(cluster, others, row)
    lowest = max(
        (one for name, one in others.items() if name not in nics and name != above), default=0
    )
    return others | dict.fromkeys(nics, lowest + 1)


def _star(cluster: Cluster, levels: Mapping[str, int], row: Sequence[Device]) -> str | None:
    """The one switch that joins the whole row, where no link joins two devices of the row."""
    own = {cluster.index[d.name] for d in row}
    if any(cluster.neighbours[d].keys() & own for d in own):
        return None
    joining = [name for name in levels if cluster.neighbours[cluster.index[name]].keys() >= own]
    return (
        joining[0]
        if len(joining) == 1 and len(own) > 1 and not joining[0].startswith("nic:")
        else None
    )


def _switch_box(cluster: Cluster, name: str, placed: Sequence[Box], y: float) -> Box:
    """As wide as what it joins on the rows before it."""
    neighbours = cluster.neighbours[cluster.index[name]]
    xs = [box.x for box in placed if cluster.index[box.name] in neighbours and box.y != y]
    left, right = (min(xs), max(xs)) if xs else (0.0, 0.0)
    switch = not cluster.devices[cluster.index[name]].runs_ops
    on_switch = any(box.switch for box in placed if cluster.index[box.name] in neighbours)
    # Beside the line that goes from a switch to the next one, not on it.
    aside = ASIDE if on_switch and name.startswith("nic:") else 0.0
    return Box(name, name, (left + right) / 2 + aside, y, right - left + BOX, switch)


def _arcs(cluster: Cluster, boxes: Sequence[Box]) -> list[float]:
    """How far the direct links of one row reach."""
    by_name = {box.name: box for box in boxes if not box.switch}
    pairs = [
        (by_name[a], by_name[b])
        for a, b in (link.ends for link in cluster.links)
        if a in by_name and b in by_name
    ]
    return [abs(a.x - b.x) for a, b in pairs if a.y == b.y]


def _height(reach: float) -> float:
    """How high an arc rises that reaches so far."""
    return 0.42 + 0.38 * (reach - 1)


def _panel(
    devices: Sequence[Device], boxes: Sequence[Box], node: int | None, arcs: Sequence[float]
) -> Panel:
    row = [device for device in devices if device.runs_ops]
    counts: dict[str, int] = {}
    for device in row:
        memory = "" if device.memory is None else f", {format_capacity(int(device.memory))}"
        counts[device.kind + memory] = counts.get(device.kind + memory, 0) + 1
    told = "; ".join(f"{count} x {kind}" for kind, count in counts.items())
    xs = [edge for box in boxes for edge in (box.x - box.width / 2, box.x + box.width / 2)]
    ys = [box.y for box in boxes]
    top = max(ys) + 0.65 + (_height(max(arcs)) if arcs else 0.0)
    title = told if node is None else f"node {node}: {told}"
    left = min(xs) - 0.35
    return Panel(
        title, (left, max(max(xs) + 0.35, left + 0.4 + LETTER * len(title)), min(ys) - 0.6, top)
    )


def _wires(cluster: Cluster, boxes: Mapping[str, Box]) -> Iterator[Wire]:
    """One wire for the links that lie on one another: those of the ranks of a column, the longest
    of them.
    """
    found: dict[tuple[object, ...], Wire] = {}
    for link in cluster.links:
        if link.ends[0] not in boxes or link.ends[1] not in boxes:
            continue
        first, second = sorted((boxes[end] for end in link.ends), key=lambda box: box.width)
        arc = first.y == second.y and not first.switch and not second.switch
        end = (second.x, second.y)
        if first.y != second.y:
            reach = (second.width - BOX) / 2
            end = (min(max(first.x, second.x - reach), second.x + reach), second.y)
        wire = Wire((first.x, first.y), end, _kind(link), link.lanes or 1, arc)
        place = (first.x, first.y if arc else None, end, wire.kind)
        if place not in found or abs(wire.start[1] - end[1]) > abs(found[place].start[1] - end[1]):
            found[place] = wire
    yield from found.values()


def _size(picture: ClusterPicture) -> tuple[float, float]:
    left, right, bottom, top = _extent(picture)
    width = min(16.0, max(6.5, 0.62 * (right - left) + 1.0))
    return width, min(10.0, max(3.0, 0.62 * (top - bottom) + 0.9 + 0.2 * len(picture.kinds)))


def _extent(picture: ClusterPicture) -> tuple[float, float, float, float]:
    bounds = [panel.bounds for panel in picture.panels]
    low = min([bound[2] for bound in bounds] + [box.y - 0.5 for box in picture.boxes])
    return min(b[0] for b in bounds), max(b[1] for b in bounds), low, max(b[3] for b in bounds)


def _fonts(ax: Axes, picture: ClusterPicture) -> dict[str, float]:
    """The size of each name in points: one for all devices, for a switch what its box has room
    for.
    """
    left, right, *_ = _extent(picture)
    points = ax.get_window_extent().width * 72 / ax.figure.dpi / (right - left)
    sizes = {
        box.name: points * box.width / (0.62 * max(len(box.label), 1)) for box in picture.boxes
    }
    least = min((sizes[box.name] for box in picture.boxes if not box.switch), default=9.0)
    return {
        box.name: min(9.0, max(3.0, sizes[box.name] if box.switch else least))
        for box in picture.boxes
    }


def _draw_panel(ax: Axes, panel: Panel) -> None:
    from matplotlib.patches import FancyBboxPatch

    left, right, bottom, top = panel.bounds
    frame = FancyBboxPatch(
        (left, bottom), right - left, top - bottom, boxstyle="round,pad=0,rounding_size=0.2"
    )
    frame.set(facecolor="#F7F7F7", edgecolor="#BBBBBB", linewidth=0.8, zorder=0)
    ax.add_patch(frame)
    ax.text(left + 0.2, top - 0.15, plain(panel.title, 80), fontsize=8.5, va="top", color="#333333")


def _draw_wire(ax: Axes, wire: Wire, colour: str) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    (x, y), (end_x, end_y) = wire.start, wire.end
    width = 1.1 * min(wire.lanes, 4) ** 0.7
    if not wire.arc:
        ax.plot(
            [x, end_x], [y, end_y], color=colour, linewidth=width, zorder=1, solid_capstyle="butt"
        )
        return
    height = _height(abs(end_x - x))
    points = [(x, y), (x, y + 1.33 * height), (end_x, y + 1.33 * height), (end_x, y)]
    path = Path(points, [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4])
    ax.add_patch(PathPatch(path, fill=False, edgecolor=colour, linewidth=width, zorder=1))


def _draw_box(ax: Axes, box: Box, size: float) -> None:
    from matplotlib.patches import FancyBboxPatch

    height = 0.36 if box.switch else 0.46
    corner = (box.x - box.width / 2, box.y - height / 2)
    style = "round,pad=0,rounding_size=" + ("0.05" if box.switch else "0.12")
    patch = FancyBboxPatch(corner, box.width, height, boxstyle=style)
    patch.set(
        facecolor=SWITCH_FILL if box.switch else DEVICE_FILL,
        edgecolor="#333333",
        linewidth=0.9,
        zorder=2,
    )
    if box.switch:
        patch.set_linestyle((0, (4, 2)))
    ax.add_patch(patch)
    ax.text(box.x, box.y, plain(box.label, 24), fontsize=size, ha="center", va="center", zorder=3)


def _draw_frame(
    ax: Axes, cluster: Cluster, picture: ClusterPicture, colours: Mapping[str, str]
) -> None:
    from matplotlib.lines import Line2D

    left, right, bottom, top = _extent(picture)
    ax.set_xlim(left - 0.2, right + 0.2 + (2.4 if picture.hidden else 0.0))
    ax.set_ylim(bottom - 0.2, top + 0.1)
    ax.set_axis_off()
    if picture.hidden:
        text = f"... and {picture.hidden}\nmore nodes"
        ax.text(
            right + 0.6,
            (picture.panels[0].bounds[2] + top) / 2,
            text,
            fontsize=10,
            va="center",
            color="#333333",
        )
    lines = [Line2D([], [], color=colours[kind], linewidth=2.2) for kind in picture.kinds]
    labels = [f"{plain(kind, 30)}: {told}" for kind, told in picture.kinds.items()]
    ax.legend(
        lines,
        labels,
        loc="upper left",
        bbox_to_anchor=(0.0, 0.0),
        frameon=False,
        fontsize=8.5,
        ncols=1 + (len(labels) > 3),
    )
    ax.set_title(plain(cluster.name, 80), loc="left", fontsize=12)
