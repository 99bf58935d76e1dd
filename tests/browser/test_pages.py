"""Every page of a report as a reader meets it: wide and narrow, light and dark, by its accessible
names, and by keys alone. The slow tests keep a picture of each in build/screenshots/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from answers import PLANS, SEARCH
from browsers import FRAMES, SCREENSHOTS, PageOf, cut_parts, pages_in, serious_findings
from simdev.report.page import (
    SCRIPTS,
    Subject,
    WhatIf,
    answers_data,
    compare_data,
    page,
    read_subject,
    results_data,
    run_data,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
WIDTHS, SCHEMES = (1280, 390), ("light", "dark")


@cache
def subject(name: str) -> Subject:
    return read_subject(str(SCENARIOS / f"{name}.json"))


def sweep() -> pd.DataFrame:
    """What a sweep of bandwidth and batch wrote: some rows fit, some do not, one failed."""
    rows = []
    for bandwidth in (8, 16, 32, 64):
        for batch in (64, 128, 256):
            fits = batch < 256 or bandwidth == 64
            step = 0.02 * batch / 64 + 0.4 / bandwidth
            rows.append({
                "scenario": f"bandwidth={bandwidth},batch={batch}", "bandwidth": bandwidth,
                "batch": batch, "status": "ok" if fits else "infeasible",
                "reason": None if fits else "gpu:0: 2.00 GiB over its 11.00 GiB",
                "graph_name": "gnmt", "cluster_name": "4x-rtx-2080", "global_batch": batch,
                "step_time_s": step, "memory_excess_bytes": 0 if fits else 2 << 30,
                "peak_bytes": batch * (50 << 20), "samples_per_s": batch / step,
                "utilization": 1 - 0.4 / bandwidth,
            })  # fmt: skip
    rows.append({"scenario": "bandwidth=0", "bandwidth": 0, "batch": 64, "status": "failed",
                 "reason": "cluster.links[0].bandwidth: must be positive"})  # fmt: skip
    return pd.DataFrame(rows)


PAGES: dict[str, Callable[[], Any]] = {
    "step": lambda: run_data(subject("gnmt-4x-rtx-2080-parallel")),
    "large": lambda: run_data(subject("mixtral-8x7b-32x-h100")),
    "compare": lambda: compare_data(subject("pipeline-gpipe"), subject("pipeline-1f1b")),
    "sweep": lambda: results_data(sweep(), "results.csv"),
    "plan": lambda: answers_data(PLANS, "plan.json"),
    "search": lambda: answers_data(SEARCH, "search.json"),
}


@cache
def html(kind: str) -> str:
    return page(PAGES[kind]())


@pytest.fixture(scope="module")
def step_page(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The page of a step, which several tests read one after another."""
    with pages_in(browser, tmp_path_factory.mktemp("step")) as opened:
        yield opened(html("step"))


@pytest.mark.parametrize(("kind", "scheme"), list(zip(PAGES, 3 * SCHEMES, strict=True)))
def test_nothing_is_cut_and_a_checker_of_accessibility_finds_nothing_serious(
    page_of: PageOf, kind: str, scheme: str
) -> None:
    assert len(html(kind)) < 3_000_000
    opened = page_of(html(kind), 390, scheme)
    assert not cut_parts(opened)
    assert not list(serious_findings(opened))
    opened.set_viewport_size({"width": 1280, "height": 900})
    opened.evaluate(FRAMES)
    assert not cut_parts(opened)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), list(product(WIDTHS, SCHEMES)))
@pytest.mark.parametrize("kind", PAGES)
def test_every_view_is_whole_and_without_serious_findings(
    page_of: PageOf, kind: str, width: int, scheme: str
) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    opened = page_of(html(kind), width, scheme)
    opened.screenshot(path=SCREENSHOTS / f"{kind}-{width}-{scheme}.png", full_page=True)
    assert not cut_parts(opened)
    assert not list(serious_findings(opened))


def ground(page: Page) -> tuple[int, ...]:
    """The colour that the page is drawn on."""
    text = page.locator("body").evaluate("part => getComputedStyle(part).backgroundColor")
    return tuple(int(number) for number in text.partition("(")[2].rstrip(")").split(",")[:3])


def test_dark_and_light_are_the_readers(step_page: Page) -> None:
    opened = step_page
    opened.emulate_media(color_scheme="dark")
    opened.evaluate(FRAMES)
    assert max(ground(opened)) < 50
    dark = opened.locator("canvas:visible").first.screenshot()
    opened.emulate_media(color_scheme="light")
    opened.evaluate(FRAMES)
    assert min(ground(opened)) > 250
    assert opened.locator("canvas:visible").first.screenshot() != dark


