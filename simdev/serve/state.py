"""What a server remembers between requests: loaded scenarios, open sessions and counts; all of it
bounded.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import asdict, dataclass, field
from typing import Any

from ..oracle import Oracle, oracle_of
from ..oracle.session import Session
from ..scenario import Scenario, fingerprint, graph_of
from .errors import RequestError
from .loading import read_question

CACHE_ENTRIES, CACHE_BYTES, ANSWER_BYTES = 10_000, 16 * 2**20, 1000


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes of a request and a reply, strategies in a batch, things remembered, and seconds for a
    batch.
    """

    request_bytes: int = 8 * 2**20
    reply_bytes: int = 64 * 2**20
    batch: int = 10_000
    scenarios: int = 8
    sessions: int = 64
    seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class Loaded:
    """A scenario that clients ask about; ``handle`` is a hash of its content."""

    handle: str
    scenario: Scenario
    oracle: Oracle


@dataclass(frozen=True, slots=True)
class Opened:
    """A session and the lock under which it is used."""

    handle: str
    session: Session
    lock: threading.Lock = field(default_factory=threading.Lock)


class State:
    """Safe to use from several threads. Whatever was used longest ago makes room for the new.

    ``root`` is the folder that scenario files must lie in (None: anywhere). ``stopping``: a client
    has asked to stop; ``closed``: what is under way should end.
    """

    def __init__(self, limits: Limits = Limits(), root: str | None = None) -> None:
        self.limits, self.root = limits, root
        self.stopping = self.closed = False
        self._lock = threading.Lock()
        self._scenarios, self._sessions = OrderedDict[str, Loaded](), OrderedDict[str, Opened]()
        self._requests = self._errors = self._opened = 0
        self._started = time.monotonic()

    def count(self, failed: bool) -> None:
        """Note one more request."""
        with self._lock:
            self._requests += 1
            self._errors += failed

    def load(self, source: Any) -> Loaded:
        """The scenario of a path or an object; the same content is prepared once.

        Raises InputError.
        """
        scenario = read_question(source, self.root)
        handle = fingerprint(scenario)
        with self._lock:
            known = self._scenarios.get(handle)
            if known is None:
                # An answer is remembered under its placement, of 8 bytes an op.
                cache = min(
                    CACHE_ENTRIES, CACHE_BYTES // (8 * len(graph_of(scenario).ops) + ANSWER_BYTES)
                )
                known = self._scenarios[handle] = Loaded(
                    handle, scenario, oracle_of(scenario, cache)
                )
            self._scenarios.move_to_end(handle)
            while len(self._scenarios) > self.limits.scenarios:
                dropped, _ = self._scenarios.popitem(last=False)
                for name in [name for name, one in self._sessions.items() if one.handle == dropped]:
                    del self._sessions[name]
        return known

    def scenario(self, handle: str) -> Loaded:
        """A loaded scenario. Raises RequestError."""
        with self._lock:
            if handle not in self._scenarios:
                raise RequestError(
                    "unknown_scenario", f'scenario: "{handle}" is not loaded, or no longer'
                )
            self._scenarios.move_to_end(handle)
            return self._scenarios[handle]

    def open(self, loaded: Loaded, session: Session) -> str:
        """Remember a session; returns its name."""
        with self._lock:
            self._opened += 1
            name = f"s{self._opened}"
            # else another client's scenario took its place meanwhile
            if loaded.handle in self._scenarios:
                self._sessions[name] = Opened(loaded.handle, session)
            while len(self._sessions) > self.limits.sessions:
                self._sessions.popitem(last=False)
        return name

    def session(self, name: str) -> Opened:
        """An open session; its scenario counts as used. Raises RequestError."""
        with self._lock:
            if name not in self._sessions:
                raise RequestError(
                    "unknown_session", f'session: "{name}" is not open, or no longer'
                )
            self._sessions.move_to_end(name)
            found = self._sessions[name]
            self._scenarios.move_to_end(found.handle)
            return found

    def stats(self) -> dict[str, Any]:
        """Counts, what is loaded (used longest ago first) and the limits."""
        with self._lock:
            scenarios = [
                {
                    "scenario": loaded.handle,
                    "evaluations": loaded.oracle.evaluations,
                    "cpu_seconds": loaded.oracle.cpu_seconds,
                    "sessions": sum(one.handle == loaded.handle for one in self._sessions.values()),
                }
                for loaded in self._scenarios.values()
            ]
            return {
                "requests": self._requests,
                "errors": self._errors,
                "uptime_s": time.monotonic() - self._started,
                "scenarios": scenarios,
                "sessions": len(self._sessions),
                "limits": asdict(self.limits),
            }
