"""Requests to a server in this process."""

from __future__ import annotations

import json
from typing import Any

from simdev.commands.server import ServerState, respond


def line(method: str, identity: Any = 1, **params: Any) -> bytes:
    """The line of a request."""
    return json.dumps({"id": identity, "method": method, "params": params}).encode()


def ask(state: ServerState, method: str, **params: Any) -> Any:
    """The result of a request, or its error."""
    reply = json.loads(respond(state, line(method, 7, **params)).body)
    assert reply["id"] == 7
    return reply["result"] if "result" in reply else reply["error"]
