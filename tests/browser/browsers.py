"""Finds a browser on this machine, starts it, and checks its pages.

Run as a program, it prints the browser's path, or exits with 1 where there is none.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Request

PageOf = Callable[..., "Page"]
HEIGHT = 900
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ARGS = (
    "--headless",
    "--no-sandbox",  # in a container a browser runs as root, and it opens only what tests write
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
NONE = (
    "no browser here: run `make browser` as root on Debian, or "
    "`.venv/bin/playwright install chromium`"
)
SCREENSHOTS = Path(__file__).resolve().parents[2] / "build" / "screenshots"
INSIDE = ("file:", "data:", "blob:", "about:")
"""The beginnings of addresses that cause no network request."""
FRAMES = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
"""A script that waits for two animation frames, after which a page's drawing is done."""
SERIOUS = ("serious", "critical")
LOOKS_FOR = {
    "resultTypes": ["violations"],
    "preload": False,  # else it asks for style sheets once more, which pages of a folder may not
}


def executable() -> str | None:
    """Playwright's own Chromium where it is installed, else that on the path, else None."""
    kept = os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache" / "ms-playwright"
    installed = sorted(Path(kept).glob("chromium-*/chrome-linux*/chrome"))
    if installed:
        return str(installed[-1])
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def visits(browser: Browser) -> Iterator[PageOf]:
    """A function that opens addresses in pages, which are closed at the end. Asserts that no page
    made network requests or wrote errors.
    """
    from waiting import PAGE_HANGS

    contexts, faults = [], list[str]()

    def requested(request: Request) -> None:
        if not request.url.startswith(INSIDE):
            faults.append(f"asks for {request.url}")

    def written(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            faults.append(f"console: {message.text}")

    def opened(address: str, width: int = 1280, scheme: str = "light") -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": HEIGHT},
            color_scheme=scheme,
            reduced_motion="reduce",
        )
        context.set_default_timeout(1000 * PAGE_HANGS)
        contexts.append(context)
        page = context.new_page()
        page.on("request", requested)
        page.on("console", written)
        page.on("pageerror", lambda error: faults.append(f"error: {error}"))
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not faults


@contextmanager
def pages_in(browser: Browser, folder: Path) -> Iterator[PageOf]:
    """A function that opens HTML in pages (``PageOf``), through files in a folder."""
    with visits(browser) as visit:
        counts = count(1)

        def opened(html: str, width: int = 1280, scheme: str = "light") -> Page:
            place = folder / f"{next(counts)}.html"
            place.write_text(html, "utf-8")
            page = visit(place.as_uri(), width, scheme)
            page.locator("main > *").first.wait_for(state="attached")
            page.evaluate(FRAMES)
            return page

        yield opened


def serious_findings(page: Page) -> Iterator[str]:
    """The findings of an accessibility checker on a page: rule, elements, reason."""
    from axe_playwright_python.sync_playwright import Axe

    for rule in Axe().run(page, options=LOOKS_FOR).response["violations"]:
        if rule["impact"] in SERIOUS:
            nodes = [node["target"][0] for node in rule["nodes"]]
            reason = rule["nodes"][0]["failureSummary"]
            yield f"{rule['id']} ({len(nodes)}): {nodes[:4]} {reason}"


def cut_parts(page: Page, inside: str = "body") -> list[str]:
    """The elements that reach beyond the right edge of the window and are not inside a scrolling
    element.
    """
    parts: list[str] = page.evaluate(CUT, inside)
    return parts


CUT = """(inside) => {
  const scrolls = (part) => part
    && (/auto|scroll|hidden/.test(getComputedStyle(part).overflowX) || scrolls(part.parentElement));
  const is_cut = (part) => part.getBoundingClientRect().right > innerWidth + 1
    && getComputedStyle(part).display !== "none" && !scrolls(part.parentElement);
  return [...document.querySelectorAll(`${inside} *`)].filter(is_cut)
    .map((part) => `${part.tagName} ${part.className} ${part.textContent.slice(0, 40)}`);
}"""

if __name__ == "__main__":
    place = executable()
    print(place or NONE)
    sys.exit(place is None)