def test_a_reader_with_keys_alone_moves_finds_and_selects(step_page: Page) -> None:
    opened = step_page
    chart = opened.get_by_role("application", name="Gantt chart")
    chart.focus()
    opened.keyboard.press("0")
    opened.evaluate(FRAMES)
    whole = chart.screenshot()
    opened.keyboard.press("+")
    opened.keyboard.press("+")
    opened.evaluate(FRAMES)
    near = chart.screenshot()
    assert near != whole
    opened.keyboard.press("ArrowRight")
    opened.evaluate(FRAMES)
    assert chart.screenshot() != near
    opened.keyboard.press("0")
    opened.evaluate(FRAMES)
    assert chart.screenshot() == whole
    opened.keyboard.press("n")
    first = opened.locator(".detail").inner_text()
    assert "waits for" in first
    opened.keyboard.press("n")
    assert opened.locator(".detail").inner_text() != first
    opened.get_by_role("searchbox", name="find ops and transfers").fill("classifier/linear")
    opened.keyboard.press("Enter")
    assert "classifier/linear" in opened.locator(".detail b").inner_text()


def test_rows_fold_and_unfold(step_page: Page) -> None:
    opened = step_page
    box = opened.locator(".rows").first
    before = box.evaluate("part => part.scrollHeight")
    opened.get_by_role("button", name="unfold rows").click()
    assert box.evaluate("part => part.scrollHeight") > before + 200
    opened.get_by_role("button", name="fold rows", exact=True).click()
    assert box.evaluate("part => part.scrollHeight") == before


def test_every_control_is_reached_by_tab(page_of: PageOf) -> None:
    opened = page_of(html("sweep"))
    count = opened.locator("button:visible, select, input, [tabindex='0']").count()
    reached = set()
    for _ in range(count):
        opened.keyboard.press("Tab")
        reached.add(opened.evaluate(PLACE))
    assert len(reached) == count
    assert -1 not in reached


PLACE = "[...document.querySelectorAll('*')].indexOf(document.activeElement) - 0 || -1"
"""Where the part that has the focus stands; -1 for the page itself."""


def test_the_best_row_stands_on_top_and_what_does_not_fit_apart(page_of: PageOf) -> None:
    opened = page_of(html("sweep"))
    assert "most samples a second with bandwidth 64, batch 256" in opened.locator("h1").inner_text()
    fit, apart = (
        opened.get_by_role("region", name="best first"),
        opened.get_by_role("region", name="Do not fit"),
    )
    assert fit.locator("tbody tr").first.inner_text().startswith("bandwidth=64,batch=256")
    assert fit.locator("tbody tr").count() == 9
    assert apart.locator("tbody tr").count() == 4
    fit.get_by_role("button", name="step_time_s").click()
    assert fit.locator("tbody tr").first.inner_text().startswith("bandwidth=8,batch=128")


def test_a_large_models_page_tells_network_and_links(page_of: PageOf) -> None:
    large = subject("mixtral-8x7b-32x-h100")
    gains = [WhatIf("resource", name, None, 1, 0.1) for name in ("links inside nodes", "network")]
    opened = page_of(page(run_data(large, gains)))
    table = opened.get_by_role("region", name="table: What if the machines")
    assert "links inside nodes (nvlink)" in table.inner_text()
    assert "network" in table.inner_text()


def test_names_that_look_like_markup_stay_text(page_of: PageOf) -> None:
    evil = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    rows = sweep().assign(scenario=evil, reason=evil)
    opened = page_of(page(results_data(rows, evil)))
    assert evil in opened.locator("tbody tr").first.inner_text()
    assert opened.locator("img").count() == 0


def test_large_data_are_packed_and_drawn_alike(
    page_of: PageOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = page_of(html("sweep"))
    monkeypatch.setattr("simdev.report.page.PACKED_FROM", 100)
    packed = page_of(page(PAGES["sweep"]()))
    assert packed.locator("#data").get_attribute("type") == "application/gzip"
    assert packed.locator("main").inner_text() == plain.locator("main").inner_text()


def test_another_step_is_drawn_in_the_same_page(
    page_of: PageOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = tmp_path / "live.js"
    live.write_text("globalThis.StepPage = StepPage;")
    monkeypatch.setattr("simdev.report.page.SCRIPTS", (*SCRIPTS, str(live)))
    first, second = (run_data(subject(name)) for name in ("pipeline-gpipe", "pipeline-1f1b"))
    opened = page_of(page(first))
    opened.evaluate(
        """data => {
          globalThis.shown = new StepPage(data);
          document.querySelector("main").replaceChildren(shown.part);
          shown.view.show(5e9, 9e9);
        }""",
        first,
    )
    opened.get_by_role("searchbox", name="find ops").fill("forward_7")
    opened.keyboard.press("Enter")
    chosen = opened.locator(".detail b").inner_text()
    opened.evaluate("data => shown.take(data)", second)
    assert second["title"] in opened.locator("h1").inner_text()
    assert second["source"] in opened.locator("#headline").inner_text()
    assert opened.locator(".detail b").inner_text() == chosen
    assert opened.evaluate("[shown.view.to - shown.view.from, shown.charts.length]") == [4e9, 3]
    assert opened.locator("section:visible").count() == len(second["sheets"]) + 4


def test_the_checks_of_pages_see_what_is_wrong(browser: Browser) -> None:
    opened = browser.new_page(viewport={"width": 390, "height": 500})
    opened.set_content("<html><body><div style='width:900px'>wide</div><button></button>")
    assert cut_parts(opened)
    assert any(finding.startswith("button-name") for finding in serious_findings(opened))
    opened.close()
