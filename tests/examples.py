"""How many random examples a test draws: all that it names where slow tests run, else fewer."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import settings


def few(examples: int) -> int:
    """Of so many, how many the ordinary run draws."""
    return max(examples // 4, min(examples, 10))


def draw_few(items: Iterable[pytest.Item]) -> None:
    """Whatever their own settings say of the number."""
    tests = {getattr(item, "function", None) for item in items}
    for test in tests:
        if getattr(test, "is_hypothesis_test", False):
            whole = test._hypothesis_internal_use_settings
            fewer = settings(whole, max_examples=few(whole.max_examples))
            test._hypothesis_internal_use_settings = fewer
