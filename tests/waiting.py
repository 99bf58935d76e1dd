"""Waits for an event, never for a fixed time; the bounds only end tests that hang."""

from __future__ import annotations

import time
from collections.abc import Callable

HANGS = 1800.0  # seconds: longer than anything here takes, even on a busy machine
PAGE_HANGS = 120.0  # seconds: the bound for a click on a page, which mostly takes less than one


def wait_until(happened: Callable[[], bool]) -> None:
    """Returns as soon as ``happened()`` is true. Raises TimeoutError after HANGS seconds."""
    end = time.monotonic() + HANGS
    while not happened():
        if time.monotonic() > end:
            raise TimeoutError(f"it has not happened in {HANGS:g} s")
        time.sleep(0.001)
