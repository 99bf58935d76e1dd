"""Every page of a report as a reader meets it: wide and narrow, light and dark, by its accessible
names, and by keys alone. Each is kept as a picture in build/screenshots/.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from browsers import SCREENSHOTS, cut_parts, serious_findings
from simdev.report.page import Subject, compare_data, page, read_subject, results_data, run_data

if TYPE_CHECKING:
    from playwright.sync_api import Page

PageOf = Callable[..., "Page"]
SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
VIEWS = [(width, scheme) for width in (1280, 390) for scheme in ("light", "dark")]

CHECKED = {(1280, "light"), (390, "dark")}


@cache
def subject(name: str) -> Subject:
    return read_subject(str(SCENARIOS / f"{name}.json"))


def sweep() -> pd.DataFrame:
    """What a sweep of bandwidth and batch wrote: some rows fit, some do not, some failed."""
    rows = []
    for bandwidth in (8, 16, 32, 64):
        for batch in (64, 128, 256):
            fits = batch < 256 or bandwidth == 64
            step = 0.02 * batch / 64 + 0.4 / bandwidth
            rows.append({
                "scenario": f"bandwidth={bandwidth},batch={batch}", "bandwidth": bandwidth,
                "batch": batch, "status": "ok" if fits else "oom",
                "reason": None if fits else "gpu:0 needs 13 GiB of 11 GiB", "step_time_s": step,
                "memory_excess_bytes": 0 if fits else 2 << 30, "peak_bytes": batch * (50 << 20),
                "feasible": fits, "samples_per_s": batch / step,
                "utilization": 1 - 0.4 / bandwidth,
            })  # fmt: skip
    rows.append({"scenario": "bandwidth=0", "bandwidth": 0, "batch": 64, "status": "error",
                 "reason": "cluster.links[0].bandwidth: must be positive"})  # fmt: skip
    return pd.DataFrame(rows)


PAGES: dict[str, Callable[[], Any]] = {
    "step": lambda: run_data(subject("gnmt-4x-rtx-2080-parallel")),
    "large": lambda: run_data(subject("mixtral-8x7b-32x-h100")),
    "compare": lambda: compare_data(
        subject("gnmt-4x-rtx-2080-parallel"), subject("gnmt-4x-rtx-2080-sequential")
    ),
    "sweep": lambda: results_data(sweep(), "results.csv"),
}


@cache
def html(kind: str) -> str:
    return page(PAGES[kind]())


@pytest.mark.parametrize("kind", PAGES)
def test_nothing_is_cut_and_a_checker_of_accessibility_finds_nothing_serious(
    page_of: PageOf, kind: str
) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    assert len(html(kind)) < 3_000_000
    for width, scheme in VIEWS:
        opened = page_of(html(kind), width, scheme)
        opened.screenshot(path=SCREENSHOTS / f"{kind}-{width}-{scheme}.png", full_page=True)
        assert not cut_parts(opened)
        if (width, scheme) in CHECKED:
            assert not list(serious_findings(opened))


def middle(page: Page, selector: str) -> tuple[int, ...]:
    """The colour in the middle of the ground that a part of the page is drawn on."""
    text = page.locator(selector).first.evaluate("part => getComputedStyle(part).backgroundColor")
    return tuple(int(number) for number in text.partition("(")[2].rstrip(")").split(",")[:3])


def test_dark_and_light_are_the_readers(page_of: PageOf) -> None:
    opened = page_of(html("step"), 1280, "dark")
    assert max(middle(opened, "body")) < 50
    dark = opened.locator("canvas").first.screenshot()
    opened.emulate_media(color_scheme="light")
    opened.wait_for_timeout(50)
    assert min(middle(opened, "body")) > 250
    assert opened.locator("canvas").first.screenshot() != dark
