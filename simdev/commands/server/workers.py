"""The processes that answer requests, and the ends of them that ``front`` holds.

A worker answers one request after another over a socket, or makes a copy of itself: a process with
everything that it has loaded, which can be ended at any time. The first worker (the root) has
loaded no scenario; a copy of it that answers ``load`` becomes the home of a scenario and its
sessions, and copies of a home do heavy work. Workers have a single thread, so that they can fork
between any two requests. They end with the socket, and amid work when their parent ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import pickle
import signal
import socket
import struct
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple, NoReturn

from ...ground.ending import default_signals
from .errors import HeavyError, RequestError
from .protocol import Methods, Reply, respond
from .state import ServerState, unknown

AT_ONCE = 0.05  # seconds: a home itself answers requests that are estimated to take less
SLACK = 3.0  # seconds after the deadline at which a worker that missed it is killed
COPY, LIGHT, WHOLE = b"C", b"L", b"W"
"""Orders to a worker: make a copy; answer unless the request is heavy; answer in any case."""
ORDER, LENGTHS = struct.Struct(">cQ"), struct.Struct(">IQ")
HEAVY = "heavy"
BUFFER = 2**20


class Note(NamedTuple):
    """Facts that a worker sends with its reply: the code of the error, the row of its scenario in
    ``stats`` (None: none is loaded) and its process.
    """

    code: str
    row: dict[str, Any] | None
    process: int


@dataclass(eq=False)
class Worker:
    """The front's end of a worker, which answers one request at a time.

    ``users`` counts the requests that need the process, including waiting ones; ``by_copies`` has
    the counts that its copies add to the counts of its ``row``.
    """

    link: socket.socket
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    process: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    row: dict[str, Any] | None = None
    users: int = 0
    by_copies: Counter[str] = field(default_factory=Counter)
    _killed: bool = False

    @classmethod
    async def of(cls, link: socket.socket) -> Worker:
        """The worker at the other end of a socket, once it reports that it runs. Raises OSError or
        EOFError where it does not.
        """
        reader, writer = await asyncio.open_connection(sock=link, limit=BUFFER)
        worker = cls(link, reader, writer)
        try:
            await worker._hear()
        except BaseException:
            worker.end()
            raise
        return worker

    @property
    def ended(self) -> bool:
        """Whether the process is gone, ended by the front or by itself."""
        return self._killed or self.reader.at_eof()

    def _require(self) -> None:
        """Raises RequestError where the process ended while a request waited for it."""
        if self.ended:
            raise unknown("scenario", self.row["scenario"]) if self.row else _died()

    async def ask(self, body: bytes, order: bytes, seconds: float) -> Reply:
        """The reply to a request; the code HEAVY where the worker leaves it to a copy.

        Any interruption ends the worker, whose next message would belong to the interrupted
        request. Raises RequestError where it died or did not answer within ``seconds`` and SLACK.
        """
        self._require()
        try:
            self.writer.writelines((ORDER.pack(order, len(body)), body))
            async with asyncio.timeout(None if seconds == inf else seconds + SLACK):
                return await self._hear()
        except TimeoutError:
            self.end()
            raise RequestError(f"not done within {seconds:g} s", "too_late") from None
        except (OSError, EOFError):
            self.end()
            raise _died() from None
        except BaseException:
            self.end()
            raise

    async def copy(self) -> Worker:
        """A copy of the worker, with everything that it has loaded. Raises RequestError."""
        self._require()
        try:
            link, other = socket.socketpair()
            with other:
                link.setblocking(False)
                socket.send_fds(self.link, [ORDER.pack(COPY, 0)], [other.fileno()])
            return await Worker.of(link)
        except BrokenPipeError:
            self.end()
            raise _died() from None
        except (OSError, EOFError):
            problem = "no process could be made for it, perhaps for want of memory"
            raise RequestError(problem, "died") from None

    async def _hear(self) -> Reply:
        note_bytes, body_bytes = LENGTHS.unpack(await self.reader.readexactly(LENGTHS.size))
        note = Note(*pickle.loads(await self.reader.readexactly(note_bytes)))
        self.process, self.row = note.process, note.row
        return Reply(await self.reader.readexactly(body_bytes), note.code)

    def end(self) -> None:
        """Kill the process, whatever it is doing."""
        if self._killed:
            return
        self._killed = True
        # Once its socket is at the end the process is gone, and its number may be another's.
        if self.process and not self.reader.at_eof():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process, signal.SIGKILL)
        self.writer.transport.abort()


def _died() -> RequestError:
    return RequestError("the process that worked on it died, perhaps out of memory", "died")


def start_root(
    state: ServerState,
    methods: Methods,
    warm_up: Callable[[], object],
    listener: socket.socket,
) -> socket.socket:
    """Start a worker from this process, which has a single thread; returns the socket to it.

    It calls ``warm_up`` first, so that its copies have everything that this loads. It closes the
    ``listener``, so that the port is free as soon as this process has ended.
    """
    link, other = socket.socketpair()
    child = _fork()
    if child == 0:
        link.close()
        listener.close()
        with contextlib.suppress(Exception):
            warm_up()
        _work(other, state, methods)
    other.close()
    link.setblocking(False)
    return link


def _fork() -> int:
    """``os.fork``; a child ignores Ctrl-C and does not become a zombie's parent."""
    with warnings.catch_warnings():
        # Python warns of threads that the child does not have; none of them holds a lock of ours.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        default_signals()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the front ends this one
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        # Objects of the parent are never garbage here, and collecting among them takes long.
        gc.freeze()
    return child


def _work(link: socket.socket, state: ServerState, methods: Methods) -> NoReturn:
    """Answer until the other end is closed; never returns, so that nothing of the parent runs."""
    try:
        parent = _begun(link, state)
        while True:
            head, handles, *_ = socket.recv_fds(link, ORDER.size, 1)
            if len(head) < ORDER.size:
                break
            order, length = ORDER.unpack(head)
            if order != COPY:
                _say(link, _answer(state, _received(link, length), methods, order, parent), state)
            elif _is_copy():
                link.close()
                link = socket.socket(fileno=handles[0])
                parent = _begun(link, state)
            else:
                os.close(handles[0])
    except (OSError, EOFError):
        pass  # the front went away
    finally:
        os._exit(0)


def _begun(link: socket.socket, state: ServerState) -> int:
    """Report that this worker runs; returns the process that made it."""
    # Service managers send SIGTERM to all processes; the front ends workers once all is answered.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _say(link, Reply(b""), state)
    return os.getppid()


def _is_copy() -> bool:
    """Make a copy of this process; returns whether this is the copy."""
    try:
        return _fork() == 0
    except OSError:
        return False  # no more processes, or no memory: the front sees that there is no copy


def _answer(state: ServerState, body: bytes, methods: Methods, order: bytes, parent: int) -> Reply:
    state.at_once = inf if order == WHOLE else AT_ONCE
    try:
        return respond(state, body, methods, parent)
    except HeavyError:
        return Reply(b"", HEAVY)


def _received(link: socket.socket, length: int) -> bytes:
    body, place = bytearray(length), 0
    while place < length:
        count = link.recv_into(memoryview(body)[place:])
        if not count:
            raise EOFError
        place += count
    return bytes(body)


def _say(link: socket.socket, reply: Reply, state: ServerState) -> None:
    note = pickle.dumps(tuple(Note(reply.code, state.row(), os.getpid())))
    link.sendall(LENGTHS.pack(len(note), len(reply.body)) + note + reply.body)
