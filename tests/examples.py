"""Tests of random examples: a few whenever the tests run, many where slow tests do."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import update_wrapper
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy

Check = Callable[..., None]


def examples(
    few: int, many: int, *strategies: SearchStrategy[Any], **named: SearchStrategy[Any]
) -> Callable[[Check], Check]:
    """Stands for ``given`` with ``few`` examples, and with ``many`` in a slow test."""

    def decorate(check: Check) -> Check:
        tests = {
            name: settings(max_examples=count)(given(*strategies, **named)(check))
            for name, count in (("few", few), ("many", many))
        }

        def test(examples: str, **others: Any) -> None:
            tests[examples](**others)

        signature = inspect.signature(tests["few"])
        number = inspect.Parameter("examples", inspect.Parameter.KEYWORD_ONLY)
        update_wrapper(test, check)
        test.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*signature.parameters.values(), number]
        )
        choices = ["few", pytest.param("many", marks=pytest.mark.slow)]
        return pytest.mark.parametrize("examples", choices)(test)

    return decorate
