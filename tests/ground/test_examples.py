"""How many random examples a test draws."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import few


@settings(max_examples=80)
@given(st.integers())
def test_a_quarter_is_drawn_and_all_where_slow_tests_run(number: int) -> None:
    pass


def test_the_ordinary_run_draws_a_quarter(request: pytest.FixtureRequest) -> None:
    test = test_a_quarter_is_drawn_and_all_where_slow_tests_run
    ordinary = request.config.option.markexpr == "not slow"
    assert test._hypothesis_internal_use_settings.max_examples == (20 if ordinary else 80)


@pytest.mark.parametrize(("examples", "wanted"), [(1000, 250), (39, 10), (12, 10), (3, 3)])
def test_no_few_become_fewer(examples: int, wanted: int) -> None:
    assert few(examples) == wanted
