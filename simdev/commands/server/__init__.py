"""The oracle as a process, for optimizers in any language: requests in JSON, one a line or one a
POST.

``protocol`` turns a request into a reply over a ``ServerState`` and knows no streams. ``stdio``
carries the bytes to it in this process; ``http`` carries them to a ``front``, which has them
answered by other processes, the ``workers``. Answers are the library's, bit for bit;
docs/how-to/serve.md describes the messages.
"""

from __future__ import annotations

from .errors import RequestError
from .protocol import METHODS, respond
from .state import Limits, ServerState

__all__ = ["METHODS", "Limits", "RequestError", "ServerState", "respond"]
