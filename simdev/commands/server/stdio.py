"""The protocol on two streams: one request a line in, one reply a line out, in order.

``simdev serve`` without ``--http`` runs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from .protocol import failure, respond, too_long
from .state import ServerState

DRAIN = 2**16


def serve(state: ServerState, source: BinaryIO, sink: BinaryIO) -> None:
    """Answer until the source ends or a client asks to stop.

    Raises BrokenPipeError where nobody reads the replies.
    """
    for line in lines(source, state.limits.request_bytes):
        if line is None:
            reply = failure(too_long(state), None, state)
        else:
            reply = respond(state, line)
        sink.write(reply.body + b"\n")
        # A client waits for its reply before it sends more: a buffered reply would never arrive.
        sink.flush()
        if state.stopping:
            return


def lines(source: BinaryIO, limit: int) -> Iterator[bytes | None]:
    """Lines that are not blank, without their end; None for a line of more than ``limit`` bytes,
    which is never held as a whole.
    """
    while line := source.readline(limit + 1):
        if len(line) > limit and not line.endswith(b"\n"):
            while (rest := source.readline(DRAIN)) and not rest.endswith(b"\n"):
                pass
            yield None
        elif not line.isspace():
            yield line.removesuffix(b"\n")
