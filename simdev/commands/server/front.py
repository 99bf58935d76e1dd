"""The front of a server by HTTP: says which process answers a request, and works on none itself.

Every scenario has a process, its home, that answers what takes milliseconds, one request after
another. What by a guess takes longer is answered by a copy of the home, which is ended at the
deadline or when the client leaves; so is the process that loads a scenario. The front answers
``ping``, ``stats`` and ``shutdown`` itself, whatever is under way.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from math import inf
from typing import Any

from ...files.reading import shown
from .errors import RequestError
from .protocol import METHODS, Methods, Reply, Request, answered, failure, read_request
from .state import ServerState, unknown_scenario, unknown_session
from .workers import HEAVY, LIGHT, WHOLE, Worker

PARSED = 2**16  # bytes of a request up to which it is read here; a thread reads a longer one
TURNS = max(2, os.cpu_count() or 1)  # heavy requests at once
DIRECT = ("ping", "stats", "shutdown")
COUNTED = ("evaluations", "cpu_seconds")  # that copies of a home count by themselves
Leaving = Callable[[], Awaitable[object]]
"""Waits until the client has gone."""


class GoneError(Exception):
    """The client left, and nobody is there to read the answer."""


class Front:
    """Answers requests by workers, ``most`` at once; of one event loop. ``root`` leads to the first
    worker.
    """

    def __init__(
        self, state: ServerState, methods: Methods, root: socket.socket, most: int
    ) -> None:
        self.state, self.methods, self.most, self._link = state, methods, most, root
        self._under_way = 0
        self._homes = OrderedDict[str, Worker]()
        self._others = set[Worker]()
        self._retiring = set[asyncio.Task[None]]()
        self._turns, self._reading = asyncio.Semaphore(TURNS), asyncio.Semaphore(1)
        self._root: asyncio.Task[Worker] | None = None
        self._by_copies = Counter[tuple[str, str]]()
        self._is_of_scenarios = methods is METHODS
        seconds = state.limits.seconds
        self._patience = None if seconds == inf else seconds

    async def answer(self, body: bytes, leaving: Leaving) -> Reply:
        """The reply to the body of a request; ``leaving`` ends when its client leaves.

        Raises GoneError.
        """
        identity = None
        try:
            request = await self._read(body)
            identity = request.identity
            if self._is_of_scenarios and request.method in DIRECT:
                return self._direct(request)
            if self._under_way >= self.most:
                raise RequestError("too many requests at once; ask again", "busy")
            self._under_way += 1
            try:
                reply = await self._passed_on(request, body, leaving)
            finally:
                self._under_way -= 1
            self.state.count(failed=bool(reply.code))
            return reply
        except RequestError as error:
            known = error.identity if identity is None else identity
            return failure(error, known, self.state)

    def end(self) -> None:
        """End all workers."""
        self._link.close()
        for worker in (*self._homes.values(), *self._others):
            worker.end()

    async def _read(self, body: bytes) -> Request:
        if len(body) <= PARSED:
            return read_request(self.state, body, self.methods)
        # One after another: threads take the event loop's time.
        async with self._reading:
            return await asyncio.to_thread(read_request, self.state, body, self.methods)

    def _direct(self, request: Request) -> Reply:
        if request.method != "stats":
            return answered(self.state, request)
        rows = [self._row(handle) for handle in self._homes]
        here = {"scenarios": rows, "sessions": sum(row["sessions"] for row in rows)}
        stats = {"stats": lambda state: state.stats() | here}
        return answered(self.state, request, stats)

    def _row(self, handle: str) -> dict[str, Any]:
        row = dict(self._homes[handle].row or {})
        return row | {name: row[name] + self._by_copies[handle, name] for name in COUNTED}

    async def _passed_on(self, request: Request, body: bytes, leaving: Leaving) -> Reply:
        if self._is_of_scenarios and request.method == "load":
            return await self._load(body, leaving)
        home = await self._home(request)
        async with self._before(home.lock, leaving):
            reply = await home.ask(body, LIGHT, self.state.limits.seconds)
        return await self._by_copy(home, body, leaving) if reply.code == HEAVY else reply

    async def _by_copy(self, home: Worker, body: bytes, leaving: Leaving) -> Reply:
        async with self._before(self._turns, leaving):
            async with self._before(home.lock, leaving):
                copy = await home.copy()
            before = copy.row
            try:
                return await self._attended(copy, body, leaving)
            finally:
                if before is not None and copy.row is not None:
                    for name in COUNTED:
                        more = copy.row[name] - before[name]
                        self._by_copies[before["scenario"], name] += more
                self._dismiss(copy)

    async def _load(self, body: bytes, leaving: Leaving) -> Reply:
        async with self._before(self._turns, leaving):
            worker = await self._copy_of_root()
            try:
                reply = await self._attended(worker, body, leaving)
                if not reply.code:
                    self._settle(worker)
                return reply
            finally:
                if worker in self._others:
                    self._dismiss(worker)

    def _settle(self, worker: Worker) -> None:
        """Make a worker the home of the scenario that it has loaded, where there is none yet."""
        assert worker.row is not None
        handle = worker.row["scenario"]
        known = self._homes.get(handle)
        if known is None or known.ended:
            self._homes[handle] = worker
            self._others.discard(worker)
        self._homes.move_to_end(handle)
        while len(self._homes) > self.state.limits.scenarios:
            handle, home = self._homes.popitem(last=False)
            for name in COUNTED:
                del self._by_copies[handle, name]
            self._others.add(home)
            retiring = asyncio.ensure_future(self._retire(home))
            self._retiring.add(retiring)  # asyncio itself holds its tasks weakly
            retiring.add_done_callback(self._retiring.discard)

    async def _retire(self, home: Worker) -> None:
        async with home.lock:  # what is under way is answered
            self._dismiss(home)

    async def _home(self, request: Request) -> Worker:
        """The process that has loaded what a request is about. Raises RequestError."""
        if not self._is_of_scenarios:
            home = self._homes.get("")
            if home is None or home.ended:
                home = self._homes[""] = await self._copy_of_root()
                self._others.discard(home)
            return home
        noun = "session" if "session" in request.params else "scenario"
        name = request.params[noun]
        if type(name) is not str:
            raise RequestError(f"params.{noun}: must be text, got {shown(name)}")
        handle = name.rpartition("-")[2]
        home = self._homes.get(handle)
        if home is None or home.ended:
            raise unknown_session(name) if noun == "session" else unknown_scenario(name)
        self._homes.move_to_end(handle)
        return home

    async def _copy_of_root(self) -> Worker:
        if self._root is None:
            self._root = asyncio.ensure_future(Worker.of(self._link))
        root = await asyncio.shield(self._root)
        async with root.lock:
            worker = await root.copy()
        self._others.add(worker)
        return worker

    async def _attended(self, worker: Worker, body: bytes, leaving: Leaving) -> Reply:
        """The whole answer of a worker, which ends where the client leaves. Raises GoneError."""
        self._others.add(worker)
        asking = asyncio.ensure_future(worker.ask(body, WHOLE, self.state.limits.seconds))
        gone = asyncio.ensure_future(leaving())
        try:
            await asyncio.wait((asking, gone), return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
            raise GoneError
        finally:
            asking.cancel()
            gone.cancel()

    def _dismiss(self, worker: Worker) -> None:
        worker.end()
        self._others.discard(worker)

    @asynccontextmanager
    async def _before(
        self, turn: asyncio.Lock | asyncio.Semaphore, leaving: Leaving
    ) -> AsyncIterator[None]:
        """Holds a turn, which may be waited for as long as work may take. Raises GoneError, and
        RequestError where none came.
        """
        if turn.locked():
            await self._wait(turn, leaving)
        else:
            await turn.acquire()
        try:
            yield
        finally:
            turn.release()

    async def _wait(self, turn: asyncio.Lock | asyncio.Semaphore, leaving: Leaving) -> None:
        acquiring = asyncio.ensure_future(turn.acquire())
        gone = asyncio.ensure_future(leaving())
        tasks = acquiring, gone
        try:
            await asyncio.wait(tasks, timeout=self._patience, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                raise GoneError
            if not acquiring.done():
                raise RequestError("no turn was free in time; ask again", "busy")
        except BaseException:
            if not acquiring.cancel():  # too late
                turn.release()
            raise
        finally:
            gone.cancel()
