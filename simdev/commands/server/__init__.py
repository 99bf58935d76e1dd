"""The oracle as a process, for optimizers in any language: requests in JSON, one a line or one a
POST.

``protocol`` turns a request into a reply over a ``ServerState`` and knows no streams. ``stdio``
passes requests to it in this process; ``http`` passes them to a ``front``, which lets other
processes answer, the ``workers``. Answers equal the library's, bit for bit; docs/how-to/serve.md
describes the messages.
"""

from __future__ import annotations

from .errors import RequestError
from .protocol import METHODS, respond
from .state import Limits, ServerState

__all__ = ["METHODS", "Limits", "RequestError", "ServerState", "respond"]
