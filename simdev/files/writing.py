"""Writing of files and folders, whole or not at all, and of numbers, exactly.

A file or folder is written beside its place and then renamed. A place that is no regular file
(``/dev/null``, a pipe) is written to directly, for it cannot be replaced. All writers of this
package use ``write_text``, outputs of commands ``replacing`` (``commands/outputs.py``), and folders
of plans ``new_folder``. ``changed_fields`` decides which fields of a noun a file holds, and
``shape`` reads them back.
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
    vanishes when it fails. A block that has nothing to write removes the file: ``path`` then stays
    unchanged. Where ``path`` is a link, its target is replaced, or with ``keeps_link`` false the
    link itself.

    The file exists from the start, so a place that cannot be written raises OSError before any work
    is done.
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
    # The ending stays, for writers choose the format by it. The rest is cut, for the name may be at
    # the file system's limit of length.
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
    succeeds and vanishes when it fails. Missing folders above ``path`` are made, or vanish too.

    A folder that is already at ``path`` is replaced: its files whose names match ``earlier`` move
    into ``before-1`` (or the first such name that is free) inside the new folder, and all others
    are kept. Without ``earlier`` the old folder must be empty. Raises OSError.
    """
    if not os.fspath(path):  # the value of a shell's $OUT that was never set
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "")
    target = os.path.realpath(path)
    is_folder = os.path.isdir(target)
    # Where links lead in a circle, the target is still a link.
    if os.path.lexists(target) and not (is_folder and (earlier or not os.listdir(target))):
        reason = "is there already, and no empty folder"
        raise FileExistsError(errno.EEXIST, reason, os.fspath(path))
    with parents(target):
        place = target if _stays(target) else os.path.dirname(target)
        # A folder inside the temporary folder, which itself is readable by this user alone.
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
    """Raises OSError where ``new_folder`` would, and leaves nothing behind."""
    with suppress(_EnoughError), new_folder(path, earlier):
        raise _EnoughError


class _EnoughError(Exception):
    """Raised to undo a folder that was made only as a test."""


@contextmanager
def parents(path: PathLike) -> Iterator[None]:
    """Makes the missing folders above a path, and removes them again when the block fails."""
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
    """Whether a folder cannot be exchanged with a folder beside it: it holds the working directory,
    is a mount point, or lies in a folder that cannot be written.
    """
    here = os.path.join(os.getcwd(), "").startswith(os.path.join(target, ""))
    beside = os.access(os.path.dirname(target), os.W_OK)
    return os.path.isdir(target) and (here or os.path.ismount(target) or not beside)


def _switch(made: str, target: str, earlier: re.Pattern[str] | None) -> bool:
    """Puts the folder ``made`` at ``target``; returns whether the old folder now is at ``made``."""
    if not os.path.isdir(target):
        os.rename(made, target)
        return False
    shutil.copymode(target, made)
    if _exchanged(made, target):
        return True
    # Systems that cannot exchange folders in one step move file by file.
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
    """Whether two folders have changed places in one step, which only Linux can do."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(rename(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0)


def _put_aside(old: str, new: str, earlier: re.Pattern[str] | None) -> None:
    """Moves the files of an old folder into the new one; files of an earlier answer into a folder
    in the new one.
    """
    for name in os.listdir(old):
        if earlier is None or not earlier.fullmatch(name):
            os.rename(os.path.join(old, name), os.path.join(new, name))
    if os.listdir(old):
        os.rename(old, os.path.join(new, _free(new)))
    else:
        os.rmdir(old)


def _free(folder: str) -> str:
    """The first name in a folder that is free for an earlier answer."""
    names = (f"before-{number}" for number in count(1))
    return next(name for name in names if not os.path.lexists(os.path.join(folder, name)))


def write_text(path: PathLike, text: str) -> None:
    """Write a text whole or not at all, gzipped where the name ends in .gz (equal texts give equal
    bytes). A lone surrogate in the text, from the name of a file that is no UTF-8, becomes "?".
    """
    data = text.encode(errors="replace")
    # No time of writing in the gzip header: the same text gives the same bytes.
    if os.fspath(path).endswith(".gz"):
        data = gzip.compress(data, 6, mtime=0)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(data)


def json_line(value: Any) -> str:
    """A value as JSON on one line. Raises InputError where it is no JSON; only a provenance can be,
    for all else has been checked.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"provenance: cannot be written as JSON: {error}") from None


def entries_text(key: str, lines: Iterable[str], brackets: str = "[]") -> str:
    """A key with its list or object, an entry a line, so that files can be compared."""
    inside = ",\n  ".join(lines)
    inside = f"\n  {inside}\n" if inside else ""
    return f'"{key}": {brackets[0]}{inside}{brackets[1]}'


def changed_fields(noun: Any, *always: str) -> dict[str, Any]:
    """Fields of a dataclass that differ from their defaults, and the ``always`` ones, ready for
    JSON: tuples as lists, times and rates as texts with units.
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
    """The value with tuples as lists and dataclasses as their changed fields, at any depth of
    tuples; other values unchanged.
    """
    if is_dataclass(value):
        return changed_fields(value)
    return [listed(item) for item in value] if isinstance(value, tuple) else value
