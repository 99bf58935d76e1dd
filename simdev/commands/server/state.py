"""The memory of a server between requests: loaded scenarios, open sessions and counts, all of them
bounded. Files of a client's scenario that would block or lead elsewhere are refused. ``protocol``
asks it for scenarios and sessions.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...execution.scenario import Scenario, fingerprint, graph_of, load_scenario
from ...files import preset_names
from ...files.reading import located, read_json
from ...files.scenario import named_files
from ...ground.errors import InputError
from ...nouns.strategy import SHORT_FORMS
from ...oracle import Oracle, oracle_of
from ...oracle.session import PlacementSession
from .errors import RequestError

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
class OpenSession:
    """A session of a scenario, and the lock under which it is used."""

    handle: str
    session: PlacementSession
    lock: threading.Lock = field(default_factory=threading.Lock)


class ServerState:
    """Safe to use from several threads. Whatever was used longest ago makes room for the new.

    ``root`` is the folder that scenario files must lie in (None: anywhere). ``stopping``: a client
    has asked to stop; ``closed``: what is under way should end.
    """

    def __init__(self, limits: Limits = Limits(), root: str | None = None) -> None:
        self.limits, self.root = limits, root
        self.stopping = self.closed = False
        self._lock = threading.Lock()
        self._scenarios = OrderedDict[str, Loaded]()
        self._sessions = OrderedDict[str, OpenSession]()
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
        scenario = _read(source, self.root)
        handle = fingerprint(scenario)
        with self._lock:
            if handle not in self._scenarios:
                # An answer is remembered under its placement, of 8 bytes an op.
                answer = 8 * len(graph_of(scenario).ops) + ANSWER_BYTES
                oracle = oracle_of(scenario, min(CACHE_ENTRIES, CACHE_BYTES // answer))
                self._scenarios[handle] = Loaded(handle, scenario, oracle)
            self._scenarios.move_to_end(handle)
            while len(self._scenarios) > self.limits.scenarios:
                dropped, _ = self._scenarios.popitem(last=False)
                for name in list(self._sessions):
                    if self._sessions[name].handle == dropped:
                        del self._sessions[name]
            return self._scenarios[handle]

    def scenario(self, handle: str) -> Loaded:
        """A loaded scenario. Raises RequestError."""
        with self._lock:
            if handle not in self._scenarios:
                problem = f'scenario: "{handle}" is not loaded, or no longer'
                raise RequestError(problem, "unknown_scenario")
            self._scenarios.move_to_end(handle)
            return self._scenarios[handle]

    def open(self, loaded: Loaded, session: PlacementSession) -> str:
        """Remember a session; returns its name."""
        with self._lock:
            self._opened += 1
            name = f"s{self._opened}"
            # Another client's scenario may have taken the place of this one meanwhile.
            if loaded.handle in self._scenarios:
                self._sessions[name] = OpenSession(loaded.handle, session)
            while len(self._sessions) > self.limits.sessions:
                self._sessions.popitem(last=False)
        return name

    def session(self, name: str) -> OpenSession:
        """An open session; its scenario counts as used. Raises RequestError."""
        with self._lock:
            if name not in self._sessions:
                problem = f'session: "{name}" is not open, or no longer'
                raise RequestError(problem, "unknown_session")
            self._sessions.move_to_end(name)
            self._scenarios.move_to_end(self._sessions[name].handle)
            return self._sessions[name]

    def stats(self) -> dict[str, Any]:
        """Counts, what is loaded (used longest ago first) and the limits."""
        with self._lock:
            handles = [session.handle for session in self._sessions.values()]
            scenarios = [
                {
                    "scenario": loaded.handle,
                    "evaluations": loaded.oracle.evaluations,
                    "cpu_seconds": loaded.oracle.cpu_seconds,
                    "sessions": handles.count(loaded.handle),
                }
                for loaded in self._scenarios.values()
            ]
            return {
                "requests": self._requests,
                "errors": self._errors,
                "uptime_s": time.monotonic() - self._started,
                "scenarios": scenarios,
                "sessions": len(handles),
                "limits": asdict(self.limits),
            }


def _read(source: Any, root: str | None) -> Scenario:
    """The scenario of a path, or of an object whose paths are relative to the working directory.

    Raises InputError; a file must be a regular one (nothing that blocks, nor stdin), under ``root``
    where that is given.
    """
    document, folder = source, ""
    if not isinstance(source, dict):
        if not isinstance(source, str) or not source or "\0" in source:
            raise RequestError("params.scenario: must be a path or an object")
        _require_plain([source], root)
        document, folder = read_json(source), os.path.dirname(source)
    if isinstance(document, dict):
        _require_plain(_files(document, folder), root)
    return load_scenario(source)


def _files(document: Mapping[str, Any], folder: str) -> Iterator[str]:
    """The files that a scenario names, without names of presets and short forms."""
    names = {located(name, folder) for name in (*preset_names(), *SHORT_FORMS)}
    for path in named_files(document, folder):
        if path not in names or os.path.lexists(path):  # a file goes before a preset
            yield path


def _require_plain(paths: Iterable[str], root: str | None) -> None:
    """Raises InputError at the first path that may not be read."""
    # Not all problems at once: later paths may be named by a file that is not to be opened.
    for path in paths:
        reason = _fault(path, root)
        if reason:
            raise InputError(f"{path}: {reason}")


def _fault(path: str, root: str | None) -> str | None:
    """Why a file may not be read; None also where it is missing, which its reader tells better."""
    if path == "-":
        return "stdin is not a file"
    try:
        # Outside of the root nothing is looked at, so that no answer tells whether it is there.
        if root is not None and not Path(os.path.realpath(path)).is_relative_to(
            os.path.realpath(root)
        ):
            return "lies outside the folder that this server reads"
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return None
    return None if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else "is not a regular file"
