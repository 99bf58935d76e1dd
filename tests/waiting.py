"""Waiting for what happens, never for a time: only what hangs meets the bound."""

from __future__ import annotations

import time
from collections.abc import Callable

HANGS = 1800.0  # seconds that nothing here takes, on however busy a machine
PAGE_HANGS = 120.0  # the same of a click on a page, or what it waits for: most take no second


def wait_until(happened: Callable[[], bool]) -> None:
    """Return as soon as it has happened. Raises TimeoutError where it hangs."""
    end = time.monotonic() + HANGS
    while not happened():
        if time.monotonic() > end:
            raise TimeoutError(f"it has not happened in {HANGS:g} s")
        time.sleep(0.001)
