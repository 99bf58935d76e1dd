"""The protocol by HTTP on the loopback: ``POST /`` with one request as the body.

Needs starlette and uvicorn.

A reply of the protocol has status 200 also where it tells an error; other statuses mean that
nothing was asked.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from ..errors import InputError
from .door import judge
from .errors import RequestError
from .protocol import failure, respond
from .state import State

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from uvicorn import Server

LOOPBACK = "127.0.0.1"
HEADER_BYTES = 16 * 2**10
THREADS = 8
CROWD = 8


@dataclass(frozen=True, slots=True)
class Patience:
    """Clients at once, and seconds for the headers, the body, an idle connection, and what is under
    way at the end.
    """

    clients: int = 64
    head: float = 10.0
    body: float = 10.0
    idle: float = 60.0
    drain: float = 5.0


def serve(state: State, port: int, out: TextIO, patience: Patience = Patience()) -> None:
    """Answer until SIGTERM, SIGINT or a client asks to stop; prints where, as one line of JSON.

    Raises InputError where the port is taken or the packages are not installed.
    """
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise InputError(
            '--http needs uvicorn and starlette: install the extra "simdev[serve]"'
        ) from None
    token = secrets.token_hex(16)
    with (
        _listening(port) as listener,
        _token_file(token) as path,
        ThreadPoolExecutor(THREADS) as pool,
    ):
        port = listener.getsockname()[1]
        server = _server(state, token, port, pool, patience)
        with _calm_signals():
            print(
                json.dumps({"url": f"http://{LOOPBACK}:{port}/", "token_file": path}),
                file=out,
                flush=True,
            )
            try:
                server.run(sockets=[listener])
            finally:
                state.closed = True  # a batch that outlasted the drain ends at its next look


@contextmanager
def _listening(port: int) -> Iterator[socket.socket]:
    # asyncio sends small writes at once (TCP_NODELAY) only where the protocol is told.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as found:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((LOOPBACK, port))
        except OSError as error:
            raise InputError(f"--port {port}: {(error.strerror or str(error)).lower()}") from None
        found.listen(256)
        yield found


@contextmanager
def _token_file(token: str) -> Iterator[str]:
    """A file that only its owner can read (mode 0600), gone at the end."""
    descriptor, path = tempfile.mkstemp(prefix="simdev-token-")
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(token + "\n")
        yield path
    finally:
        with suppress(OSError):
            os.unlink(path)


@contextmanager
def _calm_signals() -> Iterator[None]:
    """Outlive the SIGTERM that uvicorn, once drained, raises anew: the token's file must still
    go.
    """
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def application(
    state: State, token: str, port: int, pool: ThreadPoolExecutor, patience: Patience
) -> Starlette:
    """The ASGI application."""
    from starlette.applications import Starlette
    from starlette.requests import ClientDisconnect
    from starlette.responses import Response
    from starlette.routing import Route

    turns, places = asyncio.Semaphore(THREADS), asyncio.Semaphore(patience.clients)

    def reply(body: bytes, status: int = 200, close: bool = False) -> Response:
        headers = {"cache-control": "no-store"} | ({"connection": "close"} if close else {})
        headers |= {"retry-after": "1"} if status == 503 else {}
        return Response(body, status, headers, "application/json")

    async def ask(request: Request) -> Response:
        refused = judge(request.headers.raw, port, token, state.limits.request_bytes)
        if refused is not None:
            # The connection stays, so that a client still sending its body can read why;
            # http_limits.py ends that.
            return reply(failure(refused[1]), refused[0])
        if places.locked():
            return reply(failure(RequestError("busy", "too many requests at once; ask again")), 503)
        async with places:
            return await served(request)

    async def served(request: Request) -> Response:
        try:
            async with asyncio.timeout(patience.body):
                body = await request.body()
        except TimeoutError:
            return reply(
                failure(RequestError("too_late", f"no whole body within {patience.body:g} s")),
                408,
                close=True,
            )
        except ClientDisconnect:
            return reply(b"", 400, close=True)
        waited = turns.locked()
        async with turns:
            if waited and await request.is_disconnected():
                return reply(b"", 400, close=True)  # nobody is there to read the answer
            return reply(
                await asyncio.get_running_loop().run_in_executor(pool, respond, state, body)
            )

    return Starlette(routes=[Route("/", ask, methods=["POST"])])


def _server(
    state: State, token: str, port: int, pool: ThreadPoolExecutor, patience: Patience
) -> Server:
    from uvicorn import Config, Server

    from .http_limits import bounded

    class Stoppable(Server):
        """Goes down also when a client has asked for it."""

        async def on_tick(self, counter: int) -> bool:
            """Look whether to stop; ten times a second."""
            self.should_exit = self.should_exit or state.stopping
            return await super().on_tick(counter)

    config = Config(
        application(state, token, port, pool, patience),
        http=bounded(patience.clients, patience.head),
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",  # a line for every odd request would let clients fill a disk
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=CROWD * patience.clients,  # a backstop: it counts idle connections too
        timeout_keep_alive=int(patience.idle),
        timeout_graceful_shutdown=int(patience.drain),
        h11_max_incomplete_event_size=HEADER_BYTES,
    )
    return Stoppable(config)
