"""The protocol by HTTP on the loopback: ``POST /`` with one request as the body.

Needs starlette and uvicorn, and a system that forks processes, to which ``front`` passes requests.

A reply of the protocol has status 200 even with an error, except those of STATUSES; other statuses
mean that the request did not reach the protocol. ``serve`` and ``explorer/door.py`` start it; codes
of errors are in ``errors``.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import re
import secrets
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile, gettempdir
from typing import TYPE_CHECKING, TextIO

from ...ground.ending import default_signals
from ...ground.errors import InputError, SimdevError, install_line
from .errors import RequestError
from .front import Front, GoneError
from .protocol import METHODS, Methods, Reply, failure, warm_up
from .state import ServerState
from .workers import start_root

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route
    from uvicorn import Server

LOOPBACK = "127.0.0.1"
HOSTS = (LOOPBACK, "localhost", "[::1]")
_ORIGIN = re.compile(rb"https?://(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?\Z")
_LENGTH = re.compile(rb"[0-9]{1,15}\Z")
HEADER_BYTES = 16 * 2**10
STATUSES = {"too_late": 504, "busy": 503}  # the HTTP status by code of error, else 200
NEWCOMERS = 448  # further connections until room is made; all stay under 1,024 files a process
HELD = 32  # all bodies together may have this many times the bytes of one request

Headers = Sequence[tuple[bytes, bytes]]
Refusal = tuple[int, RequestError]


@dataclass(frozen=True, slots=True)
class Patience:
    """Limits: connections and requests at once, and the seconds for headers, for a body, for an
    idle connection, and for requests under way when the server ends.
    """

    connections: int = 512
    requests: int = 256
    head: float = 10.0
    body: float = 10.0
    idle: float = 60.0
    drain: float = 2.0


@dataclass(frozen=True, slots=True)
class Service:
    """The service behind the door: the ``methods``, which work on copies of the ``state``, and a
    ``warm_up`` that loads modules. ``page`` is sent to anybody, with its own ``headers``, and must
    hold nothing private.
    """

    state: ServerState
    methods: Methods = field(default_factory=lambda: METHODS)
    warm_up: Callable[[], object] = lambda: None
    page: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def serve(state: ServerState, port: int, out: TextIO, patience: Patience = Patience()) -> None:
    """Answer until SIGTERM, SIGINT or a client asks to stop; prints the address as a line of JSON.

    Raises InputError where the port is taken or the packages are not installed.
    """
    serve_with(Service(state, warm_up=warm_up), port, partial(_announced, out=out), patience)


@contextmanager
def private_file(text: str, prefix: str, suffix: str = "") -> Iterator[str]:
    """The path of a temporary file with this text that only its owner can read (mode 0600). It is
    locked while in use, so that files left by killed processes are recognised and removed.
    """
    from fcntl import LOCK_EX, flock  # not on Windows

    for stale in Path(gettempdir()).glob(f"{prefix}*"):
        _remove_stale(stale)
    with NamedTemporaryFile(
        "w", prefix=prefix, suffix=suffix, encoding="utf-8", delete=False
    ) as file:
        try:
            flock(file, LOCK_EX)
            file.write(text)
            file.flush()
            yield file.name
        finally:
            # A cleaner of temporary files may have removed it already.
            Path(file.name).unlink(missing_ok=True)


def _remove_stale(path: Path) -> None:
    """Remove a private file that nobody has locked, unless it is empty: it may be about to be
    locked.
    """
    from fcntl import LOCK_EX, LOCK_NB, flock

    def opened(name: str, flags: int) -> int:
        # Another user may have put a pipe or a link there.
        return os.open(name, flags | os.O_NONBLOCK | os.O_NOFOLLOW)

    with suppress(OSError), open(path, "rb", opener=opened) as file:
        if os.fstat(file.fileno()).st_size:
            flock(file, LOCK_EX | LOCK_NB)
            path.unlink()


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
    """Answer until SIGTERM, SIGINT or a client asks to stop; the context ``announce(url, token)``
    is entered when the server is ready, and left at the end.

    Raises InputError where the port is taken or the packages are not installed, SimdevError where
    the server had to end.
    """
    require_packages()
    token = secrets.token_hex(16)
    with _listening(port) as listener:
        port = listener.getsockname()[1]
        root = start_root(service.state, service.methods, service.warm_up, listener)
        front = Front(service.state, service.methods, root, patience.requests)
        server = _server(service, Door(front, token, port, patience), patience)
        _stop_on_sigterm(service.state)
        with announce(f"http://{LOOPBACK}:{port}/", token):
            server.run(sockets=[listener])
        if front.is_lost:
            raise SimdevError("the first process of the server died, perhaps out of memory")


def require_packages() -> None:
    """Raises InputError where the packages for serving are not installed."""
    if not hasattr(os, "fork"):
        raise InputError("a server by HTTP needs a system that forks processes (Linux, macOS)")
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        problem = f"a server needs uvicorn and starlette: {install_line('serve')}"
        raise InputError(problem) from None


@contextmanager
def _listening(port: int) -> Iterator[socket.socket]:
    # asyncio sends small writes at once (TCP_NODELAY) only if the socket names its protocol.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
        except OSError as error:
            raise InputError(f"--port {port}: {(error.strerror or str(error)).lower()}") from None
        listener.listen(256)
        yield listener


def _stop_on_sigterm(state: ServerState) -> None:
    """Let SIGTERM stop the server also before uvicorn handles it, and after: once drained, uvicorn
    raises it again, and the token's file must still be removed.
    """
    default_signals()  # requests under way get more time than ``ending`` would give

    def stop(number: int, frame: object) -> None:
        state.stopping = True

    signal.signal(signal.SIGTERM, stop)


def _values(headers: Headers, name: bytes) -> list[bytes]:
    return [value.strip() for key, value in headers if key == name]


def wrong_host(headers: Headers, port: int) -> Refusal | None:
    """The status and error where the Host header names another server, or None."""
    hosts = [value.lower() for value in _values(headers, b"host")]
    # Another name may be made to lead here (DNS rebinding), to let a foreign page send requests.
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
    # The time of a plain comparison would reveal how much of a guessed token is right.
    if len(given) != 1 or not hmac.compare_digest(given[0], f"Bearer {token}".encode()):
        problem = "Authorization: Bearer TOKEN is missing or wrong"
        return 401, RequestError(problem, "unauthorized")
    types = [value.partition(b";")[0].strip().lower() for value in values(b"content-type")]
    # A page of another site can post forms and plain text without permission, but no JSON.
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


def _reply(reply: Reply, status: int, close: bool = False) -> Response:
    from starlette.responses import Response

    headers = {"cache-control": "no-store"} | ({"connection": "close"} if close else {})
    headers |= {"retry-after": "1"} if status == 503 else {}
    return Response(reply.body, status, headers, "application/json")


class Door:
    """The way of a request by HTTP: its headers, its body within limits, the front."""

    def __init__(self, front: Front, token: str, port: int, patience: Patience) -> None:
        self.front, self.token, self.port, self.patience = front, token, port, patience
        self._limit, self._held = front.state.limits.request_bytes, 0

    async def ask(self, request: Request) -> Response:
        """The answer to a request."""
        from starlette.requests import ClientDisconnect

        refused = refusal(request.headers.raw, self.port, self.token, self._limit)
        if refused is not None:
            # The connection stays open, so that a client still sending its body can read the
            # reason; ``Connection`` ends it.
            return _reply(failure(refused[1]), refused[0])
        body = bytearray()
        try:
            async with asyncio.timeout(self.patience.body):
                await self._receive(request, body)
            reply = await self.front.answer(bytes(body), request.receive)
        except TimeoutError:
            problem = f"no whole body within {self.patience.body:g} s"
            return _reply(failure(RequestError(problem, "too_late")), 408, close=True)
        except RequestError as error:
            return _reply(failure(error), 503, close=True)
        except asyncio.CancelledError:
            problem = "the server ends, and this was not done in time"
            return _reply(failure(RequestError(problem, "busy")), 503, close=True)
        except (ClientDisconnect, GoneError):
            return _reply(Reply(b""), 400, close=True)
        finally:
            self._held -= len(body)
        return _reply(reply, STATUSES.get(reply.code, 200))

    async def _receive(self, request: Request, body: bytearray) -> None:
        """Add arriving bytes to the body. Raises RequestError where all bodies are too large."""
        async for part in request.stream():
            self._held += len(part)
            body += part
            if self._held > HELD * self._limit:
                raise RequestError("too many bytes of requests at once; ask again", "busy")


def _page_route(service: Service, port: int) -> Route:
    from starlette import responses, routing

    async def show(request: Request) -> Response:
        stranger = wrong_host(request.headers.raw, port)
        if stranger is not None:
            return _reply(failure(stranger[1]), stranger[0])
        headers = {"cache-control": "no-store", **service.headers}
        return responses.HTMLResponse(service.page, headers=headers)

    return routing.Route("/", show, methods=["GET"])


def _server(service: Service, door: Door, patience: Patience) -> Server:
    from starlette.applications import Starlette
    from starlette.routing import Route
    from uvicorn import Config, Server

    from .connections import Connection

    class Stoppable(Server):
        """A server that also stops when a client asks for it."""

        async def on_tick(self, counter: int) -> bool:
            """Look whether to stop; ten times a second."""
            self.should_exit |= service.state.stopping or door.front.is_lost
            return await super().on_tick(counter)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            """Let what is under way finish, then end the workers."""
            await super().shutdown(sockets)
            door.front.end()

    limits = {"most": patience.connections, "seconds": patience.head}
    pages = () if service.page is None else (_page_route(service, door.port),)
    config = Config(
        Starlette(routes=[Route("/", door.ask, methods=["POST"]), *pages]),
        http=type("Limited", (Connection,), limits),
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",  # a line for every odd request would let clients fill a disk
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=patience.connections + NEWCOMERS,
        timeout_keep_alive=int(patience.idle),
        timeout_graceful_shutdown=int(patience.drain),
        h11_max_incomplete_event_size=HEADER_BYTES,
    )
    return Stoppable(config)
