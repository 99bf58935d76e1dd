"""Fixtures of these tests."""

from __future__ import annotations

import pytest

from model_graphs import SMALL, small
from simdev.nouns.graph import Graph


@pytest.fixture(params=SMALL)
def graph(request: pytest.FixtureRequest) -> Graph:
    return small(request.param)
