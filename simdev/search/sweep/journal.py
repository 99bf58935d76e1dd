"""The journal of a sweep, or of another ``kind`` of work: one finished result a line, appended and
never rewritten.

A line is a JSON object, a tab and the CRC-32 of the object's bytes. Whoever opens a journal holds a
lock on it, which the system gives back when the process ends, however it ends. A line that a crash
cut short is cut off; one that is damaged elsewhere is passed over, and its result made again.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
import zlib
from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Any

from ...ground.errors import InputError, reason_of

SYNC_S = 0.25  # a sync takes milliseconds: after each tiny scenario it would double the time


def _line(value: Mapping[str, Any]) -> bytes:
    data = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()
    return b"%s\t%08x\n" % (data, zlib.crc32(data))


_held: set[int] = set()


def _forget() -> None:
    """A lock lasts while any process has its file open: a forked worker, which may outlive a kill,
    lets go of it.
    """
    while _held:
        os.close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _header(kind: str) -> bytes:
    return _line({"simdev": f"{kind} journal", "version": 1})


HEADER = _header("sweep")


class Journal:
    """An open journal: ``rows`` holds the finished rows of the keys that are ``wanted`` (None: of
    all). ``kind`` is the verb whose results it keeps.

    Raises InputError where the file cannot be opened or written, is no journal of this kind, or
    another process holds it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        wanted: Collection[str] | None = None,
        kind: str = "sweep",
    ) -> None:
        self.path, self.kind, self._header = os.fspath(path), kind, _header(kind)
        self.rows: dict[str, Mapping[str, Any]] = {}
        self._synced = 0.0
        try:
            is_new = not os.path.lexists(self.path)
            # Not blocking, for a pipe would wait for a reader; Windows would change line ends.
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
        """Take over what is whole; the number of bytes up to the end of the last whole line."""
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

    def add(self, key: str, version: str, row: Mapping[str, Any]) -> None:
        """Keep a finished row.

        ``version`` is written for people; the key tells engines apart already (``point``).

        It outlives a kill at once, and a loss of power but for the last quarter of a second.

        Raises InputError where it cannot be written, say on a full disk; what was kept before
        stays.
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
        """Bring everything to the disk and let others in. Raises InputError."""
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
    """What a line says, None where it is damaged."""
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
    """A new file outlives a loss of power when its folder is on the disk too."""
    if sys.platform == "win32":
        return
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
