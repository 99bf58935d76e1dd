"""What the figures have in common: colours, units, text that cannot do harm, and figures that own
no global state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Safe for the colour-blind (Okabe and Ito 2008); red is kept for the critical path and for what
# does not fit.
COLOURS = {
    "forward": "#0072B2",
    "backward": "#009E73",
    "update": "#CC79A7",
    "compute": "#0072B2",
    "transfer": "#E69F00",
    "collective": "#B8860B",
    "latency": "#F0E442",
    "launch": "#4D4D4D",
    "queueing": "#D0D0D0",
}
OTHERS = ("#56B4E9", "#7F7F7F", "#8C564B", "#9467BD", "#17BECF")
ALARM = "#C01C28"
DEVICES = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#7A5C00",
    "#9467BD",
    "#17BECF",
    "#7F7F7F",
    "#000000",
)

WIDTH = 13.0  # inches, of a figure of its own
MARGIN = 1.01  # of the step: how far the time axes reach

_TIME_UNITS = (("s", 10**12), ("ms", 10**9), ("us", 10**6), ("ns", 10**3))
_BYTE_UNITS = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def kind_colours(kinds: Iterable[str]) -> dict[str, str]:
    """A colour for each kind, known ones first; the others by their order in the alphabet."""
    present = set(kinds)
    known = {kind: colour for kind, colour in COLOURS.items() if kind in present}
    others = sorted(present - set(COLOURS))
    return known | {kind: OTHERS[i % len(OTHERS)] for i, kind in enumerate(others)}


def time_unit(step_ps: int) -> tuple[str, int]:
    """The unit in which a step of this length is told, and its length in ps."""
    return next(((name, scale) for name, scale in _TIME_UNITS if step_ps >= scale), ("ps", 1))


def byte_unit(size: int) -> tuple[str, int]:
    """The unit in which sizes up to this one are told, and its bytes."""
    return next(((name, scale) for name, scale in _BYTE_UNITS if size >= scale), ("B", 1))


def plain(text: str, most: int = 40) -> str:
    """Any name as text to draw: cut to ``most`` characters, no mathtext, and no character that the
    font lacks.
    """
    if len(text) > most:
        text = text[: most - 1] + "…"
    known = _characters()
    text = "".join(
        character if ord(character) in known else "\N{WHITE SQUARE}" for character in text
    )
    return text.replace("$", r"\$")


@cache
def _characters() -> frozenset[int]:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return frozenset(get_font(findfont(FontProperties())).get_charmap())


def new_figure(width: float, height: float) -> Figure:
    """A figure (inches) that pyplot does not know, so that nothing is shown or kept alive behind
    the caller's back.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # "constrained" measures names and legends, however long they are.
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def draw_legend(
    ax: Axes,
    size: float,
    title: str = "",
    alarm: bool = False,
    entries: Mapping[str, Artist | tuple[Artist, ...]] | None = None,
) -> None:
    """A legend above the axes, as wide as they are, and a title above it; ``size`` in points.

    ``entries`` are handles by label (None: the named artists of the axes); those of a tuple stand
    side by side.
    """
    from matplotlib.legend_handler import HandlerTuple

    if entries is None:
        handles, labels = ax.get_legend_handles_labels()
        entries = dict(zip(labels, handles, strict=True))
    room = ax.get_window_extent().width * 72 / ax.figure.dpi / (0.62 * size)
    columns = _columns(list(entries), room)
    if entries:
        ax.legend(
            list(entries.values()), list(entries), loc="lower left", bbox_to_anchor=(0.0, 1.0),
            borderaxespad=0.2, ncols=columns, frameon=False, fontsize=size, handlelength=1.5,
            columnspacing=1.4, handler_map={tuple: HandlerTuple(ndivide=None, pad=0.0)},
        )  # fmt: skip
    if title:
        rows = -(-len(entries) // columns)
        colour = ALARM if alarm else "black"
        ax.set_title(title, loc="left", pad=8 + 1.6 * size * rows, fontsize=11, color=colour)


def _columns(labels: Sequence[str], room: float) -> int:
    """The most columns of a legend, filled one after another, that so many characters have room
    for.
    """
    for columns in range(len(labels), 1, -1):
        # matplotlib gives the first columns one entry more where they do not come out even.
        rows, longer = divmod(len(labels), columns)
        ends = [rows * c + min(c, longer) for c in range(columns + 1)]
        stacks = (labels[a:b] for a, b in pairwise(ends))
        # Each entry takes its label and a handle of about five characters.
        if sum(max(map(len, stack)) + 5 for stack in stacks) <= room:
            return columns
    return 1
