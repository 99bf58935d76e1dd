"""The documentation's site as readers meet it: wide and narrow, light and dark, by an accessibility
checker, and by its search. `make docs` looks at what it built; pictures stay in build/screenshots/.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from browsers import FRAMES, SCREENSHOTS, PageOf, cut_parts, serious_findings

if TYPE_CHECKING:
    from playwright.sync_api import Page

SITE = Path(__file__).resolve().parents[2] / "build" / "site"
PAGES = {
    "start": "docs/index",
    "tutorial": "docs/tutorials/systems",
    "tables": "docs/reference/ops",
    "gallery": "docs/gallery/index",
    "picture": "docs/gallery/schedules",
    "paper": "docs/papers/p3",
    "python": "docs/reference/python/search",
    "verbs": "docs/reference/command-line",
    "notebook": "notebooks/04-pipelines",
}
WIDTHS, SCHEMES = (1280, 390), ("light", "dark")
TALL = 2400
"""Pixels of a page that its picture shows."""
BROKEN = "[...document.images].filter((image) => !image.naturalWidth).map((image) => image.src)"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (SITE / "index.html").is_file(), reason="no site: `make docs` makes it"),
]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", PAGES)
def test_a_page_is_whole_and_without_serious_findings(
    visit: PageOf, kind: str, scheme: str
) -> None:
    page = visit((SITE / f"{PAGES[kind]}.html").as_uri(), scheme=scheme)
    assert not page.evaluate(BROKEN)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate(FRAMES)
        keep(page, f"docs-{kind}-{width}-{scheme}")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert not cut_parts(page, "article")
        assert not list(serious_findings(page))


def keep(page: Page, name: str) -> None:
    """A picture of the page's first screens."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    height: int = page.evaluate("document.documentElement.scrollHeight")
    clip = {"x": 0, "y": 0, "width": page.viewport_size["width"], "height": min(height, TALL)}
    page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True, clip=clip)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_first_address_leads_to_a_search_that_answers(visit: PageOf, width: int) -> None:
    page = visit((SITE / "index.html").as_uri(), width)
    page.wait_for_url("**/docs/index.html")
    if width < 1000:
        page.locator("label.nav-overlay-icon").first.click()
    page.get_by_role("textbox", name="Search").fill("pipeline")
    page.keyboard.press("Enter")
    results = page.locator("#search-results ul.search a")
    results.first.wait_for()
    page.get_by_text("finished").wait_for()
    assert results.count() > 10
    keep(page, f"docs-search-{width}")
    results.filter(has_text="Pipelines").first.click()
    assert "pipeline" in page.locator("h1").first.inner_text().lower()
