"""Pages in a real browser. Every network request of a page, and every error that it writes to its
console, fails the test that opened it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from browsers import ARGS, NONE, PageOf, executable, pages_in, visits
from waiting import PAGE_HANGS

if TYPE_CHECKING:
    from playwright.sync_api import Browser


# One browser per file of tests, not per session: while it is open, its event loop counts as
# running, and other uses of asyncio in this process would fail.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    place = executable()
    if place is None:
        pytest.skip(NONE)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=place, args=list(ARGS), timeout=1000 * PAGE_HANGS
        )
        yield started
        started.close()


@pytest.fixture
def page_of(browser: Browser, tmp_path: Path) -> Iterator[PageOf]:
    """``page_of(html, width=1280, scheme="light")`` opens a page in a window of ``width`` pixels,
    with a light or dark colour scheme.
    """
    with pages_in(browser, tmp_path) as opened:
        yield opened


@pytest.fixture
def visit(browser: Browser) -> Iterator[PageOf]:
    """``visit(address, width=1280, scheme="light")`` opens an existing address."""
    with visits(browser) as opened:
        yield opened
