"""Themes: texts, grids and colours that can be read on light and on dark paper, by all eyes."""

from __future__ import annotations

import io
from collections.abc import Callable
from itertools import combinations
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray

from simdev.files.cluster import read_preset
from simdev.ground.errors import InputError
from simdev.report.figures import plot_gains, plot_gantt, plot_memory, trace_figure
from simdev.report.figures.cluster import cluster_picture, plot_cluster
from simdev.report.figures.style import COLOURS, DARK, DEVICES, LIGHT, OTHERS, Theme, theme_of
from worlds.traces import two_devices

GAINS = pd.DataFrame(
    {
        "strategy.sync.policy": ["parameter-server", "p3"],
        "cluster.bandwidth_bytes_per_s": [1e9, 1e9],
        "step_time_s": [2.0, 1.0],
    }
)
PLOTS: dict[str, Callable[..., Axes]] = {
    "gantt": lambda **options: plot_gantt(two_devices(), **options),
    "memory": lambda **options: plot_memory(two_devices([106, 5]), **options),
    "gains": lambda **options: plot_gains(GAINS, **options),
    "cluster": lambda **options: plot_cluster(read_preset("dgx-1v"), **options),
}


def contrast(first: Any, second: Any) -> float:
    """The ratio of WCAG 2 (1 to 21)."""

    def light(colour: Any) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
        return float(np.dot((0.2126, 0.7152, 0.0722), linear))

    low, high = sorted((light(to_rgb(first)), light(to_rgb(second))))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", PLOTS)
@pytest.mark.parametrize("theme", ["light", "dark", "ggplot", "dark_background"])
def test_every_plot_takes_axes_and_a_theme_that_can_be_read(name: str, theme: str) -> None:
    ax = Figure().add_subplot()
    assert PLOTS[name](ax=ax, theme=theme) is ax
    paper = to_hex(ax.get_facecolor())
    assert paper == to_hex(ax.figure.get_facecolor())
    words = [ax.title, ax.xaxis.label, ax.yaxis.label, *ax.get_xticklabels()]
    legend = ax.get_legend()
    assert legend is not None
    for text in [*words, *ax.get_yticklabels(), *legend.get_texts()]:
        assert contrast(text.get_color(), paper) >= 4.5, text.get_text()


@pytest.mark.parametrize("name", PLOTS)
def test_without_a_theme_plots_suit_the_paper_that_there_is(name: str) -> None:
    ax = Figure(facecolor="#101010").add_subplot(facecolor="#202020")
    PLOTS[name](ax=ax)
    assert to_hex(ax.get_facecolor()) == "#202020"
    assert contrast(ax.title.get_color(), "#202020") >= 4.5
    assert PLOTS[name]().figure.get_facecolor() == (1.0, 1.0, 1.0, 1.0)


def test_unknown_themes_are_refused_in_one_line() -> None:
    ax = Figure().add_subplot()
    with pytest.raises(InputError, match='theme: no style "sepia"; there are light, dark, '):
        theme_of("sepia", ax)


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_colours_of_data_show_on_their_paper(theme: Theme) -> None:
    for colour in (*COLOURS.values(), *OTHERS, *DEVICES, theme.alarm):
        # What waits may be pale, and so may latency, which is short.
        least = 1.2 if colour in (COLOURS["queueing"], COLOURS["latency"]) else 1.9
        assert contrast(theme.shown(colour), theme.paper) >= least, colour


# Machado, Oliveira and Fernandes 2009, table 1, severity 1.0, on linear RGB.
DEFICIENCIES = {
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
}


def lab(colour: Any, matrix: Any) -> NDArray[np.float64]:
    """CIELAB of a colour as an eye of that deficiency sees it."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.asarray(matrix) @ linear, 0, 1)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = np.cbrt(np.maximum((to_xyz @ linear) / (0.9505, 1, 1.089), 1e-4))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_the_colour_blind_tell_kinds_apart(deficiency: str, theme: Theme) -> None:
    seen = {
        kind: lab(theme.shown(colour), DEFICIENCIES[deficiency])
        for kind, colour in (COLOURS | {"dispatch": OTHERS[0]}).items()
        if kind != "compute"  # of graphs without phases, in the colour of forwards
    }
    for (a, first), (b, second) in combinations(seen.items(), 2):
        assert float(np.linalg.norm(first - second)) > 9, (a, b)


def test_a_rack_is_one_switch_over_stacks_of_devices() -> None:
    picture = cluster_picture(read_preset("gb200-nvl72"))
    shown = [box for box in picture.boxes if box.label and not box.switch]
    assert sum(box.count for box in shown) == 72
    assert [box.label for box in (shown[0], shown[-1])] == ["gpu:0-3", "gpu:68-71"]
    # A chain would have wires from box to box; here each of the 72 ends at the switch.
    (switch,) = [box for box in picture.boxes if box.switch]
    assert {wire.end[1] for wire in picture.wires} == {switch.y}
    assert sum(wire.count for wire in picture.wires) == 72
    ax = plot_cluster(read_preset("gb200-nvl72"))
    assert len(ax.lines) == 72


def test_a_dark_picture_is_written_as_svg() -> None:
    file = io.BytesIO()
    trace_figure(two_devices([106, 5]), "dark").savefig(file, format="svg")
    root = ElementTree.fromstring(file.getvalue())
    (ground,) = [part for part in root.iter() if part.get("id") == "patch_1"]
    (path,) = ground
    assert path.get("style") == f"fill: {DARK.paper.lower()}"
