"""Writing files and folders whole or not at all, and numbers exactly.

A file or a folder is written beside its place and renamed into it; a place that is no regular file
(``/dev/null``, a pipe) is written to directly, for it cannot be replaced. All writers of this
package go through ``write_text``, outputs of commands through ``replacing``
(``commands/outputs.py``) and folders of plans through ``new_folder``. ``changed_fields`` decides
which fields of a noun a file holds, and ``shape`` reads them back.
"""

from __future__ import annotations

import ctypes
import errno
import gzip
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from itertools import count
from typing import Any

from ..ground.ending import unfinished
from ..ground.errors import InputError
from ..ground.units import units_of
from .reading import PathLike


@contextmanager
def replacing(path: PathLike, keeps_link: bool = True) -> Iterator[str]:
    """The name of an empty file to fill, which becomes ``path`` when the block succeeds and
    vanishes when it fails. A block that removes it has nothing to write: the place stays as it is.

    A link stays a link, and what it points to is replaced; or with ``keeps_link`` false the link
    itself is.

    It exists from the start, so a place that cannot be written raises OSError before any work is
    done.
    """
    if os.path.isdir(path):
        raise IsADirectoryError(21, "is a directory", os.fspath(path))
    is_replaced = not keeps_link and os.path.islink(path)
    if is_replaced or not os.path.exists(path) or stat.S_ISREG(os.stat(path).st_mode):
        target = os.fspath(path) if is_replaced else os.path.realpath(path)
        with _beside(target) as temporary:
            yield temporary
            with suppress(FileNotFoundError):
                os.replace(temporary, target)
        return
    with open(path, "wb") as special, tempfile.TemporaryDirectory() as folder:
        temporary = os.path.join(folder, "output")
        yield temporary
        with suppress(FileNotFoundError), open(temporary, "rb") as written:
            special.write(written.read())


@contextmanager
def _beside(target: str) -> Iterator[str]:
    is_file = os.path.exists(target) and not os.path.islink(target)
    if is_file and not os.access(target, os.W_OK):
        raise PermissionError(13, "permission denied", target)
    folder, name = os.path.split(target)
    # The same ending: writers choose the format by it. Short, for the name may be at the limit of
    # the file system.
    temporary = os.path.join(folder, f".{os.getpid()}-{os.urandom(4).hex()}-{name[-100:]}")
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    try:
        with unfinished(temporary):
            yield temporary
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)


@contextmanager
def new_folder(path: PathLike, earlier: re.Pattern[str] | None = None) -> Iterator[str]:
    """The name of an empty folder to fill, which becomes ``path`` by one rename when the block
    succeeds and vanishes when it fails, with the folders above that were made for it.

    A folder that is there already changes places with it: files whose names match ``earlier`` move
    into ``before-1`` (or the first such folder that is not there yet), and all others stay. Without
    ``earlier`` it must be empty. Raises OSError.
    """
    if not os.fspath(path):  # as $OUT gives that was never set
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "")
    target = os.path.realpath(path)
    is_folder = os.path.isdir(target)
    # Of links that lead in a circle the target is a link still.
    if os.path.lexists(target) and not (is_folder and (earlier or not os.listdir(target))):
        reason = "is there already, and no empty folder"
        raise FileExistsError(errno.EEXIST, reason, os.fspath(path))
    with parents(target):
        place = target if _stays(target) else os.path.dirname(target)
        # The folder of a temporary one: that itself would be for this user alone.
        around = tempfile.mkdtemp(dir=place, prefix=".")
        made = os.path.join(around, os.path.basename(target))
        try:
            os.mkdir(made)
            with unfinished(around):
                yield made
            has_old = _switch(made, target, earlier)
        except BaseException:
            shutil.rmtree(around, ignore_errors=True)
            raise
        if has_old:
            _put_aside(made, target, earlier)
        with suppress(OSError):  # what could not be moved stays there: nothing is lost
            os.rmdir(around)


def require_folder(path: PathLike, earlier: re.Pattern[str] | None = None) -> None:
    """Raises OSError where ``new_folder`` does; leaves nothing behind."""
    with suppress(_EnoughError), new_folder(path, earlier):
        raise _EnoughError


class _EnoughError(Exception):
    """A folder can be made, and shall not be."""


