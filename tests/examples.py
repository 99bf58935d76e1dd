"""The number of random examples of a test: its full number where slow tests run, else fewer."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import settings


def few(examples: int) -> int:
    """The number of examples that the ordinary run draws, of ``examples``."""
    return max(examples // 4, min(examples, 10))


def draw_few(items: Iterable[pytest.Item]) -> None:
    """Lets tests draw fewer examples than their own settings say."""
    tests = {getattr(item, "function", None) for item in items}
    for test in tests:
        if getattr(test, "is_hypothesis_test", False):
            whole = test._hypothesis_internal_use_settings
            fewer = settings(whole, max_examples=few(whole.max_examples))
            test._hypothesis_internal_use_settings = fewer
