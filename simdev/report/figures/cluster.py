"""A picture of a cluster: its nodes as panels, devices in a row, direct links as arcs above,
switches as bars.

Many links say little one by one: a switch that joins a whole row is one bar, and the bandwidth of a
link is told once, in the legend, by its kind. Everything is placed in units of one device before
anything is drawn. ``simdev clusters NAME -o`` and notebooks ask for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ...ground.units import format_bandwidth, format_capacity, format_seconds
from ...nouns.cluster import Cluster, Device, Link
from .style import DEVICES, Theme, dress, new_figure, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_NODES, MOST_COLUMNS = 3, 40  # drawn; of more, two nodes and how many more there are
COLUMNS = 18  # boxes side by side in a node; of more devices, several share a box
GAP, STEP = 1.4, 1.25  # between nodes, between rows
BOX, ASIDE = 0.84, 0.3
BEHIND, BESIDE = 0.05, 0.14  # between the boxes of a stack, between lines side by side
LETTER = 0.11  # of a panel's title; a node of one device is no wider than its box


@dataclass(frozen=True, slots=True)
class Box:
    """A device at its place; ``width`` in devices, ``switch`` where it runs no op.

    Several at one place are drawn once: the first is labelled for all ``count`` of them, the others
    not at all.
    """

    name: str
    label: str
    x: float
    y: float
    width: float
    switch: bool
    count: int = 1


@dataclass(frozen=True, slots=True)
class Wire:
    """``count`` links of one kind from one place to another; ``arc`` where they join two devices of
    a row.
    """

    start: tuple[float, float]
    end: tuple[float, float]
    kind: str
    lanes: int
    arc: bool
    count: int = 1


@dataclass(frozen=True, slots=True)
class Panel:
    """The frame of a node: its title, left, right, bottom and top."""

    title: str
    bounds: tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class ClusterPicture:
    """All shapes that are drawn of a cluster, in units of one device.

    ``kinds`` has the bandwidth and latency of each kind of link as a text, ``hidden`` counts the
    nodes that are left out.
    """

    boxes: tuple[Box, ...]
    wires: tuple[Wire, ...]
    panels: tuple[Panel, ...]
    kinds: Mapping[str, str]
    hidden: int

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """Left, right, bottom and top of all that is drawn."""
        lefts, rights, bottoms, tops = zip(*(panel.bounds for panel in self.panels), strict=True)
        bottom = min(*bottoms, *(box.y - 0.5 for box in self.boxes))
        return min(lefts), max(rights), bottom, max(tops)


def cluster_picture(cluster: Cluster) -> ClusterPicture:
    """The place of every shape, before it is drawn."""
    by_node = sorted(cluster.devices, key=lambda device: int(device.node))
    nodes = [list(group) for _, group in groupby(by_node, key=lambda device: int(device.node))]
    # Switches between nodes are told as a node of their own, the last.
    between: list[Device] = []
    if len(nodes) > 1 and not any(device.runs_ops for device in nodes[-1]):
        between = nodes.pop()
    columns = sum(min(sum(device.runs_ops for device in node), COLUMNS) for node in nodes)
    few = len(nodes) <= MOST_NODES and columns <= MOST_COLUMNS
    boxes: dict[str, Box] = {}
    panels, left = list[Panel](), 0.0
    for i, devices in enumerate(nodes[: None if few else 2]):
        placed = _node_boxes(cluster, devices, left)
        boxes |= {box.name: box for box in placed}
        title = f"node {i}: " if len(nodes) > 1 else ""
        panels.append(_panel(cluster, devices, placed, title))
        left = panels[-1].bounds[1] + GAP
    if between:
        first, last = panels[0].bounds[0], panels[-1].bounds[1]
        place = (first + last) / 2, min(panel.bounds[2] for panel in panels) - 0.9, last - first
        boxes |= {device.name: Box(device.name, device.name, *place, True) for device in between}
    widest_first = sorted(cluster.links, key=lambda link: -Fraction(link.bandwidth))
    kinds = {_kind(link): _carried(link) for link in widest_first}
    wires = tuple(_wires(cluster, boxes))
    hidden = len(nodes) - len(panels)
    return ClusterPicture(tuple(boxes.values()), wires, tuple(panels), kinds, hidden)


def plot_cluster(cluster: Cluster, ax: Axes | None = None, theme: str | None = None) -> Axes:
    """Draw a cluster on ``ax`` (None: on a figure of its own) and return the axes; nothing is shown
    or saved.

    ``theme`` is "light", "dark" or a style of matplotlib (None: what suits the paper of the axes).
    """
    picture = cluster_picture(cluster)
    left, right, bottom, top = picture.bounds
    if ax is None:
        height = 0.62 * (top - bottom) + 0.9 + 0.2 * len(picture.kinds)
        width = min(16.0, max(6.5, 0.62 * (right - left) + 1.0))
        ax = new_figure(width, min(10.0, max(3.0, height))).add_subplot()
    look = dress(ax, theme)
    ax.set_xlim(left - 0.2, right + 0.2 + (2.4 if picture.hidden else 0.0))
    ax.set_ylim(bottom - 0.2, top + 0.1)
    ax.set_axis_off()
    colours = {
        kind: str(look.shown(DEVICES[i % len(DEVICES)])) for i, kind in enumerate(picture.kinds)
    }
    for panel in picture.panels:
        left, right, low, high = panel.bounds
        frame = {"facecolor": look.panel, "edgecolor": look.rule, "linewidth": 0.8, "zorder": 0}
        _draw_frame(ax, (left, low), right - left, high - low, 0.2, **frame)
        title = plain(panel.title, 80)
        ax.text(left + 0.2, high - 0.15, title, fontsize=8.5, va="top", color=look.faint)
    for wire in picture.wires:
        _draw_wire(ax, wire, colours[wire.kind])
    sizes = _fonts(ax, picture)
    for box in picture.boxes:
        if box.label:
            _draw_box(ax, box, sizes[box.name], look)
    _draw_legend(ax, picture, colours, look)
    ax.set_title(plain(cluster.name, 80), loc="left", fontsize=12, color=look.ink)
    return ax


def cluster_figure(cluster: Cluster, theme: str | None = None) -> Figure:
    """A figure of the cluster alone; save it with ``figure.savefig(path)``."""
    return plot_cluster(cluster, theme=theme).figure  # type: ignore[return-value]


def _kind(link: Link) -> str:
    return link.kind or f"link of {format_bandwidth(float(Fraction(link.bandwidth)))}"


def _carried(link: Link) -> str:
    lanes = f" ({link.lanes} lanes)" if link.lanes and link.lanes > 1 else ""
    parts = [format_bandwidth(float(Fraction(link.bandwidth))) + lanes]
    for prefix, time in (("", link.latency), ("gap ", link.gap)):
        if time:
            parts.append(prefix + format_seconds(float(Fraction(time))))
    ways = {"full": "each way", "half": "both ways together"}
    return ", ".join([*parts, ways.get(link.duplex, "one way")])


def _node_boxes(cluster: Cluster, devices: Sequence[Device], left: float) -> list[Box]:
    """Devices in a row (several to a box where there are many), the switch that joins them all
    above, the others below by their distance.
    """
    row = [d for d in devices if d.runs_ops and not d.transit] or [d for d in devices if d.runs_ops]
    # Of several such nodes the boxes would be too narrow for their names.
    alone = all(int(device.node) == int(row[0].node) for device in cluster.devices)
    most = COLUMNS if alone or len(row) <= COLUMNS else COLUMNS // 2
    deep = -(-len(row) // most)
    places = [Box(d.name, "", left + i // deep, 0.0, BOX, False) for i, d in enumerate(row)]
    boxes = list(_labelled(places))
    others = [device.name for device in devices if device not in row]
    above = _star(cluster, others, row)
    if above:
        others.remove(above)
        boxes.append(_switch_box(cluster, above, boxes, STEP))
    levels = _levels(cluster, devices, row, others)
    for depth, level in enumerate(sorted(set(levels.values())), 1):
        y = -STEP * depth
        names = [name for name in levels if levels[name] == level]
        boxes += _labelled([_switch_box(cluster, name, boxes, y) for name in names])
    return boxes


def _labelled(boxes: Sequence[Box]) -> Iterator[Box]:
    """The boxes with labels: of several at one place, the first bears the names of all."""
    names: dict[tuple[float, float], list[str]] = {}
    for box in boxes:
        names.setdefault((box.x, box.width), []).append(box.name)
    for box in boxes:
        first, *others = names[box.x, box.width]
        label = f"{first}-{others[-1].rpartition(':')[2]}" if others else first
        is_shown = box.name == first
        yield replace(box, label=label * is_shown, count=1 + len(others) * is_shown)


def _levels(
    cluster: Cluster, devices: Sequence[Device], row: Sequence[Device], others: Sequence[str]
) -> dict[str, float]:
    """The distance of other devices of the node from the row; NICs come last of all."""
    import networkx as nx

    graph = nx.Graph([link.ends for link in cluster.links])
    node, sources = graph.subgraph(d.name for d in devices), {d.name for d in row} & graph.nodes
    distance = nx.multi_source_dijkstra_path_length(node, sources) if sources else {}
    # Devices that no link joins to the row are below all others.
    levels = {name: distance.get(name, len(devices)) for name in others}
    nics = [name for name in others if name.startswith("nic:")]
    inner = [level for name, level in levels.items() if name not in nics]
    return levels | dict.fromkeys(nics, max(inner, default=0) + 1)


def _star(cluster: Cluster, others: Sequence[str], row: Sequence[Device]) -> str | None:
    """The one switch that joins the whole row, where no link joins two devices of the row."""
    members = {cluster.index[d.name] for d in row}
    if len(row) < 2 or any(cluster.neighbours[d].keys() & members for d in members):
        return None
    joining = [name for name in others if cluster.neighbours[cluster.index[name]].keys() >= members]
    return joining[0] if len(joining) == 1 and not joining[0].startswith("nic:") else None


def _switch_box(cluster: Cluster, name: str, placed: Sequence[Box], y: float) -> Box:
    """A box that spans what it joins on the rows before it."""
    device = cluster.index[name]
    joined = [box for box in placed if cluster.index[box.name] in cluster.neighbours[device]]
    xs = [box.x for box in joined if box.y != y] or [0.0]
    # Beside the line that goes from a switch to the next one, not on it.
    aside = ASIDE if name.startswith("nic:") and any(box.switch for box in joined) else 0.0
    middle, width = (min(xs) + max(xs)) / 2 + aside, max(xs) - min(xs) + BOX
    return Box(name, name, middle, y, width, not cluster.devices[device].runs_ops)


def _height(reach: float) -> float:
    """How high an arc rises that reaches so far."""
    return 0.42 + 0.38 * (reach - 1)


def _panel(cluster: Cluster, devices: Sequence[Device], boxes: Sequence[Box], title: str) -> Panel:
    """The frame around the boxes of a node, as high as its arcs; its devices are counted by
    kind.
    """
    counts = Counter(
        device.kind + ("" if device.memory is None else f", {format_capacity(int(device.memory))}")
        for device in devices
        if device.runs_ops
    )
    title += "; ".join(f"{count} x {kind}" for kind, count in counts.items())
    by_name = {box.name: box for box in boxes if not box.switch}
    ends = ([by_name.get(end) for end in link.ends] for link in cluster.links)
    arcs = [abs(a.x - b.x) for a, b in ends if a and b and a.y == b.y]
    left = min(box.x - box.width / 2 for box in boxes) - 0.35
    right = max(box.x + box.width / 2 for box in boxes) + 0.35
    top = max(box.y for box in boxes) + 0.65 + max(map(_height, arcs), default=0.0)
    bottom = min(box.y for box in boxes) - 0.6
    return Panel(title, (left, max(right, left + 0.4 + LETTER * len(title)), bottom, top))


def _wires(cluster: Cluster, boxes: Mapping[str, Box]) -> Iterator[Wire]:
    """One wire for all links of a kind between two places."""
    wires: dict[tuple[object, ...], Wire] = {}
    for link in cluster.links:
        if not boxes.keys() >= set(link.ends):
            continue
        first, second = sorted((boxes[end] for end in link.ends), key=lambda box: box.width)
        arc = first.y == second.y and not first.switch and not second.switch
        x = second.x
        if first.y != second.y:
            # Straight down to a bar that is wide enough.
            reach = (second.width - BOX) / 2
            x = min(max(first.x, x - reach), x + reach)
        wire = Wire((first.x, first.y), (x, second.y), _kind(link), link.lanes or 1, arc)
        place = wire.start, wire.end, wire.kind
        wires[place] = replace(wire, count=wires[place].count + 1) if place in wires else wire
    yield from wires.values()


def _fonts(ax: Axes, picture: ClusterPicture) -> dict[str, float]:
    """The size of each name in points: one size for all devices, for a switch what its box has room
    for.
    """
    left, right, *_ = picture.bounds
    points = ax.get_window_extent().width * 72 / ax.figure.dpi / (right - left)
    room = {box.name: points * box.width / (0.62 * max(len(box.label), 1)) for box in picture.boxes}
    least = min((room[box.name] for box in picture.boxes if not box.switch), default=9.0)
    return {b.name: min(9.0, max(3.0, room[b.name] if b.switch else least)) for b in picture.boxes}


def _draw_frame(
    ax: Axes, corner: tuple[float, float], width: float, height: float, radius: float, **style: Any
) -> None:
    from matplotlib.patches import FancyBboxPatch

    rounded = f"round,pad=0,rounding_size={radius}"
    ax.add_patch(FancyBboxPatch(corner, width, height, boxstyle=rounded, **style))


def _draw_wire(ax: Axes, wire: Wire, colour: str) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    (x, y), (end_x, end_y) = wire.start, wire.end
    style: dict[str, Any] = {"linewidth": 1.1 * min(wire.lanes, 4) ** 0.7, "zorder": 1}
    if not wire.arc:
        for i in range(wire.count):
            aside = min(BESIDE, 0.8 * BOX / wire.count) * (i - (wire.count - 1) / 2)
            xs = x + aside, end_x + aside
            ax.plot(xs, [y, end_y], color=colour, solid_capstyle="butt", **style)
        return
    # A cubic curve rises to three quarters of the height of its control points.
    height = y + 1.33 * _height(abs(end_x - x))
    path = Path([(x, y), (x, height), (end_x, height), (end_x, y)], [1, 4, 4, 4])
    ax.add_patch(PathPatch(path, fill=False, edgecolor=colour, **style))


def _draw_box(ax: Axes, box: Box, size: float, theme: Theme) -> None:
    height, radius, fill = (0.36, 0.05, theme.box) if box.switch else (0.46, 0.12, theme.paper)
    dashes = (0, (4, 2)) if box.switch else "solid"
    style = {"facecolor": fill, "edgecolor": theme.faint, "linewidth": 0.9, "linestyle": dashes}
    x, y = box.x - box.width / 2, box.y - height / 2
    # Boxes of several devices are stacks, the first on top.
    for i in reversed(range(1 if box.switch else min(box.count, 4))):
        corner = x + BEHIND * i, y - BEHIND * i
        _draw_frame(ax, corner, box.width, height, radius, zorder=2, **style)
    label = ax.text(box.x, box.y, plain(box.label, 24), fontsize=size, ha="center", va="center")
    label.set(color=theme.ink, zorder=3)


def _draw_legend(
    ax: Axes, picture: ClusterPicture, colours: Mapping[str, str], theme: Theme
) -> None:
    from matplotlib.lines import Line2D

    _, right, _, top = picture.bounds
    if picture.hidden:
        y = (picture.panels[0].bounds[2] + top) / 2
        text = f"... and {picture.hidden}\nmore nodes"
        ax.text(right + 0.6, y, text, fontsize=10, va="center", color=theme.ink)
    ax.legend(
        [Line2D([], [], color=colours[kind], linewidth=2.2) for kind in picture.kinds],
        [f"{plain(kind, 30)}: {carried}" for kind, carried in picture.kinds.items()],
        loc="upper left", bbox_to_anchor=(0.0, 0.0), frameon=False, fontsize=8.5,
        labelcolor=theme.ink, ncols=1 + (len(picture.kinds) > 3),
    )  # fmt: skip