@contextmanager
def parents(path: PathLike) -> Iterator[None]:
    """Makes the folders above a path that are missing; they go again when the block fails."""
    missing, folder = list[str](), os.path.dirname(os.path.abspath(path))
    while not os.path.lexists(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    try:
        for name in reversed(missing):
            with suppress(FileExistsError):  # another process has made it meanwhile
                os.mkdir(name)
        yield
    except BaseException:
        for name in missing:
            with suppress(OSError):
                os.rmdir(name)
        raise


def _stays(target: str) -> bool:
    """Whether a folder cannot change places with one beside it: it is somebody's working directory,
    another file system begins there, or nothing can be made beside it.
    """
    here = os.path.join(os.getcwd(), "").startswith(os.path.join(target, ""))
    beside = os.access(os.path.dirname(target), os.W_OK)
    return os.path.isdir(target) and (here or os.path.ismount(target) or not beside)


def _switch(made: str, target: str, earlier: re.Pattern[str] | None) -> bool:
    """Puts a folder in its place; returns whether that which was there has the other place now."""
    if not os.path.isdir(target):
        os.rename(made, target)
        return False
    shutil.copymode(target, made)
    if _exchanged(made, target):
        return True
    # File by file, then, as far as a system goes that cannot do so at once.
    names = [name for name in os.listdir(target) if earlier and earlier.fullmatch(name)]
    if names:
        before = os.path.join(target, _free(target))
        os.mkdir(before)
        for name in names:
            os.rename(os.path.join(target, name), os.path.join(before, name))
    for name in sorted(os.listdir(made)):
        os.rename(os.path.join(made, name), os.path.join(target, name))
    os.rmdir(made)
    return False


def _exchanged(first: str, second: str) -> bool:
    """Whether two folders have changed places, in one step: Linux can."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(rename(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0)


def _put_aside(old: str, new: str, earlier: re.Pattern[str] | None) -> None:
    """Moves what an old folder holds into the new one, an earlier answer into a folder there."""
    for name in os.listdir(old):
        if earlier is None or not earlier.fullmatch(name):
            os.rename(os.path.join(old, name), os.path.join(new, name))
    if os.listdir(old):
        os.rename(old, os.path.join(new, _free(new)))
    else:
        os.rmdir(old)


def _free(folder: str) -> str:
    """The first name for an earlier answer that is not taken in a folder."""
    names = (f"before-{number}" for number in count(1))
    return next(name for name in names if not os.path.lexists(os.path.join(folder, name)))


def write_text(path: PathLike, text: str) -> None:
    """Write a text whole or not at all, gzipped (same bytes for the same text) where the name ends
    in .gz. A byte of a file's name that is no text (a lone surrogate to Python) becomes "?".
    """
    data = text.encode(errors="replace")
    # No time of writing in the gzip header: the same text gives the same bytes.
    if os.fspath(path).endswith(".gz"):
        data = gzip.compress(data, 6, mtime=0)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(data)


def json_line(value: Any) -> str:
    """A value as JSON in a line. Raises InputError for what cannot be JSON, which is a provenance:
    all else is checked.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"provenance: cannot be written as JSON: {error}") from None


def entries_text(key: str, lines: Iterable[str], brackets: str = "[]") -> str:
    """A list or an object under its key with an entry a line, so that versions of a file can be
    compared.
    """
    inside = ",\n  ".join(lines)
    inside = f"\n  {inside}\n" if inside else ""
    return f'"{key}": {brackets[0]}{inside}{brackets[1]}'


def changed_fields(noun: Any, *always: str) -> dict[str, Any]:
    """Fields of a dataclass that differ from their defaults, and those named, ready for JSON:
    tuples as lists, times and rates as texts with units.
    """
    changed, units = dict[str, Any](), units_of(noun.__class__)
    for field in fields(noun):
        value = getattr(noun, field.name)
        if field.name not in always and (value is None or value == field.default):
            continue
        unit, _ = units.get(field.name, (None, False))
        # Exact fractions: a float would come back as another number.
        if unit is not None and unit.text is not None:
            value = unit.text(value)
        changed[field.name] = listed(value)
    return changed


def listed(value: Any) -> Any:
    """Tuples as lists and dataclasses as their changed fields, also inside of tuples; everything
    else as it is.
    """
    if is_dataclass(value):
        return changed_fields(value)
    return [listed(item) for item in value] if isinstance(value, tuple) else value
