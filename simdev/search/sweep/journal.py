"""Journaled work: the loop of sweeps, comparisons and searches of plans, and the file of its rows.

    jobs by key -> rows of the journal -> other jobs answered, here or by workers -> rows

A journal has one finished row a line, appended and never rewritten. A line is a JSON object, a tab
and the CRC-32 of the object's bytes. A process that opens a journal holds a lock on it, which the
system releases when the process ends, however it ends. A last line that a crash cut short is
removed; a damaged line elsewhere is passed over, and its result made again.

Three verbs run their jobs by ``journaled``, and their modules build the keys of their rows:
``simdev sweep`` (``search/sweep/sweeping.py``, its keys in ``point.py``), ``simdev search`` with
several methods (``search/comparison/__init__.py``) and ``simdev plan``
(``search/plan/searching.py``). ``search/workers.py`` takes ``Memo`` alone.

A row is reused where its key is wanted again. A key contains the version of simdev's sources
(``sources_version``), so after an edit the old rows are no longer used. Sources that cannot change
an answer are left out of that version: READERS here, and further ones that a caller names in its
APART.

A failed job is tried again in two cases. Where a worker process dies, ``finished`` of
``ground/jobs.py`` tries the jobs under way once more. Where a caller's ``answer`` gives an
``Answer`` that is not ``lasting``, the row is not kept, so every later run tries the job again.

Guarded by ``tests/sweep/test_sweep_journal.py``, ``test_sweep_ends.py`` and
``test_sweep_parallel.py`` there; of comparisons by ``tests/search/test_comparison_runs.py``, of
plans by ``tests/search/test_plan_bounds.py``. ``docs/decisions/070-sweeps.md`` has the reasons.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import stat
import sys
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, cached_property, partial
from hashlib import blake2b, sha256
from types import TracebackType
from typing import Any, Generic, NamedTuple, TypeVar

from ...files.reading import PathLike
from ...ground import PACKAGE
from ...ground.errors import InputError, SimdevError, reason_of, steered
from ...ground.jobs import Died, finished, is_serial
from ...ground.version import __version__

J = TypeVar("J")
T = TypeVar("T")
Row = Mapping[str, Any]
"""The answer to a job, ready for JSON."""

SYNC_S = 0.25  # a sync takes milliseconds: after each tiny scenario it would double the time


def _line(value: Mapping[str, Any]) -> bytes:
    data = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()
    return b"%s\t%08x\n" % (data, zlib.crc32(data))


_held: set[int] = set()


def _forget() -> None:
    """Close all journals in a process that was just forked: a lock lasts while any process has the
    file open, and a worker may live longer than the run that was killed.
    """
    while _held:
        os.close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _header(kind: str) -> bytes:
    return _line({"simdev": f"{kind} journal", "version": 1})


HEADER = _header("sweep")  # tests write wrong headers from it


class Journal:
    """An open journal: ``rows`` holds the finished rows of the keys that are ``wanted`` (None: of
    all). ``kind`` is the verb whose results it keeps; a comparison is kept as "search".

    Raises InputError where the file cannot be opened or written, is no journal of this kind, or
    another process holds it.
    """

    def __init__(
        self,
        path: PathLike,
        wanted: Collection[str] | None = None,
        kind: str = "sweep",
    ) -> None:
        self.path, self.kind, self._header = os.fspath(path), kind, _header(kind)
        self.rows: dict[str, Row] = {}
        self._synced = 0.0
        try:
            is_new = not os.path.lexists(self.path)
            # O_NONBLOCK: where the path is a pipe, opening it might wait for another process.
            # O_BINARY: Windows would change the ends of lines.
            extra = getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | extra, 0o666)
        except (OSError, ValueError) as error:
            raise self._error(error) from None
        _held.add(self._file)
        try:
            self._open(wanted)
            if is_new:
                _sync_folder(self.path)
        except OSError as error:
            self._release()
            raise self._error(error) from None
        except BaseException:
            self._release()
            raise

    def _open(self, wanted: Collection[str] | None) -> None:
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            raise InputError("is not a regular file", self.path)
        if not _locked(self._file):
            raise InputError(f"another {self.kind} is writing to this journal", self.path)
        end = self._read(wanted)
        if end != os.fstat(self._file).st_size:
            os.ftruncate(self._file, end)
        if end == 0:
            self._write(self._header)

    def _read(self, wanted: Collection[str] | None) -> int:
        """Take over the whole lines; returns the number of bytes up to the end of the last whole
        line.
        """
        with open(self._file, "rb", closefd=False) as file:
            head = file.readline()
            if head != self._header:
                if not self._header.startswith(head):
                    raise InputError(
                        f"is not a journal of simdev {self.kind}; name another file", self.path
                    )
                return 0
            end = len(head)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # a crash cut it short
                end += len(line)
                record = _record(line)
                if record is not None and (wanted is None or record["key"] in wanted):
                    self.rows.setdefault(record["key"], record["row"])
        return end

    def add(self, key: str, version: str, row: Row) -> None:
        """Keep a finished row.

        ``version`` (of simdev and its sources) is written for people; the key contains it already.
        A written row survives a kill of the process. It survives a loss of power once it is synced:
        now where the last sync is longer ago than SYNC_S, else with a later row or by ``close``.
        Raises InputError where it cannot be written, say on a full disk; earlier rows stay.
        """
        self.rows[key] = row
        try:
            self._write(_line({"key": key, "simdev": version, "row": row}))
            if time.monotonic() - self._synced > SYNC_S:
                self._sync()
        except OSError as error:
            raise self._error(error, "; the results so far are kept") from None

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._file, data) :]

    def _sync(self) -> None:
        os.fsync(self._file)
        self._synced = time.monotonic()

    def close(self) -> None:
        """Sync the file to the disk and release the lock. Raises InputError."""
        try:
            self._sync()
        except OSError as error:
            raise self._error(error) from None
        finally:
            self._release()

    def _release(self) -> None:
        _held.discard(self._file)
        os.close(self._file)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._release()

    def _error(self, error: Exception, more: str = "") -> InputError:
        return InputError(f"cannot write: {reason_of(error)}{more}", self.path)


def _record(line: bytes) -> Mapping[str, Any] | None:
    """The record of a line (its key, the version and the row), None where the line is damaged."""
    data, _, check = line[:-1].rpartition(b"\t")
    if check != b"%08x" % zlib.crc32(data):
        return None
    try:
        record = json.loads(data)
    except ValueError:
        return None
    match record:
        case {"key": str(), "row": dict()}:
            return dict(record)
    return None


def _locked(file: int) -> bool:
    """Whether this process now holds the only lock on the file.

    Raises OSError where files cannot be locked.
    """
    try:
        if sys.platform == "win32":
            import msvcrt

            # a byte that nobody reads: Windows locks keep readers out too
            os.lseek(file, 2**40, os.SEEK_SET)
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
            os.lseek(file, 0, os.SEEK_SET)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _sync_folder(path: str) -> None:
    """Sync the folder of a new file: the file survives a loss of power only then."""
    if sys.platform == "win32":
        return
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


# The version of the sources that make an answer, a part of the keys of a journal. All sources count
# except those that only call for answers, read or draw them. A doubtful source counts: to answer
# again costs only time, but an old answer would be wrong.

# The pattern of sources that do not count for sweeps and plans. Both add to it, in their APART, the
# packages of search that do not make their answers. The oracle is in it because they call engines
# directly. Comparisons have a pattern of their own, since learners make their answers, too.
READERS = r"commands|formats|learn|measure|oracle|execution/check|report/(export|figures|page)"


@cache
def sources_version(apart: str) -> str:
    """The version of simdev and a hash of the sources and tables that make an answer:
    ``0.1.0+1f0a9c3e``. Sources whose paths match the pattern ``apart`` are left out.

    An edit to a source changes it, so that no result of the old code is taken for a result of the
    new code.
    """
    digest = sha256()
    for source in sorted(
        [*PACKAGE.rglob("*.py"), *(PACKAGE / "files" / "presets").rglob("*.json")]
    ):
        place = source.relative_to(PACKAGE)
        if not re.match(apart, f"{place.with_suffix('').as_posix()}/"):
            digest.update(f"{place.as_posix()}\0".encode() + source.read_bytes() + b"\0")
    return f"{__version__}+{digest.hexdigest()[:8]}"


# Values that jobs share, here and in workers.


class Memo:
    """Values that a process has read or prepared for earlier jobs, by name; the least recently used
    value makes room. A worker gets an empty one.
    """

    def __init__(self, most: int = 16) -> None:
        self._most, self._lock = most, threading.Lock()
        self._values: OrderedDict[Hashable, Any] = OrderedDict()

    def once(self, name: Hashable, make: Callable[[], T]) -> T:
        """The value of a name; ``make`` gives it where the memo has none."""
        with self._lock:
            if name in self._values:
                self._values.move_to_end(name)
                value: T = self._values[name]
                return value
        # Outside the lock: threads of one process may read different files at once.
        made = make()
        with self._lock:
            self._values[name] = made
            while len(self._values) > self._most:
                self._values.popitem(last=False)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return Memo, (self._most,)


_opened = Memo(4)


class Shared(Generic[T]):
    """A value that many jobs share. It is pickled once, its bytes go with every job, and a worker
    unpickles them only for its first job.
    """

    def __init__(self, value: T) -> None:
        self.value = value

    @cached_property
    def _packed(self) -> tuple[str, bytes]:
        data = pickle.dumps(self.value)
        return blake2b(data, digest_size=16).hexdigest(), data

    def __reduce__(self) -> tuple[Any, ...]:
        return _open, self._packed


def _open(name: str, data: bytes) -> Shared[Any]:
    return _opened.once(name, lambda: Shared(pickle.loads(data)))


# The loop.

FAILED = "failed"


class Answer(NamedTuple):
    """The row of a job. Only a ``lasting`` row is kept in the journal.

    A failure lasts where the question itself is at fault. It does not last where the machine, a
    file that has changed or simdev (a bug) is, so the next run tries the job again.
    """

    row: Row
    lasting: bool = True


def failed(reason: str) -> dict[str, Any]:
    """The row of a job without figures."""
    return {"status": FAILED, "reason": reason}


def bug(error: Exception) -> str:
    """The reason of an error that simdev did not raise on purpose."""
    return f"a bug in simdev, not in your files: {type(error).__name__}: {error}"


@dataclass(frozen=True, slots=True)
class Loop(Generic[J]):
    """A loop under way: ``answer`` is called with every job that has no row in the journal, here or
    in workers; up to ``few`` jobs are answered here in any case.
    """

    answer: Callable[[J], Answer]
    n_jobs: int | None
    version: str
    journal: Journal | None
    bar: Any
    few: int

    def rows(self, jobs: Mapping[str, J]) -> Iterator[tuple[str, Row]]:
        """The rows of jobs by their keys: first those of the journal, then each other row when it
        is finished and kept in the journal. Raises InputError.
        """
        kept = {} if self.journal is None else self.journal.rows
        missing = {key: job for key, job in jobs.items() if key not in kept}
        yield from [(key, kept[key]) for key in jobs if key in kept]
        for key, answer in self._answers(missing):
            if self.journal is not None and answer.lasting:
                self.journal.add(key, self.version, answer.row)
            yield key, answer.row

    def done(self, count: float) -> None:
        """Move the bar to ``count`` jobs; rows of the journal count from the beginning."""
        self.bar.update(max(count - self.bar.n, 0))

    def _answers(self, jobs: Mapping[str, J]) -> Iterator[tuple[str, Answer]]:
        if len(jobs) <= self.few or is_serial(self.n_jobs):
            yield from ((key, self.answer(job)) for key, job in jobs.items())
            return
        for key, answer in finished(partial(_guarded, self.answer), jobs, self.n_jobs):
            yield key, Answer(failed(answer.reason), False) if isinstance(answer, Died) else answer


def _guarded(answer: Callable[[J], Answer], job: J) -> Answer:
    """An answer in a worker. Any error becomes a SimdevError, since ``finished`` takes other errors
    for the death of the worker. So a bug that ``answer`` does not turn into a row itself ends the
    loop, and no row is kept for it.
    """
    try:
        return answer(job)
    except SimdevError:
        raise
    except Exception as error:
        raise SimdevError(bug(error)) from None


@contextmanager
def journaled(
    kind: str,
    answer: Callable[[J], Answer],
    n_jobs: int | None,
    version: str,
    journal: PathLike | None,
    progress: bool | None,
    wanted: Collection[str] | None = None,
    few: int = 0,
    **bar: Any,
) -> Iterator[Loop[J]]:
    """A loop with its journal (rows of the keys ``wanted``) and its bar on stderr, shown from two
    seconds on (``progress`` None: where stderr is a terminal); ``bar`` has further settings of
    tqdm.

    ``n_jobs`` is joblib's: the number of jobs at once, -1 for all cores; None takes the number of
    an enclosing ``joblib.parallel_config``, else 1. Where a worker dies, every job then under way
    is tried once more, alone; a serial run tries nothing twice. Raises InputError.
    """
    from tqdm import tqdm

    is_serial(n_jobs)  # refuses a wrong number before a journal is made
    hidden = None if progress is None else not progress
    with nullcontext() if journal is None else Journal(journal, wanted, kind) as book:
        initial = len(book.rows) if book is not None and wanted is not None else 0
        look = {"delay": 2, "disable": hidden, "file": steered(sys.stderr), "desc": kind}
        with tqdm(initial=initial, **look | bar) as shown:
            yield Loop(answer, n_jobs, version, book, shown, few)
