"""Servers for tests: the protocol alone, and by HTTP in a child process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clients import IMPATIENT, Server, running
from simdev.commands.server import Limits, ServerState


@pytest.fixture
def state() -> ServerState:
    return ServerState(Limits(request_bytes=200_000, batch=600, scenarios=2, sessions=3))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running("-c", IMPATIENT) as started:
        yield started
