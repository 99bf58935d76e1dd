"""The processes that answer requests, and the ends of them that ``front`` holds.

A worker answers one request after another over a socket, or makes a copy of itself: a process with
all that it has loaded, which can be ended. The first worker (the root) has loaded no scenario; a
copy of it that answers ``load`` becomes the home of a scenario and its sessions, and copies of that
one take heavy work. Workers have a single thread, so that they may fork at any time between two
requests. They end with the socket, and amid work when the process that made them ends.
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
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple, NoReturn

from ...ground.ending import default_signals
from .errors import HeavyError, RequestError
from .protocol import Methods, Reply, respond
from .state import ServerState, unknown_scenario

AT_ONCE = 0.05  # seconds of a guess up to which a home answers by itself
SLACK = 3.0  # seconds behind the deadline after which a worker that does not keep it is killed
COPY, LIGHT, WHOLE = b"C", b"L", b"W"
"""Orders to a worker: make a copy; answer by yourself what is not heavy; answer whatever it is."""
ORDER, LENGTHS = struct.Struct(">cQ"), struct.Struct(">IQ")
HEAVY = "heavy"
BUFFER = 2**20


class Note(NamedTuple):
    """Facts that a worker sends beside its reply: the code of the error, its scenario as ``stats``
    has it (None: none is loaded) and its process.
    """

    code: str
    row: dict[str, Any] | None
    process: int


@dataclass(eq=False)
class Worker:
    """The front's end of a worker, whose requests wait for one another."""

    link: socket.socket
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    process: int
    lock: asyncio.Lock
    row: dict[str, Any] | None = None
    ended: bool = False

    @classmethod
    async def of(cls, link: socket.socket) -> Worker:
        """The worker at the other end of a socket, once it says that it is there."""
        reader, writer = await asyncio.open_connection(sock=link, limit=BUFFER)
        worker = cls(link, reader, writer, 0, asyncio.Lock())
        await worker._hear()
        return worker

    async def ask(self, body: bytes, order: bytes, seconds: float) -> Reply:
        """The reply to a request; the code HEAVY where the worker leaves it to a copy.

        Whatever cuts it short ends the worker, of which nobody would know what it says next. Raises
        RequestError where it died or did not answer within ``seconds`` and SLACK.
        """
        if self.ended:
            raise unknown_scenario((self.row or {}).get("scenario", ""))
        try:
            self.writer.writelines((ORDER.pack(order, len(body)), body))
            async with asyncio.timeout(None if seconds == inf else seconds + SLACK):
                return await self._hear()
        except TimeoutError:
            self.end()
            raise RequestError(f"not done within {seconds:g} s", "too_late") from None
        except (OSError, EOFError):
            self.end()
            problem = "the process that worked on it died, perhaps out of memory"
            raise RequestError(problem, "died") from None
        except BaseException:
            self.end()
            raise

    async def copy(self) -> Worker:
        """A worker that has loaded whatever this one has. Raises RequestError."""
        link, other = socket.socketpair()
        try:
            socket.send_fds(self.link, [ORDER.pack(COPY, 0)], [other.fileno()])
        except OSError:
            link.close()
            self.end()
            raise RequestError("the process to be copied died", "died") from None
        finally:
            other.close()
        link.setblocking(False)
        try:
            return await Worker.of(link)
        except (OSError, EOFError):
            raise RequestError("the process to be copied died", "died") from None

    async def _hear(self) -> Reply:
        note_bytes, body_bytes = LENGTHS.unpack(await self.reader.readexactly(LENGTHS.size))
        note = Note(*pickle.loads(await self.reader.readexactly(note_bytes)))
        self.process, self.row = note.process, note.row
        return Reply(await self.reader.readexactly(body_bytes), note.code)

    def end(self) -> None:
        """End the process, whatever it does."""
        if self.ended:
            return
        self.ended = True
        # Once its socket is at the end it is gone, and another may have its number.
        if self.process and not self.reader.at_eof():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process, signal.SIGKILL)
        self.writer.transport.abort()


def start_root(
    state: ServerState, methods: Methods, warm_up: Callable[[], object]
) -> socket.socket:
    """Start a worker from this process, which has a single thread; returns the socket to it.

    It calls ``warm_up`` first: its copies have whatever that loads.
    """
    link, other = socket.socketpair()
    child = _fork()
    if child == 0:
        link.close()
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
        # What was there before is no garbage of this process: looking through it takes long.
        gc.freeze()
    return child


def _work(link: socket.socket, state: ServerState, methods: Methods) -> NoReturn:
    """Answer until the other end is closed; never returns, so that nothing of the parent runs."""
    try:
        parent = os.getppid()
        _say(link, Reply(b""), state)
        while True:
            head, handles, *_ = socket.recv_fds(link, ORDER.size, 1)
            if len(head) < ORDER.size:
                break
            order, length = ORDER.unpack(head)
            if order != COPY:
                _say(link, _answer(state, _received(link, length), methods, order, parent), state)
                continue
            if _fork() == 0:
                link.close()
                link, parent = socket.socket(fileno=handles[0]), os.getppid()
                _say(link, Reply(b""), state)
            else:
                os.close(handles[0])
    except (OSError, EOFError):
        pass  # the front went away
    finally:
        os._exit(0)


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
