"""The table of methods."""

from __future__ import annotations

import pytest

from simdev.search import METHODS, PREPARATIONS
from simdev.search.methods import BAECHI


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_a_function_with_docs(name):
    assert METHODS[name].run.__doc__
    assert not (METHODS[name].splits and METHODS[name].prepare)
    assert set(METHODS[name].prepare) <= PREPARATIONS.keys()
    assert set(BAECHI) <= PREPARATIONS.keys()
