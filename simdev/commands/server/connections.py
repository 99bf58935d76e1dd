"""Connections that may not linger: uvicorn by itself waits for ever for the end of the headers.

``http`` imports this where it serves, for uvicorn may not be installed.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

GRACE = 0.3


class Connection(H11Protocol):
    """One connection of ``most``; a request has its headers within ``seconds`` of its first byte.

    A connection beyond ``most`` takes the place of the one that has waited longest without a whole
    request, so that idle and slow clients keep nobody out. Whoever came just now is spared, for its
    request may lie unread.
    """

    most, seconds = 512, 10.0
    _timer: asyncio.TimerHandle | None = None
    _since = 0.0
    _settling: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        """Whether a request is under way."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def works(self) -> bool:
        """Whether a request is there as a whole and not answered yet."""
        return self.busy and not self.cycle.more_body

    def connection_made(self, transport: Any) -> None:
        """Start the clocks."""
        super().connection_made(transport)
        self._settle()
        self._watch()

    def data_received(self, data: bytes) -> None:
        """More of a request."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """From here on the connection waits for its next request."""
        self._settle()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end."""
        self._rest()
        if self._settling is not None:
            self._settling.cancel()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        """Idle for too long; closing politely would wait for a client that does not read."""
        self.transport.abort()

    def _settle(self) -> None:
        """The connection waits from now on; after the grace it is one that may be closed to make
        room.
        """
        self._since = self.loop.time()
        if self._settling is not None:
            self._settling.cancel()
        self._settling = self.loop.call_later(GRACE, self._settled)

    def _settled(self) -> None:
        self._settling = None
        present = [peer for peer in self.connections if not peer.transport.is_closing()]
        waiting = [
            peer
            for peer in present
            if isinstance(peer, Connection) and not peer.works and peer._settling is None
        ]
        if len(present) > self.most and waiting:
            # Aborted and not closed: a polite end would wait for a client that does not read.
            min(waiting, key=lambda peer: peer._since).transport.abort()

    def _watch(self) -> None:
        """Start the clock where something is still to come, stop it where a request is under
        way.
        """
        if self.busy:
            self._rest()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.seconds, self._late)

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if not self.busy:
            self.transport.abort()


def bounded(most: int, seconds: float) -> type[Connection]:
    """The class of connections with these limits."""
    return type("Bounded", (Connection,), {"most": most, "seconds": seconds})
