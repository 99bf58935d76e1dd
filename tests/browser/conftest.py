"""Pages in a real browser: whatever a page asks of a network, and every error that it writes to its
console, fails the test that opened it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from browsers import ARGS, FRAMES, INSIDE, NONE, executable

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Request

HEIGHT = 900
PageOf = Callable[..., "Page"]


# One for a file of tests, not for the session: while it is open, its event loop counts as running,
# and whatever else uses asyncio in this process would fail.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    place = executable()
    if place is None:
        pytest.skip(NONE)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=place, args=list(ARGS))
        yield started
        started.close()


@pytest.fixture
def page_of(browser: Browser, tmp_path: Path) -> Iterator[PageOf]:
    """``page_of(html, width=1280, scheme="light")`` opens a page in a window of so many pixels, for
    a reader who set light or dark.
    """
    contexts, faults = [], list[str]()

    def requested(request: Request) -> None:
        if not request.url.startswith(INSIDE):
            faults.append(f"asks for {request.url}")

    def written(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            faults.append(f"console: {message.text}")

    def opened(html: str, width: int = 1280, scheme: str = "light") -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": HEIGHT},
            color_scheme=scheme,
            reduced_motion="reduce",
        )
        contexts.append(context)
        page = context.new_page()
        page.on("request", requested)
        page.on("console", written)
        page.on("pageerror", lambda error: faults.append(f"error: {error}"))
        place = tmp_path / f"{len(contexts)}.html"
        place.write_text(html, "utf-8")
        page.goto(place.as_uri())
        page.locator("main > *").first.wait_for(state="attached")
        page.evaluate(FRAMES)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not faults
