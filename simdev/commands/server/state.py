"""The memory of a server between requests: loaded scenarios, open sessions and counts, all bounded.
Files of a client's scenario that would block, or lie outside the root, are refused. ``protocol``
takes scenarios and sessions from here.
"""

from __future__ import annotations

import os
import stat
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from math import inf
from pathlib import Path
from secrets import token_hex
from typing import Any

from ...execution.scenario import Scenario, fingerprint, graph_of, load_scenario
from ...files import preset_names
from ...files.reading import located, read_json
from ...files.scenario import named_files
from ...ground.errors import InputError
from ...ground.units import format_seconds
from ...nouns.strategy import SHORT_FORMS
from ...oracle import Oracle, oracle_of
from ...oracle.session import PlacementSession
from .errors import HeavyError, RequestError

CACHE_ENTRIES, CACHE_BYTES, ANSWER_BYTES = 10_000, 16 * 2**20, 1000
# About 90 us an op (``nouns.scale.READ``) of a hundred bytes; what is gzipped is a tenth as long.
READ_SECONDS, GZIPPED = 1e-6, 10


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits: bytes of a request and a reply, strategies in a batch, remembered scenarios and
    sessions, and seconds of work for a request.
    """

    request_bytes: int = 8 * 2**20
    reply_bytes: int = 64 * 2**20
    batch: int = 10_000
    scenarios: int = 8
    sessions: int = 64
    seconds: float = 30.0

    @property
    def guess(self) -> float:
        """Seconds: a request that is estimated to take longer is refused. Estimates may be off."""
        return 2 * self.seconds


@dataclass(frozen=True, slots=True)
class Loaded:
    """A scenario that clients ask about; ``handle`` is a hash of its content."""

    handle: str
    scenario: Scenario
    oracle: Oracle


def unknown(noun: str, name: str) -> RequestError:
    """The error for a "scenario" or "session" (``noun``) with a name that is not known."""
    if noun == "session":
        return RequestError(f'session: "{name}" is not open, or no longer', "unknown_session")
    return RequestError(f'scenario: "{name}" is not loaded, or no longer', "unknown_scenario")


class ServerState:
    """The memory of a process with a single thread; the least recently used entries make room for
    new ones.

    ``root`` is the folder that scenario files must lie in (None: anywhere). ``stopping``: a client
    has asked to stop. ``at_once`` in seconds: longer work, by estimate, is left to another process.
    """

    def __init__(self, limits: Limits = Limits(), root: str | None = None) -> None:
        self.limits, self.root = limits, root
        self.stopping, self.at_once = False, inf
        self._scenarios = OrderedDict[str, Loaded]()
        self._sessions = OrderedDict[str, PlacementSession]()
        self._requests = self._errors = 0
        self._started = time.monotonic()

    def count(self, failed: bool) -> None:
        """Note one more request."""
        self._requests += 1
        self._errors += failed

    def admit(self, seconds: float) -> None:
        """Raises RequestError for work that is estimated to take too long, and HeavyError for work
        that this process leaves to a copy.
        """
        if seconds > self.limits.guess:
            took, most = format_seconds(seconds, 3), format_seconds(self.limits.guess, 3)
            raise RequestError(f"by a guess it takes {took}; the limit is {most}", "too_large")
        if seconds > self.at_once:
            raise HeavyError

    def load(self, source: Any) -> Loaded:
        """The scenario of a path or an object; the same content is prepared once.

        Raises InputError.
        """
        scenario = self._read(source)
        handle = fingerprint(scenario)
        if handle not in self._scenarios:
            # An answer is remembered under its placement, of 8 bytes an op.
            answer = 8 * len(graph_of(scenario).ops) + ANSWER_BYTES
            oracle = oracle_of(scenario, min(CACHE_ENTRIES, CACHE_BYTES // answer))
            self._scenarios[handle] = Loaded(handle, scenario, oracle)
        self._scenarios.move_to_end(handle)
        while len(self._scenarios) > self.limits.scenarios:
            dropped, _ = self._scenarios.popitem(last=False)
            for name in self._sessions_of(dropped):
                self.close(name)
        return self._scenarios[handle]

    def scenario(self, handle: str) -> Loaded:
        """A loaded scenario. Raises RequestError."""
        if handle not in self._scenarios:
            raise unknown("scenario", handle)
        self._scenarios.move_to_end(handle)
        return self._scenarios[handle]

    def open(self, loaded: Loaded, session: PlacementSession) -> str:
        """Remember a session; returns its name."""
        # The name contains the scenario's handle, by which the front finds its process.
        name = f"{token_hex(4)}-{loaded.handle}"
        self._sessions[name] = session
        while len(self._sessions) > self.limits.sessions:
            self._sessions.popitem(last=False)
        return name

    def session(self, name: str) -> PlacementSession:
        """An open session; its scenario counts as used. Raises RequestError."""
        if name not in self._sessions:
            raise unknown("session", name)
        self._sessions.move_to_end(name)
        self._scenarios.move_to_end(name.rpartition("-")[2])
        return self._sessions[name]

    def _sessions_of(self, handle: str) -> list[str]:
        return [name for name in self._sessions if name.endswith(handle)]

    def _read(self, source: Any) -> Scenario:
        """The scenario of a path, or of an object whose paths are relative to the working
        directory.

        Raises InputError; a file must be a regular one (nothing that blocks, nor stdin), under
        ``root`` where that is given, and not so large that reading takes too long.
        """
        document, folder, paths = source, "", list[str]()
        if not isinstance(source, dict):
            if not isinstance(source, str) or not source or "\0" in source:
                raise RequestError("params.scenario: must be a path or an object")
            paths.append(source)
            self._admit_files(paths)
            document, folder = read_json(source), os.path.dirname(source)
        if isinstance(document, dict):
            # One by one: the last paths are in files that may be opened only once they are
            # admitted.
            self._admit_files(chain(paths, _files(document, folder)))
        return load_scenario(source)

    def _admit_files(self, paths: Iterable[str]) -> None:
        """Raises InputError at the first path that may not be read, and RequestError."""
        length = 0
        for path in paths:
            reason = _fault(path, self.root)
            if reason:
                raise InputError(f"{path}: {reason}")
            length += _length(path)
            self.admit(READ_SECONDS * length)

    def close(self, name: str) -> None:
        """Forget a session."""
        self._sessions.pop(name, None)

    def stats(self) -> dict[str, Any]:
        """Counts, loaded scenarios (least recently used first) and the limits."""
        return {
            "requests": self._requests,
            "errors": self._errors,
            "uptime_s": time.monotonic() - self._started,
            "scenarios": [self._row(loaded) for loaded in self._scenarios.values()],
            "sessions": len(self._sessions),
            "limits": asdict(self.limits),
        }

    def row(self) -> dict[str, Any] | None:
        """The row of the scenario that was used last, as ``stats`` has it; None without one."""
        loaded = next(reversed(self._scenarios.values()), None)
        return None if loaded is None else self._row(loaded)

    def _row(self, loaded: Loaded) -> dict[str, Any]:
        return {
            "scenario": loaded.handle,
            "evaluations": loaded.oracle.evaluations,
            "cpu_seconds": loaded.oracle.cpu_seconds,
            "sessions": len(self._sessions_of(loaded.handle)),
        }


def _files(document: Mapping[str, Any], folder: str) -> Iterator[str]:
    """The files that a scenario names, without names of presets and short forms."""
    names = {located(name, folder) for name in (*preset_names(), *SHORT_FORMS)}
    for path in named_files(document, folder):
        if path not in names or os.path.lexists(path):  # a file goes before a preset
            yield path


def _length(path: str) -> int:
    """Bytes of the text of a file; 0 where it is missing, which its reader reports."""
    try:
        return os.path.getsize(path) * (GZIPPED if path.endswith(".gz") else 1)
    except OSError:
        return 0


def _fault(path: str, root: str | None) -> str | None:
    """The reason why a file may not be read; None also where it is missing, which its reader
    reports better.
    """
    if path == "-":
        return "stdin is not a file"
    try:
        # Nothing outside of the root is looked at, so that no answer reveals what exists there.
        if root is not None and not Path(os.path.realpath(path)).is_relative_to(
            os.path.realpath(root)
        ):
            return "lies outside the folder that this server reads"
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return None
    return None if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else "is not a regular file"
