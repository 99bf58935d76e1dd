"""The protocol by HTTP on the loopback: ``POST /`` with one request as the body.

Needs starlette and uvicorn.

A reply of the protocol has status 200 also where it tells an error; other statuses mean that
nothing was asked. ``serve`` and ``explorer/door.py`` open it; codes of errors are in ``errors``.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import secrets
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, TextIO

from uvicorn.protocols.http.h11_impl import H11Protocol

from ...ground.errors import InputError, install_line
from .errors import RequestError
from .protocol import failure, respond
from .state import ServerState

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route
    from uvicorn import Server

# Connections that may not linger: uvicorn by itself waits for ever for the end of the headers.

GRACE = 0.3


class Connection(H11Protocol):
    """One connection of ``most``; a request has its headers within ``seconds`` of its first byte.

    A connection beyond ``most`` takes the place of the one that has waited longest without a
    request under way, so that idle and slow clients keep nobody out. Whoever came just now is
    spared, for its request may lie unread.
    """

    most, seconds = 64, 10.0
    _timer: asyncio.TimerHandle | None = None
    _since = 0.0
    _settling: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        """Whether a request is under way."""
        return self.cycle is not None and not self.cycle.response_complete

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
            if isinstance(peer, Connection) and not peer.busy and peer._settling is None
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


LOOPBACK = "127.0.0.1"
HOSTS = (LOOPBACK, "localhost", "[::1]")
_ORIGIN = re.compile(rb"https?://(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?\Z")
_LENGTH = re.compile(rb"[0-9]{1,15}\Z")
HEADER_BYTES = 16 * 2**10
THREADS = 8
CROWD = 8

Headers = Sequence[tuple[bytes, bytes]]
Refusal = tuple[int, RequestError]


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


@dataclass(frozen=True, slots=True)
class Service:
    """The service behind the door: ``answer`` gives the reply to the body of a request that was let
    in. ``page`` goes to anybody who asks, with ``headers`` of its own, and must hold nothing
    private.
    """

    state: ServerState
    answer: Callable[[ServerState, bytes], bytes] = respond
    page: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def serve(state: ServerState, port: int, out: TextIO, patience: Patience = Patience()) -> None:
    """Answer until SIGTERM, SIGINT or a client asks to stop; prints where, as one line of JSON.

    Raises InputError where the port is taken or the packages are not installed.
    """
    serve_with(Service(state), port, partial(_announced, out=out), patience)


@contextmanager
def private_file(text: str, prefix: str, suffix: str = "") -> Iterator[str]:
    """The path of a temporary file of this text, which the system makes readable for its owner only
    (mode 0600).
    """
    with (
        # Who cleans the folder of temporary files may have been faster.
        suppress(FileNotFoundError),
        NamedTemporaryFile("w", prefix=prefix, suffix=suffix, encoding="utf-8") as file,
    ):
        file.write(text)
        file.flush()
        yield file.name


@contextmanager
def _announced(url: str, token: str, out: TextIO) -> Iterator[None]:
    with private_file(f"{token}\n", "simdev-token-") as path:
        print(json.dumps({"url": url, "token_file": path}), file=out, flush=True)
        yield


def serve_with(
    service: Service,
    port: int,
    announce: Callable[[str, str], AbstractContextManager[object]],
    patience: Patience = Patience(),
) -> None:
    """Answer until SIGTERM, SIGINT or a client asks to stop; ``announce(url, token)`` is entered
    when clients may come, and left at the end.

    Raises InputError where the port is taken or the packages are not installed.
    """
    require_packages()
    token = secrets.token_hex(16)
    with _listening(port) as listener, ThreadPoolExecutor(THREADS) as pool:
        port = listener.getsockname()[1]
        server = _server(service, token, port, pool, patience)
        with _calm_signals(), announce(f"http://{LOOPBACK}:{port}/", token):
            try:
                server.run(sockets=[listener])
            finally:
                service.state.closed = (
                    True  # a batch that outlasted the drain ends at its next look
                )


def require_packages() -> None:
    """Raises InputError where what serves is not installed."""
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        problem = f"a server needs uvicorn and starlette: {install_line('serve')}"
        raise InputError(problem) from None


@contextmanager
def _listening(port: int) -> Iterator[socket.socket]:
    # asyncio sends small writes at once (TCP_NODELAY) only where the protocol is told.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
        except OSError as error:
            raise InputError(f"--port {port}: {(error.strerror or str(error)).lower()}") from None
        listener.listen(256)
        yield listener


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


def _values(headers: Headers, name: bytes) -> list[bytes]:
    return [value.strip() for key, value in headers if key == name]


def wrong_host(headers: Headers, port: int) -> Refusal | None:
    """The status and error where the Host header names another server, or None."""
    hosts = [value.lower() for value in _values(headers, b"host")]
    # Another name may have been made to lead here (DNS rebinding), so that a page may ask.
    if len(hosts) == 1 and hosts[0] in [f"{host}:{port}".encode() for host in HOSTS]:
        return None
    return 403, RequestError("the Host header must name this server on the loopback", "forbidden")


def refusal(headers: Headers, port: int, token: str, limit: int) -> Refusal | None:
    """The status and error that turn a request away, or None. Header names are in lower case.

    The headers alone decide, before a byte of the body is read; ``limit`` is bytes of the body.
    """
    values = partial(_values, headers)
    if (stranger := wrong_host(headers, port)) is not None:
        return stranger
    if any(not _ORIGIN.match(origin.lower()) for origin in values(b"origin")):
        return 403, RequestError("pages of other sites may not ask", "forbidden")
    given = values(b"authorization")
    # The time of a plain comparison would tell how much of a guessed token is right.
    if len(given) != 1 or not hmac.compare_digest(given[0], f"Bearer {token}".encode()):
        problem = "Authorization: Bearer TOKEN is missing or wrong"
        return 401, RequestError(problem, "unauthorized")
    types = [value.partition(b";")[0].strip().lower() for value in values(b"content-type")]
    # A page of another site can post forms and plain text without asking, but no JSON.
    if types != [b"application/json"]:
        return 415, RequestError("the Content-Type must be application/json")
    lengths = values(b"content-length")
    if not lengths or values(b"transfer-encoding"):
        return 411, RequestError("a Content-Length is needed, and no Transfer-Encoding")
    if len(lengths) > 1 or not _LENGTH.match(lengths[0]):
        return 400, RequestError("the Content-Length must be one whole number of bytes")
    if int(lengths[0]) > limit:
        return 413, RequestError(f"the request is larger than {limit} bytes", "too_large")
    return None


def _reply(body: bytes, status: int = 200, close: bool = False) -> Response:
    from starlette.responses import Response

    headers = {"cache-control": "no-store"} | ({"connection": "close"} if close else {})
    headers |= {"retry-after": "1"} if status == 503 else {}
    return Response(body, status, headers, "application/json")


def application(
    service: Service, token: str, port: int, pool: ThreadPoolExecutor, patience: Patience
) -> Starlette:
    """The ASGI application."""
    from starlette import applications, requests, routing

    state = service.state
    turns, places = asyncio.Semaphore(THREADS), asyncio.Semaphore(patience.clients)

    async def ask(request: Request) -> Response:
        refused = refusal(request.headers.raw, port, token, state.limits.request_bytes)
        if refused is not None:
            # The connection stays, so that a client still sending its body can read why;
            # ``Connection`` ends that.
            return _reply(failure(refused[1]), refused[0])
        if places.locked():
            return _reply(
                failure(RequestError("too many requests at once; ask again", "busy")), 503
            )
        async with places:
            return await served(request)

    async def served(request: Request) -> Response:
        try:
            async with asyncio.timeout(patience.body):
                body = await request.body()
        except TimeoutError:
            late = RequestError(f"no whole body within {patience.body:g} s", "too_late")
            return _reply(failure(late), 408, close=True)
        except requests.ClientDisconnect:
            return _reply(b"", 400, close=True)
        waited = turns.locked()
        async with turns:
            if waited and await request.is_disconnected():
                return _reply(b"", 400, close=True)  # nobody is there to read the answer
            return _reply(
                await asyncio.get_running_loop().run_in_executor(pool, service.answer, state, body)
            )

    answers = routing.Route("/", ask, methods=["POST"])
    pages = () if service.page is None else (_page_route(service, port),)
    return applications.Starlette(routes=[answers, *pages])


def _page_route(service: Service, port: int) -> Route:
    from starlette import responses, routing

    async def show(request: Request) -> Response:
        stranger = wrong_host(request.headers.raw, port)
        if stranger is not None:
            return _reply(failure(stranger[1]), stranger[0])
        headers = {"cache-control": "no-store", **service.headers}
        return responses.HTMLResponse(service.page, headers=headers)

    return routing.Route("/", show, methods=["GET"])


def _server(
    service: Service, token: str, port: int, pool: ThreadPoolExecutor, patience: Patience
) -> Server:
    from uvicorn import Config, Server

    class Stoppable(Server):
        """Goes down also when a client has asked for it."""

        async def on_tick(self, counter: int) -> bool:
            """Look whether to stop; ten times a second."""
            self.should_exit = self.should_exit or service.state.stopping
            return await super().on_tick(counter)

    config = Config(
        application(service, token, port, pool, patience),
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
