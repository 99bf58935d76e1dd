"""Common parts of figures: colours, units, text that cannot do harm, and figures that own no global
state.

The page takes COLOURS, DEVICES and ALARM from here (``page/__init__.py``), and makes them lighter
on dark paper itself (``page/assets/theme.js``): THEMES is of pictures alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from ...ground.errors import InputError

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Colour = str | tuple[float, float, float]

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
SCALE = "viridis"
"""The colour map of numbers, for those that need no hue of their own."""
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


@dataclass(frozen=True, slots=True)
class Theme:
    """The colours of all that is no data: ``paper`` below, ``ink`` of texts, ``faint`` of what is
    less important, ``rule`` of lines between, ``grid``, the ``panel`` and ``box`` of drawings.

    ``instead`` replaces colours of data that this paper would swallow.
    """

    paper: str = "#FFFFFF"
    ink: str = "#000000"
    faint: str = "#595959"
    rule: str = "#BBBBBB"
    grid: str = "#DDDDDD"
    panel: str = "#F7F7F7"
    box: str = "#E4E4E4"
    instead: Mapping[str, str] = field(default_factory=dict)

    def shown(self, colour: Colour) -> Colour:
        """The colour in which data of this colour are drawn."""
        return self.instead.get(colour, colour) if isinstance(colour, str) else colour

    @property
    def alarm(self) -> Colour:
        """The colour of the critical path and of what does not fit."""
        return self.shown(ALARM)


LIGHT = Theme()
DARK = Theme(
    "#15181D", "#E8E8E8", "#A8ADB5", "#4A4F57", "#2E333A", "#1E2228", "#343A42",
    {
        ALARM: "#FF6B6B", "#B00020": "#FF6B6B", "#000000": "#E8E8E8", "#4D4D4D": "#666C74",
        "#7A5C00": "#B99A3C", "#0072B2": "#2E8FD0", "#F4F4F4": "#1E2228", "#C9C9C9": "#4A4F57",
    },
)  # fmt: skip
THEMES = {"light": LIGHT, "dark": DARK}
DIM = 0.4  # luminance: below, a paper is dark


def theme_of(theme: str | None, ax: Axes) -> Theme:
    """The theme of a name: "light", "dark", or a style that matplotlib knows; None: what suits the
    paper of the axes.

    Raises InputError for any other name.
    """
    from matplotlib import style
    from matplotlib.colors import to_hex, to_rgba

    if theme in THEMES:
        return THEMES[theme]
    if theme is None:
        # Where axes have no paper, that of their figure shows through.
        opaque = to_rgba(ax.get_facecolor())[3] > 0
        paper = to_hex(ax.get_facecolor() if opaque else ax.figure.get_facecolor())
        return replace(_suited(paper), paper=paper)
    if theme not in style.library:
        known = ", ".join((*THEMES, *style.available))
        raise InputError(f'theme: no style "{theme}"; there are {known}')
    looks = style.library[theme]
    paper = to_hex(looks.get("axes.facecolor", LIGHT.paper))
    base = _suited(paper)
    ink, grid = looks.get("text.color", base.ink), looks.get("grid.color", base.grid)
    return replace(base, paper=paper, ink=to_hex(ink), grid=to_hex(grid))


def _suited(paper: Colour) -> Theme:
    return DARK if luminance(paper) < DIM else LIGHT


def luminance(colour: Colour) -> float:
    """How bright a colour is, 0 to 1, as ITU-R BT.709 weighs it."""
    from matplotlib.colors import to_rgb

    red, green, blue = to_rgb(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def dress(ax: Axes, theme: str | None) -> Theme:
    """Give axes the colours of a theme, and their figure its paper where the theme has a name;
    returns the theme.
    """
    look = theme_of(theme, ax)
    if theme is not None:
        ax.set_facecolor(look.paper)
        ax.figure.set_facecolor(look.paper)
    ax.tick_params(which="both", colors=look.ink)
    for axis in (ax.xaxis, ax.yaxis):
        axis.label.set_color(look.ink)
        axis.get_offset_text().set_color(look.ink)
    for spine in ax.spines.values():
        spine.set_edgecolor(look.ink)
    for place in ("left", "center", "right"):
        ax.set_title(ax.get_title(place), loc=place, color=look.ink)
    ax.set_axisbelow(True)
    return look


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
    return next((unit for unit in _TIME_UNITS if step_ps >= unit[1]), ("ps", 1))


def byte_unit(size: int) -> tuple[str, int]:
    """The unit in which sizes up to this one are told, and its bytes."""
    return next((unit for unit in _BYTE_UNITS if size >= unit[1]), ("B", 1))


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


def text_width(text: str) -> float:
    """How wide a text is, in multiples of its size."""
    return sum(map(_advance, text))


@cache
def _advance(character: str) -> float:
    from matplotlib.font_manager import FontProperties, findfont, get_font
    from matplotlib.ft2font import LoadFlags

    font = get_font(findfont(FontProperties()))
    font.set_size(100, 72)
    # In 65,536ths of a point.
    return font.load_char(ord(character), flags=LoadFlags.NO_HINTING).linearHoriAdvance / 6_553_600


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
    theme: Theme = LIGHT,
) -> None:
    """A legend above the axes, as wide as they are, and a title above it; ``size`` in points.

    ``entries`` are handles by label (None: the named artists of the axes); handles in a tuple are
    drawn side by side.
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
            labelcolor=theme.ink,
        )  # fmt: skip
    if title:
        rows = -(-len(entries) // columns)
        colour = theme.alarm if alarm else theme.ink
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
