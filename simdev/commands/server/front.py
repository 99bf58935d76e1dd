"""The front of an HTTP server: it chooses the process that answers a request.

Every scenario has a process, its home, that answers requests of milliseconds, one after another. A
request that is estimated to take longer is answered by a copy of the home, which is ended at the
deadline or when the client leaves; so is the process that loads a scenario. The front itself
answers ``ping``, ``stats`` and ``shutdown``, whatever is under way.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from math import inf
from typing import Any

from ...files.reading import shown
from .errors import RequestError
from .protocol import METHODS, Methods, Reply, Request, answered, failure, read_request
from .state import ServerState, unknown
from .workers import HEAVY, LIGHT, WHOLE, Worker

PARSED = 2**16  # bytes: a thread parses longer requests
TURNS = max(2, os.cpu_count() or 1)  # heavy requests at once
DIRECT = ("ping", "stats", "shutdown")
COUNTED = ("evaluations", "cpu_seconds")  # counts that copies of a home keep by themselves
Leaving = Callable[[], Awaitable[object]]
"""Waits until the client has gone."""


class GoneError(Exception):
    """Raised where the client has left, so that nobody reads the answer."""


class Front:
    """The front, in one event loop; workers answer at most ``most`` requests at once.

    ``root`` is the socket of the first worker; ``is_lost`` says that this worker died, so that no
    more processes can be made.
    """

    def __init__(
        self, state: ServerState, methods: Methods, root: socket.socket, most: int
    ) -> None:
        self.state, self.methods, self.most, self._link = state, methods, most, root
        self.is_lost = False
        self._under_way = 0
        self._homes = OrderedDict[str, Worker]()
        self._others = set[Worker]()
        self._turns, self._reading = asyncio.Semaphore(TURNS), asyncio.Semaphore(1)
        self._root: Worker | None = None
        self._root_lock = asyncio.Lock()
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
        # One at a time, since threads take time from the event loop.
        async with self._reading:
            return await asyncio.to_thread(read_request, self.state, body, self.methods)

    def _direct(self, request: Request) -> Reply:
        rows = [self._row(home) for home in self._homes.values() if not home.ended]
        here = {"scenarios": rows, "sessions": sum(row["sessions"] for row in rows)}
        stats = {"stats": lambda state: state.stats() | here}
        return answered(self.state, request, {**self.methods, **stats})

    def _row(self, home: Worker) -> dict[str, Any]:
        row = dict(home.row or {})
        return row | {name: row[name] + home.by_copies[name] for name in COUNTED}

    async def _passed_on(self, request: Request, body: bytes, leaving: Leaving) -> Reply:
        if self._is_of_scenarios and request.method == "load":
            return await self._load(body, leaving)
        home = await self._home(request, leaving)
        home.users += 1
        try:
            async with self._before(home.lock, leaving):
                reply = await home.ask(body, LIGHT, self.state.limits.seconds)
            return await self._by_copy(home, body, leaving) if reply.code == HEAVY else reply
        finally:
            home.users -= 1
            self._retire(home)

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
                        home.by_copies[name] += copy.row[name] - before[name]
                self._dismiss(copy)

    async def _load(self, body: bytes, leaving: Leaving) -> Reply:
        async with self._before(self._turns, leaving):
            async with self._before(self._root_lock, leaving):
                worker = await self._copy_of_root()
            try:
                reply = await self._attended(worker, body, leaving)
                if not reply.code:
                    self._make_home(worker)
                return reply
            finally:
                if worker in self._others:
                    self._dismiss(worker)

    def _make_home(self, worker: Worker) -> None:
        """Make a worker the home of the scenario that it has loaded, unless there is a home; the
        least recently used homes make room.
        """
        assert worker.row is not None
        handle = worker.row["scenario"]
        self._drop_dead()
        if handle not in self._homes:
            self._homes[handle] = worker
            self._others.discard(worker)
        self._homes.move_to_end(handle)
        while len(self._homes) > self.state.limits.scenarios:
            _, home = self._homes.popitem(last=False)
            self._others.add(home)
            self._retire(home)

    def _drop_dead(self) -> None:
        for name in [name for name, home in self._homes.items() if home.ended]:
            self._homes.pop(name).end()

    def _retire(self, home: Worker) -> None:
        """End a process that is no longer a home, once its requests are answered, because working
        copies would end with it.
        """
        if home in self._others and not home.users:
            self._dismiss(home)

    async def _home(self, request: Request, leaving: Leaving) -> Worker:
        """The process that has loaded the scenario of a request. Raises RequestError."""
        if not self._is_of_scenarios:
            return await self._only_home(leaving)
        noun = "session" if "session" in request.params else "scenario"
        name = request.params[noun]
        if type(name) is not str:
            raise RequestError(f"params.{noun}: must be text, got {shown(name)}")
        handle = name.rpartition("-")[2]
        home = self._homes.get(handle)
        if home is None or home.ended:
            raise unknown(noun, name)
        self._homes.move_to_end(handle)
        return home

    async def _only_home(self, leaving: Leaving) -> Worker:
        """The home of a server with a single scenario, which the root has already loaded."""
        async with self._before(self._root_lock, leaving):
            self._drop_dead()
            if "" not in self._homes:
                self._homes[""] = await self._copy_of_root()
            return self._homes[""]

    async def _copy_of_root(self) -> Worker:
        """A copy of the first worker, whose lock is held. Raises RequestError. Without that worker
        the server has to end, for no other process can make homes of scenarios.
        """
        try:
            if self._root is None:
                self._root = await Worker.of(self._link)
            return await self._root.copy()
        except (OSError, EOFError, RequestError):
            if self._root is not None and not self._root.ended:
                raise
            self.is_lost = True
            raise RequestError("the server ends: its first process died", "died") from None

    async def _attended(self, worker: Worker, body: bytes, leaving: Leaving) -> Reply:
        """The complete answer of a worker, which ends if the client leaves. Raises GoneError."""
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
        """Holds a turn for heavy work in the block, after waiting for it at most as long as work
        may take. Raises GoneError, and RequestError where no turn came.
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
