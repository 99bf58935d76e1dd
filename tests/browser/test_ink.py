"""The canvas paints a pixel as strong as the share of it that spans cover, as pictures do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from browsers import FRAMES
from simdev.execution.scenario import Outcome
from simdev.nouns.trace import Trace
from simdev.report import analyze
from simdev.report.figures.charts import trace_rows
from simdev.report.figures.rows import coverage
from simdev.report.page import SCRIPTS, Subject, page, run_data
from simdev.report.page.timeline import timeline
from worlds.traces import Span, trace_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PERIOD = 1_000
LIVE = """
globalThis.StepPage = StepPage;
// A line of pixels of a chart of the page, right of its names.
function pixelsOf({ canvas, box, axis }, down, colours) {
  const ratio = canvas.width / box.clientWidth;
  const left = Math.round(axis.left * ratio);
  const place = [left, Math.round(down * ratio), canvas.width - left, 1];
  const { data } = canvas.getContext("2d").getImageData(...place);
  return { data: Array.from(data), ground: channels(theme.ground), colours: colours.map(channels) };
}
// Through a row of the Gantt chart, above its labels; through the load of a device.
globalThis.bars = (name) => {
  const chart = globalThis.step.charts[0];
  const number = chart.rows.findIndex((row) => row.name === name);
  const colours = chart.timeline.colours.map((hex) => paint(hex));
  return { ...pixelsOf(chart, chart.y[number] + 3, colours), first: chart.rows[number].kind[0] };
};
globalThis.load = (number) => {
  const down = AXIS + number * CELL + 7;
  return pixelsOf(globalThis.step.charts[2], down, [shades().at(-1)]);
};
"""
OpenAt = Callable[..., "Page"]
rng = np.random.default_rng(31)


def busy(count: int, share: float) -> Trace:
    """So many ops of one device, each busy for this share of its part of the step."""
    part = int(PERIOD * share)
    spans = [Span(f"a{i}", i * PERIOD, i * PERIOD + part, "gpu:0", at=0) for i in range(count)]
    last = Span("last", count * PERIOD - 1, count * PERIOD, "gpu:1", at=1)
    return trace_of([*spans, last], ("gpu:0", "gpu:1"))


@pytest.fixture
def opened(browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAt]:
    """``opened(trace, width=1280, ratio=1, scheme="light")``: its page, whose step is ``step``."""
    (tmp_path / "live.js").write_text(LIVE)
    monkeypatch.setattr("simdev.report.page.SCRIPTS", (*SCRIPTS, str(tmp_path / "live.js")))
    contexts = []

    def page_of(trace: Trace, width: int = 1280, ratio: float = 1, scheme: Any = "light") -> Page:
        data = run_data(Subject("ink", analyze(Outcome(trace))))
        (tmp_path / "page.html").write_text(page(data), "utf-8")
        view = {"width": width, "height": 900}
        context = browser.new_context(viewport=view, device_scale_factor=ratio, color_scheme=scheme)
        contexts.append(context)
        made = context.new_page()
        made.goto((tmp_path / "page.html").as_uri())
        made.locator("main > *").first.wait_for(state="attached")
        made.evaluate(
            """data => {
              globalThis.step = new StepPage(data);
              document.querySelector("main").replaceChildren(step.part);
            }""",
            data,
        )
        made.evaluate(FRAMES)
        return made

    yield page_of
    for context in contexts:
        context.close()


def drawn(seen: dict[str, Any]) -> Any:
    """Red, green, blue of a line; what is transparent shows the ground."""
    line = np.reshape(seen["data"], (-1, 4))
    return np.where(line[:, 3:] > 0, line[:, :3], seen["ground"])


def ink(seen: dict[str, Any]) -> float:
    """How much of a line has the colour of its first span."""
    full = np.subtract(seen["colours"][seen.get("first", 0)], seen["ground"])
    return float(((drawn(seen) - seen["ground"]) @ full / (full @ full)).mean())


@pytest.mark.parametrize(
    ("count", "width", "ratio", "scheme"),
    [(10, 1280, 1, "light"), (600, 390, 3, "dark"), (3_000, 900, 1.5, "light"),
     (20_000, 1280, 2, "dark"), (20_000, 390, 1, "light")],
)  # fmt: skip
def test_a_row_has_the_ink_of_its_busy_share(
    opened: OpenAt, count: int, width: int, ratio: float, scheme: str
) -> None:
    trace = busy(count, 0.24)
    step = opened(trace, width, ratio, scheme)
    for begin, end in ((0, 1), (0.2, 0.9), (0.4, 0.5), (0.401, 0.403)):
        first, last = begin * trace.end_ps, end * trace.end_ps
        step.evaluate("([from, to]) => globalThis.step.view.show(from, to)", [first, last])
        step.evaluate(FRAMES)
        starts = np.arange(count) * PERIOD
        seen = np.minimum(starts + 240, last) - np.maximum(starts, first)
        share = np.maximum(seen, 0).sum() / (last - first)
        # Faint lines of the time axis stand between the bars.
        assert ink(step.evaluate("bars('gpu:0')")) == pytest.approx(share, abs=0.006)


def test_neighbours_that_are_shown_as_one_are_as_pale_as_they_are_busy(
    opened: OpenAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simdev.report.page.timeline.MOST_SPANS", 400)
    trace = busy(3_000, 0.24)
    assert len(timeline(trace)["rows"][1]["tasks"]) < 400
    assert ink(opened(trace).evaluate("bars('gpu:0')")) == pytest.approx(0.24, abs=0.006)


@pytest.mark.parametrize("width", [1280, 390])
def test_the_load_of_a_device_is_its_share_of_full_colour(opened: OpenAt, width: int) -> None:
    step = opened(busy(3_000, 0.24), width)
    assert ink(step.evaluate("load(0)")) == pytest.approx(0.24, abs=0.01)


def test_each_pixel_is_what_the_pictures_paint(opened: OpenAt) -> None:
    """Bars and gaps of all lengths, two kinds: the mean colour of what covers a pixel."""
    edges = np.cumsum(rng.choice([1, 40, 900], 3_000) * rng.integers(1, 9, 3_000)).tolist()
    kinds = rng.choice(["forward", "backward"], 1_500).tolist()
    bars = zip(edges[::2], edges[1::2], kinds, strict=True)
    trace = trace_of(
        [Span(f"a{i}", a, b, "gpu:0", at=0, kind=kind) for i, (a, b, kind) in enumerate(bars)],
        ("gpu:0",),
    )
    step = opened(trace)
    step.evaluate("to => globalThis.step.view.show(0.1 * to, 0.8 * to)", trace.end_ps)
    step.evaluate(FRAMES)
    seen = step.evaluate("bars('gpu:0')")
    begin, end = step.evaluate("[globalThis.step.view.from, globalThis.step.view.to]")
    parts = np.linspace(begin, end, len(seen["data"]) // 4 + 1)
    looks, shares = coverage(trace_rows(trace)[0][1], parts)
    covered = shares.sum(axis=0)[:, None]
    wanted = shares.T @ np.array(seen["colours"])[looks] + (1 - covered) * seen["ground"]
    off = np.abs(drawn(seen) - wanted).max(axis=1)
    # But for lines of the time axis, and borders of long bars.
    assert np.mean(off > 1.01) < 0.03
