"""HTTP connections with time limits: uvicorn alone waits for ever for the end of a request's
headers, and for a client to read its reply.

``http`` imports this only when it serves, for uvicorn may not be installed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

GRACE = 0.3
"""Seconds for which a connection is not closed to make room: its request may lie unread."""
AHEAD = 2**16
"""Bytes of further requests that are read while one is under way."""
HEADERS, ROOM, READER = "headers", "room", "reader"
"""The timers of a connection: until its headers are there, until it may be closed to make room, and
until its client has read more.
"""


class Connection(H11Protocol):
    """A connection, one of ``most``, whose client sends its headers within ``seconds`` of their
    first byte, and reads some of a long reply in each ``seconds``. A server derives a class of its
    own, with its limits.

    A new connection beyond ``most`` closes the one that has waited longest without a whole request,
    so that idle and slow clients keep nobody out.
    """

    most, seconds = 512, 10.0

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._waits_since, self._ahead = 0.0, 0

    @property
    def busy(self) -> bool:
        """Whether a request is under way: its headers are there, and not all of its reply is
        sent.
        """
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def works(self) -> bool:
        """Whether a request has arrived as a whole and is not answered yet."""
        return self.busy and not self.cycle.more_body

    def connection_made(self, transport: Any) -> None:
        """Wait for the first request."""
        super().connection_made(transport)
        self._wait_for_request()
        self._time_headers()

    def data_received(self, data: bytes) -> None:
        """Take more bytes of a request."""
        is_ahead = self.works
        super().data_received(data)
        self._time_headers()
        if is_ahead:
            self._ahead += len(data)
        # uvicorn stops reading when a further request begins, and then would not notice that the
        # client leaves.
        if self.works and self._ahead <= AHEAD:
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._ahead = 0
        self._wait_for_request()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers."""
        for name in (HEADERS, ROOM, READER):
            self._stop(name)
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that was idle for too long, at once: an orderly end would wait for a
        client that does not read.
        """
        self.transport.abort()

    def pause_writing(self) -> None:
        """Wait for the client to read the bytes that are ready."""
        super().pause_writing()
        self._time_reader()

    def resume_writing(self) -> None:
        """Write on, for the client has read."""
        self._stop(READER)
        super().resume_writing()

    def _start(self, name: str, seconds: float, call: Callable[..., None], *args: Any) -> None:
        self._stop(name)
        self._timers[name] = self.loop.call_later(seconds, call, *args)

    def _stop(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _wait_for_request(self) -> None:
        """Begin to wait for a request; after GRACE the connection may be closed to make room."""
        self._waits_since = self.loop.time()
        self._start(ROOM, GRACE, self._make_room)

    def _make_room(self) -> None:
        """Close the connection that has waited longest, where there are too many."""
        self._stop(ROOM)
        present = [peer for peer in self.connections if not peer.transport.is_closing()]
        waiting = [
            peer
            for peer in present
            if isinstance(peer, Connection) and not peer.works and ROOM not in peer._timers
        ]
        if len(present) > self.most and waiting:
            min(waiting, key=lambda peer: peer._waits_since).transport.abort()

    def _time_headers(self) -> None:
        """Limit the time for the headers of a request that has begun."""
        if self.busy:
            self._stop(HEADERS)
        elif HEADERS not in self._timers:
            self._start(HEADERS, self.seconds, self.transport.abort)

    def _time_reader(self, before: float = float("inf")) -> None:
        """Close a connection that still has ``before`` or more bytes to write; else look again
        later.
        """
        left = self.transport.get_write_buffer_size()
        if left >= before:
            self.transport.abort()
        else:
            self._start(READER, self.seconds, self._time_reader, left)
